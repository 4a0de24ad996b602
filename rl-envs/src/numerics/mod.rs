//! Random numbers, mathematics and bytes, the same on every machine.

pub mod codec;
pub mod math;
pub(crate) mod permutation;
pub mod rng;
