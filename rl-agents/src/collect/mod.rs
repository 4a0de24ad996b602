//! Acting in environments: rollouts to learn from, and evaluation.
//!
//! The environments of a [`Collector`] are cut into fixed slices. A thread fills the columns of its slice from the first step of
//! a rollout to the last without waiting for the others.
//!
//! # Misbehaving environments
//!
//! Every step is checked, a slice at a time, before an agent learns from it:
//!
//! - *A non-finite reward or observation*, including final observations, is an error that names environment, lifetime step
//!   and action ([`OnNonfinite::Error`]), or ends the episode at the previous step ([`OnNonfinite::Truncate`]): that step
//!   becomes truncated, the observation after it becomes the final one, and the episode counts in no statistics. The
//!   environment is restarted, acted on again and stepped again, so that the faulty row holds the first step of a new
//!   episode; other environments are not affected. At an episode's first step, nothing is truncated. At the first step of a
//!   rollout, the previous rollout has already been bootstrapped from its last observation, and [`Rollout::cut_before`] says
//!   that nothing continues across: n-step returns and normalized rewards of all environments begin again. If only the first
//!   observation of an episode is faulty, the environment is restarted. A second fault right after a restart is an error.
//! - *An observation outside of its space* is counted; the first one is described: see [`Collector::anomalies`].
//! - *An environment whose last step is missing* ([`VecEnv::faults`]), for instance because its process has failed, has its
//!   episode truncated as by [`OnNonfinite::Truncate`], whatever the setting, and is counted.
//! - *A panic* is an error that names the slice and the step.
//!
//! After an error the collector must not be used again: its environments have stepped and its rollout is incomplete. Parameters
//! are unharmed; [`CollectorState::without_envs`] is a state to save with them.
//!
//! [`Rollout::cut_before`]: rl_buffer::Rollout::cut_before
//! [`VecEnv::faults`]: rl_envs::VecEnv::faults

pub(crate) mod anomaly;
pub(crate) mod device;
pub(crate) mod lockstep;
mod memory;
pub(crate) mod play;
pub(crate) mod slice;

pub use lockstep::{Collector, CollectorState};
pub use slice::Episode;

#[cfg(doc)]
use crate::settings::OnNonfinite;
