//! What can go wrong with a buffer.

/// An error of this crate, with the facts in its variants.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A dimension is zero.
    #[error("a buffer needs at least one {0}")]
    Empty(&'static str),
    /// The memory cannot be had.
    #[error("a rollout of {n_steps} steps x {n_envs} environments takes {bytes} bytes, which cannot be had: make it smaller")]
    TooLarge {
        /// Steps T.
        n_steps: usize,
        /// Environments N.
        n_envs: usize,
        /// The bytes needed, as far as they can be counted.
        bytes: u128,
    },
    /// A replay buffer does not fit into memory.
    #[error("the replay buffer takes {needed} bytes, {available} are available: a capacity of {largest} would fit")]
    OutOfMemory {
        /// The bytes needed, as far as they can be counted.
        needed: u128,
        /// The bytes that can be had.
        available: u128,
        /// The largest capacity that fits.
        largest: usize,
    },
    /// The system refuses memory that it seemed to have.
    #[error("{bytes} bytes of memory are refused by the system: make the buffer smaller, or raise the limit on memory")]
    Refused {
        /// Bytes asked for.
        bytes: u128,
    },
    /// There are more transitions than their numbers can tell apart.
    #[error("a replay buffer holds at most {max} transitions, not {capacity}")]
    Capacity {
        /// The capacity asked for.
        capacity: usize,
        /// The largest one.
        max: usize,
    },
    /// A setting is outside of its range.
    #[error("{what} is {value}, which is not {range}")]
    Setting {
        /// Its name.
        what: &'static str,
        /// The value given.
        value: f64,
        /// What it may be.
        range: &'static str,
    },
    /// A reward is not finite.
    #[error("the reward of environment {env_idx} is {reward}: a transition needs a finite one")]
    Reward {
        /// Which environment of the step.
        env_idx: usize,
        /// The reward.
        reward: f32,
    },
    /// There are not enough transitions to draw from.
    #[error("{needed} transitions cannot be drawn from {held}: add more first")]
    TooFew {
        /// The transitions needed.
        needed: usize,
        /// The transitions held.
        held: usize,
    },
    /// A priority cannot be used.
    #[error("the priority of transition {index} is {priority}: it has to be finite and not negative")]
    Priority {
        /// Its place.
        index: u32,
        /// The priority, or the error that it comes from.
        priority: f32,
    },
    /// There is no such place in the buffer.
    #[error("there is no transition {index}: the buffer holds {len}")]
    Index {
        /// The place asked for.
        index: u64,
        /// The number of places in use.
        len: usize,
    },
    /// A saved buffer cannot be used.
    #[error("the saved replay buffer {0}")]
    BadState(String),
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}
