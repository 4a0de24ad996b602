//! Environments that block, as entries: trained, evaluated and resumed.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::time::Duration;

use rl_agents::EvalConfig;
use rl_envs::cartpole::CartPole;
use rl_envs::catalog::Entry;
use rl_envs::{Action, ActionSpace, BlockingEnv, Env, EnvError, Pool, Rng, Space, Step};
use rl_runtime::checkpoint::{self, Checkpoint};
use rl_runtime::config::Layers;
use rl_runtime::evaluation::evaluate_policy;
use rl_runtime::run_dir::RunDir;
use rl_runtime::train::Training;
use rl_runtime::{Algo, Config, Error};

/// CartPole behind a line that fails at calls `FIRST + k * PERIOD`.
#[derive(Default)]
struct Remote<const FIRST: u32, const PERIOD: u32> {
    env: CartPole,
    calls: u32,
}

impl<const FIRST: u32, const PERIOD: u32> BlockingEnv for Remote<FIRST, PERIOD> {
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
        self.calls += 1;
        std::thread::sleep(Duration::from_micros(100));
        if self.calls % PERIOD == FIRST {
            return Err(EnvError { cause: format!("the line is down at call {}", self.calls), may_repeat: false });
        }
        Ok(self.env.step(action, rng, obs))
    }
}

fn remote() -> Entry {
    // The longest episode, 500 steps, fits between two faults.
    Entry::blocking::<Remote<50, 750>>("remote", "CartPole behind a slow line")
}

fn config(algo: Algo, more: &[&str]) -> Result<Config, Error> {
    let mut layers = Layers::default();
    let small = ["steps=640", "n_envs=4", "threads=2", "hidden=[8]", "eval_episodes=3", "checkpoint_every=160"];
    small.iter().chain(more).for_each(|setting| layers.add_assignment(setting));
    layers.resolve(&remote(), algo)
}

/// Trains to the end, and returns the path of the oldest checkpoint.
fn train(config: &Config, dir: &Path, from: Option<&Path>) -> std::path::PathBuf {
    let layout = config.layout(&remote()).unwrap();
    let checkpoint = from.map(|path| Checkpoint::load(path, &layout).unwrap());
    if let Some(Checkpoint { collector, .. }) = &checkpoint {
        assert!(collector.steps() >= 20 && !collector.has_envs(), "new episodes draw new random numbers");
    }
    let begun = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.progress.env_steps);
    let mut training = match checkpoint {
        Some(checkpoint) => Training::builder(config, &remote()).checkpoint(checkpoint).build().unwrap(),
        None => Training::builder(config, &remote()).build().unwrap(),
    };
    let dir = RunDir::create(Some(dir), config, "cpu").unwrap();
    let outcome = training.run(&dir, &mut |_| ()).unwrap();
    assert_eq!((outcome.progress.env_steps, outcome.env_steps), (640, 640 - begun));
    assert_eq!(outcome.evaluation.unwrap().episodes, 3);
    checkpoint::list(&dir.checkpoints()).unwrap().remove(0)
}

#[test]
fn an_environment_that_blocks_is_trained_resumed_and_evaluated() {
    let ppo: &[&str] =
        &["ppo.n_steps=20", "ppo.batch_size=40", "ppo.n_epochs=2", "keep_checkpoints=9", "ppo.normalize_reward=true"];
    let a2c: &[&str] = &["a2c.n_steps=20", "keep_checkpoints=9", "a2c.normalize_reward=true"];
    let dqn: &[&str] = &[
        "dqn.learning_starts=100",
        "dqn.train_freq=80",
        "dqn.gradient_steps=5",
        "dqn.n_steps=3",
        "dqn.prioritized=true",
        "keep_checkpoints=9",
    ];
    for (algo, own) in [(Algo::PPO, ppo), (Algo::A2C, a2c), (Algo::DQN, dqn)] {
        for pipeline in ["pipeline=sync", "pipeline=overlapped"] {
            let config = config(algo, &[own, &[pipeline]].concat()).unwrap();
            let dir = tempfile::tempdir().unwrap();
            let oldest = train(&config, &dir.path().join("run"), None);
            train(&config, &dir.path().join("resumed"), Some(&oldest));

            let saved = checkpoint::policy(&dir.path().join("run"), false, &remote()).unwrap();
            for (max_steps, cut) in [(0, 0), (2, 70)] {
                let eval = EvalConfig { max_steps, ..EvalConfig::new(7) };
                let result = evaluate_policy(&*saved.policy, &saved.entry, 70, &eval, &Pool::new(1).unwrap()).unwrap().unwrap();
                assert_eq!((result.episodes, result.cut), (70, cut), "more episodes than environments");
                assert_eq!(result.return_mean, result.length_mean, "a reward of 1 a step");
            }
        }
    }
}

#[test]
fn an_evaluation_gives_up_on_an_environment_that_ends_no_episode() {
    let entry = Entry::blocking::<Remote<2, 3>>("broken", "CartPole behind a broken line");
    let dir = tempfile::tempdir().unwrap();
    let config = config(Algo::A2C, &["a2c.n_steps=20"]).unwrap();
    train(&config, dir.path(), None);
    let saved = checkpoint::policy(dir.path(), false, &remote()).unwrap();
    let error = evaluate_policy(&*saved.policy, &entry, 3, &EvalConfig::new(7), &Pool::new(1).unwrap()).unwrap_err();
    assert!(matches!(error, Error::EpisodesBroken { n: 100, .. }), "{error}");
    assert_eq!(error.exit_code(), 5);
}

#[test]
fn what_cannot_work_with_an_environment_that_blocks_is_refused_in_a_sentence() {
    let error = config(Algo::PPO, &["env.frame_stack=2"]).unwrap_err();
    let text = "remote blocks, and env.* puts wrappers only";
    assert!(error.exit_code() == 2 && error.to_string().contains(text), "{error}");
    let entry = remote();
    let errors = [entry.sync(1).err(), entry.slice(0..1).err(), entry.slices(1, 1, 1).err(), entry.check().err()];
    for error in errors {
        assert!(matches!(error, Some(rl_envs::Error::Blocking { name: "remote" })));
    }
}
