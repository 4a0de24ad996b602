//! Finding and opening a device.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaContext, sys};

use crate::Error;

/// An open device.
#[derive(Clone, Debug)]
pub struct Device {
    context: Arc<CudaContext>,
    name: String,
    capability: (i32, i32),
}

impl Device {
    /// Opens device `ordinal`, counted from 0.
    ///
    /// # Errors
    /// [`Error::NoDriver`], [`Error::NoDevice`], [`Error::NoSuchDevice`], or [`Error::Driver`] if the driver refuses.
    pub fn open(ordinal: usize) -> Result<Self, Error> {
        probe_driver()?;
        let count = match CudaContext::device_count() {
            Ok(count) => usize::try_from(count).unwrap_or(0),
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => 0,
            Err(error) => return Err(error.into()),
        };
        if count == 0 {
            return Err(Error::NoDevice);
        }
        if ordinal >= count {
            return Err(Error::NoSuchDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal)?;
        let name = context.name()?;
        let capability = context.compute_capability()?;
        Ok(Self { context, name, capability })
    }

    /// Its place among the devices of the machine, counted from 0.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.context.ordinal()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.capability;
        write!(f, "cuda:{} ({}, compute capability {major}.{minor})", self.ordinal(), self.name)
    }
}

/// cudarc panics where the driver's library is missing, so we look for it first.
#[allow(unsafe_code)]
fn probe_driver() -> Result<(), Error> {
    // SAFETY: loading a library runs its initialisers. The driver's, which every CUDA program loads, may be run at any time.
    let library = unsafe { libloading::Library::new("libcuda.so.1") };
    // The library stays open until here; cudarc opens it for itself.
    library.map(drop).map_err(|error| Error::NoDriver(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_device_is_told_so() {
        match Device::open(0) {
            Ok(device) => assert_eq!(device.ordinal(), 0),
            Err(error) => {
                assert!(error.to_string().starts_with("no CUDA device"), "{error}");
                assert!(std::env::var_os("RL_REQUIRE_GPU").is_none_or(|v| v != "1"), "RL_REQUIRE_GPU=1, but {error}");
                println!("skipped: no CUDA device");
            }
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_refused() {
        let error = Device::open(1_000_000).unwrap_err();
        assert!(error.to_string().starts_with("no CUDA device"), "{error}");
    }
}
