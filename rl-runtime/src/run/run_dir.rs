//! Directory of a run: its configuration, its machine, metrics and checkpoints.

use std::fs::{self, DirEntry, File, TryLockError};
use std::io;
use std::path::{self, Path, PathBuf};

use serde::Serialize;

use crate::file::{MAX_FILE, is_draft_of, own, own_dir, read_own, refused, write_own};
use crate::print::quoted;
use crate::report::resources::cpu;
use crate::{Config, Error, run::checkpoint};

/// A run directory, locked until it is dropped.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    /// Directories created for the run, innermost first.
    created: Vec<PathBuf>,
    /// Lock of the directory.
    _lock: File,
}

/// Names in a run directory that are reserved for the run.
const OWN: [&str; 8] = ["config.toml", "machine.toml", "metrics.csv", "envs.csv", "tb", "lock", "checkpoints", "diverged"];

/// Machine of a run.
#[derive(Serialize)]
struct Machine {
    program: &'static str,
    os: &'static str,
    arch: &'static str,
    cpu: String,
    cores: usize,
    threads: usize,
    device: String,
}

/// Locks a directory until the file is dropped.
///
/// # Errors
/// [`Error::RunDir`] if another process has locked it.
pub(crate) fn lock(dir: &Path) -> Result<File, Error> {
    let file = dir.join("lock");
    let lock = own(&file, |options| options.create(true).truncate(false).write(true));
    let lock = lock.map_err(refused(&file, "; remove it"))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(Error::RunDir { path: dir.into(), why: "is in use by another process".into() }),
        Err(TryLockError::Error(error)) => Err(Error::io(file)(error)),
    }
}

/// True if a process trains in the directory of a run.
#[cfg(feature = "cli")]
pub(crate) fn is_in_use(dir: &Path) -> bool {
    let file = dir.join("lock");
    own(&file, |options| options.read(true)).is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

impl RunDir {
    /// Creates the directory of a new run: `path` or the first free `runs/NAME-NUMBER`.
    ///
    /// On an error, nothing of it is left.
    ///
    /// # Errors
    /// [`Error::RunDir`] if it is not empty or in use, [`Error::Io`] if it cannot be written.
    pub fn create(path: Option<&Path>, config: &Config, device: &str) -> Result<Self, Error> {
        Self::create_from(path, config, device, |_| Ok(()))
    }

    /// Creates the directory of a new run with the content written by `begin`.
    ///
    /// The configuration, which makes it a run, is written last.
    ///
    /// # Errors
    /// Errors of [`RunDir::create`] and of `begin`.
    pub(crate) fn create_from(
        path: Option<&Path>,
        config: &Config,
        device: &str,
        begin: impl FnOnce(&Self) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let dir = match path {
            Some(path) => Self::at(path)?,
            None => {
                let env = in_a_path(&config.env.name);
                Self::first_free(&format!("{env}-{}-seed{}", config.algo.name(), config.run.seed))?
            }
        };
        let machine = Machine {
            program: concat!("rl ", env!("CARGO_PKG_VERSION")),
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
            cpu: cpu(),
            cores: crate::thread::cores(),
            threads: config.run.threads,
            device: device.into(),
        };
        let machine = toml::to_string(&machine).unwrap_or_default();
        let checkpoints = || fs::create_dir_all(dir.checkpoints()).map_err(Error::io(dir.checkpoints()));
        // The configuration makes the directory a run's.
        let written = begin(&dir)
            .and_then(|()| dir.write("config.toml", &config.to_toml()))
            .and_then(|()| checkpoints())
            .and_then(|()| dir.write("machine.toml", &machine));
        match written {
            Ok(()) => Ok(dir),
            Err(error) => {
                dir.discard();
                Err(error)
            }
        }
    }

    /// Removes a directory just created by this process, with newly created parents.
    pub fn discard(self) {
        self.undo()();
    }

    /// Returns a closure that removes a directory just created, with new parents.
    pub(crate) fn undo(&self) -> impl FnOnce() + Send + use<> {
        let (path, created, dirs) = (self.path.clone(), self.created.clone(), [self.checkpoints(), self.events()]);
        move || {
            // The directory was empty, so all of this belongs to the run. If a removal fails, the user sees the rest.
            for name in ["config.toml", "machine.toml", "metrics.csv", "envs.csv", "lock"] {
                let _ = fs::remove_file(path.join(name));
            }
            for dir in dirs {
                let _ = fs::remove_dir_all(dir);
            }
            remove_dirs(&created);
        }
    }

    /// Opens the directory of a stopped run and returns its configuration.
    ///
    /// # Errors
    /// [`Error::RunDir`] if it is not a run or is in use, [`Error::Config`] if its configuration is damaged.
    pub fn open(path: &Path) -> Result<(Self, Config), Error> {
        if checkpoint::is_one(path) {
            let why = "is a checkpoint, not the directory of a run".into();
            return Err(Error::RunDir { path: path.into(), why });
        }
        let file = path.join("config.toml");
        let text = read_own(&file, MAX_FILE).map_err(|e| {
            let why = format!("is not the directory of a run ({e}); begin a run with --run-dir {}", quoted(path));
            Error::RunDir { path: path.into(), why }
        })?;
        let config = Config::from_toml(&text, &file.display().to_string())?;
        let dir = Self::lock(path)?;
        let checkpoints = dir.checkpoints();
        own_dir(&checkpoints).map_err(refused(&checkpoints, "; put the directory itself in its place"))?;
        clean(path);
        Ok((dir, config))
    }

    fn at(path: &Path) -> Result<Self, Error> {
        let created = create_dirs(path)?;
        let locked = check_empty(path).and_then(|()| Self::lock(path)).and_then(|dir| {
            clean(path);
            // Another process may have started and finished a run in between.
            check_empty(path)?;
            Ok(dir)
        });
        match locked {
            Ok(dir) => Ok(Self { created, ..dir }),
            Err(error) => {
                remove_dirs(&created);
                Err(error)
            }
        }
    }

    /// Replaces the run's configuration.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be written; the old one is still in place then.
    pub fn replace_config(&self, config: &Config) -> Result<(), Error> {
        let (path, text) = (self.path.join("config.toml"), config.to_toml());
        if read_own(&path, MAX_FILE).is_ok_and(|old| old == text) { Ok(()) } else { self.write("config.toml", &text) }
    }

    fn first_free(name: &str) -> Result<Self, Error> {
        let parent = Path::new("runs");
        let parents = create_dirs(parent)?;
        for number in 1.. {
            let path = parent.join(format!("{name}-{number}"));
            match fs::create_dir(&path) {
                Ok(()) => {
                    let created: Vec<PathBuf> = [path.clone()].into_iter().chain(parents).collect();
                    return match Self::lock(&path) {
                        Ok(dir) => Ok(Self { created, ..dir }),
                        Err(error) => {
                            remove_dirs(&created);
                            Err(error)
                        }
                    };
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    remove_dirs(&parents);
                    return Err(Error::io(path)(error));
                }
            }
        }
        unreachable!("one of all numbers is free")
    }

    fn lock(path: &Path) -> Result<Self, Error> {
        Ok(Self { path: path.into(), created: Vec::new(), _lock: lock(path)? })
    }

    /// Rejects a file to be written if its name is reserved for the run.
    ///
    /// # Errors
    /// [`Error::Config`] if the name is reserved.
    pub fn check_foreign(&self, file: &Path) -> Result<(), Error> {
        let own = |dir: io::Result<PathBuf>| {
            let (Ok(dir), Ok(file)) = (dir, path::absolute(file)) else { return false };
            let name = file.strip_prefix(dir).ok().and_then(|within| within.components().next());
            name.is_some_and(|name| OWN.iter().any(|own| name.as_os_str() == *own))
        };
        if own(path::absolute(&self.path)) || own(fs::canonicalize(&self.path)) {
            return Err(Error::config(format!("{} belongs to the run; name another file", file.display())));
        }
        Ok(())
    }

    /// Path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the checkpoints.
    #[must_use]
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// Path of the metrics.
    #[must_use]
    pub fn metrics(&self) -> PathBuf {
        self.path.join("metrics.csv")
    }

    /// Path of the latencies of each environment that blocks.
    pub(crate) fn envs(&self) -> PathBuf {
        self.path.join("envs.csv")
    }

    /// Path of the TensorBoard event files.
    pub(crate) fn events(&self) -> PathBuf {
        self.path.join("tb")
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        write_own(&self.path.join(name), text.as_bytes())
    }
}

/// Replaces characters that not every path can hold: `gym:CartPole-v1`.
fn in_a_path(name: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name: String = name.chars().map(|c| if allowed(c) { c } else { '-' }).take(100).collect();
    name.trim_start_matches('.').into()
}

/// Creates `path` and its parents; returns the created ones, innermost first.
fn create_dirs(path: &Path) -> Result<Vec<PathBuf>, Error> {
    let missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.exists();
    let missing: Vec<PathBuf> = path.ancestors().take_while(missing).map(PathBuf::from).collect();
    let mut created = Vec::new();
    for dir in missing.into_iter().rev() {
        match fs::create_dir(&dir) {
            Ok(()) => created.insert(0, dir),
            // Created by another process.
            Err(_) if dir.is_dir() => {}
            Err(error) => {
                remove_dirs(&created);
                return Err(Error::io(path)(error));
            }
        }
    }
    Ok(created)
}

/// Removes empty directories.
fn remove_dirs(dirs: &[PathBuf]) {
    for dir in dirs {
        let _ = fs::remove_dir(dir);
    }
}

/// True for a draft left by a killed process.
fn is_remnant(entry: &DirEntry) -> bool {
    entry.file_name().to_str().is_some_and(|name| OWN.iter().any(|own| is_draft_of(name, own)))
}

/// Checks that a directory is empty, apart from remnants of killed processes.
fn check_empty(path: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(path).map_err(Error::io(path))? {
        let entry = entry.map_err(Error::io(path))?;
        let lock = entry.file_name() == "lock" && entry.metadata().is_ok_and(|found| found.is_file() && found.len() == 0);
        if !lock && !is_remnant(&entry) {
            let resume = format!("continue that run with --resume {}, or choose", quoted(path));
            let choose = if path.join("config.toml").exists() { &resume } else { "choose" };
            return Err(Error::RunDir { path: path.into(), why: format!("is not empty; {choose} another --run-dir") });
        }
    }
    Ok(())
}

/// Removes drafts of killed processes; the caller holds the lock.
fn clean(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten().filter(is_remnant) {
        let _ = fs::remove_file(entry.path());
    }
}
