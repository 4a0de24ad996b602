//! Soft actor-critic (SAC): continuous actions from a replay memory.
//!
//! Paper: Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", 2018.
//!
//! Settings and metrics have the meanings of Stable-Baselines3, and an update has its order: the temperature, both critics, the
//! actor, the target critics. Differences: counters are env steps, summed over environments; `gradient_steps` for every
//! `train_freq` env steps beyond `learning_starts`, for any number of environments; a resumed run whose replay memory was not
//! saved refills it with `learning_starts` env steps of the trained policy before it learns again. The networks are those of
//! [`NetConfig`](crate::NetConfig), where Stable-Baselines3 has two hidden layers of 256 with ReLU and, as `ortho_init = false`,
//! PyTorch's initialization.
//!
//! Read `learn` first, then `actor_and_critics.rs`, which TD3 shares. `rl train pendulum --algo sac` runs it.

use std::sync::Arc;

use candle_core::Tensor;
use rl_buffer::Rollout;
use rl_envs::{ActionSpace, Pool, Space, math};

use crate::agent::{Observed, OnDevice, Replays, Shareable};
use crate::algorithms::actor_and_critics::{ActorAndCritics, Continuous, STEPS};
use crate::algorithms::critics::{CriticSettings, array, counts, moments};
use crate::algorithms::replayed::{Experience, Learns, Priorities, ReplaySettings, ReplayStorage, replay_settings};
use crate::device::replayed::actor_critics::DeviceUpdates;
use crate::device::replayed::sac::DeviceSac;
use crate::kernel::tile::{Tile, TileLoss};
use crate::learner::optim::{Optimizer, Rule, StepCount, UNCLIPPED};
use crate::policy::squashed::{ActorSamples, ContinuousPolicy, Draws, SquashedGaussian};
use crate::policy::twin_q::{TwinQ, Value};
use crate::probe::{self, Stage, Threads};
use crate::ranks::Ranks;
use crate::settings::{Kind, MAX_STEPS};
use crate::{Agent, Error, Layout, Metrics, OrAuto, Policy, Schedule, Snapshot, UpdateEvent};

crate::settings! {
    /// Settings of SAC.
    pub struct SacConfig, "sac." {
        /// Transitions of the replay memory.
        buffer_size: usize = 1_000_000, Kind::Int(1, 1 << 32);
        /// Transitions of a minibatch.
        batch_size: usize = 256, Kind::Int(1, 1 << 24);
        /// Env steps before the first update, with uniformly random actions.
        learning_starts: u64 = 100, Kind::Int(0, MAX_STEPS);
        /// Env steps, summed over environments, between updates.
        train_freq: u64 = 1, Kind::Int(1, 1 << 24);
        /// Updates for every train_freq env steps.
        gradient_steps: u64 = 1, Kind::Int(1, 1 << 16);
        /// Updates between those of the target critics.
        target_update_interval: u64 = 1, Kind::Int(1, MAX_STEPS), resumable;
        /// Step of the target critics towards the critics; 1: a copy.
        tau: f32 = 0.005, Kind::Float(1e-9, 1.0), resumable;
        /// Discount of future rewards.
        gamma: f32 = 0.99, Kind::Float(0.0, 1.0);
        /// Steps of a return before the bootstrap.
        n_steps: usize = 1, Kind::Int(1, 64);
        /// Weight of the entropy, the temperature; "auto": learnt, from 1 on.
        ent_coef: OrAuto = OrAuto::Auto, Kind::OrAuto(0.0, 1e9);
        /// Entropy that a learnt temperature aims at; "auto": minus the dimensions.
        target_entropy: OrAuto = OrAuto::Auto, Kind::OrAuto(-1e9, 1e9);
        /// Samples transitions in proportion to their errors.
        prioritized: bool = false, Kind::Bool;
        /// Exponent of priorities.
        priority_alpha: f32 = 0.6, Kind::Float(0.0, 1.0);
        /// Exponent of importance weights at the start; it rises to 1.
        priority_beta: f32 = 0.4, Kind::Float(0.0, 1.0);
        /// Learning rate of the three Adam optimizers.
        learning_rate: Schedule = Schedule::Constant(3e-4), Kind::Schedule(0.0, 10.0), resumable;
        /// Saves the replay memory in checkpoints.
        ///
        /// A resumed run then equals an uninterrupted one bit for bit. Without it the memory is refilled before learning
        /// continues.
        save_replay: bool = false, Kind::Bool;
        /// Keeps a copy of the replay memory on the device that learns.
        ///
        /// Minibatches are then gathered there. Otherwise the CPU gathers minibatches, and each is copied to the device.
        #[serde(default)]
        replay_on_device: bool = false, Kind::Bool, resumable;
    }
}

replay_settings!(SacConfig);

/// The SAC agent.
///
/// ```
/// use rl_agents::{Agent, Collector, NetConfig, Sac, SacConfig, SquashedGaussian};
/// use rl_envs::{Pool, pendulum::Pendulum};
///
/// let (n_envs, n_steps, steps, pool) = (2, 4, 128, Pool::new(1)?);
/// let config = SacConfig { learning_starts: 64, batch_size: 32, buffer_size: 1000, ..SacConfig::default() };
/// let mut collector = Collector::new(n_envs, &Pendulum::default(), &pool, 0)?;
/// let (obs, actions) = (collector.observation_space().clone(), collector.action_space().clone());
/// let policy = SquashedGaussian::new(&obs, &actions, &NetConfig::default(), 0)?;
/// let mut agent = Sac::new(policy, config, &obs, &actions, n_envs, 0)?;
/// let mut rollout = collector.rollout(n_steps)?;
/// for env_steps in (0..steps).step_by(n_envs * n_steps) {
///     let remaining = 1.0 - env_steps as f32 / steps as f32;
///     collector.collect(agent.acting(remaining), &mut rollout)?;
///     agent.update(&rollout, remaining, &pool)?;
/// }
/// # Ok::<(), rl_agents::Error>(())
/// ```
pub struct Sac {
    both: ActorAndCritics<SquashedGaussian, DeviceSac>,
    temperature: Temperature,
    /// Log-probabilities of the actions that were drawn last, (B).
    log_probs: Vec<f32>,
    config: SacConfig,
}

/// Temperature, the weight of the entropy.
struct Temperature {
    setting: OrAuto,
    /// Logarithm of a learnt temperature; else 0.
    log_alpha: [f32; 1],
    optimizer: Optimizer,
    target_entropy: f32,
    /// Temperature of this update, before its step.
    alpha: f32,
    /// Sums over the updates after a rollout: temperature and loss.
    sums: [f32; 2],
}

impl Temperature {
    fn new(config: &SacConfig, n_actions: usize) -> Self {
        Self {
            setting: config.ent_coef,
            log_alpha: [0.0],
            optimizer: Optimizer::new(SacConfig::RULE, 1),
            target_entropy: match config.target_entropy {
                OrAuto::Auto => -(n_actions as f32),
                OrAuto::Number(entropy) => entropy,
            },
            alpha: f32::NAN,
            sums: [0.0; 2],
        }
    }

    fn is_learnt(&self) -> bool {
        self.setting == OrAuto::Auto
    }

    /// Returns the current temperature.
    fn current(&self) -> f32 {
        match self.setting {
            OrAuto::Auto => math::exp(self.log_alpha[0]),
            OrAuto::Number(alpha) => alpha,
        }
    }

    /// Takes a step by the log-probabilities of the policy's actions, if it is learnt.
    fn learn(&mut self, log_probs: &[f32], rate: f32) {
        if !self.is_learnt() {
            return;
        }
        let sum: f64 = log_probs.iter().map(|&log_prob| f64::from(log_prob)).sum();
        let excess = (sum / log_probs.len() as f64) as f32 + self.target_entropy;
        self.sums[1] += -self.log_alpha[0] * excess;
        self.optimizer.step(&mut self.log_alpha, &[-excess], rate, UNCLIPPED);
    }
}

/// `mean alpha log_prob - min Q` of actions that the policy draws.
struct ActorLoss<'a> {
    policy: &'a SquashedGaussian,
    samples: ActorSamples<'a>,
}

impl TileLoss<()> for ActorLoss<'_> {
    #[inline(always)]
    fn tile(&self, tile: &mut Tile<'_>, (): &mut ()) {
        self.policy.write_gradient(tile, &self.samples);
    }
}

/// [`ActorLoss`] by candle's operations.
fn actor_loss(
    policy: &SquashedGaussian,
    params: &Tensor,
    critics: &TwinQ,
    obs: &Tensor,
    noise: &Tensor,
    alpha: f32,
) -> candle_core::Result<Tensor> {
    let [actions, log_probs] = policy.sample_tensor(params, obs, noise)?;
    let q = critics.forward(&critics.network().params_tensor()?, &Tensor::cat(&[obs, &actions], 1)?)?;
    ((log_probs * f64::from(alpha))? - q[0].broadcast_minimum(&q[1])?)?.mean_all()
}

/// Names of what a snapshot holds beside actor and critics.
const ALPHA: [&str; 3] = ["log_ent_coef", "log_ent_coef.m", "log_ent_coef.v"];

impl Sac {
    /// Creates an agent from a policy, for `n_envs` environments with these spaces.
    ///
    /// The critics have layers like the policy's. `seed` determines their parameters, the noise, and which transitions are
    /// replayed.
    ///
    /// # Errors
    /// Errors of [`SacConfig::check`] and [`SquashedGaussian::check`]; [`Error::Buffer`] if the replay memory does not fit.
    pub fn new(
        policy: SquashedGaussian,
        config: SacConfig,
        obs: &Space,
        actions: &ActionSpace,
        n_envs: usize,
        seed: u64,
    ) -> Result<Self, Error> {
        Self::new_in(policy, config, obs, actions, n_envs, seed, &ReplayStorage::default())
    }

    /// Creates an agent whose replay memory is in this storage.
    ///
    /// # Errors
    /// Those of [`Sac::new`].
    pub fn new_in(
        policy: SquashedGaussian,
        config: SacConfig,
        obs: &Space,
        actions: &ActionSpace,
        n_envs: usize,
        seed: u64,
        replay: &ReplayStorage,
    ) -> Result<Self, Error> {
        config.check()?;
        SquashedGaussian::check(obs, actions, policy.net())?;
        let critics = CriticSettings { n: 2, rule: SacConfig::RULE, scale: 0.5, batch_size: config.batch_size, seed };
        let both = ActorAndCritics::new(policy, &critics, config.replay(), obs, actions, n_envs, replay)?;
        let (temperature, log_probs) = (Temperature::new(&config, actions.len()), vec![0.0; config.batch_size]);
        Ok(Self { both, temperature, log_probs, config })
    }

    /// Learns on `device`.
    ///
    /// The parameters are the same as on a CPU with fused multiply-add, bit for bit. Transitions are kept in the host's memory,
    /// and the policy to act with is a copy there.
    ///
    /// # Errors
    /// [`Error::Setting`] for a setting that the device's kernels do not support; [`Error::Buffer`] and [`Error::Device`], for
    /// instance without memory.
    pub fn on_device(mut self, device: &rl_cuda::Device) -> Result<Self, Error> {
        let Self { both: ActorAndCritics { policy, critics, experience, seed, .. }, temperature, config, .. } = &self;
        let learnt = temperature.is_learnt().then_some(temperature.target_entropy);
        let critics = critics.on_device(device, policy.bounds())?;
        let device = DeviceSac::new(device, policy, critics, experience, config.replay_on_device, *seed, learnt)?;
        self.both.device = Some(device);
        self.load_device()?;
        Ok(self)
    }

    /// Copies the state to the device, if one learns.
    fn load_device(&mut self) -> Result<(), Error> {
        let Self { both: ActorAndCritics { policy, critics, optimizer, device, .. }, temperature, .. } = self;
        let optimizers = [&*optimizer, critics.optimizer(), &temperature.optimizer];
        let alphas = [temperature.current(), temperature.log_alpha[0]];
        device.as_mut().map_or(Ok(()), |device| device.load(policy, critics.networks(), optimizers, alphas))
    }

    /// Computes `y = r + discount (min Q_target(s', a') - alpha log_prob(a'))`.
    ///
    /// The policy draws a'.
    fn set_targets(&mut self, update: u64, pool: &Pool) -> Result<(), Error> {
        let Self { both, temperature: Temperature { alpha, .. }, log_probs, .. } = self;
        both.experience.report(UpdateEvent::TargetsBegin);
        both.draw_noise(update, 1 + log_probs.len() as u32, pool);
        let ActorAndCritics { policy, critics, experience, batch, noise, actions, scratches, .. } = both;
        let batch = batch.columns();
        policy.sample(batch.next_obs, noise, Threads::of(pool), None, scratches, Draws { actions, log_probs })?;
        critics.value_by_target(batch.next_obs, actions, pool)?;
        for (i, (target, q)) in critics.targets.iter_mut().zip(&critics.q).enumerate() {
            *target = batch.rewards[i] + batch.discounts[i] * (q - *alpha * log_probs[i]);
        }
        experience.report(UpdateEvent::TargetsEnd);
        Ok(())
    }

    /// Draws actions of the minibatch's observations.
    fn set_actions(&mut self, update: u64, pool: &Pool) -> Result<(), Error> {
        self.both.draw_noise(update, 1, pool);
        let ActorAndCritics { policy, experience, batch, noise, actions, scratches, slices, .. } = &mut self.both;
        let draws = Draws { actions, log_probs: &mut self.log_probs };
        policy.sample(batch.columns().obs, noise, Threads::of(pool), Some(slices), scratches, draws)?;
        probe::report(experience.probe.as_ref(), Stage::Targets);
        Ok(())
    }

    /// Computes the gradient of the actor; returns its loss.
    fn actor_gradient(&mut self, pool: &Pool) -> Result<f32, Error> {
        let Self { both, temperature: Temperature { alpha, .. }, log_probs, .. } = self;
        let (n, alpha) = (log_probs.len(), *alpha);
        let ActorAndCritics { policy, critics, experience, batch, noise, actions, d_actions, gradient, slices, .. } = both;
        let Some(kernel) = policy.network().kernel() else {
            return both.gradient_by_candle(|ActorAndCritics { policy, critics, noise, .. }, params, obs| {
                let noise = Tensor::from_slice(noise, (n, noise.len() / n), obs.device())?;
                actor_loss(policy, params, &critics.online, obs, &noise, alpha)
            });
        };
        let (obs, threads) = (batch.columns().obs, Threads { pool, probe: experience.probe.as_ref() });
        critics.value(Value::Least, obs, actions, pool, d_actions)?;
        probe::report(threads.probe, Stage::Backward);
        let of = ActorLoss { policy, samples: ActorSamples { noise, d_actions, alpha } };
        slices.gradient(kernel, policy.network().samples(obs, None), n, threads, &of, gradient).map(drop)?;
        let terms = log_probs.iter().zip(&critics.q).map(|(&log_prob, &q)| f64::from(alpha * log_prob - q));
        Ok((terms.sum::<f64>() / n as f64) as f32)
    }
}

impl Continuous for Sac {
    type Actor = SquashedGaussian;
    type Device = DeviceSac;

    fn both(&mut self) -> &mut ActorAndCritics<SquashedGaussian, DeviceSac> {
        &mut self.both
    }

    fn fetch_own(&mut self) -> Result<(), Error> {
        let of_device = self.both.device.as_ref().map_or(Ok(None), DeviceSac::temperature)?;
        if let Some((totals, steps)) = of_device {
            self.temperature.sums = [totals.value, totals.policy];
            self.temperature.optimizer.set_steps(steps);
        }
        Ok(())
    }
}

impl Learns for Sac {
    fn experience(&mut self) -> &mut Experience {
        &mut self.both.experience
    }

    /// Does one update: draws a minibatch, and takes a step of each optimizer.
    fn learn(&mut self, done: f32, pool: &Pool) -> Result<(), Error> {
        let (update, rate) = (self.both.experience.updates(), self.config.learning_rate.at(1.0 - done));
        self.temperature.alpha = self.temperature.current();
        self.temperature.sums[0] += self.temperature.alpha;
        self.draw(done, rate)?;
        let follows = self.both.experience.updates().is_multiple_of(self.config.target_update_interval);
        if let Some(device) = &mut self.both.device {
            device.update(follows.then_some(self.config.tau))?;
            return self.end(rate);
        }
        self.set_targets(update, pool)?;
        self.set_actions(update, pool)?;
        self.temperature.learn(&self.log_probs, rate);
        self.both.learn_critics(rate, pool)?;
        let loss = self.actor_gradient(pool)?;
        self.both.step_actor(loss, rate, pool)?;
        if follows {
            self.both.critics_follow(self.config.tau, pool);
        }
        self.end(rate)
    }
}

impl Agent for Sac {
    fn policy(&self) -> &dyn Policy {
        &self.both.policy
    }

    fn acting(&mut self, _remaining: f32) -> &dyn Policy {
        self.both.acting()
    }

    fn layout(&self) -> &Layout {
        self.both.policy.layout()
    }

    fn update(&mut self, rollout: &Rollout, remaining: f32, pool: &Pool) -> Result<Metrics, Error> {
        self.temperature.sums = [0.0; 2];
        let rate = self.config.learning_rate.at(remaining);
        self.learn_due(rollout, remaining, rate, pool)?;
        let [alpha, loss] = self.temperature.sums;
        let mut own = vec![("train/ent_coef", alpha)];
        if self.temperature.is_learnt() {
            own.push(("train/ent_coef_loss", loss));
        }
        Ok(self.both.metrics(&own, rate))
    }

    fn save(&self) -> Result<Snapshot, Error> {
        let Temperature { log_alpha, optimizer, .. } = &self.temperature;
        let vectors = [&log_alpha[..]].into_iter().chain(optimizer.vectors());
        let mut arrays = self.both.optimizer.moments();
        arrays.extend(self.both.critics.arrays());
        arrays.extend(ALPHA.into_iter().zip(vectors).map(|(name, values)| (name.into(), values.to_vec())));
        self.both.snapshot(arrays, &[self.both.critics.steps(), optimizer.steps()])
    }

    fn load(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let log_alpha = array(snapshot, ALPHA[0], 1)?;
        let [taken, skipped, alpha_taken, alpha_skipped] = counts(snapshot, STEPS)?;
        let loaded = self.both.find(snapshot, StepCount { taken, skipped })?;
        let mut optimizer = self.temperature.optimizer.clone();
        let steps = StepCount { taken: alpha_taken, skipped: alpha_skipped };
        optimizer.load(&moments(snapshot, [ALPHA[1], ALPHA[2]])?, steps)?;
        self.both.load(snapshot, loaded)?;
        self.temperature.log_alpha.copy_from_slice(log_alpha);
        self.temperature.optimizer = optimizer;
        self.load_device()
    }

    fn device(&mut self) -> Option<&mut dyn OnDevice> {
        self.both.on_device()
    }

    fn replay(&mut self) -> Option<&mut dyn Replays> {
        Some(&mut self.both.experience)
    }

    fn shared(&mut self) -> Option<&mut dyn Shareable> {
        Some(self)
    }

    fn observed(&mut self) -> Option<&mut dyn Observed> {
        Some(&mut self.both.experience)
    }
}

impl Shareable for Sac {
    fn share(&mut self, ranks: Arc<dyn Ranks>) {
        self.both.share(ranks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Gaze, distance};
    use crate::{Activation, Collector, LearnerKind, NetConfig};
    use candle_core::Device;
    use rl_envs::{Env, pendulum::Pendulum};

    const N_ENVS: usize = 3;

    fn config() -> SacConfig {
        SacConfig { buffer_size: 500, batch_size: 100, learning_starts: 30, save_replay: true, ..SacConfig::default() }
    }

    fn agent(config: SacConfig, learner: LearnerKind, hidden: &[usize]) -> (Sac, Collector) {
        agent_in(&Pendulum::default(), config, learner, hidden, &[])
    }

    fn agent_in(
        env: &(impl Env + 'static),
        config: SacConfig,
        learner: LearnerKind,
        hidden: &[usize],
        conv: &[[usize; 3]],
    ) -> (Sac, Collector) {
        let collector = Collector::new(N_ENVS, env, &Pool::new(1).unwrap(), 1).unwrap();
        // The critics are one unit wider.
        let critic_hidden = Some(hidden.iter().map(|units| units + 1).collect());
        let activation = match (hidden, conv) {
            ([17, 9], []) => Activation::Silu,
            (_, []) => Activation::Relu,
            _ => Activation::Tanh,
        };
        let (hidden, conv) = (hidden.to_vec(), conv.to_vec());
        let layer_norm = activation == Activation::Silu;
        let net = NetConfig { conv, hidden, critic_hidden, learner, activation, layer_norm, ..NetConfig::default() };
        let (obs, actions) = (collector.observation_space().clone(), collector.action_space().clone());
        let policy = SquashedGaussian::new(&obs, &actions, &net, 5).unwrap();
        (Sac::new(policy, config, &obs, &actions, N_ENVS, 7).unwrap(), collector)
    }

    /// Collects and learns; returns the last metrics.
    fn train(agent: &mut Sac, collector: &mut Collector, rounds: usize, pool: &Pool) -> Metrics {
        let mut rollout = collector.rollout(2).unwrap();
        let mut metrics = Metrics::default();
        for _ in 0..rounds {
            collector.collect(agent.acting(0.5), &mut rollout).unwrap();
            metrics = agent.update(&rollout, 0.5, pool).unwrap();
        }
        metrics
    }

    #[test]
    fn an_update_of_the_kernel_is_that_of_candle() {
        for (hidden, prioritized) in [(&[17, 9][..], false), (&[64, 64], true), (&[], false), (&[256, 256], false)] {
            kernel_and_candle_agree(&Pendulum::default(), prioritized, hidden, &[]);
        }
    }

    #[test]
    fn an_update_of_the_kernel_is_that_of_candle_for_all_that_is_seen() {
        // With more than a panel of inputs before the action.
        let conv = [[5, 2, 1], [6, 2, 1]];
        for conv in [&[][..], &conv] {
            kernel_and_candle_agree(&Gaze::<f32>::default(), false, &[17, 9], conv);
            kernel_and_candle_agree(&Gaze::<u8>::default(), true, &[70], conv);
        }
        kernel_and_candle_agree(&Gaze::<f32>::default(), false, &[256, 256], &[]);
    }

    fn kernel_and_candle_agree(env: &(impl Env + 'static), prioritized: bool, hidden: &[usize], conv: &[[usize; 3]]) {
        let [mut fused, mut reference] = [LearnerKind::Fused, LearnerKind::Reference].map(|learner| {
            let config = SacConfig { learning_starts: MAX_STEPS as u64, prioritized, n_steps: 2, ..config() };
            let (mut agent, mut collector) = agent_in(env, config, learner, hidden, conv);
            train(&mut agent, &mut collector, 30, &Pool::new(1).unwrap());
            agent
        });
        let pool = Pool::new(2).unwrap();
        for round in 0..3 {
            [&mut fused, &mut reference].into_iter().for_each(|agent| agent.learn(0.5, &pool).unwrap());
            let vectors = |agent: &Sac| {
                [agent.both.critics.gradient.clone(), agent.both.gradient.clone(), agent.both.critics.targets.clone()]
            };
            for (i, (found, expected)) in vectors(&fused).iter().zip(vectors(&reference)).enumerate() {
                let distance = distance(found, &expected);
                assert!(distance < 1e-4, "{conv:?}, {hidden:?}, round {round}, vector {i}: {distance}");
            }
            assert!((fused.temperature.log_alpha[0] - reference.temperature.log_alpha[0]).abs() < 1e-6);
            assert!(distance(&fused.both.critics.errors, &reference.both.critics.errors) < 1e-4);
        }
    }

    #[test]
    fn pictures_categories_and_numbers_are_learnt_from() {
        fn returns<E: Env + 'static>(env: &E, conv: &[[usize; 3]]) -> f32 {
            let config = SacConfig {
                buffer_size: 5000,
                learning_starts: 200,
                gamma: 0.0,
                learning_rate: Schedule::Constant(1e-3),
                ..config()
            };
            let (mut agent, mut collector) = agent_in(env, config, LearnerKind::Fused, &[32], conv);
            let pool = Pool::new(2).unwrap();
            train(&mut agent, &mut collector, 500, &pool);
            let mut rollout = collector.rollout(100).unwrap();
            collector.collect(agent.acting(0.0), &mut rollout).unwrap();
            rollout.rewards().mean().unwrap()
        }
        let conv = [[8, 2, 1], [8, 2, 2]];
        let all = [
            returns(&Gaze::<f32>::default(), &conv),
            returns(&Gaze::<f32>::default(), &[]),
            returns(&Gaze::<u8>::default(), &conv),
        ];
        // The best of an agent that misses the category or the picture is -1/3 or -1/2.
        assert!(all.iter().all(|mean| *mean > -0.2), "{all:?}");
    }

    #[test]
    fn gradients_with_respect_to_actions_equal_finite_differences() {
        let (agent, _) = agent(config(), LearnerKind::Fused, &[9, 5]);
        let (n, rows) = (40, (0..40 * 4).map(|i| ((i * 37 % 101) as f32 - 50.0) / 60.0).collect::<Vec<f32>>());
        let (mut q, mut d_actions, mut scratches) = (vec![0.0; n], vec![0.0; n], [Vec::new(), Vec::new()]);
        let pool = Pool::new(2).unwrap();
        agent.both.critics.online.gradient(Value::Least, &rows, &pool, &mut scratches[0], &mut q, &mut d_actions).unwrap();
        let least = |rows: &[f32]| {
            let (network, f64) = (agent.both.critics.online.network(), candle_core::DType::F64);
            let params = network.params_tensor().unwrap().to_dtype(f64).unwrap();
            let rows = Tensor::from_slice(rows, (n, 4), &Device::Cpu).unwrap().to_dtype(f64).unwrap();
            let q = agent.both.critics.online.forward(&params, &rows).unwrap();
            q[0].broadcast_minimum(&q[1]).unwrap().to_vec1::<f64>().unwrap()
        };
        let mut alone = vec![0.0; n];
        agent.both.critics.online.least(&rows, &pool, &mut scratches[1], &mut alone).unwrap();
        assert_eq!(alone, q);
        assert!(q.iter().zip(least(&rows)).all(|(q, exact)| (f64::from(*q) - exact).abs() < 1e-5));
        let moved =
            |step: f32| rows.iter().enumerate().map(|(i, x)| if i % 4 == 3 { x + step } else { *x }).collect::<Vec<f32>>();
        let (above, below) = (least(&moved(1e-3)), least(&moved(-1e-3)));
        let wrong = (0..n).filter(|&i| ((above[i] - below[i]) / 2e-3 - f64::from(d_actions[i])).abs() > 2e-3).count();
        assert!(wrong <= 2, "{wrong} of {n}: few are at a kink of ReLU or of the minimum");
    }

    #[test]
    fn a_saved_agent_continues_bit_for_bit_on_any_number_of_threads() {
        let [mut whole, mut cut] = [(); 2].map(|()| agent(config(), LearnerKind::Fused, &[17, 9]));
        let pools = [Pool::new(1).unwrap(), Pool::new(3).unwrap()];
        train(&mut whole.0, &mut whole.1, 24, &pools[0]);
        train(&mut cut.0, &mut cut.1, 12, &pools[1]);
        let (snapshot, mut replay) = (cut.0.save().unwrap(), Vec::new());
        cut.0.both.experience.save_replay(&mut replay).unwrap();
        let (mut resumed, _) = agent(config(), LearnerKind::Fused, &[17, 9]);
        resumed.load(&snapshot).unwrap();
        resumed.both.experience.load_replay(&snapshot, &mut &replay[..]).unwrap();
        assert!(resumed.save().unwrap() == snapshot);
        train(&mut resumed, &mut cut.1, 12, &pools[0]);
        let (saved, expected) = (resumed.save().unwrap(), whole.0.save().unwrap());
        assert!(saved == expected);
        assert_eq!(expected.counters.epochs, 24 * 6 - 30);
        for broken in ["critics.target", ALPHA[0], STEPS, "m"] {
            let mut snapshot = snapshot.clone();
            snapshot.moments.retain(|(name, _)| name != broken);
            assert!(matches!(resumed.load(&snapshot), Err(Error::Snapshot(_))), "{broken}");
            assert!(resumed.save().unwrap() == expected, "{broken}");
        }
    }

    #[test]
    fn the_temperature_follows_the_entropy_and_target_critics_the_critics() {
        for (target, rises) in [(-100.0, false), (100.0, true)] {
            let of = SacConfig {
                target_entropy: OrAuto::Number(target),
                tau: 1.0,
                learning_rate: Schedule::Constant(0.01),
                ..config()
            };
            let (mut agent, mut collector) = agent(of, LearnerKind::Fused, &[17]);
            let metrics = train(&mut agent, &mut collector, 20, &Pool::new(1).unwrap());
            assert_eq!(agent.temperature.current() > 1.0, rises, "target {target}");
            assert!(metrics.get("train/ent_coef_loss").is_some_and(f32::is_finite));
            assert_eq!(agent.both.critics.target.network().params(), agent.both.critics.online.network().params());
        }
        let of = SacConfig { ent_coef: OrAuto::Number(0.2), target_update_interval: 1_000_000, ..config() };
        let (mut agent, mut collector) = agent(of, LearnerKind::Fused, &[17]);
        let before = agent.both.critics.target.network().params().to_vec();
        let metrics = train(&mut agent, &mut collector, 20, &Pool::new(1).unwrap());
        assert_eq!((metrics.get("train/ent_coef_loss"), agent.temperature.current()), (None, 0.2));
        assert!(agent.both.critics.target.network().params() == before && agent.both.critics.online.network().params() != before);
    }

    #[test]
    fn a_temperature_of_zero_is_saved_and_counters_that_cannot_be_are_refused() {
        let (mut agent, _) = agent(SacConfig { ent_coef: OrAuto::Number(0.0), ..config() }, LearnerKind::Fused, &[5]);
        let snapshot = agent.save().unwrap();
        agent.load(&snapshot).unwrap();
        for broken in [0.5, -1.0, 65536.0, f32::NAN, 40000.0] {
            let mut snapshot = snapshot.clone();
            let steps = snapshot.moments.iter_mut().find(|(name, _)| name == STEPS).unwrap();
            steps.1[3] = broken;
            assert!(matches!(agent.load(&snapshot), Err(Error::Snapshot(_))), "{broken}");
        }
    }

    #[test]
    fn actions_are_random_before_learning_and_never_again() {
        let (mut learner, mut collector) = agent(config(), LearnerKind::Fused, &[5]);
        let (mut rollout, pool) = (collector.rollout(12).unwrap(), Pool::new(1).unwrap());
        // Random actions have no log-probabilities.
        let mut n_random = |agent: &mut Sac, collector: &mut Collector| {
            collector.collect(agent.acting(0.5), &mut rollout).unwrap();
            agent.update(&rollout, 0.5, &pool).unwrap();
            rollout.log_probs().iter().filter(|&&log_prob| log_prob == 0.0).count()
        };
        assert_eq!(n_random(&mut learner, &mut collector), 30, "learning_starts");
        assert_eq!(n_random(&mut learner, &mut collector), 0);
        let snapshot = learner.save().unwrap();
        let (mut resumed, mut again) = agent(config(), LearnerKind::Fused, &[5]);
        resumed.load(&snapshot).unwrap();
        assert_eq!(n_random(&mut resumed, &mut again), 0, "in other environments, whose steps are counted from 1");

        // Without its memory, a run that had not begun to learn needs as many random steps again.
        let of = SacConfig { learning_starts: 54, ..config() };
        let (mut learner, mut collector) = agent(of.clone(), LearnerKind::Fused, &[5]);
        assert_eq!(n_random(&mut learner, &mut collector), 36);
        let (snapshot, mut memory) = (learner.save().unwrap(), Vec::new());
        learner.replay().unwrap().save_replay(&mut memory).unwrap();
        for (keeps, expected) in [(false, [36, 18]), (true, [18, 0])] {
            let (mut resumed, mut again) = agent(of.clone(), LearnerKind::Fused, &[5]);
            again.load(collector.save().unwrap()).unwrap();
            resumed.load(&snapshot).unwrap();
            if keeps {
                resumed.replay().unwrap().load_replay(&snapshot, &mut &memory[..]).unwrap();
            }
            let found = [(); 2].map(|()| n_random(&mut resumed, &mut again));
            assert_eq!(found, expected, "{keeps}");
        }
    }

    #[test]
    fn updates_on_a_device_are_launches_of_graphs() {
        for device in rl_cuda::Device::for_tests() {
            let (agent, mut collector) = agent(config(), LearnerKind::Fused, &[5]);
            let mut agent = agent.on_device(&device).unwrap();
            train(&mut agent, &mut collector, 12, &Pool::new(1).unwrap());
            assert!(agent.both.device.unwrap().both.is_captured(), "{device}");
        }
    }

    #[test]
    fn settings_are_numbers_or_auto() {
        let read = |text: &str| toml::from_str::<toml::Table>(text).unwrap()["x"].clone().try_into::<OrAuto>();
        assert_eq!(
            (read("x = 0.2").unwrap(), read("x = 1").unwrap(), read("x = \"auto\"").unwrap()),
            (OrAuto::Number(0.2), OrAuto::Number(1.0), OrAuto::Auto)
        );
        assert!(read("x = \"auto_0.1\"").is_err());
        let too_small = SacConfig { ent_coef: OrAuto::Number(-1.0), ..config() };
        assert!(too_small.check().unwrap_err().to_string().contains("a number from 0 to 1000000000, or \"auto\""));
    }
}
