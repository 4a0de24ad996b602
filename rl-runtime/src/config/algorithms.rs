//! The algorithms by name: those of this workspace and those that a user registers.

use std::sync::{PoisonError, RwLock};

use rl_agents::settings::Key;
use rl_agents::{
    A2c, A2cConfig, ActorCritic, DeterministicPolicy, Dqn, DqnConfig, Layout, NetConfig, Policy, Ppo, PpoConfig, QNetwork, Sac,
    SacConfig, Snapshot, SquashedGaussian, Td3, Td3Config,
};
use rl_envs::{ActionSpace, Spaces};

use crate::Error;
use crate::config::RunConfig;
use crate::config::algo::{Algo, Algorithm, Build, Built, Concern, ReplayTraits, Traits};
use crate::print::did_you_mean;

/// Properties of a replay memory, by settings that all algorithms with one have.
macro_rules! replay_traits {
    ($settings:expr $(, $acted_priorities:ident)?) => {
        ReplayTraits {
            capacity: $settings.buffer_size,
            n_step: $settings.n_steps,
            gamma: $settings.gamma,
            prioritized: $settings.prioritized,
            acted_priorities: false $(|| $settings.$acted_priorities)?,
            is_saved: $settings.save_replay,
            on_device: $settings.replay_on_device,
            learning_starts: $settings.learning_starts,
        }
    };
}

/// All algorithms of this workspace.
const BUILT_IN: [Algo; 5] = [Algo::PPO, Algo::A2C, Algo::DQN, Algo::SAC, Algo::TD3];

/// Algorithms of the user, in the order of their registration.
static REGISTERED: RwLock<Vec<Algo>> = RwLock::new(Vec::new());

impl Algo {
    /// Proximal policy optimization.
    pub const PPO: Self = Self::of::<PpoConfig>("ppo", "proximal policy optimization");
    /// Advantage actor-critic.
    pub const A2C: Self = Self::of::<A2cConfig>("a2c", "advantage actor-critic (synchronous A3C)");
    /// Deep Q-learning.
    pub const DQN: Self = Self::of::<DqnConfig>("dqn", "deep Q-learning (double, dueling, n-step, prioritized)");

    /// Soft actor-critic.
    pub(crate) const SAC: Self = Self::of::<SacConfig>("sac", "soft actor-critic, for continuous actions from a replay memory");

    /// Twin delayed deep deterministic policy gradient.
    pub(crate) const TD3: Self = Self::of::<Td3Config>("td3", "twin delayed DDPG, for continuous actions from a replay memory");

    /// Adds a user's algorithms to those that are found by name, in this process.
    ///
    /// # Errors
    /// [`Error::Config`] if a name is taken, is no part of a path, or is not the section of the settings.
    pub fn register(own: &[Self]) -> Result<(), Error> {
        let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<Self> = BUILT_IN.iter().chain(&*registered).copied().collect();
        for algo in own {
            let name = algo.name();
            if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                return Err(Error::config(format!("the algorithm \"{name}\" needs a name of letters, digits and _")));
            }
            let of_run = RunConfig::KEYS.iter().chain(NetConfig::KEYS).any(|key| key.name == name);
            if ["env", "algo", "sweep"].contains(&name) || of_run {
                return Err(Error::config(format!("\"{name}\" is a setting of every run; give your algorithm another name")));
            }
            if all.iter().any(|other| other.name() == name) {
                return Err(Error::config(format!("another algorithm is called \"{name}\", too; give yours another name")));
            }
            if let Some(key) = algo.keys().iter().find(|key| key.name.split_once('.').is_none_or(|(section, _)| section != name))
            {
                return Err(Error::config(format!(
                    "{} is a setting of the algorithm {name}: begin it with \"{name}.\"",
                    key.name
                )));
            }
            all.push(*algo);
        }
        registered.extend(own);
        Ok(())
    }

    /// Returns all algorithms, those of this workspace first.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let own = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
        BUILT_IN.iter().chain(own.iter()).copied().collect()
    }

    /// Finds an algorithm by name.
    ///
    /// # Errors
    /// [`Error::Config`] with the names that exist.
    pub fn find(name: &str) -> Result<Self, Error> {
        let all = Self::all();
        all.iter().find(|algo| algo.name() == name).copied().ok_or_else(|| {
            let known: Vec<&str> = all.iter().map(|algo| algo.name()).collect();
            let near = did_you_mean(name, known.iter().copied());
            Error::config(format!("unknown algorithm \"{name}\"; there are: {}{near}", known.join(", ")))
        })
    }
}

/// The algorithm of a training that names none: PPO.
impl Default for Algo {
    fn default() -> Self {
        Self::PPO
    }
}

fn concern(keys: &[&'static str], result: Result<(), rl_agents::Error>) -> Option<Concern> {
    result.err().map(|error| (keys.to_vec(), error.to_string()))
}

/// Keys of an actor-critic's settings that are checked together.
fn checked_together(keys: &'static [Key]) -> Vec<&'static str> {
    let fields = ["n_steps", "batch_size", "normalize_advantage"];
    let found = fields.into_iter().filter_map(|field| keys.iter().find(|key| key.field() == field));
    ["n_envs"].into_iter().chain(found.map(|key| key.name)).collect()
}

/// Builds a policy whose parameters are drawn, or will be loaded.
macro_rules! policy {
    ($policy:ident, $build:expr $(, $more:expr)?) => {{
        let Build { spaces: Spaces { obs, actions }, net, seed, fresh, .. } = $build;
        if *fresh { $policy::new(obs, actions, net $(, $more)?, *seed) } else { $policy::unset(obs, actions, net $(, $more)?) }
    }};
}

/// Implements [`Algorithm`] for the settings of an actor-critic.
macro_rules! on_policy {
    ($config:ty, $agent:ident, |$own:ident| $n_epochs:expr) => {
        impl Algorithm for $config {
            fn traits(&self, n_envs: usize) -> Traits {
                let (samples, $own) = (self.n_steps.saturating_mul(n_envs), self);
                let minibatch = self.samples(samples);
                Traits {
                    n_steps: self.n_steps,
                    minibatch,
                    micro_batch: self.micro_batch,
                    steps: Some(samples / minibatch.max(1) * $n_epochs),
                    learning_rate: self.learning_rate,
                    moments: Self::RULE.n_moments(),
                    ..Traits::default()
                }
            }

            fn check(&self, n_envs: usize) -> Option<Concern> {
                concern(&checked_together(Self::KEYS), self.check(n_envs))
            }

            fn fits(&self, _: &str, Spaces { obs, actions }: &Spaces, net: &NetConfig) -> Option<Concern> {
                let fits = ActorCritic::size(obs, actions, net).and_then(|_| self.check_net(net));
                let mut keys = checked_together(Self::KEYS);
                keys.extend(["conv", "critic_hidden", "shared_trunk", "precision", "learner", "memory"]);
                concern(&keys, fits)
            }

            fn layout(&self, build: &Build<'_>) -> Result<Layout, Error> {
                Ok(policy!(ActorCritic, build)?.layout().clone())
            }

            fn policy(&self, build: &Build<'_>, snapshot: &Snapshot, _: f32) -> Result<Box<dyn Policy>, Error> {
                let mut policy = policy!(ActorCritic, build)?;
                policy.load(snapshot)?;
                Ok(Box::new(policy))
            }

            fn agent(&self, build: &Build<'_>) -> Result<Built, Error> {
                let agent = $agent::new(policy!(ActorCritic, build)?, self.clone(), build.n_envs, build.seed)?;
                let Some(device) = &build.device else { return Ok((Box::new(agent), None)) };
                let agent = agent.on_device(device, build.rollout(self.n_steps))?;
                let envs = build.env.map(|env| agent.collector(&env, build.seed, build.ranks.as_ref())).transpose()?;
                Ok((Box::new(agent), envs))
            }

            /// The whole rollout.
            fn auto_batch(&mut self) -> Option<(usize, &mut usize)> {
                Some((0, &mut self.batch_size))
            }
        }
    };
}

on_policy!(PpoConfig, Ppo, |ppo| ppo.n_epochs);
on_policy!(A2cConfig, A2c, |_a2c| 1);

impl Algorithm for DqnConfig {
    fn traits(&self, n_envs: usize) -> Traits {
        Traits {
            n_steps: self.rollout_steps(n_envs),
            minibatch: self.batch_size,
            micro_batch: self.micro_batch,
            learning_rate: self.learning_rate,
            moments: Self::RULE.n_moments(),
            targets: 1,
            q_heads: Some(self.dueling),
            // A rollout has about `train_freq` env steps, too few for a row of metrics each.
            log_interval: 500,
            replay: Some(replay_traits!(self, acted_priorities)),
            ..Traits::default()
        }
    }

    fn check(&self, _: usize) -> Option<Concern> {
        concern(&["dqn.batch_size", "dqn.buffer_size", "dqn.prioritized", "dqn.acted_priorities"], self.check())
    }

    fn fits(&self, env: &str, Spaces { obs, actions }: &Spaces, net: &NetConfig) -> Option<Concern> {
        if !matches!(actions, ActionSpace::Discrete { .. }) {
            let are = match actions {
                _ if actions.n_discrete().is_some() => "several at once; choose ppo or a2c",
                ActionSpace::Continuous { low, high } if low.iter().chain(high).all(|bound| bound.is_finite()) => {
                    "continuous; choose sac, td3, ppo or a2c"
                }
                _ => "continuous; choose ppo or a2c",
            };
            let text = format!("algo is dqn, which needs discrete actions, but {env}'s are {are}");
            return Some((vec![], text));
        }
        concern(
            &["conv", "hidden", "critic_hidden", "normalize_obs", "precision", "learner", "memory", "dqn.dueling"],
            QNetwork::check(obs, actions, net, self.dueling),
        )
    }

    fn warnings(&self, n_envs: usize) -> Vec<String> {
        if self.target_update_interval >= n_envs as u64 {
            return Vec::new();
        }
        vec![format!(
            "dqn.target_update_interval is {} env steps, but a step of {n_envs} environments is as many: the target network is \
             updated once each of them",
            self.target_update_interval
        )]
    }

    fn layout(&self, build: &Build<'_>) -> Result<Layout, Error> {
        Ok(policy!(QNetwork, build, self.dueling)?.layout().clone())
    }

    fn policy(&self, build: &Build<'_>, snapshot: &Snapshot, remaining: f32) -> Result<Box<dyn Policy>, Error> {
        let mut network = policy!(QNetwork, build, self.dueling)?;
        network.load(snapshot)?;
        let epsilon = if build.is_before(self.learning_starts, remaining) { 1.0 } else { self.epsilon(1.0 - remaining) };
        network.explore(epsilon, self.exploration_spread, build.n_envs * build.n_collectors, build.first_env);
        Ok(Box::new(network))
    }

    fn agent(&self, build: &Build<'_>) -> Result<Built, Error> {
        let Spaces { obs, actions } = &build.spaces;
        let network = policy!(QNetwork, build, self.dueling)?;
        let n_envs = build.n_envs * build.n_collectors;
        let dqn = Dqn::new_in(network, self.clone(), obs, actions, n_envs, build.seed, &build.replay)?;
        let dqn = if let Some(device) = &build.device { dqn.on_device(device)? } else { dqn };
        Ok((Box::new(dqn), None))
    }

    fn auto_batch(&mut self) -> Option<(usize, &mut usize)> {
        Some((self.batch_at_usual_ratio(), &mut self.batch_size))
    }

    fn reduce_device_memory(&mut self) -> Option<&'static str> {
        std::mem::take(&mut self.replay_on_device).then_some("dqn.replay_on_device = false")
    }

    fn settle(&mut self) {
        (self.learning_starts, self.exploration_initial_eps) = (0, self.exploration_final_eps);
    }
}

/// Settings that a policy with scaled actions may refuse.
const SCALED: &[&str] = &["conv", "normalize_obs", "precision", "learner", "memory"];

/// Refuses discrete actions.
fn discrete(algo: &str, env: &str, actions: &ActionSpace) -> Option<Concern> {
    let refused = !matches!(actions, ActionSpace::Continuous { .. });
    let text = "are discrete; choose ppo, a2c or dqn";
    refused.then(|| (vec![], format!("algo is {algo}, which needs continuous actions, but {env}'s {text}")))
}

/// Implements [`Algorithm`] for settings of continuous actions from replay.
///
/// `targets` counts the networks beside those of an actor-critic.
macro_rules! continuous {
    ($name:literal, $config:ty, $agent:ident of $policy:ident, targets: $targets:literal $(, $own:ident explores $($explores:expr),+)?) => {
        impl Algorithm for $config {
            fn traits(&self, n_envs: usize) -> Traits {
                Traits {
                    n_steps: self.rollout_steps(n_envs),
                    minibatch: self.batch_size,
                    learning_rate: self.learning_rate,
                    moments: Self::RULE.n_moments(),
                    targets: $targets,
                    // A rollout has about `train_freq` env steps, too few for a row of metrics each.
                    log_interval: 500,
                    replay: Some(replay_traits!(self)),
                    ..Traits::default()
                }
            }

            fn check(&self, _: usize) -> Option<Concern> {
                concern(&[concat!($name, ".batch_size"), concat!($name, ".buffer_size")], self.check())
            }

            fn fits(&self, env: &str, Spaces { obs, actions }: &Spaces, net: &NetConfig) -> Option<Concern> {
                discrete($name, env, actions).or_else(|| concern(SCALED, $policy::check(obs, actions, net)))
            }

            fn layout(&self, build: &Build<'_>) -> Result<Layout, Error> {
                Ok(policy!($policy, build)?.layout().clone())
            }

            fn policy(&self, build: &Build<'_>, snapshot: &Snapshot, remaining: f32) -> Result<Box<dyn Policy>, Error> {
                let mut policy = policy!($policy, build)?;
                policy.load(snapshot)?;
                policy.act_randomly_until(if build.is_before(self.learning_starts, remaining) { u64::MAX } else { 0 });
                $(let $own = self;
                policy.explore($($explores),+);)?
                Ok(Box::new(policy))
            }

            fn agent(&self, build: &Build<'_>) -> Result<Built, Error> {
                let (Spaces { obs, actions }, n_envs) = (&build.spaces, build.n_envs * build.n_collectors);
                let policy = policy!($policy, build)?;
                let agent = $agent::new_in(policy, self.clone(), obs, actions, n_envs, build.seed, &build.replay)?;
                let agent = if let Some(device) = &build.device { agent.on_device(device)? } else { agent };
                Ok((Box::new(agent), None))
            }

            fn reduce_device_memory(&mut self) -> Option<&'static str> {
                std::mem::take(&mut self.replay_on_device).then_some(concat!($name, ".replay_on_device = false"))
            }

            fn settle(&mut self) {
                self.learning_starts = 0;
            }
        }
    };
}

// Two critics and their targets.
continuous!("sac", SacConfig, Sac of SquashedGaussian, targets: 4);
// Two critics, and targets of all three.
continuous!("td3", Td3Config, Td3 of DeterministicPolicy, targets: 5, td3 explores td3.action_noise, td3.action_noise_std);
