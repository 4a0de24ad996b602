//! The algorithms, one file each.

pub mod a2c;
pub mod dqn;
pub mod ppo;
pub mod sac;
pub mod td3;

pub(crate) mod actor_and_critics;
pub(crate) mod critics;
pub(crate) mod method;
pub(crate) mod on_policy;
pub(crate) mod replayed;
