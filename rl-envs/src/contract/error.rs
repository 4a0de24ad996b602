//! Errors of environments and batches.

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Unknown name of an environment.
    #[error("unknown environment \"{name}\"; there are: {known}")]
    UnknownEnv {
        /// Requested name.
        name: String,
        /// Known names, separated by commas.
        known: String,
    },
    /// Environment that blocks, where only others can be stepped.
    #[error("the environment {name} blocks: it can be trained and evaluated, and nothing else")]
    Blocking {
        /// Name of the environment.
        name: &'static str,
    },
    /// Number of environments that is 0 or does not fit u32.
    #[error("{n_envs} environments: there must be 1 to {}", u32::MAX)]
    EnvCount {
        /// Requested number.
        n_envs: usize,
    },
    /// Column of the wrong length.
    #[error("{what}: expected {expected} elements, found {found}")]
    Length {
        /// Name of the column.
        what: &'static str,
        /// Required number of elements.
        expected: usize,
        /// Given number.
        found: usize,
    },
    /// Column of the wrong element type or kind, or a missing one.
    #[error("{what}: expected {expected}, found {found}")]
    Kind {
        /// Name of the column.
        what: &'static str,
        /// Required type or kind.
        expected: &'static str,
        /// Given type or kind.
        found: &'static str,
    },
    /// Discrete action out of range.
    #[error("environment {env_idx}: action {action} is out of range, the action space is 0..{n}")]
    ActionOutOfRange {
        /// Index of the environment in the batch.
        env_idx: usize,
        /// The action.
        action: u32,
        /// Number of actions.
        n: u32,
    },
    /// Continuous action that is not finite or is outside the action space.
    #[error("environment {env_idx}: action {action} in dimension {dim} is not within [{low}, {high}]")]
    ActionOutOfBounds {
        /// Index of the environment in the batch.
        env_idx: usize,
        /// Dimension of the action.
        dim: usize,
        /// Value in that dimension.
        action: f32,
        /// Lower bound of that dimension.
        low: f32,
        /// Upper bound of that dimension.
        high: f32,
    },
    /// Batch that cannot restart a single environment.
    #[error("a single environment of this batch cannot be restarted; set on_nonfinite to error")]
    CannotRestart,
    /// Slices of a batch with missing or duplicate environments.
    #[error(
        "slice {slice} of the batch begins with environment {found}, expected {expected}: make each with the range of its environments"
    )]
    Slices {
        /// Index of the slice.
        slice: usize,
        /// Index after the last environment of the previous slice.
        expected: usize,
        /// Index of the slice's first environment.
        found: usize,
    },
    /// Environment whose state cannot be saved.
    #[error("the state of this environment cannot be saved")]
    CannotSave,
    /// Saved state that is damaged or belongs to another batch.
    #[error("saved state: {0}")]
    BadState(String),
    /// Input of a trace that does not fit the environment.
    #[error("trace: {0}")]
    BadTrace(String),
    /// Failure of environments that live outside of this program.
    #[error("{0}")]
    Outside(String),
    /// Program that is interrupted while environments outside of it step.
    #[error("the program was asked to stop")]
    Stopped,
    /// Failure of the device that the environments run on.
    #[error("{0}")]
    Device(String),
    /// Threads of a pool that could not be started.
    #[error("cannot start {n_threads} threads: {reason}")]
    Threads {
        /// Requested number.
        n_threads: usize,
        /// Message of the operating system.
        reason: String,
    },
}
