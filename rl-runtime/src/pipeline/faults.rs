//! Faults of blocking environments: retries, restarts, quarantine, circuit breaker.
//!
//! A fault ends an episode as truncated, never as terminated. Afterwards an environment that still answers is restarted. One that
//! hangs, has panicked, or has failed with the same text after the same number of steps in the first episode after each of two
//! restarts, is replaced on a new thread, because a thread cannot be killed, after a wait that doubles each time. An environment
//! that is replaced too often is quarantined; too many in quarantine end the run. While all environments fail, a
//! circuit breaker lets only one at a time retry, in rotation; these retries do not count. A run thus survives an outage of a
//! service that all environments use. Nothing here reads a clock; callers pass the time in.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Fault handling of blocking environments.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultConfig {
    /// Maximum duration of a call, retries included.
    ///
    /// Beyond it the environment counts as hung.
    pub timeout: Duration,
    /// Maximum duration of an environment's first call, if longer than `timeout`.
    pub start_timeout: Duration,
    /// Maximum wait for environments that close.
    pub close_timeout: Duration,
    /// Maximum retries of a call that may be repeated.
    pub retries: u32,
    /// Wait before the first retry and before the first replacement.
    ///
    /// The wait doubles each time, and is multiplied by a random factor from 0.5 to 1.5.
    pub backoff: Duration,
    /// Maximum replacements of one environment within `window`.
    pub max_restarts: u32,
    /// Window of `max_restarts`, and maximum time that the breaker may stay open.
    pub window: Duration,
    /// Maximum number of environments in quarantine.
    pub max_quarantined: usize,
    /// Consecutive faults, over all environments, that open the circuit breaker.
    ///
    /// At most twice the number of environments.
    pub breaker_faults: u32,
    /// Time that the circuit breaker stays open before one environment may try.
    pub breaker_pause: Duration,
}

impl Default for FaultConfig {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            start_timeout: Duration::ZERO,
            close_timeout: Duration::from_secs(30),
            retries: 3,
            backoff: Duration::from_millis(100),
            max_restarts: 5,
            window: Duration::from_secs(600),
            max_quarantined: 0,
            breaker_faults: 20,
            breaker_pause: Duration::from_secs(1),
        }
    }
}

/// Default maximum duration of the start of an environment in another process.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Failure of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The call took longer than a setting allows.
    #[error("no answer within {0:?} ({1})")]
    Timeout(Duration, &'static str),
    /// The call panicked.
    #[error("panicked: {0}")]
    Panicked(String),
    /// The call returned an error.
    #[error("{0}")]
    Failed(String),
}

/// Fault counts, summed over all environments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultCounts {
    /// Calls that took too long.
    pub timeouts: u64,
    /// Calls that panicked.
    pub panics: u64,
    /// Calls that returned an error, after their retries.
    pub failures: u64,
    /// Retries of calls.
    pub retries: u64,
    /// Environments replaced.
    pub restarts: u64,
    /// Environments in quarantine.
    pub quarantined: u64,
    /// Number of times the circuit breaker has opened.
    pub breaker_opened: u64,
    /// Processes of actors replaced.
    pub actors: u64,
}

impl FaultCounts {
    /// Adds the counts of other environments.
    pub(crate) fn add(&mut self, other: &Self) {
        let Self { timeouts, panics, failures, retries, restarts, quarantined, breaker_opened, actors } = other;
        self.timeouts += timeouts;
        self.panics += panics;
        self.failures += failures;
        self.retries += retries;
        self.restarts += restarts;
        self.quarantined += quarantined;
        self.breaker_opened += breaker_opened;
        self.actors += actors;
    }

    pub(crate) fn count(&mut self, fault: &Fault) {
        match fault {
            Fault::Timeout(..) => self.timeouts += 1,
            Fault::Panicked(_) => self.panics += 1,
            Fault::Failed(_) => self.failures += 1,
        }
    }
}

/// Circuit breaker: lets one environment try at a time while every call fails.
#[derive(Clone, Debug)]
pub(crate) struct Breaker {
    limit: u32,
    pause: Duration,
    in_a_row: u32,
    /// While open: the opening time, and the time of the next attempt.
    open: Option<(Instant, Instant)>,
}

impl Breaker {
    pub(crate) fn new(config: &FaultConfig, n_envs: usize) -> Self {
        let limit = config.breaker_faults.min(u32::try_from(2 * n_envs).unwrap_or(u32::MAX)).max(1);
        Self { limit, pause: config.breaker_pause, in_a_row: 0, open: None }
    }

    /// Returns how long the breaker has been open, or `None` if it is closed.
    pub(crate) fn open_for(&self, now: Instant) -> Option<Duration> {
        self.open.map(|(since, _)| now.saturating_duration_since(since))
    }

    /// Records a fault; returns true if that opened the breaker.
    pub(crate) fn fault(&mut self, now: Instant) -> bool {
        self.in_a_row = self.in_a_row.saturating_add(1);
        let opens = self.in_a_row >= self.limit && self.open.is_none();
        if opens {
            self.open = Some((now, after(now, self.pause)));
        }
        opens
    }

    pub(crate) fn success(&mut self) {
        (self.in_a_row, self.open) = (0, None);
    }

    /// Returns true if a failed environment may start now.
    ///
    /// If the breaker is open, the next attempt has to wait for another pause.
    pub(crate) fn may_start(&mut self, now: Instant) -> bool {
        match self.open {
            None => true,
            Some((since, at)) if now >= at => {
                self.open = Some((since, after(now, self.pause)));
                true
            }
            Some(_) => false,
        }
    }
}

/// Times at which one environment was replaced.
#[derive(Clone, Debug, Default)]
pub(crate) struct Restarts(VecDeque<Instant>);

impl Restarts {
    /// Returns the number of remembered replacements.
    pub(crate) fn len(&self) -> u32 {
        self.0.len() as u32
    }

    /// Records a replacement and returns true, unless `config` forbids it.
    pub(crate) fn allow(&mut self, now: Instant, config: &FaultConfig) -> bool {
        while self.0.front().is_some_and(|&at| now.saturating_duration_since(at) > config.window) {
            self.0.pop_front();
        }
        let allowed = self.0.len() < config.max_restarts as usize;
        if allowed {
            self.0.push_back(now);
        }
        allowed
    }
}

/// Returns the wait before an attempt, counted from 0; `uniform` is from 0 to 1.
pub(crate) fn backoff(config: &FaultConfig, attempt: u32, uniform: f32) -> Duration {
    let doubled = config.backoff.saturating_mul(2u32.saturating_pow(attempt.min(16)));
    doubled.min(YEAR).mul_f64(0.5 + f64::from(uniform)).min(config.timeout)
}

/// Upper bound on any wait.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Returns `now + duration`, at most one year from now.
pub(crate) fn after(now: Instant, duration: Duration) -> Instant {
    now + duration.min(YEAR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_are_counted_in_a_window() {
        let config = FaultConfig { max_restarts: 2, window: Duration::from_secs(10), ..FaultConfig::default() };
        let (begin, mut restarts) = (Instant::now(), Restarts::default());
        let at = |s| begin + Duration::from_secs(s);
        assert!(restarts.allow(at(0), &config) && restarts.allow(at(1), &config) && !restarts.allow(at(2), &config));
        assert!(restarts.allow(at(11), &config), "the first has left the window");
        assert!(!restarts.allow(at(11), &config));
    }

    #[test]
    fn the_breaker_opens_lets_one_try_and_closes() {
        let config = FaultConfig { breaker_faults: 3, breaker_pause: Duration::from_secs(5), ..FaultConfig::default() };
        let (begin, mut breaker) = (Instant::now(), Breaker::new(&config, 2));
        let at = |s| begin + Duration::from_secs(s);
        assert!(!breaker.fault(at(0)) && !breaker.fault(at(0)) && breaker.may_start(at(0)));
        assert!(breaker.fault(at(1)) && !breaker.may_start(at(5)), "open until 6");
        assert!(breaker.may_start(at(6)) && !breaker.may_start(at(6)), "one tries");
        assert!(!breaker.fault(at(7)) && !breaker.may_start(at(10)) && breaker.may_start(at(11)));
        assert_eq!(breaker.open_for(at(12)), Some(Duration::from_secs(11)));
        breaker.success();
        assert_eq!(breaker.open_for(at(12)), None);
        assert!(breaker.may_start(at(11)) && breaker.may_start(at(11)) && !breaker.fault(at(11)));
    }

    #[test]
    fn two_faults_of_a_single_environment_open_the_breaker() {
        let (now, mut breaker) = (Instant::now(), Breaker::new(&FaultConfig::default(), 1));
        assert!(!breaker.fault(now) && breaker.fault(now) && !breaker.may_start(now));
    }

    #[test]
    fn waits_double_and_differ() {
        let config = FaultConfig { backoff: Duration::from_millis(100), ..FaultConfig::default() };
        assert_eq!(backoff(&config, 0, 0.5), Duration::from_millis(100));
        assert_eq!(backoff(&config, 2, 0.0), Duration::from_millis(200));
        assert_eq!(backoff(&config, 2, 1.0), Duration::from_millis(600));
        assert_eq!(backoff(&config, 1000, 1.0), config.timeout);
        let longest = FaultConfig { backoff: Duration::MAX, timeout: Duration::MAX, ..FaultConfig::default() };
        assert!(backoff(&longest, 1000, 1.0) > YEAR && after(Instant::now(), Duration::MAX) > Instant::now());
    }
}
