//! Events of a training.

use crate::Progress;
use crate::report::metrics::Row;
use crate::run::evaluation::Evaluation;

/// Event of a training.
#[non_exhaustive]
pub enum Event<'a> {
    /// A row of metrics.
    Row {
        /// The row.
        row: &'a Row,
        /// Progress of the run.
        progress: &'a Progress,
    },
    /// An evaluation.
    Evaluation {
        /// Environment steps before it.
        env_steps: u64,
        /// Its statistics.
        result: &'a Evaluation,
    },
    /// A problem that does not end the run.
    Warning(&'a str),
}

/// Receiver of a training's events, on the training thread.
pub(crate) type Listener<'a> = &'a mut dyn FnMut(Event<'_>);

pub(crate) fn warn(listener: Listener<'_>, text: &str) {
    listener(Event::Warning(text));
}
