//! Collecting in lockstep: each thread steps its own slice of the environments.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use rl_buffer::{Rollout, RolloutShape};
use rl_envs::wrappers::Clock;
use rl_envs::{ActionSpace, Env, ObsRows, Pool, Space, SyncVecEnv, VecEnv, codec, pool};
use serde::{Deserialize, Serialize};

use crate::collect::anomaly::Anomalies;
use crate::collect::memory::PolicyMemory;
use crate::collect::slice::{End, Ends, Episode, Slice, State};
use crate::kernel::slices::{MAX_SLICES, MIN_SLICE};
use crate::ranks::{Ranks, columns, gather, gather_rollout, share};
use crate::settings::OnNonfinite;
use crate::{Error, Policy};

/// A running batch of environments, which fills one rollout after the other.
pub struct Collector {
    slices: Vec<Slice>,
    pool: Pool,
    seed: u64,
    /// Lifetime steps of each environment.
    steps: u64,
    /// Other ranks, which step the other slices, if there are any.
    shared: Option<Shared>,
}

/// Environments of all ranks.
struct Shared {
    ranks: Arc<dyn Ranks>,
    /// Number of slices.
    n_slices: usize,
    /// Environments of each rank.
    columns: Vec<Range<usize>>,
    anomalies: Anomalies,
}

/// State of a collector, to be saved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CollectorState {
    pub(crate) steps: u64,
    /// State of each slice and of its environments; `None` if they cannot be saved.
    pub(crate) slices: Vec<(State, Option<Vec<u8>>)>,
    /// States of the policy, (N, S); empty without memory or environments.
    pub(crate) memory: Vec<f32>,
}

impl CollectorState {
    /// Creates a state without environments, after `steps` lifetime steps of each.
    #[must_use]
    pub fn without_envs(steps: u64) -> Self {
        Self { steps, slices: Vec::new(), memory: Vec::new() }
    }

    /// Writes the encoded state: see [`codec::encode_into`].
    ///
    /// # Errors
    /// The errors of `out`.
    pub fn encode_into(&self, out: &mut dyn io::Write) -> Result<(), rl_envs::Error> {
        codec::encode_into(self, out)
    }

    /// Decodes a state; those of older versions have no states of a policy.
    ///
    /// # Errors
    /// The errors of [`Input::value`](codec::Input::value).
    pub fn decode(input: &mut codec::Input<'_>, has_memory: bool) -> Result<Self, rl_envs::Error> {
        let (steps, slices) = input.value()?;
        Ok(Self { steps, slices, memory: if has_memory { input.floats()? } else { Vec::new() } })
    }

    /// Lifetime steps of each environment.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// True if the environments were saved; if not, loading begins new episodes.
    #[must_use]
    pub fn has_envs(&self) -> bool {
        !self.slices.is_empty() && self.slices.iter().all(|(_, envs)| envs.is_some())
    }
}

impl Collector {
    /// Creates `n_envs` copies of `env` with `seed`, stepped by the threads of `pool`.
    ///
    /// # Errors
    /// Errors of [`VecEnv::reset_into`].
    pub fn new<E: Env + 'static>(n_envs: usize, env: &E, pool: &Pool, seed: u64) -> Result<Self, Error> {
        let slice = |range| Box::new(SyncVecEnv::slice(range, env.clone())) as Box<dyn VecEnv>;
        Self::of(pool::slices(n_envs, MAX_SLICES, MIN_SLICE).map(slice).collect(), pool, seed)
    }

    /// Creates a collector of environments in slices.
    ///
    /// The first slice begins with environment 0, each other one after the previous slice's last.
    ///
    /// # Errors
    /// [`rl_envs::Error::Slices`] if they do not; errors of [`VecEnv::reset_into`].
    ///
    /// # Panics
    /// If there are no slices.
    pub fn of(slices: Vec<Box<dyn VecEnv>>, pool: &Pool, seed: u64) -> Result<Self, Error> {
        assert!(!slices.is_empty(), "one environment at least");
        Self::from(0, slices, pool, seed)
    }

    /// Creates this rank's part of a collector, whose environments all ranks share.
    ///
    /// `slices` are all of them; `make` creates those of this rank. The rollouts of all ranks are the same.
    ///
    /// # Errors
    /// [`Error::Ranks`] if there are fewer slices than ranks; errors of `make` and [`Collector::of`].
    pub fn of_rank(
        ranks: Arc<dyn Ranks>,
        slices: &[Range<usize>],
        make: impl FnMut(Range<usize>) -> Result<Box<dyn VecEnv>, rl_envs::Error>,
        pool: &Pool,
        seed: u64,
    ) -> Result<Self, Error> {
        let (n_slices, columns) = (slices.len(), columns(slices, ranks.n_ranks())?);
        let own = &slices[share(n_slices, ranks.rank(), ranks.n_ranks())];
        let own = own.iter().cloned().map(make).collect::<Result<_, _>>()?;
        let own = Self::from(columns[ranks.rank()].start, own, pool, seed)?;
        Ok(Self { shared: Some(Shared { ranks, n_slices, columns, anomalies: Anomalies::default() }), ..own })
    }

    /// Creates a collector of environments in slices, from `first_env` on.
    fn from(mut first_env: usize, slices: Vec<Box<dyn VecEnv>>, pool: &Pool, seed: u64) -> Result<Self, Error> {
        let mut all = Vec::with_capacity(slices.len());
        for (slice, envs) in slices.into_iter().enumerate() {
            let (n, found) = (envs.n_envs(), envs.first_env() as usize);
            if found != first_env {
                return Err(rl_envs::Error::Slices { slice, expected: first_env, found }.into());
            }
            all.push(Slice::new(envs, first_env, seed)?);
            first_env += n;
        }
        Ok(Self { slices: all, pool: pool.clone(), seed, steps: 0, shared: None })
    }

    /// Sets the reaction to a reward or an observation that is not finite.
    #[must_use]
    pub fn with_on_nonfinite(mut self, on_nonfinite: OnNonfinite) -> Self {
        self.slices.iter_mut().for_each(|slice| slice.on_nonfinite = on_nonfinite);
        self
    }

    /// Carries states of `len` elements from step to step, for a policy with memory.
    ///
    /// See [`Policy::state_len`]. States begin as zeros.
    pub fn remember(&mut self, len: usize) {
        self.slices.iter_mut().for_each(|slice| slice.memory = PolicyMemory::new(slice.envs.n_envs(), len));
    }

    /// Uses `clock` to measure policy and preprocessing.
    ///
    /// See [`Collector::acted`] and [`Collector::preprocessed`].
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.slices.iter_mut().for_each(|slice| slice.clock = clock);
        self
    }

    /// Time that the policy took in the last rollout, summed over threads.
    ///
    /// In the unit of the clock; 0 without one.
    #[must_use]
    pub fn acted(&self) -> u64 {
        self.slices.iter().map(|slice| slice.acted).sum()
    }

    /// Time that pictures and stacks of observations took in the last rollout.
    ///
    /// Summed over threads, in the unit of the clock; 0 without one. Estimated from every 16th step. See
    /// [`time_preprocessing`](rl_envs::wrappers::time_preprocessing).
    #[must_use]
    pub fn preprocessed(&self) -> u64 {
        self.slices.iter().map(|slice| slice.preprocessed).sum()
    }

    /// Invalid numbers from the environments so far.
    #[must_use]
    pub fn anomalies(&self) -> Anomalies {
        self.shared.as_ref().map_or_else(|| self.own_anomalies(), |shared| shared.anomalies.clone())
    }

    fn own_anomalies(&self) -> Anomalies {
        let mut all = Anomalies::default();
        self.slices.iter().for_each(|slice| all.add(&slice.anomalies));
        all
    }

    /// Number of environments N, of all ranks.
    #[must_use]
    pub fn n_envs(&self) -> usize {
        let shared = self.shared.as_ref().and_then(|shared| shared.columns.last());
        shared.map_or_else(|| self.own_envs(), |last| last.end)
    }

    fn own_envs(&self) -> usize {
        self.slices.iter().map(|slice| slice.envs.n_envs()).sum()
    }

    /// Number of threads that step them.
    #[must_use]
    pub fn n_threads(&self) -> usize {
        self.pool.n_threads().min(self.slices.len())
    }

    /// Observation space of one environment.
    #[must_use]
    pub fn observation_space(&self) -> &Space {
        self.slices[0].envs.observation_space()
    }

    /// Action space of one environment.
    #[must_use]
    pub fn action_space(&self) -> &ActionSpace {
        self.slices[0].envs.action_space()
    }

    /// Dimensions of a rollout of `n_steps` steps of these environments.
    #[must_use]
    pub fn shape(&self, n_steps: usize) -> RolloutShape {
        let shape = RolloutShape::new(n_steps, self.n_envs(), self.observation_space(), self.action_space());
        shape.with_state_len(self.slices[0].memory.state_len())
    }

    /// Creates an empty rollout of `n_steps` steps for these environments.
    ///
    /// # Errors
    /// Errors of [`Rollout::new`].
    pub fn rollout(&self, n_steps: usize) -> Result<Rollout, Error> {
        Ok(Rollout::new(self.shape(n_steps))?)
    }

    /// Fills a rollout with T steps of every environment under `policy`.
    ///
    /// Writes the values after the last step, too. Returns the ended episodes in order of their ends, except for dropped ones.
    ///
    /// # Errors
    /// [`Error::StateLen`] or [`Error::Spaces`] if policy or rollout do not fit; nothing has changed then. [`Error::NotFinite`],
    /// [`Error::NotFiniteAgain`] or [`Error::EnvPanicked`] if an environment misbehaves; errors of the environments and of
    /// candle. After these, the collector must not be used again.
    pub fn collect(&mut self, policy: &dyn Policy, rollout: &mut Rollout) -> Result<Vec<Episode>, Error> {
        let (seed, steps, shape) = (self.seed, self.steps, rollout.shape());
        let state_len = self.slices[0].memory.state_len();
        if [policy.state_len(), shape.state_len] != [state_len; 2] {
            return Err(Error::StateLen { collector: state_len, policy: policy.state_len(), rollout: shape.state_len });
        }
        if shape != self.shape(shape.n_steps) {
            return Err(Error::Spaces);
        }
        rollout.clear();
        rollout.contiguous = true;
        rollout.env_idx_mut().iter_mut().zip(0..).for_each(|(to, env_idx)| *to = env_idx);
        rollout.policy_version_mut().fill(policy.weights().version);
        let mut work = Vec::with_capacity(self.slices.len());
        let (_, mut rest) = rollout.columns().split_at(self.slices[0].first_env);
        for slice in &mut self.slices {
            let (columns, others) = rest.split_at(slice.envs.n_envs());
            rest = others;
            work.push((slice, columns));
        }
        self.pool.each(&mut work, &|(slice, columns)| slice.result = slice.collect(policy, columns, seed, steps));
        drop(work);
        self.steps += shape.n_steps as u64;
        let results = self.slices.iter_mut().map(|slice| std::mem::replace(&mut slice.result, Ok(())));
        let result = results.fold(Ok(()), Result::and);
        let mut ended: Vec<End> = Vec::new();
        if self.shared.is_some() {
            self.exchange(result, rollout, &mut ended)?;
        } else {
            result?;
            for Slice { ends, .. } in &self.slices {
                ends.report(rollout);
                ended.extend_from_slice(&ends.at);
            }
        }
        ended.sort_unstable_by_key(|&(t, n, _)| (t, n));
        Ok(ended.into_iter().filter_map(|(.., episode)| episode).collect())
    }

    /// Exchanges columns and ends of episodes with the other ranks.
    fn exchange(&mut self, result: Result<(), Error>, rollout: &mut Rollout, ended: &mut Vec<End>) -> Result<(), Error> {
        let mut own = Ends::new(self.observation_space().dtype());
        self.slices.iter().for_each(|slice| own.extend(&slice.ends));
        let own = (own, self.own_anomalies());
        let Some(Shared { ranks, columns, anomalies, .. }) = &mut self.shared else { return result };
        *anomalies = Anomalies::default();
        for (ends, of_rank) in gather_rollout(&**ranks, result.map(|()| own), columns, rollout)? {
            anomalies.add(&of_rank);
            ends.report(rollout);
            ended.extend(ends.at);
        }
        Ok(())
    }

    /// Returns the state to continue from, that of all ranks' environments.
    ///
    /// # Errors
    /// Errors of [`VecEnv::save`], except for [`rl_envs::Error::CannotSave`], which gives a state without environments.
    pub fn save(&self) -> Result<CollectorState, Error> {
        let save = |slice: &Slice| Ok((slice.state.clone(), Some(slice.envs.save()?)));
        let own = match self.slices.iter().map(save).collect() {
            Ok(slices) => {
                let memory = self.slices.iter().flat_map(|slice| slice.memory.states()).copied().collect();
                Ok(CollectorState { steps: self.steps, slices, memory })
            }
            Err(rl_envs::Error::CannotSave) => Ok(CollectorState::without_envs(self.steps)),
            Err(error) => Err(error.into()),
        };
        let Some(shared) = &self.shared else { return own };
        let all = gather(&*shared.ranks, own)?;
        let mut whole = CollectorState::without_envs(self.steps);
        if all.iter().all(CollectorState::has_envs) {
            for state in all {
                whole.slices.extend(state.slices);
                whole.memory.extend(state.memory);
            }
        }
        Ok(whole)
    }

    /// Restores a saved state; environments that were not saved begin new episodes.
    ///
    /// After an error, this collector must not be used.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if the state does not fit; errors of [`VecEnv::load`].
    pub fn load(&mut self, mut saved: CollectorState) -> Result<(), Error> {
        let (other, len) =
            (|| Error::Snapshot("it belongs to another batch of environments".into()), self.slices[0].memory.state_len());
        let n_states = if saved.has_envs() { self.n_envs() * len } else { 0 };
        if saved.memory.len() != n_states {
            return Err(other());
        }
        if let Some(Shared { ranks, n_slices, columns, .. }) = &self.shared
            && saved.slices.len() == *n_slices
        {
            saved.slices = saved.slices.drain(share(*n_slices, ranks.rank(), ranks.n_ranks())).collect();
            let Range { start, end } = columns[ranks.rank()];
            saved.memory = saved.memory.drain((start * len).min(n_states)..(end * len).min(n_states)).collect();
        }
        let fits = |(old, (state, _)): (&Slice, &(State, _))| {
            let same_masks = state.masks.len() == old.state.masks.len();
            let kind = |obs: &ObsRows| (obs.dtype(), obs.len());
            kind(&state.obs) == kind(&old.state.obs) && same_masks && state.running.len() == old.state.running.len()
        };
        if saved.steps > u64::MAX / 4 {
            return Err(Error::Snapshot(format!("its environments took {} steps each, which no run reaches", saved.steps)));
        }
        let fit = saved.slices.len() == self.slices.len() && self.slices.iter().zip(&saved.slices).all(fits);
        if !fit && !saved.slices.is_empty() {
            return Err(other());
        }
        let mut states = saved.memory.into_iter();
        let mut saved_slices = saved.slices.into_iter();
        for slice in &mut self.slices {
            slice.unchecked = true;
            slice.memory.states_mut().iter_mut().for_each(|state| *state = states.next().unwrap_or(0.0));
            slice.state = match saved_slices.next() {
                Some((state, Some(envs))) => {
                    slice.envs.load(&envs)?;
                    state
                }
                _ => State::start(&mut *slice.envs, self.seed.wrapping_add(saved.steps))?,
            };
        }
        self.steps = saved.steps;
        Ok(())
    }
}
