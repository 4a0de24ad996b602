//! Errors of this workspace as Python's exceptions.

use pyo3::PyErr;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
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
