//! Work done by this process so far.
//!
//! A program shows it as progress within a rollout or an update.

use std::sync::atomic::AtomicU64;

/// Environment steps of all collectors.
pub static ENV_STEPS: AtomicU64 = AtomicU64::new(0);
/// Steps of all optimizers on the CPU.
pub static OPTIMIZER_STEPS: AtomicU64 = AtomicU64::new(0);
