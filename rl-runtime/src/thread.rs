//! Named threads.

use std::thread::JoinHandle;

use rl_envs::pool::panic_text;

use crate::Error;

/// Named thread.
#[derive(Debug)]
pub struct Thread<R> {
    name: String,
    handle: JoinHandle<R>,
}

/// Spawns a named thread.
///
/// # Errors
/// [`Error::Thread`] if the system refuses.
pub fn spawn<R: Send + 'static>(name: &str, work: impl FnOnce() -> R + Send + 'static) -> Result<Thread<R>, Error> {
    let handle = std::thread::Builder::new().name(name.into()).spawn(work);
    let handle = handle.map_err(|error| Error::Thread { name: name.into(), cause: format!("cannot be spawned: {error}") })?;
    Ok(Thread { name: name.into(), handle })
}

impl<R> Thread<R> {
    /// Waits for the thread to end.
    ///
    /// # Errors
    /// [`Error::Thread`] if the thread has panicked.
    pub fn join(self) -> Result<R, Error> {
        let Self { name, handle } = self;
        handle.join().map_err(|panic| Error::Thread { name, cause: format!("panicked: {}", panic_text(&*panic)) })
    }
}
