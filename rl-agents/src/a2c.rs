//! Advantage actor-critic: the synchronous form of A3C (Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning",
//! 2016).
//!
//! Discrete actions. Short rollouts, one pass over each, the gradient of the policy without any clipping of ratios, RMSprop.
//! Settings, losses and metrics mean what they mean in Stable-Baselines3 (n-step returns as generalized advantages with lambda
//! 1, value loss without the factor 1/2). What differs from it: a rollout may be cut into minibatches, one step of the
//! optimizer each; truncated steps are bootstrapped from the final observation's value within the advantage.
//!
//! Read [`A2c::update`] first, then `loss`. `rl train cartpole --algo a2c` runs it.

use candle_core::Tensor;
use rl_buffer::Rollout;
use rl_envs::{Purpose, Rng};
use serde::{Deserialize, Serialize};

use crate::agent::Learner;
use crate::batch::{Batch, Targets};
use crate::distributions::Categorical;
use crate::optim::Rule;
use crate::{ActorCritic, Agent, Error, Metrics, Schedule, Snapshot};

/// What a user chooses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct A2cConfig {
    /// Steps T of a rollout.
    pub n_steps: usize,
    /// Samples of a minibatch; divides the rollout. 0 takes the whole rollout.
    pub batch_size: usize,
    /// Discount.
    pub gamma: f32,
    /// Lambda of generalized advantage estimation; 1 gives n-step returns.
    pub gae_lambda: f32,
    /// Whether advantages are normalized per minibatch.
    pub normalize_advantage: bool,
    /// Weight of the entropy.
    pub ent_coef: f32,
    /// Weight of the value loss.
    pub vf_coef: f32,
    /// The largest norm of a gradient.
    pub max_grad_norm: f32,
    /// Learning rate of RMSprop.
    pub learning_rate: Schedule,
}

impl Default for A2cConfig {
    fn default() -> Self {
        Self {
            n_steps: 5,
            batch_size: 0,
            gamma: 0.99,
            gae_lambda: 1.0,
            normalize_advantage: false,
            ent_coef: 0.0,
            vf_coef: 0.5,
            max_grad_norm: 0.5,
            learning_rate: Schedule::Constant(7e-4),
        }
    }
}

impl A2cConfig {
    /// Checks what concerns several settings at once.
    ///
    /// # Errors
    /// [`Error::BatchSize`] or [`Error::Setting`].
    pub fn check(&self, n_envs: usize) -> Result<(), Error> {
        let n_steps = self.n_steps;
        let rollout = n_steps * n_envs;
        let batch_size = self.samples(rollout);
        if rollout == 0 || !rollout.is_multiple_of(batch_size) {
            return Err(Error::BatchSize { batch_size, rollout, n_steps, n_envs });
        }
        if self.normalize_advantage && batch_size == 1 {
            let allowed = "normalize_advantage needs 2 samples at least";
            return Err(Error::Setting { name: "batch_size", value: "1".into(), allowed });
        }
        Ok(())
    }

    /// Samples of a minibatch of a rollout of so many.
    fn samples(&self, rollout: usize) -> usize {
        if self.batch_size == 0 { rollout } else { self.batch_size }
    }
}

/// The agent.
pub struct A2c {
    learner: Learner,
    config: A2cConfig,
}

/// The loss of a minibatch and its parts, all scalars.
struct Loss {
    total: Tensor,
    policy: Tensor,
    value: Tensor,
    entropy: Tensor,
}

/// `L = L_policy + ent_coef L_entropy + vf_coef L_value` with `L_policy = -mean A ln pi(a|s)`, `L_entropy = -mean H`,
/// `L_value = mean (R - V)^2`.
fn loss(policy: &ActorCritic, params: &Tensor, batch: &Batch, config: &A2cConfig) -> candle_core::Result<Loss> {
    let (logits, values) = policy.forward(params, &batch.obs)?;
    let distribution = Categorical::new(&logits, batch.masks.as_ref())?;
    let policy_loss = (distribution.log_prob(&batch.actions)? * &batch.advantages)?.mean_all()?.neg()?;
    let value_loss = candle_nn::loss::mse(&values, &batch.returns)?;
    let entropy_loss = distribution.entropy()?.mean_all()?.neg()?;
    let total = ((&policy_loss + (&entropy_loss * f64::from(config.ent_coef))?)? + (&value_loss * f64::from(config.vf_coef))?)?;
    Ok(Loss { total, policy: policy_loss, value: value_loss, entropy: entropy_loss })
}

impl A2c {
    /// Makes an agent of a policy, for rollouts of `n_envs` environments. `seed` decides the order of samples.
    ///
    /// # Errors
    /// Those of [`A2cConfig::check`].
    pub fn new(policy: ActorCritic, config: A2cConfig, n_envs: usize, seed: u64) -> Result<Self, Error> {
        config.check(n_envs)?;
        let rule = Rule::RmsProp { alpha: 0.99, epsilon: 1e-5 };
        Ok(Self { learner: Learner::new(policy, rule, seed), config })
    }
}

impl Agent for A2c {
    fn policy(&self) -> &ActorCritic {
        &self.learner.policy
    }

    fn update(&mut self, rollout: &Rollout, remaining: f32) -> Result<Metrics, Error> {
        let Self { learner, config } = self;
        let learning_rate = config.learning_rate.at(remaining);
        let targets = Targets::new(&learner.policy, rollout, config.gamma, config.gae_lambda)?;
        let n_samples = rollout.values.len();
        let batch_size = config.samples(n_samples);
        let mut rows: Vec<u32> = (0..n_samples as u32).collect();
        if batch_size < n_samples {
            Rng::new(learner.seed, 0, learner.epochs, Purpose::Shuffle).shuffle(&mut rows);
        }
        learner.epochs += 1;

        let (mut n, mut total, mut policy, mut value, mut entropy, mut grad_norm) = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
        for rows in rows.chunks_exact(batch_size) {
            let mut batch = Batch::gather(&learner.policy, rollout, &targets, rows)?;
            if config.normalize_advantage {
                batch.normalize_advantages()?;
            }
            let params = learner.variable()?;
            let loss = loss(&learner.policy, &params, &batch, config)?;
            n += 1.0;
            total += loss.total.to_scalar::<f32>()?;
            policy += loss.policy.to_scalar::<f32>()?;
            value += loss.value.to_scalar::<f32>()?;
            entropy += loss.entropy.to_scalar::<f32>()?;
            grad_norm += learner.descend(&params, &loss.total, learning_rate, config.max_grad_norm)?;
        }

        let mut metrics = Metrics::default();
        metrics.push("train/loss", total / n);
        metrics.push("train/policy_loss", policy / n);
        metrics.push("train/value_loss", value / n);
        metrics.push("train/entropy_loss", entropy / n);
        metrics.push("train/grad_norm", grad_norm / n);
        metrics.push("train/explained_variance", targets.explained_variance(rollout));
        metrics.push("train/learning_rate", learning_rate);
        metrics.push("train/n_updates", learner.optimizer.steps().0 as f32);
        Ok(metrics)
    }

    fn save(&self) -> Snapshot {
        self.learner.save()
    }

    fn load(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        self.learner.load(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::fixture;

    #[test]
    fn the_gradient_of_the_loss_equals_finite_differences() {
        let config = A2cConfig { ent_coef: 0.1, ..A2cConfig::default() };
        fixture::check_gradient(|policy, params, batch| loss(policy, params, batch, &config).unwrap().total);
    }

    #[test]
    fn minibatches_take_a_step_each() {
        for (batch_size, updates) in [(0, 1.0), (32, 1.0), (8, 4.0)] {
            let (policy, rollout, _) = fixture::rollout();
            let config = A2cConfig { n_steps: 8, batch_size, ..A2cConfig::default() };
            let mut agent = A2c::new(policy, config, 4, 0).unwrap();
            assert_eq!(agent.update(&rollout, 1.0).unwrap().get("train/n_updates"), Some(updates));
        }
        assert!(matches!(A2cConfig { batch_size: 3, ..A2cConfig::default() }.check(8), Err(Error::BatchSize { .. })));
    }
}
