//! Batches of environments that step together.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::batch::isa::{self, Isa, Set, Work};
use crate::{
    ActionSpace, Canvas, Element as _, Env, Error, ObsSliceMut, Purpose, Rng, Space, StepLens, StepSlicesMut, Steps,
    numerics::codec,
};

/// N environments that step together.
///
/// An environment is reset in the same step in which its episode ends.
pub trait VecEnv: Send {
    /// Number of environments N.
    fn n_envs(&self) -> usize;

    /// Index of the first environment, as used in its random numbers.
    ///
    /// 0 unless this is a slice of a larger batch.
    fn first_env(&self) -> u32;

    /// Observation space of one environment.
    fn observation_space(&self) -> &Space;

    /// Action space of one environment.
    fn action_space(&self) -> &ActionSpace;

    /// Resets all environments with `seed`, and writes observations and masks.
    ///
    /// `obs` is (N, D), `masks` is (N, A) and given only if the action space has masks.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Kind`] if a column does not fit; nothing has changed then.
    fn reset_into(&mut self, seed: u64, obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error>;

    /// Steps every environment: reads the actions and writes the other columns.
    ///
    /// # Errors
    /// Errors of [`StepSlicesMut::check`]; nothing has changed then.
    fn step_into(&mut self, steps: StepSlicesMut<'_>) -> Result<(), Error>;

    /// Resets all environments into `steps`: see [`VecEnv::reset_into`].
    ///
    /// # Errors
    /// Errors of [`VecEnv::reset_into`].
    fn reset(&mut self, seed: u64, steps: &mut Steps) -> Result<(), Error> {
        self.reset_into(seed, steps.obs.as_mut_slice(), steps.masks.as_mut().map(|[masks, _]| &mut masks[..]))
    }

    /// Steps all environments with the actions of `steps`; writes its other columns.
    ///
    /// # Errors
    /// Errors of [`VecEnv::step_into`].
    fn step(&mut self, steps: &mut Steps) -> Result<(), Error> {
        self.step_into(steps.view_mut())
    }

    /// Environments without a last step, with the reason.
    ///
    /// The process that steps them has failed, for instance.
    /// Rewards and flags of their rows are 0, and the rest of the row means nothing. An environment leaves the list when it is
    /// restarted. By default none: only environments outside of this program fail.
    fn faults(&self) -> &[(usize, String)] {
        &[]
    }

    /// Restarts environment `env_idx` of this batch (from 0) with a new episode.
    ///
    /// Writes the first observation, (1, D), and mask, (1, A), if there are masks. For an episode that cannot continue because
    /// its last step failed or gave a number that is not finite.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Kind`] if a column does not fit, [`Error::CannotRestart`] if the batch cannot restart;
    /// nothing has changed then.
    ///
    /// # Panics
    /// If there is no environment `env_idx`.
    fn restart(&mut self, env_idx: usize, obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error>;

    /// Repeats the last step of environment `env_idx` after [`VecEnv::restart`].
    ///
    /// All columns have one row.
    ///
    /// # Errors
    /// Errors of [`VecEnv::step_into`]; [`Error::CannotRestart`] if the batch cannot restart. Nothing has changed then.
    ///
    /// # Panics
    /// If there is no environment `env_idx`.
    fn repeat_step(&mut self, env_idx: usize, steps: StepSlicesMut<'_>) -> Result<(), Error>;

    /// Overwrites the rewards (N) of the last step with the environments' own.
    ///
    /// A wrapper may have changed the rewards: statistics of a batch with clipped rewards count the rewards before clipping.
    fn raw_rewards(&self, _rewards: &mut [f32]) {}

    /// True if the last step of `env_idx` ended an episode for learning alone.
    ///
    /// After the loss of a life, for instance, the game continues: statistics count whole games. By default never.
    ///
    /// # Panics
    /// If there is no environment `env_idx`.
    fn goes_on(&self, _env_idx: usize) -> bool {
        false
    }

    /// Draws one environment: see [`Env::render`].
    ///
    /// If an episode has just ended, it draws the start of the next one.
    ///
    /// # Panics
    /// If there is no environment `env_idx`.
    fn render(&self, env_idx: usize, canvas: &mut Canvas);

    /// Encodes the state of the batch, apart from observations.
    ///
    /// # Errors
    /// [`Error::CannotSave`] if the environment has no state.
    fn save(&self) -> Result<Vec<u8>, Error>;

    /// Restores a state encoded by [`VecEnv::save`].
    ///
    /// # Errors
    /// [`Error::BadState`] if `bytes` are damaged or of another batch; nothing has changed then.
    fn load(&mut self, bytes: &[u8]) -> Result<(), Error>;
}

impl Steps {
    /// Zeros for one step of a batch of environments.
    #[must_use]
    pub fn new(envs: &(impl VecEnv + ?Sized)) -> Self {
        let lens = StepLens::batch(envs.n_envs(), envs.observation_space(), envs.action_space());
        lens.map(|len| vec![0.0; len], |len| vec![0; len], |len| vec![0; len])
    }
}

/// Methods of a [`VecEnv`] that its wrappers take over as they are.
macro_rules! inherited {
    (|$self:ident| $envs:expr) => {
        inherited!(|$self| $envs, observation_space: $envs.observation_space());
    };
    (|$self:ident| $envs:expr, observation_space: $space:expr) => {
        fn n_envs(&$self) -> usize {
            $envs.n_envs()
        }

        fn first_env(&$self) -> u32 {
            $envs.first_env()
        }

        fn observation_space(&$self) -> &Space {
            $space
        }

        fn action_space(&$self) -> &ActionSpace {
            $envs.action_space()
        }

        fn faults(&$self) -> &[(usize, String)] {
            $envs.faults()
        }

        fn goes_on(&$self, env_idx: usize) -> bool {
            $envs.goes_on(env_idx)
        }

        fn render(&$self, env_idx: usize, canvas: &mut Canvas) {
            $envs.render(env_idx, canvas);
        }
    };
}
pub(crate) use inherited;

/// Methods of an [`Env`] that these wrappers take over as they are.
macro_rules! inherited_env {
    (|$self:ident| $env:expr) => {
        fn action_space(&$self) -> $crate::ActionSpace {
            $env.action_space()
        }

        fn mask(&$self, mask: &mut [u8]) {
            $env.mask(mask);
        }

        fn render(&$self, canvas: &mut $crate::Canvas) {
            $env.render(canvas);
        }
    };
}
pub(crate) use inherited_env;

impl VecEnv for Box<dyn VecEnv> {
    inherited!(|self| **self);

    fn reset_into(&mut self, seed: u64, obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error> {
        (**self).reset_into(seed, obs, masks)
    }

    fn step_into(&mut self, steps: StepSlicesMut<'_>) -> Result<(), Error> {
        (**self).step_into(steps)
    }

    fn restart(&mut self, env_idx: usize, obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error> {
        (**self).restart(env_idx, obs, masks)
    }

    fn repeat_step(&mut self, env_idx: usize, steps: StepSlicesMut<'_>) -> Result<(), Error> {
        (**self).repeat_step(env_idx, steps)
    }

    fn raw_rewards(&self, rewards: &mut [f32]) {
        (**self).raw_rewards(rewards);
    }

    fn save(&self) -> Result<Vec<u8>, Error> {
        (**self).save()
    }

    fn load(&mut self, bytes: &[u8]) -> Result<(), Error> {
        (**self).load(bytes)
    }
}

/// N environments stepped one after the other: the referee for every faster batch.
#[derive(Clone, Debug)]
pub struct SyncVecEnv<E> {
    envs: Vec<E>,
    isa: Isa,
    /// Steps with `isa`.
    ///
    /// Compiled for all instruction sets only where [`SyncVecEnv::with_isa`] is called.
    step_with: fn(Isa, EnvsStep<'_, E>),
    first_env: u32,
    seed: u64,
    /// Lifetime steps of every environment.
    steps: u64,
    observation_space: Space,
    action_space: ActionSpace,
}

impl<E: Env> SyncVecEnv<E> {
    /// Creates `n_envs` copies of `env`.
    ///
    /// # Panics
    /// If `n_envs` is 0 or does not fit u32.
    pub fn new(n_envs: usize, env: E) -> Self {
        assert!(n_envs > 0 && u32::try_from(n_envs).is_ok(), "1 to 2^32 - 1 environments");
        Self::slice(0..n_envs, env)
    }

    /// Creates the environments `range` of a larger batch, equal to those of the whole.
    pub fn slice(range: Range<usize>, env: E) -> Self {
        Self {
            first_env: range.start as u32,
            seed: 0,
            steps: 0,
            observation_space: env.observation_space(),
            action_space: env.action_space(),
            envs: vec![env; range.len()],
            isa: Isa::Plain,
            step_with: |_, work| work.run::<isa::Plain>(),
        }
    }

    fn step_some(&mut self, range: Range<usize>, step: u64, steps: StepSlicesMut<'_>) -> Result<(), Error> {
        let Self { envs, isa, step_with, seed, first_env, observation_space, action_space, .. } = self;
        steps.check(range.len(), observation_space, action_space)?;
        let (d, a, first_env) = (observation_space.len(), action_space.len(), *first_env + range.start as u32);
        step_with(*isa, EnvsStep { envs: &mut envs[range], steps, d, a, seed: *seed, step, first_env });
        Ok(())
    }

    /// Replaces the instruction set; results have the same bits, as nothing is fused.
    #[must_use]
    pub fn with_isa(mut self, isa: Isa) -> Self {
        self.isa = isa;
        self.step_with = |isa, work| isa::dispatch(isa, work);
        self
    }
}

/// The reason why observations have the type of the environments.
pub(crate) const CHECKED: &str = "observations were checked";

/// One step of every environment, compiled for an instruction set.
struct EnvsStep<'a, E> {
    envs: &'a mut [E],
    steps: StepSlicesMut<'a>,
    d: usize,
    a: usize,
    seed: u64,
    step: u64,
    first_env: u32,
}

impl<E: Env> Work for EnvsStep<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Self { envs, steps, d, a, seed, step, first_env } = self;
        let Steps { obs, actions, rewards, terminated, truncated, final_obs, masks } = steps;
        let [obs, final_obs] = [obs, final_obs].map(|obs| E::Obs::elements(obs).expect(CHECKED));
        let ([masks, final_masks], actions) = (masks.unwrap_or_default(), actions.as_slice());
        for (i, env) in envs.iter_mut().enumerate() {
            let (index, obs) = (first_env + i as u32, &mut obs[i * d..][..d]);
            let outcome = env.step(actions.row(i, a), &mut Rng::new(seed, index, step, Purpose::Step), obs);
            rewards[i] = outcome.reward;
            terminated[i] = outcome.terminated.into();
            truncated[i] = outcome.truncated.into();
            if outcome.done() {
                final_obs[i * d..][..d].copy_from_slice(obs);
                if !final_masks.is_empty() {
                    env.mask(&mut final_masks[i * a..][..a]);
                }
                env.reset(&mut Rng::new(seed, index, step, Purpose::Reset), obs);
            }
            if !masks.is_empty() {
                env.mask(&mut masks[i * a..][..a]);
            }
        }
    }
}

/// Content of [`VecEnv::save`], the same for every layout in memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedEnvs<S> {
    /// Index of the first environment.
    pub first_env: u32,
    /// Seed of the batch.
    pub seed: u64,
    /// Lifetime steps of each environment.
    pub steps: u64,
    /// State of each environment, [`Env::State`].
    pub states: Vec<S>,
}

impl<S> SavedEnvs<S> {
    pub(crate) fn check(&self, n_envs: usize, first_env: u32) -> Result<(), Error> {
        if (self.states.len(), self.first_env) == (n_envs, first_env) {
            return Ok(());
        }
        let (found, first) = (self.states.len(), self.first_env);
        Err(Error::BadState(format!("it holds {found} environments from {first} on, not {n_envs} from {first_env} on")))
    }
}

impl<E: Env> VecEnv for SyncVecEnv<E> {
    fn n_envs(&self) -> usize {
        self.envs.len()
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
        let (n, d, a) = (self.envs.len(), self.observation_space.len(), self.action_space.len());
        StepLens::check_reset(n, &self.observation_space, &self.action_space, &obs, masks.as_deref())?;
        let (obs, masks) = (E::Obs::elements(obs).expect(CHECKED), masks.unwrap_or_default());
        self.seed = seed;
        self.steps = 0;
        let rows = self.envs.iter_mut().zip(obs.chunks_exact_mut(d)).zip(self.first_env..);
        for ((env, obs), index) in rows {
            env.reset(&mut Rng::new(seed, index, 0, Purpose::Reset), obs);
        }
        for (env, mask) in self.envs.iter().zip(masks.chunks_exact_mut(a)) {
            env.mask(mask);
        }
        Ok(())
    }

    fn step_into(&mut self, steps: StepSlicesMut<'_>) -> Result<(), Error> {
        self.step_some(0..self.envs.len(), self.steps + 1, steps)?;
        self.steps += 1;
        Ok(())
    }

    fn restart(&mut self, env_idx: usize, obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error> {
        StepLens::check_reset(1, &self.observation_space, &self.action_space, &obs, masks.as_deref())?;
        let (obs, masks) = (E::Obs::elements(obs).expect(CHECKED), masks.unwrap_or_default());
        let env = &mut self.envs[env_idx];
        env.reset(&mut Rng::new(self.seed, self.first_env + env_idx as u32, self.steps, Purpose::Restart), obs);
        if !masks.is_empty() {
            env.mask(masks);
        }
        Ok(())
    }

    fn repeat_step(&mut self, env_idx: usize, steps: StepSlicesMut<'_>) -> Result<(), Error> {
        self.step_some(env_idx..env_idx + 1, self.steps, steps)
    }

    fn render(&self, env_idx: usize, canvas: &mut Canvas) {
        self.envs[env_idx].render(canvas);
    }

    fn save(&self) -> Result<Vec<u8>, Error> {
        let states: Option<Vec<E::State>> = self.envs.iter().map(Env::state).collect();
        let states = states.ok_or(Error::CannotSave)?;
        codec::encode(&SavedEnvs { first_env: self.first_env, seed: self.seed, steps: self.steps, states })
    }

    fn load(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let saved: SavedEnvs<E::State> = codec::decode(bytes)?;
        saved.check(self.envs.len(), self.first_env)?;
        let mut envs = self.envs.clone();
        for (env, state) in envs.iter_mut().zip(saved.states) {
            env.set_state(state)?;
        }
        (self.envs, self.seed, self.steps) = (envs, saved.seed, saved.steps);
        Ok(())
    }
}
