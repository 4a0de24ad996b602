//! Latencies of environments that block, and sizes of the policy's batches.

use std::time::Duration;

use crate::faults::FaultCounts;
use crate::metrics::Row;

/// Bins for each doubling of the latency: a quantile is off by at most 5%.
const PER_OCTAVE: f64 = 8.0;
/// Bins from a microsecond to an hour.
const BINS: usize = 256;

/// Counts of steps and batches between two moments.
#[derive(Clone, Debug)]
pub struct Calls {
    /// Steps by latency.
    bins: [u64; BINS],
    longest: Duration,
    /// Steps of each environment, and the sum of their latencies.
    by_env: Vec<(u64, Duration)>,
    batches: u64,
    /// Actions in all batches.
    acted: u64,
    largest_batch: usize,
}

impl Default for Calls {
    fn default() -> Self {
        Self { bins: [0; BINS], longest: Duration::ZERO, by_env: Vec::new(), batches: 0, acted: 0, largest_batch: 0 }
    }
}

impl Calls {
    /// Counts a step of environment `env_idx`.
    pub(crate) fn step(&mut self, env_idx: usize, latency: Duration) {
        let bin = PER_OCTAVE * (1e6 * latency.as_secs_f64()).max(1.0).log2();
        self.bins[(bin as usize).min(BINS - 1)] += 1;
        self.longest = self.longest.max(latency);
        if self.by_env.len() <= env_idx {
            self.by_env.resize(env_idx + 1, (0, Duration::ZERO));
        }
        let (steps, sum) = &mut self.by_env[env_idx];
        *steps += 1;
        *sum += latency;
    }

    /// Counts a batch of `n` environments for which the policy has acted.
    pub(crate) fn batch(&mut self, n: usize) {
        self.batches += 1;
        self.acted += n as u64;
        self.largest_batch = self.largest_batch.max(n);
    }

    /// Adds the counts of `other`.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.bins.iter_mut().zip(&other.bins).for_each(|(n, more)| *n += more);
        self.longest = self.longest.max(other.longest);
        if self.by_env.len() < other.by_env.len() {
            self.by_env.resize(other.by_env.len(), (0, Duration::ZERO));
        }
        for ((steps, sum), (more_steps, more)) in self.by_env.iter_mut().zip(&other.by_env) {
            *steps += more_steps;
            *sum += *more;
        }
        self.batches += other.batches;
        self.acted += other.acted;
        self.largest_batch = self.largest_batch.max(other.largest_batch);
    }

    /// Removes all counts.
    pub(crate) fn clear(&mut self) {
        let mut by_env = std::mem::take(&mut self.by_env);
        by_env.clear();
        *self = Self { by_env, ..Self::default() };
    }

    /// Latency in milliseconds at the quantile `q`; NaN without steps.
    fn quantile(&self, q: f64) -> f64 {
        let wanted = q * self.bins.iter().sum::<u64>() as f64;
        let mut seen = 0;
        let bin = self.bins.iter().position(|n| {
            seen += n;
            seen > 0 && seen as f64 >= wanted
        });
        let middle = |bin: usize| 1e-3 * ((bin as f64 + 0.5) / PER_OCTAVE).exp2();
        bin.map_or(f64::NAN, |bin| middle(bin).min(1e3 * self.longest.as_secs_f64()))
    }

    /// Inserts the columns into a row, before the last two.
    pub(crate) fn extend(&self, row: &mut Row, faults: &FaultCounts, dropped: u64) {
        let mean = |&(steps, sum): &(u64, Duration)| 1e3 * sum.as_secs_f64() / steps as f64;
        let slowest = self.by_env.iter().filter(|(steps, _)| *steps > 0).map(mean).fold(f64::NAN, f64::max);
        let columns = [
            ("env/latency_p50_ms", self.quantile(0.5)),
            ("env/latency_p95_ms", self.quantile(0.95)),
            ("env/latency_max_ms", 1e3 * self.longest.as_secs_f64()),
            ("env/slowest_mean_ms", slowest),
            ("env/batch_mean", self.acted as f64 / self.batches as f64),
            ("env/batch_max", self.largest_batch as f64),
            ("faults/timeouts", faults.timeouts as f64),
            ("faults/panics", faults.panics as f64),
            ("faults/failures", faults.failures as f64),
            ("faults/retries", faults.retries as f64),
            ("faults/restarts", faults.restarts as f64),
            ("faults/quarantined", faults.quarantined as f64),
            ("faults/dropped_stretches", dropped as f64),
        ];
        let at = row.values.len() - 2;
        row.values.splice(at..at, columns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_steps_within_five_percent() {
        let (mut calls, mut more) = (Calls::default(), Calls::default());
        assert!(calls.quantile(0.5).is_nan());
        // 1 to 1,000 ms: half of them in each, by two environments.
        for ms in 1..=1000u64 {
            let half = if ms % 2 == 0 { &mut calls } else { &mut more };
            half.step((ms > 900) as usize, Duration::from_millis(ms));
        }
        calls.merge(&more);
        for (q, ms) in [(0.5, 500.0), (0.95, 950.0), (1.0, 1000.0)] {
            assert!((calls.quantile(q) / ms - 1.0).abs() < 0.05, "{q}: {}", calls.quantile(q));
        }
        calls.batch(3);
        calls.batch(5);
        let mut row = Row { values: vec![("first", 0.0), ("time/time_elapsed", 0.0), ("time/fps", 0.0)] };
        let faults =
            FaultCounts { timeouts: 1, panics: 2, failures: 3, retries: 4, restarts: 5, quarantined: 6, breaker_opened: 7 };
        calls.extend(&mut row, &faults, 8);
        let of = |name: &str| row.values.iter().find(|(n, _)| *n == name).unwrap().1;
        assert_eq!([of("env/latency_max_ms"), of("env/batch_mean"), of("env/batch_max")], [1000.0, 4.0, 5.0]);
        assert!((of("env/slowest_mean_ms") - 950.5).abs() < 1e-9);
        let names = ["timeouts", "panics", "failures", "retries", "restarts", "quarantined", "dropped_stretches"];
        assert_eq!(names.map(|name| of(&format!("faults/{name}"))), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]);
        assert_eq!(row.values.last().unwrap().0, "time/fps");
        calls.clear();
        assert!(calls.quantile(0.5).is_nan() && calls.acted == 0);
    }
}
