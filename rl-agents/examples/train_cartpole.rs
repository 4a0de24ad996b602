//! PPO learns CartPole: `cargo run --release --example train_cartpole`.

use rl_agents::{ActorCritic, Agent, Collector, Error, NetConfig, Ppo, PpoConfig, Schedule, evaluate};
use rl_envs::{Pool, SyncVecEnv, cartpole::CartPole};

fn main() -> Result<(), Error> {
    let (n_envs, seed, iterations) = (8, 0, 200);
    let config = PpoConfig {
        n_steps: 32,
        batch_size: 256,
        n_epochs: 20,
        gamma: 0.98,
        gae_lambda: 0.8,
        learning_rate: Schedule::Linear(0.001),
        clip_range: Schedule::Linear(0.2),
        ..PpoConfig::default()
    };
    let pool = Pool::all_cores()?;
    let mut collector = Collector::new(n_envs, &CartPole::default(), &pool, seed)?;
    let policy = ActorCritic::new(collector.observation_space(), collector.action_space(), &NetConfig::default(), seed)?;
    let mut rollout = collector.rollout(config.n_steps)?;
    let mut agent = Ppo::new(policy, config, n_envs, seed)?;

    let mut episodes = Vec::new();
    for iteration in 0..iterations {
        let remaining = 1.0 - iteration as f32 / iterations as f32;
        episodes.extend(collector.collect(agent.acting(remaining), &mut rollout)?);
        let metrics = agent.update(&rollout, remaining, &pool)?;
        if iteration % 20 == 19 {
            let mean = episodes.iter().map(|e| e.episode_return).sum::<f64>() / episodes.len() as f64;
            episodes.clear();
            let kl = metrics.get("train/approx_kl").unwrap_or(f32::NAN);
            println!("{:>6} env steps: mean return {mean:>5.1}, KL {kl:.4}", (iteration + 1) * rollout.len());
        }
    }

    let episodes = evaluate(agent.policy(), &mut SyncVecEnv::new(100, CartPole::default()), seed + 1)?;
    let mean = episodes.iter().map(|e| e.episode_return).sum::<f64>() / episodes.len() as f64;
    println!("100 greedy episodes: mean return {mean:.1}");
    Ok(())
}
