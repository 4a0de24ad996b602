//! Agents: PPO, A2C, DQN, SAC and TD3 over flat parameter vectors.
//!
//! Reading order: [`ActorCritic`] is the policy; [`collect`](mod@collect) lets it act in a batch of environments and fills a
//! rollout; [`ppo`], [`a2c`], [`dqn`], [`sac`] and [`td3`] learn from it, one file each; they share [`params`], [`optim`] and
//! [`distributions`]. Nothing here starts a thread (except for the pool that initializes wide layers), opens a file or reads a
//! clock.
//!
//! ```
//! use rl_agents::{ActorCritic, Agent, Collector, NetConfig, Ppo, PpoConfig};
//! use rl_envs::{Pool, cartpole::CartPole};
//!
//! let pool = Pool::new(2)?;
//! let config = PpoConfig { n_steps: 16, batch_size: 32, n_epochs: 1, ..PpoConfig::default() };
//! let mut collector = Collector::new(4, &CartPole::default(), &pool, 0)?;
//! let policy = ActorCritic::new(collector.observation_space(), collector.action_space(), &NetConfig::default(), 0)?;
//! let mut agent = Ppo::new(policy, config, 4, 0)?;
//! let mut rollout = collector.rollout(16)?;
//!
//! collector.collect(agent.acting(1.0), &mut rollout)?;
//! let metrics = agent.update(&rollout, 1.0, &pool)?;
//! assert!(metrics.get("train/loss").is_some_and(f32::is_finite));
//! # Ok::<(), rl_agents::Error>(())
//! ```

pub mod collect;
pub mod counts;
pub mod ranks;
pub mod settings;

mod agent;
mod algorithms;
mod device;
mod error;
#[cfg(test)]
mod fixture;
mod kernel;
mod learner;
mod network;
mod policy;
mod probe;

pub use agent::{
    Agent, Counters, Divergence, Metrics, NamedTensor, Observed, OnDevice, OrAuto, Replays, Schedule, Shareable, Snapshot,
    UpdateEvent, Watch,
};
pub use algorithms::a2c::{A2c, A2cConfig};
pub use algorithms::dqn::{Dqn, DqnConfig};
pub use algorithms::on_policy::OnPolicy;
pub use algorithms::ppo::{Ppo, PpoConfig};
pub use algorithms::replayed::ReplayStorage;
pub use algorithms::sac::{Sac, SacConfig};
pub use algorithms::td3::{Td3, Td3Config};
pub use algorithms::{a2c, dqn, ppo, sac, td3};
pub use collect::anomaly::{Anomalies, Anomaly, catches_panics};
pub use collect::device::DeviceCollector;
pub use collect::play::{BeforeStep, EvalConfig, MAX_EVAL_STEPS, Played, evaluate, evaluate_with};
pub use collect::{Collector, CollectorState, Episode};
pub use device::share::MAX_LATEST;
pub use device::times::{DevicePhase, DeviceSpan, DeviceWatch};
pub use error::Error;
pub use kernel::sums::ARITHMETIC;
pub use kernel::{gemm, slices};
pub use learner::batch::TensorBatch;
pub use learner::optim;
pub use learner::targets::Targets;
pub use network::activation::Activation;
pub use network::normalize::{Moments, RunningReturns, Statistics};
pub use network::params;
pub use network::params::{Layout, TensorInfo};
pub use network::precision::{Precision, candle_device};
pub use network::recurrent::MemoryKind;
pub use policy::actor_critic::ActorCritic;
pub use policy::deterministic::{ActionNoise, DeterministicPolicy};
pub use policy::distributions;
pub use policy::network::{LearnerKind, NetConfig};
pub use policy::q_network::QNetwork;
pub use policy::size::NetSize;
pub use policy::squashed::SquashedGaussian;
pub use policy::{Acted, Acting, Choice, CopyPolicy, Policy, Scratch, Weights};
pub use probe::{Probe, Stage};
pub use rl_envs::Isa;

/// Examples of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
