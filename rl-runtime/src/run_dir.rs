//! The directory of a run: its configuration, what it ran on, metrics and checkpoints.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::{Config, Error};

/// A run directory that is ours alone until it is dropped.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
}

/// What a run ran on.
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

impl RunDir {
    /// Makes the directory of a new run: at `path`, or else the first free `runs/NAME-NUMBER`.
    ///
    /// # Errors
    /// [`Error::RunDir`] if it is not empty or in use, [`Error::Io`] if it cannot be made.
    pub fn create(path: Option<&Path>, config: &Config, device: &str) -> Result<Self, Error> {
        let dir = match path {
            Some(path) => {
                fs::create_dir_all(path).map_err(Error::io(path))?;
                if fs::read_dir(path).map_err(Error::io(path))?.next().is_some() {
                    let why =
                        format!("is not empty; continue that run with --resume {}, or choose another --run-dir", path.display());
                    return Err(Error::RunDir { path: path.into(), why });
                }
                Self::lock(path)?
            }
            None => Self::first_free(&format!("{}-{}-seed{}", config.env, config.algo.name(), config.seed))?,
        };
        dir.write("config.toml", &config.to_toml())?;
        let machine = Machine {
            program: concat!("rl ", env!("CARGO_PKG_VERSION")),
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
            cpu: cpu(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            threads: config.threads,
            device: device.into(),
        };
        dir.write("machine.toml", &toml::to_string(&machine).unwrap_or_default())?;
        Ok(dir)
    }

    /// Opens the directory of a run that has been stopped, and returns its configuration.
    ///
    /// # Errors
    /// [`Error::RunDir`] if it is none or in use, [`Error::Config`] if its configuration is damaged.
    pub fn open(path: &Path) -> Result<(Self, Config), Error> {
        let file = path.join("config.toml");
        let text = fs::read_to_string(&file).map_err(|e| {
            let why = format!("is not the directory of a run: its config.toml cannot be read ({e})");
            Error::RunDir { path: path.into(), why }
        })?;
        let config = Config::from_toml(&text).map_err(|e| Error::config(format!("{}: {e}", file.display())))?;
        Ok((Self::lock(path)?, config))
    }

    fn first_free(name: &str) -> Result<Self, Error> {
        let parent = Path::new("runs");
        fs::create_dir_all(parent).map_err(Error::io(parent))?;
        for number in 1.. {
            let path = parent.join(format!("{name}-{number}"));
            match fs::create_dir(&path) {
                Ok(()) => return Self::lock(&path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io(path)(error)),
            }
        }
        unreachable!("one of all numbers is free")
    }

    fn lock(path: &Path) -> Result<Self, Error> {
        let file = path.join("lock");
        let lock = File::options().create(true).truncate(false).write(true).open(&file).map_err(Error::io(&file))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.into(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(Error::RunDir { path: path.into(), why: "is in use by another process".into() }),
            Err(TryLockError::Error(error)) => Err(Error::io(file)(error)),
        }
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where its checkpoints lie.
    #[must_use]
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// Where its metrics lie.
    #[must_use]
    pub fn metrics(&self) -> PathBuf {
        self.path.join("metrics.csv")
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        write_whole(&self.path.join(name), text.as_bytes())
    }
}

/// Writes a file so that it is there whole or not at all.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let temporary = path.with_extension("part");
    fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, path)).map_err(Error::io(path))
}

/// The processor's name, where the system tells it.
pub(crate) fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    line.map_or_else(|| "unknown".into(), |(_, name)| name.trim().into())
}
