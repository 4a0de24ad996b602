//! Collecting in lockstep: each thread steps its own slice of the environments.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rl_buffer::{Rollout, RolloutColumns, RolloutShape};
use rl_envs::wrappers::{Clock, time_preprocessing};
use rl_envs::{
    ActionSpace, Actions, Dtype, Env, ObsRows, ObsSlice, ObsSliceMut, Pool, Space, StepSlicesMut, Steps, SyncVecEnv, VecEnv,
    math, pool, visit,
};
use serde::{Deserialize, Serialize};

use crate::collect::anomaly::{Anomalies, Anomaly, Bounds, all_finite, bad_step, guarded, not_finite, text};
use crate::collect::memory::PolicyMemory;
use crate::counts::ENV_STEPS;
use crate::kernel::samples::TILE;
use crate::kernel::slices::{MAX_SLICES, MIN_SLICE};
use crate::ranks::{Ranks, columns, gather, gather_rollout, share};
use crate::settings::OnNonfinite;
use crate::{Acted, Acting, Choice, Error, Policy, Scratch};

/// An ended episode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// Sum of the rewards, not discounted.
    pub episode_return: f64,
    /// Number of steps.
    pub length: u32,
}

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

/// End of an episode: t, n of all N, the episode unless it was dropped.
type End = (usize, usize, Option<Episode>);

/// Ends of episodes in a rollout.
#[derive(Serialize, Deserialize)]
struct Ends {
    /// True if an episode was dropped between the previous rollout and this one.
    cut_before: bool,
    at: Vec<End>,
    obs: ObsRows,     // (ends, D)
    masks: Vec<u8>,   // (ends, A), or empty without masks
    states: Vec<f32>, // (ends, S)
}

impl Ends {
    fn new(obs: Dtype) -> Self {
        Self { cut_before: false, at: Vec::new(), obs: ObsRows::zeros(obs, 0), masks: Vec::new(), states: Vec::new() }
    }

    fn clear(&mut self) {
        self.cut_before = false;
        self.at.clear();
        self.obs.clear();
        self.masks.clear();
        self.states.clear();
    }

    fn push(&mut self, end: End, obs: ObsSlice<'_>, mask: &[u8], state: &[f32]) {
        self.at.push(end);
        self.obs.extend(obs);
        self.masks.extend_from_slice(mask);
        self.states.extend_from_slice(state);
    }

    /// Adds the final observations to a rollout.
    fn report(&self, rollout: &mut Rollout) {
        rollout.cut_before |= self.cut_before;
        let (d, s) = (rollout.shape().obs_len, rollout.shape().state_len);
        for (i, &(t, n, _)) in self.at.iter().enumerate() {
            let a = self.masks.len() / self.at.len();
            let (mask, state) = (&self.masks[i * a..(i + 1) * a], &self.states[i * s..(i + 1) * s]);
            rollout.push_final(t, n, self.obs.as_slice().row(i, d), mask, state);
        }
    }
}

const ONE_ROW: &str = "a column of one row";

/// Steps of a rollout for each step whose preprocessing is measured.
///
/// Copying a short stack takes less time than reading the clock.
const MEASURED: usize = 16;

/// A slice of the environments, its memory, and its outcomes in a rollout.
struct Slice {
    envs: Box<dyn VecEnv>,
    first_env: usize,
    state: State,
    memory: PolicyMemory,
    clipped: Clipped,
    scratch: Scratch,
    clock: Clock,
    /// Time that the policy took in the last rollout, and time that preprocessing took.
    acted: u64,
    preprocessed: u64,
    bounds: Bounds,
    raw_rewards: Vec<f32>, // (n)
    /// Observations and values of some steps, for values apart from acting.
    valued: (ObsRows, Vec<f32>), // (m, D), (m)
    /// True until the first observations of all environments have been checked.
    unchecked: bool,
    on_nonfinite: OnNonfinite,
    anomalies: Anomalies,
    ends: Ends,
    result: Result<(), Error>,
}

/// Returns the observation (of `d` elements) and mask of environment `i`.
pub(crate) fn of_env<'a>(
    obs: ObsSliceMut<'a>,
    masks: Option<&'a mut [u8]>,
    i: usize,
    d: usize,
) -> (ObsSliceMut<'a>, Option<&'a mut [u8]>) {
    let a = masks.as_ref().map_or(0, |masks| masks.len() * d / obs.len());
    let masks = masks.map(|masks| &mut masks[i * a..][..a]);
    (visit!(Obs, obs, |obs| &mut obs[i * d..][..d]), masks)
}

/// Continuous actions clipped for the environments, (n, A), with the bounds.
///
/// All are empty for discrete actions.
#[derive(Clone, Debug)]
pub(crate) struct Clipped {
    low: Vec<f32>,
    high: Vec<f32>,
    actions: Vec<f32>,
}

impl Clipped {
    pub(crate) fn new(space: &ActionSpace, n: usize) -> Self {
        match space {
            ActionSpace::Continuous { low, high } => {
                Self { low: low.clone(), high: high.clone(), actions: vec![0.0; n * low.len()] }
            }
            _ => Self { low: Vec::new(), high: Vec::new(), actions: Vec::new() },
        }
    }

    /// Replaces continuous actions by clipped ones, which lie elsewhere.
    ///
    /// NaN stays NaN, so that the environment rejects it.
    pub(crate) fn clip<'a>(&'a mut self, step: StepSlicesMut<'a>) -> StepSlicesMut<'a> {
        let Actions::Continuous(actions) = &step.actions else { return step };
        let to = &mut self.actions[..actions.len()];
        let a = self.low.len().max(1);
        for (to, from) in to.chunks_exact_mut(a).zip(actions.chunks_exact(a)) {
            for (((to, &from), &low), &high) in to.iter_mut().zip(from).zip(&self.low).zip(&self.high) {
                *to = math::clamp(from, low, high);
            }
        }
        StepSlicesMut { actions: Actions::Continuous(to), ..step }
    }
}

/// State from one rollout to the next.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    /// Observations to act on next, (n, D).
    pub(crate) obs: ObsRows,
    /// Legal actions at `obs`, (n, A), or empty without masks.
    pub(crate) masks: Vec<u8>,
    /// Running episodes, (n).
    pub(crate) running: Vec<Episode>,
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

/// A [`CollectorState`] as it was encoded before policies had memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CollectorWithoutMemory {
    steps: u64,
    slices: Vec<(State, Option<Vec<u8>>)>,
}

impl From<CollectorWithoutMemory> for CollectorState {
    fn from(CollectorWithoutMemory { steps, slices }: CollectorWithoutMemory) -> Self {
        Self { steps, slices, memory: Vec::new() }
    }
}

impl CollectorState {
    /// Creates a state without environments, after `steps` lifetime steps of each.
    #[must_use]
    pub fn without_envs(steps: u64) -> Self {
        Self { steps, slices: Vec::new(), memory: Vec::new() }
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

impl State {
    /// Resets all environments with `seed`.
    fn start(envs: &mut dyn VecEnv, seed: u64) -> Result<Self, Error> {
        let mut steps = Steps::new(&*envs);
        guarded(envs, 0, |envs| envs.reset(seed, &mut steps))?;
        let masks = steps.masks.map(|[masks, _]| masks).unwrap_or_default();
        Ok(Self { obs: steps.obs, masks, running: vec![Episode::default(); envs.n_envs()] })
    }

    /// Columns that a restart writes.
    fn start_mut(&mut self) -> (ObsSliceMut<'_>, Option<&mut [u8]>) {
        (self.obs.as_mut_slice(), Some(&mut self.masks[..]).filter(|masks| !masks.is_empty()))
    }
}

/// The acting policy, with its memory, and its position in a rollout.
struct Actor<'a> {
    policy: &'a dyn Policy,
    /// True if values are computed after the last step.
    apart: bool,
    scratch: Scratch,
    seed: u64,
    t: usize,
    /// Lifetime step of the environments.
    step: u64,
}

impl Slice {
    fn new(mut envs: Box<dyn VecEnv>, first_env: usize, seed: u64) -> Result<Self, Error> {
        let state = State::start(&mut *envs, seed)?;
        let ends = Ends::new(envs.observation_space().dtype());
        let clipped = Clipped::new(envs.action_space(), envs.n_envs());
        Ok(Self {
            bounds: Bounds::new(envs.observation_space()),
            raw_rewards: vec![0.0; envs.n_envs()],
            memory: PolicyMemory::new(envs.n_envs(), 0),
            valued: (ObsRows::zeros(envs.observation_space().dtype(), 0), Vec::new()),
            envs,
            first_env,
            state,
            clipped,
            scratch: Scratch::default(),
            clock: || 0,
            acted: 0,
            preprocessed: 0,
            unchecked: true,
            on_nonfinite: OnNonfinite::Error,
            anomalies: Anomalies::default(),
            ends,
            result: Ok(()),
        })
    }

    /// Fills the slice's columns of a rollout, after `steps` lifetime steps.
    fn collect(&mut self, policy: &dyn Policy, columns: &mut RolloutColumns<'_>, seed: u64, steps: u64) -> Result<(), Error> {
        let scratch = std::mem::take(&mut self.scratch);
        let apart = self.memory.state_len() == 0 && 2 * self.envs.n_envs() <= TILE && policy.values_apart();
        let mut actor = Actor { policy, apart, scratch, seed, t: 0, step: steps };
        let (n, d) = (self.envs.n_envs(), self.envs.observation_space().len());
        self.ends.clear();
        (self.acted, self.preprocessed) = (0, 0);
        if std::mem::take(&mut self.unchecked) {
            self.check_start(steps)?;
        }
        let (first, masks) = columns.start(0);
        if first.dtype() != self.state.obs.dtype() {
            return Err(Error::ObsKind);
        }
        self.state.obs.as_slice().copy_to(first);
        if let Some(masks) = masks {
            masks.copy_from_slice(&self.state.masks);
        }
        columns.first_states.as_slice_mut().expect(ONE_ROW).copy_from_slice(self.memory.states());
        let n_steps = columns.n_steps();
        for t in 0..n_steps {
            (actor.t, actor.step) = (t, steps + 1 + t as u64);
            let choice = Choice::Sample { seed, step: actor.step, first_env: self.first_env as u32 };
            let (obs, masks, (actions, log_probs, values)) = columns.act(t);
            let values = if apart { &mut [] } else { values };
            let begin = (self.clock)();
            let acted = Acted { actions, log_probs, values, states: self.memory.acting() };
            policy.act(Acting { obs, masks, choice }, acted, &mut actor.scratch)?;
            self.acted += (self.clock)() - begin;
            let step = self.clipped.clip(columns.step(t));
            let stepped = || guarded(&mut *self.envs, actor.step, |envs| envs.step_into(step));
            if t % MEASURED == 0 {
                let (stepped, spent) = time_preprocessing(self.clock, stepped);
                stepped?;
                self.preprocessed += spent;
            } else {
                stepped()?;
            }
            ENV_STEPS.fetch_add(n as u64, Ordering::Relaxed);
            if !self.is_sound(columns, t) {
                self.mend(columns, &mut actor)?;
            }
            let step = columns.step(t);
            let (final_obs, [_, final_masks]) = (step.final_obs.as_slice(), step.masks.unwrap_or_default());
            let a = final_masks.len() / n;
            for (i, episode) in self.state.running.iter_mut().enumerate() {
                episode.episode_return += f64::from(self.raw_rewards[i]);
                episode.length += 1;
                if step.terminated[i] | step.truncated[i] == 1 {
                    let end = (t, self.first_env + i, Some(std::mem::take(episode)));
                    let state = self.memory.state_mut(i);
                    self.ends.push(end, final_obs.row(i, d), &final_masks[i * a..(i + 1) * a], state);
                    state.fill(0.0);
                }
            }
        }
        self.preprocessed = self.preprocessed * n_steps as u64 / n_steps.div_ceil(MEASURED).max(1) as u64;
        columns.obs(n_steps).copy_to(self.state.obs.as_mut_slice());
        self.state.masks.copy_from_slice(columns.masks(n_steps));
        let values = columns.last_values.as_slice_mut().expect(ONE_ROW);
        let begin = (self.clock)();
        policy.values(self.state.obs.as_slice(), self.memory.states(), values, &mut actor.scratch)?;
        if apart {
            self.value(columns, &mut actor)?;
        }
        self.acted += (self.clock)() - begin;
        self.scratch = actor.scratch;
        Ok(())
    }

    /// Writes the values of a rollout's observations, some steps at a time.
    ///
    /// The weights are read once for a tile of observations, not at every step.
    fn value(&mut self, columns: &mut RolloutColumns<'_>, actor: &mut Actor<'_>) -> Result<(), Error> {
        let (n, n_steps, (obs, values)) = (self.envs.n_envs(), columns.n_steps(), &mut self.valued);
        for first in (0..n_steps).step_by(TILE / n) {
            let steps = first..(first + TILE / n).min(n_steps);
            obs.clear();
            steps.clone().for_each(|t| obs.extend(columns.obs(t)));
            values.resize(steps.len() * n, 0.0);
            actor.policy.values(obs.as_slice(), &[], values, &mut actor.scratch)?;
            for (t, values) in steps.zip(values.chunks_exact(n)) {
                columns.values.row_mut(t).iter_mut().zip(values).for_each(|(to, value)| *to = *value);
            }
        }
        Ok(())
    }

    /// Reads the raw rewards of step `t`; returns true if its outcome is sound.
    #[inline]
    fn is_sound(&mut self, columns: &mut RolloutColumns<'_>, t: usize) -> bool {
        let (step, d) = (columns.step(t), self.bounds.d);
        self.raw_rewards.copy_from_slice(step.rewards);
        self.envs.raw_rewards(&mut self.raw_rewards);
        let (final_obs, flags) = (step.final_obs.as_slice(), step.terminated.iter().zip(&*step.truncated));
        self.envs.faults().is_empty()
            && all_finite(&self.raw_rewards)
            && self.bounds.hold(step.obs.as_slice())
            && flags.enumerate().all(|(i, (a, b))| a | b == 0 || self.bounds.hold(final_obs.row(i, d)))
    }

    /// Checks the first observations of all environments.
    fn check_start(&mut self, step: u64) -> Result<(), Error> {
        let (n, d) = (self.envs.n_envs(), self.bounds.d);
        if self.bounds.hold(self.state.obs.as_slice()) {
            return Ok(());
        }
        for i in 0..n {
            if let Some(what) = not_finite(self.state.obs.as_slice().row(i, d)) {
                self.give_up(Anomaly { env_idx: self.first_env + i, step, action: None, what })?;
                let (obs, masks) = self.state.start_mut();
                let (obs, masks) = of_env(obs, masks, i, d);
                guarded(&mut *self.envs, step, |envs| envs.restart(i, obs, masks))?;
                if let Some(what) = not_finite(self.state.obs.as_slice().row(i, d)) {
                    return Err(Error::NotFiniteAgain(Anomaly { env_idx: self.first_env + i, step, action: None, what }));
                }
            }
            self.count_outside(i, step, self.bounds.outside(self.state.obs.as_slice().row(i, d)), || None);
        }
        Ok(())
    }

    /// Handles a step that is not sound, as the header describes.
    #[cold]
    fn mend(&mut self, columns: &mut RolloutColumns<'_>, actor: &mut Actor<'_>) -> Result<(), Error> {
        let (n, d) = (self.envs.n_envs(), self.bounds.d);
        self.repeat_failed(columns, actor)?;
        let Actor { t, step, .. } = *actor;
        let ended = |columns: &RolloutColumns<'_>, i| columns.steps.terminated[[t, i]] | columns.steps.truncated[[t, i]] != 0;
        for i in 0..n {
            let env_idx = self.first_env + i;
            let led_to = |slice: &Self, columns: &RolloutColumns<'_>| {
                let obs = if ended(columns, i) { columns.final_obs() } else { columns.obs(t + 1) }.row(i, d);
                (bad_step(slice.raw_rewards[i], obs), slice.bounds.outside(obs))
            };
            if let (Some(what), _) = led_to(self, columns) {
                let action = Some(action_text(columns, t, i));
                self.give_up(Anomaly { env_idx, step, action, what })?;
                self.truncate_before(columns, t, i);
                self.repeat(columns, actor, i)?;
                if let (Some(what), _) = led_to(self, columns) {
                    let action = Some(action_text(columns, t, i));
                    return Err(Error::NotFiniteAgain(Anomaly { env_idx, step, action, what }));
                }
            }
            let (_, outside) = led_to(self, columns);
            self.count_outside(i, step, outside, || Some(action_text(columns, t, i)));
            if ended(columns, i) {
                if let Some(what) = not_finite(columns.obs(t + 1).row(i, d)) {
                    self.give_up(Anomaly { env_idx, step, action: None, what })?;
                    self.restart(columns, t + 1, i, step)?;
                }
                let outside = self.bounds.outside(columns.obs(t + 1).row(i, d));
                self.count_outside(i, step, outside, || None);
            }
        }
        // A restart may have failed, too.
        self.repeat_failed(columns, actor)
    }

    /// Repeats the steps of environments that have failed, in new episodes.
    ///
    /// A failure while it does so adds to them; the environments bound the number of restarts.
    fn repeat_failed(&mut self, columns: &mut RolloutColumns<'_>, actor: &mut Actor<'_>) -> Result<(), Error> {
        while let Some(&(i, _)) = self.envs.faults().first() {
            self.anomalies.faults += 1;
            self.truncate_before(columns, actor.t, i);
            self.repeat(columns, actor, i)?;
        }
        Ok(())
    }

    /// Counts a non-finite number, or returns it as an error.
    fn give_up(&mut self, anomaly: Anomaly) -> Result<(), Error> {
        if self.on_nonfinite == OnNonfinite::Error {
            return Err(Error::NotFinite(anomaly));
        }
        self.anomalies.truncated += 1;
        self.anomalies.first_truncated.get_or_insert(anomaly);
        Ok(())
    }

    /// Counts an observation outside of its space.
    fn count_outside(&mut self, i: usize, step: u64, outside: Option<String>, action: impl FnOnce() -> Option<String>) {
        let Some(what) = outside else { return };
        self.anomalies.outside += 1;
        let anomaly = || Anomaly { env_idx: self.first_env + i, step, action: action(), what };
        self.anomalies.first_outside.get_or_insert_with(anomaly);
    }

    /// Ends the episode of environment `i` at the step before `t`.
    ///
    /// The observation that `t` acted on becomes the final one.
    fn truncate_before(&mut self, columns: &mut RolloutColumns<'_>, t: usize, i: usize) {
        // The step that is repeated begins an episode.
        let state = self.memory.give_up(i);
        if t == 0 {
            let states = columns.first_states.as_slice_mut().expect(ONE_ROW);
            states[i * state.len()..(i + 1) * state.len()].fill(0.0);
        }
        if std::mem::take(&mut self.state.running[i]).length == 0 {
            return; // its last episode has already ended
        }
        if t == 0 {
            self.ends.cut_before = true;
            return;
        }
        columns.steps.truncated[[t - 1, i]] = 1;
        let (masks, n) = (columns.masks(t), self.envs.n_envs());
        let mask = &masks[masks.len() / n * i..masks.len() / n * (i + 1)];
        self.ends.push((t - 1, self.first_env + i, None), columns.obs(t).row(i, self.bounds.d), mask, state);
    }

    /// Restarts environment `i`, with its next episode from row `t` on.
    fn restart(&mut self, columns: &mut RolloutColumns<'_>, t: usize, i: usize, step: u64) -> Result<(), Error> {
        let (obs, masks) = columns.start(t);
        let (obs, masks) = of_env(obs, masks, i, self.bounds.d);
        guarded(&mut *self.envs, step, |envs| envs.restart(i, obs, masks))?;
        match not_finite(columns.obs(t).row(i, self.bounds.d)) {
            Some(what) => Err(Error::NotFiniteAgain(Anomaly { env_idx: self.first_env + i, step, action: None, what })),
            None => Ok(()),
        }
    }

    /// Repeats row `t` of environment `i` as the first step of a new episode.
    fn repeat(&mut self, columns: &mut RolloutColumns<'_>, actor: &mut Actor<'_>, i: usize) -> Result<(), Error> {
        let &mut Actor { policy, apart, ref mut scratch, seed, t, step } = actor;
        self.restart(columns, t, i, step)?;
        let choice = Choice::Sample { seed, step, first_env: (self.first_env + i) as u32 };
        let (obs, masks, (actions, log_probs, values)) = columns.act(t);
        let n = log_probs.len();
        let masks = &masks[masks.len() / n * i..masks.len() / n * (i + 1)];
        let actions = actions.map(
            |actions| &mut actions[i..=i],
            |actions| {
                let a = actions.len() / n;
                &mut actions[i * a..][..a]
            },
        );
        let values = if apart { &mut [] } else { &mut values[i..=i] };
        let states = self.memory.state_mut(i);
        let acted = Acted { actions, log_probs: &mut log_probs[i..=i], values, states };
        policy.act(Acting { obs: obs.row(i, self.bounds.d), masks, choice }, acted, scratch)?;
        let one = self.clipped.clip(columns.step(t).env(i));
        guarded(&mut *self.envs, step, |envs| envs.repeat_step(i, one))?;
        self.raw_rewards[i] = columns.steps.rewards[[t, i]];
        self.envs.raw_rewards(&mut self.raw_rewards);
        Ok(())
    }
}

/// Formats the action of environment `i` in row `t`, not clipped.
fn action_text(columns: &RolloutColumns<'_>, t: usize, i: usize) -> String {
    let actions = columns.actions(t);
    text(actions.row(i, actions.either(|_| 1, |actions| actions.len() / columns.values.ncols())))
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
    /// Summed over threads, in the unit of the clock; 0 without one. Estimated from every 16th step. See [`time_preprocessing`].
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
    /// [`Error::NotFinite`], [`Error::NotFiniteAgain`] or [`Error::EnvPanicked`] if an environment misbehaves; errors of the
    /// environments and of candle. The collector must not be used again then.
    pub fn collect(&mut self, policy: &dyn Policy, rollout: &mut Rollout) -> Result<Vec<Episode>, Error> {
        let (seed, steps, shape) = (self.seed, self.steps, rollout.shape());
        let state_len = self.slices[0].memory.state_len();
        if [policy.state_len(), shape.state_len] != [state_len; 2] {
            return Err(Error::StateLen { collector: state_len, policy: policy.state_len(), rollout: shape.state_len });
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
        for Slice { ends, .. } in &self.slices {
            own.cut_before |= ends.cut_before;
            own.at.extend_from_slice(&ends.at);
            own.obs.extend(ends.obs.as_slice());
            own.masks.extend_from_slice(&ends.masks);
            own.states.extend_from_slice(&ends.states);
        }
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
