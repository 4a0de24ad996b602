//! Checks of an environment against the contract of [`Env`], one per clause.
//!
//! Every check runs whatever the others found, on clones of the given environment, with fixed seeds: the same environment always
//! gets the same answer. A panic inside a check is that check's failure (in a build that unwinds). Actions are drawn uniformly:
//! under a mask from the legal ones, with an occasional illegal one, which the environment must handle; a quarter of continuous
//! actions is at a bound. Behaviour that random actions never reach is not checked.
//!
//! Faults come together: an environment with hidden randomness fails `same_seed`, and with it every check that compares two runs.
//! Fix the first failure first.
//!
//! Checks look at what a learner sees: observations, rewards, flags and masks, compared bit for bit. Everything else is up to the
//! environment.
//!
//! An environment that never ends is legal, but looks like one that forgot its time limit, and reports no return. `episodes_end`
//! fails on it, and suggests a remedy.
//!
//! [`Env`]: crate::Env

mod any_env;
pub(crate) mod batch;
mod clauses;
mod run;
pub(crate) mod trace;

use std::fmt;

pub use crate::check::clauses::check_env;
pub(crate) use crate::check::clauses::check_env_each;

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The environment fulfils the clause.
    Passed,
    /// Nothing to check, with the reason.
    Skipped(String),
    /// The fault, its place, and a remedy.
    Failed(String),
}

/// Result for one clause of the contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Identifier of the check.
    pub name: &'static str,
    /// Text of the clause.
    pub about: &'static str,
    /// Result.
    pub outcome: Outcome,
}

impl Check {
    /// True if the environment breaks this clause.
    #[must_use]
    pub fn failed(&self) -> bool {
        matches!(self.outcome, Outcome::Failed(_))
    }
}

impl fmt::Display for Check {
    /// Writes one line: `PASS`, `SKIP` or `FAIL`, the name, and the details.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, what) = match &self.outcome {
            Outcome::Passed => ("PASS", self.about),
            Outcome::Skipped(why) => ("SKIP", why.as_str()),
            Outcome::Failed(what) => ("FAIL", what.as_str()),
        };
        write!(f, "{word} {}: {what}", self.name)
    }
}

/// Result of a clause: `Passed`, `Skipped`, or the fault.
pub(crate) type Found = Result<Outcome, String>;
