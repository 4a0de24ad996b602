//! An iteration of PPO on a device, whose instructions are counted.
#![allow(clippy::unwrap_used, reason = "tests")]

use rl_agents::{ActorCritic, Agent as _, NetConfig, Ppo, PpoConfig};
use rl_buffer::{Rollout, RolloutShape};
use rl_cuda::Device;
use rl_envs::{Env as _, Pool, cartpole::CartPole};

#[test]
#[ignore = "run by `cargo xtask ptx --counts`"]
fn with_64_environments() {
    let (device, pool) = (Device::for_tests().pop().unwrap(), Pool::new(1).unwrap());
    let (obs, actions) = (CartPole::default().observation_space(), CartPole::default().action_space());
    let shape = RolloutShape::new(32, 64, &obs, &actions);
    let config = PpoConfig { n_steps: 32, batch_size: 512, n_epochs: 4, ..PpoConfig::default() };
    let policy = ActorCritic::new(&obs, &actions, &NetConfig::default(), 3).unwrap();
    let mut ppo = Ppo::new(policy, config, 64, 5).unwrap().on_device(&device, shape).unwrap();
    let (mut envs, mut rollout) =
        (ppo.collector(rl_envs::catalog::find("cartpole").unwrap(), 1, None).unwrap(), Rollout::new(shape).unwrap());
    envs.collect(ppo.policy().weights().version, &mut rollout).unwrap();
    ppo.update(&rollout, 1.0, &pool).unwrap();
}
