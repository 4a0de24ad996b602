//! Learning on a CUDA device: networks, gradient descent, exchange between devices.

pub(crate) mod conv;
pub(crate) mod descent;
pub(crate) mod exchange;
pub(crate) mod graph;
pub(crate) mod memory;
pub(crate) mod net;
pub(crate) mod normalize;
pub(crate) mod parts;
pub(crate) mod replayed;
pub(crate) mod share;
pub(crate) mod staged;
pub(crate) mod times;

use rl_cuda::Stream;
use rl_cuda::learner::{Activation as Code, Gate, LearnerKernels};

use crate::Activation;

/// Stream on which kernels are enqueued, and the kernels.
#[derive(Clone, Copy)]
pub(crate) struct Queue<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) kernels: &'a LearnerKernels,
}

/// The kernels' code of an activation, or the gate that replaces it.
fn activation(activation: Option<Activation>) -> (Code, Option<Gate>) {
    match activation {
        None => (Code::None, None),
        Some(Activation::Tanh) => (Code::Tanh, None),
        Some(Activation::Relu) => (Code::Relu, None),
        Some(Activation::Elu) => (Code::Elu, None),
        Some(Activation::Silu) => (Code::None, Some(Gate::Silu)),
        Some(Activation::Gelu) => (Code::None, Some(Gate::Gelu)),
    }
}
