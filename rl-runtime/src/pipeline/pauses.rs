//! Pauses of the program: Ctrl-Z, SIGSTOP, a machine that slept.
//!
//! A call that waits for an environment has a time limit, which a pause must not use up. A thread looks at the clock ten times
//! a second; where it was late by more than a second, the program has paused.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::thread::{locked, spawn};

/// Time between two looks at the clock.
const LOOK: Duration = Duration::from_millis(100);
/// Shortest pause; on a busy machine a thread may wait for a processor that long.
const SHORTEST: Duration = Duration::from_secs(1);
/// Number of pauses that are remembered; a call outlives few.
const REMEMBERED: usize = 64;

/// Latest look at the clock, and pauses before it: their ends and lengths.
struct Pauses {
    /// Process with the thread that looks; a fork copies no threads.
    process: u32,
    looked: Instant,
    all: Vec<(Instant, Duration)>,
}

static PAUSES: Mutex<Option<Pauses>> = Mutex::new(None);

impl Pauses {
    fn new() -> Self {
        Self { process: std::process::id(), looked: Instant::now(), all: Vec::new() }
    }

    fn look(&mut self, now: Instant) {
        let gap = now.saturating_duration_since(self.looked);
        if gap >= SHORTEST {
            let oldest = (self.all.len() + 1).saturating_sub(REMEMBERED);
            self.all.drain(..oldest);
            self.all.push((now, gap));
        }
        self.looked = self.looked.max(now);
    }

    fn since(&self, begin: Instant) -> Duration {
        let lengths = self.all.iter().map(|&(end, gap)| gap.min(end.saturating_duration_since(begin)));
        lengths.sum()
    }
}

/// Starts to look at the clock, once in a process.
///
/// Without a thread, pauses count as waits.
pub(crate) fn watch() {
    let pauses = &mut *locked(&PAUSES);
    if pauses.as_ref().is_some_and(|pauses| pauses.process == std::process::id()) {
        return;
    }
    let look = || loop {
        std::thread::sleep(LOOK);
        locked(&PAUSES).iter_mut().for_each(|pauses| pauses.look(Instant::now()));
    };
    *pauses = spawn("pauses", look).is_ok().then(Pauses::new);
}

/// Time for which the program has paused since `begin`.
pub(crate) fn paused_since(begin: Instant) -> Duration {
    let Some(pauses) = &mut *locked(&PAUSES) else { return Duration::ZERO };
    // The thread may not have run since the pause.
    pauses.look(Instant::now());
    pauses.since(begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_look_is_a_pause_and_a_call_counts_only_what_it_has_lived_through() {
        let (begin, s) = (Instant::now(), Duration::from_secs_f64);
        let mut pauses = Pauses { looked: begin, ..Pauses::new() };
        [0.1, 0.9, 40.9, 41.0, 43.0].into_iter().for_each(|at| pauses.look(begin + s(at)));
        // An older time of another thread.
        pauses.look(begin + s(42.0));
        assert_eq!(pauses.all, [(begin + s(40.9), s(40.9) - s(0.9)), (begin + s(43.0), s(43.0) - s(41.0))]);
        for (at, paused) in [(0.0, 42.0), (20.9, 22.0), (40.95, 2.0), (42.5, 0.5), (43.0, 0.0)] {
            let error = pauses.since(begin + s(at)).as_secs_f64() - paused;
            assert!(error.abs() < 1e-6, "{at}: {error}");
        }
        (0..2 * REMEMBERED as u64).for_each(|i| pauses.look(begin + s(100.0) + Duration::from_secs(2 * i)));
        assert_eq!(pauses.all.len(), REMEMBERED);
    }
}
