//! Errors of the device.

use crate::driver::api::{DriverError, sys::CUresult};

/// Error of this crate; each variant carries the facts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver library is missing, too old, or a stub.
    #[error("no CUDA device: {0}")]
    NoDriver(String),
    /// The driver is installed but finds no device.
    #[error("no CUDA device: the driver finds none")]
    NoDevice,
    /// Device index out of range.
    #[error("no CUDA device {ordinal}: this machine has {count}, counted from 0")]
    NoSuchDevice {
        /// Requested index.
        ordinal: usize,
        /// Number of devices.
        count: usize,
    },
    /// NVML is missing, or does not know the GPU.
    #[error("the GPU's sensors cannot be read: {0}")]
    NoSensors(String),
    /// The driver rejected a call.
    #[error("CUDA: {doing}: {reason}")]
    Driver {
        /// Operation that failed.
        doing: &'static str,
        /// Message of the driver.
        reason: String,
    },
    /// Out of device memory.
    #[error("the device cannot allocate {bytes} bytes ({reason}); use fewer environments or shorter rollouts")]
    Memory {
        /// Requested size.
        bytes: usize,
        /// Message of the driver.
        reason: String,
    },
    /// The driver rejected a module, for example because the driver is too old.
    #[error(
        "the driver rejects the kernels of {module} ({reason}); they need driver 525 or newer and compute capability 7.5 or newer"
    )]
    Module {
        /// Name of the module.
        module: &'static str,
        /// Message of the driver.
        reason: String,
    },
    /// Kernel that its module lacks.
    #[error("the module {module} has no kernel {kernel}")]
    NoKernel {
        /// Name of the module.
        module: &'static str,
        /// Name of the kernel.
        kernel: String,
    },
    /// Rules whose spaces or constants the kernels cannot have.
    #[error("the rules of {module}: {what}")]
    Rules {
        /// Name of the module.
        module: &'static str,
        /// Problem with them.
        what: &'static str,
    },
    /// Failed kernel launch.
    #[error("kernel {kernel} with {blocks} blocks of {threads} threads: {reason}")]
    Launch {
        /// Name of the kernel.
        kernel: String,
        /// Blocks in the grid.
        blocks: u32,
        /// Threads per block.
        threads: u32,
        /// Message of the driver.
        reason: String,
    },
    /// A kernel read an action that is out of range, and took 0 instead.
    #[error("environment {env_idx}: an action was out of range")]
    ActionOutOfRange {
        /// Lowest index among the affected environments.
        env_idx: usize,
    },
    /// Memory of the wrong length.
    #[error("{what}: expected {expected} elements, found {found}")]
    Length {
        /// Name of the memory.
        what: &'static str,
        /// Required number of elements.
        expected: usize,
        /// Actual number of elements.
        found: usize,
    },
    /// Memory of the wrong kind.
    #[error("{what}: expected {expected}")]
    Kind {
        /// Name of the memory.
        what: &'static str,
        /// Required kind.
        expected: &'static str,
    },
    /// The kernels cannot be compiled for the host.
    #[error("emulated device: {0}")]
    Emulation(String),
    /// Environment without kernels.
    #[error("environment \"{name}\" has no kernels; these have: {known}")]
    NoKernels {
        /// Requested name.
        name: String,
        /// Names of the environments that have kernels.
        known: String,
    },
    /// Error of an environment.
    #[error(transparent)]
    Env(#[from] rl_envs::Error),
}

impl Error {
    /// Wraps an error of the driver with the operation that failed.
    pub(crate) fn driver(doing: &'static str) -> impl FnOnce(DriverError) -> Self {
        move |error| Self::Driver { doing, reason: said(error) }
    }

    /// Wraps an error of the driver that loads a module of `bytes` bytes.
    pub(crate) fn load(module: &'static str, bytes: usize, error: DriverError) -> Self {
        match error.0 {
            CUresult::CUDA_ERROR_INVALID_IMAGE
            | CUresult::CUDA_ERROR_INVALID_PTX
            | CUresult::CUDA_ERROR_INVALID_SOURCE
            | CUresult::CUDA_ERROR_JIT_COMPILATION_DISABLED
            | CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND
            | CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
            | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => Self::Module { module, reason: said(error) },
            _ => Self::memory("loading kernels", bytes)(error),
        }
    }

    /// Wraps an error of the driver in an operation that takes `bytes` bytes.
    ///
    /// Not every one is a lack of memory: a lost device reports its loss.
    pub(crate) fn memory(doing: &'static str, bytes: usize) -> impl FnOnce(DriverError) -> Self {
        move |error| match error.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Self::Memory { bytes, reason: said(error) },
            _ => Self::driver(doing)(error),
        }
    }
}

/// Checks a length.
pub(crate) fn length(what: &'static str, expected: usize, found: usize) -> Result<(), Error> {
    if expected == found { Ok(()) } else { Err(Error::Length { what, expected, found }) }
}

/// Returns the driver's name and text of an error.
#[cfg(not(feature = "driver"))]
pub(crate) fn said(error: DriverError) -> String {
    format!("{error:?}")
}

/// Returns the driver's name and text of an error.
#[cfg(feature = "driver")]
pub(crate) fn said(error: DriverError) -> String {
    match (error.error_name(), error.error_string()) {
        (Ok(name), Ok(text)) => format!("{}: {}", name.to_string_lossy(), text.to_string_lossy()),
        _ => format!("{:?}", error.0),
    }
}
