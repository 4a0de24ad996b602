//! Gradient descent of an actor-critic: what PPO and A2C have in common.
//!
//! A device's half is in on_device.rs.

use std::sync::{Arc, Mutex};

use candle_core::{Tensor, Var};
use ndarray::{CowArray, Ix2};
use rl_buffer::Rollout;
use rl_cuda::learner::UpdateTotals;
use rl_envs::{Permutation, Pool, Purpose, math};

use crate::agent::{Divergence, Observed, Shareable, UpdateEvent, Watch};
use crate::device::descent::{DeviceDescent, lock};
use crate::kernel::gradient::Slices;
use crate::learner::batch::{Minibatch, Parts, SampleLoss, TileSums};
use crate::learner::optim::{Optimizer, Rule};
use crate::network::normalize::{RunningReturns, Statistics, normalized_reward};
use crate::policy::distributions::Distribution;
use crate::probe::{Probe, Threads};
use crate::ranks::Ranks;
use crate::{ActorCritic, Counters, Error, Metrics, Policy as _, Snapshot};

/// Rejects a rollout whose columns do not continue trajectories, as `what` needs.
pub(crate) fn check_continues(rollout: &Rollout, what: &'static str) -> Result<(), Error> {
    let continues = rollout.contiguous || rollout.continues.len() == rollout.shape().n_envs;
    if continues { Ok(()) } else { Err(Error::Columns(what)) }
}

/// A policy, its optimizer, and the counters of its randomness.
pub(crate) struct Descent {
    pub(crate) policy: ActorCritic,
    pub(crate) optimizer: Optimizer,
    pub(crate) epochs: u64,
    pub(crate) seed: u64,
    /// Gradient of the current minibatch (P).
    pub(crate) gradient: Vec<f32>,
    pub(crate) slices: Slices<TileSums>,
    pub(super) order: Permutation,
    /// Statistics that normalize rewards, if they are normalized.
    pub(super) returns: Option<RunningReturns>,
    watch: Option<Watch>,
    pub(crate) probe: Option<Probe>,
    /// The device that learns, if any.
    ///
    /// The policy here is a copy, and the moments are not read.
    pub(crate) device: Option<Arc<Mutex<DeviceDescent>>>,
    /// True if the policy here has older parameters than the device's.
    pub(super) is_behind: bool,
}

impl Descent {
    pub(crate) fn new(policy: ActorCritic, rule: Rule, seed: u64, normalize_reward: bool) -> Self {
        let len = policy.params().len();
        let mut optimizer = Optimizer::new(rule, len);
        optimizer.set_precision(policy.network().precision());
        Self {
            policy,
            optimizer,
            epochs: 0,
            seed,
            gradient: vec![0.0; len],
            slices: Slices::new(),
            order: Permutation::default(),
            returns: normalize_reward.then(RunningReturns::default),
            watch: None,
            probe: None,
            device: None,
            is_behind: false,
        }
    }

    /// True if a device learns.
    pub(crate) fn on_device(&self) -> bool {
        self.device.is_some()
    }

    /// Returns the rewards to learn from, (T, N), normalized if that is set.
    ///
    /// Their statistics include this rollout.
    pub(crate) fn rewards<'a>(&mut self, rollout: &'a Rollout, gamma: f32, pool: &Pool) -> Result<CowArray<'a, f32, Ix2>, Error> {
        let scale = self.reward_scale(rollout, gamma, pool)?;
        let rewards = rollout.rewards();
        Ok(scale.map_or(rewards.into(), |inv_std| rewards.mapv(|reward| normalized_reward(reward, inv_std)).into()))
    }

    /// Adds a rollout to the statistics of rewards.
    ///
    /// Returns their inverse standard deviation, or `None` if rewards are not normalized.
    pub(super) fn reward_scale(&mut self, rollout: &Rollout, gamma: f32, pool: &Pool) -> Result<Option<f32>, Error> {
        let Some(returns) = &mut self.returns else { return Ok(None) };
        check_continues(rollout, "normalize_reward sums returns")?;
        returns.merge(rollout, gamma, pool);
        Ok(Some(returns.inv_std()))
    }

    /// Reports an event of the update; without statistics, none of theirs.
    pub(crate) fn report(&mut self, event: UpdateEvent) {
        let of_statistics = matches!(event, UpdateEvent::StatisticsBegin | UpdateEvent::StatisticsEnd);
        let normalizes = self.returns.is_some() || self.policy.obs_moments().is_some();
        self.watch.iter_mut().filter(|_| normalizes || !of_statistics).for_each(|watch| watch(event));
    }

    /// Writes the order of samples of the next epoch.
    pub(crate) fn shuffle(&mut self, rows: &mut [u32], pool: &Pool) {
        self.order.set(rows.len() as u32, self.seed, self.epochs, Purpose::Shuffle);
        self.order.write(rows, pool);
        self.epochs += 1;
    }

    /// Computes the gradient of a minibatch with the tile kernel.
    pub(crate) fn fused(&mut self, minibatch: &Minibatch<'_>, loss: impl SampleLoss, pool: &Pool) -> Result<Parts, Error> {
        let Self { policy, slices, gradient, probe, .. } = self;
        minibatch.gradient(policy, loss, Threads { pool, probe: probe.as_ref() }, slices, gradient)
    }

    /// Returns the parameters as a variable with gradients.
    pub(crate) fn variable(&self) -> candle_core::Result<Var> {
        Var::from_slice(self.policy.params(), self.policy.params().len(), self.policy.network().device())
    }

    /// Adds the gradient of `loss` with respect to `params` to the minibatch's.
    pub(crate) fn add_gradient(&mut self, params: &Var, loss: &Tensor) -> candle_core::Result<()> {
        self.gradient.iter_mut().zip(self.optimizer.gradient(params, loss)?).for_each(|(sum, grad)| *sum += grad);
        Ok(())
    }

    /// Takes one step along the gradient of `minibatch`, with the parts of its loss.
    ///
    /// Returns the gradient's norm before clipping, or `None` if the step was skipped because loss or gradient is not finite.
    pub(crate) fn step(
        &mut self,
        minibatch: &Minibatch<'_>,
        loss: f32,
        parts: &Parts,
        learning_rate: f32,
        max_norm: f32,
        pool: &Pool,
    ) -> Result<Option<f32>, Error> {
        let Self { policy, optimizer, gradient, probe, .. } = self;
        let threads = Threads { pool, probe: probe.as_ref() };
        let norm = if loss.is_finite() {
            let step = |params: &mut [f32]| optimizer.step_with(threads, params, gradient, learning_rate, max_norm);
            policy.network_mut().change_on(threads, step)
        } else {
            optimizer.skip();
            None
        };
        if optimizer.has_diverged() {
            let losses = [("policy_loss", parts.policy), ("value_loss", parts.value), ("entropy_loss", parts.entropy)];
            let minibatch = minibatch.tensors(policy)?;
            return Err(Error::Diverged(Box::new(Divergence::new(optimizer, gradient, learning_rate, &losses, minibatch))));
        }
        Ok(norm)
    }

    /// Mean standard deviation of continuous actions.
    pub(crate) fn mean_std(&self) -> Result<Option<f32>, Error> {
        let Distribution::Gaussian { log_std } = self.policy.distribution() else { return Ok(None) };
        let mut numbers = self.policy.params()[log_std.clone()].to_vec();
        if let (Some(device), true) = (&self.device, self.is_behind) {
            lock(device).log_std(&mut numbers)?;
        }
        Ok(Some(numbers.iter().map(|&x| math::exp(x)).sum::<f32>() / numbers.len() as f32))
    }

    /// Ends the trajectories of the rollouts so far.
    pub(crate) fn discontinue(&mut self) {
        if let Some(returns) = &mut self.returns {
            returns.forget_running();
        }
    }

    pub(crate) fn save(&self) -> Result<Snapshot, Error> {
        let mut policy = Snapshot::from(self.policy.weights());
        let mut moments = self.optimizer.moments();
        if let Some(device) = &self.device {
            let (params, there) = lock(device).saved()?;
            policy.params = params;
            moments.iter_mut().zip(there).for_each(|((_, here), there)| *here = there);
        }
        Ok(Snapshot {
            moments,
            statistics: Statistics { returns: self.returns.clone(), ..policy.statistics },
            counters: Counters { epochs: self.epochs, steps: self.optimizer.steps(), ..policy.counters },
            ..policy
        })
    }

    pub(crate) fn load(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        snapshot.check()?;
        let returns = &snapshot.statistics.returns;
        if returns.is_some() != self.returns.is_some() || returns.as_ref().is_some_and(|returns| !returns.fits()) {
            return Err(Error::Snapshot("its statistics of returns do not fit this agent".into()));
        }
        let mut policy = self.policy.clone();
        policy.load(snapshot)?;
        self.optimizer.load(&snapshot.moments, snapshot.counters.steps)?;
        self.policy = policy;
        self.returns.clone_from(returns);
        (self.epochs, self.is_behind) = (snapshot.counters.epochs, false);
        self.load_device()
    }
}

impl Observed for Descent {
    fn watch(&mut self, watch: Watch) {
        self.watch = Some(watch);
    }

    fn set_probe(&mut self, probe: Probe) {
        self.probe = Some(probe);
    }
}

impl Shareable for Descent {
    fn share(&mut self, ranks: Arc<dyn Ranks>) {
        self.device.iter().for_each(|device| lock(device).share(ranks.clone()));
        self.slices.share(ranks);
    }
}

/// Adds a minibatch to the sums of an update.
pub(crate) fn add_minibatch(totals: &mut UpdateTotals, loss: f32, parts: &Parts) {
    totals.minibatches += 1.0;
    totals.policy += parts.policy;
    totals.value += parts.value;
    totals.entropy += parts.entropy;
    totals.clip_fraction += parts.clip_fraction;
    totals.loss = loss;
}

/// Optimizer steps of an update.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepSums {
    taken: u32,
    skipped: u32,
    norm: f32,
}

impl StepSums {
    /// Returns those of an update on a device.
    pub(crate) fn of(totals: &UpdateTotals) -> Self {
        Self { taken: totals.taken as u32, skipped: totals.skipped as u32, norm: totals.norm }
    }

    /// Counts a step by its gradient's norm, or a skipped one.
    pub(crate) fn push(&mut self, norm: Option<f32>) {
        match norm {
            Some(norm) => (self.taken, self.norm) = (self.taken + 1, self.norm + norm),
            None => self.skipped += 1,
        }
    }

    /// Adds the steps of another optimizer.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { taken: self.taken + other.taken, skipped: self.skipped + other.skipped, norm: self.norm + other.norm }
    }

    /// Reports the mean norm of the steps taken, and the number of skipped ones.
    pub(crate) fn report(self, metrics: &mut Metrics) {
        match self.taken + self.skipped {
            0 => metrics.push_mean("train/grad_norm", 0.0, 0.0),
            _ => metrics.push("train/grad_norm", self.norm / self.taken as f32),
        }
        metrics.push("train/skipped_updates", self.skipped as f32);
    }
}
