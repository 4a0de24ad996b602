//! Statistics of the episodes of environments on a device.

use super::kernels::BLOCK;
use crate::driver::args::args;
use crate::driver::kernel::Kernel;
use crate::error::length;
use crate::{Buffer, Device, Error, Stream, View};

/// Steps whose ends a thread counts.
const CHUNK: usize = 64;
/// Threads of the block that finds the latest episodes.
const LATEST_THREADS: u32 = 256;

/// Returns and lengths of the episodes of N environments, in device memory.
#[derive(Debug)]
pub struct Episodes {
    ends: Kernel,
    latest: Kernel,
    running: Kernel,
    /// Episodes that go on, (N).
    returns: Buffer<f64>,
    lengths: Buffer<u32>,
    /// The last ones to end in the latest rollout.
    latest_returns: Buffer<f64>,
    latest_lengths: Buffer<u32>,
    places: Buffer<u32>,
    count: Buffer<u32>,
    /// Number of ends in each chunk of the steps of a rollout.
    ///
    /// Allocated with the first rollout.
    in_chunks: Buffer<u32>,
}

#[allow(unsafe_code)]
impl Episodes {
    /// Allocates memory for `n_envs` environments.
    ///
    /// Keeps the last `keep` episodes that end in a rollout.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::Module`] or [`Error::Emulation`].
    pub fn new(device: &Device, n_envs: usize, keep: usize) -> Result<Self, Error> {
        let kernel = |name: &str| device.kernel("episodes", name.into());
        Ok(Self {
            ends: kernel("episodes_ends")?,
            latest: kernel("episodes_latest")?,
            running: kernel("episodes_running")?,
            returns: Buffer::zeros(device, n_envs)?,
            lengths: Buffer::zeros(device, n_envs)?,
            latest_returns: Buffer::zeros(device, keep)?,
            latest_lengths: Buffer::zeros(device, keep)?,
            places: Buffer::zeros(device, keep)?,
            count: Buffer::zeros(device, 1)?,
            in_chunks: Buffer::zeros(device, 0)?,
        })
    }

    /// Adds the steps of a rollout, columns (T, N) of rewards and of the two flags.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn add(
        &mut self,
        stream: &Stream,
        rewards: &View<'_, f32>,
        terminated: &View<'_, u8>,
        truncated: &View<'_, u8>,
    ) -> Result<(), Error> {
        let (n, len) = (self.returns.len(), rewards.len());
        length("rewards", len / n.max(1) * n, len.min(i32::MAX as usize))?;
        length("terminated", len, terminated.len())?;
        length("truncated", len, truncated.len())?;
        if self.in_chunks.len() != len.div_ceil(CHUNK) {
            self.in_chunks = Buffer::zeros(stream.device(), len.div_ceil(CHUNK))?;
        }
        let places = [rewards.address(), terminated.address(), truncated.address(), len as u64 | (n as u64) << 32];
        let args = args![places, [self.returns.address(), self.lengths.address()]];
        let [lengths, at, count, in_chunks] =
            [&self.latest_lengths, &self.places, &self.count, &self.in_chunks].map(|buffer| buffer.address());
        let latest = [self.latest_returns.address(), lengths, at, count, in_chunks, self.places.len() as u64];
        let ends = args![places, self.in_chunks];
        // SAFETY: the parameters are those of `episodes_ends`; lengths were checked above.
        unsafe { self.ends.launch(stream, self.in_chunks.len() as u64, BLOCK, ends)? };
        // SAFETY: the parameters are those of `episodes_latest`; lengths were checked above.
        unsafe {
            self.latest.launch(stream, LATEST_THREADS.into(), LATEST_THREADS, args![args.clone(); latest])?;
        };
        // SAFETY: the parameters are those of `episodes_running`; lengths were checked above.
        unsafe { self.running.launch(stream, n as u64, BLOCK, args) }
    }

    /// Waits for the stream, and returns the episodes of the last rollout.
    ///
    /// The number of all that ended, and returns and lengths of the last ones in the order of their ends.
    ///
    /// # Errors
    /// [`Error::Driver`], also for errors that a kernel raised.
    pub fn ended(&self, stream: &Stream) -> Result<(usize, Vec<(f64, u32)>), Error> {
        let mut count = [0];
        stream.download(&mut count, &self.count.view())?;
        let (all, kept) = (count[0] as usize, self.places.len().min(count[0] as usize));
        Ok((all, pairs(stream, &self.latest_returns.view().slice(0..kept), &self.latest_lengths.view().slice(0..kept))?))
    }

    /// Waits for the stream, and returns the episodes that go on, (N).
    ///
    /// # Errors
    /// [`Error::Driver`], also for errors that a kernel raised.
    pub fn running(&self, stream: &Stream) -> Result<Vec<(f64, u32)>, Error> {
        pairs(stream, &self.returns.view(), &self.lengths.view())
    }

    /// Replaces the episodes that go on, (N).
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Driver`].
    pub fn set_running(&mut self, stream: &Stream, running: &[(f64, u32)]) -> Result<(), Error> {
        let (returns, lengths): (Vec<f64>, Vec<u32>) = running.iter().copied().unzip();
        stream.upload(&self.returns.view_mut(), &returns)?;
        stream.upload(&self.lengths.view_mut(), &lengths)
    }
}

/// Waits for the stream, and returns pairs of returns and lengths.
fn pairs(stream: &Stream, returns: &View<'_, f64>, lengths: &View<'_, u32>) -> Result<Vec<(f64, u32)>, Error> {
    let (mut first, mut second) = (vec![0.0; returns.len()], vec![0; lengths.len()]);
    stream.download(&mut first, returns)?;
    stream.download(&mut second, lengths)?;
    Ok(first.into_iter().zip(second).collect())
}
