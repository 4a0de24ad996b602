//! Ctrl-C and SIGTERM: the first asks the run to save and stop, the second ends the program at once.

use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of an interrupted run.
pub const EXIT_CODE: u8 = 130;

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Starts to listen. Call it once.
///
/// # Errors
/// What the system said.
pub fn listen() -> Result<(), String> {
    let handler = || {
        if REQUESTED.swap(true, Ordering::Relaxed) {
            std::process::exit(EXIT_CODE.into());
        }
    };
    ctrlc::set_handler(handler).map_err(|e| e.to_string())
}

/// Asks the run to save and stop.
pub fn request() {
    REQUESTED.store(true, Ordering::Relaxed);
}

/// Whether the run has been asked to stop.
#[must_use]
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}
