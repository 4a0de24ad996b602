//! Executors of kernels: the host, or a driver library.

pub(crate) mod allocation;
pub(crate) mod api;
pub(crate) mod args;
pub(crate) mod buffer;
pub(crate) mod captures;
pub(crate) mod device;
pub(crate) mod emulated;
pub(crate) mod graph;
pub(crate) mod kernel;
pub(crate) mod pinned;
#[cfg(feature = "driver")]
pub(crate) mod probe;
pub(crate) mod sources;
pub(crate) mod stream;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use libloading::Library;

use crate::Error;
use crate::driver::api::{CudaContext, CudaModule};
use crate::driver::emulated::Emulated;
#[cfg(feature = "driver")]
pub(crate) use crate::driver::probe::probe;

/// Executor of kernels.
#[derive(Debug)]
pub(crate) enum Driver {
    /// A GPU.
    Cuda {
        context: Arc<CudaContext>,
        /// Modules that are loaded, by their PTX.
        modules: Mutex<HashMap<&'static str, Arc<CudaModule>>>,
    },
    /// The host, with kernels compiled by its C++ compiler.
    Emulated(Emulated),
}

/// Checks that the driver library loads, is new enough and complete.
#[cfg(not(feature = "driver"))]
pub(crate) fn probe() -> Result<(), Error> {
    Err(Error::NoDriver(crate::driver::api::NO_DRIVER.into()))
}

/// Loads the stand-in driver as the driver of this process.
///
/// Cargo builds it beside the programs of the tests. It is named as the driver is, so that looking for the driver finds it once
/// it is loaded.
#[allow(unsafe_code)]
pub(crate) fn load_stand_in() -> Result<(), Error> {
    let program = std::env::current_exe().map_err(|error| Error::NoDriver(error.to_string()))?;
    let path = program.with_file_name("libstandin.so");
    // SAFETY: the library has no initialisers.
    let library = unsafe { Library::new(&path) };
    let library = library.map_err(|error| Error::NoDriver(format!("the stand-in driver does not load: {error}")))?;
    std::mem::forget(library); // stays loaded
    Ok(())
}
