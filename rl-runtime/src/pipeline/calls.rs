//! Latencies of environments that block, and sizes of the policy's batches.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::pipeline::faults::FaultCounts;
use crate::report::metrics::Row;

/// Bins for each doubling of the latency: a quantile is off by at most 5%.
const PER_OCTAVE: f64 = 8.0;
/// Bins from a microsecond to an hour.
const BINS: usize = 256;

/// Latencies of the steps of one environment, or of all.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "WrittenLatencies", into = "WrittenLatencies")]
struct Latencies {
    /// Steps by latency.
    bins: [u64; BINS],
    sum: Duration,
    longest: Duration,
}

/// Bins that are not empty, with their indices; sum; longest.
type WrittenLatencies = (Vec<(u32, u64)>, Duration, Duration);

impl From<Latencies> for WrittenLatencies {
    fn from(Latencies { bins, sum, longest }: Latencies) -> Self {
        ((0..).zip(bins).filter(|(_, n)| *n > 0).collect(), sum, longest)
    }
}

impl From<WrittenLatencies> for Latencies {
    fn from((written, sum, longest): WrittenLatencies) -> Self {
        let mut bins = [0; BINS];
        for (bin, n) in written {
            bins[(bin as usize).min(BINS - 1)] += n;
        }
        Self { bins, sum, longest }
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self { bins: [0; BINS], sum: Duration::ZERO, longest: Duration::ZERO }
    }
}

impl Latencies {
    fn add(&mut self, latency: Duration) {
        let bin = PER_OCTAVE * (1e6 * latency.as_secs_f64()).max(1.0).log2();
        self.bins[(bin as usize).min(BINS - 1)] += 1;
        self.sum += latency;
        self.longest = self.longest.max(latency);
    }

    fn merge(&mut self, other: &Self) {
        self.bins.iter_mut().zip(&other.bins).for_each(|(n, more)| *n += more);
        self.sum += other.sum;
        self.longest = self.longest.max(other.longest);
    }

    fn steps(&self) -> u64 {
        self.bins.iter().sum()
    }

    /// Mean in milliseconds; NaN without steps.
    fn mean(&self) -> f64 {
        1e3 * self.sum.as_secs_f64() / self.steps() as f64
    }

    /// Latency in milliseconds at the quantile `q`; NaN without steps.
    fn quantile(&self, q: f64) -> f64 {
        let wanted = q * self.steps() as f64;
        let mut seen = 0;
        let bin = self.bins.iter().position(|n| {
            seen += n;
            seen > 0 && seen as f64 >= wanted
        });
        let middle = |bin: usize| 1e-3 * ((bin as f64 + 0.5) / PER_OCTAVE).exp2();
        bin.map_or(f64::NAN, |bin| middle(bin).min(1e3 * self.longest.as_secs_f64()))
    }
}

/// Counts of steps and batches between two moments.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Calls {
    by_env: Vec<Latencies>,
    batches: u64,
    /// Actions in all batches.
    acted: u64,
    largest_batch: usize,
}

impl Calls {
    /// Counts a step of environment `env_idx`.
    pub(crate) fn step(&mut self, env_idx: usize, latency: Duration) {
        if self.by_env.len() <= env_idx {
            self.by_env.resize_with(env_idx + 1, Latencies::default);
        }
        self.by_env[env_idx].add(latency);
    }

    /// Counts a batch of `n` environments for which the policy has acted.
    pub(crate) fn batch(&mut self, n: usize) {
        self.batches += 1;
        self.acted += n as u64;
        self.largest_batch = self.largest_batch.max(n);
    }

    /// Adds the counts of `other`.
    pub(crate) fn merge(&mut self, other: &Self) {
        if self.by_env.len() < other.by_env.len() {
            self.by_env.resize_with(other.by_env.len(), Latencies::default);
        }
        self.by_env.iter_mut().zip(&other.by_env).for_each(|(env, more)| env.merge(more));
        self.batches += other.batches;
        self.acted += other.acted;
        self.largest_batch = self.largest_batch.max(other.largest_batch);
    }

    /// Shifts the indices of all environments by `n`.
    pub(crate) fn shift(&mut self, n: usize) {
        if !self.by_env.is_empty() {
            self.by_env.splice(..0, std::iter::repeat_n(Latencies::default(), n));
        }
    }

    /// Removes all counts.
    pub(crate) fn clear(&mut self) {
        let mut by_env = std::mem::take(&mut self.by_env);
        by_env.clear();
        *self = Self { by_env, ..Self::default() };
    }

    /// Latencies of all environments together.
    fn all(&self) -> Latencies {
        let mut all = Latencies::default();
        self.by_env.iter().for_each(|env| all.merge(env));
        all
    }

    /// Returns a row of latencies for each environment with steps.
    ///
    /// The rows are of the moment after `env_steps` steps and `iterations` iterations.
    pub(crate) fn rows(&self, env_steps: u64, iterations: u64) -> impl Iterator<Item = Row> {
        self.by_env.iter().enumerate().filter(|(_, env)| env.steps() > 0).map(move |(env_idx, env)| Row {
            values: vec![
                ("time/total_timesteps", env_steps as f64),
                ("time/iterations", iterations as f64),
                ("env", env_idx as f64),
                ("steps", env.steps() as f64),
                ("latency_p50_ms", env.quantile(0.5)),
                ("latency_p95_ms", env.quantile(0.95)),
                ("latency_max_ms", 1e3 * env.longest.as_secs_f64()),
            ],
        })
    }

    /// Inserts the columns into a row, before the last two.
    pub(crate) fn extend(&self, row: &mut Row, faults: &FaultCounts, dropped: u64) {
        let all = self.all();
        let slowest = self.by_env.iter().filter(|env| env.steps() > 0).map(Latencies::mean).fold(f64::NAN, f64::max);
        let columns = [
            ("env/latency_p50_ms", all.quantile(0.5)),
            ("env/latency_p95_ms", all.quantile(0.95)),
            ("env/latency_max_ms", 1e3 * all.longest.as_secs_f64()),
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
        row.insert(columns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_steps_within_five_percent() {
        let (mut calls, mut more) = (Calls::default(), Calls::default());
        assert!(calls.all().quantile(0.5).is_nan());
        // 1 to 1,000 ms: half of them in each, by two environments.
        for ms in 1..=1000u64 {
            let half = if ms % 2 == 0 { &mut calls } else { &mut more };
            half.step((ms > 900) as usize, Duration::from_millis(ms));
        }
        calls.merge(&more);
        for (q, ms) in [(0.5, 500.0), (0.95, 950.0), (1.0, 1000.0)] {
            assert!((calls.all().quantile(q) / ms - 1.0).abs() < 0.05, "{q}: {}", calls.all().quantile(q));
        }
        calls.batch(3);
        calls.batch(5);
        let mut row = Row { values: vec![("first", 0.0), ("time/time_elapsed", 0.0), ("time/fps", 0.0)] };
        let faults = FaultCounts {
            timeouts: 1,
            panics: 2,
            failures: 3,
            retries: 4,
            restarts: 5,
            quarantined: 6,
            breaker_opened: 7,
            actors: 0,
        };
        calls.extend(&mut row, &faults, 8);
        let of = |name: &str| row.values.iter().find(|(n, _)| *n == name).unwrap().1;
        assert_eq!([of("env/latency_max_ms"), of("env/batch_mean"), of("env/batch_max")], [1000.0, 4.0, 5.0]);
        assert!((of("env/slowest_mean_ms") - 950.5).abs() < 1e-9);
        let names = ["timeouts", "panics", "failures", "retries", "restarts", "quarantined", "dropped_stretches"];
        assert_eq!(names.map(|name| of(&format!("faults/{name}"))), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]);
        assert_eq!(row.values.last().unwrap().0, "time/fps");
        let rows: Vec<Row> = calls.rows(2000, 3).collect();
        // Environment 0 has the steps of 1 to 900 ms, environment 1 those of 901 to 1,000 ms.
        for (env, (row, expected)) in rows.iter().zip([[900.0, 450.0, 855.0, 900.0], [100.0, 950.0, 995.0, 1000.0]]).enumerate() {
            let values: Vec<f64> = row.values.iter().map(|(_, value)| *value).collect();
            assert_eq!(values[..3], [2000.0, 3.0, env as f64]);
            assert!(
                values[3..].iter().zip(expected).all(|(value, expected)| (value / expected - 1.0).abs() < 0.05),
                "{values:?}"
            );
        }
        assert_eq!(rows.len(), 2);
        calls.clear();
        assert!(calls.all().quantile(0.5).is_nan() && calls.acted == 0);
    }
}
