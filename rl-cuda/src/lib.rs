//! The CUDA device.
//!
//! Needs no CUDA toolkit: the driver is loaded at run time. On a machine without one, [`Device::open`] says so with a clear
//! error and everything else of this project goes on without it.
//!
//! ```
//! match rl_cuda::Device::open(0) {
//!     Ok(device) => println!("{device}"),
//!     Err(error) => println!("{error}"), // "no CUDA device: ..."
//! }
//! ```

mod device;
mod error;

pub use device::Device;
pub use error::Error;
