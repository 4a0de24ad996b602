//! A custom algorithm: REINFORCE with a baseline (Williams, 1992).
//!
//! The loss is written in candle; the networks run on the tile kernel. `cargo run --release --example own_algorithm`.

use candle_core::{Device, Var};
use rl_agents::optim::{Optimizer, Rule};
use rl_agents::{
    ActorCritic, Agent, Collector, Counters, Error, Layout, Metrics, NetConfig, Policy, Snapshot, Targets, TensorBatch, evaluate,
};
use rl_buffer::Rollout;
use rl_envs::{Pool, SyncVecEnv, cartpole::CartPole};

struct Reinforce {
    policy: ActorCritic,
    optimizer: Optimizer,
}

impl Agent for Reinforce {
    fn policy(&self) -> &dyn Policy {
        &self.policy
    }

    fn layout(&self) -> &Layout {
        self.policy.layout()
    }

    /// Takes one step down the gradient of the loss.
    ///
    /// `-mean (R - V) ln pi(a|s) + mean (R - V)^2 / 2`, where R is the discounted return.
    fn update(&mut self, rollout: &Rollout, _remaining: f32, pool: &Pool) -> Result<Metrics, Error> {
        let targets = Targets::new(&self.policy, rollout, rollout.rewards(), 0.98, 1.0)?;
        let rows: Vec<u32> = (0..rollout.len() as u32).collect();
        let batch = TensorBatch::gather(&self.policy, rollout, &targets, &rows, &targets.advantages)?;
        let params = Var::from_slice(self.policy.params(), self.policy.params().len(), &Device::Cpu)?;
        let (outputs, values) = self.policy.forward_fused(&params, &batch.obs)?;
        let distributions = self.policy.distribution().of_batch(&params, &outputs, batch.masks.as_ref())?;
        let policy_loss = (distributions.log_prob(&batch.actions)? * batch.advantages)?.mean_all()?.neg()?;
        let value_loss = (values - batch.returns)?.sqr()?.mean_all()?;
        let loss = (policy_loss + (value_loss * 0.5)?)?;
        let gradients = loss.backward()?;
        let gradient = gradients.get(&params).expect("the loss depends on the parameters").to_vec1::<f32>()?;
        self.policy.change(|params| self.optimizer.step(params, &gradient, 5e-3, 0.5));
        self.policy.merge_obs(rollout, pool); // of use with `normalize_obs`
        let mut metrics = Metrics::default();
        metrics.push("train/loss", loss.to_scalar()?);
        Ok(metrics)
    }

    fn save(&self) -> Result<Snapshot, Error> {
        let policy = Snapshot::from(self.policy.weights());
        let counters = Counters { steps: self.optimizer.steps(), ..policy.counters };
        Ok(Snapshot { moments: self.optimizer.moments(), counters, ..policy })
    }

    fn load(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let mut optimizer = self.optimizer.clone();
        optimizer.load(&snapshot.moments, snapshot.counters.steps)?;
        self.policy.load(snapshot)?;
        self.optimizer = optimizer; // nothing changes where something does not fit
        Ok(())
    }
}

/// Mean return of 100 greedy episodes.
fn mean_return(policy: &dyn Policy) -> Result<f64, Error> {
    let episodes = evaluate(policy, &mut SyncVecEnv::new(100, CartPole::default()), 1)?;
    Ok(episodes.iter().map(|episode| episode.episode_return).sum::<f64>() / 100.0)
}

fn main() -> Result<(), Error> {
    let (pool, iterations) = (Pool::new(2)?, 200);
    let mut collector = Collector::new(16, &CartPole::default(), &pool, 0)?;
    let policy = ActorCritic::new(collector.observation_space(), collector.action_space(), &NetConfig::default(), 0)?;
    let optimizer = Optimizer::new(Rule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-5 }, policy.params().len());
    let mut agent = Reinforce { policy, optimizer };
    let mut rollout = collector.rollout(64)?;
    println!("before: mean return {:.1}", mean_return(agent.policy())?);
    for iteration in 0..iterations {
        let remaining = 1.0 - iteration as f32 / iterations as f32;
        collector.collect(agent.acting(remaining), &mut rollout)?;
        agent.update(&rollout, remaining, &pool)?;
    }
    println!("after {} env steps: mean return {:.1}", iterations * rollout.len(), mean_return(agent.policy())?);
    Ok(())
}
