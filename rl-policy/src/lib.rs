//! Trained policies in games, robots and microcontrollers.
//!
//! - [`Policy`] reads a policy in the bytes of its file. It copies and allocates nothing, and needs no operating system.
//! - [`Policy::act`] computes an action from an observation, in memory that the caller owns: the greedy one, or one drawn by
//!   counter-based random numbers ([`Choice`]). [`stack`] keeps the latest frames of a policy that sees several,
//!   [`Policy::reset`] starts an episode of one that remembers.
//! - Actions and outputs have the same bits on every machine, those of the trainer's evaluation.
//! - A damaged file is an [`Error`]. No file makes the loader panic.
//! - `unsafe` code is forbidden. The feature `std` has one unsafe call, of code for x86-64 processors that fuse multiply-adds.
//!
//! With the feature `write`, `Exported` is a policy as data, and `write` has its writers. The crate stands alone because
//! those that train carry candle and threads, which a loader for `no_std` must not.
//!
//! ```
//! use rl_policy::{Action, Choice, Obs, Policy};
//!
//! // CartPole: position, velocity, angle and angular velocity; 0 pushes to the left, 1 to the right.
//! let policy = Policy::new(include_bytes!("../tests/data/cartpole.policy"))?;
//! assert_eq!((policy.obs_len(), policy.action_len()), (4, 1));
//!
//! let mut memory = [0.0; 32];
//! assert!(policy.memory_len() <= memory.len());
//! let mut action = [0];
//! let falls_to_the_right = [0.0, 0.0, 0.1, 0.5];
//! policy.act(Obs::F32(&falls_to_the_right), &[], Choice::Greedy, &mut memory, Action::Discrete(&mut action))?;
//! assert_eq!(action, [1]);
//! # Ok::<(), rl_policy::Error>(())
//! ```
#![cfg_attr(not(any(feature = "std", test)), no_std)]
#![cfg_attr(not(feature = "std"), forbid(unsafe_code))]

// Shared test support names the crate as its users do.
#[cfg(all(test, feature = "write"))]
extern crate self as rl_policy;

mod act;
mod error;
#[cfg(feature = "write")]
mod exported;
mod format;
mod fused;
#[cfg(all(test, feature = "write"))]
#[path = "../tests/kinds/mod.rs"]
mod kinds;
mod math;
mod read;
mod words;
#[cfg(feature = "write")]
pub mod write;

pub use act::{Action, Choice, Obs, stack};
pub use error::Error;
#[cfg(feature = "write")]
pub use exported::{Activation, Exported, Head, Input, Layer, LayerKind, Part};
pub use read::Policy;
pub use words::MAX_LEN;

/// Examples of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
