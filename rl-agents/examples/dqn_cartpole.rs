//! DQN learns CartPole from the library.
//!
//! `cargo run --release --example dqn_cartpole`

use rl_agents::{Agent, Collector, Dqn, DqnConfig, Error, NetConfig, Policy, QNetwork, Schedule, evaluate};
use rl_envs::{Pool, SyncVecEnv, cartpole::CartPole};

/// Mean return of 100 greedy episodes.
fn mean_return(policy: &dyn Policy) -> Result<f64, Error> {
    let episodes = evaluate(policy, &mut SyncVecEnv::new(100, CartPole::default()), 1)?;
    Ok(episodes.iter().map(|episode| episode.episode_return).sum::<f64>() / 100.0)
}

fn main() -> Result<(), Error> {
    let (n_envs, seed, steps) = (8, 0, 30_000);
    let config = DqnConfig {
        batch_size: 128,
        train_freq: 64,
        gradient_steps: 16,
        target_update_interval: 64,
        tau: 0.05,
        n_steps: 8,
        dueling: true,
        learning_rate: Schedule::Linear(2e-3),
        ..DqnConfig::default()
    };
    let pool = Pool::all_cores()?;
    let mut collector = Collector::new(n_envs, &CartPole::default(), &pool, seed)?;
    let (obs, actions) = (collector.observation_space().clone(), collector.action_space().clone());
    let network = QNetwork::new(&obs, &actions, &NetConfig::default(), config.dueling, seed)?;
    let mut rollout = collector.rollout(config.rollout_steps(n_envs))?;
    let mut agent = Dqn::new(network, config, &obs, &actions, n_envs, seed)?;

    println!("before: mean return {:.1}", mean_return(agent.policy())?);
    for env_steps in (0..steps).step_by(rollout.len()) {
        let remaining = 1.0 - env_steps as f32 / steps as f32;
        collector.collect(agent.acting(remaining), &mut rollout)?;
        agent.update(&rollout, remaining, &pool)?;
    }
    println!("after {steps} env steps: mean return {:.1}", mean_return(agent.policy())?);
    Ok(())
}
