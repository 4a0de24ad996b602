//! Twin delayed DDPG (TD3): continuous actions from a replay memory.
//!
//! Paper: Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods", 2018. With `n_critics = 1`,
//! `policy_delay = 1` and `target_policy_noise = 0` it is DDPG (Lillicrap et al., "Continuous control with deep reinforcement
//! learning", 2015).
//!
//! Settings and metrics have the meanings of Stable-Baselines3, and an update has its order: the critics, then, every
//! `policy_delay` updates, the actor and all targets. Differences: as in [`sac`](crate::sac); noise is a setting, by default
//! the paper's, where Stable-Baselines3 has none; the random actions before `learning_starts` get no noise.
//!
//! Read `learn` first, then `actor_and_critics.rs`, which SAC shares. `rl train pendulum --algo td3` runs it.

use std::sync::Arc;

use candle_core::Tensor;
use rl_buffer::Rollout;
use rl_envs::{ActionSpace, Pool, Space};

use crate::agent::{Observed, OnDevice, Replays, Shareable};
use crate::algorithms::actor_and_critics::{ActorAndCritics, Continuous, STEPS};
use crate::algorithms::critics::{CriticSettings, array, counts};
use crate::algorithms::replayed::{Experience, Learns, Priorities, ReplaySettings, ReplayStorage, follow, replay_settings};
use crate::device::replayed::actor_critics::DeviceUpdates;
use crate::device::replayed::td3::DeviceTd3;
use crate::kernel::tile::{Tile, TileLoss};
use crate::learner::optim::{Rule, StepCount};
use crate::policy::deterministic::{ActionNoise, DeterministicPolicy};
use crate::policy::squashed::ContinuousPolicy;
use crate::policy::twin_q::{TwinQ, Value};
use crate::probe::{self, Stage, Threads};
use crate::ranks::Ranks;
use crate::settings::{Kind, MAX_STEPS};
use crate::{Agent, Error, Layout, Metrics, Policy, Schedule, Snapshot, UpdateEvent};

crate::settings! {
    /// Settings of TD3.
    pub struct Td3Config, "td3." {
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
        /// Updates of the critics for each of the actor and the targets.
        policy_delay: u64 = 2, Kind::Int(1, MAX_STEPS), resumable;
        /// Standard deviation of the noise in targets' actions; 0: none.
        target_policy_noise: f32 = 0.2, Kind::Float(0.0, 1e3), resumable;
        /// Bound of the noise in targets' actions.
        target_noise_clip: f32 = 0.5, Kind::Float(0.0, 2.0), resumable;
        /// Critics, of which targets take the smaller value; 1 for DDPG.
        n_critics: usize = 2, Kind::Int(1, 2);
        /// Noise added to actions in training, which are between -1 and 1 there.
        action_noise: ActionNoise = ActionNoise::Normal, Kind::Choice(&["none", "normal", "ornstein_uhlenbeck"]);
        /// Standard deviation of that noise.
        action_noise_std: f32 = 0.1, Kind::Float(0.0, 1e3);
        /// Step of the targets towards the networks; 1: a copy.
        tau: f32 = 0.005, Kind::Float(1e-9, 1.0), resumable;
        /// Discount of future rewards.
        gamma: f32 = 0.99, Kind::Float(0.0, 1.0);
        /// Steps of a return before the bootstrap.
        n_steps: usize = 1, Kind::Int(1, 64);
        /// Samples transitions in proportion to their errors.
        prioritized: bool = false, Kind::Bool;
        /// Exponent of priorities.
        priority_alpha: f32 = 0.6, Kind::Float(0.0, 1.0);
        /// Exponent of importance weights at the start; it rises to 1.
        priority_beta: f32 = 0.4, Kind::Float(0.0, 1.0);
        /// Learning rate of both Adam optimizers.
        learning_rate: Schedule = Schedule::Constant(1e-3), Kind::Schedule(0.0, 10.0), resumable;
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

replay_settings!(Td3Config);

/// The TD3 agent.
///
/// ```
/// use rl_agents::{Agent, Collector, DeterministicPolicy, NetConfig, Td3, Td3Config};
/// use rl_envs::{Pool, pendulum::Pendulum};
///
/// let (n_envs, n_steps, steps, pool) = (2, 4, 128, Pool::new(1)?);
/// let config = Td3Config { learning_starts: 64, batch_size: 32, buffer_size: 1000, ..Td3Config::default() };
/// let mut collector = Collector::new(n_envs, &Pendulum::default(), &pool, 0)?;
/// let (obs, actions) = (collector.observation_space().clone(), collector.action_space().clone());
/// let policy = DeterministicPolicy::new(&obs, &actions, &NetConfig::default(), 0)?;
/// let mut agent = Td3::new(policy, config, &obs, &actions, n_envs, 0)?;
/// let mut rollout = collector.rollout(n_steps)?;
/// for env_steps in (0..steps).step_by(n_envs * n_steps) {
///     let remaining = 1.0 - env_steps as f32 / steps as f32;
///     collector.collect(agent.acting(remaining), &mut rollout)?;
///     agent.update(&rollout, remaining, &pool)?;
/// }
/// # Ok::<(), rl_agents::Error>(())
/// ```
pub struct Td3 {
    both: ActorAndCritics<DeterministicPolicy, DeviceTd3>,
    policy_target: DeterministicPolicy,
    config: Td3Config,
}

/// `-mean Q1` of the policy's actions.
struct PolicyLoss<'a> {
    policy: &'a DeterministicPolicy,
    /// Gradient of Q1 with respect to the actions, (B, A).
    d_actions: &'a [f32],
}

impl TileLoss<()> for PolicyLoss<'_> {
    #[inline(always)]
    fn tile(&self, tile: &mut Tile<'_>, (): &mut ()) {
        self.policy.write_gradient(tile, self.d_actions);
    }
}

/// [`PolicyLoss`] by candle's operations.
fn policy_loss(policy: &DeterministicPolicy, params: &Tensor, critics: &TwinQ, obs: &Tensor) -> candle_core::Result<Tensor> {
    let rows = Tensor::cat(&[obs, &policy.forward(params, obs)?], 1)?;
    critics.forward(&critics.network().params_tensor()?, &rows)?[0].neg()?.mean_all()
}

/// Name of the target's parameters in a snapshot.
const TARGET: &str = "actor.target";

impl Td3 {
    /// Creates an agent from a policy, for `n_envs` environments with these spaces.
    ///
    /// The critics have layers like the policy's. `seed` determines their parameters, the noise, and which transitions are
    /// replayed.
    ///
    /// # Errors
    /// Errors of [`Td3Config::check`] and [`DeterministicPolicy::check`]; [`Error::Buffer`] if the replay memory does not fit.
    pub fn new(
        policy: DeterministicPolicy,
        config: Td3Config,
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
    /// Those of [`Td3::new`].
    pub fn new_in(
        policy: DeterministicPolicy,
        config: Td3Config,
        obs: &Space,
        actions: &ActionSpace,
        n_envs: usize,
        seed: u64,
        replay: &ReplayStorage,
    ) -> Result<Self, Error> {
        config.check()?;
        DeterministicPolicy::check(obs, actions, policy.net())?;
        let mut policy_target = policy.clone();
        policy_target.network_mut().only_forward();
        let Td3Config { n_critics: n, batch_size, .. } = config;
        let critics = CriticSettings { n, rule: Td3Config::RULE, scale: 1.0, batch_size, seed };
        let mut both = ActorAndCritics::new(policy, &critics, config.replay(), obs, actions, n_envs, replay)?;
        both.policy.explore(config.action_noise, config.action_noise_std);
        Ok(Self { both, policy_target, config })
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
        let Self { both: ActorAndCritics { policy, critics, experience, seed, .. }, config, .. } = &self;
        let noise = [config.target_policy_noise, config.target_noise_clip];
        let critics = critics.on_device(device, policy.bounds())?;
        let device = DeviceTd3::new(device, policy, critics, experience, config.replay_on_device, *seed, noise)?;
        self.both.device = Some(device);
        self.load_device()?;
        Ok(self)
    }

    /// Copies the state to the device, if one learns.
    fn load_device(&mut self) -> Result<(), Error> {
        let Self { both: ActorAndCritics { policy, critics, optimizer, device, .. }, policy_target, .. } = self;
        let optimizers = [&*optimizer, critics.optimizer()];
        device.as_mut().map_or(Ok(()), |device| device.load([policy, policy_target], critics.networks(), optimizers))
    }

    /// Computes `y = r + discount min Q_target(s', a')`.
    ///
    /// a' is the target policy's, with clipped noise.
    fn set_targets(&mut self, update: u64, pool: &Pool) -> Result<(), Error> {
        let Self { both, policy_target, config } = self;
        both.experience.report(UpdateEvent::TargetsBegin);
        both.draw_noise(update, 1, pool);
        let ActorAndCritics { critics, experience, batch, noise, actions, scratches, .. } = both;
        let batch = batch.columns();
        policy_target.choose(batch.next_obs, Threads::of(pool), None, scratches, actions)?;
        let clip = config.target_noise_clip;
        for (action, noise) in actions.iter_mut().zip(noise) {
            *action = (*action + (config.target_policy_noise * *noise).clamp(-clip, clip)).clamp(-1.0, 1.0);
        }
        critics.value_by_target(batch.next_obs, actions, pool)?;
        for (i, (target, q)) in critics.targets.iter_mut().zip(&critics.q).enumerate() {
            *target = batch.rewards[i] + batch.discounts[i] * q;
        }
        experience.report(UpdateEvent::TargetsEnd);
        probe::report(experience.probe.as_ref(), Stage::Targets);
        Ok(())
    }

    /// Computes the gradient of the actor; returns its loss.
    fn actor_gradient(&mut self, pool: &Pool) -> Result<f32, Error> {
        let both = &mut self.both;
        let ActorAndCritics { policy, critics, experience, batch, actions, d_actions, gradient, scratches, slices, .. } = both;
        let Some(kernel) = policy.network().kernel() else {
            return both.gradient_by_candle(|both, params, obs| policy_loss(&both.policy, params, &both.critics.online, obs));
        };
        let (obs, threads) = (batch.columns().obs, Threads { pool, probe: experience.probe.as_ref() });
        policy.choose(obs, threads, Some(slices), scratches, actions)?;
        critics.value(Value::First, obs, actions, pool, d_actions)?;
        probe::report(threads.probe, Stage::Backward);
        let (of, n) = (PolicyLoss { policy, d_actions }, critics.q.len());
        slices.gradient(kernel, policy.network().samples(obs, None), n, threads, &of, gradient).map(drop)?;
        Ok((-critics.q.iter().map(|&q| f64::from(q)).sum::<f64>() / n as f64) as f32)
    }

    /// Moves the targets of the actor and the critics.
    fn follow(&mut self, pool: &Pool) {
        let Self { both, policy_target, config } = self;
        let threads = Threads { pool, probe: both.experience.probe.as_ref() };
        follow(policy_target.network_mut(), both.policy.network().params(), config.tau, threads);
        both.critics_follow(config.tau, pool);
    }
}

impl Continuous for Td3 {
    type Actor = DeterministicPolicy;
    type Device = DeviceTd3;

    fn both(&mut self) -> &mut ActorAndCritics<DeterministicPolicy, DeviceTd3> {
        &mut self.both
    }
}

impl Learns for Td3 {
    fn experience(&mut self) -> &mut Experience {
        &mut self.both.experience
    }

    /// Does one update: a step of the critics.
    ///
    /// With every `policy_delay`-th one goes a step of the actor and of the targets.
    fn learn(&mut self, done: f32, pool: &Pool) -> Result<(), Error> {
        let (update, rate) = (self.both.experience.updates(), self.config.learning_rate.at(1.0 - done));
        self.draw(done, rate)?;
        let is_due = self.both.experience.updates().is_multiple_of(self.config.policy_delay);
        if let Some(device) = &mut self.both.device {
            device.update(is_due.then_some(self.config.tau))?;
            return self.end(rate);
        }
        self.set_targets(update, pool)?;
        self.both.learn_critics(rate, pool)?;
        if is_due {
            let loss = self.actor_gradient(pool)?;
            self.both.step_actor(loss, rate, pool)?;
            self.follow(pool);
        }
        self.end(rate)
    }
}

impl Agent for Td3 {
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
        let rate = self.config.learning_rate.at(remaining);
        self.learn_due(rollout, remaining, rate, pool)?;
        Ok(self.both.metrics(&[], rate))
    }

    fn save(&self) -> Result<Snapshot, Error> {
        let mut arrays = self.both.optimizer.moments();
        arrays.push((TARGET.into(), self.policy_target.params().to_vec()));
        arrays.extend(self.both.critics.arrays());
        self.both.snapshot(arrays, &[self.both.critics.steps()])
    }

    fn load(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let policy_target = array(snapshot, TARGET, self.policy_target.params().len())?;
        let [taken, skipped] = counts(snapshot, STEPS)?;
        let loaded = self.both.find(snapshot, StepCount { taken, skipped })?;
        self.both.load(snapshot, loaded)?;
        self.policy_target.network_mut().set_params(policy_target, 0)?;
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

impl Shareable for Td3 {
    fn share(&mut self, ranks: Arc<dyn Ranks>) {
        self.both.share(ranks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::critics::Critics;
    use crate::fixture::{Gaze, distance};
    use crate::{Activation, Collector, LearnerKind, NetConfig};
    use candle_core::{DType, Device};
    use rl_envs::{Env, pendulum::Pendulum};

    const N_ENVS: usize = 3;

    fn config() -> Td3Config {
        Td3Config { buffer_size: 500, batch_size: 100, learning_starts: 30, save_replay: true, ..Td3Config::default() }
    }

    fn agent(config: Td3Config, learner: LearnerKind, hidden: &[usize]) -> (Td3, Collector) {
        agent_in(&Pendulum::default(), config, learner, hidden, &[])
    }

    fn agent_in(
        env: &(impl Env + 'static),
        config: Td3Config,
        learner: LearnerKind,
        hidden: &[usize],
        conv: &[[usize; 3]],
    ) -> (Td3, Collector) {
        let mut collector = Collector::new(N_ENVS, env, &Pool::new(1).unwrap(), 1).unwrap();
        let activation = match (hidden, conv) {
            ([17, 9], []) => Activation::Gelu,
            (_, []) => Activation::Relu,
            _ => Activation::Tanh,
        };
        let (hidden, conv) = (hidden.to_vec(), conv.to_vec());
        let layer_norm = activation == Activation::Gelu;
        let net = NetConfig { conv, hidden, learner, activation, layer_norm, ..NetConfig::default() };
        let (obs, actions) = (collector.observation_space().clone(), collector.action_space().clone());
        let policy = DeterministicPolicy::new(&obs, &actions, &net, 5).unwrap();
        let agent = Td3::new(policy, config, &obs, &actions, N_ENVS, 7).unwrap();
        collector.remember(agent.policy().state_len());
        (agent, collector)
    }

    /// Collects and learns; returns the last metrics.
    fn train(agent: &mut Td3, collector: &mut Collector, rounds: usize, pool: &Pool) -> Metrics {
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
        for (hidden, prioritized, n_critics) in
            [(&[17, 9][..], false, 2), (&[64, 64], true, 1), (&[], false, 1), (&[256, 256], false, 2)]
        {
            kernel_and_candle_agree(&Pendulum::default(), prioritized, n_critics, hidden, &[]);
        }
    }

    #[test]
    fn an_update_of_the_kernel_is_that_of_candle_for_all_that_is_seen() {
        // With more than a panel of inputs before the action.
        let conv = [[5, 2, 1], [6, 2, 1]];
        for conv in [&[][..], &conv] {
            kernel_and_candle_agree(&Gaze::<f32>::default(), true, 2, &[17, 9], conv);
            kernel_and_candle_agree(&Gaze::<u8>::default(), false, 1, &[70], conv);
        }
    }

    fn kernel_and_candle_agree(
        env: &(impl Env + 'static),
        prioritized: bool,
        n_critics: usize,
        hidden: &[usize],
        conv: &[[usize; 3]],
    ) {
        let [mut fused, mut reference] = [LearnerKind::Fused, LearnerKind::Reference].map(|learner| {
            let config = Td3Config { learning_starts: MAX_STEPS as u64, prioritized, n_critics, n_steps: 2, ..config() };
            let (mut agent, mut collector) = agent_in(env, config, learner, hidden, conv);
            train(&mut agent, &mut collector, 30, &Pool::new(1).unwrap());
            agent
        });
        let pool = Pool::new(2).unwrap();
        for round in 0..4 {
            [&mut fused, &mut reference].into_iter().for_each(|agent| agent.learn(0.5, &pool).unwrap());
            let vectors = |agent: &Td3| {
                let Critics { gradient, targets, errors, .. } = &agent.both.critics;
                [gradient, &agent.both.gradient, targets, errors].map(Vec::clone)
            };
            for (i, (found, expected)) in vectors(&fused).iter().zip(vectors(&reference)).enumerate() {
                if i == 1 && round == 0 {
                    assert!(found.iter().all(|&x| x == 0.0), "the actor waits for the second update");
                    continue;
                }
                let distance = distance(found, &expected);
                assert!(distance < 1e-4, "{conv:?}, {hidden:?}, round {round}, vector {i}: {distance}");
            }
        }
    }

    #[test]
    fn the_gradient_of_the_actor_equals_finite_differences() {
        let (mut agent, mut collector) =
            agent(Td3Config { learning_starts: MAX_STEPS as u64, policy_delay: 1, ..config() }, LearnerKind::Fused, &[9, 5]);
        let pool = Pool::new(1).unwrap();
        train(&mut agent, &mut collector, 40, &pool);
        agent.config.learning_rate = Schedule::Constant(0.0);
        agent.learn(0.5, &pool).unwrap();
        let loss = |params: &[f32]| {
            let (network, f64) = (agent.both.policy.network(), DType::F64);
            let obs = network.features(agent.both.batch.columns().obs).unwrap().to_dtype(f64).unwrap();
            let params = Tensor::from_slice(params, params.len(), &Device::Cpu).unwrap().to_dtype(f64).unwrap();
            let rows = Tensor::cat(&[&obs, &agent.both.policy.forward(&params, &obs).unwrap()], 1).unwrap();
            let critics = agent.both.critics.online.network().params_tensor().unwrap().to_dtype(f64).unwrap();
            -agent.both.critics.online.forward(&critics, &rows).unwrap()[0].mean_all().unwrap().to_scalar::<f64>().unwrap()
        };
        let mut params = agent.both.policy.params().to_vec();
        let largest = agent.both.gradient.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        for at in (0..params.len()).step_by(7) {
            let (x, step) = (params[at], 1e-3);
            params[at] = x + step;
            let above = loss(&params);
            params[at] = x - step;
            let (below, width) = (loss(&params), f64::from((x + step) - (x - step)));
            params[at] = x;
            let (found, expected) = (f64::from(agent.both.gradient[at]), (above - below) / width);
            assert!((found - expected).abs() < 0.02 * f64::from(largest), "parameter {at}: {found}, not {expected}");
        }
    }

    #[test]
    fn a_saved_agent_continues_bit_for_bit_on_any_number_of_threads() {
        for action_noise in [ActionNoise::Normal, ActionNoise::OrnsteinUhlenbeck] {
            let config = Td3Config { action_noise, policy_delay: 3, ..config() };
            let [mut whole, mut cut] = [(); 2].map(|()| agent(config.clone(), LearnerKind::Fused, &[17, 9]));
            let pools = [Pool::new(1).unwrap(), Pool::new(3).unwrap()];
            train(&mut whole.0, &mut whole.1, 24, &pools[0]);
            train(&mut cut.0, &mut cut.1, 12, &pools[1]);
            let (snapshot, mut replay) = (cut.0.save().unwrap(), Vec::new());
            cut.0.both.experience.save_replay(&mut replay).unwrap();
            let state = cut.1.save().unwrap();
            let (mut resumed, mut collector) = agent(config, LearnerKind::Fused, &[17, 9]);
            resumed.load(&snapshot).unwrap();
            resumed.both.experience.load_replay(&snapshot, &mut &replay[..]).unwrap();
            collector.load(state).unwrap();
            assert!(resumed.save().unwrap() == snapshot);
            train(&mut resumed, &mut collector, 12, &pools[0]);
            let (saved, expected) = (resumed.save().unwrap(), whole.0.save().unwrap());
            assert!(saved == expected, "{action_noise:?}");
            assert_eq!(expected.counters.epochs, 24 * 6 - 30);
            assert_eq!(expected.counters.steps.taken, (24 * 6 - 30) / 3, "of the actor");
            for broken in [TARGET, "critics.target", STEPS, "m"] {
                let mut snapshot = snapshot.clone();
                snapshot.moments.retain(|(name, _)| name != broken);
                assert!(matches!(resumed.load(&snapshot), Err(Error::Snapshot(_))), "{broken}");
                assert!(resumed.save().unwrap() == expected, "{broken}");
            }
        }
    }

    #[test]
    fn targets_take_the_smaller_critic_and_clipped_noise() {
        let pool = Pool::new(1).unwrap();
        let targets = |target_policy_noise: f32, target_noise_clip: f32, n_critics: usize| {
            let config =
                Td3Config { learning_starts: MAX_STEPS as u64, target_policy_noise, target_noise_clip, n_critics, ..config() };
            let (mut agent, mut collector) = agent(config, LearnerKind::Fused, &[9]);
            train(&mut agent, &mut collector, 30, &pool);
            agent.both.experience.draw(0.5, &mut agent.both.batch, false).unwrap();
            agent.set_targets(3, &pool).unwrap();
            (agent.both.critics.targets.clone(), agent.both.actions.clone())
        };
        let (plain, actions) = targets(0.0, 0.5, 2);
        assert!(targets(1.0, 0.0, 2).0 == plain, "noise that is clipped to nothing");
        let (_, noisy) = targets(100.0, 0.25, 2);
        let moved = actions.iter().zip(&noisy).map(|(a, b)| (b - a).abs()).collect::<Vec<_>>();
        assert!(moved.iter().all(|&x| x < 0.2501) && moved.iter().filter(|&&x| x > 0.2499).count() > 80, "{moved:?}");
        let (one, _) = targets(0.0, 0.5, 1);
        assert!(plain.iter().zip(&one).all(|(least, one)| least <= one) && plain != one);
    }
}
