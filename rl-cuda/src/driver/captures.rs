//! Turns to capture.
//!
//! A call of any thread that waits for a whole device breaks a capture.

use std::cell::Cell;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Held for writing by a capture, for reading by such a call.
static CAPTURES: RwLock<()> = RwLock::new(());

thread_local! {
    static IS_CAPTURING: Cell<bool> = const { Cell::new(false) };
}

/// Waits for other threads' captures to end, and keeps new ones from starting.
///
/// The thread that captures gets `None`: the driver refuses its call.
pub(crate) fn no_capture() -> Option<RwLockReadGuard<'static, ()>> {
    (!IS_CAPTURING.get()).then(|| CAPTURES.read().unwrap_or_else(PoisonError::into_inner))
}

/// This thread's turn to capture.
pub(crate) struct Turn(Option<RwLockWriteGuard<'static, ()>>);

impl Turn {
    pub(crate) fn new() -> Self {
        let others = (!IS_CAPTURING.get()).then(|| CAPTURES.write().unwrap_or_else(PoisonError::into_inner));
        IS_CAPTURING.set(true);
        Self(others)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        IS_CAPTURING.set(self.0.is_none()); // a capture within a capture ends first
    }
}
