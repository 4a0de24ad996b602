//! An algorithm: REINFORCE with a baseline (Williams, 1992).

use candle_core::{Device, Tensor, Var};
use candle_nn::ops::log_softmax;
use rl_agents::optim::{Optimizer, Rule};
use rl_agents::{Agent, Counters, Error, Layout, Metrics, Policy, Snapshot, Targets};
use rl_buffer::Rollout;
use rl_envs::{Actions, Pool};

use crate::net::Net;

pub struct Reinforce {
    net: Net,
    optimizer: Optimizer,
}

impl Reinforce {
    pub fn new(net: Net) -> Self {
        let optimizer = Optimizer::new(Rule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-5 }, net.params.len());
        Self { net, optimizer }
    }
}

impl Agent for Reinforce {
    fn policy(&self) -> &dyn Policy {
        &self.net
    }

    fn layout(&self) -> &Layout {
        &self.net.layout
    }

    /// Takes one step down `-mean (R - V) ln pi(a|s) + mean (R - V)^2 / 2`.
    fn update(&mut self, rollout: &Rollout, _remaining: f32, _pool: &Pool) -> Result<Metrics, Error> {
        let Self { net, optimizer } = self;
        let targets = Targets::new(net, rollout, rollout.rewards(), 0.98, 1.0)?;
        let b = targets.advantages.len();
        let Actions::Discrete(actions) = rollout.actions() else { return Err(Error::ActionKind) };
        let actions = Tensor::from_iter(actions.iter().copied(), &Device::Cpu)?;
        let params = Var::from_slice(&net.params, net.params.len(), &Device::Cpu)?;
        let (logits, values) = net.forward(&params, rollout.obs_rows(0..b))?;
        let log_probs = log_softmax(&logits, 1)?.gather(&actions.unsqueeze(1)?, 1)?.squeeze(1)?;
        let policy_loss = (log_probs * Tensor::from_slice(&targets.advantages, b, &Device::Cpu)?)?.mean_all()?.neg()?;
        let value_loss = (values - Tensor::from_slice(&targets.returns, b, &Device::Cpu)?)?.sqr()?.mean_all()?;
        let loss = (policy_loss + (value_loss * 0.5)?)?;
        let gradients = loss.backward()?;
        let gradient = gradients.get(&params).expect("the loss depends on the parameters").to_vec1::<f32>()?;
        optimizer.step(&mut net.params, &gradient, 1e-2, 0.5);
        net.version += 1;
        let mut metrics = Metrics::default();
        metrics.push("train/loss", loss.to_scalar()?);
        Ok(metrics)
    }

    fn save(&self) -> Result<Snapshot, Error> {
        let net = Snapshot::from(self.net.weights());
        let counters = Counters { steps: self.optimizer.steps(), ..net.counters };
        Ok(Snapshot { moments: self.optimizer.moments(), counters, ..net })
    }

    fn load(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        if snapshot.params.len() != self.net.params.len() {
            return Err(Error::Snapshot("its parameters are another network's".into()));
        }
        self.optimizer.load(&snapshot.moments, snapshot.counters.steps)?;
        self.net.params.clone_from(&snapshot.params);
        self.net.version = snapshot.counters.version;
        Ok(())
    }
}
