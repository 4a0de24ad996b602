//! Algorithms as values: a name, settings, and all that the runtime asks of them.
//!
//! The runtime never asks which algorithm it runs. An [`Algo`] is a registered name; an [`AlgoConfig`] is one with its settings,
//! which implement [`Algorithm`]. Those of this workspace are registered, and
//! [`Algo::register`] adds a user's own.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use rl_agents::ranks::Ranks;
use rl_agents::settings::{Key, Settings};
use rl_agents::{Agent, DeviceCollector, Layout, NetConfig, Policy, ReplayStorage, Schedule, Snapshot};
use rl_buffer::RolloutShape;
use rl_envs::Spaces;
use rl_envs::catalog::Entry;
use serde::de::DeserializeOwned;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use toml::Table;

use crate::Error;

/// Problem of several settings together: their keys, and a text.
pub type Concern = (Vec<&'static str>, String);

/// Inputs of a new policy or agent.
#[derive(Clone)]
pub struct Build<'a> {
    /// Spaces of observations and actions, wrappers included.
    pub spaces: Spaces,
    /// Settings of the networks.
    pub net: &'a NetConfig,
    /// Number of environments N of a rollout.
    pub n_envs: usize,
    /// Number of collectors, of `n_envs` environments each.
    ///
    /// 0 for a policy that acts outside of training.
    pub n_collectors: usize,
    /// Number of environments of the collectors before this one.
    pub first_env: usize,
    /// Env steps of the run.
    pub steps: u64,
    /// Seed of the run.
    pub seed: u64,
    /// True to draw the parameters, false if they will be loaded.
    ///
    /// Drawing takes seconds for wide layers.
    pub fresh: bool,
    /// Device to learn on, if it is not the CPU.
    pub device: Option<rl_cuda::Device>,
    /// Kernels of environments that step on that device, if they do.
    pub env: Option<Entry>,
    /// Ranks that share these environments, if there are any.
    pub ranks: Option<Arc<dyn Ranks>>,
    /// Storage of replayed transitions.
    pub replay: ReplayStorage,
}

/// An agent, and its environments if they are on the device that learns.
pub type Built = (Box<dyn Agent>, Option<DeviceCollector>);

impl Build<'_> {
    /// True if less than `env_steps` of the run have passed.
    ///
    /// The fraction `remaining` of training remains.
    pub(crate) fn is_before(&self, env_steps: u64, remaining: f32) -> bool {
        (1.0 - f64::from(remaining)) * (self.steps as f64) < env_steps as f64
    }

    /// Returns the shape of a rollout of `n_steps` steps.
    #[must_use]
    pub fn rollout(&self, n_steps: usize) -> RolloutShape {
        let Spaces { obs, actions } = &self.spaces;
        RolloutShape::new(n_steps, self.n_envs, obs, actions)
    }
}

/// Properties of an algorithm with its settings.
///
/// ```
/// use rl_runtime::algo::Traits;
///
/// let traits = Traits { n_steps: 64, ..Traits::default() };
/// assert!(traits.replay.is_none() && traits.log_interval == 1);
/// ```
#[derive(Clone, Debug)]
pub struct Traits {
    /// Steps of a rollout.
    pub n_steps: usize,
    /// Samples of a minibatch.
    pub minibatch: usize,
    /// Samples whose activations are held at the same time; 0: the minibatch.
    pub micro_batch: usize,
    /// Optimizer steps of an update; `None` if they vary.
    pub steps: Option<usize>,
    /// Schedule of the learning rate.
    pub learning_rate: Schedule,
    /// Vectors of the optimizer that are as long as the parameters.
    pub moments: usize,
    /// Target networks.
    pub targets: usize,
    /// Heads of a network of action values, true if dueling; `None`: policy and value.
    pub q_heads: Option<bool>,
    /// Default number of iterations between rows of metrics.
    pub log_interval: u64,
    /// The replay memory; `None` if rollouts are learnt from once.
    pub replay: Option<ReplayTraits>,
}

/// Properties of an algorithm's replay memory.
#[derive(Clone, Copy, Debug)]
pub struct ReplayTraits {
    /// Transitions that it holds.
    pub capacity: usize,
    /// Steps of a transition.
    pub n_step: usize,
    /// Discount of future rewards.
    pub gamma: f32,
    /// True if transitions are drawn by priority.
    pub prioritized: bool,
    /// True if the values of the acting policy decide first priorities.
    pub acted_priorities: bool,
    /// True if checkpoints include it.
    pub is_saved: bool,
    /// True if a device that learns has a copy.
    pub on_device: bool,
    /// Env steps before the first update.
    pub learning_starts: u64,
}

impl Default for Traits {
    fn default() -> Self {
        Self {
            n_steps: 0,
            minibatch: 0,
            micro_batch: 0,
            steps: None,
            learning_rate: Schedule::Constant(0.0),
            moments: 0,
            targets: 0,
            q_heads: None,
            log_interval: 1,
            replay: None,
        }
    }
}

/// Settings of an algorithm, from which the runtime plans and builds.
///
/// Implemented by [`PpoConfig`](rl_agents::PpoConfig), for example, and by the settings of a user's own algorithm.
pub trait Algorithm: fmt::Debug + Send + Sync + 'static {
    /// Returns the properties, for `n_envs` environments.
    fn traits(&self, n_envs: usize) -> Traits;

    /// Finds a problem of several settings together.
    fn check(&self, n_envs: usize) -> Option<Concern>;

    /// Finds a problem of the settings with an environment.
    fn fits(&self, env: &str, spaces: &Spaces, net: &NetConfig) -> Option<Concern>;

    /// Returns warnings of settings that are allowed and may surprise.
    fn warnings(&self, _n_envs: usize) -> Vec<String> {
        Vec::new()
    }

    /// Returns names and shapes of the parameters.
    ///
    /// # Errors
    /// Errors of the policy.
    fn layout(&self, build: &Build<'_>) -> Result<Layout, Error>;

    /// Builds the policy of a snapshot.
    ///
    /// Its exploration is that of the moment when the fraction `remaining` of training remains, in the environments of one
    /// collector.
    ///
    /// # Errors
    /// Errors of the policy, and [`rl_agents::Error::Snapshot`] if the snapshot does not fit.
    fn policy(&self, build: &Build<'_>, snapshot: &Snapshot, remaining: f32) -> Result<Box<dyn Policy>, Error>;

    /// Builds the agent, with its environments if they step on the device that learns.
    ///
    /// # Errors
    /// Errors of the agent; [`Error::Config`] if it cannot learn on a device that is given.
    fn agent(&self, build: &Build<'_>) -> Result<Built, Error>;

    /// Returns the minibatch of `batch_size = "auto"`, and the setting.
    ///
    /// `rl train` halves it until the training fits into memory. `None` if "auto" is not allowed.
    fn auto_batch(&mut self) -> Option<(usize, &mut usize)> {
        None
    }

    /// Turns off what takes memory of a device and is not needed; returns the setting.
    fn reduce_device_memory(&mut self) -> Option<&'static str> {
        None
    }

    /// Sets what changes in the course of a training to its last value.
    fn settle(&mut self) {}
}

/// An [`Algorithm`] whose values can be copied, compared and written.
trait AnyAlgorithm: Algorithm + erased_serde::Serialize {
    fn copy(&self) -> Box<dyn AnyAlgorithm>;
    fn equals(&self, other: &dyn Any) -> bool;
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

impl<S: Algorithm + Clone + PartialEq + Serialize> AnyAlgorithm for S {
    fn copy(&self) -> Box<dyn AnyAlgorithm> {
        Box::new(self.clone())
    }

    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref::<S>().is_some_and(|other| self == other)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// An algorithm by its name.
#[derive(Clone, Copy)]
pub struct Algo {
    name: &'static str,
    about: &'static str,
    keys: &'static [Key],
    read: fn(Table) -> Result<Box<dyn AnyAlgorithm>, toml::de::Error>,
    default: fn() -> Box<dyn AnyAlgorithm>,
}

impl Algo {
    /// Describes an algorithm by its settings, whose keys have the section `name`.
    #[must_use]
    pub const fn of<S>(name: &'static str, about: &'static str) -> Self
    where
        S: Algorithm + Settings + Default + Clone + PartialEq + Serialize + DeserializeOwned,
    {
        Self {
            name,
            about,
            keys: S::KEYS,
            read: |table| Ok(Box::new(table.try_into::<S>()?)),
            default: || Box::new(S::default()),
        }
    }

    /// Returns the name that users write.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Returns a line about the algorithm.
    #[must_use]
    pub fn about(self) -> &'static str {
        self.about
    }

    /// Returns the settings that only this algorithm has.
    #[must_use]
    pub fn keys(self) -> &'static [Key] {
        self.keys
    }
}

impl PartialEq for Algo {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Algo {}

impl fmt::Debug for Algo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// An algorithm and its settings.
pub struct AlgoConfig {
    algo: Algo,
    settings: Box<dyn AnyAlgorithm>,
}

impl AlgoConfig {
    /// Creates the default settings.
    #[must_use]
    pub fn new(algo: Algo) -> Self {
        Self { algo, settings: (algo.default)() }
    }

    /// Reads the settings of an algorithm from a table, without its section.
    pub(crate) fn read(algo: Algo, table: Table) -> Result<Self, toml::de::Error> {
        Ok(Self { algo, settings: (algo.read)(table)? })
    }

    /// Returns the algorithm.
    #[must_use]
    pub fn algo(&self) -> Algo {
        self.algo
    }

    /// Returns the name that users write.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.algo.name
    }

    /// Returns the settings, if they are of this type.
    #[must_use]
    pub fn get<S: Algorithm>(&self) -> Option<&S> {
        self.settings.as_any().downcast_ref()
    }

    /// Returns the settings for writing, if they are of this type.
    pub fn get_mut<S: Algorithm>(&mut self) -> Option<&mut S> {
        self.settings.as_any_mut().downcast_mut()
    }

    /// Returns the settings as the runtime sees them.
    #[must_use]
    pub fn settings(&self) -> &dyn Algorithm {
        &*self.settings
    }

    pub(crate) fn settings_mut(&mut self) -> &mut dyn Algorithm {
        &mut *self.settings
    }

    /// Returns the key of one of the algorithm's settings, if it has that.
    pub(crate) fn key(&self, field: &str) -> Option<&'static str> {
        self.algo.keys.iter().find(|key| key.field() == field).map(|key| key.name)
    }
}

impl Clone for AlgoConfig {
    fn clone(&self) -> Self {
        Self { algo: self.algo, settings: self.settings.copy() }
    }
}

impl PartialEq for AlgoConfig {
    fn eq(&self, other: &Self) -> bool {
        self.algo == other.algo && self.settings.equals(other.settings.as_any())
    }
}

impl fmt::Debug for AlgoConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

/// Written as a section with the algorithm's name.
impl Serialize for AlgoConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Section<'a>(&'a dyn AnyAlgorithm);
        impl Serialize for Section<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                erased_serde::serialize(self.0, serializer)
            }
        }
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry(self.algo.name, &Section(&*self.settings))?;
        map.end()
    }
}
