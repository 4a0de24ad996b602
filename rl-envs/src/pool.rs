//! Threads, and the fixed slices that work is cut into.

use std::ops::Range;
use std::sync::Arc;

use crate::Error;

/// A batch is cut into at most this many slices.
const MAX_SLICES: usize = 64;
/// A slice has at least this many rows: below it, handing work to another thread costs more than the work.
const MIN_SLICE: usize = 64;

/// The slices of a batch of `n` rows, in order. They depend on `n` alone, so that whatever is computed per slice does not
/// depend on the number of threads.
pub fn slices(n: usize) -> impl Iterator<Item = Range<usize>> {
    let len = n.div_ceil(MAX_SLICES).max(MIN_SLICE);
    (0..n).step_by(len).map(move |start| start..(start + len).min(n))
}

/// A fork-join pool of threads: a thin face on rayon's. Clones share the threads.
#[derive(Clone, Debug)]
pub struct Pool {
    /// `None` for a single thread, which is the caller's own.
    threads: Option<Arc<rayon::ThreadPool>>,
}

impl Pool {
    /// A pool of `n_threads` threads. With one, everything runs on the thread that calls.
    ///
    /// # Errors
    /// [`Error::Threads`] if there are none to start or the system refuses.
    pub fn new(n_threads: usize) -> Result<Self, Error> {
        if n_threads == 0 {
            return Err(Error::Threads { n_threads, reason: "there must be one at least".into() });
        }
        let threads = (n_threads > 1).then(|| {
            rayon::ThreadPoolBuilder::new().num_threads(n_threads).thread_name(|i| format!("pool-{i}")).build().map(Arc::new)
        });
        let threads = threads.transpose().map_err(|e| Error::Threads { n_threads, reason: e.to_string() })?;
        Ok(Self { threads })
    }

    /// The number of threads.
    #[must_use]
    pub fn n_threads(&self) -> usize {
        self.threads.as_ref().map_or(1, |threads| threads.current_num_threads())
    }

    /// Runs both, at the same time where a thread is free, and returns when both are done.
    pub fn join<A: Send, B: Send>(&self, a: impl FnOnce() -> A + Send, b: impl FnOnce() -> B + Send) -> (A, B) {
        match &self.threads {
            Some(threads) => threads.install(|| rayon::join(a, b)),
            None => (a(), b()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_every_row_once_and_in_order() {
        for n in [0, 1, 31, 33, 64, 65, 1000, 4096, 4097, 100_000] {
            let rows: Vec<usize> = slices(n).flatten().collect();
            assert_eq!(rows, (0..n).collect::<Vec<_>>());
            assert!(slices(n).count() <= MAX_SLICES);
        }
    }

    #[test]
    fn join_returns_both_results_for_any_number_of_threads() {
        for n_threads in [1, 2, 3] {
            let pool = Pool::new(n_threads).expect("threads start");
            assert_eq!(pool.n_threads(), n_threads);
            assert_eq!(pool.join(|| 1, || pool.join(|| 2, || 3)), (1, (2, 3)));
        }
        assert!(Pool::new(0).is_err());
    }
}
