//! The network kernel: forward, loss and gradient on the CPU.

pub(crate) mod aligned;
pub(crate) mod categories;
pub(crate) mod conv;
pub(crate) mod dense;
pub(crate) mod fused;
pub mod gemm;
pub(crate) mod gradient;
pub(crate) mod layered;
pub(crate) mod net;
pub(crate) mod samples;
pub mod slices;
pub(crate) mod sums;
pub(crate) mod tile;
