//! What can go wrong with a buffer.

/// An error of this crate, with the facts in its variants.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A dimension is zero.
    #[error("a rollout needs at least one {0}")]
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
}
