//! What can go wrong while acting or learning.

use crate::Divergence;
use crate::collect::Anomaly;

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
    /// An environment gave a number that is not finite.
    #[error("{0}; correct the environment (`check_env` tests it), or set on_nonfinite to truncate")]
    NotFinite(Anomaly),
    /// An environment gave a number that is not finite twice in a row, before and after it was restarted.
    #[error("{0}, right after it was restarted for the same reason; correct the environment (`check_env` tests it)")]
    NotFiniteAgain(Anomaly),
    /// An environment panicked.
    #[error("an environment of {first} to {last} panicked at step {step}: {cause}")]
    EnvPanicked {
        /// The first environment of the slice that was stepped.
        first: usize,
        /// The last one.
        last: usize,
        /// Their lifetime step; 0 if they were reset.
        step: u64,
        /// The text of the panic.
        cause: String,
    },
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
