//! Interruption: a run that is asked to stop saves and ends.
//!
//! It finishes a rollout and learns from it, unless its environments block or run in other processes: a step may take long there,
//! and their states cannot be saved. Their rollouts in flight are dropped.

use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of an interrupted run that has saved.
pub const EXIT_CODE: u8 = 130;

static REQUESTED: AtomicBool = AtomicBool::new(false);
static FINISHES: AtomicBool = AtomicBool::new(false);

/// Asks the run to save and stop.
pub fn request() {
    REQUESTED.store(true, Ordering::Relaxed);
}

/// Forgets the request, for the next run of a process that has several.
pub fn clear() {
    REQUESTED.store(false, Ordering::Relaxed);
    FINISHES.store(false, Ordering::Relaxed);
}

/// True if the run has been asked to stop.
#[must_use]
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// Lets this process finish its rollouts, which it shares with other ranks.
pub(crate) fn finish_rollouts() {
    FINISHES.store(true, Ordering::Relaxed);
}

/// True if environments whose states cannot be saved are to stop at once.
pub(crate) fn drops_rollouts() -> bool {
    requested() && !FINISHES.load(Ordering::Relaxed)
}
