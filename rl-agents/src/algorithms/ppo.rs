//! Proximal policy optimization (PPO).
//!
//! Paper: Schulman et al., "Proximal Policy Optimization Algorithms", 2017.
//!
//! Discrete or continuous actions. With the details of Huang et al. ("The 37 Implementation Details of PPO", 2022) that apply:
//! orthogonal initialization, Adam with epsilon 1e-5, advantages normalized per minibatch, clipping of the gradient's norm,
//! optionally falling learning rate and clip range, optional clipping of values, optional stop at a KL divergence. Settings,
//! losses and metrics have the meanings of Stable-Baselines3 (value loss without the factor 1/2; clipped values replace the
//! others, without a maximum of both losses; `approx_kl` is the mean over the last epoch, `loss` the last minibatch's,
//! `n_updates` counts epochs). Differences: truncated steps are bootstrapped from the final observation's value within the
//! advantage, instead of changing the reward. For a rollout of an older policy, ratios and their clip range are relative to that
//! policy, values to the policy at the start of the update. If `target_kl` is set, `approx_kl` too is relative to the policy at
//! the start of the update, at the cost of one more pass. Falling schedules have the value before the rollout, in
//! Stable-Baselines3 the value after it.
//!
//! Read `on_policy` first, the update that A2C shares, then `loss`. The example
//! `train_cartpole` runs it.

use candle_core::Tensor;
use rl_cuda::learner::{Objective, UpdateSettings, UpdateTotals};
use rl_envs::{Pool, math};

use crate::algorithms::method::{Common, Method, Terms, common, method_settings};
use crate::algorithms::on_policy::OnPolicy;
use crate::learner::batch::{Columns, Derivatives, Minibatch, Parts, SampleLoss, TensorBatch};
use crate::learner::descent::Descent;
use crate::learner::optim::Rule;
use crate::learner::targets::{Refresh, Targets};
use crate::network::precision::clamp;
use crate::settings::Kind;
use crate::{ActorCritic, Error, MemoryKind, Metrics, NetConfig, Schedule};

crate::settings! {
    /// Settings of PPO.
    pub struct PpoConfig, "ppo." {
        /// Steps of a rollout.
        n_steps: usize = 2048, Kind::Int(1, 1 << 24);
        /// Samples of a minibatch; 0: the whole rollout; "auto": halved until it fits.
        ///
        /// Divides n_steps x n_envs. `rl train` alone takes "auto", the whole rollout, halved until the training fits into
        /// memory.
        batch_size: usize = 64, Kind::Int(0, 1 << 32);
        /// Passes over a rollout.
        n_epochs: usize = 10, Kind::Int(1, 10_000);
        /// Discount of future rewards.
        gamma: f32 = 0.99, Kind::Float(0.0, 1.0);
        /// Lambda of generalized advantage estimation.
        gae_lambda: f32 = 0.95, Kind::Float(0.0, 1.0);
        /// Clip range of the probability ratio around 1.
        clip_range: Schedule = Schedule::Constant(0.2), Kind::Schedule(0.0, 100.0), resumable;
        /// Clip range of values around the old values; 0: off.
        clip_range_vf: f32 = 0.0, Kind::Float(0.0, 1e9);
        /// Divides rewards by the running standard deviation of discounted returns.
        normalize_reward: bool = false, Kind::Bool;
        /// Normalizes advantages per minibatch.
        normalize_advantage: bool = true, Kind::Bool;
        /// Weight of the entropy in the loss.
        ent_coef: f32 = 0.0, Kind::Float(0.0, 1e3), resumable;
        /// Weight of the value loss.
        vf_coef: f32 = 0.5, Kind::Float(0.0, 1e3), resumable;
        /// Largest norm of a gradient; longer ones are scaled down.
        max_grad_norm: f32 = 0.5, Kind::Float(1e-9, 1e9), resumable;
        /// Learning rate of Adam.
        learning_rate: Schedule = Schedule::Constant(3e-4), Kind::Schedule(0.0, 10.0), resumable;
        /// Samples whose activations are held at the same time; 0: the minibatch.
        ///
        /// On a device or with learner = "reference"; the CPU's tile kernel holds few activations anyway. Gradients of the
        /// micro-batches add up. On a device a micro-batch has whole slices of the minibatch, of which there are at most 16, and
        /// the bits do not depend on it.
        micro_batch: usize = 0, Kind::Int(0, 1 << 32), resumable;
        /// KL divergence that ends an update when exceeded 1.5 times; 0: off.
        target_kl: f32 = 0.0, Kind::Float(0.0, 1e9), resumable;
    }
}

method_settings!(PpoConfig, Rule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-5 });

/// The PPO agent.
pub type Ppo = OnPolicy<PpoConfig>;

/// The loss of a minibatch and its parts, all scalars except for the ratio.
struct PpoTerms {
    total: Tensor,
    policy: Tensor,
    value: Tensor,
    entropy: Tensor,
    ratio: Tensor, // (B), without gradient
}

/// Computes `L = L_policy + ent_coef L_entropy + vf_coef L_value`.
///
/// That is eq. 9 with the signs of a loss. `L_policy = -mean min(r A, clip(r, 1 - c, 1 + c) A)` (eq. 7), `r = pi(a|s) /
/// pi_old(a|s)`, `L_entropy = -mean H`, `L_value = mean (R - V)^2`.
fn loss(
    policy: &ActorCritic,
    params: &Tensor,
    batch: &TensorBatch,
    config: &PpoConfig,
    clip: f64,
) -> candle_core::Result<PpoTerms> {
    let (outputs, values) = batch.forward(policy, params)?;
    let distribution = policy.distribution().of_batch(params, &outputs, batch.masks.as_ref())?;
    let ratio = (distribution.log_prob(&batch.actions)? - &batch.log_probs)?.exp()?;
    let unclipped = (&ratio * &batch.advantages)?;
    let clipped = (clamp(&ratio, 1.0 - clip, 1.0 + clip)? * &batch.advantages)?;
    let policy_loss = unclipped.broadcast_minimum(&clipped)?.mean_all()?.neg()?;

    let clip_vf = f64::from(config.clip_range_vf);
    let values = if clip_vf > 0.0 { (&batch.values + clamp(&(values - &batch.values)?, -clip_vf, clip_vf)?)? } else { values };
    let value_loss = candle_nn::loss::mse(&values, &batch.returns)?;
    let entropy_loss = distribution.entropy()?.mean_all()?.neg()?;
    let total = ((&policy_loss + (&entropy_loss * f64::from(config.ent_coef))?)? + (&value_loss * f64::from(config.vf_coef))?)?;
    Ok(PpoTerms { total, policy: policy_loss, value: value_loss, entropy: entropy_loss, ratio: ratio.detach() })
}

/// KL divergence from the policy with ratio 1 to the one with these ratios.
///
/// Schulman's estimator: `mean r - 1 - ln r`.
fn divergence(ratios: impl ExactSizeIterator<Item = f32>) -> f32 {
    let n = ratios.len() as f32;
    ratios.map(|r| (r - 1.0) - r.ln()).sum::<f32>() / n
}

/// [`loss`] for the tile kernel.
struct PpoLoss<'a> {
    config: &'a PpoConfig,
    clip: f32,
}

impl SampleLoss for PpoLoss<'_> {
    #[inline(always)]
    fn derivatives(&self, columns: &Columns<'_>, out: &mut Derivatives<'_>) {
        let Self { config, clip } = *self;
        let (low, high) = (1.0 - clip, 1.0 + clip);
        let reach = if config.clip_range_vf > 0.0 { config.clip_range_vf } else { f32::INFINITY };
        for s in 0..columns.log_probs.len() {
            let (log_ratio, advantage) = (columns.log_probs[s] - columns.old_log_probs[s], columns.advantages[s]);
            let ratio = math::exp(log_ratio);
            let unclipped = ratio * advantage;
            let clipped = math::clamp(ratio, low, high) * advantage;
            let free = unclipped <= clipped;
            out.policy_loss[s] = -(if free { unclipped } else { clipped });
            out.log_prob[s] = if free { -unclipped } else { 0.0 };
            out.kl[s] = (ratio - 1.0) - log_ratio;
            out.clipped[s] = if (ratio - 1.0).abs() > clip { 1.0 } else { 0.0 };

            let moved = columns.values[s] - columns.old_values[s];
            let kept = math::clamp(moved, -reach, reach);
            let error = if moved == kept { columns.values[s] } else { columns.old_values[s] + kept } - columns.returns[s];
            out.value_loss[s] = error * error;
            out.value[s] = if moved == kept { 2.0 * config.vf_coef * error } else { 0.0 };
        }
        for (s, start) in columns.start_log_probs.into_iter().flatten().enumerate() {
            let log_ratio = columns.log_probs[s] - start;
            out.kl[s] = (math::exp(log_ratio) - 1.0) - log_ratio;
        }
    }
}

impl Method for PpoConfig {
    const OPTIMIZER: Rule = Self::RULE;
    const OBJECTIVE: Objective = Objective::ClippedSurrogate;
    const POLICY_LOSS: &'static str = "train/policy_gradient_loss";

    fn common(&self) -> Common {
        common!(self)
    }

    fn check(&self, n_envs: usize) -> Result<(), Error> {
        self.check(n_envs)
    }

    /// Ratios correct for the older policy, but its values are stale.
    fn refresh(&self) -> Refresh {
        if self.target_kl > 0.0 { Refresh::LogProbs } else { Refresh::Values }
    }

    fn n_epochs(&self) -> usize {
        self.n_epochs
    }

    fn shuffles(&self, _: usize) -> bool {
        true
    }

    fn fused(&self, descent: &mut Descent, minibatch: &Minibatch<'_>, remaining: f32, pool: &Pool) -> Result<Parts, Error> {
        descent.fused(minibatch, PpoLoss { config: self, clip: self.clip_range.at(remaining) }, pool)
    }

    fn reference(
        &self,
        policy: &ActorCritic,
        params: &Tensor,
        batch: &TensorBatch,
        targets: &Targets,
        rows: &[u32],
        remaining: f32,
    ) -> Result<Terms, Error> {
        let clip = self.clip_range.at(remaining);
        let PpoTerms { total, policy, value, entropy, ratio } = loss(policy, params, batch, self, f64::from(clip))?;
        let ratios = ratio.to_vec1::<f32>()?;
        let kl = if targets.log_probs.is_empty() {
            divergence(ratios.iter().copied())
        } else {
            let old = batch.log_probs.to_vec1::<f32>()?;
            let since_start = |((ratio, old), &row): ((&f32, f32), &u32)| ratio * (old - targets.log_probs[row as usize]).exp();
            divergence(ratios.iter().zip(old).zip(rows).map(since_start))
        };
        let clip_fraction = ratios.iter().filter(|r| (*r - 1.0).abs() > clip).count() as f32 / ratios.len() as f32;
        Ok(Terms { total, policy, value, entropy, kl, clip_fraction })
    }

    fn on_device(&self, remaining: f32, common: UpdateSettings) -> UpdateSettings {
        UpdateSettings {
            target_kl: self.target_kl,
            clip: self.clip_range.at(remaining),
            clip_value: if self.clip_range_vf > 0.0 { self.clip_range_vf } else { f32::INFINITY },
            ..common
        }
    }

    fn ends_at(&self, kl: f32) -> bool {
        self.target_kl > 0.0 && kl > 1.5 * self.target_kl
    }

    fn report_sums(&self, totals: &UpdateTotals, metrics: &mut Metrics) {
        metrics.push("train/approx_kl", totals.approx_kl);
        metrics.push("train/clip_fraction", totals.clip_fraction / totals.minibatches);
    }

    fn report_schedules(&self, remaining: f32, metrics: &mut Metrics) {
        metrics.push("train/clip_range", self.clip_range.at(remaining));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::slices::{MAX_SLICES, MIN_SLICE};
    use crate::learner::batch::Minibatch;
    use crate::ranks::Ranks;
    use crate::ranks::share;
    use crate::ranks::tests::{Counted, on_ranks};
    use crate::{Agent, Collector, LearnerKind, NetConfig, fixture};
    use rl_envs::cartpole::CartPole;
    use rl_envs::{Pool, SyncVecEnv, VecEnv, codec, pool};
    use std::ops::Range;
    use std::sync::Arc;

    #[test]
    fn the_gradient_of_the_loss_equals_finite_differences() {
        for clip_range_vf in [0.0, 0.3] {
            let config = PpoConfig { ent_coef: 0.1, clip_range_vf, ..PpoConfig::default() };
            fixture::check_gradient(|policy, params, batch| loss(policy, params, batch, &config, 0.2).unwrap().total);
        }
    }

    #[test]
    fn a_rollout_of_an_older_policy_is_learnt_from_with_the_values_of_today() {
        let (_, rollout, _) = fixture::rollout();
        let policy = || fixture::moved_policy(LearnerKind::Fused, fixture::Case::Discrete);
        let (config, pool) = (PpoConfig { n_steps: 8, batch_size: 32, ..PpoConfig::default() }, Pool::new(1).unwrap());
        let (rewards, gamma, lambda) = (rollout.rewards(), config.gamma, config.gae_lambda);
        let now = Targets::off_policy(&policy(), &rollout, rewards, gamma, lambda, Refresh::Values, &pool).unwrap();
        let then = Targets::new(&policy(), &rollout, rewards, config.gamma, config.gae_lambda).unwrap();
        assert_ne!(now.explained_variance(), then.explained_variance());
        let metrics = Ppo::new(policy(), config, 4, 0).unwrap().update(&rollout, 1.0, &pool).unwrap();
        assert_eq!(metrics.get("train/explained_variance"), Some(now.explained_variance()));
    }

    #[test]
    fn the_ratio_is_one_before_the_first_update() {
        for (case, rows) in [
            (fixture::Case::Discrete, vec![31]),
            (fixture::Case::Discrete, (0..32).rev().collect::<Vec<u32>>()),
            (fixture::Case::Continuous, (0..32).rev().collect()),
        ] {
            let (policy, rollout, targets) = fixture::rollout_of(case);
            let batch = {
                let advantages: Vec<f32> = rows.iter().map(|&row| targets.advantages[row as usize]).collect();
                TensorBatch::gather(&policy, &rollout, &targets, &rows, &advantages).unwrap()
            };
            let params = Tensor::new(policy.params(), &candle_core::Device::Cpu).unwrap();
            let loss = loss(&policy, &params, &batch, &PpoConfig::default(), 0.2).unwrap();
            for ratio in loss.ratio.to_vec1::<f32>().unwrap() {
                assert!((ratio - 1.0).abs() < 1e-6, "{ratio}");
            }
        }
    }

    #[test]
    fn the_kernel_s_loss_and_gradient_equal_candle_s_and_so_do_micro_batches() {
        let cases = fixture::Case::ALL.into_iter().flat_map(|case| [(case, 0.0), (case, 0.3)]);
        for (case, clip_range_vf) in cases {
            fixture::with_minibatch(case, |minibatch| {
                let agent = |learner, micro_batch| {
                    let config = PpoConfig { ent_coef: 0.1, clip_range_vf, micro_batch, ..PpoConfig::default() };
                    Ppo::new(fixture::moved_policy(learner, case), config, 4, 0).unwrap()
                };
                let mut reference = agent(LearnerKind::Reference, 0);
                let expected = reference.reference(minibatch, 1.0).unwrap();
                assert!(expected.clip_fraction > 0.1 && expected.clip_fraction < 0.9, "some are clipped");
                let mut fused = agent(LearnerKind::Fused, 0);
                let got = fused.fused(minibatch, 1.0, &Pool::new(2).unwrap()).unwrap();
                let mut micro = agent(LearnerKind::Reference, 7);
                let in_parts = micro.reference(minibatch, 1.0).unwrap();
                for (gradient, parts) in [(&fused.descent.gradient, got), (&micro.descent.gradient, in_parts)] {
                    fixture::assert_near(gradient, &reference.descent.gradient);
                    let pairs = [
                        (parts.policy, expected.policy),
                        (parts.value, expected.value),
                        (parts.entropy, expected.entropy),
                        (parts.kl, expected.kl),
                        (parts.clip_fraction, expected.clip_fraction),
                    ];
                    for (got, expected) in pairs {
                        assert!((got - expected).abs() < 1e-5 * expected.abs().max(1.0), "{parts:?} is not {expected:?}");
                    }
                }
            });
        }
    }

    #[test]
    fn the_ratio_of_a_policy_to_itself_is_exactly_one_with_the_kernel() {
        for case in [fixture::Case::Discrete, fixture::Case::Continuous] {
            let (policy, rollout, targets) = fixture::rollout_of(case);
            let rows: Vec<u32> = (0..32).rev().collect();
            let advantages: Vec<f32> = rows.iter().map(|&row| targets.advantages[row as usize]).collect();
            let minibatch =
                Minibatch { rollout: &rollout, targets: &targets, rows: &rows, advantages: &advantages, ent_coef: 0.0 };
            let clip_range = Schedule::Constant(0.0);
            let config = PpoConfig { n_steps: 8, batch_size: 32, clip_range, ..PpoConfig::default() };
            let parts = Ppo::new(policy, config, 4, 0).unwrap().fused(&minibatch, 1.0, &Pool::new(1).unwrap()).unwrap();
            assert_eq!((parts.kl, parts.clip_fraction), (0.0, 0.0), "{case:?}: one ratio differs from 1, with a clip range of 0");
        }
    }

    #[test]
    fn divergence_equals_the_case_worked_out_by_hand() {
        // mean of (1 - 1 - 0, 2 - 1 - ln 2)
        let kl = divergence([1.0, 2.0].into_iter());
        assert!((kl - (1.0 - 2f32.ln()) / 2.0).abs() < 1e-7);
    }

    #[test]
    fn an_update_stops_at_the_target_kl() {
        let updates = |target_kl| {
            let (policy, rollout, _) = fixture::rollout();
            let learning_rate = Schedule::Constant(0.1);
            let config = PpoConfig { n_steps: 8, batch_size: 32, n_epochs: 10, target_kl, learning_rate, ..PpoConfig::default() };
            let mut agent = Ppo::new(policy, config, 4, 0).unwrap();
            let metrics = agent.update(&rollout, 1.0, &Pool::new(1).unwrap()).unwrap();
            (agent.save().unwrap().counters.steps.taken, metrics)
        };
        assert_eq!(updates(0.0).0, 10);
        let (steps, metrics) = updates(0.01);
        assert!((1..10).contains(&steps), "{steps}");
        // The epoch in which the update stops counts, and `approx_kl` covers it alone.
        assert_eq!(metrics.get("train/n_updates"), Some(steps as f32 + 1.0));
        assert!(metrics.get("train/approx_kl").unwrap() > 0.015);
    }

    #[test]
    fn with_lag_an_update_stops_by_how_far_it_has_moved_the_policy_itself() {
        for (learner, case) in
            [(LearnerKind::Fused, fixture::Case::Discrete), (LearnerKind::Reference, fixture::Case::Continuous)]
        {
            let (_, rollout, _) = fixture::rollout_of(case);
            let config = PpoConfig { n_steps: 8, batch_size: 32, n_epochs: 2, target_kl: 1e-4, ..PpoConfig::default() };
            let mut agent = Ppo::new(fixture::moved_policy(learner, case), config, 4, 0).unwrap();
            let metrics = agent.update(&rollout, 1.0, &Pool::new(1).unwrap()).unwrap();
            assert!(metrics.get("train/clip_fraction").unwrap() > 0.1, "the policy that acted is far away");
            assert!(agent.save().unwrap().counters.steps.taken > 0, "{learner:?}, {case:?}");
            assert!(metrics.get("train/approx_kl").unwrap() < 0.01);
        }
    }

    #[test]
    fn metrics_have_the_meaning_of_stable_baselines_3() {
        let run = |target_kl, n_epochs| {
            let (policy, rollout, _) = fixture::rollout_of(fixture::Case::Continuous);
            let learning_rate = Schedule::Constant(0.01);
            let config = PpoConfig { n_steps: 8, batch_size: 16, n_epochs, target_kl, learning_rate, ..PpoConfig::default() };
            let mut agent = Ppo::new(policy, config, 4, 0).unwrap();
            let metrics = agent.update(&rollout, 1.0, &Pool::new(1).unwrap()).unwrap();
            (agent, move |name: &str| metrics.get(name).unwrap())
        };
        let ((agent, one), (_, three)) = (run(0.0, 1), run(0.0, 3));
        assert_eq!((one("train/n_updates"), three("train/n_updates")), (1.0, 3.0));
        // The last of three epochs begins after four steps, the first after none: a mean over all would be far below the last's.
        assert!(three("train/approx_kl") > 3.0 * one("train/approx_kl") && one("train/approx_kl") > 0.0);
        let log_std = agent.descent.policy.params().last_chunk::<3>().unwrap();
        let std = log_std.iter().map(|x| x.exp()).sum::<f32>() / 3.0;
        assert!((one("train/std") - std).abs() < 1e-6 && (std - (-0.3f32).exp()).abs() > 1e-4);
        assert_eq!(one("train/skipped_updates"), 0.0);
        // A single step, after which the second minibatch stops the update: the norm is that step's.
        let (agent, stopped) = run(1e-9, 1);
        assert_eq!(agent.save().unwrap().counters.steps.taken, 1);
        let (policy, rollout, targets) = fixture::rollout_of(fixture::Case::Continuous);
        let mut order = rl_envs::Permutation::default();
        order.set(32, 0, 0, rl_envs::Purpose::Shuffle);
        let rows: Vec<u32> = (0..32).map(|i| order.at(i)).collect();
        let mut advantages = Vec::new();
        targets.advantages_of(&rows[..16], true, &mut advantages);
        let minibatch =
            Minibatch { rollout: &rollout, targets: &targets, rows: &rows[..16], advantages: &advantages, ent_coef: 0.0 };
        let mut first = Ppo::new(policy, PpoConfig { n_steps: 8, batch_size: 16, ..PpoConfig::default() }, 4, 0).unwrap();
        first.fused(&minibatch, 1.0, &Pool::new(1).unwrap()).unwrap();
        assert_eq!(stopped("train/grad_norm"), crate::learner::optim::norm(&first.descent.gradient));
    }

    #[test]
    fn an_update_that_stops_before_its_first_step_has_no_gradient_norm() {
        // The step count can be 0 only if the first minibatch differs from the policy's own: its probabilities are changed by
        // hand.
        let (policy, mut rollout, _) = fixture::rollout();
        rollout.columns().log_probs.mapv_inplace(|x| x - 1.0);
        let config = PpoConfig { n_steps: 8, batch_size: 32, target_kl: 0.01, ..PpoConfig::default() };
        let mut agent = Ppo::new(policy, config, 4, 0).unwrap();
        let metrics = agent.update(&rollout, 1.0, &Pool::new(1).unwrap()).unwrap();
        assert_eq!(agent.save().unwrap().counters.steps.taken, 0);
        assert!(metrics.get("train/grad_norm").unwrap().is_nan());
    }

    #[test]
    fn a_batch_size_that_does_not_fit_is_refused() {
        let check = |n_steps, batch_size| PpoConfig { n_steps, batch_size, ..PpoConfig::default() }.check(4);
        assert!(check(8, 16).is_ok());
        for batch_size in [5, 64] {
            assert!(matches!(check(8, batch_size), Err(Error::BatchSize { .. })));
        }
        assert!(check(8, 0).is_ok());
        assert!(matches!(check(8, 1), Err(Error::Setting { name: "batch_size", .. })));
        assert!(matches!(check(0, 1), Err(Error::Range { .. })));
        // Nor are samples of another rollout left out.
        let (policy, rollout, _) = fixture::rollout();
        let config = PpoConfig { n_steps: 6, batch_size: 12, ..PpoConfig::default() };
        let refused = Ppo::new(policy, config, 4, 0).unwrap().update(&rollout, 1.0, &Pool::new(1).unwrap());
        assert!(matches!(refused, Err(Error::BatchSize { batch_size: 12, rollout: 32, n_steps: 8, n_envs: 4 })));
    }

    #[test]
    fn rewards_that_overflow_change_nothing_and_end_in_an_error() {
        let (policy, mut rollout, _) = fixture::rollout();
        rollout.columns().steps.rewards.fill(1e30);
        let config = PpoConfig { n_steps: 8, batch_size: 16, n_epochs: 1, normalize_advantage: false, ..PpoConfig::default() };
        let mut agent = Ppo::new(policy, config, 4, 0).unwrap();
        let before = agent.save().unwrap();
        let metrics = agent.update(&rollout, 1.0, &Pool::new(1).unwrap()).unwrap();
        assert_eq!(metrics.get("train/skipped_updates"), Some(2.0));
        assert_eq!(agent.save().unwrap().params, before.params);
        let Err(Error::Diverged(divergence)) = agent.update(&rollout, 1.0, &Pool::new(1).unwrap()) else { panic!("the third") };
        assert_eq!(agent.save().unwrap().params, before.params);
        assert_eq!((divergence.steps, divergence.skipped), (0, 3));
        assert!(divergence.losses.iter().any(|(name, loss)| *name == "value_loss" && !loss.is_finite()), "{divergence}");
        let column = |name| divergence.minibatch.iter().find(|tensor| tensor.name == name).unwrap();
        assert_eq!((&column("obs").shape[..], &column("rewards").values[..]), (&[16, 4][..], &[1e30; 16][..]));
    }

    #[test]
    fn ranks_that_collect_and_learn_are_one_agent_and_receive_the_bytes_of_the_formula() {
        let (n_envs, n_steps, batch_size, n_epochs) = (12, 32, 192, 2);
        let config = PpoConfig { n_steps, batch_size, n_epochs, ..PpoConfig::default() };
        let pool = Pool::new(1).unwrap();
        let learnt = |collector: &mut Collector, ranks: Option<Arc<dyn Ranks>>| {
            let policy = ActorCritic::new(collector.observation_space(), collector.action_space(), &NetConfig::default(), 0);
            let mut agent = Ppo::new(policy.unwrap(), config.clone(), n_envs, 0).unwrap();
            ranks.into_iter().for_each(|ranks| agent.shared().unwrap().share(ranks));
            let mut rollout = collector.rollout(n_steps).unwrap();
            let episodes = collector.collect(agent.acting(1.0), &mut rollout).unwrap();
            agent.update(&rollout, 1.0, &pool).unwrap();
            (agent.save().unwrap(), codec::encode(&collector.save().unwrap()).unwrap(), episodes, rollout.final_at().to_vec())
        };
        let alone = learnt(&mut Collector::new(n_envs, &CartPole::default(), &pool, 0).unwrap(), None);
        for n_ranks in [2, 3] {
            let slices: Vec<_> = pool::slices(n_envs, MAX_SLICES, MIN_SLICE).collect();
            assert_eq!(slices.len(), 3);
            let all = on_ranks(n_ranks, |ranks| {
                let counted = Arc::new(Counted::new(ranks));
                let make = |range| Ok(Box::new(SyncVecEnv::slice(range, CartPole::default())) as Box<dyn VecEnv>);
                let mut collector = Collector::of_rank(counted.clone(), &slices, make, &pool, 0).unwrap();
                let learnt = learnt(&mut collector, Some(counted.clone()));
                let state = learnt.1.len();
                (learnt, (counted.rank(), counted.received(), state))
            });
            for (learnt, (rank, received, state)) in all {
                assert!(learnt == alone, "rank {rank} of {n_ranks}");
                let own = share(slices.len(), rank, n_ranks);
                let n_own: usize = slices[own.clone()].iter().map(Range::len).sum();
                // D = 4 numbers of 4 bytes, no masks, one action.
                let rollout = (n_envs - n_own) * ((n_steps + 1) * 16 + n_steps * (4 + 14) + 4);
                let is_own = |n: usize| slices[own.clone()].iter().any(|slice| slice.contains(&n));
                let ends = learnt.3.iter().filter(|&&(_, n)| !is_own(n)).count() * (16 + 17 + 12);
                // 2 slices of a minibatch: of 3 ranks, the first has none.
                let (p, m, of_rank) =
                    (learnt.0.params.len(), n_steps * n_envs / batch_size * n_epochs, share(2, rank, n_ranks).len());
                let gradients = m * (2 - of_rank) * (4 * p + 40);
                let formula = rollout + ends + gradients;
                // The collector's state is gathered at the end.
                assert!((formula..formula + 1000 * n_ranks + state).contains(&received), "{received} bytes, not {formula}");
            }
        }
    }
}
