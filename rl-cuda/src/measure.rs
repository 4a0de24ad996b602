//! Throughput of the device, measured with its own clock between two events.

use crate::driver::graph::CAPTURING;
use crate::targets::{Row, Steps, TargetKernels, WordBuffers};
use crate::{ActionSource, Buffer, CpuAccess, CudaVecEnv, Device, DeviceSteps, Error, PinnedSlab, Stream};
use rl_envs::catalog::Entry;
use rl_envs::{Dtype, VecEnv};

/// Way of launching steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One launch per step.
    Launches,
    /// One captured graph per rollout.
    Graph,
    /// Many steps per launch, with the states in registers.
    Fused,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::Launches, Self::Graph, Self::Fused];

    /// Returns the mode's name in records.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Launches => "launches",
            Self::Graph => "graph",
            Self::Fused => "fused",
        }
    }
}

/// One measurement of environment steps.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// Environment.
    pub env: &'a Entry,
    /// Number of environments.
    pub n_envs: usize,
    /// Threads per block.
    pub block: u32,
    /// Way of launching steps.
    pub mode: Mode,
    /// Source of the actions.
    pub source: ActionSource,
    /// Number of times that the work of each step is done.
    pub repeat: u32,
}

/// Steps of a rollout.
const N_STEPS: usize = 128;
/// Maximum bytes of a rollout.
const MAX_BYTES: usize = 16 << 30;

/// Returns the seconds of one `work`, averaged over rounds that fill `seconds`.
///
/// One round runs first as a warm-up.
fn timed(stream: &Stream, seconds: f64, mut work: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    work()?;
    let mut rounds = 1u32;
    loop {
        stream.synchronize()?;
        let begin = stream.record()?;
        (0..rounds).try_for_each(|_| work())?;
        let took = begin.seconds_to(&stream.record()?)?;
        if took >= seconds || rounds >= 1 << 24 {
            return Ok(took / f64::from(rounds));
        }
        // Aim 20% above the wanted time, growing by a factor of 2 to 10.
        rounds = (f64::from(rounds) * (1.2 * seconds / took.max(1e-7)).clamp(2.0, 10.0)) as u32;
    }
}

/// Minimum bytes that one step of one environment reads and writes, state included.
#[must_use]
pub fn step_bytes(envs: &CudaVecEnv) -> usize {
    let (space, actions) = (envs.observation_space(), envs.action_space());
    let element = if space.dtype() == Dtype::F32 { 4 } else { 1 };
    let masks = if actions.masked() { actions.len() } else { 0 };
    2 * envs.state_bytes() + space.len() * element + masks + 4 + 4 + 2 // action, reward, flags
}

/// Steps per rollout in measurements of this batch.
///
/// 128, or fewer where the rollout would take more than 16 GiB or a quarter of the free memory.
///
/// # Errors
/// [`Error::Driver`].
pub fn n_steps(envs: &CudaVecEnv) -> Result<usize, Error> {
    let free = envs.device().memory()?.0;
    let most = if envs.device().is_emulated() { MAX_BYTES } else { MAX_BYTES.min(free / 4) };
    Ok((most / (2 * step_bytes(envs) * envs.n_envs()).max(1)).clamp(1, N_STEPS))
}

/// Measures environment steps per second with random actions.
///
/// The kernels draw the actions, or read such actions where the source is [`ActionSource::Given`]. Every step writes
/// observations, actions, rewards, flags and masks to a rollout of [`n_steps`], and ended episodes restart. The work of each step
/// is done `repeat` times with the same action (fused: each time with a new action) and counted once.
///
/// # Errors
/// The errors of [`CudaVecEnv`].
pub fn env_steps(device: &Device, case: &Case<'_>, seconds: f64) -> Result<f64, Error> {
    let Case { env, n_envs, block, mode, source, repeat } = *case;
    let mut envs = CudaVecEnv::of_entry(device, env, n_envs)?.with_block(block);
    let stream = device.stream()?;
    let n_steps = n_steps(&envs)?;
    let mut steps = DeviceSteps::zeros(device, n_steps, n_envs, envs.observation_space(), envs.action_space())?;
    let rows = steps.rows(0..1);
    envs.reset_on(&stream, 0, &rows.obs, rows.masks.as_ref().map(|[masks, _]| masks))?;
    if source == ActionSource::Given {
        envs.step_on(&stream, n_steps as u32, ActionSource::Random, &steps.rows(0..n_steps))?;
    }
    let took = match mode {
        Mode::Launches => timed(&stream, seconds, || {
            (0..n_steps).try_for_each(|t| envs.step_repeatedly(&stream, repeat, source, &steps.rows(t..t + 1)))
        })?,
        Mode::Graph => {
            let mut graph = envs.capture(&stream, source, repeat, steps)?;
            timed(&stream, seconds, || envs.replay(&mut graph))?
        }
        Mode::Fused if repeat == 1 => {
            timed(&stream, seconds, || envs.step_on(&stream, n_steps as u32, source, &steps.rows(0..n_steps)))?
        }
        Mode::Fused => timed(&stream, seconds, || envs.step_on(&stream, n_steps as u32 * repeat, source, &steps.rows(0..1)))?,
    };
    Ok((n_steps * n_envs) as f64 / took)
}

/// Block sizes to try.
pub const BLOCKS: [u32; 6] = [32, 64, 128, 256, 512, 1024];

/// Measures environment steps per second for each of [`BLOCKS`].
///
/// `None` marks a block size that the kernel cannot be launched with.
///
/// # Errors
/// The errors of [`CudaVecEnv`], except those of a launch.
pub fn sweep_blocks(
    device: &Device,
    env: &Entry,
    n_envs: usize,
    mode: Mode,
    seconds: f64,
) -> Result<Vec<(u32, Option<f64>)>, Error> {
    let case = |block| Case { env, n_envs, block, mode, source: ActionSource::Random, repeat: 1 };
    let measure = |block| match env_steps(device, &case(block), seconds) {
        Ok(rate) => Ok((block, Some(rate))),
        // A graph reports a rejected launch when it is instantiated, as a driver error.
        Err(Error::Launch { .. } | Error::Driver { doing: CAPTURING, .. }) => Ok((block, None)),
        Err(error) => Err(error),
    };
    BLOCKS.into_iter().map(measure).collect()
}

/// Returns the block size with the highest rate.
#[must_use]
pub fn best_block(rates: &[(u32, Option<f64>)]) -> Option<u32> {
    let known = rates.iter().filter_map(|&(block, rate)| rate.map(|rate| (block, rate)));
    known.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(block, _)| block)
}

/// Measures the bandwidth of copies within the device, in bytes per second.
///
/// Reads and writes both count. This is the ceiling for every kernel that moves memory.
///
/// # Errors
/// [`Error::Memory`] or [`Error::Driver`].
pub fn copy_bandwidth(device: &Device, bytes: usize, seconds: f64) -> Result<f64, Error> {
    let stream = device.stream()?;
    let (from, mut to) = (Buffer::<u32>::zeros(device, bytes / 4)?, Buffer::<u32>::zeros(device, bytes / 4)?);
    let took = timed(&stream, seconds, || stream.copy(&to.view_mut(), &from.view()))?;
    Ok((2 * (bytes / 4) * 4) as f64 / took)
}

/// Measures the bandwidth of advantage estimation over (T, N), in bytes per second.
///
/// The kernel reads three arrays of f32 and two of flags, and writes one of f32.
///
/// # Errors
/// [`Error::Memory`], [`Error::Launch`] or [`Error::Driver`].
pub fn gae_bandwidth(device: &Device, n_steps: usize, n_envs: usize, seconds: f64) -> Result<f64, Error> {
    let (stream, kernels, len) = (device.stream()?, TargetKernels::new(device)?, n_steps * n_envs);
    let floats = || Buffer::<f32>::zeros(device, len);
    let (rewards, next_values, values, mut advantages) = (floats()?, floats()?, floats()?, floats()?);
    let (terminated, truncated) = (Buffer::<u8>::zeros(device, len)?, Buffer::<u8>::zeros(device, len)?);
    let steps = Steps {
        n_envs,
        rewards: rewards.view(),
        terminated: terminated.view(),
        truncated: truncated.view(),
        next_values: next_values.view(),
        values: values.view(),
    };
    let took = timed(&stream, seconds, || kernels.gae(&stream, &steps, 0.99, 0.95, &advantages.view_mut()))?;
    Ok((len * 18) as f64 / took)
}

/// Measures the bandwidth of random gathers from replay rows, in bytes per second.
///
/// The rows hold observations of 4 floats. The kernel reads rows and indices, and writes columns.
///
/// # Errors
/// [`Error::Memory`], [`Error::Launch`] or [`Error::Driver`].
pub fn gather_bandwidth(device: &Device, capacity: usize, batch: usize, seconds: f64) -> Result<f64, Error> {
    let (stream, kernels) = (device.stream()?, TargetKernels::new(device)?);
    let row = Row { obs: 4, action: 1, mask_len: 0 };
    let words = Buffer::<u32>::zeros(device, capacity * row.len())?;
    let drawn: Vec<u32> = (0..batch)
        .map(|i| rl_envs::rng::below(rl_envs::rng::word(0, i as u32, 0, rl_envs::Purpose::Replay), capacity as u32))
        .collect();
    let indices = Buffer::of(device, &drawn)?;
    let mut to = WordBuffers::zeros(device, row, batch)?;
    let took = timed(&stream, seconds, || kernels.gather_words(&stream, &words.view(), row, &indices.view(), &to.columns()))?;
    Ok((batch * (8 * row.len() + 4)) as f64 / took)
}

/// Bandwidth of copies between host and device, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostCopies {
    /// To the device, from pageable memory.
    pub to_device_pageable: f64,
    /// To the device, from page-locked memory.
    pub to_device_pinned: f64,
    /// To the device, from write-combined page-locked memory.
    pub to_device_combined: f64,
    /// From the device, to pageable memory.
    pub from_device_pageable: f64,
    /// From the device, to page-locked memory.
    pub from_device_pinned: f64,
    /// Both directions, one after the other in one stream; the bytes of both count.
    pub both_in_turn: f64,
    /// Both directions at once, in two streams; the bytes of both count.
    pub both_overlapped: f64,
}

/// Measures copies of `bytes` between host and device.
///
/// # Errors
/// [`Error::Memory`] or [`Error::Driver`].
pub fn host_copies(device: &Device, bytes: usize, seconds: f64) -> Result<HostCopies, Error> {
    let (stream, second) = (device.stream()?, device.stream()?);
    let (mut here, there) = (Buffer::<u8>::zeros(device, bytes)?, Buffer::<u8>::zeros(device, bytes)?);
    let mut pageable = vec![1u8; bytes];
    let slab = |access| PinnedSlab::<u8>::zeros(Some(device), bytes, access);
    // Two slabs of each kind, used alternately: a slab waits for its own copy before it starts the next.
    let slabs = |access| Ok::<_, Error>([slab(access)?, slab(access)?]);
    let (mut pinned, mut other, combined) =
        (slabs(CpuAccess::ReadWrite)?, slabs(CpuAccess::ReadWrite)?, slabs(CpuAccess::WriteOnly)?);
    let mut turn = 0;
    let mut next = || {
        turn ^= 1;
        turn
    };
    let rate = |took: f64, n: usize| (n * bytes) as f64 / took;
    Ok(HostCopies {
        to_device_pageable: rate(timed(&stream, seconds, || stream.upload(&here.view_mut(), &pageable))?, 1),
        to_device_pinned: rate(timed(&stream, seconds, || stream.upload_async(&here.view_mut(), &pinned[next()]))?, 1),
        to_device_combined: rate(timed(&stream, seconds, || stream.upload_async(&here.view_mut(), &combined[next()]))?, 1),
        from_device_pageable: rate(timed(&stream, seconds, || stream.download(&mut pageable, &there.view()))?, 1),
        from_device_pinned: rate(timed(&stream, seconds, || stream.download_async(&mut pinned[next()], &there.view()))?, 1),
        both_in_turn: rate(
            timed(&stream, seconds, || {
                let i = next();
                stream.upload_async(&here.view_mut(), &pinned[i])?;
                stream.download_async(&mut other[i], &there.view())
            })?,
            2,
        ),
        both_overlapped: rate(
            timed(&stream, seconds, || {
                second.wait(&stream.record()?)?;
                let i = next();
                stream.upload_async(&here.view_mut(), &pinned[i])?;
                second.download_async(&mut other[i], &there.view())?;
                stream.wait(&second.record()?)
            })?,
            2,
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rl_envs::catalog;

    fn entry(name: &str) -> &'static Entry {
        catalog::find(name).unwrap()
    }

    #[test]
    fn everything_that_is_measured_can_be() {
        for device in Device::for_tests() {
            for mode in Mode::ALL {
                for (source, repeat) in [(ActionSource::Random, 1), (ActionSource::Random, 3), (ActionSource::Given, 1)] {
                    let case = Case { env: entry("cartpole"), n_envs: 65, block: 64, mode, source, repeat };
                    assert!(env_steps(&device, &case, 1e-3).unwrap() > 0.0);
                }
            }
            let rates = sweep_blocks(&device, entry("snake"), 33, Mode::Launches, 1e-3).unwrap();
            assert!(rates.iter().map(|(block, _)| *block).eq(BLOCKS) && best_block(&rates).is_some());
            assert!(copy_bandwidth(&device, 1 << 16, 1e-3).unwrap() > 0.0);
            assert!(gae_bandwidth(&device, 8, 65, 1e-3).unwrap() > 0.0);
            assert!(gather_bandwidth(&device, 1000, 65, 1e-3).unwrap() > 0.0);
            assert!(host_copies(&device, 1 << 16, 1e-3).unwrap().both_overlapped > 0.0);
        }
    }

    #[test]
    fn the_best_block_is_the_one_with_the_highest_rate() {
        assert_eq!(best_block(&[(32, Some(1.0)), (64, Some(3.0)), (128, Some(2.0)), (1024, None)]), Some(64));
        assert_eq!(best_block(&[(32, None)]), None);
    }

    #[test]
    fn a_cartpole_moves_so_many_bytes_a_step() {
        for device in Device::for_tests() {
            // State 20 read and written, action 4, observation 16, reward 4, flags 2.
            assert_eq!(step_bytes(&CudaVecEnv::new(&device, "cartpole", 1).unwrap()), 66);
            // State 28 + 288 read and written, action 4, observation 720, masks 4, reward 4, flags 2.
            assert_eq!(step_bytes(&CudaVecEnv::new(&device, "snake", 1).unwrap()), 1366);
        }
    }
}
