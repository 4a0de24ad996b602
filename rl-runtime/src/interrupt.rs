//! Interruption: a run that is asked to stop finishes its update, saves and ends.

use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of an interrupted run that has saved.
pub const EXIT_CODE: u8 = 130;

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Asks the run to save and stop.
pub fn request() {
    REQUESTED.store(true, Ordering::Relaxed);
}

/// True if the run has been asked to stop.
#[must_use]
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}
