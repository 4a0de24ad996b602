//! Errors of this workspace as Python's exceptions.

use numpy::ndarray::{ArrayView, Dimension};
use numpy::{Element, PyArrayMethods as _, PyReadonlyArray, PyUntypedArrayMethods as _};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::{PyErr, PyResult};
use rl_runtime::Error;

/// Converts an error to an exception.
///
/// `ValueError` for what the caller can change, `OSError` for files, else `RuntimeError`.
pub(crate) fn raised(error: impl Into<Error>) -> PyErr {
    let error = error.into();
    match (&error, error.exit_code()) {
        (Error::Io { .. }, _) => PyOSError::new_err(error.to_string()),
        (_, 2) => PyValueError::new_err(error.to_string()),
        _ => PyRuntimeError::new_err(error.to_string()),
    }
}

/// Converts an error of a buffer.
pub(crate) fn raised_by_buffer(error: rl_buffer::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// An exception for a call that does not fit.
pub(crate) fn bad(text: impl Into<String>) -> PyErr {
    PyValueError::new_err(text.into())
}

/// Borrows the elements of an array.
///
/// Refuses elements that are not where their type may be, such as a field of a packed structured array.
pub(crate) fn view<'a, T: Element, D: Dimension>(array: &'a PyReadonlyArray<'_, T, D>) -> PyResult<ArrayView<'a, T, D>> {
    let size = size_of::<T>() as isize;
    let mut axes = array.shape().iter().zip(array.strides());
    let is_whole = axes.all(|(&len, stride)| len < 2 || stride % size == 0);
    if !is_whole || !array.data().is_aligned() {
        return Err(bad("elements of an array are not aligned; numpy.ascontiguousarray makes one of them"));
    }
    Ok(array.as_array())
}
