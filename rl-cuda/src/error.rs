//! What can go wrong with the device.

/// An error of this crate, with the facts in its variants.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver's library is not there.
    #[error("no CUDA device: the driver's library libcuda.so.1 cannot be loaded ({0})")]
    NoDriver(String),
    /// The driver is there and has no device for us.
    #[error("no CUDA device: the driver finds none")]
    NoDevice,
    /// There are devices, but not this one.
    #[error("no CUDA device {ordinal}: there are {count}, counted from 0")]
    NoSuchDevice {
        /// The one that was asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// The driver refused a call.
    #[error("CUDA: {doing}: {reason}")]
    Driver {
        /// What was being done.
        doing: &'static str,
        /// What the driver said.
        reason: String,
    },
    /// The device has too little memory.
    #[error("the device cannot give {bytes} bytes ({reason}); use fewer environments or shorter rollouts")]
    Memory {
        /// How much was asked for.
        bytes: usize,
        /// What the driver said.
        reason: String,
    },
    /// The kernels of a module were refused: too old a driver, for one.
    #[error(
        "the driver refuses the kernels of {module} ({reason}); they need driver 525 or newer and compute capability 7.5 or newer"
    )]
    Module {
        /// Which.
        module: &'static str,
        /// What the driver said.
        reason: String,
    },
    /// A kernel could not be launched.
    #[error("kernel {kernel} with {blocks} blocks of {threads} threads: {reason}")]
    Launch {
        /// Its name.
        kernel: String,
        /// Blocks of the grid.
        blocks: u32,
        /// Threads of a block.
        threads: u32,
        /// What the driver said.
        reason: String,
    },
    /// An action that a kernel read was out of range; it took 0 in its place.
    #[error("environment {env_idx}: an action was out of range")]
    ActionOutOfRange {
        /// The least index among the environments concerned.
        env_idx: usize,
    },
    /// Memory of another length than is needed.
    #[error("{what}: expected {expected} elements, found {found}")]
    Length {
        /// Which.
        what: &'static str,
        /// How many are needed.
        expected: usize,
        /// How many were given.
        found: usize,
    },
    /// Memory of another kind than is needed.
    #[error("{what}: expected {expected}")]
    Kind {
        /// Which.
        what: &'static str,
        /// What is needed.
        expected: &'static str,
    },
    /// The kernels could not be compiled for the host.
    #[error("emulated device: {0}")]
    Emulation(String),
    /// No environment with this name has kernels.
    #[error("environment \"{name}\" has no kernels; these have: {known}")]
    NoKernels {
        /// The name that was asked for.
        name: String,
        /// Those that have.
        known: String,
    },
    /// An environment's own error.
    #[error(transparent)]
    Env(#[from] rl_envs::Error),
}

impl Error {
    /// Turns what the driver says into an error that tells what was being done.
    pub(crate) fn driver(doing: &'static str) -> impl FnOnce(cudarc::driver::DriverError) -> Self {
        move |error| Self::Driver { doing, reason: said(error) }
    }
}

/// What the driver says of an error.
pub(crate) fn said(error: cudarc::driver::DriverError) -> String {
    match (error.error_name(), error.error_string()) {
        (Ok(name), Ok(text)) => format!("{}: {}", name.to_string_lossy(), text.to_string_lossy()),
        _ => format!("{:?}", error.0),
    }
}
