//! Experience: transitions, the updates that are due, minibatches.
//!
//! After each step of N environments all due updates are done: `gradient_steps` for every `train_freq` env steps, for any N. The
//! first env steps that count are those of the step that goes beyond `learning_starts`. Read [`learn_from`] first.
//!
//! Whichever policy acted, transitions are learnt from alike: targets use the current networks. Returns of several steps keep the
//! actions of the policy that took them, as in Rainbow (Hessel et al., 2018).

use std::io::{Read, Write};
use std::sync::Arc;

use candle_core::{Device, Tensor};
use rl_buffer::{
    ActedValues, ActionSlice, Batch, Memory, ObsRows, ObsSlice, PrioritizedReplayBuffer, ReplayBuffer, Rollout, Shard,
    ShardMessages, StepSlices, TransitionShape,
};
use rl_envs::{ActionSpace, Pool, Purpose, Rng, Space, either, visit};

use crate::agent::{NamedTensor, Observed, Replays};
use crate::learner::descent::check_continues;
use crate::learner::optim::{CHUNK, Optimizer, Rule, StepCount};
use crate::policy::network::Network;
use crate::probe::{self, Probe, Stage, Threads};
use crate::ranks::Ranks;
use crate::{Counters, Error, Snapshot, UpdateEvent, Watch};

/// Constant added to errors, so that every transition can be replayed.
const PRIORITY_EPSILON: f32 = 1e-6;

/// Exponents of prioritized replay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Priorities {
    /// Exponent of priorities.
    pub(crate) alpha: f32,
    /// Exponent of importance weights at the start; it rises to 1.
    pub(crate) beta: f32,
}

/// Settings of a replay memory and of the updates from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplaySettings {
    pub(crate) capacity: usize,
    pub(crate) batch_size: usize,
    pub(crate) learning_starts: u64,
    pub(crate) train_freq: u64,
    pub(crate) gradient_steps: u64,
    pub(crate) n_steps: usize,
    pub(crate) gamma: f32,
    /// True if checkpoints include the replay memory.
    pub(crate) is_saved: bool,
    /// `None` if transitions are drawn uniformly.
    pub(crate) priorities: Option<Priorities>,
    /// True if the values of the acting policy decide first priorities.
    pub(crate) acted_priorities: bool,
}

impl ReplaySettings {
    /// Checks that a minibatch fits into the memory, and that priorities have a use.
    ///
    /// # Errors
    /// [`Error::Setting`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.batch_size > self.capacity {
            let value = self.batch_size.to_string();
            return Err(Error::Setting { name: "batch_size", value, allowed: "a minibatch fits into buffer_size" });
        }
        if self.acted_priorities && self.priorities.is_none() {
            let allowed = "false where transitions are drawn uniformly; or set prioritized";
            return Err(Error::Setting { name: "acted_priorities", value: "true".into(), allowed });
        }
        Ok(())
    }
}

/// Implements what the settings of every algorithm with a replay memory have.
macro_rules! replay_settings {
    ($config:ty $(, $acted_priorities:ident)?) => {
        impl $config {
            /// Rule of all optimizers.
            pub const RULE: Rule = Rule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };

            /// Checks every range, and that a minibatch fits into the replay memory.
            ///
            /// # Errors
            /// [`Error::Range`] or [`Error::Setting`] for the first that fails.
            pub fn check(&self) -> Result<(), Error> {
                crate::settings::check(Self::KEYS, self)?;
                self.replay().check()
            }

            /// Steps of a rollout: those of each environment between updates.
            ///
            /// # Panics
            /// If `n_envs` is 0.
            #[must_use]
            pub fn rollout_steps(&self, n_envs: usize) -> usize {
                (self.train_freq as usize / n_envs).max(1)
            }

            fn replay(&self) -> ReplaySettings {
                let (alpha, beta) = (self.priority_alpha, self.priority_beta);
                ReplaySettings {
                    capacity: self.buffer_size,
                    batch_size: self.batch_size,
                    learning_starts: self.learning_starts,
                    train_freq: self.train_freq,
                    gradient_steps: self.gradient_steps,
                    n_steps: self.n_steps,
                    gamma: self.gamma,
                    is_saved: self.save_replay,
                    priorities: self.prioritized.then_some(Priorities { alpha, beta }),
                    acted_priorities: false $(|| self.$acted_priorities)?,
                }
            }
        }
    };
}
pub(crate) use replay_settings;

/// Storage of a replay memory.
#[derive(Clone)]
pub struct ReplayStorage {
    /// Memory of the transitions.
    pub memory: Arc<dyn Memory>,
    /// Ranks that store a shard of the transitions each.
    ///
    /// The same ranks as [`Shareable::share`](crate::agent::Shareable::share) gets; they exchange the transitions of every
    /// minibatch. `None`: all transitions are stored here.
    pub ranks: Option<Arc<dyn Ranks>>,
}

impl Default for ReplayStorage {
    fn default() -> Self {
        Self { memory: <dyn Memory>::host(), ranks: None }
    }
}

/// A replay memory.
enum Replay {
    Uniform(ReplayBuffer),
    Prioritized(PrioritizedReplayBuffer),
}

/// Evaluates an expression with the replay memory of either kind.
macro_rules! with {
    ($replay:expr, |$each:ident| $body:expr) => {
        match $replay {
            Replay::Uniform($each) => $body,
            Replay::Prioritized($each) => $body,
        }
    };
}

impl Replay {
    fn transitions(&self) -> &ReplayBuffer {
        match self {
            Self::Uniform(replay) => replay,
            Self::Prioritized(replay) => replay.replay(),
        }
    }

    /// Adds a step of all environments, or of one.
    fn push(
        &mut self,
        env_idx: Option<usize>,
        obs: ObsSlice<'_>,
        step: &StepSlices<'_>,
        values: ActedValues<'_>,
    ) -> Result<(), Error> {
        match (self, env_idx) {
            (Self::Uniform(replay), None) => replay.push(obs, step)?,
            (Self::Uniform(replay), Some(env_idx)) => replay.push_env(env_idx, obs, step)?,
            (Self::Prioritized(replay), env_idx) => replay.push_acted(env_idx, obs, step, values)?,
        };
        Ok(())
    }
}

/// Transitions, with the counters of the updates from them.
pub(crate) struct Experience {
    settings: ReplaySettings,
    replay: Replay,
    n_envs: usize,
    seed: u64,
    env_steps: u64,
    /// Number of env steps when the replay memory was last empty.
    empty_at: u64,
    /// Number of env steps without updates so far.
    credit: u64,
    /// Number of minibatches drawn.
    updates: u64,
    words: Vec<u32>,      // (B)
    final_obs: ObsRows,   // (N, D)
    final_masks: Vec<u8>, // (N, A), or empty without masks
    /// Number of discrete actions, if they are.
    n_discrete: Option<usize>,
    pub(crate) probe: Option<Probe>,
    watch: Option<Watch>,
    /// Ranks that store the other shards, with reused messages.
    others: Option<(Arc<dyn Ranks>, ShardMessages)>,
    /// Number of times that all transitions were replaced.
    generation: u64,
}

/// An algorithm that learns from [`Experience`].
pub(crate) trait Learns {
    fn experience(&mut self) -> &mut Experience;

    /// Does one update, after the fraction `done` of training.
    fn learn(&mut self, done: f32, pool: &Pool) -> Result<(), Error>;

    /// Does what else is due between `before` and `now` env steps.
    fn passed(&mut self, _before: u64, _now: u64) -> Result<(), Error> {
        Ok(())
    }
}

/// Adds a rollout to the replay memory, and does the updates that are due.
///
/// # Errors
/// [`Error::Buffer`], and the errors of the updates.
pub(crate) fn learn_from(agent: &mut impl Learns, rollout: &Rollout, done: f32, pool: &Pool) -> Result<(), Error> {
    check_continues(rollout, "n-step returns and stacked frames continue")?;
    if rollout.cut_before {
        agent.experience().discontinue();
    }
    let (n_steps, n_envs) = rollout.rewards().dim();
    let mut ended: Vec<_> = rollout.final_at().iter().enumerate().map(|(i, &(t, n))| (t, n, i)).collect();
    ended.sort_unstable();
    if rollout.contiguous {
        for t in 0..n_steps {
            let from = ended.partition_point(|&(at, ..)| at < t);
            let to = ended.partition_point(|&(at, ..)| at <= t);
            agent.experience().remember(rollout, t, None, &ended[from..to])?;
            catch_up(agent, n_envs as u64, done, pool)?;
        }
        return Ok(());
    }
    // An environment may have filled several columns, one after the other.
    for n in 0..n_envs {
        if !rollout.continues[n] {
            agent.experience().forget_waiting_of(rollout.env_idx()[n] as usize);
        }
        for t in 0..n_steps {
            let from = ended.partition_point(|&(at, column, _)| (at, column) < (t, n));
            let to = ended.partition_point(|&(at, column, _)| (at, column) <= (t, n));
            agent.experience().remember(rollout, t, Some(n), &ended[from..to])?;
            catch_up(agent, 1, done, pool)?;
        }
    }
    Ok(())
}

/// Does all updates that are due after another N env steps.
fn catch_up(agent: &mut impl Learns, n_envs: u64, done: f32, pool: &Pool) -> Result<(), Error> {
    let before = agent.experience().env_steps;
    agent.experience().count(n_envs);
    while agent.experience().is_due() {
        for _ in 0..agent.experience().settings.gradient_steps {
            agent.learn(done, pool)?;
        }
    }
    agent.passed(before, before + n_envs)
}

impl Experience {
    /// Allocates a replay memory of `n_envs` environments, and a minibatch.
    ///
    /// `seed` determines which transitions are replayed.
    ///
    /// # Errors
    /// [`Error::Buffer`] if they do not fit.
    pub(crate) fn new(
        settings: ReplaySettings,
        obs: &Space,
        actions: &ActionSpace,
        n_envs: usize,
        seed: u64,
        ReplayStorage { memory, ranks }: &ReplayStorage,
    ) -> Result<(Self, Batch), Error> {
        let shard = ranks.as_ref().map_or_else(Shard::default, |ranks| Shard::new(ranks.rank(), ranks.n_ranks()));
        let shape = TransitionShape::new(n_envs, obs, actions, settings.n_steps, settings.gamma);
        let replay = match settings.priorities {
            Some(Priorities { alpha, .. }) => {
                let (capacity, epsilon) = (settings.capacity, PRIORITY_EPSILON);
                let replay = PrioritizedReplayBuffer::shard_in(shape, capacity, alpha, epsilon, shard, memory)?;
                Replay::Prioritized(if settings.acted_priorities { replay.with_acted_priorities()? } else { replay })
            }
            None => Replay::Uniform(ReplayBuffer::shard_in(shape, settings.capacity, shard, memory)?),
        };
        let masked = matches!(actions, ActionSpace::Discrete { masked: true, .. });
        let experience = Self {
            settings,
            replay,
            n_envs,
            seed,
            env_steps: 0,
            empty_at: 0,
            credit: 0,
            updates: 0,
            words: vec![0; settings.batch_size],
            final_obs: ObsRows::zeros(obs.dtype(), n_envs * obs.len()),
            final_masks: vec![0; if masked { n_envs * actions.len() } else { 0 }],
            n_discrete: actions.n_discrete().map(|n| n as usize),
            probe: None,
            watch: None,
            others: ranks.clone().map(|ranks| (ranks, ShardMessages::default())),
            generation: 0,
        };
        Ok((experience, Batch::new(&shape, settings.batch_size)?))
    }

    /// Returns the transitions.
    pub(crate) fn transitions(&self) -> &ReplayBuffer {
        self.replay.transitions()
    }

    /// Returns the priority of a transition; 0 without priorities.
    #[cfg(test)]
    pub(crate) fn priority(&self, index: u32) -> f32 {
        match &self.replay {
            Replay::Uniform(_) => 0.0,
            Replay::Prioritized(replay) => replay.priorities().get(index as usize),
        }
    }

    /// True if other ranks store shards of the transitions.
    pub(crate) fn is_sharded(&self) -> bool {
        self.others.is_some()
    }

    /// Returns the number of times that all transitions were replaced.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the number of minibatches drawn.
    pub(crate) fn updates(&self) -> u64 {
        self.updates
    }

    /// True once an update was made or is due.
    ///
    /// It is after more than `learning_starts` env steps since the memory was empty.
    pub(crate) fn has_begun(&self) -> bool {
        self.updates > 0 || self.env_steps - self.empty_at > self.settings.learning_starts
    }

    /// Number of lifetime steps in which all actions of an environment are random.
    ///
    /// 0 once learning has begun: those who count env steps from 1 again, such as evaluations, do not repeat them.
    pub(crate) fn random_steps(&self) -> u64 {
        if self.has_begun() { 0 } else { (self.empty_at + self.settings.learning_starts).div_ceil(self.n_envs as u64) }
    }

    /// True if errors decide which transitions are drawn.
    pub(crate) fn is_prioritized(&self) -> bool {
        matches!(self.replay, Replay::Prioritized(_))
    }

    /// Adds step `t` of a rollout, of all columns or of one.
    ///
    /// `ended` are the episodes that it ended, by step, column and index of the final observation.
    fn remember(
        &mut self,
        rollout: &Rollout,
        t: usize,
        column: Option<usize>,
        ended: &[(usize, usize, usize)],
    ) -> Result<(), Error> {
        let (n, d) = (rollout.shape().n_envs, rollout.shape().obs_len);
        let Self { final_obs, final_masks, .. } = self;
        let a = final_masks.len() / self.n_envs;
        for &(_, column, i) in ended {
            let to = visit!(Obs, final_obs.as_mut(), |obs| &mut obs[column * d..][..d]);
            let both = to.zip(rollout.final_obs().row(i, d));
            let both = both.ok_or(Error::ObsKind)?;
            either!(Obs, both, |(to, from)| to.copy_from_slice(from));
            final_masks[column * a..][..a].copy_from_slice(&rollout.final_masks()[i * a..][..a]);
        }
        let step = rollout.step(t);
        let masks = step.masks.map(|[masks, _]| [masks, &final_masks[..n * a]]);
        let final_obs = final_obs.as_slice().rows(0..n, d);
        let (obs, step) = (rollout.obs_rows(t * n..(t + 1) * n), StepSlices { final_obs, masks, ..step });
        let values = rollout.acted_values(t);
        match column {
            None => self.replay.push(None, obs, &step, values)?,
            Some(column) => {
                let (env_idx, obs, step) = (rollout.env_idx()[column] as usize, obs.row(column, d), step.env(column));
                self.replay.push(Some(env_idx), obs, &step, values.env(column))?;
            }
        }
        probe::report(self.probe.as_ref(), Stage::Adding);
        Ok(())
    }

    /// Counts env steps.
    fn count(&mut self, env_steps: u64) {
        self.env_steps += env_steps;
        if self.env_steps - self.empty_at > self.settings.learning_starts && !self.transitions().is_empty() {
            self.credit += env_steps;
        }
    }

    /// Takes the env steps of an update, if there are as many.
    fn is_due(&mut self) -> bool {
        let rest = self.credit.checked_sub(self.settings.train_freq);
        self.credit = rest.unwrap_or(self.credit);
        rest.is_some()
    }

    /// Draws the next minibatch, after the fraction `done` of training.
    ///
    /// With `rows_alone`, a copy of the replay memory elsewhere has the transitions. With other ranks, blocks until all draw.
    ///
    /// # Errors
    /// [`Error::Buffer`]; [`Error::PeerEnded`] if another rank will not draw.
    pub(crate) fn draw(&mut self, done: f32, batch: &mut Batch, rows_alone: bool) -> Result<(), Error> {
        let mut rng = Rng::new(self.seed, 0, self.updates, Purpose::Replay);
        self.updates += 1;
        let Self { words, replay, settings, others, .. } = self;
        words.iter_mut().for_each(|word| *word = rng.next_u32());
        let beta = settings.priorities.map_or(1.0, |Priorities { beta, .. }| beta + done * (1.0 - beta));
        match (&*replay, rows_alone || others.is_some()) {
            (Replay::Uniform(replay), false) => replay.sample(words, batch)?,
            (Replay::Uniform(replay), true) => replay.draw(words, batch)?,
            (Replay::Prioritized(replay), false) => replay.sample(words, beta, batch)?,
            (Replay::Prioritized(replay), true) => replay.draw(words, beta, batch)?,
        }
        if let Some((ranks, messages)) = others {
            let transitions = replay.transitions();
            transitions.write_shard(batch, messages);
            messages.all.resize(messages.lens.iter().sum(), 0);
            ranks.all_gather(&messages.own, &messages.lens, &mut messages.all)?;
            transitions.read_shards(batch, messages);
        }
        probe::report(self.probe.as_ref(), Stage::Drawing);
        Ok(())
    }

    /// Updates the priorities of a minibatch by its errors.
    ///
    /// A transition without a finite error counts as one without any.
    ///
    /// # Errors
    /// [`Error::Buffer`].
    pub(crate) fn prioritize(&mut self, batch: &Batch, errors: &mut [f32]) -> Result<(), Error> {
        if let Replay::Prioritized(replay) = &mut self.replay {
            errors.iter_mut().filter(|error| !error.is_finite()).for_each(|error| *error = 0.0);
            replay.update(batch, errors)?;
            probe::report(self.probe.as_ref(), Stage::Drawing);
        }
        Ok(())
    }

    /// Removes all transitions.
    fn clear(&mut self) {
        self.generation += 1;
        with!(&mut self.replay, |replay| replay.clear());
    }

    /// Drops the waiting steps of an environment with a gap in its trajectory.
    fn forget_waiting_of(&mut self, env_idx: usize) {
        with!(&mut self.replay, |replay| replay.forget_waiting_of(env_idx));
    }

    /// Returns the counters of a snapshot.
    pub(crate) fn counters(&self, steps: StepCount, version: u64) -> Counters {
        let &Self { updates, env_steps, credit, empty_at, .. } = self;
        Counters { version, epochs: updates, steps, env_steps, credit, empty_at }
    }

    /// Refuses the counters of a snapshot that this memory's settings do not allow.
    ///
    /// # Errors
    /// [`Error::Snapshot`].
    pub(crate) fn check(&self, Counters { credit, .. }: &Counters) -> Result<(), Error> {
        let train_freq = self.settings.train_freq;
        if *credit >= train_freq {
            return Err(Error::Snapshot(format!("{credit} env steps wait for their updates, of which {train_freq} cannot wait")));
        }
        Ok(())
    }

    /// Restores counters, for an empty memory.
    pub(crate) fn load(&mut self, counters: &Counters) {
        let &Counters { epochs, env_steps, credit, .. } = counters;
        self.clear();
        (self.updates, self.env_steps, self.credit, self.empty_at) = (epochs, env_steps, credit, env_steps);
    }

    /// Tells the watcher of an event.
    pub(crate) fn report(&mut self, event: UpdateEvent) {
        self.watch.iter_mut().for_each(|watch| watch(event));
    }
}

/// Creates the optimizer of a network.
pub(crate) fn optimizer(rule: Rule, network: &Network) -> Optimizer {
    let mut optimizer = Optimizer::new(rule, network.params().len());
    optimizer.set_precision(network.precision());
    optimizer
}

/// Moves a target network by the part `tau` of its way; 1: to a copy.
pub(crate) fn follow(target: &mut Network, online: &[f32], tau: f32, threads: Threads<'_>) {
    target.change_on(threads, |params| {
        let mut chunks: Vec<_> = params.chunks_mut(CHUNK).zip(online.chunks(CHUNK)).collect();
        threads.each(Stage::Optimizer, &mut chunks, &|(params, online)| {
            if tau == 1.0 {
                params.copy_from_slice(online);
            } else {
                params.iter_mut().zip(&**online).for_each(|(target, &x)| *target += tau * (x - *target));
            }
        });
    });
}

/// Takes a step of a network; returns the gradient's norm.
///
/// A gradient longer than `max_norm` is scaled down. The step is skipped if the loss is not finite.
pub(crate) fn step(
    optimizer: &mut Optimizer,
    loss: f32,
    network: &mut Network,
    gradient: &[f32],
    rate: f32,
    max_norm: f32,
    threads: Threads<'_>,
) -> Option<f32> {
    if !loss.is_finite() {
        optimizer.skip();
        return None;
    }
    network.change_on(threads, |params| optimizer.step_with(threads, params, gradient, rate, max_norm))
}

/// Returns the tensors of a minibatch at which learning stopped.
///
/// `features` makes observations a tensor.
///
/// # Errors
/// Errors of `features` and of candle.
pub(crate) fn tensors(
    batch: &Batch,
    targets: &[f32],
    features: impl Fn(ObsSlice<'_>) -> Result<Tensor, Error>,
) -> Result<Vec<NamedTensor>, Error> {
    let (batch, n) = (batch.columns(), targets.len());
    let column = |values: &[f32]| Tensor::from_slice(values, n, &Device::Cpu);
    let tensors = [
        ("obs", features(batch.obs)?),
        (
            "actions",
            match batch.actions {
                ActionSlice::Discrete(actions) => Tensor::from_slice(actions, n, &Device::Cpu)?,
                ActionSlice::Continuous(actions) => Tensor::from_slice(actions, (n, actions.len() / n), &Device::Cpu)?,
            },
        ),
        ("rewards", column(batch.rewards)?),
        ("discounts", column(batch.discounts)?),
        ("next_obs", features(batch.next_obs)?),
        ("targets", column(targets)?),
        ("weights", column(batch.weights)?),
    ];
    Ok(tensors.iter().map(|(name, tensor)| NamedTensor::new(name, tensor)).collect::<candle_core::Result<_>>()?)
}

impl Observed for Experience {
    fn watch(&mut self, watch: Watch) {
        self.watch = Some(watch);
    }

    fn set_probe(&mut self, probe: Probe) {
        self.probe = Some(probe);
    }
}

impl Replays for Experience {
    fn discontinue(&mut self) {
        with!(&mut self.replay, |replay| replay.forget_waiting());
    }

    fn is_saved(&self) -> bool {
        self.settings.is_saved
    }

    fn save_replay(&self, mut out: &mut dyn Write) -> Result<(), Error> {
        with!(&self.replay, |replay| replay.save(&mut out)?);
        Ok(())
    }

    /// Refuses discrete actions that do not exist, too.
    fn load_replay(&mut self, snapshot: &Snapshot, mut input: &mut dyn Read) -> Result<(), Error> {
        self.generation += 1;
        with!(&mut self.replay, |replay| replay.restore(&mut input)?);
        let max = self.transitions().max_action();
        if let Some(n) = self.n_discrete.filter(|&n| max as usize >= n) {
            self.clear();
            return Err(Error::Snapshot(format!("the replay memory holds action {max}; there are {n} actions, from 0 on")));
        }
        self.empty_at = snapshot.counters.empty_at;
        Ok(())
    }
}
