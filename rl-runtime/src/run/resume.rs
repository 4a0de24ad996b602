//! Resuming: the run and the checkpoint selected by `rl train --resume PATH`.
//!
//! | `PATH` | continues |
//! |---|---|
//! | a run | its newest checkpoint, in its directory |
//! | the newest checkpoint of a run | the same |
//! | any other checkpoint | a new run, which begins with a copy of that checkpoint; the original run does not change |
//!
//! Nothing is ever written into a checkpoint. A run without checkpoints starts from the beginning, unless its metrics show that
//! checkpoints have been lost.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rl_envs::catalog::Entry;

use crate::Mode;
use crate::config::budget::Budget;
use crate::file::{copy_own, refused};
use crate::print::grouped;
use crate::report::profile::Profile;
use crate::run::checkpoint::{self, Checkpoint};
use crate::run::run_dir::RunDir;
use crate::run::train::{Peers, Training};
use crate::{Config, Error, report::metrics, report::tensorboard};

/// A run or a checkpoint to continue.
#[derive(Debug)]
pub struct Source {
    saved: Config,
    /// The locked run to continue; `None` to create a new one.
    run: Option<RunDir>,
    /// `None` before the run's first checkpoint.
    checkpoint: Option<PathBuf>,
}

/// A run that is ready to continue.
pub struct Resumed {
    /// Directory of the run.
    pub dir: RunDir,
    /// State of the run.
    pub training: Training,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl Source {
    /// Finds the run or checkpoint at `path`; `new_run` requests a new run.
    ///
    /// # Errors
    /// [`Error::RunDir`] if it is neither a run nor a checkpoint, or in use; [`Error::Checkpoint`] if checkpoints have been lost
    /// or are another run's; [`Error::Config`] if `new_run` does not fit.
    pub fn open(path: &Path, new_run: bool) -> Result<Self, Error> {
        if !checkpoint::is_one(path) {
            if new_run {
                let why = "--run-dir: a resumed run stays in its directory; leave it out, or resume from one of its checkpoints";
                return Err(Error::config(why));
            }
            let (dir, saved) = RunDir::open(path)?;
            let newest = checkpoint::list(&dir.checkpoints())?.pop();
            match &newest {
                Some(checkpoint) => refuse_others(checkpoint, &saved)?,
                None => refuse_lost(&dir, &saved)?,
            }
            return Ok(Self { saved, run: Some(dir), checkpoint: newest });
        }
        if let Some(run) = run_of(path).filter(|run| !new_run && is_newest(path, run)) {
            let (dir, saved) = RunDir::open(&run)?;
            if is_newest(path, &run) {
                refuse_others(path, &saved)?;
                return Ok(Self { saved, run: Some(dir), checkpoint: Some(path.into()) });
            }
        }
        Ok(Self { saved: checkpoint::config(path, false)?, run: None, checkpoint: Some(path.into()) })
    }

    /// Settings to continue with, apart from newly given ones.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.saved
    }

    /// Environment steps of the checkpoint; `None` before the run's first.
    #[must_use]
    pub fn env_steps(&self) -> Option<u64> {
        checkpoint::env_steps(self.checkpoint.as_ref()?.file_name()?.to_str()?)
    }

    /// True if the run continues in a new directory.
    #[must_use]
    pub fn forks(&self) -> bool {
        self.run.is_none()
    }

    /// Loads the checkpoint into a new training in `entry`'s environment.
    ///
    /// The settings are those of `config`. For a new run, it also creates the directory: `run_dir`, or else the first free
    /// `runs/NAME-NUMBER`. Rank 0 of `ranks` calls it, if there are any. An existing run keeps its `config.toml` until
    /// [`RunDir::replace_config`].
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if it is damaged; errors of [`RunDir::create`] and
    /// [`TrainingBuilder::build`](crate::TrainingBuilder::build).
    pub fn begin(
        self,
        config: &Config,
        entry: &Entry,
        run_dir: Option<&Path>,
        device: &str,
        profile: Profile,
        ranks: Option<&Arc<dyn Peers>>,
    ) -> Result<Resumed, Error> {
        let Self { run, checkpoint, .. } = self;
        let Some(path) = checkpoint else {
            let training = Training::builder(config, entry).profile(profile).peers(ranks).build()?;
            let dir = run.ok_or_else(|| Error::config("a run or a checkpoint is needed"))?;
            let notes = vec!["the run was stopped before its first checkpoint: it starts from the beginning".into()];
            return Ok(Resumed { dir, training, notes });
        };
        Budget::playing(config, entry, 0, 1).check()?;
        let mut training = Training::builder(config, entry).profile(profile).peers(ranks).unset().build()?;
        let checkpoint = Checkpoint::load(&path, training.agent().layout())?;
        let env_steps = checkpoint.progress.env_steps;
        let mut notes = vec![format!("resumed from {} env steps", grouped(env_steps))];
        if checkpoint.arithmetic != rl_agents::ARITHMETIC {
            notes.push(
                "this checkpoint is from a version that rounds differently: the run will differ from an uninterrupted one".into(),
            );
        }
        if !checkpoint.collector.has_envs() && config.run.offline.is_empty() {
            notes.push("this checkpoint has no environments, so new episodes begin".into());
        }
        if let Some(replay) = config.traits().replay.filter(|_| checkpoint.replay.is_none()) {
            notes.push(format!(
                "the replay memory was not saved ({}.save_replay is {}): it is empty, and learning continues after {} more \
                 env steps",
                config.algo.name(),
                replay.is_saved,
                grouped(replay.learning_starts)
            ));
        }
        if config.run.steps != checkpoint.config.run.steps && has_schedules(config) {
            notes.push(format!(
                "steps was {}: learning rates and exploration that fall with progress jump to their values at {} of {} env steps",
                grouped(checkpoint.config.run.steps),
                grouped(env_steps),
                grouped(config.run.steps)
            ));
        }
        training.load(checkpoint).map_err(|error| match error.exit_code() {
            3 => Error::Checkpoint { path: path.clone(), why: error.to_string() },
            _ => error,
        })?;
        let dir = match run {
            Some(dir) => dir,
            None => {
                let dir = RunDir::create_from(run_dir, config, device, |dir| {
                    checkpoint::copy(&path, &dir.checkpoints(), env_steps)?;
                    let Some(run) = run_of(&path) else { return Ok(()) };
                    checkpoint::copy_best(&run.join("checkpoints"), &dir.checkpoints(), env_steps)?;
                    for (name, to) in [("metrics.csv", dir.metrics()), ("envs.csv", dir.envs())] {
                        let from = run.join(name);
                        if from.symlink_metadata().is_ok() {
                            copy_own(&from, &to).map_err(refused(&from, "; remove it"))?;
                        }
                    }
                    tensorboard::copy(&run.join("tb"), &dir.events())
                })?;
                let from = path.display();
                notes.push(format!("{from} does not change: the run continues in the new directory {}", dir.path().display()));
                dir
            }
        };
        Ok(Resumed { dir, training, notes })
    }
}

/// Returns the run whose checkpoint is at `path`.
fn run_of(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let checkpoints = path.parent().filter(|parent| parent.ends_with("checkpoints"))?;
    checkpoints.parent().filter(|run| run.join("config.toml").is_file()).map(PathBuf::from)
}

fn is_newest(path: &Path, run: &Path) -> bool {
    let newest = checkpoint::list(&run.join("checkpoints")).ok().and_then(|mut all| all.pop());
    newest.is_some_and(|newest| std::path::absolute(path).is_ok_and(|path| path.file_name() == newest.file_name()))
}

/// Rejects a checkpoint of another run, before anything of either is started.
fn refuse_others(checkpoint: &Path, saved: &Config) -> Result<(), Error> {
    let differences = checkpoint::config(checkpoint, false)?.differences_from_run(saved);
    if differences.is_empty() {
        return Ok(());
    }
    Err(Error::Checkpoint { path: checkpoint.into(), why: format!("it belongs to another run:{differences}") })
}

/// Rejects a fresh start of a run whose checkpoints must have been lost.
///
/// `checkpoints/` is created together with the run, so if it is missing although metrics were written, it has been moved away or
/// is on an unmounted disk. If it is empty, the metrics tell: the first checkpoint is due at `checkpoint_every` env steps, or
/// after the first iteration if that is 0, and with lag some rollouts later.
fn refuse_lost(dir: &RunDir, config: &Config) -> Result<(), Error> {
    let Some(env_steps) = metrics::last_env_steps(&dir.metrics()) else { return Ok(()) };
    let late = match config.mode() {
        Mode::Sync => 1,
        Mode::Overlapped { max_lag } => max_lag + 2,
    };
    let slack = (config.n_steps() * config.run.n_envs * late) as u64;
    if dir.checkpoints().is_dir() && env_steps <= config.run.checkpoint_every.saturating_add(slack) {
        return Ok(());
    }
    let metrics = dir.metrics();
    let why = format!(
        "there is no checkpoint, but {} shows {} env steps; put the checkpoints back (is a disk not mounted?), or remove that file, as \
         where none could be saved, to start from the beginning",
        metrics.display(),
        grouped(env_steps)
    );
    Err(Error::Checkpoint { path: dir.checkpoints(), why })
}

/// True if some settings depend on the progress of training.
fn has_schedules(config: &Config) -> bool {
    // Exploration and the weights of priorities do.
    config.traits().replay.is_some() || config.to_toml().contains("\"lin_")
}
