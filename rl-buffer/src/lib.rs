//! Memory that agents learn from: rollouts, replayed transitions, and targets.
//!
//! - [`Rollout`] holds T steps of N environments, time-major, in one block of memory that is filled in place.
//! - [`ReplayBuffer`] holds the latest transitions of one or more steps and draws a [`Batch`] of them;
//!   [`PrioritizedReplayBuffer`] prefers transitions with a large error.
//! - [`Memory`] is the kind of memory of their blocks, a value: [`Host`] by default, or [`Pinned`]. A [`DeviceRollout`] is in a
//!   device's memory, and a [`DeviceReplay`] is a copy of a replay memory there.
//! - [`returns`] defines advantages, returns and discounts, and is the only module that interprets the two flags at the end of an
//!   episode.
//!
//! ```
//! use ndarray::array;
//! use rl_buffer::returns::{Outcomes, gae};
//!
//! // One environment, two steps; a time limit cuts off the second, so it is bootstrapped from its final observation.
//! let (rewards, next_values) = (array![[1.0], [1.0]], array![[2.0], [10.0]]);
//! let (terminated, truncated) = (array![[0], [0]], array![[0], [1]]);
//! let outcomes = Outcomes {
//!     rewards: rewards.view(),
//!     terminated: terminated.view(),
//!     truncated: truncated.view(),
//!     next_values: next_values.view(),
//! };
//! let mut advantages = array![[0.0], [0.0]];
//! gae(&outcomes, array![[3.0], [2.0]].view(), 0.5, 1.0, advantages.view_mut());
//! assert_eq!(advantages, array![[1.0], [4.0]]); // [1 + 0.5 * 2 - 3 + 0.5 * 4, 1 + 0.5 * 10 - 2]
//! ```

pub mod memory;

mod error;
mod pinned;
mod replay;
mod rollout;
mod slab;
#[cfg(test)]
mod testing;

pub use error::Error;
pub use pinned::{Pinned, Streamed};
pub use replay::ReplayBuffer;
pub use replay::batch::{Batch, DeviceBatch, TransitionSlices, TransitionViews, Transitions};
pub use replay::device::DeviceReplay;
pub use replay::exchange::ShardMessages;
pub use replay::prioritized::PrioritizedReplayBuffer;
pub use replay::shard::Shard;
pub use replay::sum_tree::SumTree;
pub use replay::transition::TransitionShape;
pub use rl_envs::{ActionKind, ActionRows, ActionSlice, Dtype, ObsRows, ObsSlice, StepSlices};
pub use rollout::Rollout;
pub use rollout::columns::{ActColumns, ActedValues, RolloutColumns, RolloutShape, StepColumns};
pub use rollout::device::{DeviceRollout, DeviceStep};
pub use rollout::returns;
pub use slab::{ALIGN, Block, Host, Memory};

/// Examples of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
