//! Collecting and evaluating with environments that misbehave.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::ops::ControlFlow;

use rl_agents::{ActorCritic, EvalConfig, NetConfig, evaluate, evaluate_with};
use rl_envs::{Action, ActionSpace, Env, Error, Rng, Space, Step, SyncVecEnv, VecEnv};

/// A walk on a line that pays 1 for every step right and ends at x = 3, if ever. Observed is x - 10, which keeps its sign.
#[derive(Clone, Debug, Default)]
struct Walk {
    x: f32,
}

impl Env for Walk {
    type Obs = f32;
    type State = f32;

    fn observation_space(&self) -> Space {
        Space::vector(&[f32::MIN], &[-6.0])
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Discrete { n: 2, masked: false }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) {
        self.x = -(rng.below(3) as f32);
        obs[0] = self.x - 10.0;
    }

    fn step(&mut self, action: Action<'_>, _rng: &mut Rng, obs: &mut [f32]) -> Step {
        let right = action.discrete() == 1;
        self.x += if right { 1.0 } else { -1.0 };
        obs[0] = self.x - 10.0;
        Step { reward: right.into(), terminated: self.x >= 3.0, truncated: false }
    }

    fn state(&self) -> Option<f32> {
        Some(self.x)
    }

    fn set_state(&mut self, state: f32) -> Result<(), Error> {
        self.x = state;
        Ok(())
    }
}

/// A policy for `env` that prefers `action` wherever it is.
fn policy(env: &impl Env, action: usize) -> ActorCritic {
    let net = NetConfig { hidden: vec![4], ..NetConfig::default() };
    let (space, actions) = (env.observation_space(), env.action_space());
    // Initial policies hardly prefer anything, so one of the first seeds prefers `action` everywhere near.
    (0..100)
        .map(|seed| ActorCritic::new(&space, &actions, &net, seed).unwrap())
        .find(|policy| {
            let mut envs = SyncVecEnv::new(8, env.clone());
            let config = EvalConfig { max_steps: 8, ..EvalConfig::new(0) };
            let played = evaluate_with(policy, &mut envs, &config, &mut |_, _| ControlFlow::Continue(())).unwrap();
            if action == 0 { played.cut == 8 } else { played.cut == 0 }
        })
        .unwrap()
}

fn go_on(_: &dyn VecEnv, _: &[rl_agents::Episode]) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn an_evaluation_cuts_episodes_that_do_not_end_and_counts_them() {
    let env = Walk::default();
    let (left, right) = (policy(&env, 0), policy(&env, 1));
    let config = EvalConfig { max_steps: 20, ..EvalConfig::new(3) };
    let played = evaluate_with(&left, &mut SyncVecEnv::new(5, env.clone()), &config, &mut go_on).unwrap();
    assert_eq!(played.cut, 5);
    assert!(played.episodes.iter().all(|episode| episode.length == 20));
    let played = evaluate_with(&right, &mut SyncVecEnv::new(5, env.clone()), &config, &mut go_on).unwrap();
    assert_eq!(played.cut, 0);
    assert!(played.episodes.iter().all(|episode| (3..=5).contains(&episode.length)));
    // Without a limit given there is one all the same.
    let episodes = evaluate(&left, &mut SyncVecEnv::new(1, env), 3).unwrap();
    assert_eq!(episodes[0].length, rl_agents::collect::MAX_EVAL_STEPS);
}

#[test]
fn an_episode_that_ends_at_the_limit_is_not_cut() {
    let env = Walk::default();
    let right = policy(&env, 1);
    let play = |max_steps| {
        let config = EvalConfig { max_steps, ..EvalConfig::new(3) };
        evaluate_with(&right, &mut SyncVecEnv::new(1, env.clone()), &config, &mut go_on).unwrap()
    };
    let length = play(0).episodes[0].length;
    assert_eq!((play(length).cut, play(length - 1).cut), (0, 1));
}

#[test]
fn stochastic_episodes_are_sampled_and_do_not_depend_on_slices() {
    let env = Walk::default();
    let right = policy(&env, 1);
    let play = |envs: &mut dyn VecEnv, seed, stochastic| {
        let config = EvalConfig { stochastic, max_steps: 50, ..EvalConfig::new(seed) };
        evaluate_with(&right, envs, &config, &mut go_on).unwrap().episodes
    };
    let whole = play(&mut SyncVecEnv::new(9, env.clone()), 3, true);
    let slices = [0..4, 4..9].map(|range| play(&mut SyncVecEnv::slice(range, env.clone()), 3, true));
    assert_eq!(whole, slices.concat());
    assert_ne!(whole, play(&mut SyncVecEnv::new(9, env.clone()), 3, false));
    assert_ne!(whole, play(&mut SyncVecEnv::new(9, env.clone()), 4, true));
}

#[test]
fn an_evaluation_can_be_broken_off_before_any_step() {
    let env = Walk::default();
    let left = policy(&env, 0);
    let mut steps = 0;
    let mut three = |_: &dyn VecEnv, _: &[rl_agents::Episode]| {
        steps += 1;
        if steps > 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let played = evaluate_with(&left, &mut SyncVecEnv::new(2, env), &EvalConfig::new(0), &mut three).unwrap();
    assert_eq!(played.episodes.iter().map(|episode| episode.length).collect::<Vec<_>>(), [3, 3]);
}
