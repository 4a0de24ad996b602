//! Speed of networks: PPO's update with its stages, and acting.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rl_agents::gemm::{ROUND_FLOPS, multiply_adds};
use rl_agents::slices::{MAX_SLICES, MIN_SLICE};
use rl_agents::{ActorCritic, Agent as _, Collector, MemoryKind, NetConfig, Policy as _, Ppo, PpoConfig, Probe, Stage};
use rl_envs::catalog::Entry;
use rl_envs::{Action, ActionSpace, Env, Isa, Pool, Rng, Space, Spaces, Step};
use serde_json::{Map, Value, json};

use super::measure::{PARTS, spread};
use crate::Error;
use crate::config::budget::Budget;

/// An environment whose observations are random bytes of any shape.
#[derive(Clone, Debug)]
pub(crate) struct Noise {
    /// Channels, rows and columns, or fewer.
    shape: Vec<usize>,
}

impl Noise {
    /// Parses a length, or rows, columns and channels such as `84x84x4`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let sizes: Option<Vec<usize>> =
            text.split('x').map(|size| size.parse().ok().filter(|n| (1..=1 << 16).contains(n))).collect();
        match sizes.as_deref() {
            Some(&[len]) => Ok(Self { shape: vec![len] }),
            Some(&[rows, columns, channels]) => Ok(Self { shape: vec![channels, rows, columns] }),
            _ => Err("neither a length nor ROWSxCOLUMNSxCHANNELS, such as 84x84x4, with numbers from 1 to 65536".into()),
        }
    }

    fn fill(rng: &mut Rng, obs: &mut [u8]) {
        for bytes in obs.chunks_mut(4) {
            bytes.copy_from_slice(&rng.next_u32().to_le_bytes()[..bytes.len()]);
        }
    }
}

impl Env for Noise {
    type Obs = u8;
    type State = ();

    fn observation_space(&self) -> Space {
        Space::bytes(&self.shape, u8::MAX, 1.0 / 255.0)
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Discrete { n: 4, masked: false }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [u8]) {
        Self::fill(rng, obs);
    }

    fn step(&mut self, _: Action<'_>, rng: &mut Rng, obs: &mut [u8]) -> Step {
        Self::fill(rng, obs);
        Step { reward: rng.normal(), terminated: rng.below(100) == 0, truncated: false }
    }

    fn state(&self) -> Option<()> {
        None
    }

    fn set_state(&mut self, (): ()) -> Result<(), rl_envs::Error> {
        Ok(())
    }
}

/// ObsSource of the observations of `bench update`.
#[derive(Clone, Debug)]
pub(super) enum ObsSource {
    Entry(Entry),
    Noise(Noise),
}

impl ObsSource {
    fn spaces(&self) -> Spaces {
        match self {
            Self::Entry(entry) => entry.spaces(),
            Self::Noise(noise) => Spaces { obs: noise.observation_space(), actions: noise.action_space() },
        }
    }

    fn bytes_per_env(&self) -> usize {
        match self {
            Self::Entry(entry) => entry.bytes_per_env(),
            Self::Noise(_) => size_of::<Noise>(),
        }
    }

    fn collector(&self, n_envs: usize, pool: &Pool) -> Result<Collector, Error> {
        Ok(match self {
            Self::Entry(entry) => Collector::of(entry.slices(n_envs, MAX_SLICES, MIN_SLICE)?, pool, 0)?,
            Self::Noise(noise) => Collector::new(n_envs, noise, pool, 0)?,
        })
    }
}

/// Networks to measure.
#[derive(Clone, Debug)]
pub(super) struct MeasuredNets {
    pub(super) source: ObsSource,
    pub(super) config: NetConfig,
    /// Number of threads.
    pub(super) threads: usize,
}

impl MeasuredNets {
    /// Creates the policy.
    fn policy(&self) -> Result<ActorCritic, Error> {
        let Spaces { obs, actions } = self.source.spaces();
        Ok(ActorCritic::new(&obs, &actions, &self.config, 0)?)
    }

    /// Describes the networks, and adds the fields of `result`.
    fn describe(&self, result: Value) -> Value {
        let Self { source, config, threads } = self;
        let name = match source {
            ObsSource::Entry(entry) => entry.name,
            ObsSource::Noise(_) => "noise",
        };
        let mut all = json!({
            "event": "bench", "env": name, "obs": source.spaces().obs.shape(), "conv": config.conv, "hidden": config.hidden,
            "activation": config.activation, "shared_trunk": config.shared_trunk, "memory": config.memory,
            "memory_size": config.memory_size, "learner": config.learner, "threads": threads,
            "isa": Isa::best(),
        });
        if let (Value::Object(all), Value::Object(result)) = (&mut all, result) {
            all.extend(result);
        }
        all
    }
}

/// Times by stage, summed over the threads, in nanoseconds.
#[derive(Default)]
struct Times([AtomicU64; Stage::ALL.len()]);

impl Times {
    /// Returns a probe that adds to the times.
    fn probe(self: &Arc<Self>) -> Probe {
        thread_local! { static LAST: Cell<Option<Instant>> = const { Cell::new(None) }; }
        let times = self.clone();
        Arc::new(move |stage| {
            let now = Instant::now();
            if let Some(last) = LAST.replace(Some(now)) {
                let sum = Stage::ALL.iter().zip(&times.0).find(|(known, _)| **known == stage);
                sum.map(|(_, sum)| sum.fetch_add((now - last).as_nanos() as u64, Ordering::Relaxed));
            }
        })
    }

    /// Shares of the threads' time by stage.
    fn shares(&self, total: Duration) -> Map<String, Value> {
        let name = |stage: Stage| format!("{stage:?}").to_lowercase();
        let share = |sum: &AtomicU64| (sum.load(Ordering::Relaxed) as f64 / total.as_nanos() as f64 * 1e4).round() / 1e4;
        Stage::ALL.iter().zip(&self.0).map(|(stage, sum)| (name(*stage), share(sum).into())).collect()
    }
}

/// Steps of a column of a minibatch, for networks with memory.
const SEQUENCE: usize = 64;

/// Measures samples per second of whole PPO updates on rollouts of an environment.
///
/// Everything counts: targets, shuffling, gathering, normalization, losses, gradients, clipping, Adam. The result includes the
/// networks' share of the machine's peak of multiply-adds, measured in the same run. A second pass, a fifth as long and not part
/// of the rate, measures the share of each stage.
///
/// All updates learn from one rollout, which is marked as the current policy's: training without lag computes no values again.
/// With memory, a minibatch is made of columns of 64 steps; its size is a multiple of 64.
///
/// # Errors
/// Errors of the environments and the agent.
pub(super) fn update(nets: &MeasuredNets, minibatch: usize, seconds: f64) -> Result<Value, Error> {
    let MeasuredNets { source, config: net, threads } = nets;
    let pool = Pool::new(*threads)?;
    // A rollout of at least 8,192 samples, in whole minibatches and whole steps.
    let n_envs = (1..=16.min(minibatch)).rev().find(|n| minibatch.is_multiple_of(*n)).unwrap_or(1);
    let n_samples = 8192usize.div_ceil(minibatch) * minibatch;
    let remembers = net.memory != MemoryKind::None;
    if remembers && !minibatch.is_multiple_of(SEQUENCE) {
        return Err(Error::config(format!("--minibatch is {minibatch}; with memory it must be a multiple of {SEQUENCE}")));
    }
    let n_envs = if remembers { n_samples / SEQUENCE } else { n_envs };
    let n_steps = n_samples / n_envs;
    Budget::bench(source.spaces(), source.bytes_per_env(), n_envs, n_steps, 1, Some((net, minibatch))).check()?;
    let mut collector = source.collector(n_envs, &pool)?;
    let policy = nets.policy()?;
    collector.remember(policy.state_len());
    let flops = policy.flops_per_sample() as f64;
    let config = PpoConfig { n_steps, batch_size: minibatch, n_epochs: 1, ..PpoConfig::default() };
    let mut agent = Ppo::new(policy, config, n_envs, 0)?;
    let mut rollout = collector.rollout(n_steps)?;
    collector.collect(agent.acting(1.0), &mut rollout)?;
    let mut update = |agent: &mut Ppo| {
        rollout.policy_version_mut().fill(agent.policy().weights().version);
        agent.update(&rollout, 1.0, &pool)
    };
    update(&mut agent)?;
    let (mut rates, mut ceilings) = (Vec::new(), Vec::new());
    for _ in 0..PARTS {
        let (begin, mut updates) = (Instant::now(), 0);
        while updates == 0 || begin.elapsed() < Duration::from_secs_f64(seconds) / PARTS {
            update(&mut agent)?;
            updates += 1;
        }
        rates.push((updates * n_samples) as f64 / begin.elapsed().as_secs_f64());
        ceilings.push(ceiling(Isa::best(), &pool));
    }
    let times = Arc::new(Times::default());
    if let Some(observed) = agent.observed() {
        observed.set_probe(times.probe());
    }
    update(&mut agent)?;
    times.0.iter().for_each(|sum| sum.store(0, Ordering::Relaxed));
    let (begin, mut updates) = (Instant::now(), 0);
    while updates == 0 || begin.elapsed() < Duration::from_secs_f64(seconds) / PARTS {
        update(&mut agent)?;
        updates += 1;
    }
    let stages = times.shares(begin.elapsed() * *threads as u32);
    let (median, min, max) = spread(rates);
    let (ceiling, ..) = spread(ceilings);
    Ok(nets.describe(json!({
        "name": "update", "value": median, "unit": "samples/s", "min": min, "max": max, "minibatch": minibatch, "seconds": seconds,
        "flops_per_sample": flops, "ceiling_flops": ceiling, "share_of_ceiling": median * flops / ceiling, "stages": stages,
    })))
}

/// Measures environment steps per second of an acting policy.
///
/// # Errors
/// Errors of the environments and the policy.
pub(super) fn act(nets: &MeasuredNets, n_envs: usize, seconds: f64) -> Result<Value, Error> {
    const N_STEPS: usize = 64;
    let MeasuredNets { source, config, threads, .. } = nets;
    let pool = Pool::new(*threads)?;
    Budget::bench(source.spaces(), source.bytes_per_env(), n_envs, N_STEPS, 1, Some((config, 1))).check()?;
    let mut collector = source.collector(n_envs, &pool)?;
    let policy = nets.policy()?;
    collector.remember(policy.state_len());
    let mut rollout = collector.rollout(N_STEPS)?;
    collector.collect(&policy, &mut rollout)?;
    let mut rates = Vec::new();
    for _ in 0..PARTS {
        let (begin, mut rollouts) = (Instant::now(), 0);
        while rollouts == 0 || begin.elapsed() < Duration::from_secs_f64(seconds) / PARTS {
            collector.collect(&policy, &mut rollout)?;
            rollouts += 1;
        }
        rates.push((rollouts * N_STEPS * n_envs) as f64 / begin.elapsed().as_secs_f64());
    }
    let (median, min, max) = spread(rates);
    Ok(nets.describe(json!({
        "name": "act", "value": median, "unit": "env_steps/s", "min": min, "max": max, "envs": n_envs, "seconds": seconds,
    })))
}

/// Measures floating-point operations per second of multiply-adds on all threads.
pub(crate) fn ceiling(isa: Isa, pool: &Pool) -> f64 {
    const ROUNDS: u64 = 1_000_000;
    let begin = Instant::now();
    let mut sums = vec![0.0; pool.n_threads()];
    pool.each(&mut sums, &|sum| *sum = multiply_adds(isa, ROUNDS));
    std::hint::black_box(sums);
    (ROUND_FLOPS * ROUNDS * pool.n_threads() as u64) as f64 / begin.elapsed().as_secs_f64()
}
