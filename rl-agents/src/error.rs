//! Errors of agents.

use crate::Divergence;
use crate::collect::anomaly::Anomaly;
use crate::kernel::slices::{MAX_SLICES, MIN_SLICE};

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Batch size that does not divide the rollout.
    #[error(
        "batch_size {batch_size} does not divide the rollout of {rollout} samples ({n_steps} steps x {n_envs} environments); \
         choose a divisor of it"
    )]
    BatchSize {
        /// Number of samples in a minibatch.
        batch_size: usize,
        /// Number of samples in a rollout.
        rollout: usize,
        /// Number of steps in a rollout.
        n_steps: usize,
        /// Number of environments.
        n_envs: usize,
    },
    /// Setting that does not fit the others.
    #[error("{name} is {value}, {allowed}")]
    Setting {
        /// Name of the setting.
        name: &'static str,
        /// Given value.
        value: String,
        /// Allowed values, in words.
        allowed: &'static str,
    },
    /// Setting out of its range.
    #[error("{name} is {value}; it must be {allowed}")]
    Range {
        /// Name of the setting.
        name: &'static str,
        /// Given value.
        value: String,
        /// Allowed values, in words.
        allowed: String,
    },
    /// Discrete actions for a continuous policy, or the reverse.
    #[error("discrete actions for a continuous policy, or the reverse; policy and environment do not fit")]
    ActionKind,
    /// Policy, rollout and collector that disagree on the length of the policy's state.
    #[error(
        "the policy's state has {policy} elements, the rollout's {rollout} and the collector's {collector}: see Collector::remember"
    )]
    StateLen {
        /// Elements by [`Policy::state_len`](crate::Policy::state_len).
        policy: usize,
        /// Elements by the rollout's shape.
        rollout: usize,
        /// Elements that the collector carries.
        collector: usize,
    },
    /// Rollout whose observations have another element type than the environments'.
    #[error("the rollout holds observations of another element type than those of the environments")]
    ObsKind,
    /// Rollout of another number of environments, or of environments with other spaces.
    #[error("the rollout is of another number of environments, or of environments with other spaces")]
    Spaces,
    /// Environments on a device, for an agent that does not learn there.
    #[error("the agent does not learn on a device; call on_device first")]
    NoDevice,
    /// Columns of unknown environments, given to a part that continues trajectories.
    #[error("{0} across rollouts, but nothing says which columns of this rollout continue others; use one collector")]
    Columns(&'static str),
    /// Samples that are not whole columns, given to a policy with memory.
    #[error("a policy with memory learns from all steps of a column, and some are missing")]
    Sequences,
    /// Loss or gradient that was not finite in several consecutive optimizer steps.
    ///
    /// None of the steps was taken.
    #[error("{0}")]
    Diverged(Box<Divergence>),
    /// Snapshot of another agent.
    #[error("snapshot does not fit: {0}")]
    Snapshot(String),
    /// Number from an environment that is not finite.
    #[error("{0}; correct the environment (`check_env` tests it), or set on_nonfinite to truncate")]
    NotFinite(Anomaly),
    /// Number that is not finite, again after the environment was restarted.
    #[error("{0}, right after it was restarted for the same reason; correct the environment (`check_env` tests it)")]
    NotFiniteAgain(Anomaly),
    /// Panic of an environment.
    #[error("one of the environments {first} to {last} panicked at step {step}: {cause}")]
    EnvPanicked {
        /// Index of the first environment of the slice.
        first: usize,
        /// Index of the last environment of the slice.
        last: usize,
        /// Lifetime step; 0 for a reset.
        step: u64,
        /// Message of the panic.
        cause: String,
    },
    /// Error of another rank.
    #[error("rank {rank}: {text}")]
    Rank {
        /// Index of the rank.
        rank: usize,
        /// The error, as text.
        text: String,
    },
    /// Rank that has ended early, so that nothing can be exchanged with it.
    #[error("{0}")]
    PeerEnded(String),
    /// More ranks than slices of environments.
    #[error(
        "{n_ranks} ranks share {n_slices} slices of environments: start at most {n_slices} ranks, or raise n_envs (a slice has at least \
         {MIN_SLICE} environments, and there are at most {MAX_SLICES} slices)"
    )]
    Ranks {
        /// Number of ranks.
        n_ranks: usize,
        /// Number of slices.
        n_slices: usize,
    },
    /// Error of an environment.
    #[error(transparent)]
    Env(#[from] rl_envs::Error),
    /// Error of a buffer.
    #[error(transparent)]
    Buffer(#[from] rl_buffer::Error),
    /// Error of a device.
    #[error(transparent)]
    Device(#[from] rl_cuda::Error),
    /// Error of candle.
    #[error("candle: {0}")]
    Candle(#[from] candle_core::Error),
}
