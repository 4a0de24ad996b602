//! What every environment is.

use serde::{Serialize, de::DeserializeOwned};

use crate::{Action, ActionSpace, Canvas, Element, Error, Rng, Space};

/// What a step gives besides the observation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// The reward of this step.
    pub reward: f32,
    /// The episode has ended because the task is over: nothing follows, the value of what follows is 0.
    pub terminated: bool,
    /// The episode has been cut off, by a time limit say: something would have followed, and has a value.
    pub truncated: bool,
}

impl Step {
    /// Whether the episode is over, for whichever reason.
    #[inline]
    #[must_use]
    pub fn done(&self) -> bool {
        self.terminated | self.truncated
    }
}

/// One environment: rules, constants and state. A batch of them is a [`VecEnv`](crate::VecEnv).
///
/// A step cannot fail and allocates nothing; actions have been checked before it. All chance comes from the generator that is
/// handed in. The time limit is part of the environment's own state: it sets `truncated`.
pub trait Env: Clone + Send {
    /// What observations are made of.
    type Obs: Element;

    /// What has to be known to continue an episode: what a checkpoint holds, and what a trace starts from, by field name.
    type State: Serialize + DeserializeOwned;

    /// The space of observations.
    fn observation_space(&self) -> Space;

    /// The space of actions.
    fn action_space(&self) -> ActionSpace;

    /// Starts an episode and writes its first observation, D elements.
    fn reset(&mut self, rng: &mut Rng, obs: &mut [Self::Obs]);

    /// Takes one step and writes the observation that follows, D elements, the last one of an episode too. After that one, the
    /// caller resets before the next step.
    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [Self::Obs]) -> Step;

    /// Writes 1 for each legal action and 0 for the others, A elements. Asked for only if the action space is masked; one
    /// action at least must be legal unless the episode is over.
    fn mask(&self, _mask: &mut [u8]) {}

    /// Bytes on the heap that it takes beside its own size.
    fn heap_bytes(&self) -> usize {
        0
    }

    /// Draws the environment as it stands, beginning with [`Canvas::view`]. One that does not draw itself leaves it empty.
    fn render(&self, _canvas: &mut Canvas) {}

    /// The state, or `None` if this environment cannot be saved.
    fn state(&self) -> Option<Self::State>;

    /// Continues from `state`.
    ///
    /// # Errors
    /// [`Error::BadState`] if it is none that this environment can be in; then nothing has changed.
    fn set_state(&mut self, state: Self::State) -> Result<(), Error>;
}

/// A call of a [`BlockingEnv`] that has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct EnvError {
    /// What has happened, in words.
    pub cause: String,
    /// Whether the same call may be made again: nothing has changed on the other side, or it would notice the repetition.
    pub may_repeat: bool,
}

/// An environment that talks to something and so may block, and may fail: as [`Env`] but for the errors. Each has a thread of its own.
///
/// A step that has failed gives no transition: the step before it counts as truncated.
pub trait BlockingEnv: Send + 'static {
    /// What observations are made of.
    type Obs: Element;

    /// The space of observations.
    fn observation_space(&self) -> Space;

    /// The space of actions.
    fn action_space(&self) -> ActionSpace;

    /// Starts an episode and writes its first observation, D elements.
    ///
    /// # Errors
    /// [`EnvError`].
    fn reset(&mut self, rng: &mut Rng, obs: &mut [Self::Obs]) -> Result<(), EnvError>;

    /// Takes one step and writes the observation that follows, D elements, the last one of an episode too.
    ///
    /// # Errors
    /// [`EnvError`].
    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [Self::Obs]) -> Result<Step, EnvError>;

    /// As [`Env::mask`].
    fn mask(&self, _mask: &mut [u8]) {}
}
