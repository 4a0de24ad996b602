//! Directories of checkpoints.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::file::{own_dir, refused};
use crate::run::checkpoint::contents::MANIFEST;

/// Directory of the best checkpoint, among the others.
pub(super) const BEST: &str = "best";

/// Path of the checkpoint after `env_steps` environment steps.
pub(super) fn path(dir: &Path, env_steps: u64) -> PathBuf {
    dir.join(format!("ckpt-{env_steps:012}"))
}

/// Parses the environment steps of a checkpoint's name, as made by [`path`].
pub(crate) fn env_steps(name: &str) -> Option<u64> {
    let env_steps = name.strip_prefix("ckpt-")?.parse().ok()?;
    (name == format!("ckpt-{env_steps:012}")).then_some(env_steps)
}

/// Returns the checkpoints in `dir`, oldest first; none if it does not exist.
///
/// Ignores entries with other names.
///
/// # Errors
/// [`Error::Io`] if the directory cannot be read.
pub fn list(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io(dir)(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::io(dir))?;
        let Some(steps) = entry.file_name().to_str().and_then(env_steps) else { continue };
        let kind = entry.file_type().map_err(Error::io(dir))?;
        if kind.is_symlink() {
            let why =
                "is a symbolic link, which is not followed here; put the checkpoint itself in its place, or name where it leads";
            return Err(Error::Checkpoint { path: entry.path(), why: why.into() });
        }
        found.extend(kind.is_dir().then_some(steps));
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|steps| path(dir, steps)).collect())
}

/// Returns the checkpoints in one of the program's own directories.
pub(super) fn list_own(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    own_dir(dir).map_err(refused(dir, "; put the directory itself in its place"))?;
    list(dir)
}

/// True if `path` is a checkpoint, complete or damaged.
#[must_use]
pub(crate) fn is_one(path: &Path) -> bool {
    path.join(MANIFEST).symlink_metadata().is_ok()
}

/// Removes half-written checkpoints of a crash from `dir`; returns the failures.
pub fn clean(dir: &Path) -> Vec<Error> {
    let mut stuck = Vec::new();
    for dir in [dir, &dir.join(BEST)] {
        if !own_dir(dir).unwrap_or(false) {
            continue;
        }
        let Ok(entries) = fs::read_dir(dir) else { continue };
        for entry in entries.flatten() {
            let ours = entry.file_name().to_str().and_then(|name| name.strip_suffix(".tmp")).and_then(env_steps).is_some();
            if ours && entry.path().is_dir() {
                stuck.extend(fs::remove_dir_all(entry.path()).map_err(Error::io(entry.path())).err());
            }
        }
    }
    stuck
}
