//! An algorithm: REINFORCE with a baseline (Williams, 1992).

use candle_core::{Device, Tensor, Var};
use candle_nn::ops::log_softmax;
use rl_agents::optim::{Optimizer, Rule};
use rl_agents::settings::Kind;
use rl_agents::{Agent, Counters, Error, Layout, Metrics, NetConfig, Policy, Schedule, Snapshot, Targets};
use rl_buffer::Rollout;
use rl_envs::{ActionSpace, Actions, Pool, Spaces};
use rl_runtime::algo::{Algorithm, Build, Built, Concern, Traits};

use crate::net::Net;

rl_agents::settings! {
    /// Settings of REINFORCE.
    pub struct ReinforceConfig, "reinforce." {
        /// Steps of a rollout.
        n_steps: usize = 16, Kind::Int(1, 1 << 20);
        /// Discount of future rewards.
        gamma: f32 = 0.98, Kind::Float(0.0, 1.0);
        /// Learning rate of Adam.
        learning_rate: Schedule = Schedule::Constant(1e-2), Kind::Schedule(0.0, 1.0), resumable;
    }
}

const RULE: Rule = Rule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-5 };

pub struct Reinforce {
    net: Net,
    optimizer: Optimizer,
    config: ReinforceConfig,
}

impl Reinforce {
    pub fn new(net: Net, config: ReinforceConfig) -> Self {
        let optimizer = Optimizer::new(RULE, net.params.len());
        Self { net, optimizer, config }
    }
}

/// The answers to what the program asks before it trains.
impl Algorithm for ReinforceConfig {
    fn traits(&self, n_envs: usize) -> Traits {
        let (n_steps, learning_rate) = (self.n_steps, self.learning_rate);
        Traits {
            n_steps,
            minibatch: n_steps * n_envs,
            steps: Some(1),
            learning_rate,
            moments: RULE.n_moments(),
            ..Traits::default()
        }
    }

    fn check(&self, _: usize) -> Option<Concern> {
        None
    }

    fn fits(&self, env: &str, Spaces { obs, actions }: &Spaces, _: &NetConfig) -> Option<Concern> {
        let fits = obs.len() == 1 && matches!(actions, ActionSpace::Discrete { n: 2, masked: false });
        (!fits).then(|| (vec![], format!("reinforce observes one number and chooses one of two actions, unlike {env}")))
    }

    fn layout(&self, build: &Build<'_>) -> Result<Layout, rl_runtime::Error> {
        Ok(Net::new(build.seed).layout)
    }

    fn policy(&self, build: &Build<'_>, snapshot: &Snapshot, _: f32) -> Result<Box<dyn Policy>, rl_runtime::Error> {
        let mut net = Net::new(build.seed);
        net.load(snapshot)?;
        Ok(Box::new(net))
    }

    fn agent(&self, build: &Build<'_>) -> Result<Built, rl_runtime::Error> {
        if build.device.is_some() {
            return Err(rl_runtime::Error::config("reinforce learns on the CPU; use device = cpu"));
        }
        Ok((Box::new(Reinforce::new(Net::new(build.seed), self.clone())), None))
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
    fn update(&mut self, rollout: &Rollout, remaining: f32, _pool: &Pool) -> Result<Metrics, Error> {
        let Self { net, optimizer, config } = self;
        let targets = Targets::new(net, rollout, rollout.rewards(), config.gamma, 1.0)?;
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
        optimizer.step(&mut net.params, &gradient, config.learning_rate.at(remaining), 0.5);
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
        let mut optimizer = self.optimizer.clone();
        optimizer.load(&snapshot.moments, snapshot.counters.steps)?;
        self.net.load(snapshot)?;
        self.optimizer = optimizer; // nothing changes where something does not fit
        Ok(())
    }
}
