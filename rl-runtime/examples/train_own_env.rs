//! A custom environment, trained: `cargo run --release --example train_own_env`.
//!
//! It is saved and evaluated, too. A walk on a line: start in the middle, step left or right, win 1 at the right end, lose at the
//! left one, 50 steps at most.

use rl_agents::EvalConfig;
use rl_envs::catalog::Entry;
use rl_envs::{Action, ActionSpace, Env, Pool, Rng, Space, Step};
use rl_runtime::config::Layers;
use rl_runtime::evaluation::{evaluate_policy, evaluation_seed};
use rl_runtime::event::Event;
use rl_runtime::run_dir::RunDir;
use rl_runtime::train::Training;
use rl_runtime::{Algo, Error, checkpoint};
use serde::{Deserialize, Serialize};

#[derive(Clone, Default, Serialize, Deserialize)]
struct Walk {
    place: i32,
    elapsed: u32,
}

impl Env for Walk {
    type Obs = f32;
    type State = Self;

    fn observation_space(&self) -> Space {
        Space::vector(&[-10.0], &[10.0])
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Discrete { n: 2, masked: false }
    }

    fn reset(&mut self, _: &mut Rng, obs: &mut [f32]) {
        *self = Self::default();
        obs[0] = 0.0;
    }

    fn step(&mut self, action: Action<'_>, _: &mut Rng, obs: &mut [f32]) -> Step {
        self.place += if action.discrete() == 1 { 1 } else { -1 };
        self.elapsed += 1;
        obs[0] = self.place as f32;
        let reward = if self.place == 10 { 1.0 } else { 0.0 };
        Step { reward, terminated: self.place.abs() == 10, truncated: self.elapsed == 50 }
    }

    fn state(&self) -> Option<Self> {
        Some(self.clone())
    }

    fn set_state(&mut self, state: Self) -> Result<(), rl_envs::Error> {
        *self = state;
        Ok(())
    }
}

fn main() -> Result<(), Error> {
    let entry = Entry::of::<Walk>("walk", "reach the right end of a line");
    let mut layers = Layers::default();
    ["steps=40000", "ppo.n_steps=64", "ppo.batch_size=128"].iter().for_each(|setting| layers.add_assignment(setting));
    let config = layers.resolve(&entry, Algo::PPO)?;

    let dir = RunDir::create(None, &config, "cpu")?; // runs/walk-ppo-seed0-1
    let mut training = Training::builder(&config, &entry).build()?;
    training.run(&dir, &mut |event| match event {
        Event::Row { progress, .. } if progress.iterations % 10 == 0 => {
            println!("{:>6} env steps: mean return {:.2}", progress.env_steps, progress.return_mean());
        }
        Event::Warning(text) => eprintln!("warning: {text}"),
        _ => {}
    })?;

    let saved = checkpoint::policy(dir.path(), false, &entry)?;
    let eval = EvalConfig::new(evaluation_seed(0));
    if let Some(result) = evaluate_policy(&*saved.policy, &saved.entry, 100, &eval, &Pool::all_cores()?)? {
        println!("{}: mean return {:.2} over {} episodes", saved.path.display(), result.return_mean, result.episodes);
    }
    Ok(())
}
