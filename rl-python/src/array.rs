//! Elements of NumPy's arrays.

use numpy::ndarray::{ArrayView, Dimension};
use numpy::{Element, PyArrayMethods as _, PyReadonlyArray, PyUntypedArrayMethods as _};
use pyo3::PyResult;

use crate::error::bad;

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
