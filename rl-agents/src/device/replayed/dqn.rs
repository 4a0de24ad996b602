//! Q-learning on a device: the twin of [`Dqn`](crate::Dqn)'s updates.
//!
//! Every kernel has the operations of the CPU's in the same order, so the parameters are the same, bit for bit, on a CPU with
//! fused multiply-add.

use std::ops::Range;
use std::sync::Arc;

use rl_buffer::Memory;
use rl_cuda::learner::{LearnerCounters, LearnerKernels, NextColumns, QLearningKernels, TD_TERMS, TdColumns, UpdateTotals};
use rl_cuda::{Buffer, Device, Stream, ViewMut};
use rl_envs::Actions;

use crate::agent::OnDevice;
use crate::algorithms::replayed::Experience;
use crate::device::Queue;
use crate::device::descent::{download, with_rest};
use crate::device::graph::UpdateGraph;
use crate::device::net::DeviceNet;
use crate::device::normalize::Inputs;
use crate::device::replayed::learnt::LearntNet;
use crate::device::replayed::minibatches::{DeviceMinibatches, Repeated, SLOTS};
use crate::device::times::DeviceWatch;
use crate::learner::BatchSizes;
use crate::learner::optim::{Optimizer, Rule};
use crate::ranks::Ranks;
use crate::{Error, QNetwork};

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
    pub(crate) minibatches: DeviceMinibatches,
    kernels: LearnerKernels,
    q_learning: QLearningKernels,
    online: LearntNet,
    target: Buffer<f32>,
    heads: Heads,
    inputs: Inputs,
    /// Q of the next observations, (B, A), by target network and online one.
    ///
    /// Then Q of the observations, and its gradient.
    q: [Buffer<f32>; 2],
    targets: Buffer<f32>, // (B)
    errors: Buffer<f32>,  // (B)
    terms: Buffer<f32>,   // (2, B)
    /// Graphs of the update with each minibatch's memory.
    graphs: [UpdateGraph<bool>; SLOTS],
}

impl OnDevice for DeviceDqn {
    /// Rollouts go to the replay memory, which is the host's.
    fn memory(&self, _overlapped: bool) -> Arc<dyn Memory> {
        <dyn Memory>::host()
    }

    fn memory_use(&self) -> Vec<(&'static str, usize)> {
        let ([params, gradients, activations], [replay, minibatches]) = (self.online.bytes(), self.minibatches.bytes());
        let parts = vec![
            ("replay memory", replay),
            ("minibatches", minibatches),
            ("parameters and moments", params + self.target.bytes()),
            ("gradients", gradients),
            ("activations of a minibatch", activations),
        ];
        with_rest(parts, self.minibatches.stream.device(), "action values and sums")
    }

    /// Environments are on the host.
    fn fetch_policy(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn watch_device(&mut self, watch: DeviceWatch) -> Result<(), Error> {
        Ok(self.minibatches.times.begin(&self.minibatches.stream, watch)?)
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
        experience: &Experience,
        copied: bool,
        sizes: BatchSizes,
    ) -> Result<Self, Error> {
        let (chains, b, n_actions) = (network.chains(), sizes.batch_size, network.n_actions());
        let floats = |len: usize| Buffer::<f32>::zeros(device, len);
        Ok(Self {
            online: LearntNet::new(device, network.network(), sizes)?,
            minibatches: DeviceMinibatches::new(device, experience, copied, b, 1)?,
            kernels: LearnerKernels::new(device)?,
            q_learning: QLearningKernels::new(device)?,
            target: floats(network.params().len())?,
            heads: chains.1.map_or(Heads::Plain(chains.0), |value| Heads::Dueling([chains.0, value])),
            inputs: Inputs::new(device, network.network(), experience.transitions().shape().obs_len)?,
            q: [floats(b * n_actions)?, floats(b * n_actions)?],
            targets: floats(b)?,
            errors: floats(b)?,
            terms: floats(TD_TERMS * b)?,
            graphs: Default::default(),
        })
    }

    /// Computes later gradients together with the devices of other ranks.
    pub(crate) fn share(&mut self, ranks: Arc<dyn Ranks>) {
        self.online.share(ranks);
    }

    /// Copies parameters, moments and counters to the device.
    pub(crate) fn load(&mut self, online: &QNetwork, target: &QNetwork, optimizer: &Optimizer) -> Result<(), Error> {
        self.minibatches.forget()?;
        let stream = &self.minibatches.stream;
        stream.upload(&self.target.view_mut(), target.params())?;
        self.online.load(stream, online.network(), optimizer)
    }

    /// Begins the updates after some steps of the environments.
    pub(crate) fn begin(&mut self, learning_rate: f32, max_norm: f32, rule: Rule) -> Result<(), Error> {
        let queue = Queue { stream: &self.minibatches.stream, kernels: &self.kernels };
        self.online.begin(queue, learning_rate, max_norm, rule)
    }

    /// Enqueues the update with the current minibatch.
    ///
    /// The best next action is the online network's if `double`, else the target network's.
    pub(crate) fn update(&mut self, double: bool) -> Result<(), Error> {
        if self.online.exchanges() {
            self.learn(double)?;
        } else {
            let (at, stream) = (self.minibatches.at(), self.minibatches.stream.clone());
            let mut graph = std::mem::take(&mut self.graphs[at]);
            let enqueued = graph.run(&stream, &double, || self.learn(double));
            self.graphs[at] = graph;
            enqueued?;
        }
        self.minibatches.end(&self.errors, &[&self.online.state])
    }

    fn learn(&mut self, double: bool) -> Result<(), Error> {
        self.targets(double)?;
        self.gradient()?;
        self.online.step(Queue { stream: &self.minibatches.stream, kernels: &self.kernels })
    }

    /// Enqueues the targets of the current minibatch.
    fn targets(&mut self, double: bool) -> Result<(), Error> {
        let own = self.online.own();
        let Self { minibatches, kernels, q_learning, online, targets, target, inputs, heads, q: [first, second], .. } = self;
        let (stream, batch, n) = (&minibatches.stream, minibatches.columns(), targets.len());
        let (queue, LearntNet { net, params, .. }) = (Queue { stream, kernels }, online);
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

    /// Enqueues the gradient of the current minibatch, whose targets are set.
    fn gradient(&mut self) -> Result<(), Error> {
        let own = self.online.own();
        let Self { minibatches, kernels, q_learning, online, targets, inputs, q: [first, second], errors, terms, .. } = self;
        let (stream, batch, n) = (&minibatches.stream, minibatches.columns(), targets.len());
        let (queue, LearntNet { net, params, .. }) = (Queue { stream, kernels }, &mut *online);
        let Actions::Discrete(actions) = batch.actions else { return Err(Error::ActionKind) };
        let obs = |samples: Range<usize>, x: &ViewMut<'_, f32>| inputs.write_samples(queue, &batch.obs, samples, x);
        net.forward_samples(queue, &params.view(), own, obs)?;
        read_q(stream, q_learning, net, self.heads, n, first)?;
        let columns = TdColumns { q: first.view(), actions, targets: targets.view(), weights: batch.weights };
        let others = (errors.view_mut(), terms.view_mut());
        match self.heads {
            Heads::Plain(q) => {
                q_learning.loss(stream, &columns, [&net.head(q, n).1, &others.0, &others.1])?;
            }
            Heads::Dueling([advantage, value]) => {
                q_learning.loss(stream, &columns, [&second.view_mut(), &others.0, &others.1])?;
                let (_, [d_advantages, d_values]) = net.heads([advantage, value], n);
                q_learning.dueling_gradient(stream, &second.view(), [&d_advantages, &d_values])?;
            }
        }
        online.compute_gradient(queue, &mut [&mut *terms, errors], obs)?;
        let LearntNet { slices, state, .. } = online;
        Ok(q_learning.totals(stream, slices, &terms.view(), state, None)?)
    }

    /// Moves the target network by `tau` towards the online one; 1 copies it.
    pub(crate) fn follow(&mut self, tau: f32) -> Result<(), Error> {
        let Self { minibatches, q_learning, online: LearntNet { params, state, .. }, target, .. } = self;
        Ok(q_learning.follow(&minibatches.stream, &params.view(), &target.view_mut(), tau, state, None)?)
    }

    /// Waits for all updates, and returns their sums and the counters.
    pub(crate) fn results(&self) -> Result<(UpdateTotals, LearnerCounters), Error> {
        let (stream, state) = (&self.minibatches.stream, &self.online.state);
        let results = (state.totals(stream)?, state.counters(stream)?);
        self.minibatches.times.report()?;
        Ok(results)
    }

    /// Copies the online parameters to a network that acts.
    pub(crate) fn fetch(&mut self, counters: &LearnerCounters, online: &mut QNetwork) -> Result<(), Error> {
        self.online.fetch(&self.minibatches.stream, counters.changes, online.network_mut())
    }

    /// Copies moments and target network to the host.
    pub(crate) fn moments(&self) -> Result<[Vec<f32>; 3], Error> {
        let stream = &self.minibatches.stream;
        let [m, v] = self.online.moments(stream)?;
        Ok([m, v, download(stream, &self.target.view())?])
    }

    /// Computes gradient and loss of the current minibatch again.
    ///
    /// Later minibatches may have overwritten them.
    pub(crate) fn repeat(&mut self, double: bool) -> Result<Repeated<'_>, Error> {
        // All targets are needed here.
        let exchange = self.online.take_exchange();
        let computed = self.targets(double).and_then(|()| self.gradient());
        self.online.set_exchange(exchange);
        computed?;
        let (totals, _) = self.results()?;
        let here = |from: &Buffer<f32>| download(&self.minibatches.stream, &from.view());
        let (targets, gradient) = (here(&self.targets)?, here(&self.online.gradient)?);
        Ok(Repeated { batch: self.minibatches.download()?, targets, gradient, last: totals.last })
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
    use crate::fixture::{Gaze, assert_same, bits, has_fma};
    use crate::ranks::tests::on_ranks;
    use crate::{Activation, Agent, Collector, Dqn, DqnConfig, NetConfig, ReplayStorage, Schedule};
    use rl_envs::{Action, ActionSpace, Env, Obs, Pool, Rng, Space, Step, cartpole::CartPole, snake};

    /// [`Gaze`] with three actions.
    #[derive(Clone, Default)]
    struct Glance(Gaze<f32>);

    impl Env for Glance {
        type Obs = f32;
        type State = ();

        fn observation_space(&self) -> Space {
            self.0.observation_space()
        }

        fn action_space(&self) -> ActionSpace {
            ActionSpace::Discrete { n: 3, masked: false }
        }

        fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) {
            self.0.reset(rng, obs);
        }

        fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [f32]) -> Step {
            let Action::Discrete(action) = action else { panic!("discrete") };
            self.0.step(Action::Continuous(&[action as f32 - 1.0]), rng, obs)
        }

        fn state(&self) -> Option<()> {
            self.0.state()
        }

        fn set_state(&mut self, (): ()) -> Result<(), rl_envs::Error> {
            Ok(())
        }
    }

    fn agent(collector: &Collector, net: &NetConfig, config: &DqnConfig) -> Dqn {
        agent_in(&ReplayStorage::default(), collector, net, config)
    }

    fn agent_in(storage: &ReplayStorage, collector: &Collector, net: &NetConfig, config: &DqnConfig) -> Dqn {
        let (obs, actions) = (collector.observation_space(), collector.action_space());
        let network = QNetwork::new(obs, actions, net, config.dueling, 3).unwrap();
        Dqn::new_in(network, config.clone(), obs, actions, collector.n_envs(), 5, storage).unwrap()
    }

    /// Compares rollouts learnt from on a device with the same ones on the CPU.
    fn compare<E: Env + Sync + 'static>(device: &Device, env: &E, hidden: &[usize], config: &DqnConfig, n_rollouts: usize) {
        let pool = Pool::new(2).unwrap();
        let collector = || Collector::new(5, env, &pool, 1).unwrap();
        let (mut here, mut there) = (collector(), collector());
        let activation = match hidden {
            [_] => Activation::Relu,
            [9, 5] => Activation::Silu,
            _ => Activation::Tanh,
        };
        let conv = if here.observation_space().parts().is_empty() { vec![] } else { vec![[16, 2, 1]] };
        let layer_norm = activation == Activation::Silu;
        let net = NetConfig { conv, hidden: hidden.into(), activation, layer_norm, ..NetConfig::default() };
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
            assert_same([&a, &b], [&expected, &found], &format!("{device}, rollout {i}, {hidden:?}, {config:?}"));
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
            compare(device, &Glance::default(), &[9, 5], &DqnConfig { replay_on_device: true, micro_batch: 15, ..small() }, 3);
            // Minibatches of less than a slice, and of several.
            let n_sizes = if device.is_stand_in() { 2 } else { 3 }; // the stand-in is slow
            for batch_size in [1, 129, 515].into_iter().take(n_sizes) {
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
                // Without a copy of all transitions, each device's thread stores a shard of them.
                let sharers = ranks.clone().filter(|_| !replay_on_device);
                let storage = ReplayStorage { ranks: sharers, ..ReplayStorage::default() };
                let dqn = agent_in(&storage, &collector, &net, &config);
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
            ["if (counters->stop != STOP_NOT || (other && other->stop != STOP_NOT)) return;", "totals->minibatches += 1.0f;"],
            ["target[i] + tau * (online[i] - target[i])", "(1.0f - tau) * target[i] + tau * online[i]"],
        ];
        let in_sums =
            [["sum += (f64)x[k];", "sum = (f64)((f32)sum + x[k]);"], ["sum += (f64)numbers[i];", "sum = (f64)numbers[i];"]];
        for (file, mistakes) in [("q_learning.cu", &mistakes[..]), ("learner.cuh", &in_sums)] {
            let unnoticed = Device::unnoticed(file, mistakes, compare);
            assert!(unnoticed.is_empty(), "{unnoticed:?}");
        }
    }
}
