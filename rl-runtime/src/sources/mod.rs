//! Environments outside of rl-envs: in processes, recorded, on websites.

use rl_envs::catalog::{ENVS, Entry, find_among};
use toml::Table;

use crate::print::did_you_mean;
use crate::{Error, config::EnvConfig};

pub(crate) mod catalog;
#[cfg(feature = "crawl")]
pub mod crawl;
pub(crate) mod env_settings;
#[cfg(feature = "crawl")]
mod html;
pub(crate) mod latency;
#[cfg(feature = "cli")]
pub(crate) mod recorder;
pub(crate) mod recording;
pub mod site;
pub(crate) mod slow_cartpole;
#[cfg(unix)]
pub mod worker;

/// Opens the environment of this name.
///
/// It runs in worker processes, or is of this crate, of rl-envs or among `own`.
///
/// Arguments and directory of an environment in worker processes are those of `env`; `options` has the rest.
///
/// # Errors
/// [`Error::Config`] if there is none of that name, or its settings are not allowed; the errors of [`worker::gym`] and
/// [`worker::exec`].
#[cfg(unix)]
pub fn open_env(env: &EnvConfig, own: &[Entry], options: &worker::WorkerOptions) -> Result<Entry, Error> {
    let EnvConfig { name, kwargs, path, settings, wrappers, .. } = env;
    if let Some(entry) = catalog::open(name, settings) {
        return entry.map_err(|error| Error::config(error.to_string()));
    }
    if cfg!(not(feature = "crawl")) && name == "crawl" {
        let build = "cargo run --release -p rl-runtime --features crawl -- train crawl";
        return Err(Error::config(format!("this rl was built without the feature crawl, an HTTP client; build it: {build}")));
    }
    let mut options =
        worker::WorkerOptions { kwargs: kwargs.clone(), path: path.clone(), wrappers: *wrappers, ..options.clone() };
    if let Some(id) = name.strip_prefix(worker::GYM) {
        let settings = catalog::complete(name, settings.clone()).and_then(Table::try_into);
        options.settings = settings.map_err(|error| Error::config(error.to_string()))?;
        return worker::gym(id, &options);
    }
    if let Some(command) = name.strip_prefix(worker::EXEC) {
        return worker::exec(command, &options);
    }
    let all: Vec<Entry> = ENVS.iter().copied().chain(catalog::entries()).chain(own.iter().copied()).collect();
    let found = find_among(&all, name).copied();
    found.map_err(|error| Error::config(format!("{error}{}", did_you_mean(name, all.iter().map(|entry| entry.name)))))
}
