//! Batches of environments, stepped together.

pub(crate) mod frames;
pub(crate) mod hidden;
pub mod isa;
pub mod lanes;
pub(crate) mod outside;
pub mod pool;
pub(crate) mod pooled;
pub(crate) mod random_actions;
pub(crate) mod rewards;
pub(crate) mod stacked;
pub(crate) mod vec_env;
pub mod wrappers;
