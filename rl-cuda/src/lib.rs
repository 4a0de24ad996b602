//! The CUDA device: environments that run on it, one thread each, and the memory, streams and graphs that they need.
//!
//! Needs no CUDA toolkit: the driver is loaded at run time, kernels travel as PTX. On a machine without a driver, [`Device::open`] says
//! so with a clear error and everything else of this project goes on without it. [`Device::emulated`] runs the same kernels on the host,
//! compiled by its C++ compiler: that is how they are tested where there is no GPU.
//!
//! ```
//! match rl_cuda::Device::open(0) {
//!     Ok(device) => println!("{device}"),
//!     Err(error) => println!("{error}"), // "no CUDA device: ..."
//! }
//! ```

mod buffer;
mod device;
pub mod elementary;
mod emulated;
mod error;
mod kernel;
pub mod measure;
mod pinned;
mod sources;
mod stream;
pub mod targets;
mod twins;
mod vec_env;

pub use buffer::{Buffer, Element, View, ViewMut};
pub use device::Device;
pub use error::Error;
pub use kernel::KernelInfo;
pub use pinned::{CpuAccess, PinnedSlab};
pub use stream::{Event, Stream};
pub use vec_env::{
    ActionSource, ActionViews, CudaVecEnv, DeviceActions, DeviceObs, DeviceSteps, ObsViews, RolloutGraph, StepViews,
};
