//! The native half of the Python package `samebits`.
//!
//! It takes and gives NumPy arrays of one type each and checks lengths and numbers; `python/samebits` has the classes that users
//! see, with the types, spaces and names of Gymnasium and Stable-Baselines3.

mod array;
mod envs;
mod error;
mod policy;
mod replay;
mod returns;
mod train;

use pyo3::prelude::*;

#[pymodule]
fn _samebits(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<envs::Envs>()?;
    module.add_class::<policy::Policy>()?;
    module.add_class::<replay::Replay>()?;
    module.add_function(wrap_pyfunction!(envs::catalog, module)?)?;
    module.add_function(wrap_pyfunction!(returns::gae, module)?)?;
    module.add_function(wrap_pyfunction!(returns::n_step_returns, module)?)?;
    module.add_function(wrap_pyfunction!(returns::vtrace, module)?)?;
    module.add_function(wrap_pyfunction!(train::evaluate, module)?)?;
    module.add_function(wrap_pyfunction!(train::export, module)?)?;
    module.add_function(wrap_pyfunction!(train::main, module)?)?;
    module.add_function(wrap_pyfunction!(train::resume, module)?)?;
    module.add_function(wrap_pyfunction!(train::settings, module)?)?;
    module.add_function(wrap_pyfunction!(train::train, module)?)?;
    Ok(())
}
