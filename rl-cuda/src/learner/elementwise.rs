//! Kernels of one number a thread: gates, and columns of matrices.
//!
//! Gates are activations whose derivatives are kept.

use super::Activation;
use super::kernels::{BLOCK, LearnerKernels};
use crate::driver::args::args;
use crate::error::length;
use crate::{Error, Stream, View, ViewMut};

/// Function after a layer that is a number times a share of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Gate {
    /// x / (1 + exp(-x))
    Silu = 0,
    /// x times the normal distribution function of x, approximated with tanh.
    Gelu = 1,
}

/// Columns of a matrix, from `first` on.
#[derive(Clone, Copy, Debug)]
pub struct MatrixColumns<V> {
    /// Rows of `width` numbers.
    pub matrix: V,
    /// Numbers of a row.
    pub width: usize,
    /// Index of the first column.
    pub first: usize,
}

impl<V> MatrixColumns<V> {
    /// Checks that there are `n` rows, and `len` columns from the first on.
    fn check(&self, numbers: usize, n: usize, len: usize) -> Result<(), Error> {
        length("rows", n * self.width, numbers)?;
        length("columns", self.first + len, self.width.min(self.first + len))
    }
}

#[allow(unsafe_code)]
impl LearnerKernels {
    /// Copies `len` columns.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn copy_columns(
        &self,
        stream: &Stream,
        from: &MatrixColumns<View<'_, f32>>,
        to: &MatrixColumns<ViewMut<'_, f32>>,
        len: usize,
    ) -> Result<(), Error> {
        let n = to.matrix.len() / to.width.max(1);
        from.check(from.matrix.len(), n, len)?;
        to.check(to.matrix.len(), n, len)?;
        let [source, target] = [[from.width, from.first], [to.width, to.first]].map(|of| of.map(|number| number as u32));
        let args = args![from.matrix, source[0], source[1], to.matrix, target[0], target[1], n as u32, len as u32];
        // SAFETY: the parameters are those of `columns_copy`; rows and columns were checked above.
        unsafe { self.columns[0].launch(stream, (n * len) as u64, BLOCK, args) }
    }

    /// Writes `dz` (n, L): L columns times the derivatives of an activation.
    ///
    /// Its values are `y`, (n, L).
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn derive_columns(
        &self,
        stream: &Stream,
        from: &MatrixColumns<View<'_, f32>>,
        activation: Activation,
        y: &View<'_, f32>,
        dz: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let n = from.matrix.len() / from.width.max(1);
        let len = dz.len() / n.max(1);
        from.check(from.matrix.len(), n, len)?;
        length("dz", n * len, dz.len())?;
        length("y", dz.len(), y.len())?;
        let args = args![from.matrix, from.width as u32, from.first as u32, y, dz, n as u32, len as u32, activation as u32];
        // SAFETY: the parameters are those of `columns_derive`; rows, columns and lengths were checked above.
        unsafe { self.columns[1].launch(stream, dz.len() as u64, BLOCK, args) }
    }

    /// Applies a function in place, and writes its derivatives to `slopes`.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn gate(
        &self,
        stream: &Stream,
        gate: Gate,
        x: &ViewMut<'_, f32>,
        slopes: Option<&ViewMut<'_, f32>>,
    ) -> Result<(), Error> {
        length("slopes", x.len(), slopes.map_or(x.len(), |slopes| slopes.len()))?;
        let args = args![x, slopes.map_or(0, |slopes| slopes.address()), x.len() as u64, gate as u32];
        // SAFETY: the parameters are those of `gated_forward`; lengths were checked above.
        unsafe { self.gated[0].launch(stream, x.len() as u64, BLOCK, args) }
    }

    /// Multiplies gradients by the slopes that [`LearnerKernels::gate`] wrote.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn gate_gradient(&self, stream: &Stream, dx: &ViewMut<'_, f32>, slopes: &View<'_, f32>) -> Result<(), Error> {
        length("slopes", dx.len(), slopes.len())?;
        let args = args![dx, slopes, dx.len() as u64];
        // SAFETY: the parameters are those of `gated_backward`; lengths were checked above.
        unsafe { self.gated[1].launch(stream, dx.len() as u64, BLOCK, args) }
    }
}
