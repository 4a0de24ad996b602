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

mod allocation;
mod api;
mod args;
mod buffer;
#[cfg(test)]
mod corners;
mod device;
mod driver;
pub mod elementary;
mod emulated;
mod error;
mod graph;
mod kernel;
pub mod learner;
pub mod measure;
mod pinned;
#[cfg(feature = "driver")]
mod probe;
mod sensors;
mod sources;
mod stream;
pub mod targets;
mod twins;
mod vec_env;

pub use buffer::{Buffer, Element, View, ViewMut};
pub use device::Device;
pub use error::Error;
pub use graph::Graph;
pub use kernel::KernelInfo;
pub use pinned::{CpuAccess, PinnedSlab};
pub use sensors::{Reading, Sensors};
pub use sources::Module;
pub use stream::{Event, Stream};
pub use twins::Constants;
pub use vec_env::{
    ActionSource, ActionViews, CudaVecEnv, DeviceActions, DeviceObs, DeviceSteps, ObsViews, RolloutGraph, StepViews, StepsGraph,
};

/// Examples of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
