//! Critics of observations and actions, and how they learn.
//!
//! Algorithms for continuous actions need them. Here are their loss, the rows that they read, and their part of a snapshot.

use std::sync::Arc;

use candle_core::{Device, Tensor, Var};
use rl_buffer::{ActionSlice, Batch, ObsSlice};
use rl_envs::{ActionSpace, Dtype, Pool, Space};

use crate::agent::Divergence;
use crate::algorithms::replayed::{Experience, follow, optimizer, step, tensors};
use crate::device::replayed::actor_critics::DeviceActorCritics;
use crate::device::replayed::critics::DeviceCritics;
use crate::device::replayed::minibatches::Repeated;
use crate::kernel::gradient::Slices;
use crate::kernel::tile::{Stats, Tile, TileLoss};
use crate::learner::optim::{Optimizer, Rule, StepCount, UNCLIPPED};
use crate::policy::squashed::to_unit;
use crate::policy::twin_q::{TwinQ, Value, columns};
use crate::probe::{self, Stage, Threads};
use crate::ranks::Ranks;
use crate::{Error, NetConfig, Scratch, Snapshot};

/// Critics with their targets, and what they need to learn from B samples.
pub(crate) struct Critics {
    pub(crate) online: TwinQ,
    pub(crate) target: TwinQ,
    optimizer: Optimizer,
    /// Factor of the squared errors.
    scale: f32,
    /// Factor that bytes of observations are multiplied by.
    obs_scale: f32,
    /// True if observations are bytes.
    reads_bytes: bool,
    rows: Vec<f32>,                // (B, D + A)
    pub(crate) q: Vec<f32>,        // (B)
    pub(crate) targets: Vec<f32>,  // (B)
    pub(crate) errors: Vec<f32>,   // (B)
    pub(crate) gradient: Vec<f32>, // (P)
    scratches: [Vec<Scratch>; 2],  // of values, of their gradients
    slices: Slices<CriticSums>,
}

/// Critics of a snapshot that fits.
pub(crate) struct LoadedCritics<'a> {
    params: &'a [f32],
    target: &'a [f32],
    optimizer: Optimizer,
}

/// Names in a snapshot.
pub(crate) const NAMES: [&str; 4] = ["critics", "critics.target", "critics.m", "critics.v"];

impl Critics {
    /// Creates critics.
    ///
    /// # Errors
    /// Errors of [`NetConfig::check`].
    pub(crate) fn new(obs: &Space, actions: &ActionSpace, net: &NetConfig, settings: &CriticSettings) -> Result<Self, Error> {
        let CriticSettings { n, rule, scale, batch_size: b, seed } = *settings;
        let online = TwinQ::new(obs, actions.len(), n, net, seed ^ SEED)?;
        let n_params = online.network().params().len();
        let mut target = online.clone();
        target.network_mut().only_forward();
        Ok(Self {
            optimizer: optimizer(rule, online.network()),
            target,
            online,
            scale,
            obs_scale: obs.scale(),
            reads_bytes: obs.dtype() == Dtype::U8,
            rows: vec![0.0; b * (obs.len() + actions.len())],
            q: vec![0.0; b],
            targets: vec![0.0; b],
            errors: Vec::with_capacity(b),
            gradient: vec![0.0; n_params],
            scratches: [const { Vec::new() }; 2],
            slices: Slices::new(),
        })
    }

    /// Writes the smaller value of the target critics to `q`.
    ///
    /// `actions`, (B, A), are between -1 and 1.
    ///
    /// # Errors
    /// Errors of candle.
    pub(crate) fn value_by_target(&mut self, obs: ObsSlice<'_>, actions: &[f32], pool: &Pool) -> Result<(), Error> {
        join(obs, self.obs_scale, actions, self.q.len(), &mut self.rows);
        self.target.least(&self.rows, pool, &mut self.scratches[0], &mut self.q)
    }

    /// Writes values to `q` and their gradients with respect to the actions.
    ///
    /// `actions` and `d_actions` are (B, A), between -1 and 1.
    ///
    /// # Errors
    /// Errors of [`TwinQ::gradient`].
    pub(crate) fn value(
        &mut self,
        value: Value,
        obs: ObsSlice<'_>,
        actions: &[f32],
        pool: &Pool,
        d_actions: &mut [f32],
    ) -> Result<(), Error> {
        join(obs, self.obs_scale, actions, self.q.len(), &mut self.rows);
        self.online.gradient(value, &self.rows, pool, &mut self.scratches[1], &mut self.q, d_actions)
    }

    /// Takes a step towards the targets; returns the loss and the gradient's norm.
    ///
    /// `bounds` are the middle and half of the range of each dimension of an action.
    ///
    /// # Errors
    /// [`Error::Diverged`] if too many steps were skipped; errors of candle.
    pub(crate) fn learn(
        &mut self,
        batch: &Batch,
        bounds: &[[f32; 2]],
        rate: f32,
        threads: Threads<'_>,
    ) -> Result<(f32, Option<f32>), Error> {
        let Self { online, optimizer, scale, obs_scale, rows, targets, errors, gradient, slices, .. } = self;
        let (columns, n) = (batch.columns(), targets.len());
        let ActionSlice::Continuous(actions) = columns.actions else { return Err(Error::ActionKind) };
        join(columns.obs, *obs_scale, actions, n, rows);
        let a = actions.len() / n;
        let len = rows.len() / n;
        for row in rows.chunks_exact_mut(len) {
            row[len - a..].iter_mut().zip(bounds).for_each(|(action, &bounds)| *action = to_unit(bounds, *action));
        }
        errors.clear();
        let loss = if let Some(kernel) = online.network().kernel() {
            let of = CriticLoss { chains: online.chains(), scale: *scale, targets, weights: columns.weights };
            let samples = online.network().samples(ObsSlice::F32(rows), None);
            let mut total = 0.0;
            for slice in slices.gradient(kernel, samples, n, threads, &of, gradient)? {
                total += slice.loss;
                errors.extend_from_slice(&slice.errors);
            }
            (total / n as f64) as f32
        } else {
            let network = online.network();
            let params = Var::from_slice(network.params(), network.params().len(), network.device())?;
            let column = |values: &[f32]| Tensor::from_slice(values, values.len(), network.device());
            let (targets, weights) = (column(targets)?, column(columns.weights)?);
            let q = online.forward(&params, &network.features(ObsSlice::F32(rows))?)?;
            errors.extend(critic_errors(&q, &targets)?);
            let loss = critic_loss(&q, &targets, &weights, f64::from(*scale))?;
            *gradient = optimizer.gradient(&params, &loss)?;
            loss.to_scalar::<f32>()?
        };
        let norm = step(optimizer, loss, online.network_mut(), gradient, rate, UNCLIPPED, threads);
        self.check_diverged(&self.optimizer, &self.gradient, "critic_loss", loss, rate, batch)?;
        Ok((loss, norm))
    }

    /// Returns an error if an optimizer skips every step.
    ///
    /// It is that of the critics or of their actor.
    ///
    /// # Errors
    /// [`Error::Diverged`] if too many of its steps were skipped.
    pub(crate) fn check_diverged(
        &self,
        optimizer: &Optimizer,
        gradient: &[f32],
        name: &'static str,
        loss: f32,
        rate: f32,
        batch: &Batch,
    ) -> Result<(), Error> {
        if !optimizer.has_diverged() {
            return Ok(());
        }
        let minibatch = tensors(batch, &self.targets, |obs| {
            let obs = match obs {
                ObsSlice::F32(obs) => obs.to_vec(),
                ObsSlice::U8(obs) => obs.iter().map(|&x| f32::from(x) * self.obs_scale).collect(),
            };
            let (n, len) = (self.q.len(), obs.len());
            Ok(Tensor::from_vec(obs, (n, len / n), &Device::Cpu)?)
        })?;
        Err(Error::Diverged(Box::new(Divergence::new(optimizer, gradient, rate, &[(name, loss)], minibatch))))
    }

    /// Moves the targets by the fraction `tau` of the distance to the critics.
    pub(crate) fn follow(&mut self, tau: f32, threads: Threads<'_>) {
        follow(self.target.network_mut(), self.online.network().params(), tau, threads);
    }

    /// Allocates memory for the critics on a device.
    ///
    /// `bounds` are the middle and half of the range of each dimension of an action.
    ///
    /// # Errors
    /// Errors of [`DeviceCritics::new`].
    pub(crate) fn on_device(&self, device: &rl_cuda::Device, bounds: &[[f32; 2]]) -> Result<DeviceCritics, Error> {
        let scale_of_bytes = self.reads_bytes.then_some(self.obs_scale);
        DeviceCritics::new(device, &self.online, self.scale, scale_of_bytes, bounds, self.q.len())
    }

    /// Critics and targets.
    pub(crate) fn networks(&self) -> [&TwinQ; 2] {
        [&self.online, &self.target]
    }

    pub(crate) fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// Replaces the counters of steps.
    pub(crate) fn set_steps(&mut self, steps: StepCount) {
        self.optimizer.set_steps(steps);
    }

    /// Ends an update, with priorities by its errors.
    ///
    /// Returns the optimizer at which a device's learning stopped, if that is known yet.
    ///
    /// # Errors
    /// [`Error::Buffer`] or [`Error::Device`].
    pub(crate) fn end(
        &mut self,
        experience: &mut Experience,
        batch: &Batch,
        device: Option<&mut DeviceActorCritics>,
    ) -> Result<Option<usize>, Error> {
        let Some(device) = device else { return experience.prioritize(batch, &mut self.errors).map(|()| None) };
        device.end()?;
        probe::report(experience.probe.as_ref(), Stage::Waiting);
        if !experience.is_prioritized() {
            return Ok(None);
        }
        let stopped = device.minibatches.wait()?;
        if stopped.is_none() {
            let (batch, errors) = device.minibatches.errors()?;
            self.errors.clear();
            self.errors.extend(errors);
            experience.prioritize(batch, &mut self.errors)?;
        }
        Ok(stopped)
    }

    /// Returns the error of an update on a device at which learning stopped.
    ///
    /// At the critics, or at the optimizer of their actor.
    ///
    /// # Errors
    /// [`Error::Diverged`].
    pub(crate) fn stopped(&mut self, repeated: Repeated<'_>, actor: Option<&Optimizer>, rate: f32) -> Result<(), Error> {
        let Repeated { batch, targets, gradient, last: [loss, ..] } = repeated;
        self.targets = targets;
        let name = if actor.is_some() { "actor_loss" } else { "critic_loss" };
        self.check_diverged(actor.unwrap_or(&self.optimizer), &gradient, name, loss, rate, batch)
    }

    /// Steps of the optimizer.
    pub(crate) fn steps(&self) -> StepCount {
        self.optimizer.steps()
    }

    /// Returns parameters, targets and moments for a snapshot.
    pub(crate) fn arrays(&self) -> impl Iterator<Item = (String, Vec<f32>)> {
        let params = [self.online.network().params(), self.target.network().params()];
        let arrays = params.into_iter().chain(self.optimizer.vectors());
        NAMES.into_iter().zip(arrays).map(|(name, values)| (name.into(), values.to_vec()))
    }

    /// Finds the critics of a snapshot.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if they do not fit.
    pub(crate) fn find<'a>(&self, snapshot: &'a Snapshot, steps: StepCount) -> Result<LoadedCritics<'a>, Error> {
        let len = self.online.network().params().len();
        let (params, target) = (array(snapshot, NAMES[0], len)?, array(snapshot, NAMES[1], len)?);
        let mut optimizer = self.optimizer.clone();
        optimizer.load(&moments(snapshot, [NAMES[2], NAMES[3]])?, steps)?;
        Ok(LoadedCritics { params, target, optimizer })
    }

    /// Takes over what [`Critics::find`] has found.
    ///
    /// # Errors
    /// None, for critics of the same shapes.
    pub(crate) fn load(&mut self, loaded: LoadedCritics<'_>) -> Result<(), Error> {
        self.online.network_mut().set_params(loaded.params, 0)?;
        self.target.network_mut().set_params(loaded.target, 0)?;
        self.optimizer = loaded.optimizer;
        Ok(())
    }

    /// Shares the gradients with other ranks.
    pub(crate) fn share(&mut self, ranks: Arc<dyn Ranks>) {
        self.slices.share(ranks);
    }
}

/// Settings of [`Critics`].
pub(crate) struct CriticSettings {
    /// Number of critics, one or two.
    pub(crate) n: usize,
    pub(crate) rule: Rule,
    /// Factor of the squared errors.
    pub(crate) scale: f32,
    /// Samples of a minibatch.
    pub(crate) batch_size: usize,
    /// Seed of the agent; the critics' parameters are drawn apart from the policy's.
    pub(crate) seed: u64,
}

/// Returns an array of a snapshot.
///
/// # Errors
/// [`Error::Snapshot`] if it is missing, or of another length than `len`.
pub(crate) fn array<'a>(snapshot: &'a Snapshot, name: &str, len: usize) -> Result<&'a [f32], Error> {
    let found = snapshot.moments.iter().find(|(of, values)| of == name && values.len() == len);
    found.map(|(_, values)| &values[..]).ok_or_else(|| Error::Snapshot("its networks do not fit this agent".into()))
}

/// Returns the moments `m` and `v` of an optimizer.
///
/// `names` are those that the snapshot has them by.
///
/// # Errors
/// [`Error::Snapshot`] if one is missing.
pub(crate) fn moments(snapshot: &Snapshot, names: [&str; 2]) -> Result<Vec<(String, Vec<f32>)>, Error> {
    let of = |name: &str| snapshot.moments.iter().find(|(of, _)| of == name).map(|(_, values)| values.clone());
    let refuse = || Error::Snapshot("its networks do not fit this agent".into());
    ["m", "v"].into_iter().zip(names).map(|(name, other)| Ok((name.into(), of(other).ok_or_else(refuse)?))).collect()
}

/// Sum over the tiles of a slice, with the errors of its transitions.
#[derive(Clone, Default)]
struct CriticSums {
    loss: f64,
    errors: Vec<f32>,
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
struct CriticLoss<'a> {
    /// Chains of the kernel, one for each critic.
    chains: &'a [usize],
    scale: f32,
    targets: &'a [f32],
    weights: &'a [f32],
}

impl TileLoss<CriticSums> for CriticLoss<'_> {
    fn stats_len(&self, n_samples: usize) -> usize {
        size_of::<f64>() + n_samples * size_of::<f32>()
    }

    #[inline(always)]
    fn tile(&self, tile: &mut Tile<'_>, sums: &mut CriticSums) {
        let (n, m) = (self.chains.len(), tile.samples.len());
        let mut q = columns(tile, self.chains);
        let (share, slope) = (1.0 / self.targets.len() as f32, 2.0 * self.scale);
        for (s, i) in tile.samples.clone().enumerate() {
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
fn critic_loss(q: &[Tensor], targets: &Tensor, weights: &Tensor, scale: f64) -> candle_core::Result<Tensor> {
    let mut sum = weights.zeros_like()?;
    for q in q {
        sum = (sum + ((q - targets)?.sqr()? * weights)?)?;
    }
    (sum * scale)?.mean_all()
}

/// Distances of critics from the targets (B), averaged over critics.
fn critic_errors(q: &[Tensor], targets: &Tensor) -> candle_core::Result<Vec<f32>> {
    let mut sum = targets.zeros_like()?;
    for q in q {
        sum = (sum + (q - targets)?.abs()?)?;
    }
    (sum / q.len() as f64)?.to_vec1()
}

/// Writes rows (B, D + A) of observations (B, D) and actions (B, A).
///
/// Bytes are multiplied by `scale`.
fn join(obs: ObsSlice<'_>, scale: f32, actions: &[f32], n: usize, rows: &mut [f32]) {
    let (d, a) = (rows.len() / n - actions.len() / n, actions.len() / n);
    for ((i, row), action) in rows.chunks_exact_mut(d + a).enumerate().zip(actions.chunks_exact(a)) {
        match obs.rows(i..i + 1, d) {
            ObsSlice::F32(obs) => row[..d].copy_from_slice(obs),
            ObsSlice::U8(obs) => row.iter_mut().zip(obs).for_each(|(to, &x)| *to = f32::from(x) * scale),
        }
        row[d..].copy_from_slice(action);
    }
}

/// Counters as numbers of a snapshot, each in four parts of 16 bits.
pub(crate) fn parts(counts: &[u64]) -> Vec<f32> {
    counts.iter().flat_map(|count| (0..4).map(move |i| (count >> (16 * i) & 0xFFFF) as f32)).collect()
}

/// Reads N counters of a snapshot, as [`parts`] wrote them.
///
/// # Errors
/// [`Error::Snapshot`] if there are not N, or not below 2^63.
pub(crate) fn counts<const N: usize>(snapshot: &Snapshot, name: &str) -> Result<[u64; N], Error> {
    let parts = array(snapshot, name, 4 * N)?;
    let is_part = |&part: &f32| part.fract() == 0.0 && (0.0..=65535.0).contains(&part);
    if !parts.iter().all(is_part) || parts.iter().skip(3).step_by(4).any(|&most| most > 32767.0) {
        return Err(Error::Snapshot(format!("{name} has impossible counters")));
    }
    let mut counts = parts.chunks(4).map(|parts| parts.iter().rev().fold(0, |count, &part| count << 16 | part as u64));
    Ok(std::array::from_fn(|_| counts.next().unwrap_or(0)))
}

/// Seed of the critics' parameters, apart from the policy's.
const SEED: u64 = 0x5AC0_C217_1C50_5EED;
