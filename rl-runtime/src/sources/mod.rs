//! Environments outside of rl-envs: in processes, recorded, on websites.

pub(crate) mod catalog;
#[cfg(feature = "crawl")]
pub mod crawl;
pub(crate) mod env_settings;
pub(crate) mod latency;
#[cfg(feature = "cli")]
pub(crate) mod recorder;
pub(crate) mod recording;
pub mod site;
pub(crate) mod slow_cartpole;
#[cfg(unix)]
pub mod worker;
