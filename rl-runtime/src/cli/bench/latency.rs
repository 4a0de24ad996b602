//! A slow environment: CartPole behind a delay, to measure pipelines with.

use std::time::{Duration, Instant};

use rl_envs::cartpole::CartPole;
use rl_envs::{Action, ActionSpace, BlockingEnv, Env as _, EnvError, Rng, Space, Step};
use serde::{Deserialize, Serialize};

/// Distribution of delays around their mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::cli) enum Distribution {
    /// Constant.
    Fixed,
    /// Exponential.
    Exp,
    /// Pareto with exponent 2: mostly shorter, rarely much longer, infinite variance.
    Pareto,
}

impl Distribution {
    /// Returns the delay at the quantile `uniform`, from 0 to below 1.
    #[must_use]
    pub(super) fn at(self, uniform: f32, mean: Duration) -> Duration {
        let rest = f64::from(1.0 - uniform);
        mean.mul_f64(match self {
            Self::Fixed => 1.0,
            Self::Exp => -rest.ln(),
            Self::Pareto => 0.5 / rest.sqrt(),
        })
    }
}

/// Cost of a step, in addition to CartPole's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Latency {
    /// Distribution of the delays.
    pub(super) distribution: Distribution,
    /// Mean delay, slept.
    pub(super) mean: Duration,
    /// Computing time of each step.
    pub(super) work: Duration,
    /// Share of steps that fail and must not be retried.
    pub(super) fail: f32,
}

/// CartPole behind a delay.
#[derive(Clone, Debug)]
pub(super) struct SlowCartPole {
    env: CartPole,
    latency: Latency,
}

impl SlowCartPole {
    /// Creates an environment with the given latency.
    #[must_use]
    pub(super) fn new(latency: Latency) -> Self {
        Self { env: CartPole::default(), latency }
    }

    /// Returns the spaces of the environment.
    #[must_use]
    pub(super) fn spaces() -> (Space, ActionSpace) {
        (CartPole::default().observation_space(), CartPole::default().action_space())
    }
}

/// Computes for the given time.
pub(crate) fn spin(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

impl BlockingEnv for SlowCartPole {
    type Obs = f32;

    fn observation_space(&self) -> Space {
        self.env.observation_space()
    }

    fn action_space(&self) -> ActionSpace {
        self.env.action_space()
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.env.reset(rng, obs);
        Ok(())
    }

    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        let Latency { distribution, mean, work, fail } = self.latency;
        let delay = distribution.at(rng.uniform(), mean);
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        spin(work);
        if fail > 0.0 && rng.uniform() < fail {
            return Err(EnvError { cause: "failed, as it was asked to".into(), may_repeat: false });
        }
        Ok(self.env.step(action, rng, obs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_have_the_mean_that_was_asked_for() {
        let mean = Duration::from_millis(50);
        for (distribution, tolerance) in [(Distribution::Fixed, 1e-6), (Distribution::Exp, 0.01), (Distribution::Pareto, 0.02)] {
            let n = 100_000;
            let sum: f64 = (0..n).map(|i| distribution.at((i as f32 + 0.5) / n as f32, mean).as_secs_f64()).sum();
            assert!((sum / f64::from(n) / 0.05 - 1.0).abs() < tolerance, "{distribution:?}: {}", sum / f64::from(n));
        }
    }
}
