//! Environments on a CUDA device, one thread each, with memory, streams and graphs.
//!
//! The crate needs no CUDA toolkit: it loads the driver at run time and embeds its kernels as PTX. On a machine without a driver,
//! [`Device::open`] returns a clear error, and everything that needs no device still works. [`Device::emulated`] runs the same
//! kernels on the host, compiled by its C++ compiler, so that they can be tested without a GPU.
//!
//! ```
//! match rl_cuda::Device::open(0) {
//!     Ok(device) => println!("{device}"),
//!     Err(error) => println!("{error}"), // "no CUDA device: ..."
//! }
//! ```

pub mod elementary;
pub mod learner;
pub mod measure;
pub mod targets;

#[cfg(test)]
mod corners;
mod driver;
mod envs;
mod error;
mod sensors;

pub use driver::buffer::{Buffer, Element, View, ViewMut};
pub use driver::device::Device;
pub use driver::graph::Graph;
pub use driver::kernel::KernelInfo;
pub use driver::pinned::{CpuAccess, PinnedSlab};
pub use driver::sources::Module;
pub use driver::stream::{Event, Stream};
pub use envs::steps::{ActionViews, DeviceActions, DeviceObs, DeviceSteps, ObsViews, StepViews};
pub use envs::twins::{Constants, EnvKernels};
pub use envs::vec_env::{ActionSource, CudaVecEnv, RolloutGraph, StepsGraph};
pub use error::Error;
pub use sensors::{Reading, Sensors};

/// Examples of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
