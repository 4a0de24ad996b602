//! Checkpoints that are read: all is checked before anything is returned.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rl_agents::{Layout, Policy, Snapshot};
use rl_buffer::memory;
use rl_envs::catalog::Entry;
use rl_envs::codec;

use crate::config::budget::Budget;
use crate::file::{MAX_FILE, own, read_own};
use crate::run::checkpoint::contents::{
    BUFFER, CONFIG, Checkpoint, FILES, FORMAT, FileInfo, Hashed, Head, MANIFEST, Manifest, OLDEST_FORMAT, OPTIMIZER, PARAMS,
    REPLAY, STATE, State, read_state,
};
use crate::run::checkpoint::listing::{BEST, is_one, list, list_own};
use crate::run::checkpoint::tensors::{Tensors, read_tensors};
use crate::{Config, Error, Progress};

/// Maximum size of a manifest, which takes a few hundred bytes.
const MAX_MANIFEST: u64 = 1 << 16;
/// Maximum size of a configuration, which takes a few kilobytes.
const MAX_CONFIG: u64 = 1 << 20;
/// Time in which a run's newest checkpoint is looked up again if it vanishes.
const LOOKUP_TIME: Duration = Duration::from_secs(5);
/// Time after which a checkpoint that lacks files is a broken one.
const VANISHING: Duration = Duration::from_millis(100);
/// Pause before another lookup.
const LOOKUP_PAUSE: Duration = Duration::from_millis(5);

/// Opens a file of a checkpoint; returns its size, too.
fn open(path: &Path) -> io::Result<(File, u64)> {
    let file = own(path, |options| options.read(true))?;
    let len = file.metadata()?.len();
    Ok((file, len))
}

/// Reason why a checkpoint is of no use.
pub(super) enum Unusable {
    /// A part is missing, cut, changed or forged.
    Damaged(String),
    /// It is whole, and belongs to something else.
    Foreign(String),
    /// It is whole, and does not fit into memory.
    TooLarge(Error),
}

impl From<String> for Unusable {
    fn from(why: String) -> Self {
        Self::Damaged(why)
    }
}

/// A checkpoint with its manifest.
pub(super) struct Opened<'a> {
    dir: &'a Path,
    pub(super) manifest: Manifest,
}

impl<'a> Opened<'a> {
    pub(super) fn new(dir: &'a Path) -> Result<Self, String> {
        let (file, len) = open(&dir.join(MANIFEST)).map_err(|e| format!("{MANIFEST}: {e}"))?;
        if len > MAX_MANIFEST {
            return Err(format!("{MANIFEST} is damaged: it is too large"));
        }
        let mut text = Vec::new();
        file.take(MAX_MANIFEST).read_to_end(&mut text).map_err(|e| format!("{MANIFEST}: {e}"))?;
        let manifest: Manifest = serde_json::from_slice(&text).map_err(|e| format!("{MANIFEST} is damaged: {e}"))?;
        if !(OLDEST_FORMAT..=FORMAT).contains(&manifest.format) {
            return Err(format!("it has format {}, this program reads formats {OLDEST_FORMAT} to {FORMAT}", manifest.format));
        }
        if !manifest.files.keys().map(String::as_str).filter(|name| *name != REPLAY).eq(FILES) {
            let names: Vec<&str> = manifest.files.keys().map(String::as_str).collect();
            return Err(format!("{MANIFEST} is damaged: it lists {}", names.join(", ")));
        }
        Ok(Self { dir, manifest })
    }

    /// Reads a file with `read`, which is given its length.
    ///
    /// Fails unless size and hash are those of the manifest.
    fn read<T>(&self, name: &str, read: impl FnOnce(&mut dyn Read, u64) -> Result<T, String>) -> Result<T, String> {
        let FileInfo { bytes, blake3 } = &self.manifest.files[name];
        let (file, found) = open(&self.dir.join(name)).map_err(|e| format!("{name}: {e}"))?;
        if found != *bytes {
            return Err(format!("{name} is damaged: it has {found} bytes instead of {bytes}"));
        }
        // A sparse file may be larger than its disk; the replay memory alone is streamed.
        if let Some(available) = memory::available().filter(|available| bytes > available && name != REPLAY) {
            return Err(format!("{name} has {bytes} bytes, and {available} bytes of memory are available"));
        }
        let mut input = BufReader::with_capacity(BUFFER, Hashed::new(file.take(*bytes)));
        let result = read(&mut input, *bytes);
        io::copy(&mut input, &mut io::sink()).map_err(|e| format!("{name}: {e}"))?;
        if input.get_ref().hasher.finalize().to_string() != *blake3 {
            return Err(format!("{name} is damaged: its hash differs"));
        }
        result.map_err(|e| format!("{name}: {e}"))
    }

    fn config(&self) -> Result<Config, Unusable> {
        let text = self.read(CONFIG, |input, len| {
            if len > MAX_CONFIG {
                return Err("it is too large".into());
            }
            let mut text = String::new();
            input.read_to_string(&mut text).map_err(|e| e.to_string())?;
            Ok(text)
        })?;
        // It is what was saved, so another program or version can read it.
        Config::from_toml(&text, CONFIG).map_err(|e| Unusable::Foreign(format!("{e}; use the program that has saved it")))
    }

    pub(super) fn head(&self) -> Result<Head, String> {
        let decode = |input: &mut dyn Read, len| codec::decode_from(input, len).map_err(|e| e.to_string());
        let (head, _): (Head, u64) = self.read(STATE, decode)?;
        head.progress.check().map_err(|e| format!("{STATE}: {e}"))?;
        Ok(head)
    }

    /// Refuses a checkpoint that a run with the settings `run` cannot have saved.
    pub(super) fn check_run(&self, run: &Config) -> Result<(), Unusable> {
        let differences = self.config()?.differences_from_run(run);
        if differences.is_empty() { Ok(()) } else { Err(Unusable::Foreign(format!("it belongs to another run:{differences}"))) }
    }

    fn policy(&self, entry: &Entry) -> Result<SavedPolicy, Unusable> {
        let config = self.config()?;
        if config.env.name != entry.name {
            return Err(Unusable::Foreign(format!("it belongs to the environment {}, not {}", config.env.name, entry.name)));
        }
        Budget::playing(&config, entry, 0, 1).check().map_err(Unusable::TooLarge)?;
        let tensors = self.read(PARAMS, read_tensors)?;
        let Head { progress, counters, statistics } = self.head()?;
        let layout = config.layout(entry).map_err(|e| e.to_string())?;
        let params = in_order(&layout, tensors, &config.env.name)?;
        let snapshot = Snapshot { params, moments: Vec::new(), statistics, counters };
        snapshot.check().map_err(|e| e.to_string())?;
        let policy = config.policy(entry, &snapshot).map_err(|e| e.to_string())?;
        let lacks_replay =
            config.traits().replay.is_some_and(|replay| replay.is_saved) && !self.manifest.files.contains_key(REPLAY);
        // A best checkpoint never has one.
        let lacks_replay = lacks_replay && self.manifest.return_mean.is_none();
        let entry = config.wrapped(entry);
        let params_hash = self.manifest.files[PARAMS].blake3.clone();
        Ok(SavedPolicy { path: self.dir.into(), config, entry, progress, policy, params_hash, lacks_replay })
    }

    fn all(&self, layout: &Layout) -> Result<Checkpoint, Unusable> {
        let config = self.config()?;
        let params = self.read(PARAMS, read_tensors)?;
        let moments = self.read(OPTIMIZER, read_tensors)?;
        let state = self.read(STATE, |input, len| read_state(self.manifest.format, input, len).map_err(|e| e.to_string()))?;
        let State { head: Head { progress, counters, statistics }, collector, ahead, arithmetic } = state;
        let replay = self.manifest.files.contains_key(REPLAY).then(|| self.read(REPLAY, |_, _| Ok(self.dir.join(REPLAY))));

        let params = in_order(layout, params, &config.env.name)?;
        let moments = moments.into_iter().map(|(name, _, values)| (name, values)).collect();
        let agent = Snapshot { params, moments, statistics, counters };
        progress.check().map_err(|e| format!("{STATE}: {e}"))?;
        let all = [&agent].into_iter().chain(ahead.iter().map(|(_, policy)| policy));
        all.into_iter().try_for_each(Snapshot::check).map_err(|e| e.to_string())?;
        Ok(Checkpoint { config, progress, agent, replay: replay.transpose()?, collector, ahead, arithmetic })
    }
}

/// A policy to evaluate or watch.
pub struct SavedPolicy {
    /// Path of the checkpoint.
    pub path: PathBuf,
    /// Configuration of the run.
    pub config: Config,
    /// Environment, in the wrappers of the run.
    pub entry: Entry,
    /// Progress of the run when it was saved.
    pub progress: Progress,
    /// The policy.
    pub policy: Box<dyn Policy>,
    /// BLAKE3 of the file of its parameters.
    pub params_hash: String,
    /// True if the replay memory is missing, so training cannot continue from here.
    pub lacks_replay: bool,
}

impl SavedPolicy {
    /// Names and shapes of the parameters.
    ///
    /// # Errors
    /// Errors of the agent.
    pub fn layout(&self) -> Result<Layout, Error> {
        self.config.layout(&self.entry)
    }

    /// Replaces the parameters by `params`, in the order of [`SavedPolicy::layout`].
    ///
    /// # Errors
    /// [`rl_agents::Error::Snapshot`] if their number is another or one is not finite; nothing has changed then.
    pub fn set_params(&mut self, params: Vec<f32>) -> Result<(), Error> {
        let snapshot = Snapshot { params, ..Snapshot::from(self.policy.weights()) };
        snapshot.check()?;
        self.policy = self.config.policy(&self.entry, &snapshot)?;
        Ok(())
    }
}

/// Reads the policy of the checkpoint at `path`, or of a run's newest or best one.
///
/// Skips the optimizer's moments and the replay memory.
///
/// # Errors
/// [`Error::Checkpoint`] if there is none or it is damaged, [`Error::Config`] if `best` is given for a single checkpoint.
pub fn policy(path: &Path, best: bool, entry: &Entry) -> Result<SavedPolicy, Error> {
    newest(path, best, |opened| opened.policy(entry))
}

/// Reads the configuration of the checkpoint selected as by [`policy`].
///
/// # Errors
/// Errors of [`policy`].
pub fn config(path: &Path, best: bool) -> Result<Config, Error> {
    newest(path, best, |opened| opened.config())
}

pub(super) fn read<T>(path: &Path, read: impl Fn(&Opened<'_>) -> Result<T, Unusable>) -> Result<T, Error> {
    Opened::new(path).map_err(Unusable::Damaged).and_then(|opened| read(&opened)).map_err(|unusable| match unusable {
        Unusable::Damaged(why) => {
            let why = format!("{why}; remove this directory to go back to the checkpoint before it");
            Error::Checkpoint { path: path.into(), why }
        }
        Unusable::Foreign(why) => Error::Checkpoint { path: path.into(), why },
        Unusable::TooLarge(error) => Error::config(format!("checkpoint {}: {error}", path.display())),
    })
}

/// Reads the checkpoint at `path`, or a run's newest or best one.
///
/// A checkpoint that vanishes because the run continues is looked up again. One that is found in a run must be that run's.
fn newest<T>(path: &Path, best: bool, load: impl Fn(&Opened<'_>) -> Result<T, Unusable>) -> Result<T, Error> {
    let run = |chosen: &Path| {
        let dir = chosen.ancestors().nth(if best { 3 } else { 2 }).filter(|_| chosen != path)?;
        let text = read_own(&dir.join(CONFIG), MAX_FILE).ok()?;
        Config::from_toml(&text, CONFIG).ok()
    };
    let load = |opened: &Opened<'_>| {
        run(opened.dir).map_or(Ok(()), |run| opened.check_run(&run))?;
        load(opened)
    };
    let mut chosen = choose(path, best)?;
    let begin = Instant::now();
    let mut since = begin;
    loop {
        let error = match read(&chosen, load) {
            Err(error) if begin.elapsed() < LOOKUP_TIME => error,
            loaded => return loaded,
        };
        let is_whole = [MANIFEST, CONFIG, PARAMS, STATE].iter().all(|file| chosen.join(file).exists());
        match choose(path, best) {
            Ok(again) if again != chosen => (chosen, since) = (again, Instant::now()),
            // A listing may name a directory that is removed a moment later, file by file, or miss one that is renamed meanwhile.
            _ if is_whole || since.elapsed() > VANISHING => return Err(error),
            _ => std::thread::sleep(LOOKUP_PAUSE),
        }
    }
}

/// Selects the checkpoint for `path`.
fn choose(path: &Path, best: bool) -> Result<PathBuf, Error> {
    let none = |why: &str| Error::Checkpoint { path: path.into(), why: why.into() };
    if !path.is_dir() {
        return Err(none("there is no such directory"));
    }
    if best && is_one(path) {
        return Err(Error::config(format!("--best takes the directory of a run; {} is a checkpoint", path.display())));
    }
    if is_one(path) {
        return Ok(path.into());
    }
    let own = path.join("checkpoints");
    let all = match (list_own(&own)?, best) {
        (_, true) => [list_own(&own.join(BEST))?, list_own(&path.join(BEST))?],
        (found, false) => [found, list(path)?],
    };
    if let Some(newest) = all.into_iter().find_map(|mut all| all.pop()) {
        return Ok(newest);
    }
    Err(none(if best {
        "it is not the directory of a run that has saved a best checkpoint, which needs an evaluation; leave out --best"
    } else {
        "it is neither a checkpoint nor the directory of a run that has saved one"
    }))
}

impl Checkpoint {
    /// Reads the checkpoint at `path` with the parameters of `layout`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if it is damaged or does not fit `layout`.
    pub fn load(path: &Path, layout: &Layout) -> Result<Self, Error> {
        read(path, |opened| opened.all(layout))
    }
}

/// Orders tensors into the parameter vector of `layout`.
///
/// `layout` is of the network for the spaces that `env` has now.
fn in_order(layout: &Layout, tensors: Tensors, env: &str) -> Result<Vec<f32>, Unusable> {
    let foreign = |what: String| {
        let why = format!("{PARAMS}: {what}; were its settings or the spaces of {env} changed since it was saved?");
        Err(Unusable::Foreign(why))
    };
    let mut params = vec![0.0; layout.len()];
    let mut tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)> = tensors.into_iter().map(|(n, s, v)| (n, (s, v))).collect();
    for tensor in layout.tensors() {
        match tensors.remove(&tensor.name) {
            Some((shape, values)) if shape == tensor.shape => params[tensor.range.clone()].copy_from_slice(&values),
            Some((shape, _)) => return foreign(format!("{} is {shape:?}, this network has {:?}", tensor.name, tensor.shape)),
            None => return foreign(format!("{} is missing", tensor.name)),
        }
    }
    match tensors.keys().next() {
        Some(name) => foreign(format!("{name} is not a tensor of this network")),
        None => Ok(params),
    }
}
