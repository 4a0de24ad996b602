//! Benches of the `rl` program.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rl_agents::slices::MAX_SLICES;
use rl_agents::{ActorCritic, Agent as _, NetConfig, Ppo, PpoConfig};
use rl_buffer::{
    ActionKind, ActionSlice, Batch, ObsSlice, PrioritizedReplayBuffer, ReplayBuffer, Rollout, RolloutColumns, RolloutShape,
    StepSlices, TransitionShape,
};
use rl_cuda::measure;
use rl_cuda::{ActionSource, CudaVecEnv, Device};
use rl_envs::catalog::Entry;
use rl_envs::{Dtype, Pool, Purpose, RandomActions, Rng, VecEnv, rng};
use serde_json::{Value, json};

use crate::Mode;
use crate::config::budget::Budget;
use crate::file::Draft;
use crate::pipeline::blocking::{BlockingEnvs, Make};
use crate::pipeline::faults::{FaultConfig, FaultCounts};
use crate::pipeline::first_come::{FirstComeCollector, FirstComeConfig};
use crate::pipeline::{Flow, Pipeline, rollout_memory};
use crate::report::advice::Circumstances;
use crate::report::metrics::LagHistogram;
use crate::report::profile::{Phase, Profile};
use crate::report::resources::Resources;
use crate::run::mapped;
use crate::sources::slow_cartpole::{Latency, SlowCartPole, spin};
use crate::{Error, print};

/// Steps of the rollout that the bench writes: enough to leave the cache.
const N_STEPS: usize = 128;
/// Maximum bytes of its observations, which may shorten it.
const MAX_BYTES: usize = 4 << 30;
/// Number of parts of the measured time, whose median is reported.
pub(super) const PARTS: u32 = 5;
/// Memory of the thread of a blocking environment.
const STACK: usize = 64 << 10;
/// Fewest environments for which the batch is cut into the collector's slices.
const MIN_ENVS: usize = 64;

/// A slice of the environments, with the buffers to step them.
struct Driven {
    envs: Box<dyn VecEnv>,
    random: RandomActions,
    repeat: usize,
}

impl Driven {
    /// Resets the environments and writes their first row.
    fn reset(&mut self, columns: &mut RolloutColumns<'_>) -> Result<(), rl_envs::Error> {
        let (obs, masks) = columns.start(0);
        self.envs.reset_into(0, obs, masks)
    }

    /// Fills the columns with random actions and their outcomes.
    fn fill(&mut self, columns: &mut RolloutColumns<'_>) -> Result<(), rl_envs::Error> {
        for t in 0..columns.n_steps() {
            self.random.fill(columns.step(t).actions);
            for _ in 0..self.repeat {
                self.envs.step_into(columns.step(t))?;
                if let Some((i, why)) = self.envs.faults().first() {
                    let env_idx = self.envs.first_env() as usize + i;
                    return Err(rl_envs::Error::Outside(format!("environment {env_idx}: {why}")));
                }
            }
        }
        Ok(())
    }
}

/// Runs `work` on each slice with its columns of the rollout.
fn on_slices(
    pool: &Pool,
    slices: &mut [Driven],
    rollout: &mut Rollout,
    work: impl Fn(&mut Driven, &mut RolloutColumns<'_>) -> Result<(), rl_envs::Error> + Sync,
) -> Result<(), Error> {
    let mut jobs = Vec::with_capacity(slices.len());
    let mut rest = rollout.columns();
    for slice in slices {
        let (columns, others) = rest.split_at(slice.envs.n_envs());
        rest = others;
        jobs.push((slice, columns, Ok(())));
    }
    pool.each(&mut jobs, &|(slice, columns, result)| *result = work(slice, columns));
    Ok(jobs.into_iter().try_for_each(|(.., result)| result)?)
}

/// Measures environment steps per second with random actions.
///
/// Drawing the actions is part of the time. Observations, masks, rewards and flags are written to a rollout of 128 steps, and
/// environments reset where episodes end. Each thread fills the columns of its own environments, as in training. The work of each
/// step is done `repeat` times in place, and counted once.
///
/// # Errors
/// Errors of the environments.
pub(super) fn env(entry: &Entry, n_envs: usize, threads: usize, repeat: usize, seconds: f64) -> Result<Value, Error> {
    let pool = Pool::new(threads)?;
    let spaces = entry.spaces();
    let row = spaces.obs.len() * spaces.obs.dtype().size();
    let n_steps = (MAX_BYTES / (n_envs * row).max(1)).clamp(1, N_STEPS);
    Budget::bench(entry.spaces(), entry.bytes_per_env(), n_envs, n_steps, 1, None).check()?;
    let mut first_env = 0;
    let mut slices = Vec::new();
    // A worker for each thread.
    let (max_slices, min_envs) = if entry.batches().is_some() { (threads, 1) } else { (MAX_SLICES, MIN_ENVS) };
    for envs in entry.slices(n_envs, max_slices, min_envs)? {
        let n = envs.n_envs();
        let random = RandomActions::slice(0, first_env..first_env + n, &spaces.actions);
        slices.push(Driven { envs, random, repeat });
        first_env += n;
    }
    let shape = RolloutShape::new(n_steps, n_envs, &spaces.obs, &spaces.actions);
    let mut rollout = Rollout::new(shape).map_err(rl_agents::Error::from)?;
    on_slices(&pool, &mut slices, &mut rollout, Driven::reset)?;
    on_slices(&pool, &mut slices, &mut rollout, Driven::fill)?; // touches all memory before the clock starts
    let mut rates = Vec::new();
    for _ in 0..PARTS {
        let (begin, mut rollouts) = (Instant::now(), 0u64);
        while rollouts == 0 || begin.elapsed() < Duration::from_secs_f64(seconds) / PARTS {
            on_slices(&pool, &mut slices, &mut rollout, Driven::fill)?;
            rollouts += 1;
        }
        rates.push((rollouts * (n_steps * n_envs) as u64) as f64 / begin.elapsed().as_secs_f64());
    }
    let (median, min, max) = spread(rates);
    Ok(json!({
        "event": "bench", "name": "env", "env": entry.name, "value": median, "unit": "env_steps/s", "min": min, "max": max,
        "envs": n_envs, "threads": threads, "device": "cpu", "n_steps": n_steps, "repeat": repeat, "seconds": seconds,
    }))
}

/// Measures environment steps per second on CUDA device `ordinal`.
///
/// Kernels draw the actions. Measured are one launch per step, a captured rollout (the value), and 128 steps per launch, in
/// addition to the rate of a copy within the device. With `sweep`, every block size is measured first, with 1 to 4,194,304
/// environments, and the best for `n_envs` is used. The stand-in driver runs each of them once, and gives no rate.
///
/// # Errors
/// [`Error::Device`] if there is no device, or it fails.
pub(super) fn env_on_device(
    entry: &Entry,
    n_envs: usize,
    ordinal: usize,
    sweep: bool,
    repeat: u32,
    seconds: f64,
) -> Result<Vec<Value>, Error> {
    let device = Device::open(ordinal)?;
    env_on(&device, entry, n_envs, sweep, repeat, seconds)
}

fn env_on(device: &Device, entry: &Entry, n_envs: usize, sweep: bool, repeat: u32, seconds: f64) -> Result<Vec<Value>, Error> {
    let (name, mut rows) = (entry.name, Vec::new());
    let mut block = CudaVecEnv::of_entry(device, entry, n_envs)?.block();
    if device.is_stand_in() {
        let case = |mode| measure::Case { env: entry, n_envs, block, mode, source: ActionSource::Random, repeat };
        measure::Mode::ALL.into_iter().try_for_each(|mode| measure::env_steps(device, &case(mode), 0.0).map(drop))?;
        return Ok(vec![json!({
            "event": "bench", "name": "env", "env": name, "value": null, "stand_in": true, "unit": "env_steps/s", "envs": n_envs,
            "device": device.to_string(), "block": block, "repeat": repeat,
        })]);
    }
    if sweep {
        let sizes: Vec<usize> = (0..=22).step_by(2).map(|power| 1 << power).collect();
        let each = seconds / (sizes.len() * measure::BLOCKS.len()) as f64;
        for size in sizes {
            let rates = match measure::sweep_blocks(device, entry, size, measure::Mode::Graph, each) {
                Err(rl_cuda::Error::Memory { .. }) => break,
                rates => rates?,
            };
            rows.extend(rates.into_iter().map(|(block, rate)| {
                json!({
                    "event": "bench", "name": "env_block", "env": name, "value": rate, "unit": "env_steps/s", "envs": size,
                    "block": block, "device": device.to_string(),
                })
            }));
        }
        let rates = measure::sweep_blocks(device, entry, n_envs, measure::Mode::Graph, seconds / 20.0)?;
        block = measure::best_block(&rates).unwrap_or(block);
    }
    let part = seconds / f64::from(PARTS + 3);
    let case = |mode| measure::Case { env: entry, n_envs, block, mode, source: ActionSource::Random, repeat };
    let rate = |mode| measure::env_steps(device, &case(mode), part);
    let graphs = (0..PARTS).map(|_| rate(measure::Mode::Graph)).collect::<Result<Vec<_>, _>>()?;
    let (median, min, max) = spread(graphs);
    let launches = rate(measure::Mode::Launches)?;
    let copy = measure::copy_bandwidth(device, 256 << 20, part)?;
    let bytes = measure::step_bytes(&CudaVecEnv::of_entry(device, entry, n_envs)?);
    rows.push(json!({
        "event": "bench", "name": "env", "env": name, "value": median, "unit": "env_steps/s", "min": min, "max": max,
        "envs": n_envs, "device": device.to_string(), "block": block, "repeat": repeat, "seconds": seconds,
        "launches": launches, "fused": rate(measure::Mode::Fused)?, "bytes_per_step": bytes, "copy_bytes_per_s": copy,
        "launches_share_of_copy": launches * bytes as f64 / copy,
    }));
    Ok(rows)
}

/// Returns median, minimum and maximum.
pub(super) fn spread(mut rates: Vec<f64>) -> (f64, f64, f64) {
    rates.sort_unstable_by(f64::total_cmp);
    (rates[rates.len() / 2], rates[0], rates[rates.len() - 1])
}

/// A replay buffer of either kind.
enum Replay {
    Uniform(ReplayBuffer),
    Prioritized(PrioritizedReplayBuffer),
}

impl Replay {
    fn push(&mut self, obs: ObsSlice<'_>, step: &StepSlices<'_>) -> Result<usize, rl_buffer::Error> {
        match self {
            Self::Uniform(buffer) => buffer.push(obs, step),
            Self::Prioritized(buffer) => buffer.push(obs, step),
        }
    }

    /// Draws a batch and, with priorities, updates them.
    fn draw(&mut self, words: &[u32], errors: &[f32], batch: &mut Batch) -> Result<(), rl_buffer::Error> {
        match self {
            Self::Uniform(buffer) => buffer.sample(words, batch),
            Self::Prioritized(buffer) => {
                buffer.sample(words, 0.4, batch)?;
                buffer.update_priorities(batch.columns().indices, batch.drawn_at(), errors).map(|_| ())
            }
        }
    }
}

/// Elements of an observation in the replay bench, as in CartPole.
const REPLAY_OBS: usize = 4;
/// Transitions that the replay bench adds at once.
const REPLAY_ENVS: usize = 4096;

/// Measures transitions per second added to a replay buffer, and drawn from it.
///
/// On one thread, it adds 4,096 at once and draws batches, each with one random word drawn inside the clock; with priorities, it
/// also updates them, by errors that differ from each other. Observations are four f32. Unless `dir`
/// is empty, a file there holds the transitions.
///
/// # Errors
/// [`Error::Config`] if such a buffer is impossible.
pub(super) fn replay(capacity: usize, dir: &str, batch: usize, prioritized: bool, seconds: f64) -> Result<[Value; 2], Error> {
    let config = |error: rl_buffer::Error| Error::Config { problems: vec![error.to_string()] };
    let shape = TransitionShape {
        n_envs: REPLAY_ENVS,
        obs_len: REPLAY_OBS,
        obs: Dtype::F32,
        stack: 1,
        actions: ActionKind::Discrete { masked: None },
        n_step: 1,
        gamma: 0.99,
    };
    Budget::replay(shape, capacity, prioritized, !dir.is_empty()).check()?;
    let memory = mapped::memory(dir);
    let mut drawn = Batch::new(&shape, batch).map_err(config)?;
    let mut buffer = if prioritized {
        Replay::Prioritized(PrioritizedReplayBuffer::new_in(shape, capacity, 0.6, 1e-6, &memory).map_err(config)?)
    } else {
        Replay::Uniform(ReplayBuffer::new_in(shape, capacity, &memory).map_err(config)?)
    };
    let mut draws = 0;
    let mut fill = |words: &mut [u32]| {
        Rng::new(0, 0, draws, Purpose::Shuffle).fill(words);
        draws += 1;
    };
    let mut words = vec![0; (REPLAY_ENVS * REPLAY_OBS).max(batch)];
    fill(&mut words);
    let numbers: Vec<f32> = words.iter().map(|&word| rng::uniform(word)).collect();
    let obs = ObsSlice::F32(&numbers[..REPLAY_ENVS * REPLAY_OBS]);
    let ends: Vec<u8> = numbers[..REPLAY_ENVS].iter().map(|&x| u8::from(x < 0.05)).collect();
    let actions = vec![1; REPLAY_ENVS];
    let step = StepSlices {
        obs,
        actions: ActionSlice::Discrete(&actions),
        rewards: &numbers[..REPLAY_ENVS],
        terminated: &ends,
        truncated: &vec![0; REPLAY_ENVS],
        final_obs: obs,
        masks: None,
    };
    for _ in 0..capacity.div_ceil(REPLAY_ENVS) {
        buffer.push(obs, &step).map_err(config)?;
    }
    let errors = &numbers[..batch];
    let words = &mut words[..batch];
    // Priorities as after a while, not all equal.
    for _ in 0..if prioritized { (2 * capacity).div_ceil(batch) } else { 1 } {
        fill(words);
        buffer.draw(words, errors, &mut drawn).map_err(config)?;
    }
    let measure = |mut work: Box<dyn FnMut() -> Result<usize, Error> + '_>| -> Result<_, Error> {
        let mut rates = Vec::new();
        for _ in 0..PARTS {
            let (begin, mut n) = (Instant::now(), 0);
            while n == 0 || begin.elapsed() < Duration::from_secs_f64(seconds) / PARTS / 2 {
                n += work()?;
            }
            rates.push(n as f64 / begin.elapsed().as_secs_f64());
        }
        Ok(spread(rates))
    };
    let drawing = measure(Box::new(|| {
        fill(words);
        buffer.draw(words, errors, &mut drawn).map_err(config)?;
        Ok(batch)
    }))?;
    let adding = measure(Box::new(|| buffer.push(obs, &step).map_err(config)))?;
    let object = |name, (median, min, max): (f64, f64, f64)| {
        json!({
            "event": "bench", "name": name, "value": median, "unit": "transitions/s", "min": min, "max": max, "capacity": capacity,
            "batch": batch, "prioritized": prioritized, "obs": REPLAY_OBS, "added_at_once": REPLAY_ENVS, "threads": 1,
            "seconds": seconds,
        })
    };
    Ok([object("replay_add", adding), object(if prioritized { "replay_sample_update" } else { "replay_sample" }, drawing)])
}

/// Settings of `bench pipeline`.
#[derive(Clone, Debug)]
pub(super) struct PipelineBench {
    /// Environments N.
    pub(super) envs: usize,
    /// Cost of a step.
    pub(super) latency: Latency,
    /// Steps T of a rollout.
    pub(super) n_steps: usize,
    /// Alternating or overlapped collecting and learning.
    pub(super) mode: Mode,
    /// Environments to wait for before the policy acts, and for how long.
    pub(super) ready: FirstComeConfig,
    /// Computing time of an update on one thread; `None` for PPO's work.
    pub(super) update: Option<Duration>,
    /// Settings of PPO, whose number of steps is `n_steps`.
    pub(super) ppo: PpoConfig,
    /// Sizes of the hidden layers.
    pub(super) hidden: Vec<usize>,
    /// Threads of PPO's updates.
    pub(super) threads: usize,
    /// Seconds to measure.
    pub(super) seconds: f64,
    /// File of the timeline.
    pub(super) timeline: Option<PathBuf>,
}

/// Returns resident memory in bytes, threads and open files of this process, or 0.
fn resources() -> [u64; 3] {
    let [rss, threads] = Resources::read().map_or([0; 2], |Resources { rss, threads, .. }| [rss, threads]);
    let files = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64);
    [rss, threads, files]
}

/// Measures environment steps per second of a pipeline with blocking environments.
///
/// The result includes the rate of the environments alone (`envs / mean latency`). The clock starts at the end of the first
/// rollout. Environments begin in step and drift apart, so more and more stretches are partly full: measuring few rollouts
/// underestimates.
///
/// # Errors
/// Errors of the environments and the agent.
pub(super) fn pipeline(bench: &PipelineBench) -> Result<Value, Error> {
    let PipelineBench { envs: n_envs, latency, n_steps, mode, ready, update, ppo, hidden, threads, seconds, timeline } = bench;
    let (n_envs, n_steps, latency) = (*n_envs, *n_steps, *latency);
    let profile = Profile::new(timeline.is_some());
    let draft = timeline.as_deref().map(Draft::create).transpose()?;
    let pool = Pool::new(*threads)?;
    let spaces = SlowCartPole::spaces();
    let net = NetConfig { hidden: hidden.clone(), ..NetConfig::default() };
    // Without learning, any minibatch is valid.
    let batch_size = if update.is_some() { n_steps * n_envs } else { ppo.batch_size };
    let rollouts = mode.n_ahead().max(1);
    Budget::bench(spaces.clone(), STACK, n_envs, n_steps, rollouts, Some((&net, batch_size))).check()?;
    let policy = ActorCritic::new(&spaces.obs, &spaces.actions, &net, 0)?;
    let mut agent = Ppo::new(policy, PpoConfig { n_steps, batch_size, ..ppo.clone() }, n_envs, 0)?;
    let make: Make<SlowCartPole> = Arc::new(move |_| Ok(SlowCartPole::new(latency)));
    // A slow step counts as hung with a probability below one in a million, and no environment is quarantined.
    let timeout = Duration::from_secs(30) + 500 * latency.mean + 2 * latency.work;
    let faults = FaultConfig { timeout, max_restarts: u32::MAX, ..FaultConfig::default() };
    let mut envs = BlockingEnvs::new(n_envs, spaces, make, faults, 0)?;
    envs.on_fault(Box::new(|_, _, _| ())); // counted
    let collector = FirstComeCollector::new(envs, n_steps, *ready)?;
    let mut pipeline = Pipeline::new(*mode, vec![collector], n_steps, &rollout_memory(&mut agent, *mode), &profile)?;
    let track = profile.track("learner");
    if let Some(observed) = agent.observed() {
        observed.watch(track.watch());
    }
    let (mut learnt, mut lags, mut begun, mut result) = (0, LagHistogram::default(), None, Value::Null);
    let of = |phase| profile.seconds(phase);
    let computed = || of(Phase::Targets) + of(Phase::Update);
    let max_lag = if let Mode::Overlapped { max_lag } = mode { Some(max_lag) } else { None };
    // No schedule ends in 2^64 env steps.
    pipeline.drive(&mut agent, u64::MAX, |filled, agent| {
        lags.count(filled.waiting, &filled.learnt, learnt);
        match update {
            Some(time) => track.time(Phase::Update, || spin(*time)),
            None => drop(track.time_update(|| agent.update(&filled.rollout, filled.remaining, &pool))?),
        }
        learnt += 1;
        let now = Instant::now();
        let (begin, from, busy, idle, first) =
            *begun.get_or_insert_with(|| (now, learnt, computed(), of(Phase::WaitProducers), resources()));
        let elapsed = begin.elapsed().as_secs_f64();
        if elapsed < *seconds || learnt == from {
            if learnt == from + 1 && elapsed < 0.2 * seconds {
                // Everything that grows at first has grown.
                begun = begun.map(|(begin, from, busy, idle, _)| (begin, from, busy, idle, resources()));
            }
            return Ok(Flow::Continue);
        }
        let last = resources();
        let rate = ((learnt - from) * (n_steps * n_envs) as u64) as f64 / elapsed;
        let ideal = n_envs as f64 / (latency.mean + latency.work).as_secs_f64();
        let FaultCounts { timeouts, failures, restarts, .. } = filled.faults;
        let share = |seconds: f64| seconds / elapsed;
        let cores = crate::thread::cores();
        let (threads, mode, nan) = (*threads, *mode, f64::NAN);
        let circumstances =
            Circumstances { mode, blocks: true, n_envs, threads, collect_threads: 0, cores, workers: 0, cores_in_use: nan, waited: nan };
        result = json!({
            "event": "bench", "name": "pipeline", "value": rate, "unit": "env_steps/s", "min": rate, "max": rate, "envs": n_envs,
            "latency": latency.distribution, "latency_ms": 1e3 * latency.mean.as_secs_f64(), "work_ms": 1e3 * latency.work.as_secs_f64(),
            "fail": latency.fail, "n_steps": n_steps, "max_lag": max_lag, "min_ready": ready.min_ready,
            "deadline_ms": 1e3 * ready.deadline.as_secs_f64(), "update_ms": update.map(|time| 1e3 * time.as_secs_f64()),
            "batch": ppo.batch_size, "epochs": ppo.n_epochs, "hidden": hidden, "threads": threads, "seconds": elapsed,
            "ideal": ideal, "share_of_ideal": rate / ideal,
            "learner_busy": share(computed() - busy), "learner_waited": share(of(Phase::WaitProducers) - idle),
            "rollouts": learnt - from, "lags": lags.lags(), "dropped": filled.dropped,
            "faults": {"timeouts": timeouts, "failures": failures, "restarts": restarts},
            "rss_bytes": [first[0], last[0]], "process_threads": [first[1], last[1]], "files": [first[2], last[2]],
            "profile": profile.json(), "advice": circumstances.advice(&profile),
        });
        Ok(Flow::Stop)
    })?;
    if let Some(Err(error)) = draft.map(|draft| draft.publish(profile.timeline().as_bytes())) {
        print::err(&format!("warning: no timeline is written: {error}"));
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rl_envs::catalog;
    use rl_envs::wrappers::Wrappers;

    #[test]
    fn a_bench_of_environments_on_a_device_gives_a_row_for_each_block_and_one_for_all() {
        let Ok(device) = Device::emulated() else { return };
        let rows = env_on(&device, catalog::find("pendulum").unwrap(), 33, false, 2, 0.01).unwrap();
        assert_eq!(rows.len(), 1);
        assert!(["value", "launches", "fused", "copy_bytes_per_s"].iter().all(|key| rows[0][key].as_f64().unwrap() > 0.0));
        let stacked = catalog::find("pendulum").unwrap().wrapped(Wrappers { frame_stack: 2, ..Wrappers::default() });
        assert!(env_on(&device, &stacked, 1, false, 1, 0.01).is_err());
    }
}
