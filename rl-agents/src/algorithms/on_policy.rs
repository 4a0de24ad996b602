//! The update of PPO and A2C, which learn from a rollout and forget it.
//!
//! An algorithm is its settings, which implement [`Method`]: the loss in three forms, the optimizer, and the few choices in which
//! it differs. [`OnPolicy::update`](Agent::update) is the rest. Read it first.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use candle_core::Var;
use ndarray::{CowArray, Ix2};
use rl_buffer::{Rollout, RolloutShape};
use rl_cuda::learner::{UpdateSettings, UpdateTotals};
use rl_envs::Pool;
use rl_envs::catalog::Entry;

use crate::agent::{Observed, OnDevice, Shareable};
use crate::algorithms::method::Method;
use crate::kernel::sequences;
use crate::learner::batch::{Minibatch, Parts, TensorBatch};
use crate::learner::descent::{Descent, StepSums, add_minibatch};
use crate::learner::targets::Targets;
use crate::learner::{BatchSizes, Learner, Plan};
use crate::probe::{self, Stage};
use crate::ranks::Ranks;
use crate::{ActorCritic, Agent, DeviceCollector, Error, Layout, LearnerKind, Metrics, Policy, Snapshot, UpdateEvent};

/// An agent with the method of its settings `C`.
///
/// [`Ppo`](crate::Ppo) or [`A2c`](crate::A2c).
pub struct OnPolicy<C> {
    pub(crate) descent: Descent,
    config: C,
}

#[expect(private_bounds, reason = "the methods are our algorithms")]
impl<C: Method> OnPolicy<C> {
    /// Creates an agent from a policy, for rollouts of `n_envs` environments.
    ///
    /// `seed` determines the order of samples.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::BatchSize`] or [`Error::Setting`] for the first setting that is wrong, or that a policy with
    /// memory does not allow.
    pub fn new(policy: ActorCritic, config: C, n_envs: usize, seed: u64) -> Result<Self, Error> {
        config.check(n_envs)?;
        config.common().check_memory(policy.state_len() > 0, policy.learner())?;
        Ok(Self { descent: Descent::new(policy, C::OPTIMIZER, seed, config.common().normalize_reward), config })
    }

    /// Learns on `device`, from rollouts of this shape with the policy's states.
    ///
    /// The parameters are the same as on a CPU with fused multiply-add, bit for bit. The policy to act with is a copy in the
    /// host's memory.
    ///
    /// # Errors
    /// [`Error::Setting`] for a setting that the device's kernels do not support; [`Error::Device`], for instance without memory.
    pub fn on_device(self, device: &rl_cuda::Device, shape: RolloutShape) -> Result<Self, Error> {
        let Self { descent, config } = self;
        let common = config.common();
        let shape = shape.with_state_len(descent.policy.state_len());
        let batch_size = common.samples(shape.n_steps * shape.n_envs);
        let sizes = BatchSizes { batch_size, micro_batch: common.micro_batch };
        Ok(Self { descent: descent.move_to(device, shape, sizes, config.refresh())?, config })
    }

    /// Creates environments of the catalog on the device that learns.
    ///
    /// Their rollouts are learnt from where they are. `seed` is the environments' and the acting policy's.
    /// With `ranks`, creates this rank's share of the environments; every rank has the rollouts of all.
    ///
    /// # Errors
    /// [`Error::Device`], for instance if the environment has no kernels.
    pub fn collector(&self, env: &Entry, seed: u64, ranks: Option<&Arc<dyn Ranks>>) -> Result<DeviceCollector, Error> {
        self.descent.collector(env, seed, ranks)
    }

    /// Returns the constants of an update from `n_samples` samples.
    fn plan(&self, n_samples: usize) -> Plan {
        let common = self.config.common();
        Plan {
            objective: C::OBJECTIVE,
            gamma: common.gamma,
            lambda: common.gae_lambda,
            n_samples,
            batch_size: common.samples(n_samples),
            n_epochs: self.config.n_epochs(),
            shuffled: self.config.shuffles(n_samples),
            normalize: common.normalize_advantage,
        }
    }

    /// Returns the settings of a device's kernels.
    fn device_settings(&self, remaining: f32) -> UpdateSettings {
        let common = self.config.common();
        let settings = UpdateSettings {
            learning_rate: common.learning_rate.at(remaining),
            max_norm: common.max_grad_norm,
            ent_coef: common.ent_coef,
            vf_coef: common.vf_coef,
            ..UpdateSettings::default()
        };
        self.config.on_device(remaining, settings)
    }

    /// Returns the metrics of an update.
    fn metrics(&self, totals: &UpdateTotals, steps: StepSums, remaining: f32) -> Result<Metrics, Error> {
        let n = totals.minibatches;
        let mut metrics = Metrics::default();
        metrics.push("train/loss", totals.loss);
        metrics.push(C::POLICY_LOSS, totals.policy / n);
        metrics.push("train/value_loss", totals.value / n);
        metrics.push("train/entropy_loss", totals.entropy / n);
        self.config.report_sums(totals, &mut metrics);
        steps.report(&mut metrics);
        metrics.push("train/explained_variance", totals.explained_variance);
        self.descent.mean_std()?.into_iter().for_each(|std| metrics.push("train/std", std));
        metrics.push("train/learning_rate", self.config.common().learning_rate.at(remaining));
        self.config.report_schedules(remaining, &mut metrics);
        metrics.push("train/n_updates", self.descent.epochs as f32);
        Ok(metrics)
    }

    /// [`Agent::update`] on the CPU.
    fn update_here(
        &mut self,
        rollout: &Rollout,
        plan: &Plan,
        remaining: f32,
        pool: &Pool,
    ) -> Result<(UpdateTotals, StepSums), Error> {
        let Self { descent, config } = self;
        descent.report(UpdateEvent::StatisticsBegin);
        let rewards = descent.rewards(rollout, plan.gamma, pool)?;
        // Without lag, a rollout is learnt from with the statistics that it was collected with; the first one had none.
        let is_first = descent.policy.awaits_obs();
        if is_first {
            descent.policy.network_mut().merge_obs(rollout, pool);
        }
        descent.report(UpdateEvent::StatisticsEnd);
        let mut host = Host { descent, config, rollout, rewards, remaining, pool, learning: Learning::default() };
        learn(&mut host, plan)?;
        let Host { descent, learning: Learning { totals, steps, .. }, .. } = host;
        if !is_first {
            descent.report(UpdateEvent::StatisticsBegin);
            descent.policy.network_mut().merge_obs(rollout, pool);
            descent.report(UpdateEvent::StatisticsEnd);
        }
        Ok((totals, steps))
    }
}

/// Learns from a rollout: the text of an update, for every learner.
///
/// A device captures a minibatch as a graph.
fn learn(learner: &mut impl Learner, plan: &Plan) -> Result<(), Error> {
    learner.targets(plan)?;
    for _ in 0..plan.n_epochs {
        learner.epoch(plan)?;
        for minibatch in plan.minibatches() {
            let learnt = learner.minibatch(plan, |learner| {
                learner.gradient(plan, minibatch)?;
                learner.step()
            });
            if learnt?.is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The CPU as a learner, for one rollout.
pub(crate) struct Host<'a, C> {
    descent: &'a mut Descent,
    config: &'a C,
    rollout: &'a Rollout,
    /// Rewards to learn from, (T, N).
    rewards: CowArray<'a, f32, Ix2>,
    remaining: f32,
    pool: &'a Pool,
    learning: Learning,
}

/// State of an update on the CPU.
#[derive(Default)]
struct Learning {
    targets: Targets,
    /// Samples in the order of the pass.
    rows: Vec<u32>,
    /// With memory, the rollout's columns in the order of the pass; otherwise empty.
    columns: Vec<u32>,
    /// Samples of the current minibatch within the pass.
    minibatch: Range<usize>,
    /// Advantages of the current minibatch.
    advantages: Vec<f32>,
    /// Loss of the current minibatch, and its parts.
    loss: f32,
    parts: Parts,
    /// Sum of the KL divergences of the pass, and number of its minibatches so far.
    kl: f32,
    n: f32,
    totals: UpdateTotals,
    steps: StepSums,
}

impl<C: Method> Learner for Host<'_, C> {
    fn targets(&mut self, plan: &Plan) -> Result<(), Error> {
        let Self { descent, config, rollout, rewards, pool, learning, .. } = self;
        descent.report(UpdateEvent::TargetsBegin);
        let policy = &descent.policy;
        learning.targets = if rollout.is_stale(policy.version()) {
            Targets::off_policy(policy, rollout, rewards.view(), plan.gamma, plan.lambda, config.refresh(), pool)?
        } else {
            Targets::new(policy, rollout, rewards.view(), plan.gamma, plan.lambda)?
        };
        descent.report(UpdateEvent::TargetsEnd);
        probe::report(descent.probe.as_ref(), Stage::Targets);
        learning.totals.explained_variance = learning.targets.explained_variance();
        learning.rows = (0..plan.n_samples as u32).collect();
        let n_columns = if descent.policy.state_len() > 0 { rollout.shape().n_envs } else { 0 };
        learning.columns = (0..n_columns as u32).collect();
        learning.advantages.reserve(plan.batch_size);
        Ok(())
    }

    fn epoch(&mut self, plan: &Plan) -> Result<(), Error> {
        let Self { descent, rollout, pool, learning, .. } = self;
        let Learning { rows, columns, .. } = learning;
        let remembers = !columns.is_empty();
        let order = if remembers { &mut *columns } else { &mut *rows };
        if plan.shuffled {
            descent.shuffle(order, pool);
        } else {
            descent.epochs += 1;
        }
        if remembers {
            let n_steps = rollout.shape().n_steps;
            sequences::set_rows(columns, plan.batch_size / n_steps, n_steps, descent.policy.params().len(), rows);
        }
        (learning.n, learning.kl) = (0.0, 0.0);
        Ok(())
    }

    fn gradient(&mut self, plan: &Plan, minibatch: Range<usize>) -> Result<(), Error> {
        let Learning { targets, rows, advantages, .. } = &mut self.learning;
        targets.advantages_of(&rows[minibatch.clone()], plan.normalize, advantages);
        self.learning.minibatch = minibatch;
        probe::report(self.descent.probe.as_ref(), Stage::Shuffle);
        let Self { descent, config, rollout, remaining, pool, learning, .. } = self;
        let Learning { targets, rows, minibatch, advantages, .. } = &*learning;
        let common = config.common();
        let rows = &rows[minibatch.clone()];
        let minibatch = Minibatch { rollout, targets, rows, advantages, ent_coef: common.ent_coef };
        let parts = match descent.policy.learner() {
            LearnerKind::Fused => config.fused(descent, &minibatch, *remaining, pool)?,
            LearnerKind::Reference => reference(descent, *config, &minibatch, *remaining)?,
        };
        let loss = parts.policy + common.ent_coef * parts.entropy + common.vf_coef * parts.value;
        add_minibatch(&mut learning.totals, loss, &parts);
        learning.n += 1.0;
        learning.kl += parts.kl;
        learning.totals.approx_kl = learning.kl / learning.n;
        (learning.loss, learning.parts) = (loss, parts);
        Ok(())
    }

    fn step(&mut self) -> Result<ControlFlow<()>, Error> {
        if self.config.ends_at(self.learning.parts.kl) {
            return Ok(ControlFlow::Break(()));
        }
        let common = self.config.common();
        let Self { descent, rollout, remaining, pool, learning, .. } = self;
        let Learning { targets, rows, minibatch, advantages, loss, parts, .. } = &*learning;
        let rows = &rows[minibatch.clone()];
        let minibatch = Minibatch { rollout, targets, rows, advantages, ent_coef: common.ent_coef };
        let rate = common.learning_rate.at(*remaining);
        let norm = descent.step(&minibatch, *loss, parts, rate, common.max_grad_norm, pool)?;
        learning.steps.push(norm);
        Ok(ControlFlow::Continue(()))
    }
}

/// Computes the gradient of a minibatch with candle operations.
fn reference<C: Method>(descent: &mut Descent, config: &C, minibatch: &Minibatch<'_>, remaining: f32) -> Result<Parts, Error> {
    let Minibatch { rollout, targets, rows, advantages, .. } = *minibatch;
    let micro_batch = if config.common().micro_batch == 0 { rows.len() } else { config.common().micro_batch };
    descent.gradient.fill(0.0);
    let mut parts = Parts::default();
    for (micro, advantages) in rows.chunks(micro_batch).zip(advantages.chunks(micro_batch)) {
        let batch = TensorBatch::gather(&descent.policy, rollout, targets, micro, advantages)?;
        let params: Var = descent.variable()?;
        let terms = config.reference(&descent.policy, &params, &batch, targets, micro, remaining)?;
        let share = micro.len() as f32 / rows.len() as f32;
        probe::report(descent.probe.as_ref(), Stage::Forward);
        descent.add_gradient(&params, &(&terms.total * f64::from(share))?)?;
        probe::report(descent.probe.as_ref(), Stage::Backward);
        parts.policy += share * terms.policy.to_scalar::<f32>()?;
        parts.value += share * terms.value.to_scalar::<f32>()?;
        parts.entropy += share * terms.entropy.to_scalar::<f32>()?;
        parts.kl += share * terms.kl;
        parts.clip_fraction += share * terms.clip_fraction;
    }
    Ok(parts)
}

/// Gradients of one minibatch, for tests of an algorithm.
#[cfg(test)]
#[expect(private_bounds, reason = "the methods are our algorithms")]
impl<C: Method> OnPolicy<C> {
    pub(crate) fn fused(&mut self, minibatch: &Minibatch<'_>, remaining: f32, pool: &Pool) -> Result<Parts, Error> {
        self.config.fused(&mut self.descent, minibatch, remaining, pool)
    }

    pub(crate) fn reference(&mut self, minibatch: &Minibatch<'_>, remaining: f32) -> Result<Parts, Error> {
        reference(&mut self.descent, &self.config, minibatch, remaining)
    }
}

impl<C: Method> Agent for OnPolicy<C> {
    fn policy(&self) -> &dyn Policy {
        &self.descent.policy
    }

    fn layout(&self) -> &Layout {
        self.descent.policy.layout()
    }

    fn update(&mut self, rollout: &Rollout, remaining: f32, pool: &Pool) -> Result<Metrics, Error> {
        let plan = self.plan(rollout.len());
        let (n_steps, n_envs) = (rollout.shape().n_steps, rollout.shape().n_envs);
        let whole_columns = self.descent.policy.state_len() == 0 || plan.batch_size.is_multiple_of(n_steps);
        if !(rollout.len().is_multiple_of(plan.batch_size) && whole_columns) {
            return Err(Error::BatchSize { batch_size: plan.batch_size, rollout: rollout.len(), n_steps, n_envs });
        }
        let (totals, steps) = if self.descent.on_device() {
            let settings = self.device_settings(remaining);
            let totals = self.descent.update_on_device(rollout, &plan, &settings, pool, learn)?;
            (totals, StepSums::of(&totals))
        } else {
            self.update_here(rollout, &plan, remaining, pool)?
        };
        self.metrics(&totals, steps, remaining)
    }

    fn save(&self) -> Result<Snapshot, Error> {
        self.descent.save()
    }

    fn load(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        self.descent.load(snapshot)
    }

    fn discontinue(&mut self) {
        self.descent.discontinue();
    }

    fn observed(&mut self) -> Option<&mut dyn Observed> {
        Some(&mut self.descent)
    }

    fn shared(&mut self) -> Option<&mut dyn Shareable> {
        Some(&mut self.descent)
    }

    fn device(&mut self) -> Option<&mut dyn OnDevice> {
        self.descent.on_device().then_some(&mut self.descent as &mut dyn OnDevice)
    }
}
