//! Learning on a CUDA device: networks, gradient descent, exchange between devices.

pub(crate) mod descent;
pub(crate) mod dqn;
pub(crate) mod exchange;
pub(crate) mod memory;
pub(crate) mod net;
pub(crate) mod normalize;
pub(crate) mod share;
pub(crate) mod staged;
pub(crate) mod times;
