//! Advantage actor-critic (A2C): the synchronous form of A3C.
//!
//! Paper: Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning", 2016.
//!
//! Discrete or continuous actions. Short rollouts, one pass over each, the policy gradient without clipping of ratios, RMSprop.
//! Settings, losses and metrics have the meanings of Stable-Baselines3 (n-step returns as generalized advantages with lambda 1,
//! value loss without the factor 1/2; `n_updates` counts rollouts). Differences: a rollout may be cut into minibatches, one
//! optimizer step each; truncated steps are bootstrapped from the final observation's value within the advantage; a rollout of an
//! older policy gets V-trace targets (Espeholt et al., "IMPALA", 2018), with advantages normalized before importance ratios
//! weight them.
//!
//! Read [`A2c::update`] first, then `loss`. `rl train cartpole --algo a2c` runs it.

use std::sync::Arc;

use candle_core::Tensor;
use rl_buffer::{Memory, Rollout, RolloutShape};
use rl_cuda::learner::{Objective, UpdateSettings, UpdateTotals};
use rl_envs::Pool;

use crate::device::descent::Plan;
use crate::device::times::DeviceWatch;
use crate::learner::batch::{Batch, Columns, Derivatives, Minibatch, Parts, SampleLoss};
use crate::learner::descent::{Descent, StepSums, add_minibatch};
use crate::learner::optim::Rule;
use crate::learner::targets::{Refresh, Targets};
use crate::probe::{self, Probe, Stage, Threads};
use crate::ranks::Ranks;
use crate::settings::{self, Kind};
use crate::{
    ActorCritic, Agent, DeviceCollector, Error, Layout, Learner, Metrics, Policy, Schedule, Snapshot, UpdateEvent, Watch,
};

crate::settings! {
    /// Settings of A2C.
    pub struct A2cConfig, "a2c." {
        /// Steps of a rollout.
        n_steps: usize = 5, Kind::Int(1, 1 << 24);
        /// Samples of a minibatch; divides n_steps x n_envs; 0: the whole rollout.
        ///
        /// `rl train` also takes "auto": the whole rollout, halved until the training fits into memory.
        batch_size: usize = 0, Kind::Int(0, 1 << 32);
        /// Discount of future rewards.
        gamma: f32 = 0.99, Kind::Float(0.0, 1.0);
        /// Lambda of generalized advantage estimation; 1: n-step returns.
        gae_lambda: f32 = 1.0, Kind::Float(0.0, 1.0);
        /// Divides rewards by the running standard deviation of discounted returns.
        normalize_reward: bool = false, Kind::Bool;
        /// Normalizes advantages per minibatch.
        normalize_advantage: bool = false, Kind::Bool;
        /// Weight of the entropy in the loss.
        ent_coef: f32 = 0.0, Kind::Float(0.0, 1e3), resumable;
        /// Weight of the value loss.
        vf_coef: f32 = 0.5, Kind::Float(0.0, 1e3), resumable;
        /// Largest norm of a gradient; longer ones are scaled down.
        max_grad_norm: f32 = 0.5, Kind::Float(1e-9, 1e9), resumable;
        /// Learning rate of RMSprop.
        learning_rate: Schedule = Schedule::Constant(7e-4), Kind::Schedule(0.0, 10.0), resumable;
        /// Corrects the targets of stale rollouts by V-trace.
        vtrace: bool = true, Kind::Bool;
        /// Samples whose activations are held at the same time; 0: the minibatch.
        ///
        /// On a device or with learner = "reference"; the CPU's tile kernel holds few activations anyway. Gradients of the
        /// micro-batches add up. On a device a micro-batch has whole slices of the minibatch, of which there are at most 16, and
        /// the bits do not depend on it.
        micro_batch: usize = 0, Kind::Int(0, 1 << 32), resumable;
    }
}

impl A2cConfig {
    /// A2C's optimizer.
    pub const RULE: Rule = Rule::RmsProp { alpha: 0.99, epsilon: 1e-5 };

    /// Checks every range, and conditions between settings.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::BatchSize`] or [`Error::Setting`] for the first that fails.
    pub fn check(&self, n_envs: usize) -> Result<(), Error> {
        settings::check(Self::KEYS, self)?;
        let n_steps = self.n_steps;
        let rollout = n_steps.saturating_mul(n_envs);
        let batch_size = self.samples(rollout);
        if rollout == 0 || !rollout.is_multiple_of(batch_size) {
            return Err(Error::BatchSize { batch_size, rollout, n_steps, n_envs });
        }
        if self.normalize_advantage && batch_size == 1 {
            let allowed = "normalize_advantage needs at least 2 samples";
            return Err(Error::Setting { name: "batch_size", value: "1".into(), allowed });
        }
        Ok(())
    }

    /// Samples of a minibatch, for a rollout of `rollout` samples.
    #[must_use]
    pub fn samples(&self, rollout: usize) -> usize {
        if self.batch_size == 0 { rollout } else { self.batch_size }
    }

    /// Returns what the latest policy computes for a rollout of an older one.
    fn refresh(&self) -> Refresh {
        if self.vtrace { Refresh::VTrace } else { Refresh::Values }
    }
}

/// The A2C agent.
pub struct A2c {
    descent: Descent,
    config: A2cConfig,
}

/// The loss of a minibatch and its parts, all scalars.
struct A2cTerms {
    total: Tensor,
    policy: Tensor,
    value: Tensor,
    entropy: Tensor,
}

/// Computes `L = L_policy + ent_coef L_entropy + vf_coef L_value`.
///
/// `L_policy = -mean A ln pi(a|s)`, `L_entropy = -mean H`, `L_value = mean (R - V)^2`.
fn loss(policy: &ActorCritic, params: &Tensor, batch: &Batch, config: &A2cConfig) -> candle_core::Result<A2cTerms> {
    let (outputs, values) = policy.forward(params, &batch.obs)?;
    let distribution = policy.distribution().of_batch(params, &outputs, batch.masks.as_ref())?;
    let policy_loss = (distribution.log_prob(&batch.actions)? * &batch.advantages)?.mean_all()?.neg()?;
    let value_loss = candle_nn::loss::mse(&values, &batch.returns)?;
    let entropy_loss = distribution.entropy()?.mean_all()?.neg()?;
    let total = ((&policy_loss + (&entropy_loss * f64::from(config.ent_coef))?)? + (&value_loss * f64::from(config.vf_coef))?)?;
    Ok(A2cTerms { total, policy: policy_loss, value: value_loss, entropy: entropy_loss })
}

/// [`loss`] for the tile kernel.
struct A2cLoss {
    vf_coef: f32,
}

impl SampleLoss for A2cLoss {
    #[inline(always)]
    fn derivatives(&self, columns: &Columns<'_>, out: &mut Derivatives<'_>) {
        for s in 0..columns.log_probs.len() {
            let (log_prob, advantage) = (columns.log_probs[s], columns.advantages[s]);
            out.policy_loss[s] = -log_prob * advantage;
            out.log_prob[s] = -advantage;
            let error = columns.values[s] - columns.returns[s];
            out.value_loss[s] = error * error;
            out.value[s] = 2.0 * self.vf_coef * error;
        }
    }
}

impl A2c {
    /// Creates an agent from a policy, for rollouts of `n_envs` environments.
    ///
    /// `seed` determines the order of samples.
    ///
    /// # Errors
    /// Errors of [`A2cConfig::check`].
    pub fn new(policy: ActorCritic, config: A2cConfig, n_envs: usize, seed: u64) -> Result<Self, Error> {
        config.check(n_envs)?;
        Ok(Self { descent: Descent::new(policy, A2cConfig::RULE, seed, config.normalize_reward), config })
    }

    /// Learns on `device`, from rollouts of this shape.
    ///
    /// The parameters are the same as on a CPU with fused multiply-add, bit for bit.
    ///
    /// # Errors
    /// [`Error::Setting`] for a setting that the device's kernels do not support; [`Error::Device`], for instance without memory.
    pub fn on_device(self, device: &rl_cuda::Device, shape: RolloutShape) -> Result<Self, Error> {
        let Self { descent, config } = self;
        let batch_size = config.samples(shape.n_steps * shape.n_envs);
        Ok(Self { descent: descent.on_device(device, shape, (batch_size, config.micro_batch), config.refresh())?, config })
    }

    /// Creates environments of the type `env` on the device that learns.
    ///
    /// Their rollouts are learnt from where they are. `seed` is the environments' and the acting policy's.
    /// With `ranks`, creates this rank's share of the environments; every rank has the rollouts of all.
    ///
    /// # Errors
    /// [`Error::Device`], for instance if the environment has no kernels.
    pub fn collector(&self, env: &str, seed: u64, ranks: Option<&Arc<dyn Ranks>>) -> Result<DeviceCollector, Error> {
        self.descent.collector(env, seed, ranks)
    }

    /// [`Agent::update`] on the device: the same steps.
    fn update_on_device(&mut self, rollout: &Rollout, remaining: f32, pool: &Pool) -> Result<Metrics, Error> {
        let Self { descent, config } = self;
        let learning_rate = config.learning_rate.at(remaining);
        let settings = UpdateSettings {
            learning_rate,
            max_norm: config.max_grad_norm,
            ent_coef: config.ent_coef,
            vf_coef: config.vf_coef,
            ..UpdateSettings::default()
        };
        let plan = Plan {
            objective: Objective::PolicyGradient,
            discounts: (config.gamma, config.gae_lambda),
            n_epochs: 1,
            shuffled: config.samples(rollout.len()) < rollout.len(),
            normalize: config.normalize_advantage,
        };
        let totals = descent.update_on_device(rollout, (&plan, &settings), pool)?;
        self.metrics(&totals, StepSums::of(&totals), learning_rate)
    }

    /// Returns the metrics of an update.
    fn metrics(&self, totals: &UpdateTotals, steps: StepSums, learning_rate: f32) -> Result<Metrics, Error> {
        let n = totals.minibatches;
        let mut metrics = Metrics::default();
        metrics.push("train/loss", totals.loss);
        metrics.push("train/policy_loss", totals.policy / n);
        metrics.push("train/value_loss", totals.value / n);
        metrics.push("train/entropy_loss", totals.entropy / n);
        steps.report(&mut metrics);
        metrics.push("train/explained_variance", totals.explained_variance);
        self.descent.mean_std()?.into_iter().for_each(|std| metrics.push("train/std", std));
        metrics.push("train/learning_rate", learning_rate);
        metrics.push("train/n_updates", self.descent.epochs as f32);
        Ok(metrics)
    }

    /// Computes the gradient of a minibatch with the tile kernel.
    fn fused(&mut self, minibatch: &Minibatch<'_>, pool: &Pool) -> Result<Parts, Error> {
        let Descent { policy, slices, gradient, probe, .. } = &mut self.descent;
        let threads = Threads { pool, probe: probe.as_ref() };
        minibatch.gradient(policy, A2cLoss { vf_coef: self.config.vf_coef }, threads, slices, gradient)
    }

    /// Computes the gradient of a minibatch with candle operations.
    fn reference(&mut self, minibatch: &Minibatch<'_>) -> Result<Parts, Error> {
        let Self { descent, config } = self;
        let Minibatch { rollout, targets, rows, advantages, .. } = *minibatch;
        let micro_batch = if config.micro_batch == 0 { rows.len() } else { config.micro_batch };
        descent.gradient.fill(0.0);
        let mut parts = Parts::default();
        for (micro, advantages) in rows.chunks(micro_batch).zip(advantages.chunks(micro_batch)) {
            let batch = Batch::gather(&descent.policy, rollout, targets, micro, advantages)?;
            let params = descent.variable()?;
            let loss = loss(&descent.policy, &params, &batch, config)?;
            let share = micro.len() as f32 / rows.len() as f32;
            probe::report(descent.probe.as_ref(), Stage::Forward);
            descent.add_gradient(&params, &(&loss.total * f64::from(share))?)?;
            probe::report(descent.probe.as_ref(), Stage::Backward);
            parts.policy += share * loss.policy.to_scalar::<f32>()?;
            parts.value += share * loss.value.to_scalar::<f32>()?;
            parts.entropy += share * loss.entropy.to_scalar::<f32>()?;
        }
        Ok(parts)
    }
}

impl Agent for A2c {
    fn policy(&self) -> &dyn Policy {
        &self.descent.policy
    }

    fn layout(&self) -> &Layout {
        self.descent.policy.layout()
    }

    fn update(&mut self, rollout: &Rollout, remaining: f32, pool: &Pool) -> Result<Metrics, Error> {
        if self.descent.device.is_some() {
            return self.update_on_device(rollout, remaining, pool);
        }
        let config = self.config.clone();
        let learning_rate = config.learning_rate.at(remaining);
        self.descent.report(UpdateEvent::StatisticsBegin);
        let rewards = self.descent.rewards(rollout, config.gamma, pool)?;
        let is_first = self.descent.policy.awaits_obs();
        if is_first {
            self.descent.policy.network_mut().merge_obs(rollout, pool);
        }
        self.descent.report(UpdateEvent::StatisticsEnd);
        self.descent.report(UpdateEvent::TargetsBegin);
        let policy = &self.descent.policy;
        let targets = if rollout.is_stale(policy.version()) {
            Targets::off_policy(policy, rollout, rewards.view(), (config.gamma, config.gae_lambda), config.refresh(), pool)?
        } else {
            Targets::new(policy, rollout, rewards.view(), config.gamma, config.gae_lambda)?
        };
        self.descent.report(UpdateEvent::TargetsEnd);
        probe::report(self.descent.probe.as_ref(), Stage::Targets);
        let n_samples = rollout.len();
        let batch_size = config.samples(n_samples);
        let mut rows: Vec<u32> = (0..n_samples as u32).collect();
        if batch_size < n_samples {
            self.descent.shuffle(&mut rows, pool);
        } else {
            self.descent.epochs += 1;
        }
        let mut advantages = Vec::with_capacity(batch_size);
        let explained_variance = targets.explained_variance();
        let (mut totals, mut steps) = (UpdateTotals { explained_variance, ..UpdateTotals::default() }, StepSums::default());

        for rows in rows.chunks_exact(batch_size) {
            targets.advantages_of(rows, config.normalize_advantage, &mut advantages);
            probe::report(self.descent.probe.as_ref(), Stage::Shuffle);
            let minibatch = Minibatch { rollout, targets: &targets, rows, advantages: &advantages, ent_coef: config.ent_coef };
            let parts = match self.descent.policy.learner() {
                Learner::Fused => self.fused(&minibatch, pool)?,
                Learner::Reference => self.reference(&minibatch)?,
            };
            let loss = parts.policy + config.ent_coef * parts.entropy + config.vf_coef * parts.value;
            add_minibatch(&mut totals, loss, &parts);
            steps.push(self.descent.step(&minibatch, (loss, &parts), learning_rate, config.max_grad_norm, pool)?);
        }

        if !is_first {
            self.descent.report(UpdateEvent::StatisticsBegin);
            self.descent.policy.network_mut().merge_obs(rollout, pool);
            self.descent.report(UpdateEvent::StatisticsEnd);
        }
        self.metrics(&totals, steps, learning_rate)
    }

    fn share(&mut self, ranks: Arc<dyn Ranks>) {
        self.descent.share(ranks);
    }

    fn memory(&self, overlapped: bool) -> Arc<dyn Memory> {
        self.descent.memory(overlapped)
    }

    fn device_memory(&self) -> Vec<(&'static str, usize)> {
        self.descent.device_memory()
    }

    fn fetch_policy(&mut self) -> Result<(), Error> {
        self.descent.fetch()
    }

    fn watch(&mut self, watch: Watch) {
        self.descent.watch = Some(watch);
    }

    fn set_probe(&mut self, probe: Probe) {
        self.descent.probe = Some(probe);
    }

    fn watch_device(&mut self, watch: DeviceWatch) -> Result<(), Error> {
        self.descent.watch_device(watch)
    }

    fn gap(&mut self) {
        self.descent.gap();
    }

    fn save(&self) -> Result<Snapshot, Error> {
        self.descent.save()
    }

    fn load(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        self.descent.load(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Precision, fixture};

    #[test]
    fn the_gradient_of_the_loss_equals_finite_differences() {
        let config = A2cConfig { ent_coef: 0.1, ..A2cConfig::default() };
        fixture::check_gradient(|policy, params, batch| loss(policy, params, batch, &config).unwrap().total);
    }

    #[test]
    fn the_kernel_s_gradient_equals_candle_s_and_so_do_micro_batches() {
        for case in fixture::Case::ALL {
            fixture::with_minibatch(case, |minibatch| {
                let agent = |learner, micro_batch| {
                    let config = A2cConfig { ent_coef: 0.1, micro_batch, ..A2cConfig::default() };
                    A2c::new(fixture::moved_policy(learner, case), config, 4, 0).unwrap()
                };
                let mut reference = agent(Learner::Reference, 0);
                reference.reference(minibatch).unwrap();
                let mut fused = agent(Learner::Fused, 0);
                fused.fused(minibatch, &Pool::new(2).unwrap()).unwrap();
                let mut micro = agent(Learner::Reference, 7);
                micro.reference(minibatch).unwrap();
                fixture::assert_near(&fused.descent.gradient, &reference.descent.gradient);
                fixture::assert_near(&micro.descent.gradient, &reference.descent.gradient);
            });
        }
    }

    #[test]
    fn a_gradient_of_16_bits_is_that_of_f32_but_for_rounding() {
        for case in fixture::Case::ALL {
            fixture::with_minibatch(case, |minibatch| {
                let gradient = |precision, micro_batch| {
                    let config = A2cConfig { ent_coef: 0.1, micro_batch, ..A2cConfig::default() };
                    let policy = fixture::moved_policy_in(Learner::Reference, precision, case);
                    let mut agent = A2c::new(policy, config, 4, 0).unwrap();
                    // The first loss scales are too large, and skipped steps halve them.
                    let finite = (0..16).any(|_| {
                        agent.reference(minibatch).unwrap();
                        let Descent { optimizer, gradient, .. } = &mut agent.descent;
                        optimizer.step(&mut vec![0.0; gradient.len()], gradient, 0.0, 1.0).is_some()
                    });
                    assert!(finite);
                    agent.descent.gradient
                };
                let expected = gradient(Precision::F32, 0);
                for (precision, micro_batch) in [(Precision::Bf16, 0), (Precision::F16, 0), (Precision::F16, 7)] {
                    fixture::assert_rounded(precision, &gradient(precision, micro_batch), &expected);
                }
            });
        }
    }

    /// Creates an agent and two steps of a bandit with equally good actions.
    ///
    /// A policy with probabilities (1/2, 1/2) took each action once; the agent has (0.6, 0.4), and its critic says 0.
    fn bandit(config: A2cConfig) -> (A2c, Rollout) {
        use rl_buffer::{ActionKind, Dtype, RolloutShape};
        let (space, actions) = (rl_envs::Space::vector(&[0.0], &[1.0]), rl_envs::ActionSpace::Discrete { n: 2, masked: false });
        let net = crate::NetConfig { hidden: Vec::new(), ..crate::NetConfig::default() };
        let mut policy = ActorCritic::unset(&space, &actions, &net).unwrap();
        let bias = policy.layout().tensors().iter().find(|tensor| tensor.name == "actor.0.bias").unwrap().range.start;
        policy.network_mut().change(|params| params[bias..bias + 2].copy_from_slice(&[0.6f32.ln(), 0.4f32.ln()]));
        let actions = ActionKind::Discrete { masked: None };
        let shape = RolloutShape { n_steps: 1, n_envs: 2, obs_len: 1, obs: Dtype::F32, actions };
        let mut rollout = Rollout::new(shape).unwrap();
        let mut columns = rollout.columns();
        columns.step(0).actions.either(|actions| actions[1] = 1, |_| panic!("discrete"));
        columns.log_probs.fill(0.5f32.ln());
        columns.steps.rewards.fill(0.01);
        columns.steps.terminated.fill(1);
        (A2c::new(policy, config, 2, 0).unwrap(), rollout)
    }

    #[test]
    fn equally_good_actions_teach_an_agent_nothing_with_lag() {
        let config = A2cConfig { n_steps: 1, vf_coef: 0.0, normalize_advantage: true, ..A2cConfig::default() };
        let (mut agent, rollout) = bandit(config);
        let before = agent.save().unwrap().params;
        let metrics = agent.update(&rollout, 1.0, &Pool::new(1).unwrap()).unwrap();
        // Normalized after the weighting with (1, 0.8), the advantages would be +-0.71 and the gradient's norm 0.5.
        assert_eq!(metrics.get("train/grad_norm"), Some(0.0));
        assert_eq!(agent.save().unwrap().params, before);
    }

    #[test]
    fn without_v_trace_all_values_are_today_s() {
        let config = A2cConfig { n_steps: 8, vtrace: false, ..A2cConfig::default() };
        let pool = Pool::new(1).unwrap();
        let (_, rollout, _) = fixture::rollout();
        let policy = || fixture::moved_policy(Learner::Fused, fixture::Case::Discrete);
        let (rewards, discounts) = (rollout.rewards(), (config.gamma, config.gae_lambda));
        let expected = Targets::off_policy(&policy(), &rollout, rewards, discounts, Refresh::Values, &pool).unwrap();
        let metrics = A2c::new(policy(), config, 4, 0).unwrap().update(&rollout, 1.0, &pool).unwrap();
        assert_eq!(metrics.get("train/explained_variance"), Some(expected.explained_variance()));
    }

    #[test]
    fn an_update_that_is_not_finite_is_skipped_counted_and_changes_nothing() {
        let (mut agent, mut rollout) = bandit(A2cConfig { n_steps: 1, ..A2cConfig::default() });
        let pool = Pool::new(1).unwrap();
        for bad in [f32::NAN, 1e30] {
            rollout.columns().steps.rewards[[0, 1]] = bad;
            let before = agent.save().unwrap();
            let metrics = agent.update(&rollout, 1.0, &pool).unwrap();
            assert_eq!(metrics.get("train/skipped_updates"), Some(1.0));
            assert!(metrics.get("train/grad_norm").unwrap().is_nan());
            let bits = |snapshot: &Snapshot| snapshot.params.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!((bits(&agent.save().unwrap()), agent.save().unwrap().moments), (bits(&before), before.moments));
        }
        rollout.columns().steps.rewards[[0, 1]] = 1.0;
        assert_eq!(agent.update(&rollout, 1.0, &pool).unwrap().get("train/skipped_updates"), Some(0.0));
    }

    #[test]
    fn minibatches_take_a_step_each() {
        for (batch_size, steps) in [(0, 1), (32, 1), (8, 4)] {
            let (policy, rollout, _) = fixture::rollout();
            let config = A2cConfig { n_steps: 8, batch_size, ..A2cConfig::default() };
            let mut agent = A2c::new(policy, config, 4, 0).unwrap();
            let metrics = agent.update(&rollout, 1.0, &Pool::new(1).unwrap()).unwrap();
            assert_eq!((agent.save().unwrap().counters.steps.taken, metrics.get("train/n_updates")), (steps, Some(1.0)));
        }
        assert!(matches!(A2cConfig { batch_size: 3, ..A2cConfig::default() }.check(8), Err(Error::BatchSize { .. })));
    }
}
