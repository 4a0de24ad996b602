//! Checkpoints: directories that are complete or absent.
//!
//! `checkpoints/ckpt-000000051200/` holds `config.toml` (the run's configuration), `params.safetensors` (the parameters by name),
//! `optimizer.safetensors` (its moments, and a target network), `replay.bin` (the replay memory, if saved), `state.bin`
//! (counters, running statistics, environments, and, where rollouts lag, the policies that act in the next ones; see
//! [`rl_envs::codec`]) and `manifest.json` (size and BLAKE3 hash of each). Everything is written to a directory ending in `.tmp`,
//! every file and the directory are synced, and the directory is renamed: a crash at any moment leaves the last complete
//! checkpoint in place. Loading checks everything before it returns anything.
//!
//! `checkpoints/best/` holds one more checkpoint: the agent with the best evaluation so far, with its mean return in the
//! manifest. Its environments are not saved.
//!
//! `state.bin` ends with the version of the arithmetic ([`rl_agents::ARITHMETIC`]) that the run trained with. A checkpoint of
//! another version loads; a run that is resumed from it differs from an uninterrupted one in its bits.
//!
//! Files are streamed. The replay memory is never copied; reading allocates no more than the files hold.

mod contents;
#[cfg(feature = "cli")]
mod exported;
mod listing;
mod opened;
mod tensors;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use rl_agents::{Layout, Snapshot};

use crate::config::Drive;
use crate::file::{copy_own, own, own_dir, sync_dir};
pub use crate::run::checkpoint::contents::Checkpoint;
use crate::run::checkpoint::contents::{
    BUFFER, CONFIG, FORMAT, FileInfo, Hashed, MANIFEST, Manifest, OPTIMIZER, PARAMS, REPLAY, STATE, write_state,
};
#[cfg(feature = "cli")]
pub use crate::run::checkpoint::exported::{Export, ExportReport, export};
use crate::run::checkpoint::listing::{BEST, list_own, path};
pub use crate::run::checkpoint::listing::{clean, list};
pub(crate) use crate::run::checkpoint::listing::{env_steps, is_one};
use crate::run::checkpoint::opened::{Opened, read};
pub use crate::run::checkpoint::opened::{SavedPolicy, config, policy};
use crate::run::checkpoint::tensors::write_tensors;
use crate::{Config, Error};

/// Called after each step of a save; tests let it fail or panic.
pub type AfterStep<'a> = &'a mut dyn FnMut(&str) -> io::Result<()>;

/// Writer of the replay memory.
pub type WriteReplay<'a> = &'a dyn Fn(&mut dyn Write) -> Result<(), rl_agents::Error>;

/// Result of a save.
#[derive(Debug)]
pub struct Saved {
    /// Path of the checkpoint.
    pub path: PathBuf,
    /// Errors of old checkpoints that could not be removed.
    pub stuck: Vec<Error>,
}

/// Writes a checkpoint into `dir`, then removes all but the newest `keep`.
///
/// `layout` names the parameters; `replay` writes the replay memory, if it is saved. An existing checkpoint is left as it is.
/// `after_step` is called after every write, sync and rename.
///
/// # Errors
/// [`Error::Io`] if a file cannot be written, [`Error::Agent`] if the agent has numbers that are not finite; older checkpoints
/// are unharmed and nothing of the new one stays.
pub fn save(
    dir: &Path,
    checkpoint: &Checkpoint,
    layout: &Layout,
    replay: Option<WriteReplay<'_>>,
    keep: usize,
    after_step: AfterStep<'_>,
) -> Result<Saved, Error> {
    let target = path(dir, checkpoint.progress.env_steps);
    if target.exists() {
        return Ok(Saved { path: target, stuck: Vec::new() });
    }
    check(checkpoint)?;
    write(&target, checkpoint, layout, replay, None, after_step).map_err(Error::io(&target))?;
    Ok(Saved { path: target, stuck: prune(dir, keep, after_step)? })
}

/// Replaces the best checkpoint in `dir` by `checkpoint`, without a replay memory.
///
/// `return_mean` is the mean return of its evaluation. At any moment, the old or the new one is in place.
///
/// # Errors
/// Errors of [`save`]; the old one is unharmed.
pub fn save_best(
    dir: &Path,
    checkpoint: &Checkpoint,
    layout: &Layout,
    return_mean: f64,
    after_step: AfterStep<'_>,
) -> Result<Saved, Error> {
    let dir = &dir.join(BEST);
    let before = list(dir)?.pop().and_then(|path| path.file_name()?.to_str().and_then(env_steps));
    // The newest name counts, even in a run resumed from an older checkpoint.
    let target = path(dir, checkpoint.progress.env_steps.max(before.map_or(0, |steps| steps + 1)));
    check(checkpoint)?;
    write(&target, checkpoint, layout, None, Some(return_mean), after_step).map_err(Error::io(&target))?;
    Ok(Saved { path: target, stuck: prune(dir, 1, after_step)? })
}

/// Returns the mean return of the best checkpoint in `dir`, if there is one.
///
/// `config` is the run's.
///
/// # Errors
/// [`Error::Checkpoint`] if it is damaged or another run's, [`Error::Io`] if `dir` cannot be read.
pub fn best_return(dir: &Path, config: &Config) -> Result<Option<f64>, Error> {
    let Some(path) = list_own(&dir.join(BEST))?.pop() else { return Ok(None) };
    // It has no environments, whose order may have been measured again since.
    let mut run = config.clone();
    run.run.drive = Drive::Auto;
    read(&path, |opened| opened.check_run(&run).map(|()| opened.manifest.return_mean))
}

/// Copies the loaded checkpoint `from` into `dir`, named after its `env_steps`.
///
/// Uses hard links where possible: checkpoints never change.
///
/// # Errors
/// [`Error::Io`] if it cannot be copied, [`Error::Checkpoint`] if it is damaged.
pub fn copy(from: &Path, dir: &Path, env_steps: u64) -> Result<(), Error> {
    let opened = Opened::new(from).map_err(|why| Error::Checkpoint { path: from.into(), why })?;
    let target = path(dir, env_steps);
    let temporary = target.with_extension("tmp");
    let copy = || {
        fs::create_dir_all(&temporary)?;
        for name in opened.manifest.files.keys().map(String::as_str).chain([MANIFEST]) {
            let (from, to) = (from.join(name), temporary.join(name));
            own(&from, |options| options.read(true))?;
            if fs::hard_link(&from, &to).is_err() {
                copy_own(&from, &to)?;
            }
        }
        sync_dir(&temporary)?;
        fs::rename(&temporary, &target)?;
        sync_dir(dir)
    };
    let remove = |_: &io::Error| drop(fs::remove_dir_all(&temporary));
    copy().inspect_err(remove).map_err(Error::io(&target))
}

/// Copies the best checkpoint of `from` to `dir` if not newer than `env_steps`.
///
/// # Errors
/// Errors of [`copy`].
pub(crate) fn copy_best(from: &Path, dir: &Path, env_steps: u64) -> Result<(), Error> {
    let Some(best) = list_own(&from.join(BEST))?.pop() else { return Ok(()) };
    let head = Opened::new(&best).and_then(|opened| opened.head());
    match head.map_err(|why| Error::Checkpoint { path: best.clone(), why })?.progress.env_steps {
        steps if steps <= env_steps => copy(&best, &dir.join(BEST), steps),
        _ => Ok(()),
    }
}

type Contents<'a> = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + 'a>;

/// Rejects agents that could not be loaded.
fn check(Checkpoint { agent, ahead, .. }: &Checkpoint) -> Result<(), Error> {
    Ok([agent].into_iter().chain(ahead.iter().map(|(_, policy)| policy)).try_for_each(Snapshot::check)?)
}

/// Writes a checkpoint to `target`, completely or not at all.
fn write(
    target: &Path,
    checkpoint: &Checkpoint,
    layout: &Layout,
    replay: Option<WriteReplay<'_>>,
    return_mean: Option<f64>,
    after_step: AfterStep<'_>,
) -> io::Result<()> {
    let Checkpoint { config, progress, agent, .. } = checkpoint;
    progress.check().map_err(io::Error::other)?;
    let params = layout.tensors().iter().map(|t| (&*t.name, t.shape.clone(), &agent.params[t.range.clone()])).collect();
    let moments = agent.moments.iter().map(|(name, values)| (&**name, vec![values.len()], &values[..])).collect();
    let mut files: Vec<(&str, Contents<'_>)> = vec![
        (CONFIG, Box::new(|out| out.write_all(config.to_toml().as_bytes()))),
        (PARAMS, Box::new(|out| write_tensors(out, params))),
        (OPTIMIZER, Box::new(|out| write_tensors(out, moments))),
        (STATE, Box::new(|out| write_state(checkpoint, out).map_err(io::Error::other))),
    ];
    if let Some(replay) = replay {
        files.push((REPLAY, Box::new(|out| replay(out).map_err(io::Error::other))));
    }
    let temporary = target.with_extension("tmp");
    let written = write_files(&temporary, target, files, return_mean, after_step);
    if written.is_err() {
        let _ = fs::remove_dir_all(&temporary); // the disk may be full because of it
    }
    written
}

fn write_files(
    temporary: &Path,
    target: &Path,
    files: Vec<(&str, Contents<'_>)>,
    return_mean: Option<f64>,
    after_step: AfterStep<'_>,
) -> io::Result<()> {
    if temporary.exists() {
        fs::remove_dir_all(temporary)?;
    }
    target.parent().map_or(Ok(false), own_dir)?;
    fs::create_dir_all(temporary)?;
    after_step("create the directory")?;
    let mut write = |name: &str, contents: Contents<'_>| {
        let hashed = Hashed::new(File::create_new(temporary.join(name))?);
        let mut out = BufWriter::with_capacity(BUFFER, hashed);
        contents(&mut out)?;
        let Hashed { inner: file, hasher, bytes } = out.into_inner()?;
        after_step("write a file")?;
        file.sync_all()?;
        after_step("sync a file")?;
        io::Result::Ok(FileInfo { bytes, blake3: hasher.finalize().to_string() })
    };
    let mut infos = BTreeMap::new();
    for (name, contents) in files {
        infos.insert(name.into(), write(name, contents)?);
    }
    let manifest = serde_json::to_vec_pretty(&Manifest { format: FORMAT, files: infos, return_mean })?;
    write(MANIFEST, Box::new(|out| out.write_all(&manifest)))?;
    sync_dir(temporary)?;
    after_step("sync the directory")?;
    fs::rename(temporary, target)?;
    after_step("rename the directory")?;
    if let Some(dir) = target.parent() {
        sync_dir(dir)?;
    }
    after_step("sync the parent")
}

/// Removes all but the newest `keep` checkpoints; returns the failures.
fn prune(dir: &Path, keep: usize, after_step: AfterStep<'_>) -> Result<Vec<Error>, Error> {
    let all = list(dir)?;
    let mut stuck = Vec::new();
    for old in &all[..all.len().saturating_sub(keep)] {
        // Renamed first, so that a crash halfway leaves no damaged checkpoint.
        let doomed = old.with_extension("tmp");
        let removed = fs::rename(old, &doomed)
            .and_then(|()| after_step("rename an old one"))
            .and_then(|()| fs::remove_dir_all(&doomed))
            .and_then(|()| after_step("remove an old one"));
        stuck.extend(removed.map_err(Error::io(old)).err());
    }
    Ok(stuck)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_fails_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir(&from).unwrap();
        // A manifest whose files are lost.
        let lost = serde_json::json!({"bytes": 1, "blake3": ""});
        let files: serde_json::Map<_, _> =
            [CONFIG, OPTIMIZER, PARAMS, STATE].map(|name| (name.to_string(), lost.clone())).into_iter().collect();
        let manifest = serde_json::json!({"format": FORMAT, "files": files});
        fs::write(from.join(MANIFEST), manifest.to_string()).unwrap();
        let error = copy(&from, &to, 7).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        assert_eq!(fs::read_dir(&to).unwrap().count(), 0);
    }
}
