//! Environments and agent of a run, made from its settings.

use std::sync::Arc;

use rl_agents::Collector;
use rl_agents::ranks::Ranks;
use rl_agents::slices::{MAX_SLICES, MIN_SLICE};
use rl_buffer::Rollout;
use rl_cuda::Device;
use rl_envs::catalog::{Entry, Limits};
use rl_envs::{Constructor, Element, MakeBlocking, Pool, VecEnv, either, pool};

use crate::config::Drive;
use crate::config::algo::{Build, Built};
use crate::pipeline::blocking::BlockingEnvs;
use crate::pipeline::faults::FaultConfig;
use crate::pipeline::first_come::FirstComeCollector;
use crate::pipeline::{Collect, rollout_memory};
use crate::report::profile::nanos;
use crate::sources::recording::Playback;
use crate::{Config, Error, Mode, config::auto, print};

/// Makes the environments of a run on the CPU, or plays back their recording.
///
/// With other ranks, those that are this rank's share.
pub(crate) fn collector(
    config: &Config,
    entry: &Entry,
    pool: &Pool,
    ranks: Option<&Arc<dyn Ranks>>,
) -> Result<Box<dyn Collect>, Error> {
    if !config.run.offline.is_empty() {
        return Ok(Box::new(Playback::open(config, &entry.spaces())?));
    }
    if let Some(make) = blocking(config, entry) {
        return either!(Obs, make, |make| first_come(config, entry, make));
    }
    let (n_envs, workers) = (config.run.n_envs, config.workers().div_ceil(config.n_devices()));
    let n_ranks = ranks.map_or(1, |ranks| ranks.n_ranks());
    let (max_slices, min_len, pool) = if entry.batches().is_none() {
        (MAX_SLICES, MIN_SLICE, pool)
    } else {
        // One thread per worker: it mostly waits for its worker.
        (workers * n_ranks, 1, &if pool.n_threads() < workers { Pool::new(workers)? } else { pool.clone() })
    };
    let Some(ranks) = ranks else { return of_slices(config, entry.slices(n_envs, max_slices, min_len)?, pool) };
    let slices: Vec<_> = pool::slices(n_envs, max_slices, min_len).collect();
    Ok(with_settings(Collector::of_rank(ranks.clone(), &slices, |range| entry.slice(range), pool, config.run.seed)?, config))
}

/// Makes a collector of environments that answer first come.
fn first_come<O: Element>(config: &Config, entry: &Entry, make: Constructor<O>) -> Result<Box<dyn Collect>, Error> {
    let envs = BlockingEnvs::new(
        config.run.n_envs,
        entry.spaces(),
        Arc::new(move |_| Ok(make())),
        config.faults_of(entry),
        config.run.seed,
    )?;
    Ok(Box::new(FirstComeCollector::new(envs, config.n_steps(), config.first_come())?))
}

/// Tells worker processes the handling of faults.
pub(crate) fn limit_faults(config: &Config, entry: &Entry) {
    let FaultConfig { timeout: call, start_timeout: start, close_timeout: close, max_restarts, .. } = config.faults();
    entry.batches().into_iter().for_each(|batches| batches.limit(&Limits { start, call, close, max_restarts }));
}

/// Returns the constructor of environments that answer first come.
pub(crate) fn blocking(config: &Config, entry: &Entry) -> Option<MakeBlocking> {
    let first_come = || entry.batches().filter(|_| config.blocks(entry))?.blocking();
    entry.make_blocking().or_else(first_come)
}

/// Makes a collector of environments in slices.
pub(crate) fn of_slices(config: &Config, envs: Vec<Box<dyn VecEnv>>, pool: &Pool) -> Result<Box<dyn Collect>, Error> {
    Ok(with_settings(Collector::of(envs, pool, config.run.seed)?, config))
}

/// Applies the settings of a run to its collector.
fn with_settings(collector: Collector, config: &Config) -> Box<dyn Collect> {
    Box::new(collector.with_on_nonfinite(config.run.on_nonfinite).with_clock(nanos))
}

/// Share of its time below which an environment mostly waits.
const MOSTLY_WAITS: f64 = 0.5;

/// Returns the settings of a run, with `drive = auto` resolved by a measurement.
///
/// Worker processes handle faults by these settings from now on.
pub(crate) fn with_measured_drive(config: &Config, entry: &Entry) -> Result<Config, Error> {
    let mut config = config.clone();
    limit_faults(&config, entry);
    if let (Drive::Auto, Some(batches)) = (config.run.drive, entry.batches()) {
        let busy = batches.busy(config.run.seed)?;
        let waits = busy.is_some_and(|busy| busy < MOSTLY_WAITS);
        config.run.drive = if waits { Drive::FirstCome } else { Drive::Lockstep };
        let (order, share) = (if waits { "first_come" } else { "lockstep" }, busy.map_or(f64::NAN, |busy| 100.0 * busy));
        print::err(&format!("drive = {order}: an environment computes for {share:.0}% of its time"));
    }
    Ok(config)
}

/// Builds the agent of a run, with parameters that are drawn or will be loaded.
///
/// It learns on `device`, or on the CPU, from rollouts of `n_collectors` collectors. Its environments come with it if they are on
/// the device that learns; with `ranks`, this rank's share.
pub(crate) fn agent(
    config: &Config,
    entry: &Entry,
    device: Option<Device>,
    n_collectors: usize,
    fresh: bool,
    ranks: Option<&Arc<dyn Ranks>>,
) -> Result<Built, Error> {
    let env = config.env_on_device(entry)?;
    let mut build = Build { device, env, ranks: ranks.cloned(), n_collectors, ..config.build(entry, fresh) };
    build.replay.ranks = ranks.filter(|_| config.run.shard_replay).cloned();
    let built = auto::or_on_cpu(config, build.device.is_some(), build_agent(config, &build), || {
        config.algo.settings().agent(&Build { device: None, ..build.clone() })
    });
    built.map_err(|error| match lack_of_memory(error) {
        Ok(error) => Error::DeviceMemory { error, fits: advice_on_memory(config, &build) },
        Err(error) => error,
    })
}

/// Returns a device's lack of memory; any other error is the error.
fn lack_of_memory(error: Error) -> Result<rl_cuda::Error, Error> {
    match error {
        Error::Agent(
            rl_agents::Error::Device(error @ rl_cuda::Error::Memory { .. })
            | rl_agents::Error::Buffer(rl_buffer::Error::Device(error @ rl_cuda::Error::Memory { .. })),
        ) => Ok(error),
        error => Err(error),
    }
}

/// Halves minibatches until the training fits into memory.
///
/// With memory, minibatches stay whole columns of a rollout.
#[cfg(feature = "cli")]
pub(crate) fn fit_batch(config: &Config, entry: &Entry, n_ranks: usize) -> Result<Config, Error> {
    let mut smaller = config.clone();
    let (entry, mut samples) = (&config.wrapped(entry), config.traits().minibatch);
    let unit = if config.net.memory == rl_agents::MemoryKind::None { 1 } else { config.n_steps() };
    let device = auto::choose(config, entry, n_ranks).0.open()?;
    while !fits(&smaller, entry, device.as_ref(), n_ranks)? {
        let units = samples / unit;
        samples = unit * (1..=units / 2).rev().find(|part| units.is_multiple_of(*part)).unwrap_or(0);
        if samples < 2 {
            return Ok(config.clone()); // it is refused with what would fit
        }
        smaller = config.clone();
        let Some((_, batch_size)) = smaller.algo.settings_mut().auto_batch() else { return Ok(smaller) };
        *batch_size = samples;
    }
    Ok(smaller)
}

/// True if a training fits into the memory of host and device.
#[cfg(feature = "cli")]
fn fits(config: &Config, entry: &Entry, device: Option<&Device>, n_ranks: usize) -> Result<bool, Error> {
    if crate::config::budget::Budget::training(config, entry).of_rank(n_ranks).check().is_err() {
        return Ok(false);
    }
    let Some(device) = device.cloned() else { return Ok(true) };
    let env = config.env_on_device(entry)?;
    match build_agent(config, &Build { device: Some(device), env, ..config.build(entry, false) }) {
        Ok(_) => Ok(true),
        Err(error) => lack_of_memory(error).map(|_| false),
    }
}

/// Builds the agent, and checks that the rollouts in flight fit beside it.
fn build_agent(config: &Config, build: &Build<'_>) -> Result<Built, Error> {
    let mut built = config.algo.settings().agent(build)?;
    if build.device.is_some() && config.mode() != Mode::Sync {
        // The device has memory for rollouts on their way, which the pipeline allocates later.
        let shape = build.rollout(config.n_steps()).with_state_len(built.0.policy().state_len());
        let memory = rollout_memory(&mut *built.0, config.mode());
        let rollouts = (0..config.mode().n_ahead()).map(|_| Rollout::new_in(shape, &memory));
        rollouts.collect::<Result<Vec<_>, _>>().map_err(rl_agents::Error::from)?;
    }
    Ok(built)
}

/// Names a smaller setting that fits the device.
fn advice_on_memory(config: &Config, build: &Build<'_>) -> String {
    let mut smaller = config.clone();
    if let Some(setting) = smaller.algo.settings_mut().reduce_device_memory()
        && build_agent(&smaller, build).is_ok()
    {
        return format!("it fits with {setting}");
    }
    let settings = config.algo.settings();
    let allowed: Vec<usize> = (1..build.n_envs).filter(|&n_envs| settings.check(n_envs).is_none()).collect();
    let fits = |n_envs| build_agent(config, &Build { n_envs, fresh: false, ..build.clone() }).is_ok();
    let n_fitting = allowed.partition_point(|&n_envs| fits(n_envs));
    match allowed[..n_fitting].last() {
        Some(n_envs) => format!("the largest n_envs that fits is {n_envs}"),
        None => "not even one environment fits".into(),
    }
}
