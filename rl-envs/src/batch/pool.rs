//! A pool of threads, and the fixed slices that work is cut into.
//!
//! Updates of small networks fork and join every hundred microseconds. A pool whose idle threads sleep (rayon's do after some ten
//! microseconds) spends as long on waking them as on the work: PPO with minibatches of 512 reached 2.6 M samples/s on two
//! threads, against 2.4 M on one. Idle threads of this pool spin for a while before they sleep.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;

use crate::Error;

/// Cuts `n` rows, in order, into at most `max_slices` slices of `min_len` or more.
///
/// All have the same length, but the last one has the rest. 0 counts as 1. The slices depend on these numbers alone, so a result
/// computed per slice does not depend on the number of threads.
pub fn slices(n: usize, max_slices: usize, min_len: usize) -> impl Iterator<Item = Range<usize>> {
    let len = n.div_ceil(max_slices.max(1)).max(min_len).max(1);
    (0..n).step_by(len).map(move |start| start..(start + len).min(n))
}

/// Returns the message of a caught panic.
#[must_use]
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| String::from(*text));
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a text".into())
}

/// A fork-join pool of threads.
///
/// Clones share the threads, which end when the last clone is dropped. The default pool runs everything on the calling thread.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    /// `None` for a pool of the calling thread alone.
    team: Option<Arc<Team>>,
}

#[derive(Debug)]
struct Team {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// The current job: `call(data, i)` for every i below `n`.
#[derive(Clone, Copy)]
struct Job {
    call: unsafe fn(*const (), usize),
    data: *const (),
    n: usize,
}

struct Shared {
    /// Job number (from bit 32), `OPEN` flag, and number of team threads inside.
    state: AtomicU64,
    /// Written only while the job is closed and no thread is inside it.
    job: UnsafeCell<Job>,
    /// Shares of the job's items, one for each thread.
    shares: Box<[Share]>,
    /// Held while a job runs; a caller that finds it taken runs its items inline.
    owner: Mutex<()>,
    /// First panic in one of the team's threads.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Number of sleeping threads; the flag tells threads to exit.
    sleeping: Mutex<(usize, bool)>,
    wake: Condvar,
    sleepers: AtomicUsize,
}

/// Neighbouring items, which a thread takes before those of others.
///
/// Job after job a thread gets the same items, whose memory is then in its cache. Cores of different L3 caches fetch a line from
/// each other in some hundred nanoseconds.
#[repr(align(128))]
struct Share {
    /// Index of the next item.
    next: AtomicUsize,
}

// SAFETY: `job` holds pointers that are valid for any thread while the job is open (see `each`), and is written only by the
// holder of `owner` while no thread is in the job.
unsafe impl Sync for Shared {}
// SAFETY: as above; no field is bound to a thread.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;
const NUMBER: u64 = 1 << 32;

/// Polls of an idle thread before it sleeps: some 100 microseconds.
///
/// The last `YIELDS` polls yield in between.
const LOOKS: u32 = 2_000;
const YIELDS: u32 = 100;

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// First item of a thread's share of `n` items.
    fn first(&self, thread: usize, n: usize) -> usize {
        (thread * n).div_ceil(self.shares.len())
    }

    /// Runs items until none is left, those of the thread's own share first.
    fn work(&self, job: Job, thread: usize) {
        for of in (thread..self.shares.len()).chain(0..thread) {
            let (next, end) = (&self.shares[of].next, self.first(of + 1, job.n));
            while next.load(Ordering::Relaxed) < end {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i < end {
                    // SAFETY: the job is open, so `data` is what `call` expects, and each `i` below `n` is taken once.
                    unsafe { (job.call)(job.data, i) };
                }
            }
        }
    }

    /// Main loop of a thread of the team.
    fn serve(&self, thread: usize) {
        let mut last = 0;
        loop {
            let state = self.await_job(last);
            let Some(state) = state else { return };
            if self.state.compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
                continue;
            }
            last = state / NUMBER;
            // SAFETY: this thread has entered the open job, so no thread writes it until this one has left.
            let job = unsafe { *self.job.get() };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.work(job, thread))) {
                locked(&self.panic).get_or_insert(panic);
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for an open job other than `last`; returns `None` on shutdown.
    fn await_job(&self, last: u64) -> Option<u64> {
        let is_new = |state: u64| state & OPEN != 0 && state / NUMBER != last;
        for look in 0..LOOKS + YIELDS {
            let state = self.state.load(Ordering::Relaxed);
            if is_new(state) {
                return Some(state);
            }
            if look < LOOKS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        let mut sleeping = locked(&self.sleeping);
        sleeping.0 += 1;
        self.sleepers.store(sleeping.0, Ordering::SeqCst);
        let state = loop {
            let state = self.state.load(Ordering::SeqCst);
            if sleeping.1 || is_new(state) {
                break state;
            }
            sleeping = self.wake.wait(sleeping).unwrap_or_else(PoisonError::into_inner);
        };
        sleeping.0 -= 1;
        self.sleepers.store(sleeping.0, Ordering::SeqCst);
        (!sleeping.1).then_some(state)
    }

    /// Runs a job on all threads.
    ///
    /// Returns false, with nothing done, while another job runs.
    ///
    /// # Safety
    /// Any thread may call `job.call` with `job.data`, once for each item, until this returns.
    unsafe fn run(&self, job: Job) -> bool {
        /// Closes the job even if this thread panics: other threads use its stack frame.
        struct Closing<'a>(&'a Shared);
        impl Drop for Closing<'_> {
            fn drop(&mut self) {
                self.0.close();
            }
        }

        let _owner = match self.owner.try_lock() {
            Ok(owner) => owner,
            // An earlier job panicked while it held the lock; it closed its job all the same.
            Err(TryLockError::Poisoned(owner)) => owner.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        // SAFETY: this thread holds `owner`, and the last job was closed before `owner` was released, so no thread reads this.
        unsafe { *self.job.get() = job };
        *locked(&self.panic) = None;
        for (thread, share) in self.shares.iter().enumerate() {
            share.next.store(self.first(thread, job.n), Ordering::Relaxed);
        }
        let number = self.state.load(Ordering::Relaxed) / NUMBER + 1;
        self.state.store(number.wrapping_mul(NUMBER) | OPEN, Ordering::SeqCst);
        let closing = Closing(self);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // A thread that is about to sleep holds this lock until it does.
            drop(locked(&self.sleeping));
            self.wake.notify_all();
        }
        self.work(job, 0);
        drop(closing);
        if let Some(panic) = locked(&self.panic).take() {
            resume_unwind(panic);
        }
        true
    }

    /// Closes the job and waits until no thread is inside it.
    fn close(&self) {
        self.state.fetch_and(!OPEN, Ordering::Relaxed);
        let mut looks = 0u32;
        while self.state.load(Ordering::Acquire) & INSIDE != 0 {
            looks = looks.saturating_add(1);
            if looks < LOOKS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        locked(&self.shared.sleeping).1 = true;
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // `each` has already passed on panics.
            let _ = thread.join();
        }
    }
}

impl Pool {
    /// Starts a pool with a thread for each core that this process may use.
    ///
    /// # Errors
    /// [`Error::Threads`] if the system refuses to start a thread.
    pub fn all_cores() -> Result<Self, Error> {
        Self::new(std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// Starts a pool of `n_threads` threads, including the caller's.
    ///
    /// With one thread, everything runs on the calling thread.
    ///
    /// # Errors
    /// [`Error::Threads`] if `n_threads` is 0 or the system refuses to start a thread.
    pub fn new(n_threads: usize) -> Result<Self, Error> {
        let error = |reason: String| Error::Threads { n_threads, reason };
        if n_threads == 0 {
            return Err(error("there must be one at least".into()));
        }
        if n_threads == 1 {
            return Ok(Self { team: None });
        }
        let nothing = Job { call: |_, _| {}, data: std::ptr::null(), n: 0 };
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(nothing),
            shares: (0..n_threads).map(|_| Share { next: AtomicUsize::new(0) }).collect(),
            owner: Mutex::new(()),
            panic: Mutex::new(None),
            sleeping: Mutex::new((0, false)),
            wake: Condvar::new(),
            sleepers: AtomicUsize::new(0),
        });
        let mut team = Team { shared, threads: Vec::new() };
        for i in 1..n_threads {
            let shared = team.shared.clone();
            let thread = std::thread::Builder::new().name(format!("pool-{i}")).spawn(move || shared.serve(i));
            team.threads.push(thread.map_err(|e| error(e.to_string()))?);
        }
        Ok(Self { team: Some(Arc::new(team)) })
    }

    /// Number of threads, including the caller's.
    #[must_use]
    pub fn n_threads(&self) -> usize {
        self.team.as_ref().map_or(1, |team| team.threads.len() + 1)
    }

    /// Runs `f` on each item, in parallel where threads are free, and waits for all.
    ///
    /// While the pool is busy (a call from within it, or from another thread), all items run on the calling thread.
    ///
    /// # Panics
    /// If `f` panics.
    pub fn each<T: Send>(&self, items: &mut [T], f: &(impl Fn(&mut T) + Sync)) {
        struct EachCall<'a, T, F> {
            items: *mut T,
            f: &'a F,
        }
        /// # Safety
        /// `data` points to a `EachCall<T, F>` with more than `i` items, and no other thread uses item `i`.
        unsafe fn call<T, F: Fn(&mut T)>(data: *const (), i: usize) {
            // SAFETY: guaranteed by the caller.
            let work = unsafe { &*data.cast::<EachCall<'_, T, F>>() };
            // SAFETY: guaranteed by the caller.
            (work.f)(unsafe { &mut *work.items.add(i) });
        }
        fn call_of<T, F: Fn(&mut T)>(_: &EachCall<'_, T, F>) -> unsafe fn(*const (), usize) {
            call::<T, F>
        }

        let work = EachCall { items: items.as_mut_ptr(), f };
        let job = Job { call: call_of(&work), data: (&raw const work).cast(), n: items.len() };
        let team = self.team.as_ref().filter(|_| items.len() > 1);
        // SAFETY: `work` outlives this call, its items are borrowed for that long, and `T: Send` and `F: Sync` allow any thread.
        if !team.is_some_and(|team| unsafe { team.shared.run(job) }) {
            items.iter_mut().for_each(f);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_every_row_once_and_in_order() {
        for n in [0, 1, 31, 33, 64, 65, 1000, 4096, 4097, 100_000] {
            for (max_slices, min_len) in [(64, 64), (16, 4), (1, 1), (1, 0)] {
                let rows: Vec<usize> = slices(n, max_slices, min_len).flatten().collect();
                assert_eq!(rows, (0..n).collect::<Vec<_>>());
                assert!(slices(n, max_slices, min_len).count() <= max_slices);
            }
            assert_eq!(slices(n, 0, 1).count(), n.min(1));
        }
    }

    #[test]
    fn each_item_is_seen_once_for_any_number_of_threads() {
        for n_threads in [1, 2, 3, 8] {
            let pool = Pool::new(n_threads).expect("threads start");
            assert_eq!(pool.n_threads(), n_threads);
            for round in 0..500 {
                let mut items: Vec<usize> = (0..round % 70).collect();
                pool.each(&mut items, &|item| *item += 100);
                assert_eq!(items, (100..100 + round % 70).collect::<Vec<_>>());
            }
        }
        assert!(Pool::new(0).is_err());
    }

    #[test]
    fn a_thread_gets_the_same_items_in_every_job() {
        let pool = Pool::new(4).expect("threads start");
        let (barrier, mut first) = (std::sync::Barrier::new(4), None);
        for _ in 0..200 {
            let mut items = [None; 4];
            // No thread is free for the item of another one.
            pool.each(&mut items, &|item| {
                *item = Some(std::thread::current().id());
                barrier.wait();
            });
            assert_eq!(*first.get_or_insert(items), items);
        }
    }

    #[test]
    fn threads_that_have_gone_to_sleep_wake_up() {
        let pool = Pool::new(3).expect("threads start");
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let mut items = [0; 10];
            pool.each(&mut items, &|item| *item += 1);
            assert_eq!(items, [1; 10]);
        }
    }

    #[test]
    fn nested_and_concurrent_work_is_done_too() {
        let pool = Pool::new(3).expect("threads start");
        let total = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        pool.each(&mut [(); 5], &|()| {
                            pool.each(&mut [(); 3], &|()| {
                                total.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 4 * 100 * 15);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(3).expect("threads start");
        for bad in 0..20 {
            let mut items: Vec<usize> = (0..20).collect();
            let result = catch_unwind(AssertUnwindSafe(|| pool.each(&mut items, &|&mut i| assert!(i != bad, "item {i}"))));
            assert!(result.is_err());
        }
        // Still on several threads: each of three items waits for the others.
        let barrier = std::sync::Barrier::new(3);
        pool.each(&mut [0; 3], &|_| {
            barrier.wait();
        });
    }
}
