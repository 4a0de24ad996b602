//! Environments that are arithmetic on a few numbers, for vector instructions.
//!
//! Their rules are written once, as functions of a state, and stepped alone ([`Lane`]) or side by side in the lanes of vector
//! instructions ([`LanesVecEnv`]), with the same bits.

use std::fmt::Debug;
use std::ops::Range;

use serde::{Serialize, de::DeserializeOwned};

use crate::batch::isa::{self, Isa, Set, Work};
use crate::batch::vec_env::{CHECKED, SavedEnvs};
use crate::{
    Action, ActionSlice, ActionSpace, Canvas, Element as _, Env, Error, ObsSliceMut, Purpose, Rng, Space, Step, StepLens,
    StepSlicesMut, Steps, VecEnv, numerics::codec,
};

/// Rules of an environment with `W` 32-bit words of state and `D` f32 observed.
///
/// `advance`, `observe`, `pack` and `unpack` must be `inline(always)` and branch-free: they are compiled into loops over lanes.
/// The implementor holds the environment's constants; [`Lane`] makes an [`Env`] of it.
pub trait Dynamics<const W: usize, const D: usize>: Clone + Debug + Default + Send {
    /// State of an episode.
    type State: Copy + Debug + Send + Serialize + DeserializeOwned;

    /// Type of an action: `u32` if discrete, `[f32; A]` if continuous.
    type Action: LaneAction;

    /// Returns the observation space.
    fn observation_space(&self) -> Space;

    /// Returns the action space, which has no masks.
    fn action_space(&self) -> ActionSpace;

    /// Draws the initial state of an episode.
    fn start(&self, rng: &mut Rng) -> Self::State;

    /// Takes one step.
    fn advance(&self, state: Self::State, action: Self::Action) -> (Self::State, Step);

    /// Returns the observation of a state.
    fn observe(&self, state: &Self::State) -> [f32; D];

    /// Draws a state.
    fn render(&self, _state: &Self::State, _canvas: &mut Canvas) {}

    /// Returns the problem with a state that no running episode can have.
    fn fault(&self, state: &Self::State) -> Option<String>;

    /// Encodes a state as words.
    fn pack(state: Self::State) -> [u32; W];

    /// Decodes a state from words.
    fn unpack(words: [u32; W]) -> Self::State;
}

/// Type of a lane's action: `u32` or `[f32; A]`.
pub trait LaneAction: Copy + 'static {
    /// Returns `actions` as a slice, or `None` if their kind differs.
    fn rows(actions: ActionSlice<'_>) -> Option<&[Self]>;
    /// Converts one action.
    fn of(action: Action<'_>) -> Self;
}

impl LaneAction for u32 {
    fn rows(actions: ActionSlice<'_>) -> Option<&[Self]> {
        actions.either(Some, |_| None)
    }

    #[inline(always)]
    fn of(action: Action<'_>) -> Self {
        action.discrete()
    }
}

impl<const A: usize> LaneAction for [f32; A] {
    fn rows(actions: ActionSlice<'_>) -> Option<&[Self]> {
        actions.either(|_| None, |actions| Some(actions.as_chunks().0))
    }

    #[inline(always)]
    fn of(action: Action<'_>) -> Self {
        *action.continuous().first_chunk().expect("a checked action has A numbers")
    }
}

/// Returns the problem with `elapsed` if it is not below the limit.
pub(crate) fn elapsed_fault(elapsed: u32, max_steps: u32) -> Option<String> {
    (elapsed >= max_steps).then(|| format!("elapsed is {elapsed}, an episode ends at step {max_steps}"))
}

/// A single environment with the rules `P`.
#[derive(Clone, Debug)]
pub struct Lane<P: Dynamics<W, D>, const W: usize, const D: usize> {
    params: P,
    state: P::State,
}

impl<P: Dynamics<W, D>, const W: usize, const D: usize> Lane<P, W, D> {
    /// Creates an environment with the given constants.
    #[must_use]
    pub fn new(params: P) -> Self {
        Self { params, state: P::unpack([0; W]) }
    }

    /// Constants of the environment.
    pub fn params(&self) -> &P {
        &self.params
    }
}

impl<P: Dynamics<W, D>, const W: usize, const D: usize> Default for Lane<P, W, D> {
    fn default() -> Self {
        Self::new(P::default())
    }
}

impl<P: Dynamics<W, D>, const W: usize, const D: usize> Env for Lane<P, W, D> {
    type Obs = f32;
    type State = P::State;

    fn observation_space(&self) -> Space {
        self.params.observation_space()
    }

    fn action_space(&self) -> ActionSpace {
        self.params.action_space()
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) {
        self.state = self.params.start(rng);
        obs.copy_from_slice(&self.params.observe(&self.state));
    }

    #[inline(always)]
    fn step(&mut self, action: Action<'_>, _rng: &mut Rng, obs: &mut [f32]) -> Step {
        let (state, outcome) = self.params.advance(self.state, P::Action::of(action));
        self.state = state;
        obs.copy_from_slice(&self.params.observe(&state));
        outcome
    }

    fn render(&self, canvas: &mut Canvas) {
        self.params.render(&self.state, canvas);
    }

    fn state(&self) -> Option<P::State> {
        Some(self.state)
    }

    fn set_state(&mut self, state: P::State) -> Result<(), Error> {
        match self.params.fault(&state) {
            Some(fault) => Err(Error::BadState(fault)),
            None => {
                self.state = state;
                Ok(())
            }
        }
    }
}

/// Environments per block: enough for whole vectors of every instruction set.
const LANES: usize = 64;

/// N environments with the rules `P` as blocks of columns, in vector instructions.
///
/// Equal to [`SyncVecEnv`] of [`Lane`]s bit for bit.
///
/// [`SyncVecEnv`]: crate::SyncVecEnv
#[derive(Clone, Debug)]
pub struct LanesVecEnv<P: Dynamics<W, D>, const W: usize, const D: usize> {
    params: P,
    isa: Isa,
    n_envs: usize,
    blocks: Vec<[[u32; LANES]; W]>, // environment i is lane i % LANES of block i / LANES
    first_env: u32,
    seed: u64,
    steps: u64,
    observation_space: Space,
    action_space: ActionSpace,
}

impl<P: Dynamics<W, D>, const W: usize, const D: usize> LanesVecEnv<P, W, D> {
    /// Creates the environments with the indices `range` of a batch.
    pub fn slice(range: Range<usize>, params: P) -> Self {
        let mut words = [[0; LANES]; W];
        for (column, word) in words.iter_mut().zip(P::pack(Lane::<P, W, D>::new(params.clone()).state)) {
            column.fill(word);
        }
        Self {
            isa: Isa::best(),
            n_envs: range.len(),
            blocks: vec![words; range.len().div_ceil(LANES)],
            first_env: range.start as u32,
            seed: 0,
            steps: 0,
            observation_space: params.observation_space(),
            action_space: params.action_space(),
            params,
        }
    }

    /// Replaces the instruction set (by default the best); results have the same bits.
    #[must_use]
    pub fn with_isa(mut self, isa: Isa) -> Self {
        self.isa = isa;
        self
    }
}

#[inline(always)]
fn get<P: Dynamics<W, D>, const W: usize, const D: usize>(block: &[[u32; LANES]; W], lane: usize) -> P::State {
    P::unpack(std::array::from_fn(|k| block[k][lane]))
}

#[inline(always)]
fn set<P: Dynamics<W, D>, const W: usize, const D: usize>(block: &mut [[u32; LANES]; W], lane: usize, state: P::State) {
    for (column, word) in block.iter_mut().zip(P::pack(state)) {
        column[lane] = word;
    }
}

/// One step of every environment, compiled for an instruction set.
struct LanesStep<'a, P: Dynamics<W, D>, const W: usize, const D: usize> {
    params: &'a P,
    blocks: &'a mut [[[u32; LANES]; W]],
    steps: StepSlicesMut<'a>,
    seed: u64,
    step: u64,
    first_env: u32,
}

impl<P: Dynamics<W, D>, const W: usize, const D: usize> Work for LanesStep<'_, P, W, D> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Self { params, blocks, steps, seed, step, first_env } = self;
        let Steps { obs, actions, rewards, terminated, truncated, final_obs, .. } = steps;
        let [obs, final_obs] = [obs, final_obs].map(|obs| f32::elements(obs).expect(CHECKED).as_chunks_mut::<D>().0);
        let actions = P::Action::rows(actions.as_slice()).expect("checked actions");
        let inputs = blocks.iter_mut().zip(actions.chunks(LANES));
        let rows = obs.chunks_mut(LANES).zip(final_obs.chunks_mut(LANES));
        let flags = terminated.chunks_mut(LANES).zip(truncated.chunks_mut(LANES));
        let outputs = rows.zip(rewards.chunks_mut(LANES)).zip(flags);
        let mut index = first_env;
        for ((block, actions), (((obs, final_obs), rewards), (terminated, truncated))) in inputs.zip(outputs) {
            let n = actions.len();
            if n == LANES {
                // The same call with a count known to the compiler.
                lanes(LANES, params, block, actions, obs, rewards, terminated, truncated);
            } else {
                lanes(n, params, block, actions, obs, rewards, terminated, truncated);
            }
            if terminated.iter().zip(&*truncated).fold(0, |any, (a, b)| any | a | b) != 0 {
                for lane in (0..n).filter(|&lane| terminated[lane] | truncated[lane] != 0) {
                    final_obs[lane] = obs[lane];
                    let state = params.start(&mut Rng::new(seed, index + lane as u32, step, Purpose::Reset));
                    obs[lane] = params.observe(&state);
                    set::<P, W, D>(block, lane, state);
                }
            }
            index = index.wrapping_add(LANES as u32);
        }
    }
}

/// Steps the first `n` lanes of a block.
#[expect(clippy::too_many_arguments, reason = "columns")]
#[inline(always)]
fn lanes<P: Dynamics<W, D>, const W: usize, const D: usize>(
    n: usize,
    params: &P,
    block: &mut [[u32; LANES]; W],
    actions: &[P::Action],
    obs: &mut [[f32; D]],
    rewards: &mut [f32],
    terminated: &mut [u8],
    truncated: &mut [u8],
) {
    assert!(n <= LANES, "a block's lanes");
    let (actions, obs, rewards) = (&actions[..n], &mut obs[..n], &mut rewards[..n]);
    let (terminated, truncated) = (&mut terminated[..n], &mut truncated[..n]);
    for lane in 0..n {
        let (state, outcome) = params.advance(get::<P, W, D>(block, lane), actions[lane]);
        set::<P, W, D>(block, lane, state);
        obs[lane] = params.observe(&state);
        rewards[lane] = outcome.reward;
        terminated[lane] = outcome.terminated.into();
        truncated[lane] = outcome.truncated.into();
    }
}

impl<P: Dynamics<W, D>, const W: usize, const D: usize> VecEnv for LanesVecEnv<P, W, D> {
    fn n_envs(&self) -> usize {
        self.n_envs
    }

    fn first_env(&self) -> u32 {
        self.first_env
    }

    fn observation_space(&self) -> &Space {
        &self.observation_space
    }

    fn action_space(&self) -> &ActionSpace {
        &self.action_space
    }

    fn reset_into(&mut self, seed: u64, obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error> {
        StepLens::check_reset(self.n_envs, &self.observation_space, &self.action_space, &obs, masks.as_deref())?;
        let obs = f32::elements(obs).expect(CHECKED);
        self.seed = seed;
        self.steps = 0;
        for (i, obs) in obs.as_chunks_mut::<D>().0.iter_mut().enumerate() {
            let state = self.params.start(&mut Rng::new(seed, self.first_env + i as u32, 0, Purpose::Reset));
            *obs = self.params.observe(&state);
            set::<P, W, D>(&mut self.blocks[i / LANES], i % LANES, state);
        }
        Ok(())
    }

    fn step_into(&mut self, steps: StepSlicesMut<'_>) -> Result<(), Error> {
        steps.check(self.n_envs, &self.observation_space, &self.action_space)?;
        self.steps += 1;
        let Self { params, isa, blocks, first_env, seed, steps: step, .. } = self;
        isa::dispatch(*isa, LanesStep { params, blocks, steps, seed: *seed, step: *step, first_env: *first_env });
        Ok(())
    }

    fn restart(&mut self, env_idx: usize, obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error> {
        StepLens::check_reset(1, &self.observation_space, &self.action_space, &obs, masks.as_deref())?;
        let obs = f32::elements(obs).expect(CHECKED);
        let mut rng = Rng::new(self.seed, self.first_env + env_idx as u32, self.steps, Purpose::Restart);
        let state = self.params.start(&mut rng);
        obs.copy_from_slice(&self.params.observe(&state));
        set::<P, W, D>(&mut self.blocks[env_idx / LANES], env_idx % LANES, state);
        Ok(())
    }

    fn repeat_step(&mut self, env_idx: usize, steps: StepSlicesMut<'_>) -> Result<(), Error> {
        steps.check(1, &self.observation_space, &self.action_space)?;
        let Self { params, isa, blocks, first_env, seed, steps: step, .. } = self;
        let (block, lane) = (&mut blocks[env_idx / LANES], env_idx % LANES);
        // As the only environment of a separate block.
        let mut alone = [[[0; LANES]; W]];
        set::<P, W, D>(&mut alone[0], 0, get::<P, W, D>(block, lane));
        let first_env = *first_env + env_idx as u32;
        isa::dispatch(*isa, LanesStep { params, blocks: &mut alone, steps, seed: *seed, step: *step, first_env });
        set::<P, W, D>(block, lane, get::<P, W, D>(&alone[0], 0));
        Ok(())
    }

    fn save(&self) -> Result<Vec<u8>, Error> {
        let states = (0..self.n_envs).map(|i| get::<P, W, D>(&self.blocks[i / LANES], i % LANES)).collect();
        codec::encode(&SavedEnvs { first_env: self.first_env, seed: self.seed, steps: self.steps, states })
    }

    fn load(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let saved: SavedEnvs<P::State> = codec::decode(bytes)?;
        saved.check(self.n_envs, self.first_env)?;
        if let Some(fault) = saved.states.iter().find_map(|state| self.params.fault(state)) {
            return Err(Error::BadState(fault));
        }
        for (i, state) in saved.states.into_iter().enumerate() {
            set::<P, W, D>(&mut self.blocks[i / LANES], i % LANES, state);
        }
        (self.seed, self.steps) = (saved.seed, saved.steps);
        Ok(())
    }

    fn render(&self, env_idx: usize, canvas: &mut Canvas) {
        self.params.render(&get::<P, W, D>(&self.blocks[env_idx / LANES], env_idx % LANES), canvas);
    }
}
