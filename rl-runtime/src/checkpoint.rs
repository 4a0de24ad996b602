//! Checkpoints: directories that are complete or absent.
//!
//! `checkpoints/ckpt-000000051200/` holds `config.toml` (what was run), `params.safetensors` (the parameters by name),
//! `optimizer.safetensors` (its moments, and a target network), `replay.bin` (the replay memory, if it is to be
//! saved), `state.bin` (counters, generators' counters, running statistics, environments, and of a run whose rollouts lag the policies
//! that the next ones are acted in by; see [`rl_envs::codec`]) and `manifest.json` (size and BLAKE3 hash of each). Everything is written to a directory ending in
//! `.tmp`, every file and the directory are synced, and the directory is renamed: a crash at any moment leaves the last
//! complete checkpoint to be found. Loading checks everything before it returns anything.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rl_agents::{CollectorState, Counters, Episode, Layout, Snapshot, Statistics};
use rl_envs::codec;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};

use crate::file::sync_dir;
use crate::{Config, Error};

const FORMAT: u32 = 4;
const MANIFEST: &str = "manifest.json";
const CONFIG: &str = "config.toml";
const PARAMS: &str = "params.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const STATE: &str = "state.bin";
const REPLAY: &str = "replay.bin";
const FILES: [&str; 4] = [CONFIG, PARAMS, OPTIMIZER, STATE];
/// A manifest is a few hundred bytes; one of another size is not ours.
const MAX_MANIFEST: u64 = 1 << 16;

/// How far a run has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Environment steps, all environments together.
    pub env_steps: u64,
    /// Rollouts.
    pub iterations: u64,
    /// Episodes that have ended.
    pub episodes: u64,
    /// The last of them, at most 100.
    pub recent: Vec<Episode>,
    /// Seconds spent training, earlier parts of the run included.
    pub elapsed_s: f64,
}

/// Everything that a run continues from.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// What is run.
    pub config: Config,
    /// How far it has come.
    pub progress: Progress,
    /// The agent.
    pub agent: Snapshot,
    /// The environments.
    pub collector: CollectorState,
    /// Where rollouts lag: the older policies that the next rollouts are acted in by, oldest first, and how many rollouts each has
    /// learnt from.
    pub ahead: Vec<(u64, Snapshot)>,
}

#[derive(Serialize, Deserialize)]
struct State {
    progress: Progress,
    counters: Counters,
    statistics: Statistics,
    collector: CollectorState,
    ahead: Vec<Ahead>,
}

/// A policy that the next rollouts are acted in by.
#[derive(Serialize, Deserialize)]
struct Ahead {
    learnt: u64,
    version: u64,
    params: Vec<f32>,
    statistics: Statistics,
}

impl Ahead {
    fn of(learnt: u64, policy: &Snapshot) -> Self {
        let Snapshot { params, statistics, counters, .. } = policy;
        Self { learnt, version: counters.version, params: params.clone(), statistics: statistics.clone() }
    }

    fn into_snapshot(self) -> (u64, Snapshot) {
        let Self { learnt, version, params, statistics } = self;
        let counters = Counters { version, ..Counters::default() };
        (learnt, Snapshot { params, moments: Vec::new(), statistics, counters, replay: None })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    format: u32,
    files: BTreeMap<String, FileInfo>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileInfo {
    bytes: u64,
    blake3: String,
}

/// Where the checkpoint after so many environment steps lies.
fn path(dir: &Path, env_steps: u64) -> PathBuf {
    dir.join(format!("ckpt-{env_steps:012}"))
}

/// The environment steps in a checkpoint's name.
fn env_steps(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("ckpt-")?;
    digits.parse().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()))
}

/// The checkpoints in `dir`, oldest first. None if there is no such directory.
///
/// # Errors
/// [`Error::Io`] if it cannot be read.
pub fn list(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io(dir)(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.map_err(Error::io(dir))?.file_name();
        found.extend(name.to_str().and_then(env_steps));
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|steps| path(dir, steps)).collect())
}

/// Removes what crashes have left in `dir`.
///
/// # Errors
/// [`Error::Io`].
pub fn clean(dir: &Path) -> Result<(), Error> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_some_and(|extension| extension == "tmp") {
            fs::remove_dir_all(&path).map_err(Error::io(&path))?;
        }
    }
    Ok(())
}

/// A step of a save that has just been done, for tests that stop there.
pub type AfterStep<'a> = &'a mut dyn FnMut(&str) -> io::Result<()>;

/// Writes a checkpoint into `dir`, then removes all but the newest `keep`. `layout` names the parameters. If the checkpoint is
/// there already, nothing is done. `after_step` is called after every write, sync and rename; an error from it ends the save
/// as a crash would.
///
/// # Errors
/// [`Error::Io`]; then the checkpoints that were there are unharmed.
pub fn save(
    dir: &Path,
    checkpoint: &Checkpoint,
    layout: &Layout,
    keep: usize,
    after_step: AfterStep<'_>,
) -> Result<PathBuf, Error> {
    let target = path(dir, checkpoint.progress.env_steps);
    if target.exists() {
        return Ok(target);
    }
    let Checkpoint { config, progress, agent, collector, ahead } = checkpoint;
    let state = State {
        progress: progress.clone(),
        counters: agent.counters,
        statistics: agent.statistics.clone(),
        collector: collector.clone(),
        ahead: ahead.iter().map(|(learnt, policy)| Ahead::of(*learnt, policy)).collect(),
    };
    let params = layout.tensors().iter().map(|t| (t.name.as_str(), &t.shape[..], &agent.params[t.range.clone()]));
    let moments: Vec<_> = agent.moments.iter().map(|(name, values)| (name.as_str(), [values.len()], &values[..])).collect();
    let moments = moments.iter().map(|(name, shape, values)| (*name, &shape[..], *values));
    let bad = |e: safetensors::SafeTensorError| Error::io(&target)(io::Error::other(e));
    let mut files = vec![
        (CONFIG, config.to_toml().into_bytes()),
        (PARAMS, to_safetensors(params).map_err(bad)?),
        (OPTIMIZER, to_safetensors(moments).map_err(bad)?),
        (STATE, codec::encode(&state)?),
    ];
    files.extend(agent.replay.iter().map(|replay| (REPLAY, replay.clone())));
    let info = |bytes: &[u8]| FileInfo { bytes: bytes.len() as u64, blake3: blake3::hash(bytes).to_string() };
    let infos = files.iter().map(|(name, bytes)| (String::from(*name), info(bytes))).collect();
    let manifest = Manifest { format: FORMAT, files: infos };
    files.push((MANIFEST, serde_json::to_vec_pretty(&manifest).map_err(|e| Error::io(&target)(e.into()))?));

    let temporary = target.with_extension("tmp");
    write_all(dir, &temporary, &target, &files, after_step).map_err(Error::io(&target))?;
    let all = list(dir)?;
    for old in &all[..all.len().saturating_sub(keep)] {
        // Renamed first, so that a crash halfway through does not leave a damaged checkpoint.
        let doomed = old.with_extension("tmp");
        fs::rename(old, &doomed).and_then(|()| after_step("rename an old one")).map_err(Error::io(old))?;
        fs::remove_dir_all(&doomed).and_then(|()| after_step("remove an old one")).map_err(Error::io(old))?;
    }
    Ok(target)
}

fn write_all(
    dir: &Path,
    temporary: &Path,
    target: &Path,
    files: &[(&str, Vec<u8>)],
    after_step: AfterStep<'_>,
) -> io::Result<()> {
    if temporary.exists() {
        fs::remove_dir_all(temporary)?;
    }
    fs::create_dir_all(temporary)?;
    after_step("create the directory")?;
    for (name, bytes) in files {
        let mut file = File::create_new(temporary.join(name))?;
        file.write_all(bytes)?;
        after_step("write a file")?;
        file.sync_all()?;
        after_step("sync a file")?;
    }
    sync_dir(temporary)?;
    after_step("sync the directory")?;
    fs::rename(temporary, target)?;
    after_step("rename the directory")?;
    sync_dir(dir)?;
    after_step("sync the parent")
}

type Named<'a> = (&'a str, &'a [usize], &'a [f32]);

fn to_safetensors<'a>(tensors: impl Iterator<Item = Named<'a>>) -> Result<Vec<u8>, safetensors::SafeTensorError> {
    let tensors: Vec<(&str, &[usize], Vec<u8>)> =
        tensors.map(|(name, shape, values)| (name, shape, values.iter().flat_map(|x| x.to_le_bytes()).collect())).collect();
    let mut views = Vec::with_capacity(tensors.len());
    for (name, shape, bytes) in &tensors {
        views.push((*name, TensorView::new(Dtype::F32, shape.to_vec(), bytes)?));
    }
    safetensors::serialize(views, None)
}

/// The f32 tensors of a file: name, shape, values.
type Tensors = Vec<(String, Vec<usize>, Vec<f32>)>;

fn from_safetensors(bytes: &[u8]) -> Result<Tensors, String> {
    let file = safetensors::SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
    let tensor = |(name, view): (String, TensorView<'_>)| {
        if view.dtype() != Dtype::F32 {
            return Err(format!("{name} is of type {:?}, not F32", view.dtype()));
        }
        let values = view.data().as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
        Ok((name, view.shape().to_vec(), values))
    };
    file.tensors().into_iter().map(tensor).collect()
}

impl Checkpoint {
    /// Reads the checkpoint at `path`, or the newest one of the run at `path`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if there is none or it is damaged.
    pub fn find(path: &Path) -> Result<(PathBuf, Self), Error> {
        if !path.is_dir() {
            return Err(Error::Checkpoint { path: path.into(), why: "there is no such directory".into() });
        }
        let path = if path.join(MANIFEST).exists() {
            path.to_path_buf()
        } else {
            let newest = list(&path.join("checkpoints"))?.pop();
            let why = "it is neither a checkpoint nor the directory of a run that has saved one";
            newest.ok_or_else(|| Error::Checkpoint { path: path.into(), why: why.into() })?
        };
        Ok((path.clone(), Self::load(&path)?))
    }

    /// Reads the checkpoint at `path`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if it is damaged.
    pub fn load(path: &Path) -> Result<Self, Error> {
        Self::read(path).map_err(|why| {
            let why = format!("{why}; remove this directory to go back to the checkpoint before it");
            Error::Checkpoint { path: path.into(), why }
        })
    }

    fn read(path: &Path) -> Result<Self, String> {
        let open = |name: &str| File::open(path.join(name)).map_err(|e| format!("{name}: {e}"));
        let size = |file: &File, name: &str| file.metadata().map(|m| m.len()).map_err(|e| format!("{name}: {e}"));
        let read = |file: File, name: &str| {
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut { file }, &mut bytes).map_err(|e| format!("{name}: {e}"))?;
            Ok::<_, String>(bytes)
        };
        let file = open(MANIFEST)?;
        if size(&file, MANIFEST)? > MAX_MANIFEST {
            return Err(format!("{MANIFEST} is damaged: it is too large"));
        }
        let manifest: Manifest =
            serde_json::from_slice(&read(file, MANIFEST)?).map_err(|e| format!("{MANIFEST} is damaged: {e}"))?;
        if manifest.format != FORMAT {
            return Err(format!("it has format {}, this program reads format {FORMAT}", manifest.format));
        }
        if !manifest.files.keys().map(String::as_str).filter(|name| *name != REPLAY).eq({
            let mut names = FILES;
            names.sort_unstable();
            names
        }) {
            let names: Vec<&str> = manifest.files.keys().map(String::as_str).collect();
            return Err(format!("{MANIFEST} is damaged: it lists {}", names.join(", ")));
        }
        let load = |name: &str| {
            let info = &manifest.files[name];
            let file = open(name)?;
            let found = size(&file, name)?;
            if found != info.bytes {
                return Err(format!("{name} is damaged: it has {found} bytes instead of {}", info.bytes));
            }
            let bytes = read(file, name)?;
            if blake3::hash(&bytes).to_string() != info.blake3 {
                return Err(format!("{name} is damaged: its hash is another"));
            }
            Ok(bytes)
        };
        let config = String::from_utf8(load(CONFIG)?).map_err(|e| format!("{CONFIG}: {e}"))?;
        let config = Config::from_toml(&config, CONFIG).map_err(|e| e.to_string())?;
        let params = from_safetensors(&load(PARAMS)?).map_err(|e| format!("{PARAMS}: {e}"))?;
        let moments = from_safetensors(&load(OPTIMIZER)?).map_err(|e| format!("{OPTIMIZER}: {e}"))?;
        let state: State = codec::decode(&load(STATE)?).map_err(|e| format!("{STATE}: {e}"))?;

        let params = in_order(&config, params).map_err(|e| format!("{PARAMS}: {e}"))?;
        let mut moments: Vec<(String, Vec<f32>)> = moments.into_iter().map(|(name, _, values)| (name, values)).collect();
        moments.sort_by(|a, b| a.0.cmp(&b.0));
        let replay = manifest.files.contains_key(REPLAY).then(|| load(REPLAY)).transpose()?;
        let agent = Snapshot { params, moments, statistics: state.statistics, counters: state.counters, replay };
        let ahead = state.ahead.into_iter().map(Ahead::into_snapshot).collect();
        Ok(Self { config, progress: state.progress, agent, collector: state.collector, ahead })
    }
}

/// The parameter vector of the network that `config` describes, from its tensors.
fn in_order(config: &Config, tensors: Tensors) -> Result<Vec<f32>, String> {
    let policy = crate::train::policy(config).map_err(|e| e.to_string())?;
    let layout = policy.layout();
    let mut params = vec![0.0; layout.len()];
    let mut tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)> = tensors.into_iter().map(|(n, s, v)| (n, (s, v))).collect();
    for tensor in layout.tensors() {
        match tensors.remove(&tensor.name) {
            Some((shape, values)) if shape == tensor.shape => params[tensor.range.clone()].copy_from_slice(&values),
            Some((shape, _)) => return Err(format!("{} is {shape:?}, this network has {:?}", tensor.name, tensor.shape)),
            None => return Err(format!("{} is missing", tensor.name)),
        }
    }
    match tensors.keys().next() {
        Some(name) => Err(format!("{name} is not a tensor of this network")),
        None => Ok(params),
    }
}
