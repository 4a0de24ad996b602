//! Environments that are not of rl-envs, and wrapped ones.

mod crawl;
#[cfg(target_os = "linux")]
mod observations;
mod offline;
mod slow_cartpole;
#[cfg(target_os = "linux")]
mod worker;
mod wrapped;
