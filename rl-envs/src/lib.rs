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

pub mod catalog;
pub mod check;

mod batch;
mod canvas;
mod contract;
mod envs;
mod numerics;

pub use batch::isa::Isa;
pub use batch::pool::Pool;
pub use batch::pooled::PooledVecEnv;
pub use batch::random_actions::RandomActions;
pub use batch::vec_env::{SavedEnvs, SyncVecEnv, VecEnv};
pub use batch::{isa, lanes, pool, wrappers};
pub use canvas::{Canvas, Color};
pub use check::check_env;
pub use check::trace::TraceStep;
pub use contract::columns::{
    Action, ActionRows, ActionSlice, ActionSliceMut, Actions, Element, Obs, ObsRows, ObsSlice, ObsSliceMut,
};
pub use contract::env::{BlockingEnv, BoxedEnv, Constructor, Env, EnvError, MakeBlocking, Step};
pub use contract::error::Error;
pub use contract::space::{ActionKind, ActionSpace, Dtype, MAX_CATEGORIES, Part, Space, Spaces};
pub use contract::steps::{StepLens, StepSlices, StepSlicesMut, Steps};
pub use envs::*;
pub use numerics::permutation::Permutation;
pub use numerics::rng::{Purpose, Rng};
pub use numerics::{codec, math, rng};

/// Examples of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
