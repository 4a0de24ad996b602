//! Advantages and returns of arrays (T, N).

use ndarray::Array2;
use numpy::{IntoPyArray as _, PyArray2, PyReadonlyArray2, PyUntypedArrayMethods as _};
use pyo3::prelude::*;
use rl_buffer::returns::{self, Outcomes};

use crate::array::view;
use crate::error::bad;

/// Arrays of one shape.
#[derive(FromPyObject)]
pub(crate) struct Given<'py> {
    #[pyo3(item)]
    rewards: PyReadonlyArray2<'py, f32>,
    #[pyo3(item)]
    terminated: PyReadonlyArray2<'py, u8>,
    #[pyo3(item)]
    truncated: PyReadonlyArray2<'py, u8>,
    #[pyo3(item)]
    next_values: PyReadonlyArray2<'py, f32>,
}

impl Given<'_> {
    /// Borrows the arrays if all of them, and the `others`, have one shape.
    fn outcomes(&self, others: &[&PyReadonlyArray2<'_, f32>]) -> PyResult<(Outcomes<'_>, (usize, usize))> {
        let (rewards, next_values) = (view(&self.rewards)?, view(&self.next_values)?);
        let (terminated, truncated) = (view(&self.terminated)?, view(&self.truncated)?);
        let shape = rewards.dim();
        let others = others.iter().map(|other| (other.shape()[0], other.shape()[1]));
        if others.chain([terminated.dim(), truncated.dim(), next_values.dim()]).any(|other| other != shape) {
            return Err(bad(format!("all arrays must be ({}, {}), as the rewards are", shape.0, shape.1)));
        }
        Ok((Outcomes { rewards, terminated, truncated, next_values }, shape))
    }
}

type Arrays<'py> = (Bound<'py, PyArray2<f32>>, Bound<'py, PyArray2<f32>>);

/// Generalized advantage estimation: advantages and returns.
#[pyfunction]
pub(crate) fn gae<'py>(
    py: Python<'py>,
    given: Given<'_>,
    values: PyReadonlyArray2<'_, f32>,
    gamma: f32,
    gae_lambda: f32,
) -> PyResult<Arrays<'py>> {
    let (outcomes, shape) = given.outcomes(&[&values])?;
    let (values, mut advantages) = (view(&values)?, Array2::zeros(shape));
    py.detach(|| returns::gae(&outcomes, values, gamma, gae_lambda, advantages.view_mut()));
    let returns = &advantages + &values;
    Ok((advantages.into_pyarray(py), returns.into_pyarray(py)))
}

/// V-trace: advantages, and the returns that a critic learns.
#[pyfunction]
pub(crate) fn vtrace<'py>(
    py: Python<'py>,
    given: Given<'_>,
    values: PyReadonlyArray2<'_, f32>,
    ratios: PyReadonlyArray2<'_, f32>,
    gamma: f32,
    vtrace_lambda: f32,
) -> PyResult<Arrays<'py>> {
    let (outcomes, shape) = given.outcomes(&[&values, &ratios])?;
    let (values, ratios) = (view(&values)?, view(&ratios)?);
    let (mut advantages, mut found) = (Array2::zeros(shape), Array2::zeros(shape));
    py.detach(|| {
        returns::vtrace(&outcomes, values, ratios, gamma, vtrace_lambda, advantages.view_mut(), found.view_mut());
    });
    Ok((advantages.into_pyarray(py), found.into_pyarray(py)))
}

/// Returns of up to `n` steps.
#[pyfunction]
pub(crate) fn n_step_returns<'py>(
    py: Python<'py>,
    given: Given<'_>,
    n: usize,
    gamma: f32,
) -> PyResult<Bound<'py, PyArray2<f32>>> {
    if n == 0 {
        return Err(bad("n is 0; it must be a whole number from 1"));
    }
    let (outcomes, shape) = given.outcomes(&[])?;
    let mut found = Array2::zeros(shape);
    py.detach(|| returns::n_step_returns(&outcomes, n, gamma, found.view_mut()));
    Ok(found.into_pyarray(py))
}
