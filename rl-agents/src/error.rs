//! What can go wrong while acting or learning.

use crate::Divergence;

/// An error of this crate, with the facts in its variants.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The batch size does not divide the rollout.
    #[error(
        "batch_size {batch_size} does not divide the rollout of {rollout} samples ({n_steps} steps x {n_envs} environments); \
         choose a divisor of it"
    )]
    BatchSize {
        /// Samples of a minibatch.
        batch_size: usize,
        /// Samples of a rollout.
        rollout: usize,
        /// Steps of a rollout.
        n_steps: usize,
        /// Environments.
        n_envs: usize,
    },
    /// A setting does not fit the others.
    #[error("{name} is {value}, {allowed}")]
    Setting {
        /// Its name.
        name: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A setting is out of its range.
    #[error("{name} is {value}, allowed is {allowed}")]
    Range {
        /// Name of the setting.
        name: &'static str,
        /// Value that was given.
        value: String,
        /// Allowed values, in words.
        allowed: String,
    },
    /// Discrete actions where the policy's are continuous, or the other way round.
    #[error("discrete actions where the policy's are continuous, or the other way round; policy and environment do not fit")]
    ActionKind,
    /// Columns that environments have filled as they came, though something is to run on in each of them from rollout to rollout.
    #[error("{0} from rollout to rollout, but whichever environments came first have filled the columns; collect in step")]
    Columns(&'static str),
    /// The loss or its gradient was not finite in several steps of the optimizer in a row; none of them was taken.
    #[error("{0}")]
    Diverged(Box<Divergence>),
    /// A snapshot is not one of this agent.
    #[error("snapshot does not fit: {0}")]
    Snapshot(String),
    /// Environments refused.
    #[error(transparent)]
    Env(#[from] rl_envs::Error),
    /// A buffer refused.
    #[error(transparent)]
    Buffer(#[from] rl_buffer::Error),
    /// candle refused.
    #[error("candle: {0}")]
    Candle(#[from] candle_core::Error),
}
