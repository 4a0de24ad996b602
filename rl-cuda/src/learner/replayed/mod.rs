//! Targets and losses of algorithms with a replay memory.

mod continuous;
mod q_learning;

pub use continuous::{ClippedNoise, ContinuousKernels, Entropy, Noise, SquashedColumns, TemperatureStep, ValueGradients, Values};
pub use q_learning::{NextColumns, QLearningKernels, TD_TERMS, TdColumns};
