//! Batches made at run time, outside of the catalog.

use std::fmt::Debug;
use std::ops::Range;
use std::time::Duration;

use crate::batch::wrappers::Wrappers;
use crate::{Error, MakeBlocking, Spaces, VecEnv};

/// Environments made at run time, such as those of another process.
///
/// A trait because this crate starts no process: implemented by the worker processes of rl-runtime, and by tests.
pub trait Batches: Debug + Sync {
    /// Spaces of observations and actions.
    fn spaces(&self) -> Spaces;

    /// Estimated memory of a process that steps them, in bytes; by default none.
    fn bytes_per_worker(&self) -> u64 {
        0
    }

    /// Wrappers that are around the environments already; by default none.
    fn wrappers(&self) -> Wrappers {
        Wrappers::default()
    }

    /// Creates the environments `range` of a larger batch.
    ///
    /// # Errors
    /// [`Error::Outside`] if they cannot be made.
    fn slice(&'static self, range: Range<usize>) -> Result<Box<dyn VecEnv>, Error>;

    /// Constructor of one environment as a [`BlockingEnv`](crate::BlockingEnv).
    ///
    /// By default none: environments step in batches only.
    fn blocking(&'static self) -> Option<MakeBlocking> {
        None
    }

    /// Share of its time for which one environment computes, measured for a moment.
    ///
    /// Small if environments mostly wait, for instance for a server. By default not known.
    ///
    /// # Errors
    /// Errors of the environment.
    fn busy(&'static self, _seed: u64) -> Result<Option<f64>, Error> {
        Ok(None)
    }

    /// Directory that holds the environments' module.
    ///
    /// Empty if the module is found from every directory.
    fn path(&self) -> &str {
        ""
    }

    /// Limits times, and the replacements of whatever steps a batch.
    fn limit(&self, _limits: &Limits) {}

    /// Closes all environments, and waits for them.
    fn close(&self) {}
}

/// Limits of whatever steps the environments of [`Batches`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest start, up to the first observations.
    pub start: Duration,
    /// Longest step.
    pub call: Duration,
    /// Longest wait for environments that close.
    pub close: Duration,
    /// Replacements.
    pub max_restarts: u32,
}
