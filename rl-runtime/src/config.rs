//! What a user may choose, and where the choice comes from.
//!
//! Settings come in layers, each over the one before: defaults, the preset of environment and algorithm, a TOML file, the
//! command line. One check serves them all, and the files of runs and checkpoints too: every value against [`keys`], then the values
//! together, before any work. All problems are reported at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;

use rl_agents::collect::MAX_EVAL_STEPS;
use rl_agents::settings::{MAX_STEPS, OnNonfinite, check_micro_batch, key};
use rl_agents::{A2cConfig, Activation, DqnConfig, Learner, NetConfig, PpoConfig, QNetwork};
use rl_envs::ActionSpace;
use rl_envs::catalog::Entry;
use rl_envs::wrappers::Wrappers;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::Error;
use crate::pipeline::Mode;

pub use rl_agents::settings::{Key, Kind};

/// The algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algo {
    /// Proximal policy optimization.
    Ppo,
    /// Advantage actor-critic.
    A2c,
    /// Deep Q-learning.
    Dqn,
}

impl Algo {
    /// All of them, with a line about each.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::Ppo, "proximal policy optimization"),
        (Self::A2c, "advantage actor-critic (synchronous A3C)"),
        (Self::Dqn, "deep Q-learning (double, dueling, n-step, prioritized)"),
    ];

    /// The name that users write.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ppo => "ppo",
            Self::A2c => "a2c",
            Self::Dqn => "dqn",
        }
    }

    /// The algorithm of this name.
    ///
    /// # Errors
    /// [`Error::Config`], which names those that exist.
    pub fn find(name: &str) -> Result<Self, Error> {
        Self::ALL.iter().map(|(algo, _)| *algo).find(|algo| algo.name() == name).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.iter().map(|(algo, _)| algo.name()).collect();
            Error::config(format!(
                "unknown algorithm \"{name}\"; there are: {}{}",
                known.join(", "),
                did_you_mean(name, known.clone())
            ))
        })
    }
}

/// How collecting and learning take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// One after the other.
    #[default]
    Sync,
    /// At the same time.
    Overlapped,
}

/// The environment of a run: its name, or a table of its name and of the wrappers that are around it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "WrittenEnv", into = "WrittenEnv")]
pub struct EnvConfig {
    /// Name of the environment.
    pub name: String,
    /// What is around it, in training, evaluations and `rl watch` alike. Rewards are clipped for learning alone.
    pub wrappers: Wrappers,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WrittenEnv {
    Plain(String),
    Wrapped {
        name: String,
        #[serde(flatten)]
        wrappers: Wrappers,
    },
}

impl From<WrittenEnv> for EnvConfig {
    fn from(written: WrittenEnv) -> Self {
        match written {
            WrittenEnv::Plain(name) => Self { name, wrappers: Wrappers::default() },
            WrittenEnv::Wrapped { name, wrappers } => Self { name, wrappers },
        }
    }
}

impl From<EnvConfig> for WrittenEnv {
    fn from(EnvConfig { name, wrappers }: EnvConfig) -> Self {
        if wrappers == Wrappers::default() { Self::Plain(name) } else { Self::Wrapped { name, wrappers } }
    }
}

/// Everything that decides a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The environment.
    pub env: EnvConfig,
    /// The algorithm.
    pub algo: Algo,
    /// Environment steps to train for.
    pub steps: u64,
    /// Environments N.
    pub n_envs: usize,
    /// Decides all randomness.
    pub seed: u64,
    /// Threads. Results do not depend on them.
    pub threads: usize,
    /// `auto`, `cpu`, `cuda` or `cuda:i`.
    pub device: String,
    /// Whether the next rollout is collected while one is learnt from.
    pub pipeline: Overlap,
    /// How many updates the policy that collects may lie behind, if so.
    pub max_lag: usize,
    /// How many of the threads collect, if so; 0: half of them.
    pub collect_threads: usize,
    /// Environment steps from one checkpoint to the next.
    pub checkpoint_every: u64,
    /// How many checkpoints are kept.
    pub keep_checkpoints: usize,
    /// Iterations from one row of metrics to the next.
    pub log_interval: u64,
    /// Environment steps from one evaluation to the next; 0 evaluates only at the end, or twenty times if there is a target.
    pub eval_every: u64,
    /// Episodes of an evaluation.
    pub eval_episodes: usize,
    /// Steps after which an evaluation cuts an episode; 0 for no limit.
    #[serde(default = "max_eval_steps")]
    pub eval_max_steps: u32,
    /// Reaction to a reward or an observation that is not finite.
    #[serde(default)]
    pub on_nonfinite: OnNonfinite,
    /// Training stops when an evaluation's mean return reaches this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_return: Option<f64>,
    /// Convolutions: channels, kernel, stride.
    pub conv: Vec<[usize; 3]>,
    /// Sizes of the hidden layers.
    pub hidden: Vec<usize>,
    /// What follows each hidden layer.
    pub activation: Activation,
    /// Whether policy and value function share the hidden layers.
    pub shared_trunk: bool,
    /// What computes.
    pub learner: Learner,
    /// Where the logarithms of the standard deviations of continuous actions begin.
    pub log_std_init: f32,
    /// Whether observations are normalized.
    pub normalize_obs: bool,
    /// Settings of PPO, if it is the algorithm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ppo: Option<PpoConfig>,
    /// Settings of A2C, if it is the algorithm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub a2c: Option<A2cConfig>,
    /// Settings of DQN, if it is the algorithm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dqn: Option<DqnConfig>,
}

/// Largest configuration file.
pub(crate) const MAX_FILE: u64 = 1 << 20;

/// The settings of a run as a whole.
const RUN: &[Key] = &[
    key("steps", Kind::Int(1, MAX_STEPS), "Environment steps to train for"),
    key("n_envs", Kind::Int(1, 1 << 24), "Environments"),
    key("seed", Kind::Int(0, i64::MAX), "Seed of all randomness"),
    key("threads", Kind::Int(1, 4096), "Threads; results do not depend on them"),
    key("device", Kind::Text(|text| parse_device(text).is_some(), "auto, cpu, cuda or cuda:i"), "Device to train on"),
    key("pipeline", Kind::Choice(&["sync", "overlapped"]), "Order of collecting and learning: in turn, or at the same time"),
    key("max_lag", Kind::Int(0, 1000), "Policy lag of pipeline = overlapped: how many updates old the acting policy may be"),
    key("collect_threads", Kind::Int(0, 4096), "Threads that collect if pipeline = overlapped; 0: half of them"),
    key("checkpoint_every", Kind::Int(1, MAX_STEPS), "Environment steps between checkpoints"),
    key("keep_checkpoints", Kind::Int(1, 1_000_000), "Number of checkpoints kept"),
    key("log_interval", Kind::Int(1, MAX_STEPS), "Iterations between rows of metrics"),
    key("eval_every", Kind::Int(0, MAX_STEPS), "Environment steps between evaluations; 0: at the end only, or 20 with a target"),
    key("eval_episodes", Kind::Int(1, 1_000_000), "Episodes of an evaluation"),
    key("eval_max_steps", Kind::Int(0, u32::MAX as i64), "Steps after which an evaluation cuts an episode; 0: no limit"),
    key(
        "on_nonfinite",
        Kind::Choice(&["error", "truncate"]),
        "A reward or observation that is not finite: end the run, or truncate the episode at the step before",
    ),
    key("target_return", Kind::Float(f64::MIN, f64::MAX), "Stop when an evaluation's mean return reaches this"),
];

/// The wrappers of any environment.
const ENV: &[Key] = &[
    key("env.frame_stack", Kind::Int(1, 64), "Observations seen at once, the oldest first; 1: the last alone"),
    key(
        "env.time_limit",
        Kind::Int(0, u32::MAX as i64),
        "Steps after which an episode is truncated; 0: the environment's own limit",
    ),
    key("env.action_repeat", Kind::Int(1, 1000), "Times that each action is taken; rewards are summed, time_limit counts each"),
    key("env.reward_clip", Kind::Float(0.0, 1e9), "Bound of the rewards that are learnt from; returns are unclipped; 0: none"),
];

/// Every setting but the environment and the algorithm.
pub fn keys() -> impl Iterator<Item = &'static Key> {
    [RUN, ENV, NetConfig::KEYS, PpoConfig::KEYS, A2cConfig::KEYS, DqnConfig::KEYS].into_iter().flatten()
}

/// The device that a text names: `None` within for `auto`, a CUDA ordinal or the CPU.
pub(crate) fn parse_device(text: &str) -> Option<Device> {
    match text {
        "auto" => Some(Device::Auto),
        "cpu" => Some(Device::Cpu),
        "cuda" => Some(Device::Cuda(0)),
        _ => text.strip_prefix("cuda:").and_then(|i| i.parse().ok()).map(Device::Cuda),
    }
}

/// Where to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// The GPU if this version can use it, else the CPU.
    Auto,
    Cpu,
    Cuda(usize),
}

/// The presets: (environment, algorithm, TOML).
pub const PRESETS: &[(&str, Algo, &str)] = &[
    ("cartpole", Algo::Ppo, include_str!("../presets/cartpole-ppo.toml")),
    ("cartpole", Algo::A2c, include_str!("../presets/cartpole-a2c.toml")),
    ("cartpole", Algo::Dqn, include_str!("../presets/cartpole-dqn.toml")),
    ("mountain_car", Algo::Ppo, include_str!("../presets/mountain_car-ppo.toml")),
    ("mountain_car", Algo::A2c, include_str!("../presets/mountain_car-a2c.toml")),
    ("mountain_car", Algo::Dqn, include_str!("../presets/mountain_car-dqn.toml")),
    ("mountain_car_continuous", Algo::Ppo, include_str!("../presets/mountain_car_continuous-ppo.toml")),
    ("mountain_car_continuous", Algo::A2c, include_str!("../presets/mountain_car_continuous-a2c.toml")),
    ("acrobot", Algo::Ppo, include_str!("../presets/acrobot-ppo.toml")),
    ("acrobot", Algo::A2c, include_str!("../presets/acrobot-a2c.toml")),
    ("acrobot", Algo::Dqn, include_str!("../presets/acrobot-dqn.toml")),
    ("pendulum", Algo::Ppo, include_str!("../presets/pendulum-ppo.toml")),
    ("pendulum", Algo::A2c, include_str!("../presets/pendulum-a2c.toml")),
    ("snake", Algo::Ppo, include_str!("../presets/snake-ppo.toml")),
    ("snake", Algo::Dqn, include_str!("../presets/snake-dqn.toml")),
    ("breakout", Algo::Ppo, include_str!("../presets/breakout-ppo.toml")),
];

/// A setting and where it was made.
struct Setting {
    value: Value,
    origin: String,
}

/// Settings in layers, with the problems found so far.
#[derive(Default)]
pub struct Layers {
    settings: BTreeMap<String, Setting>,
    problems: Vec<String>,
}

impl Layers {
    /// Adds a TOML file.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, [`Error::Config`] if it is not TOML.
    pub fn add_file(&mut self, path: &Path) -> Result<(), Error> {
        self.add_toml(&read_small(path, MAX_FILE)?, &path.display().to_string())
    }

    /// Adds the TOML of a file or preset.
    fn add_toml(&mut self, text: &str, name: &str) -> Result<(), Error> {
        let bad = |e: toml::de::Error| Error::config(format!("{name}: {}", e.to_string().trim_end()));
        let table: Table = toml::from_str(text).map_err(bad)?;
        let spans = toml::de::DeTable::parse(text).map_err(bad)?;
        let line = |at: usize| text[..at].lines().count().max(1) + usize::from(text[..at].ends_with('\n'));
        for (key, value) in table {
            let span = spans.get_ref().get_key_value(&*key);
            let at = span.map_or(0, |(key, _)| key.span().start);
            if let (Value::Table(section), Some((_, spanned))) = (&value, span) {
                for (inner, value) in section {
                    let inner_span = spanned.get_ref().as_table().and_then(|t| t.get_key_value(&**inner));
                    let at = inner_span.map_or(at, |(key, _)| key.span().start);
                    self.add(&format!("{key}.{inner}"), value.clone(), format!("{name}:{}", line(at)));
                }
            } else {
                self.add(&key, value, format!("{name}:{}", line(at)));
            }
        }
        Ok(())
    }

    /// Adds `key=value` from the command line. A value that is not TOML is taken for a text.
    pub fn add_assignment(&mut self, assignment: &str) {
        match assignment.split_once('=') {
            Some((key, value)) => {
                let parsed = toml::from_str::<Table>(&format!("v = {value}")).ok().and_then(|mut table| table.remove("v"));
                self.add(key.trim(), parsed.unwrap_or_else(|| Value::String(value.into())), "--set".into());
            }
            None => self.problems.push(format!("--set {assignment}: expected key=value")),
        }
    }

    /// Adds one setting.
    pub fn add(&mut self, key: &str, value: impl Into<Value>, origin: String) {
        let key = if key == "env.name" { "env" } else { key };
        self.settings.insert(key.into(), Setting { value: value.into(), origin });
    }

    /// The environment or algorithm, if one is named.
    ///
    /// # Errors
    /// [`Error::Config`] if the value is not a text.
    pub fn text(&self, key: &str) -> Result<Option<String>, Error> {
        let Some(Setting { value, origin }) = self.settings.get(key) else { return Ok(None) };
        let text = value.as_str().map(String::from);
        let bad = || Error::config(format!("{origin}: {key} is {value}, allowed is a name in quotes; `rl list` shows them all"));
        text.ok_or_else(bad).map(Some)
    }

    /// Puts these settings over the preset and the defaults, and checks everything.
    ///
    /// # Errors
    /// [`Error::Config`] with all problems.
    pub fn resolve(mut self, entry: &Entry, algo: Algo) -> Result<Config, Error> {
        let env = entry.name;
        let own = std::mem::take(&mut self.settings);
        if let Some((_, _, preset)) = PRESETS.iter().find(|(name, of, _)| *name == env && *of == algo) {
            self.add_toml(preset, &format!("preset {env}-{}", algo.name()))?;
        }
        self.settings.extend(own);

        self.over(&defaults(env, algo), entry)
    }

    /// Puts these settings over those of `base`, a run in `entry`'s environment, and checks everything.
    ///
    /// # Errors
    /// [`Error::Config`] with all problems.
    pub fn over(mut self, base: &Config, entry: &Entry) -> Result<Config, Error> {
        for (key, ours) in [("env", base.env.name.as_str()), ("algo", base.algo.name())] {
            if let Some(Setting { value, origin }) = self.settings.remove(key)
                && value.as_str() != Some(ours)
            {
                self.problems.push(format!("{origin}: {key} is {value}, this run's is \"{ours}\""));
            }
        }
        let mut table = base.table()?;
        let refused = self.apply(base.algo, &mut table);
        // What is refused keeps the value of `base`, so that the rest can be looked at.
        let config: Config = table.try_into().map_err(|e| Error::config(e.to_string()))?;
        let concerns = config.impossible().into_iter().chain(config.unfit(entry)).chain(config.pointless());
        self.problems.extend(concerns.filter(|(keys, _)| keys.iter().all(|key| !refused.contains(*key))).map(|(_, text)| text));
        if self.problems.is_empty() { Ok(config) } else { Err(Error::Config { problems: self.problems }) }
    }

    /// Puts every setting that is allowed into `table`, and notes what is wrong with the others, which it returns.
    fn apply(&mut self, algo: Algo, table: &mut Table) -> BTreeSet<String> {
        let mut refused = BTreeSet::new();
        for (key, Setting { value, origin }) in std::mem::take(&mut self.settings) {
            let section = key.split_once('.').map(|(section, _)| section);
            let problem = match keys().find(|known| known.name == key) {
                None => {
                    let apt =
                        |name: &&str| name.split_once('.').is_none_or(|(section, _)| section == "env" || section == algo.name());
                    let near = did_you_mean(&key, keys().map(|known| known.name).filter(apt));
                    format!("{origin}: unknown setting \"{key}\"{near}; `rl list` shows them all")
                }
                Some(known) if !known.kind.allows(&value) => {
                    format!("{origin}: {key} is {value}, allowed is {}", known.kind.allowed())
                }
                Some(_) if section.is_some_and(|section| section != "env" && section != algo.name()) => {
                    format!("{origin}: {key} has no effect, the algorithm is {}", algo.name())
                }
                Some(known) => {
                    let table = match section {
                        Some(section) => table.get_mut(section).and_then(Value::as_table_mut),
                        None => Some(&mut *table),
                    };
                    table.map(|table| table.insert(known.field().into(), value));
                    continue;
                }
            };
            self.problems.push(problem);
            refused.insert(key);
        }
        refused
    }
}

/// Reads a text file of at most `limit` bytes.
///
/// # Errors
/// [`Error::Io`] if it cannot be read; [`Error::Config`] if it is not a regular file, larger, or not UTF-8.
pub fn read_small(path: &Path, limit: u64) -> Result<String, Error> {
    let bad = |why: String| Error::config(format!("{}: {why}", path.display()));
    // Asked before it is opened: opening a FIFO waits for a writer.
    let metadata = std::fs::metadata(path).map_err(Error::io(path))?;
    if !metadata.is_file() {
        return Err(bad("is not a regular file".into()));
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(Error::io(path))?;
    file.take(limit + 1).read_to_end(&mut bytes).map_err(Error::io(path))?;
    if bytes.len() as u64 > limit {
        return Err(bad(format!("is larger than {limit} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| bad(format!("is not UTF-8 text ({})", error.utf8_error())))
}

fn max_eval_steps() -> u32 {
    MAX_EVAL_STEPS
}

fn defaults(env: &str, algo: Algo) -> Config {
    let net = NetConfig::default();
    Config {
        env: EnvConfig { name: env.into(), wrappers: Wrappers::default() },
        algo,
        steps: 1_000_000,
        n_envs: 8,
        seed: 0,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        device: "auto".into(),
        pipeline: Overlap::Sync,
        max_lag: 1,
        collect_threads: 0,
        checkpoint_every: 50_000,
        keep_checkpoints: 2,
        log_interval: if algo == Algo::Dqn { 500 } else { 1 }, // its rollouts are of a step or two
        eval_every: 0,
        eval_episodes: 100,
        eval_max_steps: max_eval_steps(),
        on_nonfinite: OnNonfinite::Error,
        target_return: None,
        conv: net.conv,
        hidden: net.hidden,
        activation: net.activation,
        shared_trunk: net.shared_trunk,
        learner: net.learner,
        log_std_init: net.log_std_init,
        normalize_obs: net.normalize_obs,
        ppo: (algo == Algo::Ppo).then(PpoConfig::default),
        a2c: (algo == Algo::A2c).then(A2cConfig::default),
        dqn: (algo == Algo::Dqn).then(DqnConfig::default),
    }
}

/// The nearest of `known`, as a question, if one is near. A library whose program is not built does without it, and without strsim.
#[cfg(feature = "cli")]
pub(crate) fn did_you_mean<'a>(text: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let similarity = |name: &str| {
        // "learning_rate" is as near to "ppo.learning_rate" as to itself.
        let bare = name.rsplit('.').next().unwrap_or(name);
        strsim::jaro_winkler(text, name).max(strsim::jaro_winkler(text, bare))
    };
    let best = known.into_iter().map(|name| (similarity(name), name)).max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(similarity, _)| *similarity > 0.8).map(|(_, name)| format!(" (did you mean \"{name}\"?)")).unwrap_or_default()
}

#[cfg(not(feature = "cli"))]
fn did_you_mean<'a>(_: &str, _: impl IntoIterator<Item = &'a str>) -> String {
    String::new()
}

/// Problems of several settings together, and their keys.
type Concern = (Vec<&'static str>, String);

impl Config {
    /// The environment of these settings, in its wrappers.
    #[must_use]
    pub fn wrapped(&self, entry: &Entry) -> Entry {
        entry.wrapped(self.env.wrappers)
    }

    /// Steps of a rollout.
    #[must_use]
    pub fn n_steps(&self) -> usize {
        match (&self.ppo, &self.a2c, &self.dqn) {
            (Some(ppo), ..) => ppo.n_steps,
            (_, Some(a2c), _) => a2c.n_steps,
            (.., Some(dqn)) => dqn.rollout_steps(self.n_envs),
            _ => 1,
        }
    }

    /// How collecting and learning take turns.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self.pipeline {
            Overlap::Sync => Mode::Sync,
            Overlap::Overlapped => Mode::Overlapped { max_lag: self.max_lag },
        }
    }

    /// The threads that collect, where that overlaps with learning.
    #[must_use]
    pub fn collector_threads(&self) -> usize {
        if self.collect_threads == 0 { (self.threads / 2).max(1) } else { self.collect_threads }
    }

    /// The threads that learn.
    #[must_use]
    pub fn learner_threads(&self) -> usize {
        match self.pipeline {
            Overlap::Sync => self.threads,
            Overlap::Overlapped => self.threads.saturating_sub(self.collector_threads()).max(1),
        }
    }

    /// The networks.
    #[must_use]
    pub fn net(&self) -> NetConfig {
        let &Self { activation, shared_trunk, learner, log_std_init, normalize_obs, .. } = self;
        let (conv, hidden) = (self.conv.clone(), self.hidden.clone());
        NetConfig { conv, hidden, activation, shared_trunk, learner, log_std_init, normalize_obs }
    }

    /// Problems of the settings together, each with the settings that it concerns.
    fn impossible(&self) -> Vec<Concern> {
        let mut found = Vec::new();
        if self.collect_threads > self.threads {
            let text = "more than there are threads; raise threads or leave it at 0";
            found.push((vec!["collect_threads", "threads"], format!("collect_threads is {}, {text}", self.collect_threads)));
        }
        let mut note = |keys: &[&'static str], result: Result<(), rl_agents::Error>| {
            found.extend(result.err().map(|error| (keys.to_vec(), error.to_string())));
        };
        match (&self.ppo, &self.a2c, &self.dqn) {
            (Some(ppo), None, None) if self.algo == Algo::Ppo => {
                note(&["n_envs", "ppo.n_steps", "ppo.batch_size", "ppo.normalize_advantage"], ppo.check(self.n_envs));
            }
            (None, Some(a2c), None) if self.algo == Algo::A2c => {
                note(&["n_envs", "a2c.n_steps", "a2c.batch_size", "a2c.normalize_advantage"], a2c.check(self.n_envs));
            }
            (None, None, Some(dqn)) if self.algo == Algo::Dqn => note(&["dqn.batch_size", "dqn.buffer_size"], dqn.check()),
            _ => found.push((vec![], format!("algo is {0}, which needs the section [{0}] and no other", self.algo.name()))),
        }
        found
    }

    /// Problems of the settings with the spaces of the environment.
    fn unfit(&self, entry: &Entry) -> Option<Concern> {
        let (env, net) = (entry.name, self.net());
        match (self.wrapped(entry).spaces(), &self.dqn) {
            ((_, ActionSpace::Continuous { .. }), Some(_)) => {
                let text = format!("algo is dqn, which needs discrete actions, but {env}'s are continuous; choose ppo or a2c");
                Some((vec![], text))
            }
            ((obs, actions), Some(dqn)) => {
                let keys = ["conv", "hidden", "normalize_obs", "dqn.dueling"];
                let result = QNetwork::check(&obs, &actions, &net, dqn.dueling);
                result.err().map(|error| (keys.to_vec(), error.to_string()))
            }
            ((obs, _), None) => net.check(&obs).err().map(|error| (vec!["conv"], error.to_string())),
        }
    }

    /// Settings that could be trained with, but to no purpose. Runs that were begun before this was refused can still be read.
    fn pointless(&self) -> Vec<Concern> {
        let mut found = Vec::new();
        if let Some(dqn) = self.dqn.as_ref().filter(|dqn| dqn.learning_starts >= self.steps) {
            let (starts, steps) = (dqn.learning_starts, self.steps);
            let text = format!(
                "dqn.learning_starts is {starts}, but steps is {steps}: nothing would be learnt; lower it or raise steps"
            );
            found.push((vec!["dqn.learning_starts", "steps"], text));
        }
        let micro_batch = match (&self.ppo, &self.a2c, &self.dqn) {
            (Some(ppo), ..) => Some(("ppo.micro_batch", ppo.micro_batch)),
            (_, Some(a2c), _) => Some(("a2c.micro_batch", a2c.micro_batch)),
            (.., Some(dqn)) => Some(("dqn.micro_batch", dqn.micro_batch)),
            _ => None,
        };
        if let Some((key, size)) = micro_batch
            && let Err(error) = check_micro_batch(size, self.learner)
        {
            found.push((vec![key, "learner"], error.to_string()));
        }
        found
    }

    /// Settings that are allowed and may surprise.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(dqn) = self.dqn.as_ref().filter(|dqn| dqn.target_update_interval < self.n_envs as u64) {
            warnings.push(format!(
                "dqn.target_update_interval is {} env steps, but a step of {} environments is as many: the target network is updated \
                 once each of them",
                dqn.target_update_interval, self.n_envs
            ));
        }
        warnings
    }

    /// As a table, in which the environment is a table too.
    fn table(&self) -> Result<Table, Error> {
        let bad = |e: toml::ser::Error| Error::config(e.to_string());
        let mut env = Table::try_from(self.env.wrappers).map_err(bad)?;
        env.insert("name".into(), self.env.name.as_str().into());
        let mut table = Table::try_from(self).map_err(bad)?;
        table.insert("env".into(), Value::Table(env));
        Ok(table)
    }

    /// As TOML.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }

    /// Reads the TOML of a run or a checkpoint, which `name` names. Whether the settings fit the environment is checked where that is
    /// known.
    ///
    /// # Errors
    /// [`Error::Config`] with all problems, each with its line.
    pub fn from_toml(text: &str, name: &str) -> Result<Self, Error> {
        let mut layers = Layers::default();
        layers.add_toml(text, name)?;
        let missing = |key: &str| Error::config(format!("{name}: {key} is missing"));
        let env = layers.text("env")?.ok_or_else(|| missing("env"))?;
        let algo = layers.text("algo")?.ok_or_else(|| missing("algo"))?;
        let algo = Algo::find(&algo).map_err(|error| Error::config(format!("{name}: {error}")))?;
        layers.settings.remove("env");
        layers.settings.remove("algo");
        let mut table = Table::new();
        table.insert("env".into(), Value::Table([("name".into(), env.into())].into_iter().collect()));
        table.insert("algo".into(), algo.name().into());
        table.insert(algo.name().into(), Value::Table(Table::new()));
        layers.apply(algo, &mut table);
        if layers.problems.is_empty() {
            let config: Self =
                table.try_into().map_err(|e: toml::de::Error| Error::config(format!("{name}: {}", e.message())))?;
            layers.problems.extend(config.impossible().into_iter().map(|(_, text)| format!("{name}: {text}")));
            if layers.problems.is_empty() {
                return Ok(config);
            }
        }
        Err(Error::Config { problems: layers.problems })
    }

    /// How this run's settings differ from another's, a line each, but for those that may change when a run is resumed.
    #[must_use]
    pub fn differences(&self, other: &Self) -> String {
        let flat = |config: &Self| -> BTreeMap<String, String> {
            // Through text, which holds the shortest decimal form of an f32.
            let read = |text: &str| -> Table { toml::from_str(text).unwrap_or_default() };
            let (mut table, mut env) =
                (read(&config.to_toml()), read(&toml::to_string(&config.env.wrappers).unwrap_or_default()));
            env.insert("name".into(), config.env.name.as_str().into());
            table.insert("env".into(), Value::Table(env));
            let mut flat = BTreeMap::new();
            for (key, value) in table {
                match value {
                    Value::Table(section) => flat.extend(section.into_iter().map(|(k, v)| (format!("{key}.{k}"), v.to_string()))),
                    value => drop(flat.insert(key, value.to_string())),
                }
            }
            flat
        };
        let (a, b) = (flat(self), flat(other));
        let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        let none = String::from("not set");
        let mut text = String::new();
        for key in keys.into_iter().filter(|key| !RESUMABLE.contains(&key.as_str())) {
            let (x, y) = (a.get(key).unwrap_or(&none), b.get(key).unwrap_or(&none));
            if x != y {
                let _ = write!(text, "\n  {key}: {x} here, {y} there");
            }
        }
        text
    }
}

/// Settings that may change when a run is resumed: what a run needs of time, memory and files, and what helps after a divergence.
pub const RESUMABLE: [&str; 29] = [
    "steps",
    "threads",
    "collect_threads",
    "device",
    "checkpoint_every",
    "keep_checkpoints",
    "log_interval",
    "eval_every",
    "eval_episodes",
    "eval_max_steps",
    "on_nonfinite",
    "target_return",
    "ppo.learning_rate",
    "ppo.max_grad_norm",
    "ppo.clip_range",
    "ppo.ent_coef",
    "ppo.vf_coef",
    "ppo.target_kl",
    "ppo.micro_batch",
    "a2c.learning_rate",
    "a2c.max_grad_norm",
    "a2c.ent_coef",
    "a2c.vf_coef",
    "a2c.micro_batch",
    "dqn.learning_rate",
    "dqn.max_grad_norm",
    "dqn.tau",
    "dqn.target_update_interval",
    "dqn.micro_batch",
];

#[cfg(test)]
mod tests {
    use super::*;
    use rl_envs::catalog::find;

    fn resolve(assignments: &[&str]) -> Result<Config, Error> {
        let mut layers = Layers::default();
        assignments.iter().for_each(|a| layers.add_assignment(a));
        layers.resolve(find("cartpole").unwrap(), Algo::Ppo)
    }

    fn problems(result: Result<Config, Error>) -> Vec<String> {
        match result {
            Err(Error::Config { problems }) => problems,
            other => panic!("expected problems, got {other:?}"),
        }
    }

    #[test]
    fn layers_lie_over_each_other() {
        let config = resolve(&["ppo.gamma=0.5", "hidden=[32]", "ppo.learning_rate=lin_0.01"]).unwrap();
        let ppo = config.ppo.as_ref().unwrap();
        assert_eq!((ppo.gamma, ppo.n_steps, ppo.vf_coef), (0.5, 32, 0.5), "command line, preset, default");
        assert_eq!(config.hidden, [32]);
        assert_eq!(ppo.learning_rate, rl_agents::Schedule::Linear(0.01));
    }

    #[test]
    fn all_problems_are_reported_at_once_with_the_nearest_key() {
        let problems = problems(resolve(&["ppo.gama=0.9", "ppo.learning_rate=-1", "n_envs=0", "learning_rate=1", "x"]));
        assert_eq!(problems.len(), 5, "{problems:?}");
        let text = problems.join("\n");
        assert!(text.contains("unknown setting \"ppo.gama\" (did you mean \"ppo.gamma\"?)"), "{text}");
        assert!(text.contains("ppo.learning_rate is -1, allowed is a number X from 0 to 10, or \"lin_X\""), "{text}");
        assert!(text.contains("n_envs is 0, allowed is a whole number from 1"), "{text}");
        assert!(text.contains("(did you mean \"ppo.learning_rate\"?)"), "{text}");
        assert!(text.contains("--set x: expected key=value"), "{text}");
    }

    #[test]
    fn a_problem_in_a_file_names_its_line() {
        let mut layers = Layers::default();
        layers.add_toml("steps = 10\n\n[ppo]\ngamma = 1.5\nn_epochs = \"many\"\n", "my.toml").unwrap();
        let problems = problems(layers.resolve(find("cartpole").unwrap(), Algo::Ppo));
        assert!(problems[0].starts_with("my.toml:4: ppo.gamma is 1.5, allowed is a number from 0 to 1"), "{problems:?}");
        assert!(problems[1].starts_with("my.toml:5: ppo.n_epochs is \"many\""), "{problems:?}");
        let mut layers = Layers::default();
        assert!(
            layers
                .add_toml("steps = = 1", "bad.toml")
                .unwrap_err()
                .to_string()
                .starts_with("bad.toml: TOML parse error at line 1")
        );
    }

    #[test]
    fn a_batch_that_does_not_divide_the_rollout_is_refused() {
        for batch_size in ["100", "512"] {
            let problems = problems(resolve(&[&format!("ppo.batch_size={batch_size}")]));
            assert!(
                problems[0].starts_with(&format!("batch_size {batch_size} does not divide the rollout of 256")),
                "{problems:?}"
            );
        }
    }

    #[test]
    fn settings_of_another_algorithm_are_refused() {
        assert!(problems(resolve(&["a2c.gamma=0.9"]))[0].contains("a2c.gamma has no effect, the algorithm is ppo"));
    }

    #[test]
    fn every_setting_has_a_key_and_every_key_a_setting() {
        let mut found: Vec<String> = vec!["target_return".into()];
        for (algo, _) in Algo::ALL {
            for (key, value) in defaults("cartpole", algo).table().unwrap() {
                match value {
                    Value::Table(section) => found.extend(section.keys().map(|inner| format!("{key}.{inner}"))),
                    _ => found.push(key),
                }
            }
        }
        found.retain(|key| key != "env.name" && key != "algo");
        found.sort();
        found.dedup();
        let mut keys: Vec<&str> = keys().map(|key| key.name).collect();
        keys.sort_unstable();
        assert_eq!(found, keys);
    }

    #[test]
    fn every_preset_and_every_default_is_allowed() {
        for (env, algo, _) in PRESETS {
            Layers::default().resolve(find(env).unwrap(), *algo).unwrap();
        }
    }

    #[test]
    fn a_resolved_config_survives_its_file() {
        for (algo, _) in Algo::ALL {
            let config = Layers::default().resolve(find("cartpole").unwrap(), algo).unwrap();
            assert_eq!(Config::from_toml(&config.to_toml(), "config.toml").unwrap(), config);
        }
    }

    #[test]
    fn differences_name_what_differs() {
        let (a, b) = (resolve(&[]).unwrap(), resolve(&["hidden=[32]", "steps=7"]).unwrap());
        assert_eq!(a.differences(&b), "\n  hidden: [64, 64] here, [32] there");
    }
}
