//! What can go wrong with a batch of environments.

/// An error of this crate, with the facts in its variants.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No environment has this name.
    #[error("unknown environment \"{name}\"; there are: {known}")]
    UnknownEnv {
        /// The name that was asked for.
        name: String,
        /// The names that exist, separated by commas.
        known: String,
    },
    /// A batch needs at least one environment, and its indices fit u32.
    #[error("{n_envs} environments: there must be 1 to {}", u32::MAX)]
    EnvCount {
        /// How many were asked for.
        n_envs: usize,
    },
    /// An array does not have the shape that the batch needs, or its rows are not contiguous.
    #[error("{what}: expected a contiguous array of shape {expected:?}, found {found:?}")]
    Shape {
        /// Which array.
        what: &'static str,
        /// The shape that is needed.
        expected: Vec<usize>,
        /// The shape that was given.
        found: Vec<usize>,
    },
    /// An array has the wrong element type or kind, or is missing.
    #[error("{what}: expected {expected}, found {found}")]
    Kind {
        /// Which array.
        what: &'static str,
        /// What is needed.
        expected: &'static str,
        /// What was given.
        found: &'static str,
    },
    /// A discrete action is out of range.
    #[error("environment {env_idx}: action {action} is out of range, the action space is 0..{n}")]
    ActionOutOfRange {
        /// Which environment of the batch.
        env_idx: usize,
        /// The action.
        action: u32,
        /// The number of actions.
        n: u32,
    },
    /// A continuous action is not finite or leaves the action space.
    #[error("environment {env_idx}: action {action} in dimension {dim} is not within [{low}, {high}]")]
    ActionOutOfBounds {
        /// Which environment of the batch.
        env_idx: usize,
        /// Which dimension of the action.
        dim: usize,
        /// The action.
        action: f32,
        /// The least value of this dimension.
        low: f32,
        /// The greatest value of this dimension.
        high: f32,
    },
    /// A batch that cannot restart a single environment.
    #[error("a single environment of this batch cannot be restarted; set on_nonfinite to error")]
    CannotRestart,
    /// Slices of a batch that leave environments out or hold them twice.
    #[error(
        "slice {slice} of the batch begins with environment {found}, expected {expected}: make each with the range of its environments"
    )]
    Slices {
        /// Which slice.
        slice: usize,
        /// The index after the last one of the slice before.
        expected: usize,
        /// The index of its first environment.
        found: usize,
    },
    /// The environment has no state that can be saved.
    #[error("the state of this environment cannot be saved")]
    CannotSave,
    /// A saved state does not fit this batch, or is damaged.
    #[error("saved state: {0}")]
    BadState(String),
    /// The files of a trace are not what they should be.
    #[error("trace: {0}")]
    BadTrace(String),
    /// The device that the environments run on failed.
    #[error("{0}")]
    Device(String),
    /// The threads of a pool could not be started.
    #[error("cannot start {n_threads} threads: {reason}")]
    Threads {
        /// How many were asked for.
        n_threads: usize,
        /// What the operating system said.
        reason: String,
    },
}
