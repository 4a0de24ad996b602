//! Settings of a run, checked.
//!
//! [`Layers`] says where a choice comes from. One check serves all layers, and the files of runs and checkpoints too: every value
//! against [`keys`], then the values together, before any work. All problems are reported at once.

pub mod budget;

pub mod algo;
mod algorithms;
pub(crate) mod auto;
pub(crate) mod crossover;
mod device;
pub(crate) mod effects;
pub(crate) mod env;
pub(crate) mod layers;
mod presets;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use rl_agents::settings::{MAX_STEPS, OnNonfinite};
use rl_agents::{Layout, LearnerKind, MAX_EVAL_STEPS, NetConfig, Policy, ReplayStorage, Snapshot, settings};
use rl_envs::catalog::Entry;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize, Serializer};
use toml::{Table, Value};

use crate::Error;
use crate::Mode;
use crate::config::algo::{Algo, AlgoConfig, Build, Traits};
use crate::config::device::{DEVICES, parse_devices};
use crate::config::env::ENV;
use crate::pipeline::faults::{FaultConfig, START_TIMEOUT};
use crate::pipeline::first_come::FirstComeConfig;
use crate::run::mapped;
use crate::sources::catalog;
use crate::thread::cores;

pub use crate::file::read_small;
pub(crate) use device::{Device, parse_device};
pub use env::EnvConfig;
pub use layers::Layers;
pub use presets::{PRESETS, WORKLOADS};
pub use rl_agents::settings::{Key, Kind};

/// Largest `max_age`, in rollouts.
pub(crate) const MAX_AGE: i64 = 1_000_000;

/// Order of collecting and learning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// One after the other.
    #[default]
    Sync,
    /// At the same time.
    Overlapped,
}

/// Order in which environments in worker processes step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Drive {
    /// The environments of a worker step together, and the policy acts for all of them.
    #[default]
    Lockstep,
    /// Each environment has a worker; the policy acts for those that have answered.
    FirstCome,
    /// First come if an environment mostly waits, else lock-step; measured.
    Auto,
}

/// Work of processes that `mpirun` has started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mpi {
    /// One training, which they share.
    #[default]
    Sync,
    /// A learner, for which the others collect with copies of its policy.
    Actors,
    /// A learner, which chooses the actions in the environments of the others.
    Central,
    /// A training each.
    Off,
}

impl Mpi {
    /// True if one process learns, and the others have the environments.
    #[must_use]
    pub(crate) fn has_actors(self) -> bool {
        matches!(self, Self::Actors | Self::Central)
    }
}

settings! {
    /// Settings of a run as a whole.
    pub struct RunConfig, "" {
        /// Environment steps to train for.
        steps: u64 = 1_000_000, Kind::Int(1, MAX_STEPS), resumable;
        /// Environments.
        n_envs: usize = 8, Kind::Int(1, 1 << 24);
        /// Seed of all randomness.
        seed: u64 = 0, Kind::Int(0, i64::MAX);
        /// Threads, by default one per core; results do not depend on them.
        threads: usize = cores(), Kind::Int(1, 4096), resumable;
        /// Processes of environments that run in processes of their own; 0: one per core.
        #[serde(default)]
        workers: usize = 0, Kind::Int(0, 4096), resumable;
        /// Order of environments in worker processes; first_come: as blocking ones.
        #[serde(default)]
        drive: Drive = Drive::Lockstep, Kind::Choice(&["lockstep", "first_come", "auto"]);
        /// Seconds until a blocking call or a worker's step counts as hung.
        #[serde(default = "RunConfig::timeout_s")]
        timeout_s: f64 = FaultConfig::default().timeout.as_secs_f64(), Kind::Float(0.001, 86_400.0), resumable;
        /// Seconds until a worker that starts, with its environments, counts as hung.
        #[serde(default = "RunConfig::start_timeout_s")]
        start_timeout_s: f64 = START_TIMEOUT.as_secs_f64(), Kind::Float(0.001, 86_400.0), resumable;
        /// Seconds until workers that close their environments are killed.
        #[serde(default = "RunConfig::close_timeout_s")]
        close_timeout_s: f64 = FaultConfig::default().close_timeout.as_secs_f64(), Kind::Float(0.0, 86_400.0), resumable;
        /// Replacements of one blocking environment or worker within ten minutes.
        #[serde(default = "RunConfig::max_restarts")]
        max_restarts: u32 = FaultConfig::default().max_restarts, Kind::Int(0, 1_000_000), resumable;
        /// Blocking environments: answers to wait for before the policy acts.
        #[serde(default = "RunConfig::min_ready")]
        min_ready: usize = FirstComeConfig::default().min_ready, Kind::Int(1, 1 << 24), resumable;
        /// Blocking environments: milliseconds that the first answer waits.
        #[serde(default = "RunConfig::deadline_ms")]
        deadline_ms: f64 = 1e3 * FirstComeConfig::default().deadline.as_secs_f64(), Kind::Float(0.0, 3.6e6), resumable;
        /// Blocking environments: rollouts until a stretch of steps is dropped.
        ///
        /// With actors, rollouts of the same actor.
        #[serde(default = "RunConfig::max_age")]
        max_age: u64 = FirstComeConfig::default().max_age, Kind::Int(0, MAX_AGE), resumable;
        /// Device to train on.
        device: String = "auto".into(), Kind::Text(|text| parse_devices(text).is_some(), DEVICES), resumable;
        /// Where environments step if a device learns; auto: there, if it can.
        #[serde(default = "RunConfig::env_device")]
        env_device: String = "auto".into(), Kind::Choice(&["auto", "cpu", "learner"]), resumable;
        /// Processes of mpirun: all learn; one learns (actors, central); a run each (off).
        #[serde(default)]
        mpi: Mpi = Mpi::Sync, Kind::Choice(&["sync", "actors", "central", "off"]), resumable;
        /// Directory of a file that holds the replay memory; empty: no file.
        #[serde(default)]
        replay_dir: String = String::new(), Kind::Text(|_| true, "the path of a directory"), resumable;
        /// Divides the replay memory among the ranks or devices that learn.
        ///
        /// The ranks exchange the transitions of every minibatch; the results are the same. If false, each rank has the whole
        /// replay memory. Without effect in one process with one device, and with `mpi = actors` and `central`, where the learner
        /// has all of it. Needs `save_replay` and `replay_on_device` to be false.
        #[serde(default)]
        shard_replay: bool = false, Kind::Bool, resumable;
        /// File of recorded steps to learn from in place of environments; empty: none.
        #[serde(default)]
        offline: String = String::new(), Kind::Text(|_| true, "the path of what rl record wrote, or of a replay.bin"), resumable;
        /// Order of collecting and learning: in turn, or at the same time.
        pipeline: Overlap = Overlap::Sync, Kind::Choice(&["sync", "overlapped"]);
        /// Largest policy lag of pipeline = overlapped, in updates.
        max_lag: usize = 1, Kind::Int(0, 1000);
        /// Threads that collect if pipeline = overlapped; 0: half of them, at most n_envs.
        ///
        /// All threads learn beside them if environments are in worker processes. Without effect if environments block.
        collect_threads: usize = 0, Kind::Int(0, 4096), resumable;
        /// Environment steps between checkpoints; 0: they take at most 2% of the time.
        checkpoint_every: u64 = 0, Kind::Int(0, MAX_STEPS), resumable;
        /// Number of checkpoints kept.
        keep_checkpoints: usize = 2, Kind::Int(1, 1_000_000), resumable;
        /// Iterations between rows of metrics.
        log_interval: u64 = 1, Kind::Int(1, MAX_STEPS), resumable;
        /// Write the scalars of metrics.csv for TensorBoard, too, in the directory tb.
        #[serde(default = "RunConfig::tensorboard")]
        tensorboard: bool = true, Kind::Bool, resumable;
        /// Environment steps between evaluations; 0: one, at the end; with a target, 20.
        eval_every: u64 = 0, Kind::Int(0, MAX_STEPS), resumable;
        /// Episodes of an evaluation.
        eval_episodes: usize = 100, Kind::Int(1, 1_000_000), resumable;
        /// Steps after which an evaluation cuts an episode; 0: no limit.
        #[serde(default = "RunConfig::eval_max_steps")]
        eval_max_steps: u32 = MAX_EVAL_STEPS, Kind::Int(0, u32::MAX as i64), resumable;
        /// Reaction to a number that is not finite: end the run, or truncate the episode.
        #[serde(default)]
        on_nonfinite: OnNonfinite = OnNonfinite::Error, Kind::Choice(&["error", "truncate"]), resumable;
        /// Stop when an evaluation's mean return reaches this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target_return: Option<f64> = None, Kind::Float(f64::MIN, f64::MAX), resumable;
    }
}

/// Everything that decides a run.
///
/// Written as one flat table, with the settings of environment and algorithm in sections.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The environment.
    pub env: EnvConfig,
    /// The run as a whole.
    pub run: RunConfig,
    /// The networks.
    pub net: NetConfig,
    /// The algorithm.
    pub algo: AlgoConfig,
}

impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written<'a> {
            env: &'a EnvConfig,
            algo: &'static str,
            #[serde(flatten)]
            run: &'a RunConfig,
            #[serde(flatten)]
            net: &'a NetConfig,
            #[serde(flatten)]
            section: &'a AlgoConfig,
        }
        let Self { env, run, net, algo } = self;
        Written { env, algo: algo.name(), run, net, section: algo }.serialize(serializer)
    }
}

/// Every setting but the environment and the algorithm.
pub fn keys() -> impl Iterator<Item = &'static Key> {
    let algos = Algo::all().into_iter().map(Algo::keys);
    [RunConfig::KEYS, ENV]
        .into_iter()
        .flatten()
        .chain(catalog::keys())
        .chain([NetConfig::KEYS].into_iter().chain(algos).flatten())
}

/// Names of the settings that a resumed run may change.
///
/// These settings control time, memory and files, or help after a divergence.
pub(crate) fn resumable() -> impl Iterator<Item = &'static str> {
    keys().filter(|key| key.resumable).map(|key| key.name)
}

impl Config {
    /// Creates the defaults for an environment and an algorithm.
    pub(crate) fn new(env: &str, algo: Algo) -> Self {
        let (mut env, algo) = (EnvConfig::new(env), AlgoConfig::new(algo));
        env.settings = catalog::complete(&env.name, Table::new()).expect("defaults are allowed");
        let run = RunConfig { log_interval: algo.settings().traits(1).log_interval, ..RunConfig::default() };
        Self { env, run, net: NetConfig::default(), algo }
    }

    /// Returns the device to train on, the first one if there are several.
    #[must_use]
    pub(crate) fn device(&self) -> Device {
        parse_devices(&self.run.device).map_or(Device::Auto, |devices| devices[0])
    }

    /// Returns the number of devices that share the training, the CPU included.
    #[must_use]
    pub(crate) fn n_devices(&self) -> usize {
        parse_devices(&self.run.device).map_or(1, |devices| devices.len())
    }

    /// Opens the devices to train on; none for the CPU.
    ///
    /// # Errors
    /// [`Error::Device`] if one does not exist.
    pub(crate) fn open_devices(&self) -> Result<Vec<rl_cuda::Device>, Error> {
        let devices = parse_devices(&self.run.device).unwrap_or_default();
        if self.device() == Device::Emulated {
            // Its kernels are compiled once.
            return Ok(vec![rl_cuda::Device::emulated()?; devices.len()]);
        }
        devices.into_iter().filter_map(|device| device.open().transpose()).collect()
    }

    /// True if a device other than the CPU learns.
    pub(super) fn learns_on_device(&self) -> bool {
        !matches!(self.device(), Device::Auto | Device::Cpu)
    }

    /// Returns the environments that step on the device that learns, in their wrappers.
    ///
    /// `None` for environments on the CPU.
    ///
    /// # Errors
    /// [`Error::Config`] if `env_device` asks for kernels that do not exist.
    pub(crate) fn env_on_device(&self, entry: &Entry) -> Result<Option<Entry>, Error> {
        let wrapped = self.wrapped(entry);
        let has_kernels = wrapped.is_twinned() && self.net.learner == LearnerKind::Fused;
        match &*self.run.env_device {
            "cpu" => Ok(None),
            "learner" if !has_kernels => Err(Error::config(format!(
                "env_device is learner, but there are no kernels for {} with these wrappers and this learner; use env_device = cpu",
                entry.name
            ))),
            "learner" => Ok(Some(wrapped)),
            // Environments and learner share the device, and can overlap only if the CPU has the environments.
            _ => Ok((has_kernels && !self.replays() && self.mode() == Mode::Sync).then_some(wrapped)),
        }
    }

    /// Returns `entry` in the wrappers of these settings.
    #[must_use]
    pub fn wrapped(&self, entry: &Entry) -> Entry {
        entry.wrapped(self.env.wrappers)
    }

    /// Returns the steps of a rollout.
    #[must_use]
    pub fn n_steps(&self) -> usize {
        self.traits().n_steps
    }

    /// Returns the properties of the algorithm.
    #[must_use]
    pub fn traits(&self) -> Traits {
        self.algo.settings().traits(self.run.n_envs)
    }

    /// True if the algorithm has a replay memory.
    fn replays(&self) -> bool {
        self.traits().replay.is_some()
    }

    /// Returns the order of collecting and learning.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self.run.pipeline {
            Overlap::Sync => Mode::Sync,
            Overlap::Overlapped => Mode::Overlapped { max_lag: self.run.max_lag },
        }
    }

    /// Returns the handling of faults.
    #[must_use]
    pub fn faults(&self) -> FaultConfig {
        let RunConfig { timeout_s, start_timeout_s, close_timeout_s, max_restarts, .. } = self.run;
        FaultConfig {
            timeout: Duration::from_secs_f64(timeout_s),
            start_timeout: Duration::from_secs_f64(start_timeout_s),
            close_timeout: Duration::from_secs_f64(close_timeout_s),
            max_restarts,
            ..FaultConfig::default()
        }
    }

    /// Returns the handling of faults of an entry; only workers take time to start.
    #[must_use]
    pub(crate) fn faults_of(&self, entry: &Entry) -> FaultConfig {
        let faults = self.faults();
        let start_timeout = if entry.batches().is_some() { faults.start_timeout } else { Duration::ZERO };
        FaultConfig { start_timeout, ..faults }
    }

    /// Returns the batching of environments that block.
    #[must_use]
    pub fn first_come(&self) -> FirstComeConfig {
        let RunConfig { min_ready, deadline_ms, max_age, .. } = self.run;
        FirstComeConfig { min_ready, deadline: Duration::from_secs_f64(1e-3 * deadline_ms), max_age }
    }

    /// True if each environment answers on its own, and none waits for another.
    #[must_use]
    pub fn blocks(&self, entry: &Entry) -> bool {
        entry.make_blocking().is_some() || self.run.drive == Drive::FirstCome
    }

    /// Returns the number of worker processes of environments in lock-step.
    #[must_use]
    pub fn workers(&self) -> usize {
        let workers = if self.run.workers == 0 { cores() } else { self.run.workers };
        workers.min(self.run.n_envs)
    }

    /// Returns the number of threads that collect, if that overlaps with learning.
    #[must_use]
    pub(crate) fn collector_threads(&self) -> usize {
        if self.run.collect_threads == 0 { (self.run.threads / 2).clamp(1, self.run.n_envs) } else { self.run.collect_threads }
    }

    /// Returns the number of threads that learn.
    ///
    /// All of them do beside threads that collect from environments that block or from worker processes, which mostly wait.
    #[must_use]
    pub(crate) fn learner_threads(&self, entry: &Entry) -> usize {
        match self.run.pipeline {
            Overlap::Overlapped if entry.batches().is_some() => self.run.threads,
            _ if self.run.mpi.has_actors() || self.blocks(entry) => self.run.threads,
            // Those of all devices.
            Overlap::Sync => (self.run.threads / self.n_devices()).max(1),
            Overlap::Overlapped => self.run.threads.saturating_sub(self.collector_threads()).max(1),
        }
    }

    /// Returns names and shapes of the parameters of a policy.
    ///
    /// # Errors
    /// The errors of the policy.
    pub fn layout(&self, entry: &Entry) -> Result<Layout, Error> {
        self.algo.settings().layout(&self.build(entry, false))
    }

    /// Builds the policy of a snapshot.
    ///
    /// # Errors
    /// The errors of the policy, and [`rl_agents::Error::Snapshot`] if the snapshot does not fit.
    pub fn policy(&self, entry: &Entry, snapshot: &Snapshot) -> Result<Box<dyn Policy>, Error> {
        let build = Build { n_collectors: 0, ..self.build(entry, false) };
        self.algo.settings().policy(&build, snapshot, 0.0)
    }

    /// Returns the inputs of a new policy or agent in `entry`'s environment.
    pub(crate) fn build(&self, entry: &Entry, fresh: bool) -> Build<'_> {
        let (n_envs, seed) = (self.run.n_envs, self.run.seed);
        let replay = ReplayStorage { memory: mapped::memory(&self.run.replay_dir), ranks: None };
        let spaces = self.wrapped(entry).spaces();
        Build {
            spaces,
            net: &self.net,
            n_envs,
            n_collectors: 1,
            first_env: 0,
            steps: self.run.steps,
            seed,
            fresh,
            device: None,
            env: None,
            ranks: None,
            replay,
        }
    }

    /// Returns the settings as a table, in which the environment is a table too.
    fn table(&self) -> Result<Table, Error> {
        let bad = |e: toml::ser::Error| Error::config(e.to_string());
        let mut env = self.env.table().map_err(bad)?;
        env.insert("name".into(), self.env.name.as_str().into());
        let mut table = Table::try_from(self).map_err(bad)?;
        table.insert("env".into(), Value::Table(env));
        Ok(table)
    }

    /// Splits a table of all settings.
    ///
    /// Those of environment and algorithm are in sections.
    fn from_table(algo: Algo, mut table: Table) -> Result<Self, toml::de::Error> {
        fn part<T: DeserializeOwned>(table: &mut Table, keys: &[Key]) -> Result<T, toml::de::Error> {
            keys.iter().filter_map(|key| table.remove_entry(key.name)).collect::<Table>().try_into()
        }
        let mut env: EnvConfig = table.remove("env").unwrap_or_else(|| Value::Table(Table::new())).try_into()?;
        catalog::complete_old(&env.name, &mut env.settings);
        env.settings = catalog::complete(&env.name, env.settings)?;
        let (run, net) = (part(&mut table, RunConfig::KEYS)?, part(&mut table, NetConfig::KEYS)?);
        let section: Table = table.remove(algo.name()).unwrap_or_else(|| Value::Table(Table::new())).try_into()?;
        Ok(Self { env, run, net, algo: AlgoConfig::read(algo, section)? })
    }

    /// Returns the settings as TOML.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }

    /// Returns all settings that are set, by name, such as `ppo.n_steps`.
    pub(crate) fn settings(&self) -> BTreeMap<String, Value> {
        // Through text, which holds the shortest decimal form of an f32.
        let read = |text: &str| -> Table { toml::from_str(text).unwrap_or_default() };
        let env = self.env.table().ok().and_then(|env| toml::to_string(&env).ok()).unwrap_or_default();
        let (mut table, mut env) = (read(&self.to_toml()), read(&env));
        env.insert("name".into(), self.env.name.as_str().into());
        table.insert("env".into(), Value::Table(env));
        let mut settings = BTreeMap::new();
        for (key, value) in table {
            match value {
                Value::Table(section) => settings.extend(section.into_iter().map(|(k, v)| (format!("{key}.{k}"), v))),
                value => drop(settings.insert(key, value)),
            }
        }
        settings
    }

    /// Lists the settings that differ from another run's, one per line.
    ///
    /// Settings that a resumed run may change are left out.
    #[must_use]
    pub fn differences(&self, other: &Self) -> String {
        let mut text = String::new();
        for (key, [x, y]) in self.differing(other) {
            if !resumable().any(|may| may == key) {
                let _ = write!(text, "\n  {key}: {x} here, {y} there");
            }
        }
        text
    }

    /// Returns the settings that differ from another run's, with both values.
    fn differing(&self, other: &Self) -> Vec<(String, [String; 2])> {
        let (a, b) = (self.settings(), other.settings());
        let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        let values = |key| [&a, &b].map(|settings| settings.get(key).map_or("not set".into(), Value::to_string));
        keys.into_iter().map(|key| (key.clone(), values(key))).filter(|(_, [x, y])| x != y).collect()
    }

    /// True if two runs learn the same task in the same way, from other random numbers.
    ///
    /// Seeds may differ, and settings of time and files.
    #[cfg(feature = "cli")]
    pub(crate) fn differs_by_seed(&self, other: &Self) -> bool {
        let of_learning = ["steps", "offline", "mpi", "max_age", "on_nonfinite"];
        let may_differ = |key: &str| {
            let of_run = RunConfig::KEYS.iter().any(|known| known.name == key && known.resumable);
            key == "seed" || of_run && !of_learning.contains(&key)
        };
        self.differing(other).iter().all(|(key, _)| may_differ(key))
    }

    /// Lists the settings of a checkpoint that differ from its run's.
    ///
    /// A checkpoint has the order that `drive = auto` has measured.
    #[must_use]
    pub(crate) fn differences_from_run(&self, run: &Self) -> String {
        let mut own = self.clone();
        if run.run.drive == Drive::Auto {
            own.run.drive = Drive::Auto;
        }
        own.differences(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::worker;
    use rl_envs::catalog::find;

    fn resolve(assignments: &[&str]) -> Result<Config, Error> {
        let mut layers = Layers::default();
        assignments.iter().for_each(|a| layers.add_assignment(a));
        layers.resolve(find("cartpole").unwrap(), Algo::PPO)
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
        let ppo = config.algo.get::<rl_agents::PpoConfig>().unwrap();
        assert_eq!((ppo.gamma, ppo.n_steps, ppo.vf_coef), (0.5, 32, 0.5), "command line, preset, default");
        assert_eq!(config.net.hidden, [32]);
        assert_eq!(ppo.learning_rate, rl_agents::Schedule::Linear(0.01));
    }

    #[test]
    fn the_policy_of_an_actor_is_random_until_learning_starts() {
        for (env, algo) in [("pendulum", Algo::SAC), ("pendulum", Algo::TD3), ("cartpole", Algo::DQN)] {
            let (entry, mut layers) = (find(env).unwrap(), Layers::default());
            let starts = format!("{}.learning_starts=500", algo.name());
            [&starts, "steps=2000"].iter().for_each(|assignment| layers.add_assignment(assignment));
            let config = layers.resolve(entry, algo).unwrap();
            let build = Build { n_collectors: 2, first_env: config.run.n_envs, ..config.build(entry, true) };
            let mut snapshot = config.algo.settings().agent(&build).unwrap().0.save().unwrap();
            // Otherwise, every action is at an end, or the first one.
            snapshot.params.fill(-5.0);
            let random = |remaining: f32| {
                let policy = config.algo.settings().policy(&build, &snapshot, remaining).unwrap();
                let (n, choice) = (1000, rl_agents::Choice::Sample { seed: 1, step: 5000, first_env: 0 });
                let (obs, mut discrete, mut continuous) = (vec![0.0; n * build.spaces.obs.len()], vec![0; n], vec![0.0; n]);
                let actions = match build.spaces.actions {
                    rl_envs::ActionSpace::Continuous { .. } => rl_envs::Actions::Continuous(&mut continuous[..]),
                    _ => rl_envs::Actions::Discrete(&mut discrete[..]),
                };
                let (log_probs, values) = (&mut vec![0.0; n][..], &mut vec![0.0; n][..]);
                let acting = rl_agents::Acting { obs: rl_envs::ObsSlice::F32(&obs), masks: &[], choice, envs: &[] };
                let acted = rl_agents::Acted { actions, log_probs, values, states: &mut [] };
                policy.act(acting, acted, &mut rl_agents::Scratch::default()).unwrap();
                let far = continuous.iter().filter(|x| x.abs() > 1.9).count() * 20;
                far + discrete.iter().filter(|action| **action == 1).count() * 2
            };
            // Uniform actions: 5 % at the ends of -2 to 2, half of two actions.
            assert!((700..1300).contains(&random(0.76)), "{algo:?}: {}", random(0.76));
            assert!(!(700..1300).contains(&random(0.74)), "{algo:?}: {}", random(0.74));
        }
    }

    #[test]
    fn all_problems_are_reported_at_once_with_the_nearest_key() {
        let near = problems(resolve(&["ppo.lr=1"])).join("\n");
        assert!(near.contains("(did you mean \"ppo.learning_rate\"?)"), "{near}");
        let problems = problems(resolve(&["ppo.gama=0.9", "ppo.learning_rate=-1", "n_envs=0", "learning_rate=1", "x"]));
        assert_eq!(problems.len(), 5, "{problems:?}");
        let text = problems.join("\n");
        assert!(text.contains("unknown setting \"ppo.gama\" (did you mean \"ppo.gamma\"?)"), "{text}");
        assert!(text.contains("ppo.learning_rate is -1; it must be a number X from 0 to 10, or \"lin_X\""), "{text}");
        assert!(text.contains("n_envs is 0; it must be a whole number from 1"), "{text}");
        assert!(text.contains("(did you mean \"ppo.learning_rate\"?)"), "{text}");
        assert!(text.contains("--set x: expected key=value"), "{text}");
    }

    #[test]
    fn a_problem_in_a_file_names_its_line() {
        let mut layers = Layers::default();
        layers.add_toml("steps = 10\n\n[ppo]\ngamma = 1.5\nn_epochs = \"many\"\n", "my.toml").unwrap();
        let problems = problems(layers.resolve(find("cartpole").unwrap(), Algo::PPO));
        assert!(problems[0].starts_with("my.toml:4: ppo.gamma is 1.5; it must be a number from 0 to 1"), "{problems:?}");
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
        let mut found: Vec<String> = vec!["target_return".into(), "critic_hidden".into()]; // which may be left out
        found.extend(catalog::keys().map(|key| key.name.into()));
        for algo in Algo::all() {
            for (key, value) in Config::new("cartpole", algo).table().unwrap() {
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
        // Those of Gymnasium's environments need a Python: tests/program/worker.rs.
        for (env, algo, toml) in PRESETS.iter().filter(|(env, ..)| !env.starts_with(worker::GYM)) {
            let (mut layers, env) = (Layers::default(), if *env == "*" { "pendulum" } else { env });
            let entry = catalog::open(env, &Table::new()).map_or_else(|| *find(env).unwrap(), Result::unwrap);
            layers.add_toml(toml, "preset").unwrap();
            layers.resolve(&entry, *algo).unwrap();
        }
    }

    #[test]
    fn a_resolved_config_survives_its_file() {
        for algo in Algo::all() {
            let of = |env| Layers::default().resolve(find(env).unwrap(), algo);
            let config = of("cartpole").or_else(|_| of("pendulum")).unwrap();
            assert_eq!(Config::from_toml(&config.to_toml(), "config.toml").unwrap(), config);
        }
    }

    #[test]
    fn differences_name_what_differs() {
        let (a, b) = (resolve(&[]).unwrap(), resolve(&["hidden=[32]", "steps=7"]).unwrap());
        assert_eq!(a.differences(&b), "\n  hidden: [64, 64] here, [32] there");
        let driven = |drive| {
            let mut config = a.clone();
            config.run.drive = drive;
            config
        };
        let [auto, lockstep, first_come] = [Drive::Auto, Drive::Lockstep, Drive::FirstCome].map(driven);
        assert_eq!(first_come.differences_from_run(&auto), "", "checkpoints have the order that was measured");
        assert!(!auto.differences(&first_come).is_empty() && !first_come.differences_from_run(&lockstep).is_empty());
        assert_eq!(lockstep.differences(&first_come), "\n  drive: \"lockstep\" here, \"first_come\" there");
    }
}
