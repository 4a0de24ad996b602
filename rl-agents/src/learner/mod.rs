//! Gradient descent on the CPU: targets, minibatches, optimizers.

pub(crate) mod batch;
pub(crate) mod descent;
pub mod optim;
pub(crate) mod targets;
