//! The contract of an environment.

use serde::{Serialize, de::DeserializeOwned};

use crate::{Action, ActionSpace, Canvas, Element, Error, Obs, Rng, Space};

/// Outcome of a step, apart from the observation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// Reward of this step.
    pub reward: f32,
    /// True if the task is over: nothing follows, so the value of what follows is 0.
    pub terminated: bool,
    /// True if the episode was cut off, for example by a time limit.
    ///
    /// The episode would have continued, so the value of what follows counts.
    pub truncated: bool,
}

impl Step {
    /// True if the episode is over, for either reason.
    #[inline]
    #[must_use]
    pub fn done(&self) -> bool {
        self.terminated | self.truncated
    }
}

/// One environment: rules, constants and state.
///
/// A batch of environments is a [`VecEnv`](crate::VecEnv).
///
/// A step cannot fail and allocates nothing; the caller has checked the action. All randomness comes from the generator passed
/// in. The time limit is part of the environment's state: it sets `truncated`.
pub trait Env: Clone + Send {
    /// Element type of observations.
    type Obs: Element;

    /// State to continue an episode from, by field name in checkpoints and traces.
    type State: Serialize + DeserializeOwned;

    /// Returns the observation space.
    fn observation_space(&self) -> Space;

    /// Returns the action space.
    fn action_space(&self) -> ActionSpace;

    /// Starts an episode and writes its first observation, D elements.
    fn reset(&mut self, rng: &mut Rng, obs: &mut [Self::Obs]);

    /// Takes one step and writes the next observation, D elements.
    ///
    /// The step that ends an episode writes the last observation; the caller then resets before the next step.
    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [Self::Obs]) -> Step;

    /// Writes 1 for each legal action and 0 for the others, A elements.
    ///
    /// Called only if the action space is masked. At least one action must be legal unless a step has terminated.
    fn mask(&self, _mask: &mut [u8]) {}

    /// Bytes on the heap, in addition to the environment's own size.
    fn heap_bytes(&self) -> usize {
        0
    }

    /// Draws the current state, beginning with [`Canvas::view`]; by default nothing.
    fn render(&self, _canvas: &mut Canvas) {}

    /// Returns the state, or `None` if this environment cannot be saved.
    fn state(&self) -> Option<Self::State>;

    /// Continues from `state`.
    ///
    /// # Errors
    /// [`Error::BadState`] if this environment cannot be in that state; nothing has changed then.
    fn set_state(&mut self, state: Self::State) -> Result<(), Error>;
}

/// A failed call of a [`BlockingEnv`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct EnvError {
    /// Description of the failure.
    pub cause: String,
    /// True if the same call may be retried.
    ///
    /// Either nothing has changed on the other side, or it detects the repetition.
    pub may_repeat: bool,
}

/// An environment that talks to a process or device, so it may block and fail.
///
/// Its methods follow [`Env`], apart from the errors. Each environment runs on its own thread. A failed step gives no transition:
/// the step before it counts as truncated.
pub trait BlockingEnv: Send + 'static {
    /// Element type of observations.
    type Obs: Element;

    /// Returns the observation space.
    fn observation_space(&self) -> Space;

    /// Returns the action space.
    fn action_space(&self) -> ActionSpace;

    /// Starts an episode and writes its first observation, D elements.
    ///
    /// # Errors
    /// [`EnvError`] if the call fails.
    fn reset(&mut self, rng: &mut Rng, obs: &mut [Self::Obs]) -> Result<(), EnvError>;

    /// Takes one step and writes the next observation, D elements; see [`Env::step`].
    ///
    /// # Errors
    /// [`EnvError`] if the call fails.
    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [Self::Obs]) -> Result<Step, EnvError>;

    /// Writes the legal actions: see [`Env::mask`].
    fn mask(&self, _mask: &mut [u8]) {}
}

/// A blocking environment of any type.
pub type BoxedEnv<O> = Box<dyn BlockingEnv<Obs = O>>;

impl<O: Element> BlockingEnv for BoxedEnv<O> {
    type Obs = O;

    fn observation_space(&self) -> Space {
        (**self).observation_space()
    }

    fn action_space(&self) -> ActionSpace {
        (**self).action_space()
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [O]) -> Result<(), EnvError> {
        (**self).reset(rng, obs)
    }

    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [O]) -> Result<Step, EnvError> {
        (**self).step(action, rng, obs)
    }

    fn mask(&self, mask: &mut [u8]) {
        (**self).mask(mask);
    }
}

/// Constructor of a blocking environment.
pub type Constructor<O> = &'static (dyn Fn() -> BoxedEnv<O> + Send + Sync);

/// Constructor of a blocking environment, for either element type.
pub type MakeBlocking = Obs<Constructor<f32>, Constructor<u8>>;
