//! Files of a checkpoint: their names, and what is in them.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use rl_agents::{CollectorState, Counters, Snapshot, Statistics};
use rl_envs::codec;
use serde::de::{DeserializeOwned, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::{Config, Progress};

pub(super) const FORMAT: u32 = 6;
/// Oldest format that can be read.
///
/// Its state lacks the version of the arithmetic, which was 1.
pub(super) const OLDEST_FORMAT: u32 = 4;
/// First format whose state has the states of a policy with memory.
const FORMAT_WITH_MEMORY: u32 = 6;
pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const CONFIG: &str = "config.toml";
pub(super) const PARAMS: &str = "params.safetensors";
pub(super) const OPTIMIZER: &str = "optimizer.safetensors";
pub(super) const STATE: &str = "state.bin";
pub(super) const REPLAY: &str = "replay.bin";
pub(super) const FILES: [&str; 4] = [CONFIG, OPTIMIZER, PARAMS, STATE]; // sorted
/// Maximum entries of a manifest or header; large networks need a few hundred.
pub(super) const MAX_ENTRIES: usize = 4096;
/// Bytes read or written at a time.
pub(super) const BUFFER: usize = 1 << 17;

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

/// Writes `state.bin`.
///
/// rl-envs and rl-agents, which are optimised, encode and decode the parts with many numbers.
pub(super) fn write_state(checkpoint: &Checkpoint, out: &mut dyn Write) -> Result<(), rl_envs::Error> {
    let Checkpoint { progress, agent, collector, ahead, arithmetic, .. } = checkpoint;
    codec::encode_into(&(progress, agent.counters, &agent.statistics), out)?;
    collector.encode_into(out)?;
    codec::encode_into(&(ahead.len() as u64), out)?;
    for (learnt, Snapshot { params, statistics, counters, .. }) in ahead {
        codec::encode_into(&(learnt, counters.version, params.len() as u64), out)?;
        codec::write_floats(params, out).map_err(|error| rl_envs::Error::BadState(error.to_string()))?;
        codec::encode_into(statistics, out)?;
    }
    codec::encode_into(arithmetic, out)
}

/// Beginning of `state.bin`, all that a policy needs.
#[derive(Deserialize)]
pub(super) struct Head {
    pub(super) progress: Progress,
    pub(super) counters: Counters,
    pub(super) statistics: Statistics,
}

/// Content of `state.bin`.
pub(super) struct State {
    pub(super) head: Head,
    pub(super) collector: CollectorState,
    pub(super) ahead: Vec<(u64, Snapshot)>,
    pub(super) arithmetic: u32,
}

/// Reads `state.bin`, of `len` bytes, of a checkpoint in this format.
pub(super) fn read_state(format: u32, input: &mut dyn Read, len: u64) -> Result<State, rl_envs::Error> {
    let mut input = codec::Input::new(input, len);
    let head = input.value()?;
    let collector = CollectorState::decode(&mut input, format >= FORMAT_WITH_MEMORY)?;
    let mut ahead = Vec::new();
    for _ in 0..input.value::<u64>()? {
        let (learnt, version) = input.value()?;
        let (params, statistics) = (input.floats()?, input.value()?);
        let counters = Counters { version, ..Counters::default() };
        ahead.push((learnt, Snapshot { params, moments: Vec::new(), statistics, counters }));
    }
    let arithmetic = if format > OLDEST_FORMAT { input.value()? } else { 1 };
    match input.left() {
        0 => Ok(State { head, collector, ahead, arithmetic }),
        left => Err(rl_envs::Error::BadState(format!("{left} bytes are left over"))),
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub(super) format: u32,
    #[serde(deserialize_with = "unique")]
    pub(super) files: BTreeMap<String, FileInfo>,
    /// Mean return of the evaluation, for a best checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) return_mean: Option<f64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileInfo {
    pub(super) bytes: u64,
    pub(super) blake3: String,
}

/// Deserializes a map of at most [`MAX_ENTRIES`] different keys.
pub(super) fn unique<'de, D: Deserializer<'de>, V: DeserializeOwned>(deserializer: D) -> Result<BTreeMap<String, V>, D::Error> {
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

/// A file with a hash and a count of the bytes passed through.
pub(super) struct Hashed<F> {
    pub(super) inner: F,
    pub(super) hasher: blake3::Hasher,
    pub(super) bytes: u64,
}

impl<F> Hashed<F> {
    pub(super) fn new(inner: F) -> Self {
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
