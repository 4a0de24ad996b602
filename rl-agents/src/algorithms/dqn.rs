//! Deep Q-learning (DQN) with its common extensions.
//!
//! Paper: Mnih et al., "Human-level control through deep reinforcement learning", 2015. Extensions: double (van Hasselt et al.,
//! 2016), dueling (Wang et al., 2016), n-step (Sutton, 1988) and prioritized replay (Schaul et al., 2016).
//!
//! Discrete actions, with or without masks. Settings and metrics have the meanings of Stable-Baselines3: Huber loss of width 1,
//! Adam, and uniformly random actions until `learning_starts`. Differences: initialization is orthogonal unless `ortho_init` is
//! false; counters are env steps, summed over environments; after each step of N environments all due updates are done,
//! `gradient_steps` for every `train_freq` env steps beyond `learning_starts`, for any N; the target network follows every
//! `target_update_interval` env steps, after the updates that are due then; epsilon falls in env steps, and may differ between
//! environments, and first priorities may come from acting, as in Ape-X (Horgan et al., 2018); a resumed run whose replay memory
//! was not saved refills it with `learning_starts` env steps of the trained policy, epsilon-greedily, before it learns again
//! (Stable-Baselines3 learns at once from the few transitions there are).
//!
//! Read `learn` first, then `loss`, then `TdHost`. `rl train cartpole --algo dqn` runs it.

use std::sync::Arc;

use candle_core::{Tensor, Var};
use rl_buffer::{ActionSlice, Batch, Rollout};
use rl_cuda::learner::UpdateTotals;
use rl_envs::{ActionSpace, Pool, Space};

use crate::agent::{Divergence, NamedTensor, Observed, OnDevice, Replays, Shareable};
use crate::algorithms::replayed::{
    Experience, Learns, Priorities, ReplaySettings, ReplayStorage, follow, learn_from, optimizer, replay_settings, step, tensors,
};
use crate::device::replayed::dqn::DeviceDqn;
use crate::device::replayed::minibatches::Repeated;
use crate::kernel::gradient::Slices;
use crate::kernel::samples::TILE;
use crate::kernel::tile::{Stats, Tile, TileLoss};
use crate::learner::BatchSizes;
use crate::learner::descent::StepSums;
use crate::learner::optim::{Optimizer, Rule, StepCount};
use crate::policy::mask_rows;
use crate::policy::q_network::best;
use crate::probe::{self, Probe, Stage, Threads};
use crate::ranks::Ranks;
use crate::settings::{Kind, MAX_STEPS};
use crate::{Agent, Error, Layout, LearnerKind, Metrics, Policy, QNetwork, Schedule, Scratch, Snapshot, UpdateEvent};

crate::settings! {
    /// Settings of DQN.
    pub struct DqnConfig, "dqn." {
        /// Transitions of the replay memory.
        buffer_size: usize = 100_000, Kind::Int(1, 1 << 32);
        /// Transitions of a minibatch; "auto": 8 an env step, halved until they fit.
        batch_size: usize = 32, Kind::Int(1, 1 << 24);
        /// Env steps before the first update, with uniformly random actions.
        learning_starts: u64 = 1000, Kind::Int(0, MAX_STEPS);
        /// Env steps (summed over environments) between updates.
        train_freq: u64 = 4, Kind::Int(1, 1 << 24);
        /// Updates for every train_freq env steps.
        ///
        /// Samples per insert: `gradient_steps * batch_size / train_freq`.
        gradient_steps: u64 = 1, Kind::Int(1, 1 << 16);
        /// Env steps between updates of the target network.
        target_update_interval: u64 = 1000, Kind::Int(1, MAX_STEPS), resumable;
        /// Step of the target network towards the online network; 1: a copy.
        ///
        /// `target += tau (online - target)`.
        tau: f32 = 1.0, Kind::Float(1e-9, 1.0), resumable;
        /// Discount of future rewards.
        gamma: f32 = 0.99, Kind::Float(0.0, 1.0);
        /// Steps of a return before the bootstrap.
        n_steps: usize = 1, Kind::Int(1, 64);
        /// Double DQN: the online network picks the action, the target network its value.
        double: bool = true, Kind::Bool;
        /// Dueling network: a value and advantages instead of action values.
        dueling: bool = false, Kind::Bool;
        /// Samples transitions in proportion to their errors.
        prioritized: bool = false, Kind::Bool;
        /// Exponent of priorities.
        priority_alpha: f32 = 0.6, Kind::Float(0.0, 1.0);
        /// Exponent of importance weights at the start; it rises to 1.
        priority_beta: f32 = 0.4, Kind::Float(0.0, 1.0);
        /// First priorities by the errors that the acting policy saw, as in Ape-X.
        ///
        /// Errors are computed from the action values that the policy chose actions by, so they cost no forward pass. The value
        /// of the next observation is its greatest action value. New transitions otherwise have the largest priority so far, as
        /// do those that a truncation ends.
        #[serde(default)]
        acted_priorities: bool = false, Kind::Bool;
        /// Fraction of training over which epsilon falls.
        exploration_fraction: f32 = 0.1, Kind::Float(0.0, 1.0);
        /// Epsilon at the start.
        exploration_initial_eps: f32 = 1.0, Kind::Float(0.0, 1.0);
        /// Epsilon at the end.
        exploration_final_eps: f32 = 0.05, Kind::Float(0.0, 1.0);
        /// Spread of exploration: environment i of N has epsilon^(1 + spread i / (N - 1)).
        exploration_spread: f32 = 0.0, Kind::Float(0.0, 100.0);
        /// Largest norm of a gradient; longer ones are scaled down.
        max_grad_norm: f32 = 10.0, Kind::Float(1e-9, 1e9), resumable;
        /// Learning rate of Adam.
        learning_rate: Schedule = Schedule::Constant(1e-4), Kind::Schedule(0.0, 10.0), resumable;
        /// Transitions whose activations are held at the same time; 0: the minibatch.
        ///
        /// On a device or with learner = "reference"; the CPU's tile kernel holds few activations anyway. Gradients of the
        /// micro-batches add up. On a device a micro-batch has whole slices of the minibatch, of which there are at most 16, and
        /// the bits do not depend on it.
        micro_batch: usize = 0, Kind::Int(0, 1 << 32), resumable;
        /// Saves the replay memory in checkpoints.
        ///
        /// A resumed run then equals an uninterrupted one bit for bit. Without it the memory is refilled before learning
        /// continues.
        save_replay: bool = false, Kind::Bool;
        /// Keeps a copy of the replay memory on the device that learns.
        ///
        /// Minibatches are then gathered there. Otherwise the CPU gathers minibatches, and each is copied to the device.
        #[serde(default)]
        replay_on_device: bool = false, Kind::Bool, resumable;
    }
}

replay_settings!(DqnConfig, acted_priorities);

impl DqnConfig {
    /// Returns the minibatch that learns from each transition 8 times on average.
    ///
    /// At least 32, at most the replay memory. The paper has the same ratio: minibatches of 32 every 4 steps.
    #[must_use]
    pub fn batch_at_usual_ratio(&self) -> usize {
        let samples = (8 * self.train_freq / self.gradient_steps).clamp(32, 1 << 24);
        usize::try_from(samples).map_or(32, |samples| samples.min(self.buffer_size))
    }

    /// Returns the share of random actions after the fraction `done` of training.
    #[must_use]
    pub fn epsilon(&self, done: f32) -> f32 {
        let fallen = if self.exploration_fraction > 0.0 { (done / self.exploration_fraction).min(1.0) } else { 1.0 };
        self.exploration_initial_eps + fallen * (self.exploration_final_eps - self.exploration_initial_eps)
    }
}

/// Name of the target network's parameters in a snapshot.
const TARGET: &str = "target";

/// The DQN agent.
///
/// ```
/// use rl_agents::{Agent, Collector, Dqn, DqnConfig, NetConfig, QNetwork};
/// use rl_envs::{Pool, cartpole::CartPole};
///
/// let (n_envs, n_steps, steps, pool) = (4, 8, 256, Pool::new(1)?);
/// let config = DqnConfig { learning_starts: 64, ..DqnConfig::default() };
/// let mut collector = Collector::new(n_envs, &CartPole::default(), &pool, 0)?;
/// let (obs, actions) = (collector.observation_space().clone(), collector.action_space().clone());
/// let network = QNetwork::new(&obs, &actions, &NetConfig::default(), config.dueling, 0)?;
/// let mut agent = Dqn::new(network, config, &obs, &actions, n_envs, 0)?;
/// let mut rollout = collector.rollout(n_steps)?;
/// for env_steps in (0..steps).step_by(n_envs * n_steps) {
///     let remaining = 1.0 - env_steps as f32 / steps as f32;
///     collector.collect(agent.acting(remaining), &mut rollout)?;
///     agent.update(&rollout, remaining, &pool)?;
/// }
/// # Ok::<(), rl_agents::Error>(())
/// ```
pub struct Dqn {
    network: QNetwork,
    target: QNetwork,
    config: DqnConfig,
    n_envs: usize,
    optimizer: Optimizer,
    experience: Experience,
    memory: Memory,
    /// Sums over the updates after a rollout.
    sums: Sums,
    /// The device that learns, if any.
    ///
    /// The online network here is a copy of its own; moments and target network lag behind.
    device: Option<DeviceDqn>,
}

/// Reusable memory of updates.
struct Memory {
    batch: Batch,
    next_q: Vec<f32>,   // (B, A)
    online_q: Vec<f32>, // (B, A)
    targets: Vec<f32>,  // (B)
    errors: Vec<f32>,   // (B)
    scratches: Vec<Scratch>,
    gradient: Vec<f32>, // (P)
    slices: Slices<TdSums>,
    /// Mean loss.
    loss: f32,
    /// Mean Q.
    q_mean: f32,
}

/// Sums over updates.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    n: f32,
    loss: f32,
    q: f32,
    steps: StepSums,
}

/// Computes `mean w H(Q(s, a) - y)` with the Huber loss H, mean Q, and the errors.
///
/// Errors beyond 1 count linearly; Q is the mean.
fn loss(
    network: &QNetwork,
    params: &Tensor,
    obs: &Tensor,
    actions: &Tensor,
    targets: &Tensor,
    weights: &Tensor,
) -> candle_core::Result<(Tensor, Tensor, Tensor)> {
    let q = network.forward(params, obs)?.gather(&actions.unsqueeze(1)?, 1)?.squeeze(1)?;
    let error = (&q - targets)?;
    let size = error.abs()?;
    let near = size.broadcast_minimum(&size.ones_like()?)?;
    let huber = ((near.sqr()? * 0.5)? + (&size - &near)?)?;
    Ok(((huber * weights)?.mean_all()?, q.mean_all()?, error))
}

/// [`loss`] for the tile kernel.
struct TdLoss<'a> {
    network: &'a QNetwork,
    actions: &'a [u32],
    targets: &'a [f32],
    weights: &'a [f32],
}

/// Sums over the tiles of a slice, with the errors of its transitions.
#[derive(Clone, Default)]
struct TdSums {
    loss: f64,
    q: f64,
    errors: Vec<f32>,
    columns: Vec<f32>, // (2, A, TILE): Q and its gradient
}

impl Stats for TdSums {
    fn reset(&mut self) {
        (self.loss, self.q) = (0.0, 0.0);
        self.errors.clear();
    }

    fn write(&self, message: &mut Vec<u8>) {
        [self.loss, self.q].iter().for_each(|sum| message.extend(sum.to_le_bytes()));
        self.errors.iter().for_each(|error| message.extend(error.to_le_bytes()));
    }

    fn read(&mut self, message: &[u8]) {
        let (sums, errors) = message.split_at(2 * size_of::<f64>());
        let mut sums = sums.as_chunks().0.iter().map(|&sum| f64::from_le_bytes(sum));
        (self.loss, self.q) = (sums.next().unwrap_or_default(), sums.next().unwrap_or_default());
        self.errors.clear();
        self.errors.extend(errors.as_chunks().0.iter().map(|&error| f32::from_le_bytes(error)));
    }
}

impl TileLoss<TdSums> for TdLoss<'_> {
    fn stats_len(&self, n_samples: usize) -> usize {
        2 * size_of::<f64>() + n_samples * size_of::<f32>()
    }

    #[inline(always)]
    fn tile(&self, tile: &mut Tile<'_>, sums: &mut TdSums) {
        let range = tile.samples.clone();
        let (m, a) = (range.len(), self.network.n_actions());
        let share = 1.0 / self.targets.len() as f32;
        sums.columns.resize(2 * a * TILE, 0.0);
        let (q, d_q) = sums.columns.split_at_mut(a * TILE);
        let (q, d_q) = (&mut q[..a * m], &mut d_q[..a * m]);
        self.network.read(tile, q);
        d_q.fill(0.0);
        for (s, i) in range.enumerate() {
            let at = self.actions[i] as usize * m + s;
            let (error, weight) = (q[at] - self.targets[i], self.weights[i]);
            let size = error.abs();
            let near = size.min(1.0);
            d_q[at] = error.clamp(-1.0, 1.0) * weight * share;
            sums.loss += f64::from((0.5 * near * near + (size - near)) * weight);
            sums.q += f64::from(q[at]);
            sums.errors.push(error);
        }
        self.network.write_gradient(tile, d_q);
    }
}

/// Returns the actions of a minibatch.
fn actions(batch: &Batch) -> Result<&[u32], Error> {
    match batch.columns().actions {
        ActionSlice::Discrete(actions) => Ok(actions),
        ActionSlice::Continuous(_) => Err(Error::ActionKind),
    }
}

impl Dqn {
    /// Creates an agent from a network, for `n_envs` environments with these spaces.
    ///
    /// `seed` determines which transitions are replayed.
    ///
    /// # Errors
    /// Errors of [`DqnConfig::check`]; [`Error::Setting`] for a network that contradicts `dueling`; [`Error::ActionKind`] for
    /// continuous actions; [`Error::Buffer`] if the replay memory does not fit.
    pub fn new(
        network: QNetwork,
        config: DqnConfig,
        obs: &Space,
        actions: &ActionSpace,
        n_envs: usize,
        seed: u64,
    ) -> Result<Self, Error> {
        Self::new_in(network, config, obs, actions, n_envs, seed, &ReplayStorage::default())
    }

    /// Creates an agent whose replay memory is in this storage.
    ///
    /// # Errors
    /// Those of [`Dqn::new`].
    pub fn new_in(
        network: QNetwork,
        config: DqnConfig,
        obs: &Space,
        actions: &ActionSpace,
        n_envs: usize,
        seed: u64,
        replay: &ReplayStorage,
    ) -> Result<Self, Error> {
        config.check()?;
        if config.dueling != network.is_dueling() {
            let allowed = "but the network is not of that kind; pass config.dueling to QNetwork::new";
            return Err(Error::Setting { name: "dueling", value: config.dueling.to_string(), allowed });
        }
        let &ActionSpace::Discrete { n, .. } = actions else { return Err(Error::ActionKind) };
        let (a, b) = (n as usize, config.batch_size);
        let (experience, batch) = Experience::new(config.replay(), obs, actions, n_envs, seed, replay)?;
        let memory = Memory {
            batch,
            next_q: vec![0.0; b * a],
            online_q: vec![0.0; b * a],
            targets: vec![0.0; b],
            errors: Vec::with_capacity(b),
            scratches: Vec::new(),
            gradient: vec![0.0; network.params().len()],
            slices: Slices::new(),
            loss: 0.0,
            q_mean: 0.0,
        };
        let optimizer = optimizer(DqnConfig::RULE, network.network());
        let mut target = network.clone();
        target.network_mut().only_forward();
        let mut agent =
            Self { network, target, config, n_envs, optimizer, experience, memory, sums: Sums::default(), device: None };
        agent.acting(1.0);
        Ok(agent)
    }

    /// Learns on `device`.
    ///
    /// The parameters are the same as on a CPU with fused multiply-add, bit for bit. Transitions are kept in the host's memory,
    /// and the policy to act with is a copy there.
    ///
    /// # Errors
    /// [`Error::Setting`] for a setting that the device's kernels do not support; [`Error::Buffer`] and [`Error::Device`], for
    /// instance without memory.
    pub fn on_device(mut self, device: &rl_cuda::Device) -> Result<Self, Error> {
        if self.network.network_mut().move_to(device)? {
            self.target.network_mut().move_to(device)?;
            return Ok(self);
        }
        let DqnConfig { batch_size, micro_batch, replay_on_device, .. } = self.config;
        let sizes = BatchSizes { batch_size, micro_batch };
        self.device = Some(DeviceDqn::new(device, &self.network, &self.experience, replay_on_device, sizes)?);
        self.load_device()?;
        Ok(self)
    }

    /// Copies the state to the device, if one learns.
    fn load_device(&mut self) -> Result<(), Error> {
        let Self { device, network, target, optimizer, .. } = self;
        device.as_mut().map_or(Ok(()), |device| device.load(network, target, optimizer))
    }

    /// Borrows the parts on the CPU, the transitions, and the device, if any.
    fn learners<'a>(&'a mut self, done: f32, pool: &'a Pool) -> (TdHost<'a>, &'a mut Experience, Option<&'a mut DeviceDqn>) {
        let Self { network, target, config, optimizer, experience, memory, sums, device, .. } = self;
        let learning_rate = config.learning_rate.at(1.0 - done);
        let host = TdHost { network, target, config, optimizer, memory, sums, learning_rate, pool };
        (host, experience, device.as_mut())
    }

    /// Waits for the device's updates, and copies the online network to act with.
    fn fetch(&mut self, done: f32, pool: &Pool) -> Result<(), Error> {
        let (host, _, device) = self.learners(done, pool);
        device.map_or(Ok(()), |device| TdDevice { host, device }.finish())
    }
}

/// Does one update: draws a minibatch, takes a step, and updates priorities.
///
/// The text for every learner, after the fraction `done` of training.
fn learn(learner: &mut impl TdLearner, experience: &mut Experience, done: f32) -> Result<(), Error> {
    learner.draw(experience, done)?;
    learner.update(experience)?;
    if experience.is_prioritized() {
        let (batch, errors) = learner.errors(experience)?;
        experience.prioritize(batch, errors)?;
    }
    Ok(())
}

/// Place where an update is computed: the CPU, or a device.
///
/// A device is waited for only where its results are needed.
trait TdLearner {
    /// Draws the next minibatch, after the fraction `done` of training.
    fn draw(&mut self, experience: &mut Experience, done: f32) -> Result<(), Error>;

    /// Takes a step along the gradient, unless loss or gradient are not finite.
    fn update(&mut self, experience: &mut Experience) -> Result<(), Error>;

    /// Returns the minibatch with its errors.
    fn errors(&mut self, experience: &Experience) -> Result<(&Batch, &mut [f32]), Error>;
}

/// The CPU as a learner.
struct TdHost<'a> {
    network: &'a mut QNetwork,
    target: &'a QNetwork,
    config: &'a DqnConfig,
    optimizer: &'a mut Optimizer,
    memory: &'a mut Memory,
    sums: &'a mut Sums,
    learning_rate: f32,
    pool: &'a Pool,
}

impl TdLearner for TdHost<'_> {
    fn draw(&mut self, experience: &mut Experience, done: f32) -> Result<(), Error> {
        experience.draw(done, &mut self.memory.batch, false)
    }

    fn update(&mut self, experience: &mut Experience) -> Result<(), Error> {
        self.targets(experience)?;
        self.gradient(experience)?;
        self.step(experience)
    }

    fn errors(&mut self, _: &Experience) -> Result<(&Batch, &mut [f32]), Error> {
        Ok((&self.memory.batch, &mut self.memory.errors))
    }
}

impl TdHost<'_> {
    /// Computes `y = r + discount Q_target(s', a')`.
    ///
    /// a' is the best legal action by the online network if `double`, else by the target network.
    fn targets(&mut self, experience: &mut Experience) -> Result<(), Error> {
        experience.report(UpdateEvent::TargetsBegin);
        let Memory { batch, next_q, online_q, targets, scratches, .. } = &mut *self.memory;
        let (batch, a, double) = (batch.columns(), self.network.n_actions(), self.config.double);
        self.target.q_values(batch.next_obs, self.pool, scratches, next_q)?;
        if double {
            self.network.q_values(batch.next_obs, self.pool, scratches, online_q)?;
        }
        let by = if double { online_q } else { &*next_q };
        for (i, target) in targets.iter_mut().enumerate() {
            let mask = mask_rows(batch.next_masks, i..i + 1, a);
            let (action, _) = best(by[i * a..(i + 1) * a].iter().copied(), mask);
            *target = batch.rewards[i] + batch.discounts[i] * next_q[i * a + action];
        }
        experience.report(UpdateEvent::TargetsEnd);
        probe::report(experience.probe.as_ref(), Stage::Targets);
        Ok(())
    }

    /// Computes the gradient of the loss.
    fn gradient(&mut self, experience: &Experience) -> Result<(), Error> {
        match self.network.learner() {
            LearnerKind::Fused => self.fused(experience.probe.as_ref()),
            LearnerKind::Reference => self.reference(experience.probe.as_ref()),
        }
    }

    /// Takes a step along the gradient, unless loss or gradient are not finite.
    fn step(&mut self, experience: &Experience) -> Result<(), Error> {
        let Self { optimizer, learning_rate, config, .. } = self;
        let Memory { gradient, loss, q_mean, .. } = &*self.memory;
        let (network, threads) = (self.network.network_mut(), Threads { pool: self.pool, probe: experience.probe.as_ref() });
        let norm = step(optimizer, *loss, network, gradient, *learning_rate, config.max_grad_norm, threads);
        if self.optimizer.has_diverged() {
            let minibatch = tensors(&self.memory.batch, &self.memory.targets, |obs| Ok(self.network.network().features(obs)?))?;
            return Err(self.diverged(gradient, [*loss, *q_mean], minibatch));
        }
        self.sums.n += 1.0;
        self.sums.loss += loss;
        self.sums.q += q_mean;
        self.sums.steps.push(norm);
        Ok(())
    }

    /// Computes gradient, loss and errors with the tile kernel.
    fn fused(&mut self, probe: Option<&Probe>) -> Result<(), Error> {
        let network = &*self.network;
        let threads = Threads { pool: self.pool, probe };
        let Memory { batch, targets, errors, gradient, slices, loss, q_mean, .. } = &mut *self.memory;
        let not_here = || Error::Setting { name: "learner", value: "reference".into(), allowed: "only fused has a kernel" };
        let kernel = network.network().kernel().ok_or_else(not_here)?;
        let (actions, batch) = (actions(batch)?, batch.columns());
        let of = TdLoss { network, actions, targets, weights: batch.weights };
        let n = targets.len();
        let (mut total, mut q) = (0.0, 0.0);
        errors.clear();
        let samples = network.network().samples(batch.obs, None);
        for slice in slices.gradient(kernel, samples, n, threads, &of, gradient)? {
            total += slice.loss;
            q += slice.q;
            errors.extend_from_slice(&slice.errors);
        }
        (*loss, *q_mean) = ((total / n as f64) as f32, (q / n as f64) as f32);
        Ok(())
    }

    /// Computes gradient, loss and errors with candle operations.
    fn reference(&mut self, probe: Option<&Probe>) -> Result<(), Error> {
        let network = &*self.network;
        let device = network.network().device();
        let Memory { batch, targets, errors, gradient, loss: total, q_mean, .. } = &mut *self.memory;
        let n = targets.len();
        let obs = network.network().features(batch.columns().obs)?;
        let micro_batch = if self.config.micro_batch == 0 { n } else { self.config.micro_batch };
        (*total, *q_mean) = (0.0, 0.0);
        gradient.fill(0.0);
        errors.clear();
        for start in (0..n).step_by(micro_batch) {
            let len = micro_batch.min(n - start);
            let of = |all: &[f32]| Tensor::from_slice(&all[start..start + len], len, device);
            let actions = Tensor::from_slice(&actions(batch)?[start..start + len], len, device)?;
            let params = Var::from_slice(network.params(), network.params().len(), device)?;
            let (targets, weights) = (of(targets)?, of(batch.columns().weights)?);
            let (loss, q, error) = loss(network, &params, &obs.narrow(0, start, len)?, &actions, &targets, &weights)?;
            let share = len as f32 / n as f32;
            probe::report(probe, Stage::Forward);
            let grads = self.optimizer.gradient(&params, &(&loss * f64::from(share))?)?;
            probe::report(probe, Stage::Backward);
            gradient.iter_mut().zip(grads).for_each(|(sum, grad)| *sum += grad);
            *total += share * loss.to_scalar::<f32>()?;
            *q_mean += share * q.to_scalar::<f32>()?;
            errors.extend(error.to_vec1::<f32>()?);
        }
        Ok(())
    }

    /// Returns the error of an update at which learning stopped.
    fn diverged(&self, gradient: &[f32], [loss, q_mean]: [f32; 2], minibatch: Vec<NamedTensor>) -> Error {
        let losses = [("loss", loss), ("q_mean", q_mean)];
        Error::Diverged(Box::new(Divergence::new(self.optimizer, gradient, self.learning_rate, &losses, minibatch)))
    }
}

/// A device as a learner, with the parts on the CPU that its results are copied to.
struct TdDevice<'a> {
    host: TdHost<'a>,
    device: &'a mut DeviceDqn,
}

impl TdLearner for TdDevice<'_> {
    fn draw(&mut self, experience: &mut Experience, done: f32) -> Result<(), Error> {
        let diverged = self.device.minibatches.turn()?;
        self.check(diverged)?;
        probe::report(experience.probe.as_ref(), Stage::Waiting);
        let TdHost { sums, config, optimizer, learning_rate, .. } = &mut self.host;
        if sums.n == 0.0 {
            self.device.begin(*learning_rate, config.max_grad_norm, optimizer.rule())?;
        }
        sums.n += 1.0;
        self.device.minibatches.draw(experience, done)
    }

    fn update(&mut self, experience: &mut Experience) -> Result<(), Error> {
        self.device.update(self.host.config.double)?;
        probe::report(experience.probe.as_ref(), Stage::Waiting);
        Ok(())
    }

    fn errors(&mut self, experience: &Experience) -> Result<(&Batch, &mut [f32]), Error> {
        let diverged = self.device.minibatches.wait()?;
        self.check(diverged)?;
        probe::report(experience.probe.as_ref(), Stage::Waiting);
        let (batch, errors) = self.device.minibatches.errors()?;
        let here = &mut self.host.memory.errors;
        here.clear();
        here.extend(errors);
        Ok((batch, here))
    }
}

impl TdDevice<'_> {
    /// Returns an error if learning stopped at the current minibatch.
    ///
    /// # Errors
    /// [`Error::Diverged`], or [`Error::Device`].
    fn check(&mut self, diverged: Option<usize>) -> Result<(), Error> {
        if diverged.is_none() {
            return Ok(());
        }
        self.fetch()?;
        let Self { host, device } = self;
        let Repeated { batch, targets, gradient, last: [loss, q_mean, _] } = device.repeat(host.config.double)?;
        let minibatch = tensors(batch, &targets, |obs| Ok(host.network.network().features(obs)?))?;
        Err(host.diverged(&gradient, [loss, q_mean], minibatch))
    }

    /// Waits for all updates, and copies the online network to act with.
    fn finish(mut self) -> Result<(), Error> {
        for _ in 0..2 {
            let diverged = self.device.minibatches.turn()?;
            self.check(diverged)?;
        }
        if self.host.sums.n > 0.0 {
            let totals = self.fetch()?;
            *self.host.sums = Sums { n: totals.minibatches, loss: totals.policy, q: totals.value, steps: StepSums::of(&totals) };
        }
        Ok(())
    }

    /// Waits for all updates, and returns their sums.
    ///
    /// Copies the online network and the number of steps.
    fn fetch(&mut self) -> Result<UpdateTotals, Error> {
        let (totals, counters) = self.device.results()?;
        self.device.fetch(&counters, self.host.network)?;
        self.host.optimizer.set_steps(StepCount { taken: counters.taken, skipped: counters.skipped });
        Ok(totals)
    }
}

impl Learns for Dqn {
    fn experience(&mut self) -> &mut Experience {
        &mut self.experience
    }

    fn learn(&mut self, done: f32, pool: &Pool) -> Result<(), Error> {
        let (mut host, experience, device) = self.learners(done, pool);
        match device {
            None => learn(&mut host, experience, done),
            Some(device) => learn(&mut TdDevice { host, device }, experience, done),
        }
    }

    /// The target network follows.
    fn passed(&mut self, before: u64, now: u64) -> Result<(), Error> {
        let interval = self.config.target_update_interval;
        if before / interval == now / interval {
            return Ok(());
        }
        let tau = self.config.tau;
        if let Some(device) = &mut self.device {
            return device.follow(tau);
        }
        let threads = Threads { pool: &Pool::default(), probe: self.experience.probe.as_ref() };
        follow(self.target.network_mut(), self.network.params(), tau, threads);
        Ok(())
    }
}

impl Agent for Dqn {
    fn policy(&self) -> &dyn Policy {
        &self.network
    }

    fn acting(&mut self, remaining: f32) -> &dyn Policy {
        self.network.act_randomly_until(self.experience.random_steps());
        self.network.explore(self.config.epsilon(1.0 - remaining), self.config.exploration_spread, self.n_envs, 0);
        &self.network
    }

    fn layout(&self) -> &Layout {
        self.network.layout()
    }

    fn update(&mut self, rollout: &Rollout, remaining: f32, pool: &Pool) -> Result<Metrics, Error> {
        let done = 1.0 - remaining;
        self.sums = Sums::default();
        learn_from(self, rollout, done, pool)?;
        self.fetch(done, pool)?;
        let sums = self.sums;
        let mut metrics = Metrics::default();
        metrics.push_mean("train/loss", sums.loss, sums.n);
        metrics.push_mean("train/q_mean", sums.q, sums.n);
        sums.steps.report(&mut metrics);
        metrics.push("rollout/exploration_rate", self.config.epsilon(done));
        metrics.push("train/learning_rate", self.config.learning_rate.at(remaining));
        metrics.push("train/n_updates", self.optimizer.steps().taken as f32);
        Ok(metrics)
    }

    fn save(&self) -> Result<Snapshot, Error> {
        let mut moments = self.optimizer.moments();
        moments.push((TARGET.into(), self.target.params().to_vec()));
        if let Some(device) = &self.device {
            moments.iter_mut().zip(device.moments()?).for_each(|((_, here), there)| *here = there);
        }
        let network = Snapshot::from(self.network.weights());
        let counters = self.experience.counters(self.optimizer.steps(), network.counters.version);
        Ok(Snapshot { moments, counters, ..network })
    }

    fn load(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        snapshot.check()?;
        let (target, moments): (Vec<_>, Vec<_>) = snapshot.moments.iter().cloned().partition(|(name, _)| name == TARGET);
        let fits = |params: &[f32]| params.len() == self.network.params().len();
        let target = match &target[..] {
            [(_, target)] if fits(target) && fits(&snapshot.params) => target,
            _ => return Err(Error::Snapshot("its networks do not fit this agent".into())),
        };
        self.experience.check(&snapshot.counters)?;
        self.optimizer.load(&moments, snapshot.counters.steps)?;
        self.network.network_mut().set_params(&snapshot.params, snapshot.counters.version)?;
        self.target.network_mut().set_params(target, 0)?;
        self.experience.load(&snapshot.counters);
        self.load_device()
    }

    fn replay(&mut self) -> Option<&mut dyn Replays> {
        Some(&mut self.experience)
    }

    fn device(&mut self) -> Option<&mut dyn OnDevice> {
        self.device.as_mut().map(|device| device as &mut dyn OnDevice)
    }

    fn shared(&mut self) -> Option<&mut dyn Shareable> {
        Some(self)
    }

    fn observed(&mut self) -> Option<&mut dyn Observed> {
        Some(&mut self.experience)
    }
}

impl Shareable for Dqn {
    fn share(&mut self, ranks: Arc<dyn Ranks>) {
        self.device.iter_mut().for_each(|device| device.share(ranks.clone()));
        self.memory.slices.share(ranks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::tests::{Counted, on_ranks};
    use crate::{Acted, Acting, Choice, Collector, NetConfig, Precision};
    use rl_buffer::ObsSlice;
    use rl_envs::cartpole::CartPole;
    use rl_envs::snake::Snake;
    use rl_envs::wrappers::FrameStack;

    #[test]
    fn a_saved_replay_memory_with_an_action_that_does_not_exist_is_refused() {
        for prioritized in [false, true] {
            let config = || DqnConfig { buffer_size: 64, prioritized, save_replay: true, ..DqnConfig::default() };
            let saved = agent(LearnerKind::Fused, config());
            let mut bytes = Vec::new();
            saved.experience.save_replay(&mut bytes).unwrap();
            let snapshot = saved.save().unwrap();
            let mut loaded = agent(LearnerKind::Fused, config());
            loaded.experience.load_replay(&snapshot, &mut &bytes[..]).unwrap();
            // Rows follow 14 numbers of 8 bytes; Snake's observations are bytes, so that a row of words begins with its action.
            bytes[14 * 8..][..4].copy_from_slice(&4u32.to_le_bytes());
            let error = loaded.experience.load_replay(&snapshot, &mut &bytes[..]).unwrap_err();
            assert!(error.to_string().contains("holds action 4; there are 4 actions"), "{error}");
        }
    }

    /// An agent with a replay memory of masked Snake on a small board, and a drawn batch.
    fn agent(learner: LearnerKind, config: DqnConfig) -> Dqn {
        agent_of(&NetConfig { hidden: vec![17, 9], learner, ..NetConfig::default() }, config)
    }

    /// [`agent`] with other networks.
    fn agent_of(net: &NetConfig, config: DqnConfig) -> Dqn {
        let pool = Pool::new(1).unwrap();
        let env = Snake::new(rl_envs::snake::Params { rows: 4, columns: 5, max_steps: 30 });
        let mut collector = Collector::new(4, &env, &pool, 1).unwrap();
        let (obs, actions) = (collector.observation_space().clone(), collector.action_space().clone());
        let network = QNetwork::new(&obs, &actions, net, config.dueling, 5).unwrap();
        let mut agent =
            Dqn::new(network, DqnConfig { learning_starts: MAX_STEPS as u64, ..config }, &obs, &actions, 4, 7).unwrap();
        let mut rollout = collector.rollout(20).unwrap();
        for _ in 0..5 {
            collector.collect(agent.acting(1.0), &mut rollout).unwrap();
            agent.update(&rollout, 0.5, &pool).unwrap();
        }
        agent
    }

    #[test]
    fn a_network_of_the_other_kind_than_the_settings_say_is_refused() {
        let (obs, actions) = (Space::vector(&[-1.0; 2], &[1.0; 2]), ActionSpace::Discrete { n: 3, masked: false });
        for (built, set) in [(false, true), (true, false), (false, false), (true, true)] {
            let network = QNetwork::new(&obs, &actions, &NetConfig::default(), built, 1).unwrap();
            let config = DqnConfig { dueling: set, buffer_size: 100, ..DqnConfig::default() };
            let refused = match Dqn::new(network, config, &obs, &actions, 4, 1) {
                Ok(_) => false,
                Err(Error::Setting { name: "dueling", .. }) => true,
                Err(error) => panic!("{error}"),
            };
            assert_eq!(refused, built != set, "built {built}, set {set}");
        }
    }

    /// Returns what an agent remembers of two rollouts, sorted.
    ///
    /// `columns` gives the order of columns if they were filled first-come, and whether those of the second rollout continue the
    /// first.
    fn remembered_of(columns: Option<(&[usize], bool)>, n_steps: usize, prioritized: bool) -> Vec<Vec<u32>> {
        let (env, pool) = (rl_envs::cartpole::CartPole::default(), Pool::new(1).unwrap());
        let mut collector = Collector::new(5, &env, &pool, 1).unwrap();
        let (obs, actions) = (collector.observation_space().clone(), collector.action_space().clone());
        let network = QNetwork::new(&obs, &actions, &NetConfig::default(), false, 5).unwrap();
        let (acted_priorities, learning_starts) = (prioritized, 1_000_000);
        let config = DqnConfig { n_steps, prioritized, acted_priorities, learning_starts, ..DqnConfig::default() };
        let mut agent = Dqn::new(network, config, &obs, &actions, 5, 7).unwrap();
        let (mut rollout, mut mixed) = (collector.rollout(20).unwrap(), collector.rollout(20).unwrap());
        for i in 0..2 {
            collector.collect(agent.acting(1.0), &mut rollout).unwrap();
            if let Some((order, continues)) = columns {
                mixed.clear();
                mixed.contiguous = false;
                order.iter().enumerate().for_each(|(n, &from)| mixed.copy_column(n, &rollout, from));
                mixed.continues.extend([i == 1 && continues; 5]);
                agent.update(&mixed, 0.5, &pool).unwrap();
            } else {
                agent.update(&rollout, 0.5, &pool).unwrap();
            }
        }
        let replay = agent.experience.transitions();
        let mut batch = replay.batch(replay.len()).unwrap();
        replay.sample_distinct(&vec![0; replay.len()], &mut batch).unwrap();
        let (batch, d) = (batch.columns(), obs.len());
        let (ObsSlice::F32(obs), ObsSlice::F32(next_obs)) = (batch.obs, batch.next_obs) else { panic!("f32") };
        let row = |i: usize| {
            let numbers = [batch.rewards[i], batch.discounts[i], agent.experience.priority(batch.indices[i])];
            let numbers = obs[i * d..][..d].iter().chain(&next_obs[i * d..][..d]).chain(&numbers);
            numbers.map(|x| x.to_bits()).collect()
        };
        let mut rows: Vec<Vec<u32>> = (0..batch.rewards.len()).map(row).collect();
        rows.sort();
        rows
    }

    #[test]
    fn first_priorities_are_the_errors_that_a_first_update_finds() {
        let pool = Pool::new(1).unwrap();
        for (n_steps, learner, dueling) in
            [(1, LearnerKind::Fused, false), (3, LearnerKind::Fused, true), (3, LearnerKind::Reference, false)]
        {
            let of_errors = DqnConfig { prioritized: true, priority_alpha: 1.0, acted_priorities: true, ..DqnConfig::default() };
            let mut agent = agent(learner, DqnConfig { n_steps, dueling, batch_size: 128, ..of_errors });
            let (mut host, experience, _) = agent.learners(0.5, &pool);
            let (mut q, mut n_equal, mut n_largest) = (vec![0.0; 128 * 4], 0, 0);
            for _ in 0..20 {
                host.draw(experience, 0.5).unwrap();
                host.targets(experience).unwrap();
                let Memory { batch, targets, scratches, .. } = &mut *host.memory;
                host.network.q_values(batch.columns().obs, &pool, scratches, &mut q).unwrap();
                for (i, &index) in batch.columns().indices.iter().enumerate() {
                    let action = actions(batch).unwrap()[i] as usize;
                    let (error, priority) = ((q[4 * i + action] - targets[i]).abs(), experience.priority(index));
                    if (priority - error).abs() < 1e-5 {
                        n_equal += 1;
                    } else {
                        assert!(
                            priority >= 1.0,
                            "{priority} for an error of {error}, and not the largest, as after a truncation"
                        );
                        n_largest += 1;
                    }
                }
            }
            assert!(n_equal > 1500 && n_largest > 20, "{n_equal} errors, {n_largest} largest priorities");
        }
    }

    #[test]
    fn columns_filled_first_come_are_remembered_as_those_filled_in_step() {
        for n_steps in [1, 3, 7] {
            for prioritized in [false, true] {
                let expected = remembered_of(None, n_steps, prioritized);
                assert!(expected.len() > 170, "{}", expected.len());
                assert_eq!(remembered_of(Some((&[3, 0, 4, 2, 1], true)), n_steps, prioritized), expected, "{n_steps} steps");
                let cut = remembered_of(Some((&[3, 0, 4, 2, 1], false)), n_steps, prioritized);
                // Each trajectory that went on loses the steps that waited, and nothing is joined across the cut.
                assert_eq!(cut.len(), expected.len() - 5 * (n_steps - 1), "{n_steps} steps");
                assert!(cut.iter().all(|row| expected.contains(row)));
            }
        }
    }

    #[test]
    fn columns_that_do_not_run_on_are_refused() {
        let mut agent = agent(LearnerKind::Fused, DqnConfig::default());
        let pool = Pool::new(1).unwrap();
        let env = Snake::new(rl_envs::snake::Params { rows: 4, columns: 5, max_steps: 30 });
        let mut collector = Collector::new(4, &env, &pool, 1).unwrap();
        let mut rollout = collector.rollout(3).unwrap();
        collector.collect(agent.acting(1.0), &mut rollout).unwrap();
        rollout.contiguous = false;
        let before = agent.save().unwrap();
        let error = agent.update(&rollout, 0.5, &pool).unwrap_err();
        assert!(matches!(error, Error::Columns(_)), "{error}");
        assert_eq!(agent.save().unwrap().counters.env_steps, before.counters.env_steps, "nothing has been remembered");
    }

    #[test]
    fn steps_that_wait_are_forgotten_where_an_episode_was_given_up_between_rollouts() {
        let remembered = |cut_before: bool| {
            let (env, pool) = (rl_envs::cartpole::CartPole::default(), Pool::new(1).unwrap());
            let mut collector = Collector::new(4, &env, &pool, 1).unwrap();
            let (obs, actions) = (collector.observation_space().clone(), collector.action_space().clone());
            let network = QNetwork::new(&obs, &actions, &NetConfig::default(), false, 5).unwrap();
            let mut agent = Dqn::new(network, DqnConfig { n_steps: 3, ..DqnConfig::default() }, &obs, &actions, 4, 7).unwrap();
            let mut rollout = collector.rollout(2).unwrap();
            for i in 0..2 {
                collector.collect(agent.acting(1.0), &mut rollout).unwrap();
                rollout.cut_before = cut_before && i == 1;
                agent.update(&rollout, 0.5, &pool).unwrap();
            }
            agent.experience.transitions().len()
        };
        // Two of four steps in each of four environments begin complete transitions.
        assert_eq!((remembered(false), remembered(true)), (8, 0));
    }

    #[test]
    fn frames_kept_once_are_learnt_from_as_whole_stacks_are() {
        let pool = Pool::new(1).unwrap();
        let env = FrameStack::new(Snake::new(rl_envs::snake::Params { rows: 4, columns: 5, max_steps: 30 }), 3);
        let learnt = |stacked: bool| {
            let mut collector = Collector::new(4, &env, &pool, 1).unwrap();
            let (obs, actions) = (collector.observation_space().clone(), collector.action_space().clone());
            let whole = Space::bytes(obs.shape(), 255, obs.scale());
            let network = QNetwork::new(&obs, &actions, &NetConfig::default(), false, 5).unwrap();
            let config = DqnConfig { learning_starts: 40, buffer_size: 1000, ..DqnConfig::default() };
            let mut agent = Dqn::new(network, config, if stacked { &obs } else { &whole }, &actions, 4, 7).unwrap();
            let mut rollout = collector.rollout(20).unwrap();
            for _ in 0..5 {
                collector.collect(agent.acting(1.0), &mut rollout).unwrap();
                agent.update(&rollout, 0.5, &pool).unwrap();
            }
            let replay = agent.experience.transitions();
            assert_eq!(replay.shape().stack, if stacked { 3 } else { 1 });
            agent.network.params().to_vec()
        };
        assert_eq!(learnt(true), learnt(false));
    }

    #[test]
    fn ranks_with_a_shard_of_the_transitions_each_learn_as_one_with_all() {
        let pool = Pool::new(1).unwrap();
        let env = FrameStack::new(Snake::new(rl_envs::snake::Params { rows: 4, columns: 5, max_steps: 30 }), 3);
        for (stacked, prioritized) in [(false, false), (false, true), (true, false), (true, true)] {
            let learnt = |ranks: Option<Arc<dyn Ranks>>| {
                let mut collector = Collector::new(4, &env, &pool, 1).unwrap();
                let (obs, actions) = (collector.observation_space().clone(), collector.action_space().clone());
                let obs = if stacked { obs } else { Space::bytes(obs.shape(), 255, obs.scale()) };
                let network = QNetwork::new(&obs, &actions, &NetConfig::default(), false, 5).unwrap();
                let config = DqnConfig {
                    learning_starts: 40,
                    buffer_size: 200,
                    batch_size: 128,
                    prioritized,
                    acted_priorities: prioritized,
                    n_steps: 2,
                    ..DqnConfig::default()
                };
                let counted = ranks.clone().map(|ranks| Arc::new(Counted::new(ranks)));
                let storage = ReplayStorage { ranks: counted.clone().map(|ranks| ranks as _), ..ReplayStorage::default() };
                let mut agent = Dqn::new_in(network, config, &obs, &actions, 4, 7, &storage).unwrap();
                ranks.into_iter().for_each(|ranks| agent.share(ranks));
                let mut rollout = collector.rollout(20).unwrap();
                for _ in 0..5 {
                    collector.collect(agent.acting(1.0), &mut rollout).unwrap();
                    agent.update(&rollout, 0.5, &pool).unwrap();
                }
                let shape = agent.experience.transitions().shape();
                // Two stacks of frames, or a row: two observations, action, reward, discount, mask.
                let mask = if actions.masked() { actions.len() } else { 0 };
                let bytes = 2 * shape.obs_len + if stacked { 0 } else { 4 * (3 + mask.div_ceil(4)) };
                let exchanged = 128 * bytes * agent.experience.updates() as usize;
                (agent.network.params().to_vec(), exchanged, counted.map_or(0, |ranks| ranks.received()))
            };
            let (alone, exchanged, _) = learnt(None);
            for n_ranks in [2, 3] {
                let shared = on_ranks(n_ranks, |ranks| learnt(Some(ranks)));
                assert!(shared.iter().all(|(params, ..)| *params == alone), "stacked {stacked}, prioritized {prioritized}");
                assert_eq!(shared.iter().map(|(.., received)| received).sum::<usize>(), (n_ranks - 1) * exchanged);
            }
        }
    }

    #[test]
    fn the_kernel_s_gradient_is_candle_s() {
        for dueling in [false, true] {
            for double in [false, true] {
                for b in [1, 31, 33, 65, 200] {
                    let config =
                        DqnConfig { dueling, double, batch_size: b, prioritized: true, n_steps: 2, ..DqnConfig::default() };
                    let [fused, reference] =
                        [(LearnerKind::Fused, 0), (LearnerKind::Reference, 16)].map(|(learner, micro_batch)| {
                            let mut agent = agent(learner, DqnConfig { micro_batch, ..config.clone() });
                            let pool = Pool::new(2).unwrap();
                            agent.target.network_mut().change(|params| params.iter_mut().for_each(|x| *x *= 1.1));
                            let (mut host, experience, _) = agent.learners(0.2, &pool);
                            experience.draw(0.2, &mut host.memory.batch, false).unwrap();
                            host.targets(experience).unwrap();
                            host.gradient(experience).unwrap();
                            let Memory { loss, q_mean, gradient, errors, .. } = agent.memory;
                            (loss, q_mean, gradient, errors)
                        });
                    assert!((fused.0 - reference.0).abs() < 1e-5 * reference.0.max(1.0), "{} {}", fused.0, reference.0);
                    assert!((fused.1 - reference.1).abs() < 1e-5);
                    let norm = reference.2.iter().map(|x| x * x).sum::<f32>().sqrt();
                    let error = fused.2.iter().zip(&reference.2).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt();
                    assert!(error < 1e-5 * norm, "dueling {dueling}, B = {b}: {error} of {norm}");
                    assert!(fused.3.len() == b && fused.3.iter().zip(&reference.3).all(|(a, b)| (a - b).abs() < 1e-5));
                }
            }
        }
    }

    #[test]
    fn a_gradient_of_16_bits_is_that_of_f32_but_for_rounding() {
        for conv in [vec![], vec![[8, 3, 1]]] {
            let gradient = |precision| {
                let net = NetConfig {
                    conv: conv.clone(),
                    hidden: vec![17, 9],
                    learner: LearnerKind::Reference,
                    precision,
                    ..NetConfig::default()
                };
                let mut agent = agent_of(&net, DqnConfig { batch_size: 65, dueling: true, ..DqnConfig::default() });
                let pool = Pool::new(1).unwrap();
                let (mut host, experience, _) = agent.learners(0.0, &pool);
                experience.draw(0.0, &mut host.memory.batch, false).unwrap();
                host.targets(experience).unwrap();
                host.gradient(experience).unwrap();
                // An overflow is no divergence while losses are scaled.
                let overflow = vec![f32::INFINITY; agent.memory.gradient.len()];
                agent.optimizer.step(&mut overflow.clone(), &overflow, 0.0, 1.0);
                assert_eq!(agent.optimizer.steps().skipped, u64::from(precision != Precision::F16));
                agent.memory.gradient
            };
            let expected = gradient(Precision::F32);
            for precision in [Precision::Bf16, Precision::F16] {
                crate::fixture::assert_rounded(precision, &gradient(precision), &expected);
            }
        }
    }

    #[test]
    fn targets_follow_the_definition() {
        // Q_target(s') = (5, 7, 9, 1), of which 2 and 3 are illegal; Q_online(s') = (3, 2, 8, 9): double takes action 0.
        let rows = [[5.0f32, 7.0, 9.0, 1.0], [3.0, 2.0, 8.0, 9.0]];
        let mask = [1, 1, 0, 0];
        let action = |by: [f32; 4]| best(by.into_iter(), &mask).0;
        assert_eq!(1.0 + 0.5 * rows[0][action(rows[1])], 3.5);
        assert_eq!(1.0 + 0.5 * rows[0][action(rows[0])], 4.5);
        // The same in the agent, one transition at a time, against the network itself.
        for double in [false, true] {
            let mut agent = agent(LearnerKind::Fused, DqnConfig { double, batch_size: 8, ..DqnConfig::default() });
            agent.target.network_mut().change(|params| params.iter_mut().rev().for_each(|x| *x = 0.5 - *x));
            let pool = Pool::new(1).unwrap();
            let replay = agent.experience.transitions();
            replay.sample(&[0, 1 << 29, 1 << 30, 3 << 29, 1 << 31, 5 << 29, 3 << 30, u32::MAX], &mut agent.memory.batch).unwrap();
            let (mut host, experience, _) = agent.learners(0.0, &pool);
            host.targets(experience).unwrap();
            let batch = agent.memory.batch.columns();
            let ObsSlice::U8(next) = batch.next_obs else { panic!("bytes") };
            for i in 0..8 {
                let of = |network: &QNetwork| {
                    let mut q = [0.0; 4];
                    network.q_values(ObsSlice::U8(&next[i * 100..][..100]), &pool, &mut Vec::new(), &mut q).unwrap();
                    q
                };
                let legal = &batch.next_masks[i * 4..][..4];
                let by = if double { of(&agent.network) } else { of(&agent.target) };
                let chosen = (0..4).filter(|&j| legal[j] == 1).max_by(|&a, &b| by[a].total_cmp(&by[b])).unwrap_or(0);
                let expected = batch.rewards[i] + batch.discounts[i] * of(&agent.target)[chosen];
                assert_eq!(agent.memory.targets[i], expected, "double {double}, transition {i}");
            }
        }
    }

    #[test]
    fn updates_keep_to_the_ratio_and_the_target_follows_in_env_steps() {
        for (n_envs, n_steps) in [(1, 4), (8, 3), (3, 5)] {
            let pool = Pool::new(1).unwrap();
            let mut collector = Collector::new(n_envs, &rl_envs::cartpole::CartPole::default(), &pool, 1).unwrap();
            let (obs, actions) = (collector.observation_space().clone(), collector.action_space().clone());
            let net = NetConfig { hidden: vec![4], ..NetConfig::default() };
            let config = DqnConfig {
                learning_starts: 50,
                train_freq: 4,
                gradient_steps: 3,
                target_update_interval: 40,
                batch_size: 8,
                ..DqnConfig::default()
            };
            let network = QNetwork::new(&obs, &actions, &net, false, 1).unwrap();
            let mut agent = Dqn::new(network, config, &obs, &actions, n_envs, 1).unwrap();
            let mut rollout = collector.rollout(n_steps).unwrap();
            let mut env_steps = 0;
            let mut followed = 0;
            while env_steps < 700 {
                collector.collect(agent.acting(1.0), &mut rollout).unwrap();
                agent.update(&rollout, 0.5, &pool).unwrap();
                env_steps += (n_envs * n_steps) as u64;
                // Steps count from the first one beyond learning_starts.
                let first = 50 / n_envs as u64 * n_envs as u64;
                let due = env_steps.saturating_sub(first) / 4 * 3;
                assert_eq!(agent.experience.updates(), due, "{n_envs} environments, {env_steps} env steps");
                if agent.target.version() != followed {
                    followed = agent.target.version();
                }
            }
            assert_eq!(followed, env_steps / 40, "the target network follows every 40 env steps");
        }
    }

    #[test]
    fn actions_are_uniform_until_learning_starts_and_greedy_for_the_rest_after() {
        let (obs, actions) = (Space::vector(&[-1.0; 2], &[1.0; 2]), ActionSpace::Discrete { n: 3, masked: false });
        let config =
            DqnConfig { learning_starts: 1001, exploration_fraction: 0.0, exploration_final_eps: 0.0, ..DqnConfig::default() };
        let network = QNetwork::new(&obs, &actions, &NetConfig::default(), false, 1).unwrap();
        let mut agent = Dqn::new(network, config, &obs, &actions, 4, 1).unwrap();
        // Copies that act in lagging rollouts, made in all ways.
        let mut refreshed = agent.policy().copy();
        let mut replaced: Box<dyn Policy> = Box::new(QNetwork::new(&obs, &actions, &NetConfig::default(), false, 2).unwrap());
        agent.acting(0.9);
        agent.policy().copy_to(&mut refreshed);
        agent.policy().copy_to(&mut replaced);
        for policy in [agent.policy(), &*agent.policy().copy(), &*refreshed, &*replaced] {
            let mut scratch = Scratch::default();
            let mut act = |choice| {
                let (mut actions, mut rest) = ([0; 4], [0.0; 8]);
                let (log_probs, values) = rest.split_at_mut(4);
                let obs = ObsSlice::F32(&[0.1, 0.2, -0.5, 0.3, 0.9, -0.9, 0.0, 1.0]);
                let acted = Acted { actions: rl_envs::Actions::Discrete(&mut actions[..]), log_probs, values, states: &mut [] };
                policy.act(Acting { obs, masks: &[], choice, envs: &[] }, acted, &mut scratch).unwrap();
                actions.to_vec()
            };
            let greedy = act(Choice::Greedy);
            let mut counts = [0; 3];
            for step in 1..=300 {
                let chosen = act(Choice::Sample { seed: 7, step, first_env: 0 });
                if step <= 251 {
                    chosen.into_iter().for_each(|action: u32| counts[action as usize] += 1);
                } else {
                    assert_eq!(chosen, greedy, "step {step}: 251 steps of 4 environments are 1001 env steps at least");
                }
            }
            // Binomial with mean 335 and standard deviation 15.
            assert!(counts.iter().all(|n| (275..395).contains(n)), "{counts:?}");
        }
    }

    #[test]
    fn a_transition_that_cannot_be_learnt_from_is_replayed_rarely() {
        let pool = Pool::new(1).unwrap();
        let mut collector = Collector::new(4, &CartPole::default(), &pool, 2).unwrap();
        let (obs, actions) = (collector.observation_space().clone(), collector.action_space().clone());
        let network = QNetwork::new(&obs, &actions, &NetConfig::default(), false, 5).unwrap();
        let config = DqnConfig { prioritized: true, batch_size: 128, learning_starts: MAX_STEPS as u64, ..DqnConfig::default() };
        let mut agent = Dqn::new(network, config, &obs, &actions, 4, 7).unwrap();
        let mut rollout = collector.rollout(101).unwrap();
        collector.collect(agent.acting(1.0), &mut rollout).unwrap();
        let rl_envs::Obs::F32(mut obs) = rollout.columns().steps.obs else { panic!("CartPole's observations are f32") };
        obs[[101, 2 * 4]] = f32::NAN; // the next observation of one transition
        agent.update(&rollout, 0.5, &pool).unwrap();
        // 404 transitions with the same priority: the first draws of 128 soon include the bad one, and each of its draws costs an
        // update.
        let params = agent.network.params().to_vec();
        let mut skipped = 0;
        agent.sums = Sums::default();
        for _ in 0..60 {
            agent.learn(0.5, &pool).unwrap();
            skipped += u32::from(agent.optimizer.steps().skipped > 0);
        }
        assert!((1..=2).contains(&skipped), "{skipped} of 60 updates were skipped");
        let mut metrics = Metrics::default();
        agent.sums.steps.report(&mut metrics);
        assert_eq!(metrics.get("train/skipped_updates"), Some(skipped as f32));
        assert!(metrics.get("train/grad_norm").unwrap().is_finite() && agent.network.params() != params);
    }

    #[test]
    fn epsilon_falls_in_the_given_share_of_training_and_spreads() {
        let config = DqnConfig { exploration_fraction: 0.2, exploration_final_eps: 0.1, ..DqnConfig::default() };
        assert_eq!(config.epsilon(0.0), 1.0);
        assert!((config.epsilon(0.1) - 0.55).abs() < 1e-6);
        assert!((config.epsilon(0.7) - 0.1).abs() < 1e-6);
        assert_eq!(config.rollout_steps(1), 4);
        assert_eq!(config.rollout_steps(256), 1);
        assert!(DqnConfig { batch_size: 65, buffer_size: 64, ..DqnConfig::default() }.check().is_err());
        let error = DqnConfig { acted_priorities: true, ..DqnConfig::default() }.check().unwrap_err().to_string();
        assert!(error.contains("or set prioritized"), "{error}");
    }
}
