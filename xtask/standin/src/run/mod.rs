//! Kernels run by an interpreter: memory, its checks, counts.

pub mod counts;
pub(crate) mod exec;
pub(crate) mod machine;
pub(crate) mod memory;
pub(crate) mod mutants;
pub(crate) mod shared;
