//! Proof of kernels without a GPU: PTX and the stand-in driver.

pub(crate) mod candle_cuda;
pub(crate) mod gpu_bundle;
pub(crate) mod gpu_record;
pub(crate) mod nvrtc;
pub(crate) mod ptx;
pub(crate) mod ptx_mutations;
pub(crate) mod ptx_runs;
pub(crate) mod standin;
