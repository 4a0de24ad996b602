//! Gradient descent on a device: the half of [`Descent`] that talks to it.

use std::sync::{Arc, Mutex};

use rl_buffer::{Memory, Rollout, RolloutShape};
use rl_cuda::learner::{LearnerCounters, UpdateSettings, UpdateTotals};
use rl_envs::catalog::Entry;
use rl_envs::{Pool, Purpose};

use crate::agent::{Divergence, OnDevice, UpdateEvent};
use crate::collect::device::DeviceCollector;
use crate::device::descent::{DeviceDescent, lock};
use crate::device::times::DeviceWatch;
use crate::kernel::net::PackedNet;
use crate::kernel::sequences;
use crate::learner::batch::Minibatch;
use crate::learner::descent::Descent;
use crate::learner::optim::StepCount;
use crate::learner::targets::Refresh;
use crate::learner::{BatchSizes, Plan};
use crate::ranks::Ranks;
use crate::{Error, NamedTensor};

impl Descent {
    /// Moves learning to `device`, for rollouts of `shape`.
    ///
    /// The reference learner moves candle's tensors instead. `refresh` is what the latest policy computes for a
    /// rollout of an older one.
    ///
    /// # Errors
    /// [`Error::Setting`] if there are no kernels for the policy; [`Error::Device`].
    pub(crate) fn move_to(
        mut self,
        device: &rl_cuda::Device,
        shape: RolloutShape,
        sizes: BatchSizes,
        refresh: Refresh,
    ) -> Result<Self, Error> {
        if self.policy.network_mut().move_to(device)? {
            return Ok(self);
        }
        let (rule, normalize_reward) = (self.optimizer.rule(), self.returns.is_some());
        let device = DeviceDescent::new(device, &self.policy, rule, shape, sizes, normalize_reward, refresh)?;
        self.device = Some(Arc::new(Mutex::new(device)));
        self.load_device()?;
        Ok(self)
    }

    /// Copies the state to the device, if one learns.
    pub(super) fn load_device(&mut self) -> Result<(), Error> {
        let Self { device, policy, optimizer, seed, epochs, .. } = self;
        device.as_ref().map_or(Ok(()), |device| lock(device).load(policy, optimizer, *seed, *epochs))
    }

    /// Creates environments of the catalog on the device that learns.
    ///
    /// With other ranks, those that are this rank's share.
    ///
    /// # Errors
    /// [`Error::Device`], for instance without memory or without kernels for the environment.
    pub(crate) fn collector(&self, env: &Entry, seed: u64, ranks: Option<&Arc<dyn Ranks>>) -> Result<DeviceCollector, Error> {
        match (&self.device, self.policy.network().kernel()) {
            (Some(device), Some(PackedNet { net, .. })) => DeviceCollector::new(device, net, env, seed, ranks),
            _ => Err(Error::NoDevice),
        }
    }

    /// Updates on the device by the text `learn`, and copies the results here.
    ///
    /// # Errors
    /// [`Error::Diverged`] with the minibatch at which learning stopped; [`Error::Device`].
    pub(crate) fn update_on_device(
        &mut self,
        rollout: &Rollout,
        plan: &Plan,
        settings: &UpdateSettings,
        pool: &Pool,
        learn: impl Fn(&mut DeviceDescent, &Plan) -> Result<(), Error>,
    ) -> Result<UpdateTotals, Error> {
        self.report(UpdateEvent::TargetsBegin);
        let inv_std = self.reward_scale(rollout, plan.gamma, pool)?;
        let device = self.device.clone().ok_or(Error::NoDevice)?;
        let mut device = lock(&device);
        let is_first = self.policy.awaits_obs();
        if is_first {
            self.merge_obs_on_device(&mut device, rollout, pool)?;
        }
        device.update(plan, settings, rollout, rollout.is_stale(self.policy.version()), inv_std, learn)?;
        // The device computes targets and gradients while this thread waits for the results of both.
        self.report(UpdateEvent::TargetsEnd);
        let (totals, counters) = device.results()?;
        self.epochs = counters.epochs;
        // The policy that the update started from: its version changes below.
        let diverged = counters.stop == LearnerCounters::DIVERGED;
        let diverged = diverged.then(|| self.last_minibatch(&device, rollout, plan, totals.minibatches as usize)).transpose()?;
        let Self { policy, optimizer, gradient, .. } = self;
        policy.network_mut().set_version(counters.changes);
        optimizer.set_steps(StepCount { taken: counters.taken, skipped: counters.skipped });
        self.is_behind = rollout.on_device && diverged.is_none();
        if !self.is_behind {
            device.fetch(policy)?;
        }
        if let Some(minibatch) = diverged {
            device.last_gradient(gradient)?;
            let [policy_loss, value_loss, entropy_loss] = totals.last;
            let losses = [("policy_loss", policy_loss), ("value_loss", value_loss), ("entropy_loss", entropy_loss)];
            let rate = settings.learning_rate;
            return Err(Error::Diverged(Box::new(Divergence::new(optimizer, gradient, rate, &losses, minibatch))));
        }
        if !is_first {
            self.merge_obs_on_device(&mut device, rollout, pool)?;
        }
        Ok(totals)
    }

    /// Returns the last of an update's minibatches as tensors, for a dump.
    fn last_minibatch(
        &mut self,
        device: &DeviceDescent,
        rollout: &Rollout,
        plan: &Plan,
        n_minibatches: usize,
    ) -> Result<Vec<NamedTensor>, Error> {
        let (rollout, targets) = device.here(rollout)?;
        let RolloutShape { n_steps, n_envs, state_len, .. } = rollout.shape();
        let mut order: Vec<u32> = (0..if state_len > 0 { n_envs } else { rollout.len() } as u32).collect();
        if plan.shuffled {
            self.order.set(order.len() as u32, self.seed, self.epochs.saturating_sub(1), Purpose::Shuffle);
            self.order.write(&mut order, &Pool::default());
        }
        if state_len > 0 {
            let columns = std::mem::take(&mut order);
            sequences::set_rows(&columns, device.batch_size() / n_steps, n_steps, self.policy.params().len(), &mut order);
        }
        let all: Vec<_> = order.chunks(device.batch_size()).collect();
        let rows = all[n_minibatches.saturating_sub(1) % all.len()];
        let mut advantages = Vec::new();
        targets.advantages_of(rows, plan.normalize, &mut advantages);
        let minibatch = Minibatch { rollout: &rollout, targets: &targets, rows, advantages: &advantages, ent_coef: 0.0 };
        minibatch.tensors(&self.policy)
    }

    /// Adds a rollout's observations to the statistics, if they are normalized.
    ///
    /// The host's statistics are copied to the device.
    fn merge_obs_on_device(&mut self, device: &mut DeviceDescent, rollout: &Rollout, pool: &Pool) -> Result<(), Error> {
        let network = self.policy.network_mut();
        if network.obs_moments().is_none() {
            return Ok(());
        }
        let there = if rollout.on_device { device.moments()? } else { None };
        match there {
            Some(slices) => network.merge_moments(&slices),
            None if rollout.on_device => network.merge_obs(&device.rollout_here(rollout)?, pool),
            None => network.merge_obs(rollout, pool),
        }
        let counters = LearnerCounters { changes: self.policy.version(), ..device.counters()? };
        device.set_statistics(&self.policy, &counters)
    }
}

impl OnDevice for Descent {
    fn memory(&self, overlapped: bool) -> Arc<dyn Memory> {
        self.device.as_ref().map_or_else(<dyn Memory>::host, |device| lock(device).memory(overlapped))
    }

    fn memory_use(&self) -> Vec<(&'static str, usize)> {
        self.device.as_ref().map_or_else(Vec::new, |device| lock(device).memory_use())
    }

    fn fetch_policy(&mut self) -> Result<(), Error> {
        let (Some(device), true) = (&self.device, self.is_behind) else { return Ok(()) };
        lock(device).fetch(&mut self.policy)?;
        self.is_behind = false;
        Ok(())
    }

    fn watch_device(&mut self, watch: DeviceWatch) -> Result<(), Error> {
        let Some(device) = &self.device else { return Ok(()) };
        let device = lock(device);
        Ok(device.times.begin(&device.stream, watch)?)
    }
}
