//! Critics of observations and actions, and how they learn.
//!
//! Algorithms for continuous actions need them. [`sac`](crate::sac) and [`td3`](crate::td3) share their loss, the rows that they
//! read, the noise of an update, and the step of a network.

use candle_core::{Device, Tensor};
use rl_buffer::{ActionSlice, Batch, ObsSlice};
use rl_envs::{Purpose, rng};

use crate::Error;
use crate::agent::NamedTensor;
use crate::kernel::tile::{Stats, Tile, TileLoss};
use crate::learner::optim::Optimizer;
use crate::policy::network::Network;
use crate::policy::twin_q::columns;
use crate::probe::Threads;

/// Sum over the tiles of a slice, with the errors of its transitions.
#[derive(Clone, Default)]
pub(crate) struct CriticSums {
    pub(crate) loss: f64,
    pub(crate) errors: Vec<f32>,
}

impl Stats for CriticSums {
    fn reset(&mut self) {
        self.loss = 0.0;
        self.errors.clear();
    }

    fn write(&self, message: &mut Vec<u8>) {
        message.extend(self.loss.to_le_bytes());
        self.errors.iter().for_each(|error| message.extend(error.to_le_bytes()));
    }

    fn read(&mut self, message: &[u8]) {
        let (loss, errors) = message.split_at(size_of::<f64>());
        self.loss = loss.try_into().map_or(f64::NAN, f64::from_le_bytes);
        self.errors.clear();
        self.errors.extend(errors.as_chunks().0.iter().map(|&error| f32::from_le_bytes(error)));
    }
}

/// Squared errors of critics, `scale mean w sum (Q - y)^2`.
pub(crate) struct CriticLoss<'a> {
    /// Chains of the kernel, one for each critic.
    pub(crate) chains: &'a [usize],
    pub(crate) scale: f32,
    pub(crate) targets: &'a [f32],
    pub(crate) weights: &'a [f32],
}

impl TileLoss<CriticSums> for CriticLoss<'_> {
    fn stats_len(&self, n_samples: usize) -> usize {
        size_of::<f64>() + n_samples * size_of::<f32>()
    }

    #[inline(always)]
    fn tile(&self, tile: &mut Tile<'_>, sums: &mut CriticSums) {
        let (n, m) = (self.chains.len(), tile.samples().len());
        let mut q = columns(tile, self.chains);
        let (share, slope) = (1.0 / self.targets.len() as f32, 2.0 * self.scale);
        for (s, i) in tile.samples().enumerate() {
            let (mut squares, mut distances) = (0.0, 0.0);
            for q in &mut q[..n] {
                let error = q[s] - self.targets[i];
                squares += error * error;
                distances += error.abs();
                q[s] = slope * error * self.weights[i] * share;
            }
            sums.loss += f64::from(self.scale * self.weights[i] * squares);
            sums.errors.push(distances / n as f32);
        }
        for (&chain, d_q) in self.chains.iter().zip(&q) {
            tile.set_grad(chain, 0, &d_q[..m]);
        }
    }
}

/// [`CriticLoss`] by candle's operations.
pub(crate) fn critic_loss(q: &[Tensor], targets: &Tensor, weights: &Tensor, scale: f64) -> candle_core::Result<Tensor> {
    let mut sum = weights.zeros_like()?;
    for q in q {
        sum = (sum + ((q - targets)?.sqr()? * weights)?)?;
    }
    (sum * scale)?.mean_all()
}

/// Distances of critics from the targets (B), averaged over critics.
pub(crate) fn critic_errors(q: &[Tensor], targets: &Tensor) -> candle_core::Result<Vec<f32>> {
    let mut sum = targets.zeros_like()?;
    for q in q {
        sum = (sum + (q - targets)?.abs()?)?;
    }
    (sum / q.len() as f64)?.to_vec1()
}

/// Writes normal numbers (B, A) of the update's stream `first` on.
pub(crate) fn draw_noise(seed: u64, update: u64, first: u32, a: usize, noise: &mut [f32]) {
    for (i, row) in (first..).zip(noise.chunks_exact_mut(a)) {
        for (block, part) in (0..).zip(row.chunks_mut(4)) {
            let normals = rng::normals(rng::block(seed, i, update, Purpose::Replay, block));
            part.copy_from_slice(&normals[..part.len()]);
        }
    }
}

/// Writes rows (B, D + A) of observations (B, D) and actions (B, A).
pub(crate) fn join(obs: ObsSlice<'_>, actions: &[f32], n: usize, rows: &mut [f32]) -> Result<(), Error> {
    let ObsSlice::F32(obs) = obs else { return Err(Error::ObsKind) };
    let (d, a) = (obs.len() / n, actions.len() / n);
    for ((row, obs), action) in rows.chunks_exact_mut(d + a).zip(obs.chunks_exact(d)).zip(actions.chunks_exact(a)) {
        row[..d].copy_from_slice(obs);
        row[d..].copy_from_slice(action);
    }
    Ok(())
}

/// Counters as numbers of a snapshot, each in four parts of 16 bits.
pub(crate) fn parts(counts: &[u64]) -> Vec<f32> {
    counts.iter().flat_map(|count| (0..4).map(move |i| (count >> (16 * i) & 0xFFFF) as f32)).collect()
}

/// Reads what [`parts`] wrote.
pub(crate) fn counts(parts: &[f32]) -> Vec<u64> {
    parts.chunks(4).map(|parts| parts.iter().rev().fold(0, |count, &part| count << 16 | part as u64)).collect()
}

/// Seed of the critics' parameters, apart from the policy's.
pub(crate) const CRITICS_SEED: u64 = 0x5AC0_C217_1C50_5EED;

/// Takes a step of a network; returns the gradient's norm.
///
/// The step is skipped if the loss is not finite.
pub(crate) fn step(
    optimizer: &mut Optimizer,
    loss: f32,
    network: &mut Network,
    gradient: &[f32],
    rate: f32,
    threads: Threads<'_>,
) -> Option<f32> {
    if !loss.is_finite() {
        optimizer.skip();
        return None;
    }
    network.change_on(threads, |params| optimizer.step_with(threads, params, gradient, rate, f32::MAX))
}

/// Returns the tensors of a minibatch at which learning stopped.
///
/// # Errors
/// Errors of candle.
pub(crate) fn minibatch(batch: &Batch, targets: &[f32], network: &Network) -> Result<Vec<NamedTensor>, Error> {
    let (batch, n) = (batch.columns(), targets.len());
    let matrix = |values: &[f32]| Tensor::from_slice(values, (n, values.len() / n), &Device::Cpu);
    let ActionSlice::Continuous(actions) = batch.actions else { return Err(Error::ActionKind) };
    let tensors = [
        ("obs", network.features(batch.obs)?),
        ("actions", matrix(actions)?),
        ("rewards", matrix(batch.rewards)?),
        ("discounts", matrix(batch.discounts)?),
        ("next_obs", network.features(batch.next_obs)?),
        ("targets", matrix(targets)?),
        ("weights", matrix(batch.weights)?),
    ];
    Ok(tensors.iter().map(|(name, tensor)| NamedTensor::new(name, tensor)).collect::<candle_core::Result<_>>()?)
}
