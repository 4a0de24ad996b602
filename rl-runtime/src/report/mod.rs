//! Measurements of a run: metrics, times, memory, and advice from them.

#[cfg(feature = "cli")]
pub(crate) mod advice;
pub mod metrics;
pub mod profile;
pub(crate) mod resources;
pub(crate) mod tensorboard;
