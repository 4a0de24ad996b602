//! Threads, and the fixed slices that work is cut into.

use std::ops::Range;
use std::sync::Arc;

use crate::Error;

/// Cuts `n` rows into at most `max_slices` slices of at least `min_len` rows, in order. They depend on these numbers alone, so
/// that whatever is computed per slice does not depend on the number of threads.
pub fn slices(n: usize, max_slices: usize, min_len: usize) -> impl Iterator<Item = Range<usize>> {
    let len = n.div_ceil(max_slices).max(min_len);
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

    /// Runs `f` on each item, at the same time where threads are free, and returns when all are done.
    pub fn each<T: Send>(&self, items: &mut [T], f: &(impl Fn(&mut T) + Sync)) {
        match (&self.threads, items) {
            (_, []) => {}
            (_, [item]) => f(item),
            (None, items) => items.iter_mut().for_each(f),
            (Some(threads), items) => threads.install(|| each(items, f)),
        }
    }
}

/// On a thread of the pool: halves the items until there is one.
fn each<T: Send>(items: &mut [T], f: &(impl Fn(&mut T) + Sync)) {
    match items {
        [] => {}
        [item] => f(item),
        items => {
            let (a, b) = items.split_at_mut(items.len() / 2);
            rayon::join(|| each(a, f), || each(b, f));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_every_row_once_and_in_order() {
        for n in [0, 1, 31, 33, 64, 65, 1000, 4096, 4097, 100_000] {
            for (max_slices, min_len) in [(64, 64), (16, 4), (1, 1)] {
                let rows: Vec<usize> = slices(n, max_slices, min_len).flatten().collect();
                assert_eq!(rows, (0..n).collect::<Vec<_>>());
                assert!(slices(n, max_slices, min_len).count() <= max_slices);
            }
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

    #[test]
    fn each_item_is_seen_once_for_any_number_of_threads() {
        for n_threads in [1, 2, 3] {
            let pool = Pool::new(n_threads).expect("threads start");
            for n in [0, 1, 2, 7, 64] {
                let mut items: Vec<usize> = (0..n).collect();
                pool.each(&mut items, &|item| *item += 100);
                assert_eq!(items, (100..100 + n).collect::<Vec<_>>());
            }
        }
    }
}
