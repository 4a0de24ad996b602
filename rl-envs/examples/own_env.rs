//! A custom environment in a batch: `cargo run --release --example own_env`.
//!
//! A walk on a line: start in the middle, step left or right, win at the right end, lose at the left one, 50 steps at most.

use rl_envs::catalog::Entry;
use rl_envs::{Action, ActionSpace, Env, Error, Pool, RandomActions, Rng, Space, Step, Steps};
use serde::{Deserialize, Serialize};

#[derive(Clone, Default, Serialize, Deserialize)]
struct Walk {
    place: i32,
    elapsed: u32,
}

impl Env for Walk {
    type Obs = f32;
    type State = Walk;

    fn observation_space(&self) -> Space {
        Space::vector(&[-10.0], &[10.0])
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Discrete { n: 2, masked: false }
    }

    fn reset(&mut self, _rng: &mut Rng, obs: &mut [f32]) {
        *self = Walk::default();
        obs[0] = 0.0;
    }

    fn step(&mut self, action: Action<'_>, _rng: &mut Rng, obs: &mut [f32]) -> Step {
        self.place += if action.discrete() == 1 { 1 } else { -1 };
        self.elapsed += 1;
        obs[0] = self.place as f32;
        let reward = if self.place == 10 { 1.0 } else { 0.0 };
        Step { reward, terminated: self.place.abs() == 10, truncated: self.elapsed == 50 }
    }

    fn state(&self) -> Option<Walk> {
        Some(self.clone())
    }

    fn set_state(&mut self, state: Walk) -> Result<(), Error> {
        *self = state;
        Ok(())
    }
}

/// Catalog entry, which brings checks, batches on every core, and traces.
const WALK: Entry = Entry::of::<Walk>("walk", "reach the right end of a line");

fn main() -> Result<(), Error> {
    for check in WALK.check()? {
        println!("{check}");
    }
    let n = 1000;
    let mut envs = WALK.pooled(n, &Pool::new(2)?)?;
    let mut steps = Steps::new(&envs);
    let mut random = RandomActions::new(0, n, envs.action_space());
    let (mut won, mut lost, mut out_of_time) = (0, 0, 0);

    envs.reset(0, &mut steps)?;
    for _ in 0..200 {
        random.fill(steps.actions.as_mut_slice());
        envs.step(&mut steps)?;
        let Steps { rewards, terminated, truncated, .. } = &steps;
        won += rewards.iter().filter(|&&reward| reward > 0.0).count();
        lost += rewards.iter().zip(terminated).filter(|&(&reward, &over)| reward == 0.0 && over == 1).count();
        out_of_time += terminated.iter().zip(truncated).filter(|&(&over, &cut)| over == 0 && cut == 1).count();
    }
    println!("{n} random walks, 200 steps: {won} won, {lost} lost, {out_of_time} out of time");
    Ok(())
}
