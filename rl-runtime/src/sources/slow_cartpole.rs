//! CartPole behind a delay.
//!
//! An environment that blocks, to try first-come batching with. A step waits, then is CartPole's; a reset does not wait.
//! `rl train slow_cartpole` trains it.

use std::time::{Duration, Instant};

use rl_agents::settings::Kind;
use rl_envs::cartpole::CartPole;
use rl_envs::catalog::Entry;
use rl_envs::{Action, ActionSpace, BlockingEnv, Env as _, EnvError, Rng, Space, Step};
use serde::Serialize;

use crate::sources::env_settings::EnvSettings;
use crate::sources::latency::Distribution;

rl_agents::settings! {
    /// Settings of `slow_cartpole`.
    pub struct SlowCartPoleConfig, "env." {
        /// slow_cartpole: distribution of the delays; pareto: rarely much longer.
        latency: Distribution = Distribution::Fixed, Kind::Choice(&["fixed", "exp", "pareto"]);
        /// slow_cartpole: milliseconds that a step waits, on average.
        latency_ms: f64 = 1.0, Kind::Float(0.0, 60_000.0);
    }
}

impl EnvSettings for SlowCartPoleConfig {
    const NAME: &'static str = "slow_cartpole";

    fn entry(&self) -> Entry {
        let mean = Duration::from_secs_f64(1e-3 * self.latency_ms);
        let latency = Latency { distribution: self.latency, mean, work: Duration::ZERO, fail: 0.0 };
        Entry::blocking_with(Self::NAME, "balance a pole on a cart that answers late", move || SlowCartPole::new(latency))
    }
}

/// Cost of a step, in addition to CartPole's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Latency {
    /// Distribution of the delays.
    pub(crate) distribution: Distribution,
    /// Mean delay, slept.
    pub(crate) mean: Duration,
    /// Computing time of each step.
    pub(crate) work: Duration,
    /// Share of steps that fail and must not be retried.
    pub(crate) fail: f32,
}

/// CartPole behind a delay.
#[derive(Clone, Debug)]
pub(crate) struct SlowCartPole {
    env: CartPole,
    latency: Latency,
}

impl SlowCartPole {
    /// Creates an environment with the given latency.
    #[must_use]
    pub(crate) fn new(latency: Latency) -> Self {
        Self { env: CartPole::default(), latency }
    }

    /// Returns the spaces of the environment.
    #[cfg(feature = "cli")]
    #[must_use]
    pub(crate) fn spaces() -> rl_envs::Spaces {
        rl_envs::Spaces { obs: CartPole::default().observation_space(), actions: CartPole::default().action_space() }
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
