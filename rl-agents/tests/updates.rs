//! Updates of PPO and A2C against those of Stable-Baselines3.
//!
//! `golden/updates.py` recorded Stable-Baselines3's rollouts, and its parameters after each update.
#![allow(clippy::unwrap_used, reason = "tests")]

use rl_agents::{A2c, A2cConfig, ActorCritic, Agent, LearnerKind, NetConfig, Ppo, PpoConfig, Schedule};
use rl_buffer::{ObsSlice, Rollout, RolloutShape};
use rl_envs::{ActionSpace, Actions, Obs, Pool, Space};
use serde_json::Value;

const N_ENVS: usize = 3;
const N_STEPS: usize = 16;
const OBS_LEN: usize = 5;

fn floats(value: &Value) -> Vec<f32> {
    match value {
        Value::Array(values) => values.iter().flat_map(floats).collect(),
        value => vec![value.as_f64().unwrap() as f32],
    }
}

/// Converts recorded parameters to the policy's layout.
///
/// PyTorch's weights are (outputs, inputs).
fn params(policy: &ActorCritic, theirs: &Value) -> Vec<f32> {
    let names = [("actor", "mlp_extractor.policy_net", "action_net"), ("critic", "mlp_extractor.value_net", "value_net")];
    let mut params = vec![0.0; policy.layout().len()];
    for tensor in policy.layout().tensors() {
        let (head, hidden, last) = names.into_iter().find(|(head, ..)| tensor.name.starts_with(head)).unwrap();
        let (layer, kind) = tensor.name[head.len() + 1..].split_once('.').unwrap();
        let name = if layer == "2" {
            format!("{last}.{kind}")
        } else {
            format!("{hidden}.{}.{kind}", 2 * layer.parse::<usize>().unwrap())
        };
        let (values, to) = (floats(&theirs[&*name]), &mut params[tensor.range.clone()]);
        match tensor.shape[..] {
            [inputs, outputs] => to.iter_mut().enumerate().for_each(|(i, x)| *x = values[i % outputs * inputs + i / outputs]),
            _ => to.copy_from_slice(&values),
        }
    }
    params
}

/// Fills a rollout with a recorded one.
fn fill(rollout: &mut Rollout, iteration: &Value, version: u64) {
    rollout.clear();
    rollout.policy_version_mut().fill(version);
    let steps = iteration["steps"].as_array().unwrap();
    for (t, step) in steps.iter().enumerate() {
        let mut columns = rollout.columns();
        let Obs::F32(obs) = columns.start(t).0 else { panic!("f32") };
        obs.copy_from_slice(&floats(&step["obs"]));
        let (_, _, (Actions::Discrete(actions), log_probs, values)) = columns.act(t) else { panic!("discrete") };
        actions.iter_mut().zip(floats(&step["actions"])).for_each(|(to, action)| *to = action as u32);
        log_probs.copy_from_slice(&floats(&step["log_probs"]));
        values.copy_from_slice(&floats(&step["values"]));
        let to = columns.step(t);
        to.rewards.copy_from_slice(&floats(&step["rewards"]));
        to.terminated.fill(0);
        to.truncated.fill(0);
        for end in step["ends"].as_array().unwrap() {
            let (n, truncated) = (end[0].as_u64().unwrap() as usize, end[1].as_bool().unwrap());
            let mut columns = rollout.columns();
            let to = columns.step(t);
            (to.terminated[n], to.truncated[n]) = (u8::from(!truncated), u8::from(truncated));
            rollout.push_final(t, n, ObsSlice::F32(&floats(&end[2])), &[], &[]);
        }
    }
    let mut columns = rollout.columns();
    let Obs::F32(obs) = columns.start(N_STEPS).0 else { panic!("f32") };
    obs.copy_from_slice(&floats(&iteration["last_obs"]));
    columns.last_values.row_mut(0).iter_mut().zip(floats(&iteration["last_values"])).for_each(|(to, value)| *to = value);
}

fn follows(run: &str, agent: impl Fn(ActorCritic) -> Box<dyn Agent>) {
    let runs: Value = serde_json::from_str(include_str!("golden/updates.json")).unwrap();
    let (obs, actions) = (Space::vector(&[-1.0; OBS_LEN], &[1.0; OBS_LEN]), ActionSpace::Discrete { n: 3, masked: false });
    let (run, pool) = (&runs[run], Pool::new(1).unwrap());
    for learner in [LearnerKind::Fused, LearnerKind::Reference] {
        let net = NetConfig { hidden: vec![8, 8], learner, ..NetConfig::default() };
        let mut policy = ActorCritic::unset(&obs, &actions, &net).unwrap();
        policy.set_params(&params(&policy, &run["params"]), 0).unwrap();
        let names = policy.clone();
        let mut agent = agent(policy);
        let mut rollout = Rollout::new(RolloutShape::new(N_STEPS, N_ENVS, &obs, &actions)).unwrap();
        for iteration in run["iterations"].as_array().unwrap() {
            let before = agent.policy().weights().params.into_owned();
            fill(&mut rollout, iteration, agent.policy().weights().version);
            agent.update(&rollout, 1.0, &pool).unwrap();
            let (after, expected) = (agent.policy().weights().params.into_owned(), params(&names, &iteration["params"]));
            let distance = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
            let (moved, off) = (distance(&before, &expected), distance(&after, &expected));
            assert!(moved > 0.05 && off < 1e-4 * moved, "{learner:?}: {off} beside a step of {moved}");
        }
    }
}

#[test]
fn ppo_takes_the_steps_of_stable_baselines3() {
    let base = PpoConfig { n_steps: N_STEPS, batch_size: N_STEPS * N_ENVS, n_epochs: 4, ..PpoConfig::default() };
    let base = PpoConfig { learning_rate: Schedule::Constant(0.01), ..base };
    let of = |config: PpoConfig| move |policy| Box::new(Ppo::new(policy, config.clone(), N_ENVS, 1).unwrap()) as Box<dyn Agent>;
    follows("ppo", of(PpoConfig { ent_coef: 0.02, clip_range: Schedule::Constant(0.1), ..base.clone() }));
    follows("ppo_clipped_values", of(PpoConfig { clip_range_vf: 0.1, gae_lambda: 0.8, gamma: 0.9, ..base }));
}

#[test]
fn a2c_takes_the_steps_of_stable_baselines3() {
    let base = A2cConfig { n_steps: N_STEPS, learning_rate: Schedule::Constant(0.01), ..A2cConfig::default() };
    let of = |config: A2cConfig| move |policy| Box::new(A2c::new(policy, config.clone(), N_ENVS, 1).unwrap()) as Box<dyn Agent>;
    follows("a2c", of(A2cConfig { ent_coef: 0.02, ..base.clone() }));
    follows("a2c_normalized", of(A2cConfig { normalize_advantage: true, gae_lambda: 0.9, ..base }));
}
