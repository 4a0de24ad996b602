//! An actor of continuous actions and its critics on a device.
//!
//! [`sac`](super::sac) and [`td3`](super::td3) share them. Every kernel has the operations of the CPU's in the same order, so the
//! parameters are the same, bit for bit, on a CPU with fused multiply-add.

use std::ops::Range;
use std::sync::Arc;

use rl_buffer::Memory;
use rl_cuda::learner::{LearnerCounters, MinibatchSlices, Noise, TD_TERMS, UpdateTotals};
use rl_cuda::{Buffer, Device, View, ViewMut};

use crate::Error;
use crate::agent::OnDevice;
use crate::algorithms::replayed::Experience;
use crate::device::descent::{download, with_rest};
use crate::device::exchange::DeviceExchange;
use crate::device::graph::UpdateGraph;
use crate::device::normalize::Inputs;
use crate::device::replayed::critics::{DeviceCritics, Kernels, Launches};
use crate::device::replayed::learnt::LearntNet;
use crate::device::replayed::minibatches::{DeviceMinibatches, Repeated, SLOTS};
use crate::device::times::DeviceWatch;
use crate::learner::BatchSizes;
use crate::learner::optim::{Optimizer, Rule, StepCount, UNCLIPPED};
use crate::policy::network::Network;
use crate::policy::squashed::ContinuousPolicy;
use crate::policy::twin_q::TwinQ;
use crate::ranks::Ranks;

/// Index of the critics among the optimizers that end a minibatch.
const CRITICS: usize = 0;

/// Networks and their optimizers on a device, with the memory of an update.
#[derive(Debug)]
pub(crate) struct DeviceActorCritics {
    pub(crate) minibatches: DeviceMinibatches,
    kernels: Kernels,
    pub(crate) actor: LearntNet,
    inputs: Inputs,
    pub(crate) critics: DeviceCritics,
    /// All B samples as one slice.
    whole: MinibatchSlices,
    actions: Buffer<f32>, // (B, A)
    terms: Buffer<f32>,   // (2, B)
    seed: u64,
    /// Bytes of other networks' parameters.
    pub(crate) beside: usize,
    /// Graphs of the update with each minibatch's memory.
    ///
    /// Without its delayed part, and with it.
    graphs: [[UpdateGraph<()>; 2]; SLOTS],
}

/// Sums of the updates after a rollout, and counters.
pub(crate) struct Learnt {
    pub(crate) actor: UpdateTotals,
    pub(crate) critics: UpdateTotals,
    /// Counters of actor and critics.
    counters: [LearnerCounters; 2],
}

impl Learnt {
    /// Steps of the optimizers of actor and critics.
    pub(crate) fn steps(&self) -> [StepCount; 2] {
        self.counters.map(|LearnerCounters { taken, skipped, .. }| StepCount { taken, skipped })
    }
}

impl OnDevice for DeviceActorCritics {
    /// Rollouts go to the replay memory, which is the host's.
    fn memory(&self, _overlapped: bool) -> Arc<dyn Memory> {
        <dyn Memory>::host()
    }

    fn memory_use(&self) -> Vec<(&'static str, usize)> {
        let ([replay, minibatches], of_actor) = (self.minibatches.bytes(), self.actor.bytes());
        let [params, gradients, activations] = self.critics.bytes();
        let parts = vec![
            ("replay memory", replay),
            ("minibatches", minibatches),
            ("parameters and moments", params + of_actor[0] + self.beside),
            ("gradients", gradients + of_actor[1]),
            ("activations of a minibatch", activations + of_actor[2]),
        ];
        with_rest(parts, self.minibatches.stream.device(), "actions, values and sums")
    }

    /// Environments are on the host.
    fn fetch_policy(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn watch_device(&mut self, watch: DeviceWatch) -> Result<(), Error> {
        Ok(self.minibatches.times.begin(&self.minibatches.stream, watch)?)
    }
}

impl DeviceActorCritics {
    /// Allocates memory for minibatches of transitions, and loads the kernels.
    ///
    /// With a copy of the replay memory if `copied`.
    ///
    /// # Errors
    /// [`Error::Setting`] if there are no kernels for the networks; [`Error::Buffer`] and [`Error::Device`].
    pub(crate) fn new(
        device: &Device,
        actor: &impl ContinuousPolicy,
        critics: DeviceCritics,
        experience: &Experience,
        copied: bool,
        seed: u64,
    ) -> Result<Self, Error> {
        let (b, a, actor) = (critics.targets.len(), actor.bounds().len(), actor.network());
        Ok(Self {
            minibatches: DeviceMinibatches::new(device, experience, copied, b, 2)?,
            kernels: Kernels::new(device)?,
            actor: LearntNet::new(device, actor, BatchSizes { batch_size: b, micro_batch: 0 })?,
            inputs: Inputs::new(device, actor, experience.transitions().shape().obs_len)?,
            critics,
            whole: MinibatchSlices::new(b, 1, 1, 1),
            actions: Buffer::zeros(device, b * a)?,
            terms: Buffer::zeros(device, TD_TERMS * b)?,
            seed,
            beside: 0,
            graphs: Default::default(),
        })
    }

    /// Computes later gradients together with the devices of other ranks.
    pub(crate) fn share(&mut self, ranks: Arc<dyn Ranks>) {
        self.actor.share(ranks.clone());
        self.critics.online.share(ranks);
    }

    /// Copies parameters, moments and counters to the device.
    ///
    /// `online` and `target` are critics; the optimizers are the actor's and the critics'.
    pub(crate) fn load(
        &mut self,
        actor: &Network,
        [online, target]: [&TwinQ; 2],
        [of_actor, of_critics]: [&Optimizer; 2],
    ) -> Result<(), Error> {
        self.minibatches.forget()?;
        self.actor.load(&self.minibatches.stream, actor, of_actor)?;
        self.critics.load(&self.minibatches.stream, online, target, of_critics)
    }

    /// Begins the updates after some steps of the environments.
    pub(crate) fn begin(&mut self, rate: f32, rule: Rule) -> Result<(), Error> {
        let queue = self.kernels.on(&self.minibatches.stream).queue;
        self.actor.begin(queue, rate, UNCLIPPED, rule)?;
        self.critics.online.begin(queue, rate, UNCLIPPED, rule)
    }

    /// Number of samples B of a minibatch.
    pub(crate) fn batch_size(&self) -> usize {
        self.critics.targets.len()
    }

    /// Enqueues the actor for the observations or the next ones.
    ///
    /// With `params`, another network of its layers.
    pub(crate) fn act(&mut self, params: Option<&View<'_, f32>>, next: bool) -> Result<(), Error> {
        let Self { minibatches, kernels, actor: LearntNet { net, params: own, .. }, inputs, critics, .. } = self;
        let (queue, batch) = (kernels.on(&minibatches.stream).queue, minibatches.columns());
        let obs = if next { &batch.next_obs } else { &batch.obs };
        let write = |samples: Range<usize>, x: &ViewMut<'_, f32>| inputs.write_samples(queue, obs, samples, x);
        net.forward_samples(queue, params.unwrap_or(&own.view()), 0..critics.targets.len(), write)
    }

    /// Borrows the parts that an update needs.
    pub(crate) fn parts(&mut self) -> DeviceParts<'_> {
        let Self { minibatches, kernels, actor, critics, actions, terms, seed, .. } = self;
        DeviceParts { launches: kernels.on(&minibatches.stream), minibatches, actor, critics, actions, terms, seed: *seed }
    }

    /// True if an update is a launch of a graph.
    #[cfg(test)]
    pub(crate) fn is_captured(&self) -> bool {
        self.graphs.iter().flatten().any(UpdateGraph::is_captured)
    }

    /// Enqueues the gradient of the critics.
    pub(crate) fn critics_gradient(&mut self) -> Result<(), Error> {
        let DeviceParts { launches, minibatches, actor, critics, .. } = self.parts();
        critics.gradient(launches, &minibatches.columns(), &actor.state)
    }

    /// Enqueues a step of the critics.
    pub(crate) fn step_critics(&mut self) -> Result<(), Error> {
        self.critics_gradient()?;
        let DeviceParts { launches, critics, .. } = self.parts();
        critics.online.step(launches.queue)
    }

    /// Enqueues the gradient of the actor.
    ///
    /// The gradient of its outputs has been written.
    pub(crate) fn actor_gradient(&mut self) -> Result<(), Error> {
        let Self { minibatches, kernels, actor, inputs, critics, whole, terms, .. } = self;
        let (Launches { queue, q_learning, .. }, batch) = (kernels.on(&minibatches.stream), minibatches.columns());
        let obs = |samples: Range<usize>, x: &ViewMut<'_, f32>| inputs.write_samples(queue, &batch.obs, samples, x);
        actor.compute_gradient(queue, &mut [], obs)?;
        let others = Some(&critics.online.state);
        Ok(q_learning.totals(queue.stream, whole, &terms.view(), &mut actor.state, others)?)
    }

    /// Enqueues a step of the actor along its gradient.
    pub(crate) fn step_actor(&mut self) -> Result<(), Error> {
        let DeviceParts { launches, actor, .. } = self.parts();
        actor.step(launches.queue)
    }

    /// Moves the critics' targets by the fraction `tau` of the distance to the critics.
    pub(crate) fn follow(&mut self, tau: f32) -> Result<(), Error> {
        let DeviceParts { launches, actor, critics, .. } = self.parts();
        critics.follow(launches, tau, &actor.state)
    }

    /// Ends the update with the current minibatch.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        let Self { minibatches, critics, actor, .. } = self;
        minibatches.end(&critics.errors, &[&critics.online.state, &actor.state])
    }

    /// Waits for all updates, and returns their sums.
    fn results(&self) -> Result<Learnt, Error> {
        let (stream, actor, critics) = (&self.minibatches.stream, &self.actor.state, &self.critics.online.state);
        let learnt = Learnt {
            actor: actor.totals(stream)?,
            critics: critics.totals(stream)?,
            counters: [actor.counters(stream)?, critics.counters(stream)?],
        };
        self.minibatches.times.report()?;
        Ok(learnt)
    }

    /// Waits for all updates, and copies the actor to the host.
    pub(crate) fn fetch(&mut self, actor: &mut Network) -> Result<Learnt, Error> {
        let learnt = self.results()?;
        self.actor.fetch(&self.minibatches.stream, learnt.counters[0].changes, actor)?;
        Ok(learnt)
    }

    /// Leaves the other ranks, until `set_exchanges`.
    fn take_exchanges(&mut self) -> [Option<DeviceExchange>; 2] {
        [&mut self.actor, &mut self.critics.online].map(LearntNet::take_exchange)
    }

    /// Computes later gradients with other ranks again.
    fn set_exchanges(&mut self, [of_actor, of_critics]: [Option<DeviceExchange>; 2]) {
        self.actor.set_exchange(of_actor);
        self.critics.online.set_exchange(of_critics);
    }

    /// Returns the minibatch at which learning stopped, with its targets.
    ///
    /// Gradient and loss are those of the optimizer `stopped`.
    fn repeated(&mut self, stopped: usize) -> Result<Repeated<'_>, Error> {
        let learnt = self.results()?;
        let (net, totals) =
            if at_critics(stopped) { (&self.critics.online, learnt.critics) } else { (&self.actor, learnt.actor) };
        let here = |from: &Buffer<f32>| download(&self.minibatches.stream, &from.view());
        let (targets, gradient) = (here(&self.critics.targets)?, here(&net.gradient)?);
        Ok(Repeated { batch: self.minibatches.download()?, targets, gradient, last: totals.last })
    }
}

/// An algorithm's updates on a device.
pub(crate) trait DeviceUpdates {
    fn both(&mut self) -> &mut DeviceActorCritics;

    /// Begins the updates after some steps of the environments.
    fn begin(&mut self, rate: f32, rule: Rule) -> Result<(), Error> {
        self.both().begin(rate, rule)
    }

    /// Copies what a snapshot has beside the actor's parameters, in its order.
    fn arrays(&self) -> Result<Vec<Vec<f32>>, Error>;

    /// Enqueues the work of an update with the current minibatch.
    ///
    /// With `tau`, the step of the targets, the update includes its delayed part.
    fn learn(&mut self, tau: Option<f32>) -> Result<(), Error>;

    /// Enqueues the gradient at which learning stopped again.
    fn learn_again(&mut self, stopped: usize) -> Result<(), Error>;

    /// Enqueues the update with the current minibatch.
    ///
    /// As a graph, unless ranks exchange gradients in it.
    fn update(&mut self, tau: Option<f32>) -> Result<(), Error> {
        let both = self.both();
        if both.actor.exchanges() || both.critics.online.exchanges() {
            return self.learn(tau);
        }
        let (at, delayed) = (both.minibatches.at(), usize::from(tau.is_some()));
        let (stream, mut graph) = (both.minibatches.stream.clone(), std::mem::take(&mut both.graphs[at][delayed]));
        let enqueued = graph.run(&stream, &(), || self.learn(tau));
        self.both().graphs[at][delayed] = graph;
        enqueued
    }

    /// Repeats the computation at which learning stopped, for the current minibatch.
    ///
    /// Later minibatches may have overwritten it.
    fn repeat(&mut self, stopped: usize) -> Result<Repeated<'_>, Error> {
        let exchanges = self.both().take_exchanges();
        let computed = self.learn_again(stopped);
        self.both().set_exchanges(exchanges);
        computed?;
        self.both().repeated(stopped)
    }
}

/// Parts of [`DeviceActorCritics`] that an update needs.
pub(crate) struct DeviceParts<'a> {
    pub(crate) launches: Launches<'a>,
    pub(crate) minibatches: &'a DeviceMinibatches,
    pub(crate) actor: &'a mut LearntNet,
    pub(crate) critics: &'a mut DeviceCritics,
    pub(crate) actions: &'a mut Buffer<f32>,
    pub(crate) terms: &'a mut Buffer<f32>,
    seed: u64,
}

impl<'a> DeviceParts<'a> {
    /// Normal numbers of the current update, of the stream `first` on.
    pub(crate) fn noise(&self, first: usize) -> Noise<'a> {
        Noise { seed: self.seed, update: self.minibatches.update(), first: first as u32 }
    }
}

/// True if learning stopped at the critics, not at the actor.
pub(crate) fn at_critics(stopped: usize) -> bool {
    stopped == CRITICS
}

#[cfg(test)]
mod tests {
    use rl_envs::{Action, ActionSpace, Element, Env, Obs, Pool, Rng, Space, Step, pendulum::Pendulum};

    use super::*;
    use crate::fixture::{Gaze, assert_same, bits, has_fma};
    use crate::ranks::tests::on_ranks;
    use crate::{
        Activation, Agent, Collector, DeterministicPolicy, NetConfig, OrAuto, Sac, SacConfig, Schedule, SquashedGaussian, Td3,
        Td3Config,
    };

    /// Six levers with ranges of their own, of which two move two numbers.
    #[derive(Clone, Default)]
    struct Levers {
        x: [f32; 2],
        elapsed: u32,
    }

    impl Env for Levers {
        type Obs = f32;
        type State = ();

        fn observation_space(&self) -> Space {
            Space::vector(&[f32::NEG_INFINITY; 2], &[f32::INFINITY; 2])
        }

        fn action_space(&self) -> ActionSpace {
            ActionSpace::Continuous { low: vec![-1.0, -2.0, 0.0, -0.5, -1.0, 3.0], high: vec![1.0, 2.0, 0.5, 0.0, 1e3, 5.0] }
        }

        fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) {
            self.x = [rng.normal(), rng.normal()];
            obs.copy_from_slice(&self.x);
        }

        fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [f32]) -> Step {
            let Action::Continuous(action) = action else { panic!("levers are continuous") };
            self.x = [self.x[0] + 0.1 * action[0] + 0.1 * rng.normal(), self.x[1] + 0.1 * action[5] - 0.4];
            obs.copy_from_slice(&self.x);
            self.elapsed += 1;
            let (terminated, truncated) = (self.elapsed % 10 == 5, self.elapsed.is_multiple_of(10));
            Step { reward: -self.x[0] * self.x[0] - self.x[1] * self.x[1], terminated, truncated }
        }

        fn state(&self) -> Option<()> {
            None
        }

        fn set_state(&mut self, (): ()) -> Result<(), rl_envs::Error> {
            Ok(())
        }
    }

    /// Settings of either algorithm, with networks.
    #[derive(Clone, Debug)]
    enum Case {
        Sac(SacConfig, NetConfig),
        Td3(Td3Config, NetConfig),
    }

    impl Case {
        /// Creates the agent, on a device if there is one.
        fn agent(&self, collector: &Collector, device: Option<&Device>) -> Box<dyn Agent> {
            let (obs, actions, n_envs) = (collector.observation_space(), collector.action_space(), collector.n_envs());
            match self {
                Self::Sac(config, net) => {
                    let policy = SquashedGaussian::new(obs, actions, net, 3).unwrap();
                    let sac = Sac::new(policy, config.clone(), obs, actions, n_envs, 5).unwrap();
                    Box::new(if let Some(device) = device { sac.on_device(device).unwrap() } else { sac })
                }
                Self::Td3(config, net) => {
                    let policy = DeterministicPolicy::new(obs, actions, net, 3).unwrap();
                    let td3 = Td3::new(policy, config.clone(), obs, actions, n_envs, 5).unwrap();
                    Box::new(if let Some(device) = device { td3.on_device(device).unwrap() } else { td3 })
                }
            }
        }
    }

    fn net(hidden: &[usize], critic_hidden: Option<&[usize]>) -> NetConfig {
        let activation = match hidden {
            [_] => Activation::Relu,
            [9, 5] => Activation::Gelu,
            _ => Activation::Tanh,
        };
        let (critic_hidden, layer_norm) = (critic_hidden.map(Into::into), activation == Activation::Gelu);
        NetConfig { hidden: hidden.into(), critic_hidden, activation, layer_norm, ..NetConfig::default() }
    }

    fn sac(batch_size: usize) -> SacConfig {
        let config = SacConfig { buffer_size: 600, batch_size, learning_starts: 20, train_freq: 7, ..SacConfig::default() };
        SacConfig { gradient_steps: 2, tau: 0.3, learning_rate: Schedule::Linear(0.01), ..config }
    }

    fn td3(batch_size: usize) -> Td3Config {
        let config = Td3Config { buffer_size: 600, batch_size, learning_starts: 20, train_freq: 7, ..Td3Config::default() };
        Td3Config { gradient_steps: 2, tau: 0.3, learning_rate: Schedule::Linear(0.01), ..config }
    }

    fn levers() -> Collector {
        Collector::new(5, &Levers::default(), &Pool::new(2).unwrap(), 1).unwrap()
    }

    fn pendulum() -> Collector {
        Collector::new(5, &Pendulum::default(), &Pool::new(2).unwrap(), 1).unwrap()
    }

    /// Compares rollouts learnt from on a device with the same ones on the CPU.
    ///
    /// The agents change places after the second.
    fn compare(device: &Device, collector: fn() -> Collector, case: &Case, n_rollouts: usize) {
        let (pool, mut here, mut there) = (Pool::new(2).unwrap(), collector(), collector());
        let (mut cpu, mut gpu) = (case.agent(&here, None), case.agent(&there, Some(device)));
        [&mut here, &mut there].into_iter().for_each(|collector| collector.remember(cpu.policy().state_len()));
        let mut rollouts = [here.rollout(9).unwrap(), there.rollout(9).unwrap()];
        for i in 0..n_rollouts {
            let remaining = 1.0 - i as f32 / 10.0;
            here.collect(cpu.acting(remaining), &mut rollouts[0]).unwrap();
            there.collect(gpu.acting(remaining), &mut rollouts[1]).unwrap();
            let expected = cpu.update(&rollouts[0], remaining, &pool).unwrap();
            let found = gpu.update(&rollouts[1], remaining, &pool).unwrap();
            let (a, b) = (cpu.save().unwrap(), gpu.save().unwrap());
            assert_same([&a, &b], [&expected, &found], &format!("{device}, rollout {i}, {case:?}"));
            if i == 1 {
                gpu.load(&a).unwrap();
                cpu.load(&b).unwrap();
            }
        }
    }

    #[test]
    fn updates_on_a_device_leave_the_cpus_bits() {
        if !has_fma() {
            return;
        }
        for device in &Device::for_tests() {
            for prioritized in [false, true] {
                let (replay_on_device, n_steps) = (prioritized, 1 + usize::from(prioritized));
                let config = SacConfig { prioritized, replay_on_device, n_steps, ..sac(40) };
                compare(device, levers, &Case::Sac(config.clone(), net(&[33, 16], Some(&[12]))), 4);
                let fixed = SacConfig { ent_coef: OrAuto::Number(0.2), target_update_interval: 3, tau: 1.0, ..config };
                compare(device, pendulum, &Case::Sac(fixed, net(&[12], None)), 3);
                let config = Td3Config { prioritized, replay_on_device, n_steps, ..td3(40) };
                compare(device, levers, &Case::Td3(config.clone(), net(&[33, 16], Some(&[12]))), 4);
                let ddpg = Td3Config { n_critics: 1, policy_delay: 1, target_policy_noise: 0.0, tau: 1.0, ..config };
                compare(device, pendulum, &Case::Td3(ddpg, net(&[12], None)), 3);
            }
            // Minibatches of less than a slice, and of several; networks without hidden layers, and wide ones.
            let n_sizes = if device.is_stand_in() { 2 } else { 3 }; // the stand-in is slow
            for batch_size in [1, 129, 515].into_iter().take(n_sizes) {
                compare(device, levers, &Case::Sac(sac(batch_size), net(&[], None)), 1);
                compare(device, levers, &Case::Td3(td3(batch_size), net(&[9, 5], Some(&[]))), 1);
            }
            if !device.is_stand_in() {
                compare(device, levers, &Case::Sac(sac(130), net(&[256, 256], None)), 1);
                compare(device, levers, &Case::Td3(td3(130), net(&[256, 256], Some(&[400, 300]))), 1);
            }
        }
    }

    fn gaze<T: Element + From<u8>>() -> Collector {
        Collector::new(5, &Gaze::<T>::default(), &Pool::new(2).unwrap(), 1).unwrap()
    }

    #[test]
    fn pictures_bytes_and_categories_leave_the_cpus_bits() {
        if !has_fma() {
            return;
        }
        for device in &Device::for_tests() {
            let convs = [vec![], vec![[7, 2, 1], [16, 3, 1]], vec![[16, 2, 1]]];
            let (n_convs, n_rollouts) = if device.is_stand_in() { (2, 1) } else { (3, 2) }; // the stand-in is slow
            for conv in convs.into_iter().take(n_convs) {
                let net = |hidden: &[usize]| NetConfig { conv: conv.clone(), ..net(hidden, Some(&[12])) };
                let (sac, td3) = (SacConfig { replay_on_device: true, ..sac(140) }, td3(40));
                let (sac, td3) = (Case::Sac(sac, net(&[9, 5])), Case::Td3(td3, net(&[8])));
                compare(device, gaze::<f32>, &sac, n_rollouts);
                compare(device, gaze::<u8>, &td3, n_rollouts);
                if !device.is_stand_in() {
                    compare(device, gaze::<u8>, &sac, n_rollouts);
                    compare(device, gaze::<f32>, &td3, n_rollouts);
                }
            }
        }
    }

    #[test]
    fn any_number_of_devices_leaves_the_cpus_bits() {
        if !has_fma() {
            return;
        }
        // One slice; two; eight.
        for (batch_size, replay_on_device) in [(40, false), (140, true), (515, false)] {
            let sac = SacConfig { prioritized: true, replay_on_device, ..sac(batch_size) };
            let td3 = Td3Config { n_steps: 2, replay_on_device, ..td3(batch_size) };
            let seen = NetConfig { conv: vec![[16, 2, 1]], ..net(&[8], None) };
            let cases: [(fn() -> Collector, _); 3] = [
                (levers, Case::Sac(sac.clone(), net(&[9, 5], None))),
                (levers, Case::Td3(td3, net(&[9, 5], None))),
                (gaze::<f32>, Case::Sac(sac, seen)),
            ];
            for (collector, case) in cases.into_iter().take(if batch_size == 140 { 3 } else { 2 }) {
                let (Case::Sac(_, net) | Case::Td3(_, net)) = &case;
                let convolves = !net.conv.is_empty();
                let learn = |device: Option<&Device>, ranks: Option<Arc<dyn Ranks>>| {
                    let (pool, mut collector) = (Pool::new(1).unwrap(), collector());
                    let (mut agent, mut rollout) = (case.agent(&collector, device), collector.rollout(9).unwrap());
                    ranks.into_iter().for_each(|ranks| agent.shared().unwrap().share(ranks));
                    let update = |_| {
                        collector.collect(agent.acting(0.5), &mut rollout).unwrap();
                        let metrics = agent.update(&rollout, 0.5, &pool).unwrap();
                        let saved = agent.save().unwrap();
                        let numbers = std::iter::once(&saved.params).chain(saved.moments.iter().map(|(_, numbers)| numbers));
                        let numbers: Vec<_> = numbers.map(|numbers| bits(numbers)).collect();
                        let metrics: Vec<_> = metrics.iter().map(|(name, x)| (name, x.to_bits())).collect();
                        (saved.counters, numbers, metrics)
                    };
                    let is_slow = convolves && device.is_some_and(Device::is_stand_in);
                    (0..if is_slow { 1 } else { 2 }).map(update).collect::<Vec<_>>()
                };
                let expected = learn(None, None);
                for device in &Device::for_tests() {
                    let n_ranks: &[usize] = match (device.is_stand_in(), batch_size) {
                        (false, _) => &[1, 2, 3],
                        (true, 515) => &[], // the stand-in is slow
                        (true, _) => &[2],
                    };
                    for &n_ranks in n_ranks {
                        for (rank, found) in on_ranks(n_ranks, |ranks| learn(Some(device), Some(ranks))).into_iter().enumerate() {
                            assert!(found == expected[..found.len()], "{device}, rank {rank} of {n_ranks}, {case:?}");
                        }
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
        let stop = |case: &Case, device: Option<&Device>, actor_only: bool| {
            let (pool, mut collector) = (Pool::new(1).unwrap(), levers());
            let (mut agent, mut rollout) = (case.agent(&collector, device), collector.rollout(20).unwrap());
            collector.collect(agent.acting(1.0), &mut rollout).unwrap();
            let before = agent.save().unwrap();
            if actor_only {
                // Infinite numbers of both signs add up; the actor's target is another network.
                let mut snapshot = before.clone();
                let signs = [f32::MAX, f32::MAX, -f32::MAX].into_iter().cycle();
                snapshot.params.iter_mut().zip(signs).for_each(|(x, sign)| *x = sign);
                agent.load(&snapshot).unwrap();
            } else {
                let Obs::F32(mut obs) = rollout.columns().steps.obs else { panic!("observations are f32") };
                obs.fill(f32::NAN);
            }
            let Err(Error::Diverged(divergence)) = agent.update(&rollout, 1.0, &pool) else { panic!("{device:?}: no error") };
            let steps = agent.save().unwrap().counters.steps;
            // Learning goes on from where it was before.
            agent.load(&before).unwrap();
            collector.collect(agent.acting(0.5), &mut rollout).unwrap();
            let metrics = agent.update(&rollout, 0.5, &pool).unwrap();
            let learnt = (bits(&agent.save().unwrap().params), format!("{metrics:?}"));
            (divergence.to_string(), format!("{:?}", divergence.minibatch), steps, learnt)
        };
        for device in &Device::for_tests() {
            for (prioritized, replay_on_device) in [(false, false), (true, true)] {
                let config = SacConfig { prioritized, replay_on_device, gradient_steps: 5, ..sac(40) };
                let case = Case::Sac(config, net(&[8], None));
                assert_eq!(stop(&case, None, false), stop(&case, Some(device), false), "{device}");
                let config = Td3Config { prioritized, replay_on_device, gradient_steps: 5, policy_delay: 1, ..td3(40) };
                let case = Case::Td3(config, net(&[8], None));
                for actor_only in [false, true] {
                    let expected = stop(&case, None, actor_only);
                    assert!(expected.0.contains(if actor_only { "actor_loss" } else { "critic_loss" }), "{}", expected.0);
                    assert_eq!(expected, stop(&case, Some(device), actor_only), "{device}");
                }
            }
        }
    }

    #[test]
    fn mistakes_planted_into_actors_and_critics_are_noticed() {
        if !has_fma() {
            return;
        }
        let compare = |device: &Device| {
            let sac = SacConfig { n_steps: 2, prioritized: true, ..sac(140) };
            compare(device, levers, &Case::Sac(sac, net(&[12], None)), 3);
            let td3 = Td3Config { target_policy_noise: 1.0, target_noise_clip: 0.9, ..td3(40) };
            compare(device, levers, &Case::Td3(td3, net(&[9, 5], None)), 3);
        };
        let mistakes = [
            ["(action - of[0]) / of[1]", "action"],
            ["first + (u32)i, *update", "first + (u32)i, *update + 1"],
            ["PURPOSE_REPLAY, j >> 2", "PURPOSE_REPLAY, 0"],
            ["log_std >= LOG_STD_MIN && log_std <= LOG_STD_MAX", "log_std > 0.0f"],
            ["- math::ln(1.0f - y * y + EPSILON)", ""],
            ["log_prob += squashed.log_prob;", "log_prob = squashed.log_prob;"],
            ["alpha * 2.0f * squashed.y", "alpha * squashed.y"],
            ["- d_action) * share", "+ d_action) * share"],
            ["d_sum * squashed.std * drawn - alpha * share", "d_sum * squashed.std * drawn"],
            ["d_rows[at / a * (d + a) + d + at % a];", "d_rows[at / a * (d + a) + at % a];"],
            ["if (std >= 0.0f) {", "if (false) {"],
            ["normal(stream.words(at / a, j), j), -clip, clip", "normal(stream.words(at / a, j), j), -9.0f, 9.0f"],
            ["action + added, -1.0f, 1.0f", "action + added, -9.0f, 9.0f"],
            ["-(1.0f - y * y) * d_rows", "-d_rows"],
            ["return y < x || x != x ? y : x;", "return x;"],
            ["q -= (log_alpha", "q += (log_alpha"],
            ["math::exp(*log_alpha) : *temperature) * log_probs", "*temperature : *temperature) * log_probs"],
            ["discounts[i] * q;", "q;"],
            ["slope = 2.0f * scale", "slope = scale"],
            ["distances += math::abs(error);", ""],
            ["distances / (q2 ? 2.0f : 1.0f)", "distances"],
            ["terms[i] = scale * weight * squares;", "terms[i] = weight * squares;"],
            ["first || !q2 || q1[i] <= q2[i]", "true"],
            ["first || !q2 || q1[i] <= q2[i]", "q1[i] <= q2[i]"],
            ["d_q2[i] = is_first ? 0.0f : 1.0f;", "d_q2[i] = 1.0f;"],
            ["*temperature * log_probs[i] - q : -q", "-q : -q"],
            ["(f32)(sum / (f64)n) + target_entropy", "(f32)(sum / (f64)n)"],
            ["*gradient = -excess;", "*gradient = excess;"],
            ["totals->value += alpha;", "totals->value = alpha;"],
        ];
        let unnoticed = Device::unnoticed("continuous.cu", &mistakes, compare);
        assert!(unnoticed.is_empty(), "{unnoticed:?}");
    }
}
