//! Reinforcement-learning environments that step in batches.
//!
//! - [`Env`] is one environment: rules and state, nothing else. [`cartpole::CartPole`] is one.
//! - [`VecEnv`] is N of them, stepped together into memory that the caller owns; an environment is reset in the same step in
//!   which its episode ends. [`SyncVecEnv`] steps one after the other and is the referee; [`PooledVecEnv`] steps fixed slices on
//!   a [`Pool`] of threads and gives the same bits for any number of them.
//! - [`catalog`] names every environment, and a [`Canvas`] shows one; [`check_env`] checks any environment against the contract.
//! - [`wrappers`] wrap an environment or a batch: time limits, repeated actions, stacked frames, statistics.
//! - All randomness is counter-based ([`rng`]): a trajectory depends on the seed, the environment's index and the step, never on
//!   threads or time. All mathematics is the crate's own ([`math`]), the same on every machine.
//!
//! ```
//! use rl_envs::{Actions, Steps, SyncVecEnv, VecEnv, cartpole::CartPole};
//!
//! let mut envs = SyncVecEnv::new(3, CartPole::default());
//! let mut steps = Steps::new(&envs);
//! envs.reset(7, &mut steps)?;
//! steps.actions = Actions::Discrete(vec![0, 1, 0]);
//! envs.step(&mut steps)?;
//! assert_eq!(steps.rewards, [1.0, 1.0, 1.0]);
//! # Ok::<(), rl_envs::Error>(())
//! ```

pub mod acrobot;
pub mod breakout;
pub mod cartpole;
pub mod catalog;
pub mod check;
pub mod codec;
pub mod isa;
pub mod lanes;
pub mod math;
pub mod mountain_car;
pub mod mountain_car_continuous;
pub mod pendulum;
pub mod pool;
pub mod rng;
pub mod snake;
pub mod wrappers;

mod canvas;
mod check_batch;
mod columns;
mod env;
mod error;
mod permutation;
mod random_actions;
mod space;
mod steps;
mod trace;
mod vec_env;

pub use canvas::{Canvas, Color};
pub use check::check_env;
pub use columns::{Action, ActionRows, ActionSlice, ActionSliceMut, Actions, Element, Obs, ObsRows, ObsSlice, ObsSliceMut};
pub use env::{BlockingEnv, BoxedEnv, Constructor, Env, EnvError, MakeBlocking, Step};
pub use error::Error;
pub use isa::Isa;
pub use permutation::Permutation;
pub use pool::Pool;
pub use random_actions::RandomActions;
pub use rng::{Purpose, Rng};
pub use space::{ActionKind, ActionSpace, Dtype, MAX_CATEGORIES, Space};
pub use steps::{StepLens, StepSlices, StepSlicesMut, Steps};
pub use trace::TraceStep;
pub use vec_env::{PooledVecEnv, SyncVecEnv, VecEnv};

/// Examples of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
