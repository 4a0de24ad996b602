//! Named threads, and the cores that they may use.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rl_envs::pool::panic_text;

/// Thread that cannot be spawned, or that has ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the thread \"{name}\" {cause}")]
pub struct ThreadError {
    /// Name of the thread.
    pub name: String,
    /// Cause, as the rest of a sentence about the thread.
    pub cause: String,
}

/// Named thread.
#[derive(Debug)]
pub struct Thread<R> {
    name: String,
    handle: JoinHandle<R>,
}

/// Returns the number of cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Locks what no panic leaves half changed.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Spawns a named thread.
///
/// # Errors
/// [`ThreadError`] if the system refuses.
pub fn spawn<R: Send + 'static>(name: &str, work: impl FnOnce() -> R + Send + 'static) -> Result<Thread<R>, ThreadError> {
    // One type of closure: what starts a thread is compiled once for each result, and not once for each call.
    let work: Box<dyn FnOnce() -> R + Send> = Box::new(work);
    let handle = std::thread::Builder::new().name(name.into()).spawn(work);
    let handle = handle.map_err(|error| ThreadError { name: name.into(), cause: format!("cannot be spawned: {error}") })?;
    Ok(Thread { name: name.into(), handle })
}

impl<R> Thread<R> {
    /// Waits for the thread to end.
    ///
    /// # Errors
    /// [`ThreadError`] if the thread has panicked.
    pub fn join(self) -> Result<R, ThreadError> {
        let Self { name, handle } = self;
        handle.join().map_err(|panic| ThreadError { name, cause: format!("panicked: {}", panic_text(&*panic)) })
    }
}
