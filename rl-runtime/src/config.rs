//! What a user may choose, and where the choice comes from.
//!
//! Settings come in layers, each over the one before: defaults, the preset of environment and algorithm, a TOML file, the
//! command line. Every value is checked against [`KEYS`] before any work, and all problems are reported at once.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use rl_agents::collect::MAX_EVAL_STEPS;
use rl_agents::{A2cConfig, Activation, DqnConfig, Learner, NetConfig, PpoConfig};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::Error;
use crate::pipeline::Mode;

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

/// Everything that decides a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Name of the environment.
    pub env: String,
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

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name, with the section before a dot.
    pub name: &'static str,
    /// Its type and range.
    pub kind: Kind,
    /// What it is.
    pub about: &'static str,
}

/// Type and range of a setting.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A whole number between the two.
    Int(i64, i64),
    /// A number between the two.
    Float(f64, f64),
    /// A number between the two, or `lin_X` with X between the two.
    Schedule(f64, f64),
    /// true or false.
    Bool,
    /// One of these.
    Choice(&'static [&'static str]),
    /// A device.
    Device,
    /// A list of sizes of layers.
    Sizes,
    /// A list of [channels, kernel, stride].
    Conv,
}

const fn key(name: &'static str, kind: Kind, about: &'static str) -> Key {
    Key { name, kind, about }
}

/// The most environment steps of a run.
const MAX_STEPS: i64 = 1_000_000_000_000;

/// Every setting but the environment and the algorithm.
pub const KEYS: &[Key] = &[
    key("steps", Kind::Int(1, MAX_STEPS), "environment steps to train for"),
    key("n_envs", Kind::Int(1, 1 << 24), "environments"),
    key("seed", Kind::Int(0, i64::MAX), "decides all randomness"),
    key("threads", Kind::Int(1, 4096), "threads; results do not depend on them"),
    key("device", Kind::Device, "auto, cpu, cuda or cuda:i"),
    key("pipeline", Kind::Choice(&["sync", "overlapped"]), "overlapped: collect the next rollout while one is learnt from"),
    key("max_lag", Kind::Int(0, 1000), "overlapped: rollouts are acted in by the policy of so many updates before"),
    key("collect_threads", Kind::Int(0, 4096), "overlapped: how many of the threads collect; 0: half of them"),
    key("checkpoint_every", Kind::Int(1, MAX_STEPS), "environment steps from one checkpoint to the next"),
    key("keep_checkpoints", Kind::Int(1, 1_000_000), "how many checkpoints are kept"),
    key("log_interval", Kind::Int(1, MAX_STEPS), "iterations from one row of metrics to the next"),
    key(
        "eval_every",
        Kind::Int(0, MAX_STEPS),
        "environment steps from one evaluation to the next; 0: at the end only, or 20 with a target",
    ),
    key("eval_episodes", Kind::Int(1, 1_000_000), "episodes of an evaluation"),
    key("eval_max_steps", Kind::Int(0, u32::MAX as i64), "steps after which an evaluation cuts an episode; 0: no limit"),
    key("target_return", Kind::Float(f64::MIN, f64::MAX), "stop when an evaluation's mean return reaches this"),
    key(
        "conv",
        Kind::Conv,
        "convolutions before the hidden layers, shared, for observations in planes; each [channels, kernel, stride]",
    ),
    key("hidden", Kind::Sizes, "sizes of the hidden layers of each network"),
    key("activation", Kind::Choice(&["tanh", "relu"]), "what follows each hidden layer"),
    key("shared_trunk", Kind::Bool, "policy and value function share the hidden layers"),
    key("learner", Kind::Choice(&["fused", "reference"]), "what computes: the tile kernel, or candle's operations"),
    key("log_std_init", Kind::Float(-20.0, 20.0), "where the logarithms of the standard deviations of continuous actions begin"),
    key("normalize_obs", Kind::Bool, "normalize observations by their running mean and variance"),
    key("ppo.n_steps", Kind::Int(1, 1 << 24), "steps of a rollout"),
    key("ppo.batch_size", Kind::Int(1, 1 << 32), "samples of a minibatch; divides n_steps x n_envs"),
    key("ppo.n_epochs", Kind::Int(1, 10_000), "passes over a rollout"),
    key("ppo.gamma", Kind::Float(0.0, 1.0), "discount"),
    key("ppo.gae_lambda", Kind::Float(0.0, 1.0), "lambda of generalized advantage estimation"),
    key("ppo.clip_range", Kind::Schedule(0.0, 100.0), "how far the ratio of probabilities may leave 1"),
    key("ppo.clip_range_vf", Kind::Float(0.0, 1e9), "how far values may leave the old ones; 0: off"),
    key("ppo.normalize_reward", Kind::Bool, "divide rewards by the running standard deviation of discounted returns"),
    key("ppo.normalize_advantage", Kind::Bool, "normalize advantages per minibatch"),
    key("ppo.ent_coef", Kind::Float(0.0, 1e3), "weight of the entropy"),
    key("ppo.vf_coef", Kind::Float(0.0, 1e3), "weight of the value loss"),
    key("ppo.max_grad_norm", Kind::Float(1e-9, 1e9), "largest norm of a gradient"),
    key("ppo.learning_rate", Kind::Schedule(0.0, 10.0), "learning rate of Adam"),
    key("ppo.micro_batch", Kind::Int(0, 1 << 32), "samples that the reference learner holds at a time; 0: all"),
    key("ppo.target_kl", Kind::Float(0.0, 1e9), "stop an update at 1.5 times this KL divergence; 0: off"),
    key("a2c.n_steps", Kind::Int(1, 1 << 24), "steps of a rollout"),
    key("a2c.batch_size", Kind::Int(0, 1 << 32), "samples of a minibatch; divides n_steps x n_envs; 0: the whole rollout"),
    key("a2c.gamma", Kind::Float(0.0, 1.0), "discount"),
    key("a2c.gae_lambda", Kind::Float(0.0, 1.0), "lambda of generalized advantage estimation; 1: n-step returns"),
    key("a2c.normalize_reward", Kind::Bool, "divide rewards by the running standard deviation of discounted returns"),
    key("a2c.normalize_advantage", Kind::Bool, "normalize advantages per minibatch"),
    key("a2c.ent_coef", Kind::Float(0.0, 1e3), "weight of the entropy"),
    key("a2c.vf_coef", Kind::Float(0.0, 1e3), "weight of the value loss"),
    key("a2c.max_grad_norm", Kind::Float(1e-9, 1e9), "largest norm of a gradient"),
    key("a2c.micro_batch", Kind::Int(0, 1 << 32), "samples that the reference learner holds at a time; 0: all"),
    key("a2c.vtrace", Kind::Bool, "targets of rollouts that an older policy acted in are V-trace's"),
    key("a2c.learning_rate", Kind::Schedule(0.0, 10.0), "learning rate of RMSprop"),
    key("dqn.buffer_size", Kind::Int(1, 1 << 32), "transitions of the replay memory"),
    key("dqn.batch_size", Kind::Int(1, 1 << 24), "transitions of a minibatch"),
    key("dqn.learning_starts", Kind::Int(0, MAX_STEPS), "env steps before the first update"),
    key("dqn.train_freq", Kind::Int(1, 1 << 24), "env steps, all environments together, from updates to updates"),
    key("dqn.gradient_steps", Kind::Int(1, 1 << 16), "updates for every train_freq env steps"),
    key("dqn.target_update_interval", Kind::Int(1, MAX_STEPS), "env steps from one update of the target network to the next"),
    key("dqn.tau", Kind::Float(1e-9, 1.0), "how far the target network follows; 1: it becomes a copy"),
    key("dqn.gamma", Kind::Float(0.0, 1.0), "discount"),
    key("dqn.n_steps", Kind::Int(1, 64), "steps of a return before it is bootstrapped"),
    key("dqn.double", Kind::Bool, "the online network chooses the action that the target network values"),
    key("dqn.dueling", Kind::Bool, "a value and advantages instead of action values"),
    key("dqn.prioritized", Kind::Bool, "replay transitions in proportion to their errors"),
    key("dqn.priority_alpha", Kind::Float(0.0, 1.0), "exponent of priorities"),
    key("dqn.priority_beta", Kind::Float(0.0, 1.0), "exponent of importance weights at the start; 1 at the end"),
    key("dqn.exploration_fraction", Kind::Float(0.0, 1.0), "share of training in which epsilon falls"),
    key("dqn.exploration_initial_eps", Kind::Float(0.0, 1.0), "epsilon at the start"),
    key("dqn.exploration_final_eps", Kind::Float(0.0, 1.0), "epsilon at the end"),
    key("dqn.exploration_spread", Kind::Float(0.0, 100.0), "environment i of N explores with epsilon^(1 + spread i / (N - 1))"),
    key("dqn.max_grad_norm", Kind::Float(1e-9, 1e9), "largest norm of a gradient"),
    key("dqn.learning_rate", Kind::Schedule(0.0, 10.0), "learning rate of Adam"),
    key("dqn.micro_batch", Kind::Int(0, 1 << 32), "transitions that the reference learner holds at a time; 0: all"),
    key("dqn.save_replay", Kind::Bool, "checkpoints hold the replay memory, so that a resumed run equals an uninterrupted one"),
];

impl Kind {
    /// What is allowed, in words.
    #[must_use]
    pub fn allowed(self) -> String {
        match self {
            Self::Int(low, high) => format!("a whole number from {low} to {high}"),
            Self::Float(f64::MIN, _) => "a finite number".into(),
            Self::Float(low, high) => format!("a number from {low} to {high}"),
            Self::Schedule(low, high) => format!("a number X from {low} to {high}, or \"lin_X\""),
            Self::Bool => "true or false".into(),
            Self::Choice(choices) => choices.join(" or "),
            Self::Device => "auto, cpu, cuda or cuda:i".into(),
            Self::Sizes => "a list of whole numbers from 1 to 65536, such as [64, 64]".into(),
            Self::Conv => {
                "a list of [channels, kernel, stride], whole numbers from 1 to 4096, such as [[16, 3, 1], [32, 3, 1]]".into()
            }
        }
    }

    fn allows(self, value: &Value) -> bool {
        let number = |value: &Value| value.as_float().or_else(|| value.as_integer().map(|i| i as f64));
        let within = |x: f64, low: f64, high: f64| (low..=high).contains(&x);
        let sizes = |value: &Value, high: i64| {
            let of = |size: &Value| size.as_integer().is_some_and(|i| (1..=high).contains(&i));
            value.as_array().is_some_and(|sizes| sizes.len() <= 64 && sizes.iter().all(of))
        };
        match self {
            Self::Int(low, high) => value.as_integer().is_some_and(|i| (low..=high).contains(&i)),
            Self::Float(low, high) => number(value).is_some_and(|x| within(x, low, high)),
            Self::Schedule(low, high) => {
                let start = value.as_str().and_then(|text| text.strip_prefix("lin_")).and_then(|start| start.parse().ok());
                number(value).or(start).is_some_and(|x| within(x, low, high))
            }
            Self::Bool => value.is_bool(),
            Self::Choice(choices) => value.as_str().is_some_and(|text| choices.contains(&text)),
            Self::Device => value.as_str().is_some_and(|text| parse_device(text).is_some()),
            Self::Sizes => sizes(value, 65_536),
            Self::Conv => value.as_array().is_some_and(|layers| {
                layers.len() <= 64
                    && layers.iter().all(|layer| layer.as_array().is_some_and(|l| l.len() == 3) && sizes(layer, 4096))
            }),
        }
    }
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
        let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
        self.add_toml(&text, &path.display().to_string())
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
        self.settings.insert(key.into(), Setting { value: value.into(), origin });
    }

    /// The environment or algorithm, if a file names it.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<String> {
        self.settings.get(key).and_then(|setting| setting.value.as_str()).map(String::from)
    }

    /// Puts these settings over the preset and the defaults, and checks everything.
    ///
    /// # Errors
    /// [`Error::Config`] with all problems, or those of [`rl_envs::catalog::find`].
    pub fn resolve(mut self, env: &str, algo: Algo) -> Result<Config, Error> {
        let entry = rl_envs::catalog::find(env).map_err(|error| {
            let names = rl_envs::catalog::ENVS.iter().map(|entry| entry.name);
            Error::config(format!("{error}{}", did_you_mean(env, names)))
        })?;
        let own = std::mem::take(&mut self.settings);
        if let Some((_, _, preset)) = PRESETS.iter().find(|(name, of, _)| *name == env && *of == algo) {
            self.add_toml(preset, &format!("preset {env}-{}", algo.name()))?;
        }
        self.settings.extend(own);

        self.over(&defaults(entry.name, algo))
    }

    /// Puts these settings over those of `base`, and checks everything.
    ///
    /// # Errors
    /// [`Error::Config`] with all problems.
    pub fn over(mut self, base: &Config) -> Result<Config, Error> {
        let algo = base.algo;
        let mut table = Table::try_from(base).map_err(|e| Error::config(e.to_string()))?;
        for (key, Setting { value, origin }) in &self.settings {
            if key == "env" || key == "algo" {
                continue; // chosen by the caller, who has seen these
            }
            let Some(known) = KEYS.iter().find(|known| known.name == key) else {
                let apt = |name: &&str| name.split_once('.').is_none_or(|(section, _)| section == algo.name());
                let near = did_you_mean(key, KEYS.iter().map(|known| known.name).filter(apt));
                self.problems.push(format!("{origin}: unknown setting \"{key}\"{near}; `rl list` shows them all"));
                continue;
            };
            if !known.kind.allows(value) {
                self.problems.push(format!("{origin}: {key} is {value}, allowed is {}", known.kind.allowed()));
                continue;
            }
            match key.split_once('.') {
                Some((section, _)) if section != algo.name() => {
                    let problem = format!("{origin}: {key} has no effect, the algorithm is {}", algo.name());
                    self.problems.push(problem);
                }
                Some((section, inner)) => {
                    if let Some(Value::Table(section)) = table.get_mut(section) {
                        section.insert(inner.into(), value.clone());
                    }
                }
                None => {
                    table.insert(key.clone(), value.clone());
                }
            }
        }
        if self.problems.is_empty() {
            let config: Config = table.try_into().map_err(|e| Error::config(e.to_string()))?;
            match config.check_together() {
                Ok(()) => return Ok(config),
                Err(problem) => self.problems.push(problem.to_string()),
            }
        }
        Err(Error::Config { problems: self.problems })
    }
}

fn max_eval_steps() -> u32 {
    MAX_EVAL_STEPS
}

fn defaults(env: &str, algo: Algo) -> Config {
    let net = NetConfig::default();
    Config {
        env: env.into(),
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

/// The nearest of `known`, as a question, if one is near.
fn did_you_mean<'a>(text: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let similarity = |name: &str| {
        // "learning_rate" is as near to "ppo.learning_rate" as to itself.
        let bare = name.rsplit('.').next().unwrap_or(name);
        strsim::jaro_winkler(text, name).max(strsim::jaro_winkler(text, bare))
    };
    let best = known.into_iter().map(|name| (similarity(name), name)).max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(similarity, _)| *similarity > 0.8).map(|(_, name)| format!(" (did you mean \"{name}\"?)")).unwrap_or_default()
}

impl Config {
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

    /// Checks what concerns several settings at once.
    fn check_together(&self) -> Result<(), rl_agents::Error> {
        if self.collect_threads > self.threads {
            let value = self.collect_threads.to_string();
            let allowed = "more than there are threads; raise threads or leave it at 0";
            return Err(rl_agents::Error::Setting { name: "collect_threads", value, allowed });
        }
        match (&self.ppo, &self.a2c, &self.dqn) {
            (Some(ppo), ..) => ppo.check(self.n_envs),
            (_, Some(a2c), _) => a2c.check(self.n_envs),
            (.., Some(dqn)) => dqn.check(),
            _ => Ok(()),
        }
    }

    /// As TOML.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }

    /// From the TOML of a run.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|e| e.to_string())?;
        config.check_together().map_err(|e| e.to_string())?;
        Ok(config)
    }

    /// How this run's settings differ from another's, a line each, but for those that may change when a run is resumed.
    #[must_use]
    pub fn differences(&self, other: &Self) -> String {
        let flat = |config: &Self| -> BTreeMap<String, String> {
            let table: Table = toml::from_str(&config.to_toml()).unwrap_or_default();
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

/// Settings that may change when a run is resumed.
pub const RESUMABLE: [&str; 10] = [
    "steps",
    "threads",
    "collect_threads",
    "device",
    "checkpoint_every",
    "keep_checkpoints",
    "eval_every",
    "eval_episodes",
    "eval_max_steps",
    "target_return",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(assignments: &[&str]) -> Result<Config, Error> {
        let mut layers = Layers::default();
        assignments.iter().for_each(|a| layers.add_assignment(a));
        layers.resolve("cartpole", Algo::Ppo)
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
        let problems = problems(layers.resolve("cartpole", Algo::Ppo));
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
            for (key, value) in Table::try_from(defaults("cartpole", algo)).unwrap() {
                match value {
                    Value::Table(section) => found.extend(section.keys().map(|inner| format!("{key}.{inner}"))),
                    _ => found.push(key),
                }
            }
        }
        found.retain(|key| key != "env" && key != "algo");
        found.sort();
        found.dedup();
        let mut keys: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
        keys.sort_unstable();
        assert_eq!(found, keys);
    }

    #[test]
    fn every_preset_and_every_default_is_allowed() {
        for (env, algo, _) in PRESETS {
            Layers::default().resolve(env, *algo).unwrap();
        }
    }

    #[test]
    fn a_resolved_config_survives_its_file() {
        for (algo, _) in Algo::ALL {
            let config = Layers::default().resolve("cartpole", algo).unwrap();
            assert_eq!(Config::from_toml(&config.to_toml()).unwrap(), config);
        }
    }

    #[test]
    fn differences_name_what_differs() {
        let (a, b) = (resolve(&[]).unwrap(), resolve(&["hidden=[32]", "steps=7"]).unwrap());
        assert_eq!(a.differences(&b), "\n  hidden: [64, 64] here, [32] there");
    }
}
