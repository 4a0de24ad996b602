//! Algorithms: names, settings, and all that the runtime knows of each.
//!
//! A new algorithm takes its file in rl-agents, a line in the list below, and an implementation of `Algorithm`.

use std::sync::Arc;

use rl_agents::ranks::Ranks;
use rl_agents::settings::Key;
use rl_agents::{
    A2c, A2cConfig, ActorCritic, Agent, DeviceCollector, Dqn, DqnConfig, Layout, NetConfig, Policy, Ppo, PpoConfig, QNetwork,
    Schedule, Snapshot,
};
use rl_buffer::{Memory, RolloutShape};
use rl_envs::{ActionSpace, Space};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::print::did_you_mean;

macro_rules! algorithms {
    ($($algo:ident($config:ty), $name:literal, $about:literal;)+) => {
        /// Name of an algorithm.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Algo {
            $(#[doc = $about] $algo,)+
        }

        /// Algorithm and its settings.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum AlgoConfig {
            $(#[doc = $about] $algo($config),)+
        }

        impl Algo {
            /// All algorithms, with a line about each.
            pub const ALL: [(Self, &'static str); [$($name),+].len()] = [$((Self::$algo, $about)),+];

            /// Returns the name that users write.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$algo => $name,)+
                }
            }

            /// Returns the settings that only this algorithm has.
            #[must_use]
            pub fn keys(self) -> &'static [Key] {
                match self {
                    $(Self::$algo => <$config>::KEYS,)+
                }
            }
        }

        impl AlgoConfig {
            /// Creates the default settings.
            #[must_use]
            pub fn new(algo: Algo) -> Self {
                match algo {
                    $(Algo::$algo => Self::$algo(<$config>::default()),)+
                }
            }

            /// Returns the algorithm.
            #[must_use]
            pub fn algo(&self) -> Algo {
                match self {
                    $(Self::$algo(_) => Algo::$algo,)+
                }
            }

            pub(crate) fn settings(&self) -> &dyn Algorithm {
                match self {
                    $(Self::$algo(settings) => settings,)+
                }
            }
        }
    };
}

algorithms! {
    Ppo(PpoConfig), "ppo", "proximal policy optimization";
    A2c(A2cConfig), "a2c", "advantage actor-critic (synchronous A3C)";
    Dqn(DqnConfig), "dqn", "deep Q-learning (double, dueling, n-step, prioritized)";
}

impl Algo {
    /// Finds an algorithm by name.
    ///
    /// # Errors
    /// [`Error::Config`] with the names that exist.
    pub fn find(name: &str) -> Result<Self, Error> {
        let known = Self::ALL.map(|(algo, _)| algo.name());
        let found = Self::ALL.into_iter().map(|(algo, _)| algo).find(|algo| algo.name() == name);
        found.ok_or_else(|| {
            let near = did_you_mean(name, known);
            Error::config(format!("unknown algorithm \"{name}\"; there are: {}{near}", known.join(", ")))
        })
    }
}

impl AlgoConfig {
    /// Returns the name that users write.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.algo().name()
    }

    /// Returns `batch_size`.
    #[cfg(feature = "cli")]
    pub(crate) fn batch_size(&mut self) -> &mut usize {
        match self {
            Self::Ppo(ppo) => &mut ppo.batch_size,
            Self::A2c(a2c) => &mut a2c.batch_size,
            Self::Dqn(dqn) => &mut dqn.batch_size,
        }
    }

    /// Returns the settings of DQN, if it is the algorithm.
    #[must_use]
    pub fn dqn(&self) -> Option<&DqnConfig> {
        if let Self::Dqn(dqn) = self { Some(dqn) } else { None }
    }
}

/// Problem of several settings together: their keys, and a text.
pub(crate) type Concern = (Vec<&'static str>, String);

/// Inputs of a new policy or agent.
#[derive(Clone)]
pub(crate) struct Build<'a> {
    pub(crate) spaces: (Space, ActionSpace),
    pub(crate) net: &'a NetConfig,
    pub(crate) n_envs: usize,
    /// Number of collectors, of `n_envs` environments each.
    pub(crate) n_collectors: usize,
    pub(crate) seed: u64,
    /// True to draw the parameters, false if they will be loaded.
    ///
    /// Drawing takes seconds for wide layers.
    pub(crate) fresh: bool,
    /// Device to learn on, if it is not the CPU.
    pub(crate) device: Option<rl_cuda::Device>,
    /// Kernels of environments that step on that device, if they do.
    pub(crate) env: Option<&'static str>,
    /// Ranks that share these environments, if there are any.
    pub(crate) ranks: Option<Arc<dyn Ranks>>,
    /// Memory of replayed transitions.
    pub(crate) replay: Arc<dyn Memory>,
}

/// An agent, and its environments if they are on the device that learns.
pub(crate) type Built = (Box<dyn Agent>, Option<DeviceCollector>);

impl Build<'_> {
    /// Returns the shape of a rollout of `n_steps` steps.
    pub(crate) fn rollout(&self, n_steps: usize) -> RolloutShape {
        let (obs, actions) = &self.spaces;
        RolloutShape::new(n_steps, self.n_envs, obs, actions)
    }
}

/// Figures from which the memory of learning is computed.
pub(crate) struct Figures {
    /// Vectors of the optimizer that are as long as the parameters.
    pub(crate) moments: usize,
    pub(crate) minibatch: usize,
    pub(crate) micro_batch: usize,
}

/// Settings of an algorithm, from which the runtime plans and builds.
///
/// Implemented by [`PpoConfig`], [`A2cConfig`] and [`DqnConfig`].
pub(crate) trait Algorithm {
    /// Returns the steps of a rollout.
    fn n_steps(&self, n_envs: usize) -> usize;

    /// Returns the sizes from which the memory of learning is computed.
    fn figures(&self, n_envs: usize) -> Figures;

    /// Returns the schedule of the learning rate.
    fn learning_rate(&self) -> Schedule;

    /// Returns why each column must keep one environment, as a clause.
    ///
    /// `None` if it need not.
    fn why_fixed_columns(&self) -> Option<&'static str> {
        None
    }

    /// Default number of iterations between rows of metrics.
    fn log_interval(&self) -> u64 {
        1
    }

    /// Finds a problem of several settings together.
    fn check(&self, n_envs: usize) -> Option<Concern>;

    /// Finds a problem of the settings with an environment.
    fn fits(&self, _env: &str, (obs, _): &(Space, ActionSpace), net: &NetConfig) -> Option<Concern> {
        concern(&["conv", "precision", "learner"], net.check(obs))
    }

    /// Returns names and shapes of the parameters.
    fn layout(&self, build: &Build<'_>) -> Result<Layout, Error> {
        Ok(actor_critic(build)?.layout().clone())
    }

    /// Builds the policy of a snapshot.
    ///
    /// Its exploration is that of the moment when the fraction `remaining` of training remains.
    fn policy(&self, build: &Build<'_>, snapshot: &Snapshot, _remaining: f32) -> Result<Box<dyn Policy>, Error> {
        let mut policy = actor_critic(build)?;
        policy.load(snapshot)?;
        Ok(Box::new(policy))
    }

    /// Builds the agent, with its environments if they step on the device that learns.
    fn agent(&self, build: &Build<'_>) -> Result<Built, Error>;
}

fn concern(keys: &[&'static str], result: Result<(), rl_agents::Error>) -> Option<Concern> {
    result.err().map(|error| (keys.to_vec(), error.to_string()))
}

fn actor_critic(Build { spaces: (obs, actions), net, seed, fresh, .. }: &Build<'_>) -> Result<ActorCritic, rl_agents::Error> {
    if *fresh { ActorCritic::new(obs, actions, net, *seed) } else { ActorCritic::unset(obs, actions, net) }
}

impl Algorithm for PpoConfig {
    fn n_steps(&self, _: usize) -> usize {
        self.n_steps
    }

    fn figures(&self, n_envs: usize) -> Figures {
        Figures {
            moments: Self::RULE.n_moments(),
            minibatch: self.samples(self.n_steps.saturating_mul(n_envs)),
            micro_batch: self.micro_batch,
        }
    }

    fn learning_rate(&self) -> Schedule {
        self.learning_rate
    }

    fn check(&self, n_envs: usize) -> Option<Concern> {
        concern(&["n_envs", "ppo.n_steps", "ppo.batch_size", "ppo.normalize_advantage"], self.check(n_envs))
    }

    fn agent(&self, build: &Build<'_>) -> Result<Built, Error> {
        let ppo = Ppo::new(actor_critic(build)?, self.clone(), build.n_envs, build.seed)?;
        let Some(device) = &build.device else { return Ok((Box::new(ppo), None)) };
        let ppo = ppo.on_device(device, build.rollout(self.n_steps))?;
        let envs = build.env.map(|env| ppo.collector(env, build.seed, build.ranks.as_ref())).transpose()?;
        Ok((Box::new(ppo), envs))
    }
}

impl Algorithm for A2cConfig {
    fn n_steps(&self, _: usize) -> usize {
        self.n_steps
    }

    fn figures(&self, n_envs: usize) -> Figures {
        Figures {
            moments: Self::RULE.n_moments(),
            minibatch: self.samples(self.n_steps.saturating_mul(n_envs)),
            micro_batch: self.micro_batch,
        }
    }

    fn learning_rate(&self) -> Schedule {
        self.learning_rate
    }

    fn check(&self, n_envs: usize) -> Option<Concern> {
        concern(&["n_envs", "a2c.n_steps", "a2c.batch_size", "a2c.normalize_advantage"], self.check(n_envs))
    }

    fn agent(&self, build: &Build<'_>) -> Result<Built, Error> {
        let a2c = A2c::new(actor_critic(build)?, self.clone(), build.n_envs, build.seed)?;
        let Some(device) = &build.device else { return Ok((Box::new(a2c), None)) };
        let a2c = a2c.on_device(device, build.rollout(self.n_steps))?;
        let envs = build.env.map(|env| a2c.collector(env, build.seed, build.ranks.as_ref())).transpose()?;
        Ok((Box::new(a2c), envs))
    }
}

/// Builds DQN's network.
fn q_network(dqn: &DqnConfig, build: &Build<'_>) -> Result<QNetwork, rl_agents::Error> {
    let Build { spaces: (obs, actions), net, seed, fresh, .. } = build;
    if *fresh { QNetwork::new(obs, actions, net, dqn.dueling, *seed) } else { QNetwork::unset(obs, actions, net, dqn.dueling) }
}

impl Algorithm for DqnConfig {
    fn n_steps(&self, n_envs: usize) -> usize {
        self.rollout_steps(n_envs)
    }

    fn figures(&self, _: usize) -> Figures {
        Figures { moments: Self::RULE.n_moments(), minibatch: self.batch_size, micro_batch: self.micro_batch }
    }

    fn learning_rate(&self) -> Schedule {
        self.learning_rate
    }

    fn why_fixed_columns(&self) -> Option<&'static str> {
        (self.exploration_spread > 0.0).then_some("dqn.exploration_spread is above 0")
    }

    /// A rollout has about `train_freq` env steps, too few for a row of metrics each.
    fn log_interval(&self) -> u64 {
        500
    }

    fn check(&self, _: usize) -> Option<Concern> {
        concern(&["dqn.batch_size", "dqn.buffer_size"], self.check())
    }

    fn fits(&self, env: &str, (obs, actions): &(Space, ActionSpace), net: &NetConfig) -> Option<Concern> {
        if !matches!(actions, ActionSpace::Discrete { .. }) {
            let kind = if actions.n_discrete().is_some() { "several at once" } else { "continuous" };
            let text = format!("algo is dqn, which needs discrete actions, but {env}'s are {kind}; choose ppo or a2c");
            return Some((vec![], text));
        }
        concern(
            &["conv", "hidden", "normalize_obs", "precision", "learner", "dqn.dueling"],
            QNetwork::check(obs, actions, net, self.dueling),
        )
    }

    fn layout(&self, build: &Build<'_>) -> Result<Layout, Error> {
        Ok(q_network(self, build)?.layout().clone())
    }

    fn policy(&self, build: &Build<'_>, snapshot: &Snapshot, remaining: f32) -> Result<Box<dyn Policy>, Error> {
        let mut network = q_network(self, build)?;
        network.load(snapshot)?;
        network.explore(self.epsilon(1.0 - remaining), 0.0, 1);
        Ok(Box::new(network))
    }

    fn agent(&self, build: &Build<'_>) -> Result<Built, Error> {
        let (obs, actions) = &build.spaces;
        let network = q_network(self, build)?;
        let n_envs = build.n_envs * build.n_collectors;
        let dqn = Dqn::new_in(network, self.clone(), (obs, actions), n_envs, build.seed, &build.replay)?;
        let dqn = if let Some(device) = &build.device { dqn.on_device(device)? } else { dqn };
        Ok((Box::new(dqn), None))
    }
}
