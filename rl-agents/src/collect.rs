//! Letting a policy act: rollouts to learn from, and episodes to judge it by.

use ndarray::{Array1, Array2, Array3, ArrayViewMut2, Axis};
use rl_buffer::{ActionBuffer, ActionKind, ObsBuffer, ObsKind, ObsSlice, Rollout, RolloutShape};
use rl_envs::{ActionSpace, Actions, Dtype, MaskBatch, ObsViewMut, Space, StepBatch, VecEnv};
use serde::{Deserialize, Serialize};

use crate::{ActorCritic, Choice, Error};

/// An episode that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// The sum of its rewards, not discounted.
    pub episode_return: f64,
    /// Its steps.
    pub length: u32,
}

/// One observation a row, of either type.
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
}

/// An empty rollout of `n_steps` steps for these environments.
///
/// # Errors
/// Those of [`Rollout::new`].
pub fn rollout(envs: &dyn VecEnv, n_steps: usize) -> Result<Rollout, Error> {
    let space = envs.observation_space();
    let actions = match envs.action_space() {
        ActionSpace::Discrete { n, masked } => ActionKind::Discrete { masked: masked.then_some(*n as usize) },
        ActionSpace::Continuous { low, .. } => ActionKind::Continuous { len: low.len() },
    };
    let obs = if space.dtype() == Dtype::F32 { ObsKind::F32 } else { ObsKind::U8 };
    Ok(Rollout::new(RolloutShape { n_steps, n_envs: envs.n_envs(), obs_len: space.len(), obs, actions })?)
}

/// All of row `t`, flat.
fn row<T>(rows: &Array3<T>, t: usize) -> &[T] {
    rows.index_axis(Axis(0), t).to_slice().expect("a rollout is contiguous")
}

/// All of row `t`, flat, to be written.
fn row_mut<T>(rows: &mut Array3<T>, t: usize) -> &mut [T] {
    rows.index_axis_mut(Axis(0), t).into_slice().expect("a rollout is contiguous")
}

/// All of row `t`, flat, to be written.
fn line_mut<T>(lines: &mut Array2<T>, t: usize) -> &mut [T] {
    lines.row_mut(t).into_slice().expect("a rollout is contiguous")
}

/// Row `t` of a rollout's observations, as a batch of environments writes them.
pub fn obs_view(obs: &mut ObsBuffer, t: usize) -> ObsViewMut<'_> {
    match obs {
        ObsBuffer::F32(obs) => ObsViewMut::F32(obs.index_axis_mut(Axis(0), t)),
        ObsBuffer::U8(obs) => ObsViewMut::U8(obs.index_axis_mut(Axis(0), t)),
    }
}

/// A batch of environments in the midst of their episodes, which fills one rollout after the other.
pub struct Collector {
    envs: Box<dyn VecEnv>,
    seed: u64,
    state: State,
    final_obs: Rows,         // (N, D)
    final_masks: Array2<u8>, // (N, A), or (N, 0) without masks
}

/// What changes from rollout to rollout.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct State {
    /// Lifetime steps of each environment.
    steps: u64,
    /// What to act on next, (N, D).
    obs: Rows,
    /// Legal actions there, (N, A), or empty without masks.
    masks: Vec<u8>,
    /// The episodes that are running, (N).
    running: Vec<Episode>,
}

impl State {
    /// Starts all environments from `seed`.
    fn start(envs: &mut dyn VecEnv, seed: u64) -> Result<Self, Error> {
        let (n, d) = (envs.n_envs(), envs.observation_space().len());
        let a = if envs.action_space().masked() { envs.action_space().len() } else { 0 };
        let mut obs = Rows::new(envs.observation_space().dtype(), n * d);
        let mut masks = Array2::zeros((n, a));
        envs.reset(seed, obs.view_mut(n, d), (a > 0).then(|| masks.view_mut()))?;
        let running = vec![Episode { episode_return: 0.0, length: 0 }; n];
        Ok(Self { steps: 0, obs, masks: masks.into_iter().collect(), running })
    }
}

/// A collector's state, to be saved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CollectorState {
    state: State,
    /// The environments' own state, or `None` if they cannot be saved.
    envs: Option<Vec<u8>>,
}

impl CollectorState {
    /// Whether the environments could be saved. If not, they begin new episodes when the state is loaded.
    #[must_use]
    pub fn has_envs(&self) -> bool {
        self.envs.is_some()
    }
}

impl Collector {
    /// Starts all environments from `seed`.
    ///
    /// # Errors
    /// Those of [`VecEnv::reset`].
    pub fn new(mut envs: Box<dyn VecEnv>, seed: u64) -> Result<Self, Error> {
        let state = State::start(&mut *envs, seed)?;
        let final_obs = state.obs.clone();
        let final_masks = Array2::zeros((envs.n_envs(), state.masks.len() / envs.n_envs()));
        Ok(Self { envs, seed, state, final_obs, final_masks })
    }

    /// The space of one observation.
    #[must_use]
    pub fn observation_space(&self) -> &Space {
        self.envs.observation_space()
    }

    /// The space of one action.
    #[must_use]
    pub fn action_space(&self) -> &ActionSpace {
        self.envs.action_space()
    }

    /// An empty rollout of `n_steps` steps for these environments.
    ///
    /// # Errors
    /// Those of [`Rollout::new`].
    pub fn rollout(&self, n_steps: usize) -> Result<Rollout, Error> {
        rollout(&*self.envs, n_steps)
    }

    /// Fills a rollout: T steps of every environment, each acted on by `policy`, and the values that follow the last. Returns
    /// the episodes that ended, in the order of their ends.
    ///
    /// # Errors
    /// Those of the environments and of candle.
    pub fn collect(&mut self, policy: &ActorCritic, rollout: &mut Rollout) -> Result<Vec<Episode>, Error> {
        let RolloutShape { n_steps, n_envs, obs_len, .. } = rollout.shape();
        let mut episodes = Vec::new();
        rollout.clear();
        rollout.policy_version.fill(policy.version());
        match (&mut rollout.obs, &self.state.obs) {
            (ObsBuffer::F32(to), Rows::F32(from)) => row_mut(to, 0).copy_from_slice(from),
            (ObsBuffer::U8(to), Rows::U8(from)) => row_mut(to, 0).copy_from_slice(from),
            _ => return Err(Error::Snapshot("the rollout holds observations of another type".into())),
        }
        if let Some(masks) = &mut rollout.masks {
            row_mut(masks, 0).copy_from_slice(&self.state.masks);
        }
        for t in 0..n_steps {
            let ActionBuffer::Discrete(actions) = &mut rollout.actions else { return Err(Error::ContinuousActions) };
            let obs = match &rollout.obs {
                ObsBuffer::F32(obs) => ObsSlice::F32(row(obs, t)),
                ObsBuffer::U8(obs) => ObsSlice::U8(row(obs, t)),
            };
            self.state.steps += 1;
            policy.act(
                obs,
                rollout.masks.as_ref().map_or(&[], |masks| row(masks, t)),
                Choice::Sample { seed: self.seed, step: self.state.steps },
                line_mut(actions, t),
                line_mut(&mut rollout.log_probs, t),
                line_mut(&mut rollout.values, t),
            )?;
            self.envs.step(
                Actions::Discrete(actions.row(t)),
                StepBatch {
                    obs: obs_view(&mut rollout.obs, t + 1),
                    rewards: rollout.rewards.row_mut(t),
                    terminated: rollout.terminated.row_mut(t),
                    truncated: rollout.truncated.row_mut(t),
                    final_obs: self.final_obs.view_mut(n_envs, obs_len),
                    masks: rollout.masks.as_mut().map(|masks| MaskBatch {
                        masks: masks.index_axis_mut(Axis(0), t + 1),
                        final_masks: self.final_masks.view_mut(),
                    }),
                },
            )?;
            for (n, episode) in self.state.running.iter_mut().enumerate() {
                episode.episode_return += f64::from(rollout.rewards[[t, n]]);
                episode.length += 1;
                if rollout.terminated[[t, n]] | rollout.truncated[[t, n]] == 1 {
                    episodes.push(std::mem::replace(episode, Episode { episode_return: 0.0, length: 0 }));
                    rollout.push_final(t, n, self.final_obs.row(n, obs_len));
                }
            }
        }
        match (&rollout.obs, &mut self.state.obs) {
            (ObsBuffer::F32(from), Rows::F32(to)) => to.copy_from_slice(row(from, n_steps)),
            (ObsBuffer::U8(from), Rows::U8(to)) => to.copy_from_slice(row(from, n_steps)),
            _ => unreachable!("the types were compared above"),
        }
        if let Some(masks) = &rollout.masks {
            self.state.masks.copy_from_slice(row(masks, n_steps));
        }
        let last_values = policy.values(self.state.obs.as_slice())?;
        rollout.last_values.iter_mut().zip(last_values).for_each(|(to, value)| *to = value);
        Ok(episodes)
    }

    /// All that has to be known to continue.
    ///
    /// # Errors
    /// Those of [`VecEnv::save`] but for "cannot be saved", which is a state without environments.
    pub fn save(&self) -> Result<CollectorState, Error> {
        let envs = match self.envs.save() {
            Ok(envs) => Some(envs),
            Err(rl_envs::Error::CannotSave) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(CollectorState { state: self.state.clone(), envs })
    }

    /// Continues from what `save` gave. Environments that could not be saved begin new episodes.
    ///
    /// # Errors
    /// [`Error::Snapshot`] or those of [`VecEnv::load`]; then nothing has changed.
    pub fn load(&mut self, saved: CollectorState) -> Result<(), Error> {
        let CollectorState { mut state, envs } = saved;
        let (old, n) = (&self.state, self.envs.n_envs());
        if !state.obs.fits(&old.obs) || state.masks.len() != old.masks.len() || state.running.len() != n {
            return Err(Error::Snapshot("it is of another batch of environments".into()));
        }
        match envs {
            Some(envs) => self.envs.load(&envs)?,
            None => {
                let seed = self.seed.wrapping_add(state.steps);
                state = State { steps: state.steps, ..State::start(&mut *self.envs, seed)? };
            }
        }
        self.state = state;
        Ok(())
    }
}

/// Plays one episode in each of `envs`, started from `seed`, always taking the most likely action. The first episode of every
/// environment counts, however long it takes, so that short ones are not favoured.
///
/// # Errors
/// Those of the environments and of candle.
pub fn evaluate(policy: &ActorCritic, envs: &mut dyn VecEnv, seed: u64) -> Result<Vec<Episode>, Error> {
    let (n, d) = (envs.n_envs(), envs.observation_space().len());
    let State { mut obs, masks, mut running, .. } = State::start(envs, seed)?;
    let mut masks = Array2::from_shape_vec((n, masks.len() / n), masks).expect("A masks an environment");
    let (mut final_obs, mut final_masks) = (obs.clone(), masks.clone());
    let mut actions = Array1::zeros(n);
    let (mut log_probs, mut values, mut rewards) = (vec![0.0; n], vec![0.0; n], Array1::zeros(n));
    let (mut terminated, mut truncated) = (Array1::zeros(n), Array1::zeros(n));
    let mut over = vec![false; n];
    while over.contains(&false) {
        let (actions_out, masks_in) = (actions.as_slice_mut(), masks.as_slice());
        let (actions_out, masks_in) = (actions_out.expect("contiguous"), masks_in.expect("contiguous"));
        policy.act(obs.as_slice(), masks_in, Choice::Greedy, actions_out, &mut log_probs, &mut values)?;
        let masked = !masks.is_empty();
        envs.step(
            Actions::Discrete(actions.view()),
            StepBatch {
                obs: obs.view_mut(n, d),
                rewards: rewards.view_mut(),
                terminated: terminated.view_mut(),
                truncated: truncated.view_mut(),
                final_obs: final_obs.view_mut(n, d),
                masks: masked.then(|| MaskBatch { masks: masks.view_mut(), final_masks: final_masks.view_mut() }),
            },
        )?;
        for (n, episode) in running.iter_mut().enumerate().filter(|(n, _)| !over[*n]) {
            episode.episode_return += f64::from(rewards[n]);
            episode.length += 1;
        }
        for (over, (terminated, truncated)) in over.iter_mut().zip(terminated.iter().zip(&truncated)) {
            *over |= terminated | truncated == 1;
        }
    }
    Ok(running)
}
