//! Agents: PPO, A2C and DQN over one flat parameter vector.
//!
//! Reading order: [`ActorCritic`] is the policy; [`collect`](mod@collect) lets it act in a batch of environments and fills a
//! rollout; [`ppo`], [`a2c`] and [`dqn`] learn from it, one file each; they share [`params`], [`optim`] and [`distributions`].
//! Nothing here starts a thread (except for the pool that initializes wide layers), opens a file or reads a clock.
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

pub mod a2c;
pub mod collect;
pub mod counts;
pub mod distributions;
pub mod dqn;
pub mod gemm;
mod gradient;
pub mod optim;
pub mod params;
pub mod ppo;
pub mod ranks;
pub mod settings;
pub mod slices;

mod activation;
mod actor_critic;
mod agent;
mod aligned;
mod anomaly;
mod batch;
mod categories;
mod conv;
mod dense;
mod descent;
mod device_collect;
mod device_descent;
mod device_dqn;
mod device_net;
mod device_normalize;
mod device_ranks;
mod device_share;
mod device_times;
mod error;
mod evaluation;
#[cfg(test)]
mod fixture;
mod fused;
mod layered;
mod mlp;
mod net;
mod network;
mod normalize;
mod policy;
mod precision;
mod probe;
mod q_network;
mod samples;
mod size;
mod staged;
mod sums;
mod targets;
mod tile;

pub use a2c::{A2c, A2cConfig};
pub use activation::Activation;
pub use actor_critic::ActorCritic;
pub use agent::{Agent, Counters, Divergence, Metrics, NamedTensor, Schedule, Snapshot, UpdateEvent, Watch};
pub use anomaly::{Anomalies, Anomaly, catches_panics};
pub use batch::Batch;
pub use collect::{Collector, CollectorState, Episode};
pub use device_collect::DeviceCollector;
pub use device_share::MAX_LATEST;
pub use device_times::{DevicePhase, DeviceSpan, DeviceWatch};
pub use dqn::{Dqn, DqnConfig};
pub use error::Error;
pub use evaluation::{BeforeStep, EvalConfig, MAX_EVAL_STEPS, Played, evaluate, evaluate_with};
pub use network::{Learner, NetConfig};
pub use normalize::{Moments, RunningReturns, Statistics};
pub use params::{Layout, TensorInfo};
pub use policy::{Acted, Acting, Choice, CopyPolicy, Policy, Scratch, Weights};
pub use ppo::{Ppo, PpoConfig};
pub use precision::{Precision, candle_device};
pub use probe::{Probe, Stage};
pub use q_network::QNetwork;
pub use rl_envs::Isa;
pub use size::NetSize;
pub use sums::ARITHMETIC;
pub use targets::Targets;

/// Examples of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
