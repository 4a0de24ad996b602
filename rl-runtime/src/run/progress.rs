//! Progress of a run.

use rl_agents::Episode;
use serde::{Deserialize, Serialize};

/// Number of episodes in the means of returns and lengths.
pub(crate) const WINDOW: usize = rl_agents::MAX_LATEST;

/// Progress of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Environment steps, summed over environments.
    pub env_steps: u64,
    /// Number of rollouts.
    pub iterations: u64,
    /// Number of ended episodes.
    pub episodes: u64,
    /// The last of the ended episodes, at most [`rl_agents::MAX_LATEST`].
    pub recent: Vec<Episode>,
    /// Seconds spent training, including earlier parts of the run.
    pub elapsed_s: f64,
}

impl Progress {
    /// Refuses progress that no run reaches.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { env_steps, iterations, episodes, recent, elapsed_s } = self;
        if let Some(count) = [env_steps, iterations, episodes].into_iter().find(|count| **count > u64::MAX / 4) {
            return Err(format!("it counts {count} steps or episodes, which no run reaches"));
        }
        // Every rollout has a step at least.
        if iterations > env_steps {
            return Err(format!("it counts {iterations} rollouts of {env_steps} steps, which cannot be"));
        }
        if recent.len() > WINDOW || !elapsed_s.is_finite() || *elapsed_s < 0.0 {
            return Err(format!("{} recent episodes after {elapsed_s} seconds cannot be", recent.len()));
        }
        Ok(())
    }

    /// Returns the mean return of the last episodes; NaN before the first has ended.
    #[must_use]
    pub fn return_mean(&self) -> f64 {
        self.recent.iter().map(|e| e.episode_return).sum::<f64>() / self.recent.len() as f64
    }

    /// Returns the mean length of the last episodes; NaN before the first has ended.
    #[must_use]
    pub fn length_mean(&self) -> f64 {
        self.recent.iter().map(|e| f64::from(e.length)).sum::<f64>() / self.recent.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_that_no_run_reaches_is_refused() {
        let of = |env_steps, iterations| Progress { env_steps, iterations, ..Progress::default() }.check();
        assert_eq!([of(0, 0), of(64, 64)], [Ok(()), Ok(())]);
        // A resumed run would save its checkpoint again until it has as many steps.
        assert_eq!(of(64, 1 << 40), Err("it counts 1099511627776 rollouts of 64 steps, which cannot be".into()));
        assert!(of(u64::MAX, 1).is_err() && Progress { elapsed_s: f64::NAN, ..Progress::default() }.check().is_err());
    }
}
