//! Letting a policy act: rollouts to learn from, and episodes to judge it by.
//!
//! The environments of a [`Collector`] lie in fixed slices. A thread fills the columns of its slice from the first step of a
//! rollout to the last without waiting for the others.

use std::ops::ControlFlow;

use ndarray::{Array1, Array2, ArrayView2, ArrayViewMut2, Axis};
use rl_buffer::{ActionColumns, ActionKind, ObsBuffer, ObsColumns, ObsKind, ObsSlice, Rollout, RolloutColumns, RolloutShape};
use rl_envs::{
    ActionSpace, Actions, ActionsMut, Dtype, Env, MaskBatch, ObsViewMut, Pool, Space, StepBatch, SyncVecEnv, VecEnv, math, pool,
};
use serde::{Deserialize, Serialize};

use crate::{Choice, Error, Policy, Scratch};

/// Environments are cut into at most so many slices: enough to keep as many threads busy.
pub const MAX_SLICES: usize = 16;
/// A slice has at least so many environments: with fewer, the networks' weights are read for too little.
pub const MIN_SLICE: usize = 4;

/// An episode that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// The sum of its rewards, not discounted.
    pub episode_return: f64,
    /// Its steps.
    pub length: u32,
}

/// Observations, one after the other, of either type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Rows {
    F32(Vec<f32>),
    U8(Vec<u8>),
}

impl Rows {
    fn new(dtype: Dtype, len: usize) -> Self {
        match dtype {
            Dtype::F32 => Self::F32(vec![0.0; len]),
            Dtype::U8 => Self::U8(vec![0; len]),
        }
    }

    fn as_slice(&self) -> ObsSlice<'_> {
        match self {
            Self::F32(rows) => ObsSlice::F32(rows),
            Self::U8(rows) => ObsSlice::U8(rows),
        }
    }

    fn row(&self, i: usize, d: usize) -> ObsSlice<'_> {
        match self {
            Self::F32(rows) => ObsSlice::F32(&rows[i * d..][..d]),
            Self::U8(rows) => ObsSlice::U8(&rows[i * d..][..d]),
        }
    }

    fn view_mut(&mut self, n: usize, d: usize) -> ObsViewMut<'_> {
        const FITS: &str = "n times d elements";
        match self {
            Self::F32(rows) => ObsViewMut::F32(ArrayViewMut2::from_shape((n, d), rows).expect(FITS)),
            Self::U8(rows) => ObsViewMut::U8(ArrayViewMut2::from_shape((n, d), rows).expect(FITS)),
        }
    }

    fn fits(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::F32(a), Self::F32(b)) => a.len() == b.len(),
            (Self::U8(a), Self::U8(b)) => a.len() == b.len(),
            _ => false,
        }
    }

    fn extend(&mut self, other: ObsSlice<'_>) {
        match (self, other) {
            (Self::F32(all), ObsSlice::F32(more)) => all.extend_from_slice(more),
            (Self::U8(all), ObsSlice::U8(more)) => all.extend_from_slice(more),
            _ => unreachable!("observations of one environment are of one type"),
        }
    }

    fn clear(&mut self) {
        match self {
            Self::F32(rows) => rows.clear(),
            Self::U8(rows) => rows.clear(),
        }
    }
}

/// An empty rollout of `n_steps` steps of `n_envs` environments with these spaces.
///
/// # Errors
/// Those of [`Rollout::new`].
pub fn rollout(n_steps: usize, n_envs: usize, obs: &Space, actions: &ActionSpace) -> Result<Rollout, Error> {
    let actions = match actions {
        ActionSpace::Discrete { n, masked } => ActionKind::Discrete { masked: masked.then_some(*n as usize) },
        ActionSpace::Continuous { low, .. } => ActionKind::Continuous { len: low.len() },
    };
    let kind = if obs.dtype() == Dtype::F32 { ObsKind::F32 } else { ObsKind::U8 };
    Ok(Rollout::new(RolloutShape { n_steps, n_envs, obs_len: obs.len(), obs: kind, actions })?)
}

/// Row `t` of a rollout's observations, as a batch of environments writes them.
pub fn obs_view(obs: &mut ObsBuffer, t: usize) -> ObsViewMut<'_> {
    match obs {
        ObsBuffer::F32(obs) => ObsViewMut::F32(obs.index_axis_mut(Axis(0), t)),
        ObsBuffer::U8(obs) => ObsViewMut::U8(obs.index_axis_mut(Axis(0), t)),
    }
}

/// The same for some of its columns.
pub fn obs_columns_view<'a>(obs: &'a mut ObsColumns<'_>, t: usize) -> ObsViewMut<'a> {
    match obs {
        ObsColumns::F32(obs) => ObsViewMut::F32(obs.index_axis_mut(Axis(0), t)),
        ObsColumns::U8(obs) => ObsViewMut::U8(obs.index_axis_mut(Axis(0), t)),
    }
}

/// A batch of environments in the midst of their episodes, which fills one rollout after the other.
pub struct Collector {
    slices: Vec<Slice>,
    pool: Pool,
    seed: u64,
    /// Lifetime steps of each environment.
    steps: u64,
}

/// Some of the environments, the memory to step them, and what they have left in the rollout at hand.
struct Slice {
    envs: Box<dyn VecEnv>,
    first_env: usize,
    state: State,
    final_obs: Rows,      // (n, D)
    final_masks: Vec<u8>, // (n, A), or empty without masks
    clipped: Clipped,
    scratch: Option<Scratch>,
    ended: Vec<(usize, usize, Episode)>, // (t, n of all N, episode)
    ended_obs: Rows,                     // (ended, D)
    ended_masks: Vec<u8>,                // (ended, A), or empty without masks
    result: Result<(), Error>,
}

/// Continuous actions as the environments take them, (n, A), and the bounds that they are clipped to; empty for discrete ones.
#[derive(Clone, Debug)]
struct Clipped {
    low: Vec<f32>,
    high: Vec<f32>,
    actions: Vec<f32>,
}

impl Clipped {
    fn new(space: &ActionSpace, n: usize) -> Self {
        match space {
            ActionSpace::Discrete { .. } => Self { low: Vec::new(), high: Vec::new(), actions: Vec::new() },
            ActionSpace::Continuous { low, high } => {
                Self { low: low.clone(), high: high.clone(), actions: vec![0.0; n * low.len()] }
            }
        }
    }

    /// Clips `actions`, (n, A), which stay as they are. NaN stays NaN, so that the environment refuses it.
    fn clip(&mut self, actions: ArrayView2<'_, f32>) -> Actions<'_> {
        let a = self.low.len().max(1);
        for (to, from) in self.actions.chunks_exact_mut(a).zip(actions.rows()) {
            for (((to, &from), &low), &high) in to.iter_mut().zip(from).zip(&self.low).zip(&self.high) {
                *to = math::clamp(from, low, high);
            }
        }
        let n = self.actions.len() / a;
        Actions::Continuous(ArrayView2::from_shape((n, a), &self.actions).expect("n times A elements"))
    }
}

/// What changes from rollout to rollout.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct State {
    /// What to act on next, (n, D).
    obs: Rows,
    /// Legal actions there, (n, A), or empty without masks.
    masks: Vec<u8>,
    /// The episodes that are running, (n).
    running: Vec<Episode>,
}

/// A collector's state, to be saved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CollectorState {
    steps: u64,
    /// Each slice's, and its environments' own state, or `None` if they cannot be saved.
    slices: Vec<(State, Option<Vec<u8>>)>,
}

impl CollectorState {
    /// A state without environments, each of which has taken `steps` steps in its life.
    #[must_use]
    pub fn without_envs(steps: u64) -> Self {
        Self { steps, slices: Vec::new() }
    }

    /// True if the environments were saved. If not, they begin new episodes when the state is loaded.
    #[must_use]
    pub fn has_envs(&self) -> bool {
        !self.slices.is_empty() && self.slices.iter().all(|(_, envs)| envs.is_some())
    }
}

impl State {
    /// Starts all environments from `seed`.
    fn start(envs: &mut dyn VecEnv, seed: u64) -> Result<Self, Error> {
        let (n, d) = (envs.n_envs(), envs.observation_space().len());
        let a = if envs.action_space().masked() { envs.action_space().len() } else { 0 };
        let mut obs = Rows::new(envs.observation_space().dtype(), n * d);
        let mut masks = vec![0; n * a];
        envs.reset(seed, obs.view_mut(n, d), mask_view(&mut masks, n))?;
        Ok(Self { obs, masks, running: vec![Episode::default(); n] })
    }
}

/// Masks (n, A) as a batch of environments takes them; none if there are none.
fn mask_view(masks: &mut [u8], n: usize) -> Option<ArrayViewMut2<'_, u8>> {
    let a = masks.len() / n;
    (a > 0).then(|| ArrayViewMut2::from_shape((n, a), masks).expect("n times A elements"))
}

/// Actions as a batch of environments takes them: continuous ones are clipped to its bounds.
fn for_envs<'a>(actions: &'a ActionsMut<'_>, clipped: &'a mut Clipped) -> Actions<'a> {
    match actions {
        ActionsMut::Discrete(actions) => Actions::Discrete(actions.view()),
        ActionsMut::Continuous(actions) => clipped.clip(actions.view()),
    }
}

impl Slice {
    fn new(mut envs: Box<dyn VecEnv>, first_env: usize, seed: u64) -> Result<Self, Error> {
        let state = State::start(&mut *envs, seed)?;
        let (final_obs, final_masks) = (state.obs.clone(), state.masks.clone());
        let ended_obs = Rows::new(envs.observation_space().dtype(), 0);
        let clipped = Clipped::new(envs.action_space(), envs.n_envs());
        Ok(Self {
            envs,
            first_env,
            state,
            final_obs,
            final_masks,
            clipped,
            scratch: None,
            ended: Vec::new(),
            ended_obs,
            ended_masks: Vec::new(),
            result: Ok(()),
        })
    }

    /// Fills its columns of a rollout. `steps` is the environments' lifetime step before it.
    fn collect(&mut self, policy: &dyn Policy, columns: &mut RolloutColumns<'_>, seed: u64, steps: u64) -> Result<(), Error> {
        const CONTIGUOUS: &str = "a row of a rollout's columns is contiguous";
        let Self { envs, first_env, state, final_obs, final_masks, clipped, scratch, ended, ended_obs, ended_masks, .. } = self;
        let RolloutColumns { obs, actions, log_probs, values, rewards, terminated, truncated, masks, last_values } = columns;
        let scratch = scratch.get_or_insert_with(|| policy.scratch());
        let (n, d) = (envs.n_envs(), envs.observation_space().len());
        ended.clear();
        ended_obs.clear();
        ended_masks.clear();
        let of_another_type = || Error::Snapshot("the rollout holds observations of another type".into());
        match (&mut *obs, &state.obs) {
            (ObsColumns::F32(to), Rows::F32(from)) => {
                to.index_axis_mut(Axis(0), 0).into_slice().expect(CONTIGUOUS).copy_from_slice(from);
            }
            (ObsColumns::U8(to), Rows::U8(from)) => {
                to.index_axis_mut(Axis(0), 0).into_slice().expect(CONTIGUOUS).copy_from_slice(from);
            }
            _ => return Err(of_another_type()),
        }
        if let Some(masks) = masks {
            masks.index_axis_mut(Axis(0), 0).into_slice().expect(CONTIGUOUS).copy_from_slice(&state.masks);
        }
        let n_steps = rewards.nrows();
        for t in 0..n_steps {
            let step = steps + 1 + t as u64;
            let acted_on = match &*obs {
                ObsColumns::F32(obs) => ObsSlice::F32(obs.index_axis(Axis(0), t).to_slice().expect(CONTIGUOUS)),
                ObsColumns::U8(obs) => ObsSlice::U8(obs.index_axis(Axis(0), t).to_slice().expect(CONTIGUOUS)),
            };
            let legal = masks.as_ref().map_or(&[][..], |m| m.index_axis(Axis(0), t).to_slice().expect(CONTIGUOUS));
            let mut row = match actions {
                ActionColumns::Discrete(actions) => ActionsMut::Discrete(actions.row_mut(t)),
                ActionColumns::Continuous(actions) => ActionsMut::Continuous(actions.index_axis_mut(Axis(0), t)),
            };
            policy.act(
                acted_on,
                legal,
                Choice::Sample { seed, step, first_env: *first_env as u32 },
                scratch,
                (
                    row.reborrow(),
                    log_probs.row_mut(t).into_slice().expect(CONTIGUOUS),
                    values.row_mut(t).into_slice().expect(CONTIGUOUS),
                ),
            )?;
            envs.step(
                for_envs(&row, clipped),
                StepBatch {
                    obs: obs_columns_view(obs, t + 1),
                    rewards: rewards.row_mut(t),
                    terminated: terminated.row_mut(t),
                    truncated: truncated.row_mut(t),
                    final_obs: final_obs.view_mut(n, d),
                    masks: masks
                        .as_mut()
                        .zip(mask_view(final_masks, n))
                        .map(|(masks, final_masks)| MaskBatch { masks: masks.index_axis_mut(Axis(0), t + 1), final_masks }),
                },
            )?;
            for (i, episode) in state.running.iter_mut().enumerate() {
                episode.episode_return += f64::from(rewards[[t, i]]);
                episode.length += 1;
                if terminated[[t, i]] | truncated[[t, i]] == 1 {
                    ended.push((t, *first_env + i, std::mem::take(episode)));
                    ended_obs.extend(final_obs.row(i, d));
                    let a = final_masks.len() / n;
                    ended_masks.extend_from_slice(&final_masks[i * a..(i + 1) * a]);
                }
            }
        }
        match (&*obs, &mut state.obs) {
            (ObsColumns::F32(from), Rows::F32(to)) => {
                to.copy_from_slice(from.index_axis(Axis(0), n_steps).to_slice().expect(CONTIGUOUS));
            }
            (ObsColumns::U8(from), Rows::U8(to)) => {
                to.copy_from_slice(from.index_axis(Axis(0), n_steps).to_slice().expect(CONTIGUOUS));
            }
            _ => return Err(of_another_type()),
        }
        if let Some(masks) = masks {
            state.masks.copy_from_slice(masks.index_axis(Axis(0), n_steps).to_slice().expect(CONTIGUOUS));
        }
        policy.values(state.obs.as_slice(), scratch, last_values.as_slice_mut().expect(CONTIGUOUS))
    }
}

impl Collector {
    /// `n_envs` copies of `env`, started from `seed` and stepped by the threads of `pool`.
    ///
    /// # Errors
    /// Those of [`VecEnv::reset`].
    pub fn new<E: Env + 'static>(n_envs: usize, env: &E, pool: &Pool, seed: u64) -> Result<Self, Error> {
        let slice = |range| Box::new(SyncVecEnv::slice(range, env.clone())) as Box<dyn VecEnv>;
        Self::of(pool::slices(n_envs, MAX_SLICES, MIN_SLICE).map(slice).collect(), pool, seed)
    }

    /// Environments in slices, which together are the whole batch.
    ///
    /// # Errors
    /// Those of [`VecEnv::reset`].
    ///
    /// # Panics
    /// If there is none.
    pub fn of(slices: Vec<Box<dyn VecEnv>>, pool: &Pool, seed: u64) -> Result<Self, Error> {
        assert!(!slices.is_empty(), "one environment at least");
        let mut first_env = 0;
        let mut all = Vec::with_capacity(slices.len());
        for envs in slices {
            let n = envs.n_envs();
            all.push(Slice::new(envs, first_env, seed)?);
            first_env += n;
        }
        Ok(Self { slices: all, pool: pool.clone(), seed, steps: 0 })
    }

    /// The number of environments N.
    #[must_use]
    pub fn n_envs(&self) -> usize {
        self.slices.iter().map(|slice| slice.envs.n_envs()).sum()
    }

    /// The number of threads that step them.
    #[must_use]
    pub fn n_threads(&self) -> usize {
        self.pool.n_threads().min(self.slices.len())
    }

    /// The space of one observation.
    #[must_use]
    pub fn observation_space(&self) -> &Space {
        self.slices[0].envs.observation_space()
    }

    /// The space of one action.
    #[must_use]
    pub fn action_space(&self) -> &ActionSpace {
        self.slices[0].envs.action_space()
    }

    /// An empty rollout of `n_steps` steps for these environments.
    ///
    /// # Errors
    /// Those of [`Rollout::new`].
    pub fn rollout(&self, n_steps: usize) -> Result<Rollout, Error> {
        rollout(n_steps, self.n_envs(), self.observation_space(), self.action_space())
    }

    /// Fills a rollout: T steps of every environment, each acted on by `policy`, and the values that follow the last. Returns
    /// the episodes that ended, in the order of their ends.
    ///
    /// # Errors
    /// Those of the environments and of candle.
    pub fn collect(&mut self, policy: &dyn Policy, rollout: &mut Rollout) -> Result<Vec<Episode>, Error> {
        let (seed, steps, shape) = (self.seed, self.steps, rollout.shape());
        rollout.clear();
        rollout.policy_version.fill(policy.version());
        let mut work = Vec::with_capacity(self.slices.len());
        let mut rest = rollout.columns();
        for slice in &mut self.slices {
            let (columns, others) = rest.split_at(slice.envs.n_envs());
            rest = others;
            work.push((slice, columns));
        }
        self.pool.each(&mut work, &|(slice, columns)| slice.result = slice.collect(policy, columns, seed, steps));
        drop(work);
        self.steps += shape.n_steps as u64;
        let mut ended = Vec::new();
        for slice in &mut self.slices {
            std::mem::replace(&mut slice.result, Ok(()))?;
            for (i, &(t, n, _)) in slice.ended.iter().enumerate() {
                let a = slice.ended_masks.len() / slice.ended.len();
                let mask = &slice.ended_masks[i * a..(i + 1) * a];
                rollout.push_final(t, n, slice.ended_obs.row(i, shape.obs_len), mask);
            }
            ended.extend_from_slice(&slice.ended);
        }
        ended.sort_unstable_by_key(|&(t, n, _)| (t, n));
        Ok(ended.into_iter().map(|(.., episode)| episode).collect())
    }

    /// All that has to be known to continue.
    ///
    /// # Errors
    /// Those of [`VecEnv::save`] but for "cannot be saved", which is a state without environments.
    pub fn save(&self) -> Result<CollectorState, Error> {
        let save = |slice: &Slice| match slice.envs.save() {
            Ok(envs) => Ok((slice.state.clone(), Some(envs))),
            Err(rl_envs::Error::CannotSave) => Ok((slice.state.clone(), None)),
            Err(error) => Err(error.into()),
        };
        Ok(CollectorState { steps: self.steps, slices: self.slices.iter().map(save).collect::<Result<_, Error>>()? })
    }

    /// Continues from what `save` gave. Environments that could not be saved begin new episodes. After an error this collector
    /// must not be used.
    ///
    /// # Errors
    /// [`Error::Snapshot`] or those of [`VecEnv::load`].
    pub fn load(&mut self, saved: CollectorState) -> Result<(), Error> {
        let fits = |(old, (state, _)): (&Slice, &(State, _))| {
            let same_masks = state.masks.len() == old.state.masks.len();
            state.obs.fits(&old.state.obs) && same_masks && state.running.len() == old.state.running.len()
        };
        if saved.steps > u64::MAX / 4 {
            return Err(Error::Snapshot(format!("its environments took {} steps each, which no run reaches", saved.steps)));
        }
        if saved.slices.is_empty() {
            for slice in &mut self.slices {
                slice.state = State::start(&mut *slice.envs, self.seed.wrapping_add(saved.steps))?;
            }
            self.steps = saved.steps;
            return Ok(());
        }
        if saved.slices.len() != self.slices.len() || !self.slices.iter().zip(&saved.slices).all(fits) {
            return Err(Error::Snapshot("it is of another batch of environments".into()));
        }
        for (slice, (state, envs)) in self.slices.iter_mut().zip(saved.slices) {
            slice.state = match envs {
                Some(envs) => {
                    slice.envs.load(&envs)?;
                    state
                }
                None => State::start(&mut *slice.envs, self.seed.wrapping_add(saved.steps))?,
            };
        }
        self.steps = saved.steps;
        Ok(())
    }
}

/// Default of [`EvalConfig::max_steps`]: longer than any episode that has a time limit of its own.
pub const MAX_EVAL_STEPS: u32 = 100_000;

/// How [`evaluate_with`] plays episodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvalConfig {
    /// Seed of the environments, and of the actions if they are sampled.
    pub seed: u64,
    /// True to sample actions as in training, false to take the most likely ones.
    pub stochastic: bool,
    /// Steps after which an episode is cut; 0 for no limit.
    pub max_steps: u32,
}

impl EvalConfig {
    /// Greedy episodes of at most [`MAX_EVAL_STEPS`] steps.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, stochastic: false, max_steps: MAX_EVAL_STEPS }
    }
}

/// Episodes that [`evaluate_with`] has played.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Played {
    /// The first episode of each environment.
    pub episodes: Vec<Episode>,
    /// Number of episodes cut by [`EvalConfig::max_steps`].
    pub cut: usize,
}

/// Plays one greedy episode of at most [`MAX_EVAL_STEPS`] steps in each of `envs`, started from `seed`. The first episode of every
/// environment counts, however long it takes, so that short ones are not favoured.
///
/// # Errors
/// Those of the environments and of candle.
pub fn evaluate(policy: &dyn Policy, envs: &mut dyn VecEnv, seed: u64) -> Result<Vec<Episode>, Error> {
    Ok(evaluate_with(policy, envs, &EvalConfig::new(seed), &mut |_, _| ControlFlow::Continue(()))?.episodes)
}

/// What [`evaluate_with`] calls with the environments, and each one's episode as far as it has come.
pub type BeforeStep<'a> = &'a mut dyn FnMut(&dyn VecEnv, &[Episode]) -> ControlFlow<()>;

/// Plays one episode in each of `envs`. `before_step` is called before every step, the first one included; if it breaks off, the
/// episodes are returned as far as they have come.
///
/// `before_step` never sees the state that an episode ends in, since that step has already begun the environment's next episode,
/// which is stepped but not counted until the last environment has ended its first.
///
/// # Errors
/// Those of the environments and of candle.
pub fn evaluate_with(
    policy: &dyn Policy,
    envs: &mut dyn VecEnv,
    config: &EvalConfig,
    before_step: BeforeStep<'_>,
) -> Result<Played, Error> {
    let EvalConfig { seed, stochastic, max_steps } = *config;
    let (n, d, first_env) = (envs.n_envs(), envs.observation_space().len(), envs.first_env());
    let State { mut obs, mut masks, mut running } = State::start(envs, seed)?;
    let (mut final_obs, mut final_masks) = (obs.clone(), masks.clone());
    let mut clipped = Clipped::new(envs.action_space(), n);
    let (mut discrete, mut continuous) = (Array1::zeros(n), Array2::zeros((n, envs.action_space().len())));
    let mut actions = match envs.action_space() {
        ActionSpace::Discrete { .. } => ActionsMut::Discrete(discrete.view_mut()),
        ActionSpace::Continuous { .. } => ActionsMut::Continuous(continuous.view_mut()),
    };
    let (mut log_probs, mut values, mut rewards) = (vec![0.0; n], vec![0.0; n], Array1::zeros(n));
    let (mut terminated, mut truncated) = (Array1::zeros(n), Array1::zeros(n));
    let (mut over, mut cut) = (vec![false; n], 0);
    let mut scratch = policy.scratch();
    let mut step = 0;
    while over.contains(&false) && before_step(&*envs, &running).is_continue() {
        step += 1;
        let choice = if stochastic { Choice::Sample { seed, step, first_env } } else { Choice::Greedy };
        policy.act(obs.as_slice(), &masks, choice, &mut scratch, (actions.reborrow(), &mut log_probs, &mut values))?;
        envs.step(
            for_envs(&actions, &mut clipped),
            StepBatch {
                obs: obs.view_mut(n, d),
                rewards: rewards.view_mut(),
                terminated: terminated.view_mut(),
                truncated: truncated.view_mut(),
                final_obs: final_obs.view_mut(n, d),
                masks: mask_view(&mut masks, n)
                    .zip(mask_view(&mut final_masks, n))
                    .map(|(masks, final_masks)| MaskBatch { masks, final_masks }),
            },
        )?;
        for (i, episode) in running.iter_mut().enumerate().filter(|(i, _)| !over[*i]) {
            episode.episode_return += f64::from(rewards[i]);
            episode.length += 1;
        }
        for (over, (terminated, truncated)) in over.iter_mut().zip(terminated.iter().zip(&truncated)) {
            *over |= terminated | truncated == 1;
        }
        if step == u64::from(max_steps) {
            cut = over.iter().filter(|over| !**over).count();
            break;
        }
    }
    Ok(Played { episodes: running, cut })
}
