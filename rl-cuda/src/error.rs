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
    #[error("CUDA: {0}")]
    Driver(String),
}

impl From<cudarc::driver::DriverError> for Error {
    fn from(error: cudarc::driver::DriverError) -> Self {
        Self::Driver(format!("{error:?}"))
    }
}
