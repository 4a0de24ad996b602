//! Base of MinAtar's games: a board, sticky actions, a time limit.
//!
//! Source: MinAtar 1.0.15 (Young and Tian, 2019).

pub mod asterix;
pub mod breakout;
pub mod freeway;
pub mod seaquest;
pub mod space_invaders;

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Action, ActionSpace, Canvas, Color, Env, Error, Rng, Space, Step};

/// Number of rows, and of columns.
pub(crate) const SIZE: usize = 10;
/// Number of cells of a plane.
pub(crate) const CELLS: usize = SIZE * SIZE;

/// Rules of a game, whose value is the state of an episode.
pub trait Game: Clone + Debug + Default + Serialize + DeserializeOwned + Send + Sync {
    /// Number of planes of an observation.
    const PLANES: usize;
    /// Number of actions.
    const N_ACTIONS: u32;
    /// Steps after which an episode is truncated, unless [`Params`] say otherwise.
    const MAX_STEPS: u32 = 1000;
    /// Colours of the planes.
    const COLORS: &'static [Color] = &[];
    /// Maximum bytes of lists in a state.
    const HEAP_BYTES: usize = 0;

    /// Starts an episode.
    fn start(&mut self, rng: &mut Rng);

    /// Takes one step with `action`, which sticky actions have already replaced.
    fn advance(&mut self, action: u8, rng: &mut Rng) -> Step;

    /// Writes the cells of an observation that are 1; all others are 0.
    fn observe(&self, obs: &mut [u8]);

    /// Returns the last action taken, and the number of steps in this episode.
    fn clock(&mut self) -> (&mut u8, &mut u32);

    /// Returns why no episode is in this state.
    fn refused(&self) -> Option<&'static str>;

    /// Draws the state.
    fn render(&self, canvas: &mut Canvas) {
        let mut obs = vec![0; Self::PLANES * CELLS];
        self.observe(&mut obs);
        canvas.planes(&obs, SIZE, Self::COLORS);
    }
}

/// Constants of the environment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Probability that the last action is repeated.
    pub sticky: f32,
    /// Steps after which an episode is truncated.
    pub max_steps: u32,
}

/// Environment of one of MinAtar's games.
#[derive(Clone, Debug)]
pub struct MinAtar<G> {
    params: Params,
    pub(super) game: G,
}

impl<G: Game> Default for MinAtar<G> {
    fn default() -> Self {
        Self::new(Self::PARAMS)
    }
}

impl<G: Game> MinAtar<G> {
    /// MinAtar's constants.
    pub const PARAMS: Params = Params { sticky: 0.1, max_steps: G::MAX_STEPS };

    /// Creates an environment with the given constants.
    #[must_use]
    pub fn new(params: Params) -> Self {
        Self { params, game: G::default() }
    }

    /// Takes one step with `action`, which sticky actions have already replaced.
    #[inline(always)]
    pub(super) fn advance(&mut self, action: u8, rng: &mut Rng) -> Step {
        let (last_action, elapsed) = self.game.clock();
        *last_action = action;
        *elapsed += 1;
        let truncated = *elapsed >= self.params.max_steps;
        Step { truncated, ..self.game.advance(action, rng) }
    }

    #[inline(always)]
    fn observe(&self, obs: &mut [u8]) {
        obs.fill(0);
        self.game.observe(obs);
    }
}

impl<G: Game> Env for MinAtar<G> {
    type Obs = u8;
    type State = G;

    fn observation_space(&self) -> Space {
        Space::bytes(&[G::PLANES, SIZE, SIZE], 1, 1.0)
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Discrete { n: G::N_ACTIONS, masked: false }
    }

    fn heap_bytes(&self) -> usize {
        G::HEAP_BYTES
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [u8]) {
        self.game.start(rng);
        self.observe(obs);
    }

    #[inline(always)]
    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [u8]) -> Step {
        let sticks = self.params.sticky > 0.0 && rng.uniform() < self.params.sticky;
        let action = if sticks { *self.game.clock().0 } else { action.discrete() as u8 };
        let outcome = self.advance(action, rng);
        self.observe(obs);
        outcome
    }

    fn render(&self, canvas: &mut Canvas) {
        self.game.render(canvas);
    }

    fn state(&self) -> Option<G> {
        Some(self.game.clone())
    }

    fn set_state(&mut self, mut state: G) -> Result<(), Error> {
        let (last_action, elapsed) = state.clock();
        let (last_action, elapsed) = (u32::from(*last_action), *elapsed);
        if last_action >= G::N_ACTIONS {
            return Err(Error::BadState(format!("last_action must be 0 to {}", G::N_ACTIONS - 1)));
        }
        if elapsed >= self.params.max_steps {
            return Err(Error::BadState(format!("elapsed is {elapsed}, an episode ends at step {}", self.params.max_steps)));
        }
        if let Some(why) = state.refused() {
            return Err(Error::BadState(why.into()));
        }
        self.game = state;
        Ok(())
    }
}
