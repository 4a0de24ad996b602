//! The contract of settings from which an environment is made.

use rl_envs::catalog::Entry;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Settings from which an environment is made.
///
/// Implemented by the settings of `slow_cartpole` and of `crawl`.
pub(crate) trait EnvSettings: Default + Serialize + DeserializeOwned {
    /// Name of the environment.
    const NAME: &'static str;

    /// Creates the entry of the environment.
    fn entry(&self) -> Entry;
}
