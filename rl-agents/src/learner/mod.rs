//! Learners: what an update needs, and gradient descent on the CPU.

pub(crate) mod batch;
pub(crate) mod descent;
mod on_device;
pub mod optim;
pub(crate) mod reevaluate;
pub(crate) mod targets;

use std::ops::{ControlFlow, Range};

use rl_cuda::learner::Objective;

use crate::Error;

/// Constants of an update.
///
/// A device repeats the work of a minibatch as a graph, which is captured again when they change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Plan {
    /// Kernel of the loss on a device.
    pub(crate) objective: Objective,
    /// Discount of future rewards.
    pub(crate) gamma: f32,
    /// Lambda of generalized advantages.
    pub(crate) lambda: f32,
    /// Samples of a rollout.
    pub(crate) n_samples: usize,
    pub(crate) batch_size: usize,
    pub(crate) n_epochs: usize,
    /// True if an epoch takes the samples in random order.
    pub(crate) shuffled: bool,
    /// True if advantages are normalized per minibatch.
    pub(crate) normalize: bool,
}

/// Samples of a minibatch, and of a micro-batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchSizes {
    pub(crate) batch_size: usize,
    /// Samples whose activations a device holds together; 0: all of the minibatch.
    pub(crate) micro_batch: usize,
}

impl Plan {
    /// Ranges of an epoch's samples, one for each minibatch.
    pub(crate) fn minibatches(self) -> impl Iterator<Item = Range<usize>> {
        (0..self.n_samples / self.batch_size).map(move |i| i * self.batch_size..(i + 1) * self.batch_size)
    }
}

/// Place where gradients are computed: the CPU, or a device.
///
/// The CPU computes them by the tile kernel, or by candle as the reference.
///
/// Implemented by [`Host`](crate::algorithms::on_policy::Host) and
/// [`DeviceDescent`](crate::device::descent::DeviceDescent).
pub(crate) trait Learner {
    /// Computes advantages and returns of the rollout.
    fn targets(&mut self, plan: &Plan) -> Result<(), Error>;

    /// Starts a pass over the samples.
    fn epoch(&mut self, plan: &Plan) -> Result<(), Error>;

    /// Learns from a minibatch, by the text of `learn`.
    ///
    /// A device captures it as a graph: the text is the same for every minibatch of the plan.
    fn minibatch(
        &mut self,
        _plan: &Plan,
        learn: impl FnOnce(&mut Self) -> Result<ControlFlow<()>, Error>,
    ) -> Result<ControlFlow<()>, Error> {
        learn(self)
    }

    /// Computes the gradient of the loss over a range of the pass's samples.
    fn gradient(&mut self, plan: &Plan, minibatch: Range<usize>) -> Result<(), Error>;

    /// Takes a step along the gradient, unless loss or gradient are not finite.
    ///
    /// Breaks where the update ends before this step. A device decides that itself, and computes later minibatches without
    /// effect.
    fn step(&mut self) -> Result<ControlFlow<()>, Error>;
}
