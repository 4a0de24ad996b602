//! Checks of what environments return.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rl_envs::{Action, ObsSlice, Space, VecEnv, pool};
use serde::{Deserialize, Serialize};

use crate::Error;

/// An invalid number from an environment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Anomaly {
    /// Index of the environment in its batch.
    pub env_idx: usize,
    /// Lifetime step of the environment; 0 before the first one.
    pub step: u64,
    /// Action of that step, as text; `None` for an episode's first observation.
    pub action: Option<String>,
    /// Description of the number.
    pub what: String,
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { env_idx, step, action, what } = self;
        match action {
            Some(action) => write!(f, "environment {env_idx}, step {step}, action {action}: {what}"),
            None => write!(f, "environment {env_idx}, start of an episode after step {step}: {what}"),
        }
    }
}

/// Invalid numbers from environments since the collector was created.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Anomalies {
    /// Episodes truncated because of a number that is not finite.
    pub truncated: u64,
    /// Episodes truncated because the environment had failed.
    pub faults: u64,
    /// Observations outside of their space.
    pub outside: u64,
    /// The first number that is not finite.
    pub first_truncated: Option<Anomaly>,
    /// The first observation outside of its space.
    pub first_outside: Option<Anomaly>,
}

impl Anomalies {
    /// Adds those of other environments.
    pub fn add(&mut self, other: &Self) {
        fn first(a: &mut Option<Anomaly>, b: &Option<Anomaly>) {
            if let Some(b) = b
                && a.as_ref().is_none_or(|a| (b.step, b.env_idx) < (a.step, a.env_idx))
            {
                *a = Some(b.clone());
            }
        }
        self.truncated += other.truncated;
        self.faults += other.faults;
        self.outside += other.outside;
        first(&mut self.first_truncated, &other.first_truncated);
        first(&mut self.first_outside, &other.first_outside);
    }
}

/// Bounds of observations, repeated to fill vectors for one pass over a batch.
pub(crate) struct Bounds {
    low: Vec<f32>,
    high: Vec<f32>,
    /// Number of categories of each element, 0 for a number.
    ///
    /// Empty if all elements are numbers.
    categories: Vec<u32>,
    pub(crate) d: usize,
}

impl Bounds {
    pub(crate) fn new(space: &Space) -> Self {
        let n = 64usize.div_ceil(space.len().max(1));
        // Infinite bounds become the largest finite numbers, so that non-finite numbers are outside too.
        let low: Vec<f32> = space.low().iter().map(|low| low.max(f32::MIN)).collect();
        let high: Vec<f32> = space.high().iter().map(|high| high.min(f32::MAX)).collect();
        Self { low: low.repeat(n), high: high.repeat(n), categories: space.categories().into(), d: space.len() }
    }

    /// Returns true if all of these observations are finite and within bounds.
    ///
    /// Categories must be whole numbers.
    pub(crate) fn hold(&self, obs: ObsSlice<'_>) -> bool {
        match obs {
            ObsSlice::F32(obs) => {
                let bounded = obs.chunks(self.low.len()).all(|obs| {
                    let bounded = obs.iter().zip(&self.low).zip(&self.high);
                    bounded.fold(0, |bad, ((x, low), high)| bad | u32::from(!((low <= x) & (x <= high)))) == 0
                });
                bounded && (self.categories.is_empty() || obs.iter().enumerate().all(|(i, x)| self.is_whole(i % self.d, *x)))
            }
            // A space of bytes has one bound for all of its elements.
            ObsSlice::U8(obs) => match self.high.first() {
                Some(&high) if high < 255.0 => f32::from(obs.iter().fold(0, |max, &x| x.max(max))) <= high,
                _ => true,
            },
        }
    }

    /// True for a number, and for a whole number as a category.
    fn is_whole(&self, dim: usize, x: f32) -> bool {
        self.categories.get(dim).is_none_or(|&n| n == 0) || x.fract() == 0.0
    }

    /// Describes the first element of an observation outside of its space.
    pub(crate) fn outside(&self, obs: ObsSlice<'_>) -> Option<String> {
        (0..self.d).find_map(|dim| {
            let x = match obs {
                ObsSlice::F32(obs) => obs[dim],
                ObsSlice::U8(obs) => f32::from(obs[dim]),
            };
            let (low, high) = (self.low[dim], self.high[dim]);
            if !self.is_whole(dim, x) {
                return Some(format!("element {dim} of the observation is {x}, not one of the categories {low} to {high}"));
            }
            (x < low || high < x).then(|| format!("element {dim} of the observation is {x}, outside of [{low}, {high}]"))
        })
    }
}

/// Describes the first element of an observation that is not finite.
pub(crate) fn not_finite(obs: ObsSlice<'_>) -> Option<String> {
    let ObsSlice::F32(obs) = obs else { return None };
    obs.iter().position(|x| !x.is_finite()).map(|dim| format!("element {dim} of the observation is {}", obs[dim]))
}

/// Returns true if all of these numbers are finite.
pub(crate) fn all_finite(numbers: &[f32]) -> bool {
    numbers.iter().fold(0, |bad, x| bad | u32::from(!x.is_finite())) == 0
}

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// True on a thread where a panic becomes [`Error::EnvPanicked`].
///
/// A panic hook need not print it.
#[must_use]
pub fn catches_panics() -> bool {
    CATCHING.get()
}

/// Calls environments at lifetime step `step`, and converts a panic to an error.
#[inline]
pub(crate) fn guarded(
    envs: &mut dyn VecEnv,
    step: u64,
    call: impl FnOnce(&mut dyn VecEnv) -> Result<(), rl_envs::Error>,
) -> Result<(), Error> {
    CATCHING.set(true);
    let result = catch_unwind(AssertUnwindSafe(|| call(&mut *envs)));
    CATCHING.set(false);
    match result {
        Ok(result) => Ok(result?),
        Err(panic) => {
            let first = envs.first_env() as usize;
            let (last, cause) = (first + envs.n_envs() - 1, pool::panic_text(&*panic));
            Err(Error::EnvPanicked { first, last, step, cause })
        }
    }
}

/// Describes a step that must not be learnt from.
pub(crate) fn bad_step(reward: f32, obs: ObsSlice<'_>) -> Option<String> {
    if reward.is_finite() { not_finite(obs) } else { Some(format!("the reward is {reward}")) }
}

/// Formats an action.
pub(crate) fn text(action: Action<'_>) -> String {
    action.either(|action| action.to_string(), |action| format!("{action:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_category_between_two_numbers_is_outside_of_its_space() {
        let bounds = Bounds::new(&Space::vector(&[-1.0, 0.0], &[1.0, 0.0]).with_categories(&[0, 3]));
        assert!(bounds.hold(ObsSlice::F32(&[0.5, 2.0, -0.5, 0.0])));
        for (obs, what) in [
            ([0.5, 1.5], "element 1 of the observation is 1.5, not one of the categories 0 to 2"),
            ([0.5, 3.0], "element 1 of the observation is 3, outside of [0, 2]"),
        ] {
            assert!(!bounds.hold(ObsSlice::F32(&obs)));
            assert_eq!(bounds.outside(ObsSlice::F32(&obs)).unwrap(), what);
        }
    }
}
