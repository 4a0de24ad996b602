//! Batches of environments, stepped together.

pub mod isa;
pub mod lanes;
pub mod pool;
pub(crate) mod random_actions;
pub(crate) mod vec_env;
pub mod wrappers;
