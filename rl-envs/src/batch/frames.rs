//! Wrappers that change what is observed: pictures, and stacks of observations.

use std::cell::Cell;

use serde::{Deserialize, Serialize};

use crate::batch::vec_env::inherited_env;
use crate::{Action, Canvas, Env, Error, Rng, Space, Step};

/// Time since any fixed moment, in any unit.
pub type Clock = fn() -> u64;

thread_local! {
    /// Clock that measures this thread's preprocessing, and the time that it took.
    static PREPROCESSING: Cell<Option<(Clock, u64)>> = const { Cell::new(None) };
}

/// Runs `work`; also returns the time that preprocessing took on this thread.
///
/// The time covers the pictures of [`Pixels`] and the copies of [`FrameStack`], in the clock's unit.
pub fn time_preprocessing<R>(clock: Clock, work: impl FnOnce() -> R) -> (R, u64) {
    PREPROCESSING.set(Some((clock, 0)));
    let result = work();
    (result, PREPROCESSING.take().map_or(0, |(_, spent)| spent))
}

/// Runs `work`, a part of what [`time_preprocessing`] measures.
pub(super) fn preprocess(work: impl FnOnce()) {
    let Some((clock, spent)) = PREPROCESSING.get() else { return work() };
    let begin = clock();
    work();
    PREPROCESSING.set(Some((clock, spent + (clock() - begin))));
}

/// An environment that observes the picture that it draws of itself, in grey.
///
/// Observations are bytes, (1, S, S), of which a learner takes the 255th part. The picture keeps its proportions; what it leaves
/// is black. Greys are the luma of ITU-R BT.601.
#[derive(Clone, Debug)]
pub struct Pixels<E: Env> {
    env: E,
    side: usize,
    canvas: Canvas,
    /// The environment's own observation, (D).
    own: Vec<E::Obs>,
}

impl<E: Env> Pixels<E> {
    /// Observes pictures of `side` times `side` pixels.
    ///
    /// # Panics
    /// If `side` is 0.
    #[must_use]
    pub fn new(env: E, side: usize) -> Self {
        assert!(side > 0, "a picture has one pixel at least");
        let own = vec![E::Obs::default(); env.observation_space().len()];
        Self { env, side, canvas: Canvas::new(side, side), own }
    }

    fn draw(&mut self, obs: &mut [u8]) {
        self.env.render(&mut self.canvas);
        obs.fill(0);
        let (width, height) = (self.canvas.width(), self.canvas.height());
        if width == 0 {
            return;
        }
        let (left, top) = ((self.side - width) / 2, (self.side - height) / 2);
        for (y, row) in self.canvas.pixels().chunks_exact(3 * width).enumerate() {
            let to = &mut obs[(top + y) * self.side + left..][..width];
            for (to, rgb) in to.iter_mut().zip(row.chunks_exact(3)) {
                let [r, g, b] = [rgb[0], rgb[1], rgb[2]].map(u32::from);
                *to = ((77 * r + 150 * g + 29 * b) >> 8) as u8;
            }
        }
    }
}

impl<E: Env> Env for Pixels<E> {
    type Obs = u8;
    type State = E::State;

    inherited_env!(|self| self.env);

    fn observation_space(&self) -> Space {
        Space::bytes(&[1, self.side, self.side], u8::MAX, 1.0 / 255.0)
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [u8]) {
        self.env.reset(rng, &mut self.own);
        preprocess(|| self.draw(obs));
    }

    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [u8]) -> Step {
        let step = self.env.step(action, rng, &mut self.own);
        preprocess(|| self.draw(obs));
        step
    }

    fn heap_bytes(&self) -> usize {
        self.env.heap_bytes() + size_of_val(&self.own[..]) + 3 * self.side * self.side
    }

    fn state(&self) -> Option<E::State> {
        self.env.state()
    }

    fn set_state(&mut self, state: E::State) -> Result<(), Error> {
        self.env.set_state(state)
    }
}

/// An environment that observes its last k observations, oldest first.
///
/// After a reset, all k are the first one.
///
/// The first axis of the observation is k times as long: (C, H, W) becomes (k C, H, W), (D) becomes (k D). A frame (H, W) should
/// have the shape (1, H, W).
#[derive(Clone, Debug)]
pub struct FrameStack<E: Env> {
    env: E,
    frames: Vec<E::Obs>, // (k, D)
    d: usize,
}

/// State of a [`FrameStack`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrameStackState<S, O> {
    /// State of the environment.
    pub env: S,
    /// The last observations, (k, D), oldest first.
    pub frames: Vec<O>,
}

impl<E: Env> FrameStack<E> {
    /// Stacks the last `k` observations.
    ///
    /// # Panics
    /// If `k` is 0.
    #[must_use]
    pub fn new(env: E, k: usize) -> Self {
        assert!(k > 0, "a stack holds one observation at least");
        let d = env.observation_space().len();
        Self { env, frames: vec![E::Obs::default(); k * d], d }
    }
}

impl<E: Env> Env for FrameStack<E> {
    type Obs = E::Obs;
    type State = FrameStackState<E::State, E::Obs>;

    inherited_env!(|self| self.env);

    fn observation_space(&self) -> Space {
        self.env.observation_space().stacked(self.frames.len() / self.d)
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [E::Obs]) {
        self.env.reset(rng, &mut self.frames[..self.d]);
        preprocess(|| {
            let (first, others) = self.frames.split_at_mut(self.d);
            others.chunks_exact_mut(self.d).for_each(|frame| frame.copy_from_slice(first));
            obs.copy_from_slice(&self.frames);
        });
    }

    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [E::Obs]) -> Step {
        preprocess(|| self.frames.copy_within(self.d.., 0));
        let last = self.frames.len() - self.d;
        let step = self.env.step(action, rng, &mut self.frames[last..]);
        preprocess(|| obs.copy_from_slice(&self.frames));
        step
    }

    fn heap_bytes(&self) -> usize {
        self.env.heap_bytes() + size_of_val(&self.frames[..])
    }

    fn state(&self) -> Option<Self::State> {
        Some(FrameStackState { env: self.env.state()?, frames: self.frames.clone() })
    }

    fn set_state(&mut self, state: Self::State) -> Result<(), Error> {
        if state.frames.len() != self.frames.len() {
            let (found, expected) = (state.frames.len(), self.frames.len());
            return Err(Error::BadState(format!("the frames hold {found} elements, not {expected}")));
        }
        self.env.set_state(state.env)?;
        self.frames = state.frames;
        Ok(())
    }
}
