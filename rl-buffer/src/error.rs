//! Errors of buffers.

use std::path::PathBuf;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Dimension that is zero.
    #[error("a buffer needs at least one {0}")]
    Empty(&'static str),
    /// Rollout that does not fit into memory.
    #[error("a rollout of {n_steps} steps x {n_envs} environments takes {bytes} bytes, which is not available: make it smaller")]
    TooLarge {
        /// Number of steps T.
        n_steps: usize,
        /// Number of environments N.
        n_envs: usize,
        /// Required bytes, as far as they can be counted.
        bytes: u128,
    },
    /// Replay buffer that does not fit into memory.
    #[error("the replay buffer takes {needed} bytes, {available} are available: a capacity of {largest} would fit")]
    OutOfMemory {
        /// Required bytes, as far as they can be counted.
        needed: u128,
        /// Available bytes.
        available: u128,
        /// Largest capacity that fits.
        largest: usize,
    },
    /// Memory that the system refused although it seemed available.
    #[error("the system refuses {bytes} bytes of memory: make the buffer smaller, or raise the memory limit")]
    Refused {
        /// Requested bytes.
        bytes: u128,
    },
    /// Error of a device.
    #[error(transparent)]
    Device(#[from] rl_cuda::Error),
    /// File that cannot be made or mapped.
    #[error("{} cannot hold a file of {bytes} bytes: {reason}", dir.display())]
    File {
        /// Directory of the file.
        dir: PathBuf,
        /// Requested bytes.
        bytes: usize,
        /// Reason of the system.
        reason: std::io::Error,
    },
    /// Block of memory that is too short, or begins at an address that is not aligned.
    #[error("a slab needs {bytes} bytes at a multiple of 64, but the memory is {found} bytes at address {address:#x}")]
    Block {
        /// Required bytes.
        bytes: usize,
        /// Bytes of the block.
        found: usize,
        /// Address of the block.
        address: usize,
    },
    /// Capacity that exceeds the range of indices.
    #[error("a replay buffer holds at most {max} transitions, not {capacity}")]
    Capacity {
        /// Requested capacity.
        capacity: usize,
        /// Maximum capacity.
        max: usize,
    },
    /// Setting out of its range.
    #[error("{what} is {value}, which is not {range}")]
    Setting {
        /// Name of the setting.
        what: &'static str,
        /// Given value.
        value: f64,
        /// Allowed values, in words.
        range: &'static str,
    },
    /// Reward that is not finite.
    #[error("the reward of environment {env_idx} is {reward}: a transition needs a finite one")]
    Reward {
        /// Index of the environment.
        env_idx: usize,
        /// The reward.
        reward: f32,
    },
    /// Too few transitions to draw from.
    #[error("{needed} transitions cannot be drawn from {held}: add more first")]
    TooFew {
        /// Required number of transitions.
        needed: usize,
        /// Number of transitions in the buffer.
        held: usize,
    },
    /// Priority that is negative or not finite.
    #[error("the priority of transition {index} is {priority}: it has to be finite and not negative")]
    Priority {
        /// Index of the transition.
        index: u32,
        /// The priority, or the error that it is computed from.
        priority: f32,
    },
    /// Index outside of the buffer.
    #[error("there is no transition {index}: the buffer holds {len}")]
    Index {
        /// Given index.
        index: u64,
        /// Number of indices in use.
        len: usize,
    },
    /// Saved buffer that is damaged or does not fit.
    #[error("the saved replay buffer {0}")]
    BadState(String),
    /// Failure to read or write.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}
