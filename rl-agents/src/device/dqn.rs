//! Q-learning on a device: the twin of [`Dqn`](crate::Dqn)'s updates.
//!
//! The host keeps the transitions and draws minibatches. A minibatch is gathered into page-locked memory and copied to the device
//! while the device learns from the one before it. Alternatively only its indices are copied, and the device gathers it from a
//! copy of the transitions. Every kernel has the operations of the CPU's in the same order, so the parameters are the same, bit
//! for bit, on a CPU with fused multiply-add.

use std::ops::Range;
use std::sync::Arc;

use rl_buffer::{Batch, DeviceBatch, DeviceReplay, Memory, Pinned, ReplayBuffer};
use rl_cuda::learner::{
    LearnerCounters, LearnerKernels, LearnerState, MinibatchSlices, NextColumns, QLearningKernels, TD_TERMS, TdColumns, Terms,
    UpdateSettings, UpdateTotals,
};
use rl_cuda::{Buffer, CpuAccess, Device, Event, PinnedSlab, Stream, ViewMut};
use rl_envs::Actions;

use crate::agent::OnDevice;
use crate::device::Queue;
use crate::device::descent::{download, held, minibatch_slices, unsupported, with_rest};
use crate::device::exchange::{DeviceExchange, SharedBuffers};
use crate::device::net::{DeviceNet, SlicedMinibatch};
use crate::device::normalize::Inputs;
use crate::device::times::{DevicePhase, DeviceTimes, DeviceWatch};
use crate::kernel::net::PackedNet;
use crate::learner::BatchSizes;
use crate::learner::optim::{Optimizer, Rule, StepCount};
use crate::ranks::Ranks;
use crate::{Error, QNetwork};

/// Memory of a minibatch, on the host and on the device.
#[derive(Debug)]
struct Slot {
    here: Batch,
    there: DeviceBatch,
    targets: Buffer<f32>,
    errors: PinnedSlab<f32>,
    /// Counters after the device learnt from the minibatch.
    counters: PinnedSlab<u64>,
    /// End of the update, until somebody waits for it.
    learnt: Option<Event>,
}

/// A minibatch, and what was computed from it.
#[derive(Debug)]
pub(crate) struct Repeated<'a> {
    pub(crate) batch: &'a Batch,
    pub(crate) targets: Vec<f32>,
    pub(crate) gradient: Vec<f32>,
    /// Mean loss.
    pub(crate) loss: f32,
    /// Mean Q.
    pub(crate) q_mean: f32,
}

/// Chains of layers whose outputs are Q, or its parts.
#[derive(Clone, Copy, Debug)]
enum Heads {
    Plain(usize),
    /// Advantages, and the value.
    Dueling([usize; 2]),
}

/// Networks and their optimizer on a device, with the memory of an update.
#[derive(Debug)]
pub(crate) struct DeviceDqn {
    stream: Stream,
    /// Stream of the copies and gathers of minibatches.
    copies: Stream,
    replay: Option<DeviceReplay>,
    kernels: LearnerKernels,
    q_learning: QLearningKernels,
    net: DeviceNet,
    heads: Heads,
    inputs: Inputs,
    params: Buffer<f32>,
    target: Buffer<f32>,
    moments: [Buffer<f32>; 2],
    gradient: Buffer<f32>,
    partial: Buffer<f32>,
    state: LearnerState,
    slices: MinibatchSlices,
    /// Q of the next observations, (B, A), by target network and online one.
    ///
    /// Then Q of the observations, and its gradient.
    q: [Buffer<f32>; 2],
    errors: Buffer<f32>, // (B)
    terms: Buffer<f32>,  // (2, B)
    scratch: Buffer<f64>,
    squares: Buffer<f64>,
    slots: [Slot; 2],
    host_params: PinnedSlab<f32>,
    times: DeviceTimes,
    /// Exchange with the devices of other ranks, if there are any.
    exchange: Option<DeviceExchange>,
}

impl OnDevice for DeviceDqn {
    /// Rollouts go to the replay memory, which is the host's.
    fn memory(&self, _overlapped: bool) -> Arc<dyn Memory> {
        <dyn Memory>::host()
    }

    fn memory_use(&self) -> Vec<(&'static str, usize)> {
        let [m, v] = &self.moments;
        let parts = vec![
            ("replay memory", self.replay.as_ref().map_or(0, DeviceReplay::bytes)),
            ("minibatches", self.slots.iter().map(|slot| slot.there.bytes() + slot.targets.bytes()).sum()),
            ("parameters and moments", self.params.bytes() + self.target.bytes() + m.bytes() + v.bytes()),
            ("gradients", self.gradient.bytes() + self.partial.bytes()),
            ("activations of a minibatch", self.net.bytes()),
        ];
        with_rest(parts, self.stream.device(), "action values and sums")
    }

    /// Environments are on the host.
    fn fetch_policy(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn watch_device(&mut self, watch: DeviceWatch) -> Result<(), Error> {
        Ok(self.times.begin(&self.stream, watch)?)
    }
}

impl DeviceDqn {
    /// Allocates memory for minibatches of transitions, and loads the kernels.
    ///
    /// With a copy of the replay memory if `copied`.
    ///
    /// # Errors
    /// [`Error::Setting`] if there are no kernels for the network; [`Error::Buffer`] and [`Error::Device`].
    pub(crate) fn new(
        device: &Device,
        network: &QNetwork,
        replay: &ReplayBuffer,
        copied: bool,
        BatchSizes { batch_size: b, micro_batch }: BatchSizes,
    ) -> Result<Self, Error> {
        let shape = replay.shape();
        let (chains, n_actions, network) = (network.chains(), network.n_actions(), network.network());
        let Some(PackedNet { net, .. }) = network.kernel() else { return Err(unsupported("learner", "reference".into())) };
        let n_params = network.params().len();
        let slices = minibatch_slices(b, n_params, net);
        let floats = |len: usize| Buffer::<f32>::zeros(device, len);
        let memory: Arc<dyn Memory> = Arc::new(Pinned(device.clone()));
        let slot = || {
            Ok::<_, Error>(Slot {
                here: Batch::new_in(shape, b, &memory)?,
                there: DeviceBatch::new(device, shape, b)?,
                targets: floats(b)?,
                errors: PinnedSlab::zeros(Some(device), b, CpuAccess::ReadWrite)?,
                counters: PinnedSlab::zeros(Some(device), LearnerCounters::LEN, CpuAccess::ReadWrite)?,
                learnt: None,
            })
        };
        Ok(Self {
            stream: device.stream()?,
            copies: device.stream()?,
            replay: copied.then(|| DeviceReplay::new(device, replay, b)).transpose()?,
            kernels: LearnerKernels::new(device)?,
            q_learning: QLearningKernels::new(device)?,
            net: DeviceNet::new(device, net, held(&slices, micro_batch), b, true)?,
            heads: chains.1.map_or(Heads::Plain(chains.0), |value| Heads::Dueling([chains.0, value])),
            inputs: Inputs::new(device, network, shape.obs_len)?,
            params: floats(n_params)?,
            target: floats(n_params)?,
            moments: [floats(n_params)?, floats(n_params)?],
            gradient: floats(n_params)?,
            partial: floats(slices.rows() * n_params)?,
            state: LearnerState::new(device)?,
            slices,
            q: [floats(b * n_actions)?, floats(b * n_actions)?],
            errors: floats(b)?,
            terms: floats(TD_TERMS * b)?,
            scratch: Buffer::zeros(device, LearnerKernels::sum_scratch(n_params))?,
            squares: Buffer::zeros(device, 1)?,
            slots: [slot()?, slot()?],
            host_params: PinnedSlab::zeros(Some(device), n_params, CpuAccess::ReadWrite)?,
            times: DeviceTimes::default(),
            exchange: None,
        })
    }

    /// Computes later gradients together with the devices of other ranks.
    pub(crate) fn share(&mut self, ranks: Arc<dyn Ranks>) {
        self.exchange = Some(DeviceExchange::new(ranks));
    }

    /// Copies parameters, moments and counters to the device.
    pub(crate) fn load(&mut self, online: &QNetwork, target: &QNetwork, optimizer: &Optimizer) -> Result<(), Error> {
        let stream = &self.stream;
        stream.upload(&self.params.view_mut(), online.params())?;
        stream.upload(&self.target.view_mut(), target.params())?;
        for (to, from) in self.moments.iter_mut().zip(optimizer.vectors()) {
            stream.upload(&to.view_mut(), from)?;
        }
        let StepCount { taken, skipped } = optimizer.steps();
        let counters = LearnerCounters { taken, skipped, changes: online.version(), ..LearnerCounters::default() };
        Ok(self.state.set_counters(stream, &counters)?)
    }

    /// Begins the updates after some steps of the environments.
    pub(crate) fn begin(&mut self, learning_rate: f32, max_norm: f32, rule: Rule) -> Result<(), Error> {
        let settings = match rule {
            Rule::Adam { beta1, beta2, epsilon } => UpdateSettings { beta1, beta2, epsilon, ..UpdateSettings::default() },
            Rule::RmsProp { .. } => return Err(unsupported("optimizer", "RMSprop".into())),
        };
        self.state.set_settings(&self.stream, &UpdateSettings { learning_rate, max_norm, ..settings })?;
        Ok(self.kernels.begin(&self.stream, &mut self.state)?)
    }

    /// Returns the minibatch of a slot, to draw transitions into.
    pub(crate) fn batch(&mut self, slot: usize) -> &mut Batch {
        &mut self.slots[slot].here
    }

    /// Forgets the transitions on the device, after the host's have changed.
    pub(crate) fn clear_replay(&mut self) {
        self.replay.iter_mut().for_each(DeviceReplay::clear);
    }

    /// Enqueues the copy of a slot's minibatch and its targets, without waiting.
    ///
    /// The update with the slot's last minibatch has ended ([`DeviceDqn::has_diverged`]).
    /// The best next action is the online network's if `double`, else the target network's.
    pub(crate) fn targets(&mut self, slot: usize, double: bool, replay: &ReplayBuffer) -> Result<(), Error> {
        let Slot { here, there, .. } = &mut self.slots[slot];
        match &mut self.replay {
            None => there.upload(&self.copies, here)?,
            Some(copy) => {
                copy.update(&self.copies, replay)?;
                copy.gather(&self.copies, here, there)?;
            }
        }
        self.stream.wait(&self.copies.record()?)?;
        self.times.mark(&self.stream, DevicePhase::Learning)?;
        self.set_targets(slot, double)
    }

    /// Enqueues the targets of a slot's minibatch.
    fn set_targets(&mut self, slot: usize, double: bool) -> Result<(), Error> {
        let own = self.own(slot);
        let Self { stream, kernels, q_learning, slots, params, target, inputs, net, heads, q: [first, second], .. } = self;
        let Slot { there, targets, .. } = &mut slots[slot];
        let (batch, n, queue) = (there.columns(), targets.len(), Queue { stream, kernels });
        let obs = |samples: Range<usize>, x: &ViewMut<'_, f32>| inputs.write_samples(queue, &batch.next_obs, samples, x);
        net.forward_samples(queue, &target.view(), own.clone(), obs)?;
        read_q(stream, q_learning, net, *heads, n, first)?;
        if double {
            net.forward_samples(queue, &params.view(), own, obs)?;
            read_q(stream, q_learning, net, *heads, n, second)?;
        }
        let next = NextColumns {
            q: first.view(),
            by: if double { second.view() } else { first.view() },
            masks: (!batch.next_masks.is_empty()).then_some(batch.next_masks),
            rewards: batch.rewards,
            discounts: batch.discounts,
        };
        Ok(q_learning.targets(stream, &next, &targets.view_mut())?)
    }

    /// Samples of a slot's minibatch that pass through the network here.
    ///
    /// The targets and the loss of other ranks' samples are computed from stale outputs. Their loss is replaced.
    fn own(&self, slot: usize) -> Range<usize> {
        let all = 0..self.slots[slot].targets.len();
        self.exchange.as_ref().map_or(all, |exchange| self.slices.samples(exchange.own(&self.slices)))
    }

    /// Enqueues the gradient of a slot's minibatch, whose targets are set.
    pub(crate) fn gradient(&mut self, slot: usize) -> Result<(), Error> {
        let own = self.own(slot);
        let Self { stream, kernels, q_learning, slots, params, inputs, net, slices, q: [first, second], .. } = self;
        let Slot { there, targets, .. } = &slots[slot];
        let (batch, n, queue, params) = (there.columns(), targets.len(), Queue { stream, kernels }, params.view());
        let Actions::Discrete(actions) = batch.actions else { return Err(Error::ActionKind) };
        let obs = |samples: Range<usize>, x: &ViewMut<'_, f32>| inputs.write_samples(queue, &batch.obs, samples, x);
        net.forward_samples(queue, &params, own, obs)?;
        read_q(stream, q_learning, net, self.heads, n, first)?;
        let columns = TdColumns { q: first.view(), actions, targets: targets.view(), weights: batch.weights };
        let others = (self.errors.view_mut(), self.terms.view_mut());
        match self.heads {
            Heads::Plain(q) => {
                q_learning.loss(stream, &columns, [&net.gradient_mut(q, n), &others.0, &others.1])?;
            }
            Heads::Dueling([advantage, value]) => {
                q_learning.loss(stream, &columns, [&second.view_mut(), &others.0, &others.1])?;
                let (_, [d_advantages, d_values]) = net.heads([advantage, value], n);
                q_learning.dueling_gradient(stream, &second.view(), [&d_advantages, &d_values])?;
            }
        }
        let minibatch = SlicedMinibatch { slices, columns: None };
        if let Some(exchange) = self.exchange.as_mut().filter(|_| slices.count() > 1) {
            let (partial, gradient, here) = (&mut self.partial, &mut self.gradient, &mut self.host_params);
            let buffers = SharedBuffers { partial, gradient, here, terms: [&mut self.terms, &mut self.errors] };
            exchange.gradient(queue, net, &params, minibatch, buffers, obs)?;
        } else {
            net.gradient(queue, &params, 0..slices.count(), minibatch, &mut self.partial.view_mut(), obs)?;
            kernels.sum_gradients(stream, slices, &self.partial.view(), &self.gradient.view_mut())?;
        }
        Ok(q_learning.totals(stream, slices, &self.terms.view(), &mut self.state)?)
    }

    /// Enqueues a step along the gradient of a slot's minibatch.
    ///
    /// It has no effect after learning stopped.
    pub(crate) fn step(&mut self, slot: usize) -> Result<(), Error> {
        let Self { stream, kernels, params, moments: [m, v], gradient, state, scratch, squares, slots, errors, .. } = self;
        let gradient = gradient.view();
        kernels.sum(stream, &gradient, None, Terms::Squares, &scratch.view_mut(), &squares.view_mut())?;
        kernels.step(stream, &squares.view(), state)?;
        kernels.adam(stream, &gradient, &params.view_mut(), [&m.view_mut(), &v.view_mut()], state)?;
        let slot = &mut slots[slot];
        stream.download_async(&mut slot.errors, &errors.view())?;
        state.copy_counters(stream, &mut slot.counters)?;
        slot.learnt = Some(stream.record()?);
        Ok(self.times.mark(&self.stream, None)?)
    }

    /// Moves the target network by `tau` towards the online one; 1 copies it.
    pub(crate) fn follow(&mut self, tau: f32) -> Result<(), Error> {
        let Self { stream, q_learning, params, target, .. } = self;
        if tau == 1.0 {
            return Ok(stream.copy(&target.view_mut(), &params.view())?);
        }
        Ok(q_learning.follow(stream, &params.view(), &target.view_mut(), tau)?)
    }

    /// Waits for the update with a slot's minibatch; true if learning stopped there.
    pub(crate) fn has_diverged(&mut self, slot: usize) -> Result<bool, Error> {
        let Slot { counters, learnt, .. } = &mut self.slots[slot];
        let Some(learnt) = learnt.take() else { return Ok(false) };
        learnt.synchronize()?;
        Ok(LearnerCounters::read(counters)?.stop == LearnerCounters::DIVERGED)
    }

    /// Waits for the update with a slot's minibatch, and returns the errors.
    pub(crate) fn errors(&self, slot: usize) -> Result<&[f32], Error> {
        Ok(self.slots[slot].errors.read()?)
    }

    /// Waits for all updates, and returns their sums and the counters.
    pub(crate) fn results(&self) -> Result<(UpdateTotals, LearnerCounters), Error> {
        let results = (self.state.totals(&self.stream)?, self.state.counters(&self.stream)?);
        self.times.report()?;
        Ok(results)
    }

    /// Copies the online parameters to a network that acts.
    pub(crate) fn fetch(&mut self, counters: &LearnerCounters, online: &mut QNetwork) -> Result<(), Error> {
        self.stream.download_async(&mut self.host_params, &self.params.view())?;
        online.network_mut().set_params(self.host_params.read()?, counters.changes)
    }

    /// Copies moments and target network to the host.
    pub(crate) fn moments(&self) -> Result<[Vec<f32>; 3], Error> {
        let [m, v] = &self.moments;
        let here = |from: &Buffer<f32>| download(&self.stream, &from.view());
        Ok([here(m)?, here(v)?, here(&self.target)?])
    }

    /// Computes gradient and loss of a slot's minibatch again.
    ///
    /// Later minibatches may have overwritten them.
    pub(crate) fn repeat(&mut self, slot: usize, double: bool) -> Result<Repeated<'_>, Error> {
        // Without other ranks, which compute it, too: all targets are needed here.
        let exchange = self.exchange.take();
        let computed = self.set_targets(slot, double).and_then(|()| self.gradient(slot));
        self.exchange = exchange;
        computed?;
        let (totals, _) = self.results()?;
        let [loss, q_mean, _] = totals.last;
        let here = |from: &Buffer<f32>| download(&self.stream, &from.view());
        let Slot { here: batch, there, targets, .. } = &mut self.slots[slot];
        there.download(&self.stream, batch)?;
        Ok(Repeated { batch, targets: here(targets)?, gradient: here(&self.gradient)?, loss, q_mean })
    }
}

/// Writes Q, (B, A), of the observations that have just passed through the network.
fn read_q(
    stream: &Stream,
    q_learning: &QLearningKernels,
    net: &DeviceNet,
    heads: Heads,
    n: usize,
    to: &mut Buffer<f32>,
) -> Result<(), Error> {
    let written = match heads {
        Heads::Plain(q) => stream.copy(&to.view_mut(), &net.outputs(q, n)),
        Heads::Dueling([advantage, value]) => {
            q_learning.dueling(stream, [&net.outputs(advantage, n), &net.outputs(value, n)], &to.view_mut())
        }
    };
    Ok(written?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{bits, has_fma};
    use crate::ranks::tests::on_ranks;
    use crate::{Activation, Agent, Collector, Dqn, DqnConfig, NetConfig, Schedule};
    use rl_envs::{Env, Obs, Pool, cartpole::CartPole, snake};

    fn agent(collector: &Collector, net: &NetConfig, config: &DqnConfig) -> Dqn {
        let (obs, actions) = (collector.observation_space(), collector.action_space());
        let network = QNetwork::new(obs, actions, net, config.dueling, 3).unwrap();
        Dqn::new(network, config.clone(), obs, actions, collector.n_envs(), 5).unwrap()
    }

    /// Compares rollouts learnt from on a device with the same ones on the CPU.
    fn compare<E: Env + Sync + 'static>(device: &Device, env: &E, hidden: &[usize], config: &DqnConfig, n_rollouts: usize) {
        let pool = Pool::new(2).unwrap();
        let collector = || Collector::new(5, env, &pool, 1).unwrap();
        let (mut here, mut there) = (collector(), collector());
        let activation = if hidden.len() == 1 { Activation::Relu } else { Activation::Tanh };
        let net = NetConfig { hidden: hidden.into(), activation, ..NetConfig::default() };
        let mut cpu = agent(&here, &net, config);
        let mut gpu = agent(&there, &net, config).on_device(device).unwrap();
        let mut rollouts = [here.rollout(9).unwrap(), there.rollout(9).unwrap()];
        for i in 0..n_rollouts {
            let remaining = 1.0 - i as f32 / 10.0;
            here.collect(cpu.acting(remaining), &mut rollouts[0]).unwrap();
            there.collect(gpu.acting(remaining), &mut rollouts[1]).unwrap();
            let expected = cpu.update(&rollouts[0], remaining, &pool).unwrap();
            let found = gpu.update(&rollouts[1], remaining, &pool).unwrap();
            let (a, b) = (cpu.save().unwrap(), gpu.save().unwrap());
            let context = format!("{device}, rollout {i}, {hidden:?}, {config:?}\n{expected:?}\n{found:?}");
            assert_eq!(a.counters, b.counters, "{context}");
            assert!(bits(&a.params) == bits(&b.params), "parameters: {context}");
            assert_eq!(a.moments.len(), b.moments.len());
            for ((name, a), (_, b)) in a.moments.iter().zip(&b.moments) {
                assert!(bits(a) == bits(b), "{name}: {context}");
            }
            assert!(expected.iter().map(|(name, _)| name).eq(found.iter().map(|(name, _)| name)), "{context}");
            for ((name, expected), (_, found)) in expected.iter().zip(found.iter()) {
                assert!(expected.to_bits() == found.to_bits(), "{name}: {context}");
            }
            if i == 1 {
                gpu.load(&a).unwrap();
                cpu.load(&b).unwrap();
            }
        }
    }

    fn small() -> DqnConfig {
        let config = DqnConfig { buffer_size: 300, batch_size: 40, learning_starts: 20, train_freq: 7, ..DqnConfig::default() };
        DqnConfig {
            gradient_steps: 2,
            target_update_interval: 33,
            max_grad_norm: 0.5,
            learning_rate: Schedule::Linear(0.01),
            ..config
        }
    }

    fn snake() -> snake::Snake {
        snake::Snake::new(snake::Params { rows: 4, columns: 5, max_steps: 30 })
    }

    #[test]
    fn updates_on_a_device_leave_the_cpus_bits() {
        if !has_fma() {
            return;
        }
        for device in &Device::for_tests() {
            for (dueling, double, prioritized) in
                [(false, false, false), (false, true, true), (true, false, true), (true, true, false)]
            {
                let replay_on_device = prioritized;
                let config = DqnConfig { dueling, double, prioritized, n_steps: 1 + usize::from(dueling), ..small() };
                let config = DqnConfig { replay_on_device, ..config };
                compare(device, &CartPole::default(), &[33, 16], &config, 4);
                compare(device, &snake(), &[12], &DqnConfig { tau: 0.3, ..config }, 3);
            }
            // Minibatches of less than a slice, and of several.
            for batch_size in [1, 129, 515] {
                let config = DqnConfig { batch_size, buffer_size: 600, replay_on_device: batch_size == 129, ..small() };
                compare(device, &CartPole::default(), &[], &config, 1);
                let config = DqnConfig { micro_batch: batch_size / 3, dueling: true, ..config };
                compare(device, &CartPole::default(), &[9, 5], &config, 1);
            }
        }
    }

    #[test]
    fn any_number_of_devices_leaves_the_cpus_bits() {
        if !has_fma() {
            return;
        }
        let net = NetConfig { hidden: vec![9, 5], ..NetConfig::default() };
        // One slice; two slices; eight, a few at a time.
        let sizes = [(40, 0, false), (140, 0, true), (515, 140, true)];
        for (batch_size, micro_batch, replay_on_device) in sizes {
            let config = DqnConfig { batch_size, micro_batch, replay_on_device, buffer_size: 600, ..small() };
            let config = DqnConfig { prioritized: true, dueling: batch_size == 140, n_steps: 2, ..config };
            let learn = |device: Option<&Device>, ranks: Option<Arc<dyn Ranks>>| {
                let pool = Pool::new(1).unwrap();
                let mut collector = Collector::new(5, &CartPole::default(), &pool, 1).unwrap();
                let mut rollout = collector.rollout(9).unwrap();
                let dqn = agent(&collector, &net, &config);
                let mut dqn = if let Some(device) = device { dqn.on_device(device).unwrap() } else { dqn };
                ranks.into_iter().for_each(|ranks| dqn.shared().unwrap().share(ranks));
                let update = |_| {
                    collector.collect(dqn.acting(0.5), &mut rollout).unwrap();
                    let metrics = dqn.update(&rollout, 0.5, &pool).unwrap();
                    let saved = dqn.save().unwrap();
                    let numbers = std::iter::once(&saved.params).chain(saved.moments.iter().map(|(_, numbers)| numbers));
                    let numbers: Vec<_> = numbers.map(|numbers| bits(numbers)).collect();
                    let metrics: Vec<_> = metrics.iter().map(|(name, x)| (name, x.to_bits())).collect();
                    (saved.counters, numbers, metrics)
                };
                (0..2).map(update).collect::<Vec<_>>()
            };
            let expected = learn(None, None);
            for device in &Device::for_tests() {
                let n_ranks: &[usize] = if device.is_stand_in() { &[2] } else { &[1, 2, 3] };
                for &n_ranks in n_ranks {
                    for (rank, found) in on_ranks(n_ranks, |ranks| learn(Some(device), Some(ranks))).into_iter().enumerate() {
                        assert!(found == expected, "{device}, rank {rank} of {n_ranks}, {config:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_divergence_on_a_device_is_the_cpus() {
        if !has_fma() {
            return;
        }
        for device in &Device::for_tests() {
            for (prioritized, replay_on_device) in [(false, false), (true, false), (false, true), (true, true)] {
                let config = DqnConfig { prioritized, replay_on_device, gradient_steps: 5, ..small() };
                let pool = Pool::new(1).unwrap();
                let mut collector = Collector::new(3, &CartPole::default(), &pool, 1).unwrap();
                let net = NetConfig { hidden: vec![8], ..NetConfig::default() };
                let (mut cpu, gpu) = (agent(&collector, &net, &config), agent(&collector, &net, &config));
                let mut gpu = gpu.on_device(device).unwrap();
                let mut rollout = collector.rollout(20).unwrap();
                collector.collect(cpu.acting(1.0), &mut rollout).unwrap();
                let Obs::F32(mut obs) = rollout.columns().steps.obs else { panic!("CartPole's observations are f32") };
                obs.fill(f32::NAN);
                let errors = [cpu.update(&rollout, 1.0, &pool), gpu.update(&rollout, 1.0, &pool)].map(|result| match result {
                    Err(Error::Diverged(divergence)) => divergence,
                    other => panic!("{device}: {other:?}"),
                });
                assert_eq!(errors[0].to_string(), errors[1].to_string(), "{device}");
                assert_eq!(format!("{:?}", errors[0].minibatch), format!("{:?}", errors[1].minibatch), "{device}");
                assert_eq!(cpu.save().unwrap().counters.steps, gpu.save().unwrap().counters.steps, "{device}");
            }
        }
    }

    #[test]
    fn mistakes_planted_into_q_learning_are_noticed() {
        if !has_fma() {
            return;
        }
        let compare = |device: &Device| {
            let config = DqnConfig { dueling: true, tau: 0.3, batch_size: 140, ..small() };
            compare(device, &snake(), &[12], &config, 4);
        };
        let mistakes = [
            ["sum * (1.0f / (f32)a)", "sum * 0.5f"],
            ["total += row[j];", "total = row[j];"],
            ["masks[i * a + j] == 1", "true"],
            ["by[i * a + j] > greatest", "by[i * a + j] >= greatest - 1e-3f"],
            ["by[i * a + j] > greatest", "next_q[i * a + j] > greatest"],
            ["0.5f * near * near", "0.5f * size * size"],
            ["-1.0f, 1.0f", "-0.5f, 0.5f"],
            ["* weight * (1.0f / (f32)n)", "/ (f32)n * weight"],
            ["sum += (f64)of_part[i];", "sum = (f64)((f32)sum + of_part[i]);"],
            ["if (counters->stop != STOP_NOT) return;", "totals->minibatches += 1.0f;"],
            ["target[i] += tau * (online[i] - target[i]);", "target[i] = (1.0f - tau) * target[i] + tau * online[i];"],
        ];
        let unnoticed = Device::unnoticed("q_learning.cu", &mistakes, compare);
        assert!(unnoticed.is_empty(), "{unnoticed:?}");
    }
}
