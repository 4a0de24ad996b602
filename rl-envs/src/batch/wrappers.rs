//! Optional wrappers of an environment or a batch.
//!
//! Wrappers of an [`Env`] change episodes; a wrapped environment still fulfils the whole contract (it can be saved, checked with
//! [`check_env`](crate::check_env), and stepped by any number of threads):
//!
//! - [`Hide`] hides elements of observations, which memory can replace;
//! - [`TimeLimit`] truncates episodes, for an environment without a limit;
//! - [`ActionRepeat`] takes each action several times;
//! - [`Pixels`] observes the picture that the environment draws of itself;
//! - [`FrameStack`] observes the last few observations at once.
//!
//! Wrappers of a [`VecEnv`] fit any batch:
//!
//! - [`StackedVecEnv`] does what [`FrameStack`] does;
//! - [`EpisodeStats`] records return and length of episodes;
//! - [`RewardClip`] clips rewards. Statistics of episodes still use the environments' own rewards ([`VecEnv::raw_rewards`]), in
//!   whichever order the two are applied.
//!
//! ```
//! use rl_envs::wrappers::{ActionRepeat, EpisodeStats, FrameStack, RewardClip};
//! use rl_envs::{SyncVecEnv, VecEnv, cartpole::CartPole};
//!
//! let env = FrameStack::new(ActionRepeat::new(CartPole::default(), 2), 4);
//! let envs = RewardClip::new(EpisodeStats::new(SyncVecEnv::new(8, env)), -1.0, 1.0);
//! assert_eq!(envs.observation_space().shape(), [16]);
//! ```

use serde::{Deserialize, Serialize};

pub use crate::batch::frames::{Clock, FrameStack, FrameStackState, Pixels, time_preprocessing};
pub use crate::batch::rewards::{Episode, EpisodeStats, RewardClip};
pub use crate::batch::stacked::StackedVecEnv;
use crate::batch::vec_env::inherited_env;
use crate::{Action, Env, Error, Rng, Space, Step, VecEnv};

/// Elements of observations that are hidden.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hidden {
    /// No element.
    #[default]
    Nothing,
    /// The velocities that the environment names: [`Space::velocities`].
    Velocities,
}

/// Wrappers of any environment of the catalog, as values; by default none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wrappers {
    /// Observations stacked by [`FrameStack`]; 1 for none.
    pub frame_stack: usize,
    /// Steps after which [`TimeLimit`] truncates an episode; 0 for none.
    ///
    /// Repeated steps count.
    pub time_limit: u32,
    /// Times that [`ActionRepeat`] takes each action.
    pub action_repeat: u32,
    /// Width and height of the pictures that [`Pixels`] observes; 0 for none.
    pub pixels: usize,
    /// Bound of rewards in [`RewardClip`], positive and negated; 0 for none.
    pub reward_clip: f32,
    /// Elements that [`Hide`] hides.
    pub hide: Hidden,
}

impl Default for Wrappers {
    fn default() -> Self {
        Self { frame_stack: 1, time_limit: 0, action_repeat: 1, pixels: 0, reward_clip: 0.0, hide: Hidden::Nothing }
    }
}

impl Wrappers {
    /// True if these wrappers change nothing but rewards.
    pub(crate) fn leave_env(&self) -> bool {
        Self { reward_clip: 0.0, ..*self } == Self::default()
    }

    /// True if these wrappers hide elements, and change nothing else but rewards.
    pub(crate) fn hide_alone(&self) -> bool {
        self.hide != Hidden::Nothing && Self { hide: Hidden::Nothing, ..*self }.leave_env()
    }

    /// Wraps an environment in all wrappers but those of pixels and rewards.
    ///
    /// Defaults do nothing.
    ///
    /// # Panics
    /// If `frame_stack` or `action_repeat` is 0.
    pub(crate) fn around<E: Env>(&self, env: E) -> FrameStack<ActionRepeat<TimeLimit<Hide<E>>>> {
        FrameStack::new(self.limited(env), self.frame_stack)
    }

    /// Wraps an environment in all wrappers but that of rewards.
    ///
    /// # Panics
    /// If `frame_stack`, `action_repeat` or `pixels` is 0.
    pub(crate) fn around_pixels<E: Env>(&self, env: E) -> FrameStack<Pixels<ActionRepeat<TimeLimit<Hide<E>>>>> {
        FrameStack::new(Pixels::new(self.limited(env), self.pixels), self.frame_stack)
    }

    fn limited<E: Env>(&self, env: E) -> ActionRepeat<TimeLimit<Hide<E>>> {
        let max_steps = if self.time_limit == 0 { u32::MAX } else { self.time_limit };
        ActionRepeat::new(TimeLimit::new(Hide::new(env, self.hide), max_steps), self.action_repeat)
    }

    /// Wraps a batch made elsewhere in the wrapper of stacks if it is on.
    pub(crate) fn around_frames(&self, envs: Box<dyn VecEnv>) -> Box<dyn VecEnv> {
        if self.frame_stack > 1 { Box::new(StackedVecEnv::new(envs, self.frame_stack)) } else { envs }
    }

    /// Wraps a batch in the wrapper of rewards if it is on.
    pub(crate) fn around_rewards(&self, envs: Box<dyn VecEnv>) -> Box<dyn VecEnv> {
        if self.reward_clip > 0.0 { Box::new(RewardClip::new(envs, -self.reward_clip, self.reward_clip)) } else { envs }
    }
}

/// An environment with elements of its observations replaced by 0.
///
/// Without velocities, an agent must remember positions: the task is only partly observable.
#[derive(Clone, Debug)]
pub struct Hide<E> {
    env: E,
    elements: Vec<usize>,
}

impl<E: Env> Hide<E> {
    /// Hides elements of the observations of `env`.
    #[must_use]
    pub fn new(env: E, hidden: Hidden) -> Self {
        let elements = match hidden {
            Hidden::Nothing => Vec::new(),
            Hidden::Velocities => env.observation_space().velocities().to_vec(),
        };
        Self { env, elements }
    }

    #[inline]
    fn hide(&self, obs: &mut [E::Obs]) {
        self.elements.iter().for_each(|&i| obs[i] = E::Obs::default());
    }
}

impl<E: Env> Env for Hide<E> {
    type Obs = E::Obs;
    type State = E::State;

    inherited_env!(|self| self.env);

    fn observation_space(&self) -> Space {
        self.env.observation_space().with_zeros(&self.elements)
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [E::Obs]) {
        self.env.reset(rng, obs);
        self.hide(obs);
    }

    #[inline]
    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [E::Obs]) -> Step {
        let step = self.env.step(action, rng, obs);
        self.hide(obs);
        step
    }

    fn heap_bytes(&self) -> usize {
        self.env.heap_bytes() + size_of_val(&self.elements[..])
    }

    fn state(&self) -> Option<E::State> {
        self.env.state()
    }

    fn set_state(&mut self, state: E::State) -> Result<(), Error> {
        self.env.set_state(state)
    }
}

/// An environment whose episodes are truncated after `max_steps` steps.
///
/// It never sets `terminated`; a step may set both flags.
///
/// Inside an [`ActionRepeat`] it counts steps of the environment, outside actions.
#[derive(Clone, Debug)]
pub struct TimeLimit<E> {
    env: E,
    max_steps: u32,
    elapsed: u32,
}

/// State of a [`TimeLimit`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeLimitState<S> {
    /// State of the environment.
    pub env: S,
    /// Steps taken in this episode.
    pub elapsed: u32,
}

impl<E: Env> TimeLimit<E> {
    /// Limits the episodes of `env` to `max_steps` steps.
    ///
    /// # Panics
    /// If `max_steps` is 0.
    #[must_use]
    pub fn new(env: E, max_steps: u32) -> Self {
        assert!(max_steps > 0, "an episode has a step at least");
        Self { env, max_steps, elapsed: 0 }
    }
}

impl<E: Env> Env for TimeLimit<E> {
    type Obs = E::Obs;
    type State = TimeLimitState<E::State>;

    inherited_env!(|self| self.env);

    fn observation_space(&self) -> Space {
        self.env.observation_space()
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [E::Obs]) {
        self.elapsed = 0;
        self.env.reset(rng, obs);
    }

    #[inline]
    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [E::Obs]) -> Step {
        let step = self.env.step(action, rng, obs);
        self.elapsed += 1;
        Step { truncated: step.truncated | (self.elapsed >= self.max_steps), ..step }
    }

    fn heap_bytes(&self) -> usize {
        self.env.heap_bytes()
    }

    fn state(&self) -> Option<Self::State> {
        Some(TimeLimitState { env: self.env.state()?, elapsed: self.elapsed })
    }

    fn set_state(&mut self, state: Self::State) -> Result<(), Error> {
        if state.elapsed >= self.max_steps {
            let (elapsed, limit) = (state.elapsed, self.max_steps);
            return Err(Error::BadState(format!("elapsed is {elapsed}, an episode ends at step {limit}")));
        }
        self.env.set_state(state.env)?;
        self.elapsed = state.elapsed;
        Ok(())
    }
}

/// An environment that takes each action `n_repeats` times, or to an episode's end.
///
/// The reward is the sum, the observation the last one.
///
/// The mask applies to the first time only; it is not checked for the repeats.
#[derive(Clone, Debug)]
pub struct ActionRepeat<E> {
    env: E,
    n_repeats: u32,
}

impl<E: Env> ActionRepeat<E> {
    /// Takes each action `n_repeats` times.
    ///
    /// # Panics
    /// If `n_repeats` is 0.
    #[must_use]
    pub fn new(env: E, n_repeats: u32) -> Self {
        assert!(n_repeats > 0, "an action is taken once at least");
        Self { env, n_repeats }
    }
}

impl<E: Env> Env for ActionRepeat<E> {
    type Obs = E::Obs;
    type State = E::State;

    inherited_env!(|self| self.env);

    fn observation_space(&self) -> Space {
        self.env.observation_space()
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [E::Obs]) {
        self.env.reset(rng, obs);
    }

    /// Takes all repeats with one stream of random numbers.
    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [E::Obs]) -> Step {
        let mut sum = self.env.step(action, rng, obs);
        for _ in 1..self.n_repeats {
            if sum.done() {
                break;
            }
            let step = self.env.step(action, rng, obs);
            sum = Step { reward: sum.reward + step.reward, ..step };
        }
        sum
    }

    fn heap_bytes(&self) -> usize {
        self.env.heap_bytes()
    }

    fn state(&self) -> Option<E::State> {
        self.env.state()
    }

    fn set_state(&mut self, state: E::State) -> Result<(), Error> {
        self.env.set_state(state)
    }
}
