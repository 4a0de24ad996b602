//! Reinforcement-learning environments that step in batches.
//!
//! - [`Env`] is one environment: rules and state, nothing else. [`cartpole::CartPole`] is one.
//! - [`VecEnv`] is N of them, stepped together into memory that the caller owns, restarted in the same step in which an
//!   episode ends. [`SyncVecEnv`] steps one after the other and is the referee; [`PooledVecEnv`] steps fixed slices on a
//!   [`Pool`] of threads and gives the same bits for any number of them.
//! - [`catalog`] names every environment, and a [`Canvas`] shows one; [`check_env`] tests any, one of your own too, against the
//!   contract.
//! - [`wrappers`] go around an environment or a batch: time limits, repeated actions, stacked frames, statistics.
//! - All randomness is counter-based ([`rng`]): a trajectory depends on the seed, the environment's index and the step,
//!   never on threads or time. All mathematics is the crate's own ([`math`]), so that it is the same on every machine.
//!
//! ```
//! use ndarray::{Array1, Array2};
//! use rl_envs::{Actions, ObsViewMut, StepBatch, SyncVecEnv, VecEnv, cartpole::CartPole};
//!
//! let n = 3;
//! let mut envs = SyncVecEnv::new(n, CartPole::default());
//! let (mut obs, mut final_obs) = (Array2::<f32>::zeros((n, 4)), Array2::<f32>::zeros((n, 4)));
//! let mut rewards = Array1::<f32>::zeros(n);
//! let (mut terminated, mut truncated) = (Array1::<u8>::zeros(n), Array1::<u8>::zeros(n));
//!
//! envs.reset(7, ObsViewMut::F32(obs.view_mut()), None)?;
//! let actions = Array1::from(vec![0, 1, 0]);
//! envs.step(
//!     Actions::Discrete(actions.view()),
//!     StepBatch {
//!         obs: ObsViewMut::F32(obs.view_mut()),
//!         rewards: rewards.view_mut(),
//!         terminated: terminated.view_mut(),
//!         truncated: truncated.view_mut(),
//!         final_obs: ObsViewMut::F32(final_obs.view_mut()),
//!         masks: None,
//!     },
//! )?;
//! assert_eq!(rewards.to_vec(), [1.0, 1.0, 1.0]);
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
mod columns;
mod env;
mod error;
mod random_actions;
mod space;
mod trace;
mod vec_env;

pub use canvas::{Canvas, Color};
pub use check::check_env;
pub use columns::{
    Action, ActionArray, ActionRows, ActionSlice, Actions, ActionsMut, ActionsView, Obs, ObsArray, ObsRows, ObsSlice, ObsViewMut,
};
pub use env::{BlockingEnv, Env, EnvError, Step};
pub use error::Error;
pub use isa::Isa;
pub use pool::Pool;
pub use random_actions::RandomActions;
pub use rng::{Purpose, Rng};
pub use space::{ActionKind, ActionSpace, Dtype, Element, Space};
pub use trace::TraceStep;
pub use vec_env::{MaskBatch, PooledVecEnv, StepBatch, StepRows, SyncVecEnv, VecEnv, mask_rows};
