//! Proximal policy optimization (Schulman et al., "Proximal Policy Optimization Algorithms", 2017).
//!
//! Discrete actions. With the details of Huang et al. ("The 37 Implementation Details of PPO", 2022) that apply: orthogonal
//! initialisation, Adam with epsilon 1e-5, advantages normalized per minibatch, clipping of the gradient's norm, learning rate
//! and clip range that may fall linearly, optional clipping of values, optional stop at a KL divergence.
//! Settings, losses and metrics mean what they mean in Stable-Baselines3 (value loss without the factor 1/2; clipped values
//! replace the others, there is no maximum of both losses). What differs from it: truncated steps are bootstrapped from the
//! final observation's value within the advantage, not by a change of the reward.
//!
//! Read [`Ppo::update`] first, then `loss`. The example `train_cartpole` runs it.

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
pub struct PpoConfig {
    /// Steps T of a rollout.
    pub n_steps: usize,
    /// Samples of a minibatch; divides the rollout.
    pub batch_size: usize,
    /// Passes over a rollout.
    pub n_epochs: usize,
    /// Discount.
    pub gamma: f32,
    /// Lambda of generalized advantage estimation.
    pub gae_lambda: f32,
    /// How far the ratio of probabilities may leave 1.
    pub clip_range: Schedule,
    /// How far values may leave the old ones; 0 switches it off.
    pub clip_range_vf: f32,
    /// Whether advantages are normalized per minibatch.
    pub normalize_advantage: bool,
    /// Weight of the entropy.
    pub ent_coef: f32,
    /// Weight of the value loss.
    pub vf_coef: f32,
    /// The largest norm of a gradient.
    pub max_grad_norm: f32,
    /// Learning rate of Adam.
    pub learning_rate: Schedule,
    /// An update stops when the approximate KL divergence exceeds 1.5 times this; 0 switches it off.
    pub target_kl: f32,
}

impl Default for PpoConfig {
    fn default() -> Self {
        Self {
            n_steps: 2048,
            batch_size: 64,
            n_epochs: 10,
            gamma: 0.99,
            gae_lambda: 0.95,
            clip_range: Schedule::Constant(0.2),
            clip_range_vf: 0.0,
            normalize_advantage: true,
            ent_coef: 0.0,
            vf_coef: 0.5,
            max_grad_norm: 0.5,
            learning_rate: Schedule::Constant(3e-4),
            target_kl: 0.0,
        }
    }
}

impl PpoConfig {
    /// Checks what concerns several settings at once.
    ///
    /// # Errors
    /// [`Error::BatchSize`] or [`Error::Setting`].
    pub fn check(&self, n_envs: usize) -> Result<(), Error> {
        let (n_steps, batch_size) = (self.n_steps, self.batch_size);
        let rollout = n_steps * n_envs;
        if batch_size == 0 || rollout == 0 || !rollout.is_multiple_of(batch_size) {
            return Err(Error::BatchSize { batch_size, rollout, n_steps, n_envs });
        }
        if self.normalize_advantage && batch_size == 1 {
            let allowed = "normalize_advantage needs 2 samples at least";
            return Err(Error::Setting { name: "batch_size", value: "1".into(), allowed });
        }
        Ok(())
    }
}

/// The agent.
pub struct Ppo {
    learner: Learner,
    config: PpoConfig,
}

/// The loss of a minibatch and its parts, all scalars but for the ratio.
struct Loss {
    total: Tensor,
    policy: Tensor,
    value: Tensor,
    entropy: Tensor,
    ratio: Tensor, // (B), without gradient
}

/// `L = L_policy + ent_coef L_entropy + vf_coef L_value` (eq. 9 with the signs of a loss), with
/// `L_policy = -mean min(r A, clip(r, 1 - c, 1 + c) A)` (eq. 7), `r = pi(a|s) / pi_old(a|s)`, `L_entropy = -mean H`,
/// `L_value = mean (R - V)^2`.
fn loss(policy: &ActorCritic, params: &Tensor, batch: &Batch, config: &PpoConfig, clip: f64) -> candle_core::Result<Loss> {
    let (logits, values) = policy.forward(params, &batch.obs)?;
    let distribution = Categorical::new(&logits, batch.masks.as_ref())?;
    let ratio = (distribution.log_prob(&batch.actions)? - &batch.log_probs)?.exp()?;
    let unclipped = (&ratio * &batch.advantages)?;
    let clipped = (ratio.clamp(1.0 - clip, 1.0 + clip)? * &batch.advantages)?;
    let policy_loss = unclipped.minimum(&clipped)?.mean_all()?.neg()?;

    let clip_vf = f64::from(config.clip_range_vf);
    let values = if clip_vf > 0.0 { (&batch.values + (values - &batch.values)?.clamp(-clip_vf, clip_vf)?)? } else { values };
    let value_loss = candle_nn::loss::mse(&values, &batch.returns)?;
    let entropy_loss = distribution.entropy()?.mean_all()?.neg()?;
    let total = ((&policy_loss + (&entropy_loss * f64::from(config.ent_coef))?)? + (&value_loss * f64::from(config.vf_coef))?)?;
    Ok(Loss { total, policy: policy_loss, value: value_loss, entropy: entropy_loss, ratio: ratio.detach() })
}

/// How far the new policy is from the old: the KL divergence (Schulman's estimator `mean r - 1 - ln r`) and the share of
/// clipped samples.
fn divergence(ratio: &[f32], clip: f32) -> (f32, f32) {
    let n = ratio.len() as f32;
    let kl: f32 = ratio.iter().map(|r| (r - 1.0) - r.ln()).sum();
    let clipped = ratio.iter().filter(|r| (*r - 1.0).abs() > clip).count();
    (kl / n, clipped as f32 / n)
}

impl Ppo {
    /// Makes an agent of a policy, for rollouts of `n_envs` environments. `seed` decides the order of samples.
    ///
    /// # Errors
    /// Those of [`PpoConfig::check`].
    pub fn new(policy: ActorCritic, config: PpoConfig, n_envs: usize, seed: u64) -> Result<Self, Error> {
        config.check(n_envs)?;
        let rule = Rule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-5 };
        Ok(Self { learner: Learner::new(policy, rule, seed), config })
    }
}

impl Agent for Ppo {
    fn policy(&self) -> &ActorCritic {
        &self.learner.policy
    }

    fn update(&mut self, rollout: &Rollout, remaining: f32) -> Result<Metrics, Error> {
        let Self { learner, config } = self;
        let clip = config.clip_range.at(remaining);
        let learning_rate = config.learning_rate.at(remaining);
        let targets = Targets::new(&learner.policy, rollout, config.gamma, config.gae_lambda)?;
        let n_samples = rollout.values.len();
        let mut rows: Vec<u32> = (0..n_samples as u32).collect();
        let mut sums = Sums::default();

        'epochs: for _ in 0..config.n_epochs {
            Rng::new(learner.seed, 0, learner.epochs, Purpose::Shuffle).shuffle(&mut rows);
            learner.epochs += 1;
            for rows in rows.chunks_exact(config.batch_size) {
                let mut batch = Batch::gather(&learner.policy, rollout, &targets, rows)?;
                if config.normalize_advantage {
                    batch.normalize_advantages()?;
                }
                let params = learner.variable()?;
                let loss = loss(&learner.policy, &params, &batch, config, f64::from(clip))?;
                let (kl, clip_fraction) = divergence(&loss.ratio.to_vec1::<f32>()?, clip);
                sums.add(&loss, kl, clip_fraction)?;
                if config.target_kl > 0.0 && kl > 1.5 * config.target_kl {
                    break 'epochs;
                }
                sums.grad_norm += learner.descend(&params, &loss.total, learning_rate, config.max_grad_norm)?;
            }
        }

        let mut metrics = sums.metrics();
        metrics.push("train/explained_variance", targets.explained_variance(rollout));
        metrics.push("train/learning_rate", learning_rate);
        metrics.push("train/clip_range", clip);
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

/// Sums over the minibatches of an update.
#[derive(Default)]
struct Sums {
    n: f32,
    total: f32,
    policy: f32,
    value: f32,
    entropy: f32,
    kl: f32,
    clip_fraction: f32,
    grad_norm: f32,
}

impl Sums {
    fn add(&mut self, loss: &Loss, kl: f32, clip_fraction: f32) -> candle_core::Result<()> {
        self.n += 1.0;
        self.total += loss.total.to_scalar::<f32>()?;
        self.policy += loss.policy.to_scalar::<f32>()?;
        self.value += loss.value.to_scalar::<f32>()?;
        self.entropy += loss.entropy.to_scalar::<f32>()?;
        self.kl += kl;
        self.clip_fraction += clip_fraction;
        Ok(())
    }

    /// Means over the minibatches.
    fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::default();
        metrics.push("train/loss", self.total / self.n);
        metrics.push("train/policy_gradient_loss", self.policy / self.n);
        metrics.push("train/value_loss", self.value / self.n);
        metrics.push("train/entropy_loss", self.entropy / self.n);
        metrics.push("train/approx_kl", self.kl / self.n);
        metrics.push("train/clip_fraction", self.clip_fraction / self.n);
        metrics.push("train/grad_norm", self.grad_norm / self.n);
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::fixture;

    #[test]
    fn the_gradient_of_the_loss_equals_finite_differences() {
        for clip_range_vf in [0.0, 0.3] {
            let config = PpoConfig { ent_coef: 0.1, clip_range_vf, ..PpoConfig::default() };
            fixture::check_gradient(|policy, params, batch| loss(policy, params, batch, &config, 0.2).unwrap().total);
        }
    }

    #[test]
    fn the_ratio_is_one_before_the_first_update() {
        let (policy, rollout, targets) = fixture::rollout();
        for rows in [vec![31], (0..32).rev().collect::<Vec<u32>>()] {
            let batch = Batch::gather(&policy, &rollout, &targets, &rows).unwrap();
            let params = Tensor::new(policy.params(), &candle_core::Device::Cpu).unwrap();
            let loss = loss(&policy, &params, &batch, &PpoConfig::default(), 0.2).unwrap();
            for ratio in loss.ratio.to_vec1::<f32>().unwrap() {
                assert!((ratio - 1.0).abs() < 1e-6, "{ratio}");
            }
        }
    }

    #[test]
    fn divergence_equals_the_case_worked_out_by_hand() {
        // mean of (1 - 1 - 0, 2 - 1 - ln 2), one of two beyond 0.2
        let (kl, clipped) = divergence(&[1.0, 2.0], 0.2);
        assert!((kl - (1.0 - 2f32.ln()) / 2.0).abs() < 1e-7);
        assert_eq!(clipped, 0.5);
    }

    #[test]
    fn an_update_stops_at_the_target_kl() {
        let updates = |target_kl| {
            let (policy, rollout, _) = fixture::rollout();
            let learning_rate = Schedule::Constant(0.1);
            let config = PpoConfig { n_steps: 8, batch_size: 32, n_epochs: 10, target_kl, learning_rate, ..PpoConfig::default() };
            let mut agent = Ppo::new(policy, config, 4, 0).unwrap();
            agent.update(&rollout, 1.0).unwrap().get("train/n_updates").unwrap()
        };
        assert_eq!(updates(0.0), 10.0);
        assert!((1.0..10.0).contains(&updates(0.01)), "{}", updates(0.01));
    }

    #[test]
    fn a_batch_size_that_does_not_fit_is_refused() {
        let check = |n_steps, batch_size| PpoConfig { n_steps, batch_size, ..PpoConfig::default() }.check(4);
        assert!(check(8, 16).is_ok());
        for batch_size in [0, 5, 64] {
            assert!(matches!(check(8, batch_size), Err(Error::BatchSize { .. })));
        }
        assert!(matches!(check(8, 1), Err(Error::Setting { name: "batch_size", .. })));
        assert!(matches!(check(0, 1), Err(Error::BatchSize { .. })));
    }

    #[test]
    fn rewards_that_overflow_change_nothing_and_end_in_an_error() {
        let (policy, mut rollout, _) = fixture::rollout();
        rollout.rewards.fill(1e30);
        let config = PpoConfig { n_steps: 8, batch_size: 16, n_epochs: 1, normalize_advantage: false, ..PpoConfig::default() };
        let mut agent = Ppo::new(policy, config, 4, 0).unwrap();
        let before = agent.save();
        agent.update(&rollout, 1.0).unwrap();
        assert_eq!(agent.save().params, before.params);
        assert!(matches!(agent.update(&rollout, 1.0), Err(Error::Diverged(3))));
        assert_eq!(agent.save().params, before.params);
    }
}
