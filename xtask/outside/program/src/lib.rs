//! A custom environment, network and algorithm.

pub mod net;
pub mod reinforce;
pub mod walk;
