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

use std::ops::Range;

use rl_cuda::learner::{Activation as Code, Gate, LearnerKernels};
use rl_cuda::{Stream, View, ViewMut};

use crate::Activation;

/// Stream on which kernels are enqueued, and the kernels.
#[derive(Clone, Copy)]
pub(crate) struct Queue<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) kernels: &'a LearnerKernels,
}

impl Queue<'_> {
    /// Multiplies gradients by the slopes of a gate at `range`, if there is one.
    pub(crate) fn pass_gate(
        self,
        slopes: Option<View<'_, f32>>,
        range: Range<usize>,
        dx: &ViewMut<'_, f32>,
    ) -> Result<(), rl_cuda::Error> {
        slopes.map_or(Ok(()), |slopes| self.kernels.gate_gradient(self.stream, dx, &slopes.slice(range)))
    }
}

/// Purpose of a network.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Acts,
    Learns,
    /// Gradients of what dense layers read, alone.
    Inputs,
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
