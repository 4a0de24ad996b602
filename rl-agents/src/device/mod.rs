//! Learning on a CUDA device: networks, gradient descent, exchange between devices.

pub(crate) mod conv;
pub(crate) mod descent;
pub(crate) mod exchange;
pub(crate) mod graph;
pub(crate) mod memory;
pub(crate) mod net;
pub(crate) mod normalize;
pub(crate) mod replayed;
pub(crate) mod share;
pub(crate) mod staged;
pub(crate) mod times;

use rl_cuda::Stream;
use rl_cuda::learner::{Activation as Code, LearnerKernels};

use crate::{Activation, Error};

/// Stream on which kernels are enqueued, and the kernels.
#[derive(Clone, Copy)]
pub(crate) struct Queue<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) kernels: &'a LearnerKernels,
}

/// The kernels' code of an activation.
///
/// # Errors
/// [`Error::Setting`] if they have none.
fn activation(activation: Option<Activation>) -> Result<Code, Error> {
    Ok(match activation {
        None => Code::None,
        Some(Activation::Tanh) => Code::Tanh,
        Some(Activation::Relu) => Code::Relu,
        Some(Activation::Elu) => Code::Elu,
        Some(kept @ (Activation::Silu | Activation::Gelu)) => {
            let allowed = "but on a device it is tanh, relu or elu; use --device cpu";
            return Err(Error::Setting { name: "activation", value: format!("{kept:?}").to_lowercase(), allowed });
        }
    })
}
