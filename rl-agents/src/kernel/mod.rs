//! The network kernel: forward, loss and gradient on the CPU.

pub(crate) mod aligned;
pub(crate) mod dense;
pub(crate) mod encoder;
pub(crate) mod fused;
pub mod gemm;
pub(crate) mod gradient;
pub(crate) mod layered;
pub(crate) mod net;
pub(crate) mod samples;
pub(crate) mod sequences;
pub mod slices;
pub(crate) mod sums;
pub(crate) mod tile;
pub(crate) mod vector;
