//! One thread's slice of the environments.
//!
//! Its steps, and the repair of those that are not sound.

use std::sync::atomic::Ordering;

use rl_buffer::{Rollout, RolloutColumns};
use rl_envs::wrappers::{Clock, time_preprocessing};
use rl_envs::{ActionSpace, Actions, Dtype, ObsRows, ObsSlice, ObsSliceMut, StepSlicesMut, Steps, VecEnv, math, visit};
use serde::{Deserialize, Serialize};

use crate::collect::anomaly::{Anomalies, Anomaly, Bounds, all_finite, bad_step, guarded, not_finite, text};
use crate::collect::memory::PolicyMemory;
use crate::counts::ENV_STEPS;
use crate::kernel::samples::TILE;
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

/// End of an episode: t, n of all N, the episode unless dropped or continued.
pub(crate) type End = (usize, usize, Option<Episode>);

/// Ends of episodes in a rollout.
#[derive(Serialize, Deserialize)]
pub(crate) struct Ends {
    /// True if an episode was dropped between the previous rollout and this one.
    cut_before: bool,
    pub(crate) at: Vec<End>,
    obs: ObsRows,     // (ends, D)
    masks: Vec<u8>,   // (ends, A), or empty without masks
    states: Vec<f32>, // (ends, S)
}

impl Ends {
    pub(crate) fn new(obs: Dtype) -> Self {
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

    /// Adds those of another slice.
    pub(crate) fn extend(&mut self, other: &Self) {
        self.cut_before |= other.cut_before;
        self.at.extend_from_slice(&other.at);
        self.obs.extend(other.obs.as_slice());
        self.masks.extend_from_slice(&other.masks);
        self.states.extend_from_slice(&other.states);
    }

    /// Adds the final observations to a rollout.
    pub(crate) fn report(&self, rollout: &mut Rollout) {
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
pub(crate) struct Slice {
    pub(crate) envs: Box<dyn VecEnv>,
    pub(crate) first_env: usize,
    pub(crate) state: State,
    pub(crate) memory: PolicyMemory,
    clipped: Clipped,
    scratch: Scratch,
    pub(crate) clock: Clock,
    /// Time that the policy took in the last rollout, and time that preprocessing took.
    pub(crate) acted: u64,
    pub(crate) preprocessed: u64,
    bounds: Bounds,
    raw_rewards: Vec<f32>, // (n)
    /// Observations, masks and values of some steps, for values apart from acting.
    valued: (ObsRows, Vec<u8>, Vec<f32>), // (m, D), (m, A), (m)
    /// True until the first observations of all environments have been checked.
    pub(crate) unchecked: bool,
    pub(crate) on_nonfinite: OnNonfinite,
    pub(crate) anomalies: Anomalies,
    pub(crate) ends: Ends,
    pub(crate) result: Result<(), Error>,
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

impl State {
    /// Resets all environments with `seed`.
    pub(crate) fn start(envs: &mut dyn VecEnv, seed: u64) -> Result<Self, Error> {
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
    pub(crate) fn new(mut envs: Box<dyn VecEnv>, first_env: usize, seed: u64) -> Result<Self, Error> {
        let state = State::start(&mut *envs, seed)?;
        let ends = Ends::new(envs.observation_space().dtype());
        let clipped = Clipped::new(envs.action_space(), envs.n_envs());
        Ok(Self {
            bounds: Bounds::new(envs.observation_space()),
            raw_rewards: vec![0.0; envs.n_envs()],
            memory: PolicyMemory::new(envs.n_envs(), 0),
            valued: (ObsRows::zeros(envs.observation_space().dtype(), 0), Vec::new(), Vec::new()),
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
    pub(crate) fn collect(
        &mut self,
        policy: &dyn Policy,
        columns: &mut RolloutColumns<'_>,
        seed: u64,
        steps: u64,
    ) -> Result<(), Error> {
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
            policy.act(Acting { obs, masks, choice, envs: &[] }, acted, &mut actor.scratch)?;
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
                    let whole = (!self.envs.goes_on(i)).then(|| std::mem::take(episode));
                    let end = (t, self.first_env + i, whole);
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
        policy.values(self.state.obs.as_slice(), &self.state.masks, self.memory.states(), values, &mut actor.scratch)?;
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
        let (n, n_steps, (obs, masks, values)) = (self.envs.n_envs(), columns.n_steps(), &mut self.valued);
        for first in (0..n_steps).step_by(TILE / n) {
            let steps = first..(first + TILE / n).min(n_steps);
            obs.clear();
            masks.clear();
            for t in steps.clone() {
                obs.extend(columns.obs(t));
                masks.extend_from_slice(columns.masks(t));
            }
            values.resize(steps.len() * n, 0.0);
            actor.policy.values(obs.as_slice(), masks, &[], values, &mut actor.scratch)?;
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
        // A restart may have failed, and other environments with it.
        while let Some(&(i, _)) = self.envs.faults().first() {
            self.anomalies.faults += 1;
            let (obs, masks) = self.state.start_mut();
            let (obs, masks) = of_env(obs, masks, i, d);
            guarded(&mut *self.envs, step, |envs| envs.restart(i, obs, masks))?;
            if let Some(what) = not_finite(self.state.obs.as_slice().row(i, d)) {
                return Err(Error::NotFiniteAgain(Anomaly { env_idx: self.first_env + i, step, action: None, what }));
            }
        }
        Ok(())
    }

    /// Handles a step that is not sound, as [`collect`](crate::collect) describes.
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
                self.repeat_failed(columns, actor)?;
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
        // A restart may have failed, too, and what follows is looked at again.
        self.repeat_failed(columns, actor)?;
        for i in 0..n {
            let obs = if ended(columns, i) { columns.final_obs() } else { columns.obs(t + 1) }.row(i, d);
            if let Some(what) = bad_step(self.raw_rewards[i], obs) {
                let (env_idx, action) = (self.first_env + i, Some(action_text(columns, t, i)));
                return Err(Error::NotFiniteAgain(Anomaly { env_idx, step, action, what }));
            }
        }
        Ok(())
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
        if columns.steps.terminated[[t - 1, i]] == 1 {
            return; // it has ended for learning
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
        policy.act(Acting { obs: obs.row(i, self.bounds.d), masks, choice, envs: &[] }, acted, scratch)?;
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
