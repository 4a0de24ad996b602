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

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rl_agents::{CollectorState, CollectorWithoutMemory, Counters, Layout, Policy, Snapshot, Statistics};
use rl_buffer::memory;
use rl_envs::catalog::Entry;
use rl_envs::codec;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::de::{DeserializeOwned, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::config::budget::Budget;
use crate::file::MAX_FILE;
use crate::file::{copy_own, own, own_dir, read_own, refused, sync_dir};
use crate::{Config, Error, Progress};

const FORMAT: u32 = 6;
/// Oldest format that can be read.
///
/// Its state lacks the version of the arithmetic, which was 1.
const OLDEST_FORMAT: u32 = 4;
const MANIFEST: &str = "manifest.json";
const CONFIG: &str = "config.toml";
const PARAMS: &str = "params.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const STATE: &str = "state.bin";
const REPLAY: &str = "replay.bin";
const FILES: [&str; 4] = [CONFIG, OPTIMIZER, PARAMS, STATE]; // sorted
/// Directory of the best checkpoint, among the others.
const BEST: &str = "best";
/// Maximum size of a manifest, which takes a few hundred bytes.
const MAX_MANIFEST: u64 = 1 << 16;
/// Maximum size of a configuration, which takes a few kilobytes.
const MAX_CONFIG: u64 = 1 << 20;
/// Maximum size of a header, more than a network of hundreds of layers needs.
const MAX_HEADER: u64 = 1 << 20;
/// Maximum entries of a manifest or header; large networks need a few hundred.
const MAX_ENTRIES: usize = 4096;
/// Bytes read or written at a time.
const BUFFER: usize = 1 << 17;
/// Maximum lookups of the newest checkpoint if it vanishes while it is read.
const MAX_LOOKUPS: u32 = 20;
/// Pause before a checkpoint that lacks files is looked up again.
const LOOKUP_PAUSE: Duration = Duration::from_millis(5);

/// State that a run continues from.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Configuration of the run.
    pub config: Config,
    /// Progress of the run.
    pub progress: Progress,
    /// State of the agent.
    pub agent: Snapshot,
    /// File of the replay memory, if there is one, with its hash verified.
    pub replay: Option<PathBuf>,
    /// State of the environments.
    pub collector: CollectorState,
    /// Older policies that act in the next rollouts, oldest first, where rollouts lag.
    ///
    /// Each comes with the number of rollouts that it has learnt from.
    pub ahead: Vec<(u64, Snapshot)>,
    /// [`rl_agents::ARITHMETIC`] of the program that trained it.
    pub arithmetic: u32,
}

/// Content of `state.bin`, as read.
#[derive(Deserialize)]
struct State<C> {
    progress: Progress,
    counters: Counters,
    statistics: Statistics,
    collector: C,
    ahead: Vec<Ahead<Vec<f32>, Statistics>>,
}

impl State<CollectorWithoutMemory> {
    fn with_memory(self) -> State<CollectorState> {
        let Self { progress, counters, statistics, collector, ahead } = self;
        State { progress, counters, statistics, collector: collector.into(), ahead }
    }
}

/// Content of `state.bin`, as written.
#[derive(Serialize)]
struct StateRef<'a> {
    progress: &'a Progress,
    counters: Counters,
    statistics: &'a Statistics,
    collector: &'a CollectorState,
    ahead: Vec<Ahead<&'a [f32], &'a Statistics>>,
}

/// Beginning of `state.bin`, all that a policy needs.
#[derive(Deserialize)]
struct Head {
    progress: Progress,
    counters: Counters,
    statistics: Statistics,
}

/// A policy that acts in one of the next rollouts.
#[derive(Serialize, Deserialize)]
struct Ahead<P, S> {
    learnt: u64,
    version: u64,
    params: P,
    statistics: S,
}

impl Ahead<Vec<f32>, Statistics> {
    fn into_snapshot(self) -> (u64, Snapshot) {
        let Self { learnt, version, params, statistics } = self;
        let counters = Counters { version, ..Counters::default() };
        (learnt, Snapshot { params, moments: Vec::new(), statistics, counters })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    format: u32,
    #[serde(deserialize_with = "unique")]
    files: BTreeMap<String, FileInfo>,
    /// Mean return of the evaluation, for a best checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    return_mean: Option<f64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileInfo {
    bytes: u64,
    blake3: String,
}

/// Header of a safetensors file.
#[derive(Deserialize)]
#[serde(transparent)]
struct Header {
    #[serde(deserialize_with = "unique")]
    tensors: BTreeMap<String, TensorInfo>,
}

/// Deserializes a map of at most [`MAX_ENTRIES`] different keys.
fn unique<'de, D: Deserializer<'de>, V: DeserializeOwned>(deserializer: D) -> Result<BTreeMap<String, V>, D::Error> {
    struct Unique<V>(std::marker::PhantomData<V>);
    impl<'de, V: DeserializeOwned> Visitor<'de> for Unique<V> {
        type Value = BTreeMap<String, V>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "a map of at most {MAX_ENTRIES} different keys")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some((key, value)) = access.next_entry::<String, V>()? {
                if map.len() == MAX_ENTRIES {
                    return Err(A::Error::custom(format_args!("it has more than {MAX_ENTRIES} entries")));
                }
                if map.contains_key(&key) {
                    return Err(A::Error::custom(format_args!("\"{key}\" is there twice")));
                }
                map.insert(key, value);
            }
            Ok(map)
        }
    }
    deserializer.deserialize_map(Unique(std::marker::PhantomData))
}

/// Path of the checkpoint after `env_steps` environment steps.
fn path(dir: &Path, env_steps: u64) -> PathBuf {
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
fn list_own(dir: &Path) -> Result<Vec<PathBuf>, Error> {
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
    read(&path, |opened| opened.check_run(config).map(|()| opened.manifest.return_mean))
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
    copy().map_err(Error::io(&target))
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
    let Checkpoint { config, progress, agent, collector, ahead, arithmetic, .. } = checkpoint;
    progress.check().map_err(io::Error::other)?;
    let ahead = ahead.iter().map(|(learnt, Snapshot { params, statistics, counters, .. })| Ahead {
        learnt: *learnt,
        version: counters.version,
        params: &params[..],
        statistics,
    });
    let (counters, statistics) = (agent.counters, &agent.statistics);
    let state = (StateRef { progress, counters, statistics, collector, ahead: ahead.collect() }, arithmetic);
    let params = layout.tensors().iter().map(|t| (&*t.name, t.shape.clone(), &agent.params[t.range.clone()])).collect();
    let moments = agent.moments.iter().map(|(name, values)| (&**name, vec![values.len()], &values[..])).collect();
    let mut files: Vec<(&str, Contents<'_>)> = vec![
        (CONFIG, Box::new(|out| out.write_all(config.to_toml().as_bytes()))),
        (PARAMS, Box::new(|out| write_tensors(out, params))),
        (OPTIMIZER, Box::new(|out| write_tensors(out, moments))),
        (STATE, Box::new(|out| codec::encode_into(&state, out).map_err(io::Error::other))),
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

/// A file with a hash and a count of the bytes passed through.
struct Hashed<F> {
    inner: F,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl<F> Hashed<F> {
    fn new(inner: F) -> Self {
        Self { inner, hasher: blake3::Hasher::new(), bytes: 0 }
    }

    fn count(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
    }
}

impl<F: Write> Write for Hashed<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.count(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<F: Read> Read for Hashed<F> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.count(&bytes[..read]);
        Ok(read)
    }
}

/// Writes f32 tensors (name, shape, values) as safetensors.
fn write_tensors(out: &mut dyn Write, mut tensors: Vec<(&str, Vec<usize>, &[f32])>) -> io::Result<()> {
    tensors.sort_by_key(|(name, ..)| *name);
    let (mut infos, mut begin) = (Vec::with_capacity(tensors.len()), 0);
    for (name, shape, values) in &tensors {
        let end = begin + size_of_val(*values);
        infos.push((String::from(*name), TensorInfo { dtype: Dtype::F32, shape: shape.clone(), data_offsets: (begin, end) }));
        begin = end;
    }
    let metadata = Metadata::new(None, infos).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&metadata)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() as u64 > MAX_HEADER || tensors.len() > MAX_ENTRIES {
        return Err(io::Error::other(format!("{} tensors are too many for a checkpoint", tensors.len())));
    }
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    let mut bytes = Vec::new();
    for values in tensors.iter().flat_map(|(.., values)| values.chunks(BUFFER / 4)) {
        bytes.clear();
        bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        out.write_all(&bytes)?;
    }
    Ok(())
}

/// F32 tensors of a file: name, shape, values.
type Tensors = Vec<(String, Vec<usize>, Vec<f32>)>;

/// Reads the tensors of a file of `len` bytes.
fn read_tensors(input: &mut dyn Read, len: u64) -> Result<Tensors, String> {
    let mut n = [0; 8];
    input.read_exact(&mut n).map_err(|e| e.to_string())?;
    let n = u64::from_le_bytes(n);
    if n > MAX_HEADER || n > len - 8 {
        return Err(format!("its header takes {n} bytes"));
    }
    let mut header = vec![0; n as usize];
    input.read_exact(&mut header).map_err(|e| e.to_string())?;
    let Header { tensors } = serde_json::from_slice(&header).map_err(|e| format!("its header is damaged: {e}"))?;
    let mut infos: Vec<(String, TensorInfo)> = tensors.into_iter().collect();
    infos.sort_by_key(|(_, info)| info.data_offsets);
    let (mut at, mut read, data) = (0, Vec::with_capacity(infos.len()), len - 8 - n);
    for (name, TensorInfo { dtype, shape, data_offsets: (begin, end) }) in infos {
        if dtype != Dtype::F32 {
            return Err(format!("{name} is of type {dtype:?}, not F32"));
        }
        let bytes = shape.iter().try_fold(4usize, |bytes, &n| bytes.checked_mul(n));
        if begin != at || bytes.is_none_or(|bytes| end.checked_sub(begin) != Some(bytes)) || end as u64 > data {
            return Err(format!("{name} is {shape:?}, which does not fit the bytes from {begin} to {end}"));
        }
        let mut values = Vec::with_capacity((end - begin) / 4);
        let mut bytes = vec![0; BUFFER.min(end - begin)];
        while values.len() < (end - begin) / 4 {
            let bytes = &mut bytes[..BUFFER.min(end - begin - 4 * values.len())];
            input.read_exact(bytes).map_err(|e| e.to_string())?;
            values.extend(bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)));
        }
        at = end;
        read.push((name, shape, values));
    }
    if at as u64 == data { Ok(read) } else { Err(format!("{} bytes belong to no tensor", data - at as u64)) }
}

/// Opens a file of a checkpoint; returns its size, too.
fn open(path: &Path) -> io::Result<(File, u64)> {
    let file = own(path, |options| options.read(true))?;
    let len = file.metadata()?.len();
    Ok((file, len))
}

/// Reason why a checkpoint is of no use.
enum Unusable {
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
struct Opened<'a> {
    dir: &'a Path,
    manifest: Manifest,
}

impl<'a> Opened<'a> {
    fn new(dir: &'a Path) -> Result<Self, String> {
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

    fn config(&self) -> Result<Config, String> {
        let text = self.read(CONFIG, |input, len| {
            if len > MAX_CONFIG {
                return Err("it is too large".into());
            }
            let mut text = String::new();
            input.read_to_string(&mut text).map_err(|e| e.to_string())?;
            Ok(text)
        })?;
        Config::from_toml(&text, CONFIG).map_err(|e| e.to_string())
    }

    fn head(&self) -> Result<Head, String> {
        let decode = |input: &mut dyn Read, len| codec::decode_from(input, len).map_err(|e| e.to_string());
        let (head, _): (Head, u64) = self.read(STATE, decode)?;
        head.progress.check().map_err(|e| format!("{STATE}: {e}"))?;
        Ok(head)
    }

    /// Refuses a checkpoint that a run with the settings `run` cannot have saved.
    fn check_run(&self, run: &Config) -> Result<(), Unusable> {
        let differences = self.config()?.differences(run);
        if differences.is_empty() { Ok(()) } else { Err(Unusable::Foreign(format!("it belongs to another run:{differences}"))) }
    }

    fn policy(&self, entry: &Entry) -> Result<SavedPolicy, Unusable> {
        let config = self.config()?;
        if config.env.name != entry.name {
            return Err(Unusable::Foreign(format!("it belongs to the environment {}, not {}", config.env.name, entry.name)));
        }
        Budget::playing(&config, entry, 0).check().map_err(Unusable::TooLarge)?;
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
        Ok(SavedPolicy { path: self.dir.into(), config, entry, progress, policy, lacks_replay })
    }

    fn all(&self, layout: &Layout) -> Result<Checkpoint, Unusable> {
        let config = self.config()?;
        let params = self.read(PARAMS, read_tensors)?;
        let moments = self.read(OPTIMIZER, read_tensors)?;
        let (state, arithmetic): (State<CollectorState>, u32) = self.read(STATE, |input, len| {
            let decoded = match self.manifest.format {
                OLDEST_FORMAT => codec::decode_from(input, len).map(|(state, left)| ((State::with_memory(state), 1), left)),
                5 => codec::decode_from(input, len)
                    .map(|((state, arithmetic), left)| ((State::with_memory(state), arithmetic), left)),
                _ => codec::decode_from(input, len),
            };
            match decoded {
                Ok((state, 0)) => Ok(state),
                Ok((_, left)) => Err(format!("{left} bytes are left over")),
                Err(error) => Err(error.to_string()),
            }
        })?;
        let replay = self.manifest.files.contains_key(REPLAY).then(|| self.read(REPLAY, |_, _| Ok(self.dir.join(REPLAY))));

        let params = in_order(layout, params, &config.env.name)?;
        let moments = moments.into_iter().map(|(name, _, values)| (name, values)).collect();
        let State { progress, counters, statistics, collector, ahead } = state;
        let agent = Snapshot { params, moments, statistics, counters };
        let ahead: Vec<_> = ahead.into_iter().map(Ahead::into_snapshot).collect();
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
    /// True if the replay memory is missing, so training cannot continue from here.
    pub lacks_replay: bool,
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
    newest(path, best, |opened| Ok(opened.config()?))
}

fn read<T>(path: &Path, read: impl Fn(&Opened<'_>) -> Result<T, Unusable>) -> Result<T, Error> {
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
    for _ in 0..MAX_LOOKUPS {
        match read(&chosen, load) {
            Err(error) => match choose(path, best)? {
                // A listing may name a directory that is removed a moment later, file by file.
                again if again == chosen && [MANIFEST, CONFIG, PARAMS, STATE].iter().all(|file| chosen.join(file).exists()) => {
                    return Err(error);
                }
                again if again == chosen => std::thread::sleep(LOOKUP_PAUSE),
                again => chosen = again,
            },
            loaded => return loaded,
        }
    }
    read(&chosen, load)
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
