//! Environments of the program, and the one door to those that execute code.

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rl_envs::catalog::{ENVS, Entry};

use crate::Error;
use crate::cli::args::set_matrix_threads;
use crate::cli::trust::{Choice, Trust};
use crate::config::{Config, EnvConfig, Layers};
use crate::print;
use crate::run::assemble::limit_faults;
use crate::run::checkpoint::{self, SavedPolicy};
use crate::sources::worker::WorkerOptions;
use crate::sources::{catalog, open_env};

/// Environments of the program: built-in, the user's, in worker processes.
pub(crate) struct Envs {
    /// All environments that have a name in this program.
    pub(crate) all: Vec<Entry>,
    own: Vec<Entry>,
    /// Program and first arguments of a process like this one.
    pub(crate) command: Vec<OsString>,
    pub(crate) python: Option<PathBuf>,
    pub(crate) trust: Trust,
    /// Longest start of a worker process.
    start_timeout: Cell<Option<Duration>>,
    /// Environments in worker processes that were found.
    opened: RefCell<Vec<Entry>>,
}

impl Envs {
    /// Adds `own` to the built-in environments.
    ///
    /// Rejects a name that is taken or cannot be part of a path.
    pub(crate) fn new(own: &[Entry], command: Vec<OsString>, python: Option<PathBuf>, trust: Trust) -> Result<Self, Error> {
        let mut all: Vec<Entry> = ENVS.iter().copied().chain(catalog::entries()).collect();
        let built_in = all.len();
        for entry in own {
            let name = entry.name;
            if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                return Err(Error::config(format!("the environment \"{name}\" needs a name of letters, digits and _")));
            }
            if let Some(i) = all.iter().position(|other| other.name == name) {
                let kind = if i < built_in { "a built-in environment" } else { "another environment" };
                return Err(Error::config(format!("{kind} is called \"{name}\", too; give yours another name")));
            }
            all.push(*entry);
        }
        Ok(Self { all, own: own.into(), command, python, trust, start_timeout: Cell::default(), opened: RefCell::default() })
    }

    /// Limits the start of workers opened from now on, in seconds.
    pub(crate) fn start_within(&self, timeout_s: Option<f64>) {
        self.start_timeout.set(timeout_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()));
    }

    /// Returns the environment that the command line calls `name`.
    pub(crate) fn find(&self, name: &str) -> Result<Entry, Error> {
        self.open(&EnvConfig::new(name), Choice::Given, false, 0)
    }

    /// Returns the environment of settings, if they choose one; see [`Envs::open`].
    pub(crate) fn open_chosen(&self, layers: &Layers, ahead: usize) -> Result<Option<Entry>, Error> {
        let choice = layers.env_in_file().map_or(Choice::Given, Choice::Found);
        layers.env()?.map(|env| self.open(&env, choice, false, ahead)).transpose()
    }

    /// Returns the environment of a saved run in `path`; see [`Envs::open`].
    pub(crate) fn open_saved(&self, env: &EnvConfig, path: &Path, render: bool, ahead: usize) -> Result<Entry, Error> {
        self.open(env, Choice::Found(&path.display().to_string()), render, ahead)
    }

    /// Returns an environment with its settings.
    ///
    /// The one door to environments that execute code: it asks for what `choice` has found. `render` and `ahead` are for worker
    /// processes.
    pub(crate) fn open(&self, env: &EnvConfig, choice: Choice<'_>, render: bool, ahead: usize) -> Result<Entry, Error> {
        self.trust.check(std::slice::from_ref(env), choice)?;
        self.start(env, render, ahead).map_err(|error| match (error, choice) {
            (Error::Config { problems }, Choice::Found(place)) => Error::config(format!("{place}: {}", problems.join("\n"))),
            (failed, _) => failed,
        })
    }

    /// Starts an environment that [`Envs::open`] has accepted.
    fn start(&self, env: &EnvConfig, render: bool, ahead: usize) -> Result<Entry, Error> {
        let options = WorkerOptions {
            render,
            python: self.python.clone(),
            ahead,
            start_timeout: self.start_timeout.get(),
            ..WorkerOptions::default()
        };
        let entry = open_env(env, &self.own, &options)?;
        if entry.batches().is_some() {
            self.opened.borrow_mut().push(entry);
        }
        Ok(entry)
    }
}

impl Drop for Envs {
    /// Ends the worker processes, whose environments are closed.
    fn drop(&mut self) {
        self.opened.borrow().iter().filter_map(Entry::batches).for_each(|batches| batches.close());
    }
}

/// Loads the policy of the checkpoint selected by a path.
pub(crate) fn saved_policy(path: &Path, best: bool, threads: usize, envs: &Envs, render: bool) -> Result<SavedPolicy, Error> {
    set_matrix_threads(threads);
    let Config { env, run, .. } = checkpoint::config(path, best)?;
    envs.start_within(Some(run.start_timeout_s));
    let entry = envs.open_saved(&env, path, render, 0)?;
    let saved = checkpoint::policy(path, best, &entry)?;
    limit_faults(&saved.config, &entry);
    if saved.lacks_replay {
        print::err(&format!("note: {} lacks its replay memory: training cannot continue from it", saved.path.display()));
    }
    Ok(saved)
}

#[cfg(test)]
mod tests {
    use rl_envs::cartpole::CartPole;

    use super::*;

    #[test]
    fn an_own_environment_is_found_and_a_name_that_is_taken_or_no_name_is_refused() {
        let envs = |own: &[Entry]| Envs::new(own, Vec::new(), None, Trust::new(false, Vec::new()));
        let of = |name| Entry::of::<CartPole>(name, "mine");
        assert_eq!(envs(&[of("mine")]).unwrap().find("mine").unwrap().about, "mine");
        for (own, why) in [
            (vec![of("cartpole")], "a built-in environment is called \"cartpole\", too"),
            (vec![of("mine"), of("mine")], "another environment is called \"mine\", too"),
            (vec![of("a/b")], "the environment \"a/b\" needs a name of letters, digits and _"),
            (vec![of("")], "needs a name"),
        ] {
            let error = envs(&own).err().unwrap();
            assert!(error.to_string().contains(why) && error.exit_code() == 2, "{error}");
        }
    }
}
