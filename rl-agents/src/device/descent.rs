//! Gradient descent of an actor-critic on a device.
//!
//! The twin of [`Host`](crate::algorithms::on_policy::Host) with [`Targets`](crate::Targets). Parameters, moments, the rollout
//! and all that is computed from it stay in device memory, allocated once. Every kernel has the operations of the CPU's in the
//! same order, so the parameters are the same, bit for bit, on a CPU with fused multiply-add.

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rl_buffer::{DeviceRollout, Memory, Pinned, Rollout, RolloutShape, Streamed};
use rl_cuda::learner::{
    ActionDistribution, EpochOrder, HeadSizes, JudgedSamples, KL_PART, LearnerCounters, LearnerKernels, LearnerState,
    LossColumns, LossHeads, MinibatchSlices, OffPolicyKernels, PARTS, SequenceColumns, Terms, UpdateSettings, UpdateTotals,
};
use rl_cuda::targets::{Steps, TargetKernels};
use rl_cuda::{Buffer, CpuAccess, Device, PinnedSlab, Stream, View, ViewMut};
use rl_envs::{Dtype, Obs, visit};

use crate::device::Queue;
use crate::device::exchange::{DeviceExchange, SharedBuffers};
use crate::device::graph::UpdateGraph;
use crate::device::net::{DeviceNet, Needed, SlicedMinibatch, parts};
use crate::device::normalize::{DeviceNormalizer, Inputs};
use crate::device::staged::Staged;
use crate::device::times::{DevicePhase, DeviceTimes};
use crate::kernel::net::{Net, PackedNet};
use crate::kernel::sequences::{self, BLOCK};
use crate::kernel::slices;
use crate::learner::optim::{Optimizer, Rule, StepCount};
use crate::learner::reevaluate::CONTIGUOUS;
use crate::learner::targets::Refresh;
use crate::learner::{BatchSizes, Learner, Plan};
use crate::network::normalize::{Moments, normalized_reward};
use crate::policy::distributions::Distribution;
use crate::ranks::Ranks;
use crate::{ActorCritic, Error};

/// Maximum nodes of a graph that the steps of sequences take.
const MAX_SEQUENCE_NODES: usize = 8_000;

/// Returns the slices of a minibatch, for a network with `n_params` parameters.
///
/// Each tile has a partial gradient; above a maximum number of floats, each slice has one. Those of small networks are the only
/// blocks of work that a device gets, so they may take 1 GiB: enough for minibatches of 2 million samples. So are those of
/// convolutions, which have fewer parameters than the layers after them. Gradients of large dense layers have blocks enough, and
/// fewer rows of them are less to write and to read.
pub(crate) fn minibatch_slices(batch_size: usize, n_params: usize, net: &Net) -> MinibatchSlices {
    let count = slices::of_minibatch(batch_size, n_params, net.convolves());
    MinibatchSlices::new(batch_size, count, n_params, max_partial(n_params, net))
}

/// Returns the maximum number of floats of all tiles' partial gradients.
fn max_partial(n_params: usize, net: &Net) -> usize {
    match n_params {
        ..0x10000 => 1 << 28,
        _ if net.convolves() => 1 << 26,
        _ => 1 << 24,
    }
}

/// Work that is repeated, as a graph.
#[derive(Clone, Copy, Debug)]
enum GraphKind {
    /// Learning from a minibatch of the latest policy.
    LearnFresh,
    /// Learning from a minibatch of an older one.
    LearnStale,
    /// Re-evaluating a rollout of an older one by the latest policy.
    Reevaluate,
}

/// Numbers computed from a rollout, (T, N) each.
#[derive(Debug)]
pub(crate) struct Computed {
    pub(crate) next_values: Buffer<f32>,
    advantages: Buffer<f32>,
    returns: Buffer<f32>,
    /// Normalized rewards, if they are normalized.
    rewards: Option<Staged<f32>>,
}

impl Computed {
    /// True if rewards are normalized.
    pub(crate) fn normalizes(&self) -> bool {
        self.rewards.is_some()
    }
}

/// Corrections for rollouts in which an older policy acted.
#[derive(Debug)]
struct OffPolicy {
    kernels: OffPolicyKernels,
    refresh: Refresh,
    /// True if an older policy acted in the rollout.
    is_stale: bool,
    /// Log-probabilities at the start of the update, (T N).
    ///
    /// Empty if values alone are computed.
    log_probs: Buffer<f32>,
    /// Weights of V-trace, and weighted advantages, (T N) each.
    weights: [Buffer<f32>; 2],
}

impl OffPolicy {
    fn new(device: &Device, refresh: Refresh, len: usize) -> Result<Self, rl_cuda::Error> {
        let floats = |needed| Buffer::zeros(device, if needed { len } else { 0 });
        let corrects = refresh == Refresh::VTrace;
        Ok(Self {
            kernels: OffPolicyKernels::new(device)?,
            refresh,
            is_stale: false,
            log_probs: floats(refresh != Refresh::Values)?,
            weights: [floats(corrects)?, floats(corrects)?],
        })
    }

    /// Returns the correction for the rollout, if it is stale.
    fn correction(&self) -> Option<Refresh> {
        self.is_stale.then_some(self.refresh)
    }

    fn bytes(&self) -> usize {
        self.log_probs.bytes() + self.weights.iter().map(Buffer::bytes).sum::<usize>()
    }
}

/// Memory of minibatches of a policy that remembers.
#[derive(Debug)]
struct DeviceSequences {
    /// Columns of a minibatch, (C).
    columns: Buffer<u32>,
    /// States that final observations are valued with, (B, S).
    final_states: Staged<f32>,
    /// States of the latest policy, (N, S).
    states: Buffer<f32>,
    /// Those after each step of a stale rollout, (T N, S), if there was one.
    after: Option<Buffer<f32>>,
    horizon: usize,
}

impl DeviceSequences {
    /// Returns all columns of a rollout.
    fn of<'a>(&self, rollout: &'a DeviceRollout, rows: View<'a, u32>) -> SequenceColumns<'a> {
        let ends = [rollout.terminated(), rollout.truncated()];
        let (first_states, n_envs) = (rollout.first_states(), rollout.shape().n_envs);
        SequenceColumns { rows, ends, first_states, n_envs, horizon: self.horizon }
    }

    fn bytes(&self) -> usize {
        let after = self.after.as_ref().map_or(0, Buffer::bytes);
        self.columns.bytes() + self.final_states.there.bytes() + self.states.bytes() + after
    }
}

/// Returns the distribution whose parameters are the policy's outputs.
fn distribution<'a>(heads: Option<&'a HeadSizes>, log_std: View<'a, f32>) -> ActionDistribution<'a> {
    match heads {
        Some(heads) => ActionDistribution::Heads(heads),
        None if log_std.is_empty() => ActionDistribution::Categorical,
        None => ActionDistribution::Gaussian(log_std),
    }
}

/// A policy and its optimizer on a device, with the memory of an update.
#[derive(Debug)]
pub(crate) struct DeviceDescent {
    pub(crate) stream: Stream,
    /// Stream of the copies of rollouts that are filled while the device learns.
    copies: Stream,
    rule: Rule,
    pub(crate) kernels: LearnerKernels,
    pub(crate) targets: TargetKernels,
    net: DeviceNet,
    pub(crate) chains: [usize; 2],
    pub(crate) inputs: Inputs,
    pub(crate) rollout: DeviceRollout,
    pub(crate) computed: Computed,
    off_policy: OffPolicy,
    /// `None` for a policy without memory.
    sequences: Option<DeviceSequences>,
    pub(crate) params: Buffer<f32>,
    /// Range of the logarithmic standard deviations among the parameters.
    ///
    /// Empty for discrete actions.
    pub(crate) log_std: Range<usize>,
    /// Sizes of the action's heads, where there are several.
    heads: Option<HeadSizes>,
    moments: Vec<Buffer<f32>>, // as many as the optimizer has
    gradient: Buffer<f32>,
    partial: Buffer<f32>,
    state: LearnerState,
    rows: Buffer<u32>, // (B)
    batch_size: usize,
    slices: MinibatchSlices,
    terms: Buffer<f32>,     // (5, B)
    std_terms: Buffer<f32>, // (A, B), for a Gaussian policy
    tiles: Buffer<f64>,     // (5 or A, tiles)
    scratch: Buffer<f64>,   // of sums
    sums: [Buffer<f64>; 3],
    final_obs: Obs<Staged<f32>, Staged<u8>>, // (B, D)
    final_at: Staged<u32>,                   // (B)
    host_params: PinnedSlab<f32>,
    /// One graph of each kind.
    graphs: [UpdateGraph<Plan>; 3],
    pub(crate) times: DeviceTimes,
    /// Exchange with the devices of other ranks, if there are any.
    exchange: Option<DeviceExchange>,
}

/// Waits for the stream, and copies numbers to the host.
pub(crate) fn download(stream: &Stream, from: &View<'_, f32>) -> Result<Vec<f32>, rl_cuda::Error> {
    let mut to = vec![0.0; from.len()];
    stream.download(&mut to, from).map(|()| to)
}

/// Appends the rest of a device's memory to its parts.
pub(crate) fn with_rest(
    mut parts: Vec<(&'static str, usize)>,
    device: &Device,
    rest: &'static str,
) -> Vec<(&'static str, usize)> {
    let named: usize = parts.iter().map(|(_, bytes)| bytes).sum();
    parts.push((rest, device.allocated().saturating_sub(named)));
    parts
}

/// Returns the number of samples whose activations are held at the same time.
///
/// A micro-batch has whole slices. 0: all samples of the minibatch.
pub(crate) fn held(slices: &MinibatchSlices, micro_batch: usize) -> usize {
    let n = slices.samples(0..slices.count()).len();
    if micro_batch == 0 { n } else { micro_batch.clamp(slices.largest(), n) }
}

/// Locks a learner that its environments share.
pub(crate) fn lock(device: &Mutex<DeviceDescent>) -> MutexGuard<'_, DeviceDescent> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Refuses a setting that has no kernels yet.
pub(crate) fn unsupported(name: &'static str, value: String) -> Error {
    Error::Setting { name, value, allowed: "but the device's kernels do not support it yet; use --device cpu" }
}

impl DeviceDescent {
    /// Allocates memory for rollouts of this shape, and loads the kernels.
    ///
    /// # Errors
    /// [`Error::Setting`] if there are no kernels for the policy; [`Error::Device`].
    pub(crate) fn new(
        device: &Device,
        policy: &ActorCritic,
        rule: Rule,
        shape: RolloutShape,
        BatchSizes { batch_size, micro_batch }: BatchSizes,
        normalize_reward: bool,
        refresh: Refresh,
    ) -> Result<Self, Error> {
        let network = policy.network();
        let Some(PackedNet { net, .. }) = network.kernel() else { return Err(unsupported("learner", "reference".into())) };
        let log_std = match policy.distribution() {
            Distribution::Categorical { .. } => 0..0,
            Distribution::Gaussian { log_std } => log_std.clone(),
        };
        let heads = match policy.distribution() {
            Distribution::Categorical { heads } if heads.len() > 1 => Some(HeadSizes::new(device, heads)?),
            _ => None,
        };
        let (len, n_params) = (shape.n_steps * shape.n_envs, policy.params().len());
        let slices = match &net.memory {
            None => minibatch_slices(batch_size, n_params, net),
            Some(_) if micro_batch != 0 => return Err(unsupported("micro_batch", format!("{micro_batch} with memory"))),
            Some(_) => {
                let (columns, n_steps) = (batch_size / shape.n_steps, shape.n_steps);
                let count = sequences::n_slices(columns, n_steps, n_params);
                MinibatchSlices::of_columns(columns, n_steps, BLOCK, count, n_params, max_partial(n_params, net))
            }
        };
        let state_len = network.state_len();
        let floats = |len: usize| Buffer::<f32>::zeros(device, len);
        let held = held(&slices, micro_batch);
        let (actor, critic) = policy.chains();
        let mut inputs = Inputs::new(device, network, shape.obs_len)?;
        if network.normalizer().is_some() {
            inputs.normalizer = Some(DeviceNormalizer::new(device, shape, inputs.one_hot.as_ref())?);
        }
        Ok(Self {
            stream: device.stream()?,
            copies: device.stream()?,
            rule,
            kernels: LearnerKernels::new(device)?,
            targets: TargetKernels::new(device)?,
            net: DeviceNet::new(device, net, held, batch_size, true)?,
            chains: [actor, critic],
            inputs,
            rollout: DeviceRollout::new(device, shape)?,
            computed: Computed {
                next_values: floats(len)?,
                advantages: floats(len)?,
                returns: floats(len)?,
                rewards: normalize_reward.then(|| Staged::new(device, len)).transpose()?,
            },
            off_policy: OffPolicy::new(device, refresh, len)?,
            sequences: (state_len > 0)
                .then(|| -> Result<_, rl_cuda::Error> {
                    Ok(DeviceSequences {
                        columns: Buffer::zeros(device, batch_size / shape.n_steps)?,
                        final_states: Staged::new(device, held * state_len)?,
                        states: Buffer::zeros(device, shape.n_envs * state_len)?,
                        after: None,
                        horizon: network.memory_horizon(),
                    })
                })
                .transpose()?,
            params: floats(n_params)?,
            moments: (0..rule.n_moments()).map(|_| floats(n_params)).collect::<Result<_, _>>()?,
            gradient: floats(n_params)?,
            partial: floats(slices.rows() * n_params)?,
            state: LearnerState::new(device)?,
            rows: Buffer::zeros(device, batch_size)?,
            batch_size,
            terms: floats(PARTS * batch_size)?,
            std_terms: floats(log_std.len() * batch_size)?,
            tiles: Buffer::zeros(device, PARTS.max(log_std.len()) * slices.tiles())?,
            log_std,
            heads,
            scratch: {
                let of_sums = LearnerKernels::sum_scratch(batch_size.max(n_params));
                Buffer::zeros(device, of_sums.max(LearnerKernels::variance_scratch(len)))?
            },
            sums: [Buffer::zeros(device, 1)?, Buffer::zeros(device, 1)?, Buffer::zeros(device, 1)?],
            slices,
            final_obs: match shape.obs {
                Dtype::F32 => Obs::F32(Staged::new(device, held * shape.obs_len)?),
                Dtype::U8 => Obs::U8(Staged::new(device, held * shape.obs_len)?),
            },
            final_at: Staged::new(device, held)?,
            host_params: PinnedSlab::zeros(Some(device), n_params, CpuAccess::ReadWrite)?,
            graphs: Default::default(),
            times: DeviceTimes::default(),
            exchange: None,
        })
    }

    /// Computes later gradients together with the devices of other ranks.
    pub(crate) fn share(&mut self, ranks: Arc<dyn Ranks>) {
        self.exchange = Some(DeviceExchange::new(ranks));
    }

    /// Returns the memory of rollouts that are copied to the device without waiting.
    pub(crate) fn memory(&self, overlapped: bool) -> Arc<dyn Memory> {
        if overlapped { Arc::new(Streamed::new(self.copies.clone())) } else { Arc::new(Pinned(self.stream.device().clone())) }
    }

    /// Copies parameters, moments and counters to the device.
    pub(crate) fn load(&mut self, policy: &ActorCritic, optimizer: &Optimizer, seed: u64, epochs: u64) -> Result<(), Error> {
        let stream = &self.stream;
        stream.upload(&self.params.view_mut(), policy.params())?;
        for (to, from) in self.moments.iter_mut().zip(optimizer.vectors()) {
            stream.upload(&to.view_mut(), from)?;
        }
        let StepCount { taken, skipped } = optimizer.steps();
        let counters = LearnerCounters { seed, epochs, taken, skipped, changes: policy.version(), ..LearnerCounters::default() };
        self.set_statistics(policy, &counters)
    }

    /// Copies the policy's statistics of observations and the counters to the device.
    pub(crate) fn set_statistics(&mut self, policy: &ActorCritic, counters: &LearnerCounters) -> Result<(), Error> {
        if let (Some(there), Some(here)) = (&mut self.inputs.normalizer, policy.network().normalizer()) {
            there.set(&self.stream, here)?;
        }
        Ok(self.state.set_counters(&self.stream, counters)?)
    }

    /// Computes the moments of a rollout's observations by slices of environments.
    ///
    /// `None` for bytes and categories.
    pub(crate) fn moments(&mut self) -> Result<Option<Vec<Moments>>, Error> {
        let Some(normalizer) = &mut self.inputs.normalizer else { return Ok(None) };
        let RolloutShape { n_steps, n_envs, obs_len: d, .. } = self.rollout.shape();
        let len = n_steps * n_envs * d;
        let obs = visit!(Obs, self.rollout.obs(), |obs| obs.slice(0..len));
        Ok(normalizer.moments(&self.stream, &obs)?)
    }

    /// Returns the counters.
    pub(crate) fn counters(&self) -> Result<LearnerCounters, Error> {
        Ok(self.state.counters(&self.stream)?)
    }

    /// Enqueues an update from `rollout`, without waiting.
    ///
    /// The device decides itself on steps that are skipped, and on the end of an update at a KL divergence. An older policy acted
    /// in a rollout that `is_stale`. Rewards are normalized by `inv_std`, if there is one. `learn` is the algorithm's text, from
    /// targets to steps.
    pub(crate) fn update(
        &mut self,
        plan: &Plan,
        settings: &UpdateSettings,
        rollout: &Rollout,
        is_stale: bool,
        inv_std: Option<f32>,
        learn: impl Fn(&mut Self, &Plan) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.off_policy.is_stale = is_stale;
        let settings = match self.rule {
            Rule::Adam { beta1, beta2, epsilon } => UpdateSettings { beta1, beta2, epsilon, ..*settings },
            Rule::RmsProp { alpha, epsilon } => UpdateSettings { beta2: alpha, epsilon, ..*settings },
        };
        self.times.mark(&self.stream, DevicePhase::Copies)?;
        self.state.set_settings(&self.stream, &settings)?;
        if !rollout.on_device {
            self.rollout.upload(&self.stream, rollout)?;
        }
        if let (Some(normalized), Some(inv_std)) = (&mut self.computed.rewards, inv_std) {
            let rewards = rollout.rewards().to_slice().expect(CONTIGUOUS);
            normalized.upload(&self.stream, rewards.iter().map(|&reward| normalized_reward(reward, inv_std)))?;
        }
        if is_stale || !rollout.on_device {
            self.times.mark(&self.stream, DevicePhase::Targets)?;
            if is_stale {
                let RolloutShape { n_steps, n_envs, state_len, .. } = self.rollout.shape();
                if let Some(DeviceSequences { after: after @ None, .. }) = &mut self.sequences {
                    *after = Some(Buffer::zeros(self.stream.device(), n_steps * n_envs * state_len)?);
                }
                self.repeat(GraphKind::Reevaluate, plan, Self::reevaluate)?;
            }
            self.next_values(rollout)?;
        }
        self.times.mark(&self.stream, DevicePhase::Learning)?;
        learn(self, plan)?;
        Ok(self.times.mark(&self.stream, None)?)
    }

    /// Enqueues work that is the same whenever a plan has it done.
    ///
    /// Long sequences are not captured: the launches cost the host less than their graph would take of memory.
    fn repeat(&mut self, kind: GraphKind, plan: &Plan, work: impl FnOnce(&mut Self) -> Result<(), Error>) -> Result<(), Error> {
        let RolloutShape { n_steps, n_envs, .. } = self.rollout.shape();
        let n_parts = if let GraphKind::Reevaluate = kind { n_envs.div_ceil(self.net.held()) } else { 1 };
        if self.net.memory().is_some_and(|memory| n_parts * n_steps * memory.nodes_per_step() > MAX_SEQUENCE_NODES) {
            return work(self);
        }
        let (stream, mut graph) = (self.stream.clone(), std::mem::take(&mut self.graphs[kind as usize]));
        let enqueued = graph.run(&stream, plan, || work(self));
        self.graphs[kind as usize] = graph;
        enqueued
    }

    /// Re-evaluates a stale rollout by the latest policy.
    ///
    /// Its values replace the acting policy's; its log-probabilities are computed if they are needed.
    fn reevaluate(&mut self) -> Result<(), Error> {
        let RolloutShape { n_steps, n_envs, .. } = self.rollout.shape();
        let (len, held) = (n_steps * n_envs, self.net.held());
        // The observations after the last step have values, and no actions.
        if self.sequences.is_none() {
            return parts(0..len, held).chain(parts(len..len + n_envs, held)).try_for_each(|rows| self.reevaluate_rows(rows));
        }
        for envs in parts(0..n_envs, held) {
            for step in 0..=n_steps {
                self.reevaluate_rows(step * n_envs + envs.start..step * n_envs + envs.end)?;
            }
        }
        Ok(())
    }

    /// Re-evaluates some rows of a stale rollout.
    ///
    /// With memory, they are of one step, and those of the step before come first.
    fn reevaluate_rows(&mut self, rows: Range<usize>) -> Result<(), Error> {
        let Self { stream, kernels, inputs, net, rollout: columns, off_policy, sequences, params, log_std, heads, .. } = self;
        let queue = Queue { stream, kernels };
        let RolloutShape { n_steps, n_envs, obs_len: d, state_len, .. } = columns.shape();
        let ([actor, critic], params, len) = (self.chains, params.view(), n_steps * n_envs);
        let distribution = distribution(heads.as_ref(), params.slice(log_std.clone()));
        let (n, has_actions) = (rows.len(), rows.end <= len);
        let of_states = rows.start % n_envs * state_len..(rows.start % n_envs + n) * state_len;
        if let (Some(DeviceSequences { states, .. }), true) = (&mut *sequences, rows.start < n_envs) {
            stream.copy(&states.view_mut().into_slice(of_states.clone()), &columns.first_states().slice(of_states.clone()))?;
        }
        let of_rows = rows.start * d..rows.end * d;
        let obs = visit!(Obs, columns.obs(), |obs| obs.slice(of_rows.clone()));
        let has_log_probs = has_actions && off_policy.refresh != Refresh::Values;
        let states = sequences.as_ref().map(|sequences| sequences.states.view().slice(of_states.clone()));
        inputs.forward(
            queue,
            net,
            &params,
            &obs,
            n,
            Needed { not_chain: (!has_log_probs).then_some(actor), ended: None, states },
        )?;
        if let (Some(DeviceSequences { states, after: Some(after), .. }), Some(memory), true) =
            (sequences, net.memory(), has_actions)
        {
            let after = after.view_mut().into_slice(rows.start * state_len..rows.end * state_len);
            memory.put(queue, n, &after)?;
            let states = states.view_mut().into_slice(of_states);
            stream.copy(&states, &after.into_view())?;
            memory.forget(
                queue,
                [&columns.terminated().slice(rows.clone()), &columns.truncated().slice(rows.clone())],
                &states,
            )?;
        }
        if has_log_probs {
            let outputs = net.outputs(actor, n);
            let a = outputs.len() / n;
            let samples = JudgedSamples {
                outputs,
                distribution,
                rows: None,
                actions: columns
                    .actions()
                    .map(|actions| actions.slice(rows.clone()), |actions| actions.slice(rows.start * a..rows.end * a)),
                masks: columns.masks().map(|masks| masks.slice(rows.start * a..rows.end * a)),
            };
            off_policy.kernels.log_probs(stream, &samples, &off_policy.log_probs.view_mut().into_slice(rows.clone()))?;
        }
        let values = if has_actions { columns.values_mut() } else { columns.last_values_mut() };
        let first = if has_actions { rows.start } else { rows.start - len };
        Ok(stream.copy(&values.into_slice(first..first + n), &net.outputs(critic, n))?)
    }

    /// Computes the values of the next observations, with those of the final ones.
    fn next_values(&mut self, rollout: &Rollout) -> Result<(), Error> {
        let Self { stream, kernels, inputs, net, rollout: columns, computed, sequences, params, final_obs, final_at, .. } = self;
        let queue = Queue { stream, kernels };
        let RolloutShape { n_envs, obs_len: d, state_len, .. } = columns.shape();
        let ([actor, critic], values) = (self.chains, columns.values());
        let ends = rollout.final_at();
        let mut first = 0;
        loop {
            // As many final observations at a time as activations are held; without any, the values of the next rows alone.
            let n = (ends.len() - first).min(net.held());
            final_at.upload(stream, ends[first..first + n].iter().map(|&(t, env)| (t * n_envs + env) as u32))?;
            let both = final_obs.as_mut().zip(rollout.final_obs().rows(first..first + n, d)).ok_or(Error::ObsKind)?;
            let obs = visit!(Obs, both, |(to, from)| {
                to.upload(stream, from.iter().copied())?;
                to.there.view()
            });
            let mut states = None;
            if let Some(DeviceSequences { final_states, after, .. }) = sequences {
                match after {
                    Some(after) if self.off_policy.is_stale => {
                        let to = final_states.there.view_mut().into_slice(0..n * state_len);
                        kernels.samples(
                            stream,
                            &Obs::F32(after.view()),
                            1.0,
                            state_len,
                            Some(&final_at.there.view().slice(0..n)),
                            &to,
                        )?;
                    }
                    _ => {
                        let of_rows = first * state_len..(first + n) * state_len;
                        final_states.upload(stream, rollout.final_states()[of_rows].iter().copied())?;
                    }
                }
                states = Some(final_states.there.view().slice(0..n * state_len));
            }
            let needed = Needed { not_chain: Some(actor), ended: None, states };
            inputs.forward(queue, net, &params.view(), &obs, n, needed)?;
            let (final_values, at) = (net.outputs(critic, n), final_at.there.view().slice(0..n));
            let next_values = computed.next_values.view_mut();
            if first == 0 {
                kernels.next_values(stream, &values, &columns.last_values(), &final_values, &at, &next_values)?;
            } else {
                kernels.replace_values(stream, &final_values, &at, &next_values)?;
            }
            first += n;
            if first >= ends.len() {
                return Ok(());
            }
        }
    }

    /// Writes the rows of the next minibatch; with memory, those of its columns.
    fn next_rows(&mut self, plan: &Plan) -> Result<(), Error> {
        let Self { stream, kernels, net, sequences, rollout, state, rows, slices, .. } = self;
        let (Some(DeviceSequences { columns, .. }), Some(memory)) = (sequences, net.memory()) else {
            let order = EpochOrder { n_samples: plan.n_samples, shuffled: plan.shuffled };
            return Ok(kernels.rows(stream, state, order, &rows.view_mut())?);
        };
        let n_envs = rollout.shape().n_envs;
        kernels.rows(stream, state, EpochOrder { n_samples: n_envs, shuffled: plan.shuffled }, &columns.view_mut())?;
        Ok(memory.rows(Queue { stream, kernels }, &columns.view(), slices, n_envs, &rows.view_mut())?)
    }

    /// Waits for the update, and returns its sums and the counters.
    pub(crate) fn results(&self) -> Result<(UpdateTotals, LearnerCounters), Error> {
        let results = (self.state.totals(&self.stream)?, self.counters()?);
        self.times.report()?;
        Ok(results)
    }

    /// Bytes of the device's memory by purpose.
    pub(crate) fn memory_use(&self) -> Vec<(&'static str, usize)> {
        let Computed { next_values, advantages, returns, rewards } = &self.computed;
        let normalized = rewards.as_ref().map_or(0, |rewards| rewards.there.bytes());
        let of_sequences = self.sequences.as_ref().map_or(0, DeviceSequences::bytes);
        let more = self.rows.bytes() + self.off_policy.bytes() + of_sequences;
        let parts = vec![
            ("rollout", self.rollout.bytes()),
            ("targets", next_values.bytes() + advantages.bytes() + returns.bytes() + normalized + more),
            ("parameters and moments", self.params.bytes() + self.moments.iter().map(Buffer::bytes).sum::<usize>()),
            ("gradients", self.gradient.bytes() + self.partial.bytes()),
            ("activations of a minibatch", self.net.bytes()),
        ];
        with_rest(parts, self.stream.device(), "environments, acting, sums, rollouts on their way")
    }

    /// True if updates are launches of a graph.
    #[cfg(test)]
    pub(crate) fn is_captured(&self) -> bool {
        [GraphKind::LearnFresh, GraphKind::LearnStale].into_iter().any(|learn| self.graphs[learn as usize].is_captured())
    }

    /// Copies the parameters to a policy.
    pub(crate) fn fetch(&mut self, policy: &mut ActorCritic) -> Result<(), Error> {
        self.stream.download_async(&mut self.host_params, &self.params.view())?;
        policy.set_params(self.host_params.read()?, policy.version())
    }

    /// Copies parameters and moments to the host.
    pub(crate) fn saved(&self) -> Result<(Vec<f32>, Vec<Vec<f32>>), Error> {
        let here = |from: &Buffer<f32>| download(&self.stream, &from.view());
        Ok((here(&self.params)?, self.moments.iter().map(here).collect::<Result<_, _>>()?))
    }

    /// Copies the logarithms of the standard deviations to the host.
    pub(crate) fn log_std(&self, to: &mut [f32]) -> Result<(), Error> {
        Ok(self.stream.download(to, &self.params.view().slice(self.log_std.clone()))?)
    }

    /// Waits for the device, and copies its rollout to the host.
    pub(crate) fn rollout_here(&self, rollout: &Rollout) -> Result<Rollout, Error> {
        let mut rollout = rollout.copy_on_host()?;
        self.rollout.download(&self.stream, &mut rollout)?;
        Ok(rollout)
    }

    /// Waits for the update, and copies its rollout and its targets to the host.
    pub(crate) fn here(&self, rollout: &Rollout) -> Result<(Rollout, crate::Targets), Error> {
        let (stream, rollout) = (&self.stream, self.rollout_here(rollout)?);
        let column = |from: View<'_, f32>| download(stream, &from);
        let Computed { advantages, returns, .. } = &self.computed;
        let (advantages, returns, values) = (column(advantages.view())?, column(returns.view())?, column(self.rollout.values())?);
        let weights = if self.off_policy.is_stale { column(self.off_policy.weights[0].view())? } else { Vec::new() };
        Ok((rollout, crate::Targets { advantages, weights, returns, values, log_probs: Vec::new() }))
    }

    /// Number of samples of a minibatch.
    pub(crate) fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// Copies the gradient of the last minibatch to the host.
    pub(crate) fn last_gradient(&self, gradient: &mut [f32]) -> Result<(), Error> {
        Ok(self.stream.download(gradient, &self.gradient.view())?)
    }
}

impl Learner for DeviceDescent {
    fn targets(&mut self, plan: &Plan) -> Result<(), Error> {
        self.kernels.begin(&self.stream, &mut self.state)?;
        let Self { stream, kernels, rollout: columns, computed, off_policy, .. } = self;
        let values = columns.values();
        let Computed { next_values, advantages, returns, rewards } = computed;
        let steps = Steps {
            n_envs: columns.shape().n_envs,
            rewards: rewards.as_ref().map_or(columns.rewards(), |rewards| rewards.there.view()),
            terminated: columns.terminated(),
            truncated: columns.truncated(),
            next_values: next_values.view(),
            values,
        };
        if off_policy.correction() == Some(Refresh::VTrace) {
            let OffPolicy { kernels, log_probs, weights: [weights, _], .. } = off_policy;
            let to = [&advantages.view_mut(), &returns.view_mut(), &weights.view_mut()];
            kernels.vtrace(stream, &steps, [&log_probs.view(), &columns.log_probs()], plan.gamma, plan.lambda, to)?;
        } else {
            self.targets.gae(stream, &steps, plan.gamma, plan.lambda, &advantages.view_mut())?;
            kernels.returns(stream, &advantages.view(), &values, &returns.view_mut())?;
        }
        Ok(kernels.explained_variance(stream, [&returns.view(), &values], &self.scratch.view_mut(), &mut self.state)?)
    }

    fn epoch(&mut self, _: &Plan) -> Result<(), Error> {
        Ok(self.kernels.epoch(&self.stream, &mut self.state)?)
    }

    fn minibatch(
        &mut self,
        plan: &Plan,
        learn: impl FnOnce(&mut Self) -> Result<ControlFlow<()>, Error>,
    ) -> Result<ControlFlow<()>, Error> {
        if self.exchange.is_some() {
            return learn(self); // gradients pass through the host, which no graph can wait for
        }
        let kind = if self.off_policy.is_stale { GraphKind::LearnStale } else { GraphKind::LearnFresh };
        self.repeat(kind, plan, |learner| learn(learner).map(|_| ()))?;
        Ok(ControlFlow::Continue(()))
    }

    fn gradient(&mut self, plan: &Plan, range: Range<usize>) -> Result<(), Error> {
        self.next_rows(plan)?;
        let Self { stream, kernels, inputs, net, rollout: columns, computed, off_policy, sequences, params, slices, .. } = self;
        let queue = Queue { stream, kernels };
        let minibatch_columns = sequences.as_ref().map(|sequences| sequences.of(columns, self.rows.view()));
        let sliced = SlicedMinibatch { slices, columns: minibatch_columns };
        let n = range.len();
        let (rows, params) = (self.rows.view(), params.view());
        let mut advantages = computed.advantages.view();
        let refresh = off_policy.correction();
        let [sum, squares, _] = &mut self.sums;
        if plan.normalize {
            let (scratch, of_rows) = (self.scratch.view_mut(), Some(&rows));
            kernels.sum(stream, &advantages, of_rows, Terms::Numbers, &scratch, &sum.view_mut())?;
            kernels.sum(stream, &advantages, of_rows, Terms::SquaredDistances(sum.view()), &scratch, &squares.view_mut())?;
        }
        // The loss of other ranks' samples is computed from stale outputs here, and replaced.
        let own = self.exchange.as_ref().map_or(0..slices.count(), |exchange| exchange.own(slices));
        let write = |samples, x: &ViewMut<'_, f32>| inputs.write(queue, &columns.obs(), Some(&rows.slice(samples)), x);
        match sequences {
            None => net.forward_samples(queue, &params, slices.samples(own), write)?,
            Some(_) => net.forward_columns(queue, &params, own, sliced, write)?,
        }
        let mut moments = plan.normalize.then_some([sum.view(), squares.view()]);
        if refresh == Some(Refresh::VTrace) {
            let [weights, weighted] = &mut off_policy.weights;
            off_policy.kernels.weigh(stream, &rows, &advantages, moments, &weights.view(), &weighted.view_mut())?;
            (advantages, moments) = (weighted.view(), None);
        }
        let len = columns.log_probs().len();
        let minibatch = LossColumns {
            rows,
            actions: columns.actions(),
            masks: columns.masks().map(|masks| masks.slice(0..masks.len() / (len + columns.shape().n_envs) * len)),
            log_probs: columns.log_probs(),
            advantages,
            values: columns.values(),
            returns: computed.returns.view(),
            moments,
        };
        let ([outputs, values], [d_outputs, d_values]) = net.heads(self.chains, n);
        let distribution = distribution(self.heads.as_ref(), params.slice(self.log_std.clone()));
        let (terms, std_terms) = (self.terms.view_mut(), self.std_terms.view_mut());
        let heads = LossHeads { outputs, values, d_outputs, d_values, terms, std_terms, distribution };
        kernels.objective(stream, plan.objective, &minibatch, &heads, &self.state)?;
        if refresh == Some(Refresh::LogProbs) {
            let (rows, actions, masks) = (Some(rows), minibatch.actions, minibatch.masks);
            let samples = JudgedSamples { outputs, distribution, rows, actions, masks };
            let kl = self.terms.view_mut().into_slice(KL_PART * n..(KL_PART + 1) * n);
            off_policy.kernels.divergence(stream, &samples, &off_policy.log_probs.view(), &kl)?;
        }
        if let Some(exchange) = self.exchange.as_mut().filter(|_| slices.count() > 1) {
            let (partial, gradient, here) = (&mut self.partial, &mut self.gradient, &mut self.host_params);
            let buffers = SharedBuffers { partial, gradient, here, terms: &mut [&mut self.terms, &mut self.std_terms] };
            exchange.gradient(queue, net, &params, sliced, buffers, write)?;
        } else {
            net.gradient(queue, &params, 0..slices.count(), sliced, &mut self.partial.view_mut(), write)?;
            kernels.sum_gradients(stream, slices, &self.partial.view(), &self.gradient.view_mut())?;
        }
        let n_tiles = slices.tiles();
        let tiles = self.tiles.view_mut().into_slice(0..PARTS * n_tiles);
        kernels.loss(stream, slices, &self.terms.view(), &tiles, &mut self.state)?;
        if !self.log_std.is_empty() {
            let tiles = self.tiles.view_mut().into_slice(0..self.log_std.len() * n_tiles);
            let gradient = self.gradient.view_mut().into_slice(self.log_std.clone());
            kernels.log_std(stream, slices, &self.std_terms.view(), &tiles, &gradient)?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<ControlFlow<()>, Error> {
        let Self { stream, kernels, params, moments, gradient, state, scratch, sums: [.., squares], .. } = self;
        let gradient = gradient.view();
        kernels.sum(stream, &gradient, None, Terms::Squares, &scratch.view_mut(), &squares.view_mut())?;
        kernels.step(stream, &squares.view(), state)?;
        match &mut moments[..] {
            [m, v] => kernels.adam(stream, &gradient, &params.view_mut(), [&m.view_mut(), &v.view_mut()], state)?,
            [v] => kernels.rms_prop(stream, &gradient, &params.view_mut(), &v.view_mut(), state)?,
            _ => {}
        }
        Ok(ControlFlow::Continue(()))
    }
}

#[cfg(test)]
mod tests {
    use crate::learner::targets::explained_variance;
    use std::collections::VecDeque;

    use super::*;
    use crate::fixture::{Choices, Gaze, bits, has_fma};
    use crate::{A2c, A2cConfig, Activation, Agent, Collector, MemoryKind, NetConfig, Ppo, PpoConfig, Schedule};
    use rl_envs::{Pool, cartpole::CartPole, pendulum::Pendulum, repeat_first::RepeatFirst, snake::Snake};

    /// Algorithm, with its settings.
    #[derive(Debug)]
    enum Algorithm<'a> {
        Ppo(&'a PpoConfig),
        A2c(&'a A2cConfig),
    }

    impl Algorithm<'_> {
        fn agent(&self, collector: &Collector, net: &NetConfig, device: Option<(&Device, RolloutShape)>) -> Box<dyn Agent> {
            let policy = ActorCritic::new(collector.observation_space(), collector.action_space(), net, 3).unwrap();
            let n_envs = collector.n_envs();
            match (self, device) {
                (Self::Ppo(config), None) => Box::new(Ppo::new(policy, (*config).clone(), n_envs, 5).unwrap()),
                (Self::A2c(config), None) => Box::new(A2c::new(policy, (*config).clone(), n_envs, 5).unwrap()),
                (Self::Ppo(config), Some((device, shape))) => {
                    Box::new(Ppo::new(policy, (*config).clone(), n_envs, 5).unwrap().on_device(device, shape).unwrap())
                }
                (Self::A2c(config), Some((device, shape))) => {
                    Box::new(A2c::new(policy, (*config).clone(), n_envs, 5).unwrap().on_device(device, shape).unwrap())
                }
            }
        }
    }

    /// Compares iterations of PPO on a device with the same ones on the CPU.
    fn compare(device: &Device, collector: impl Fn() -> Collector, net: &NetConfig, config: &PpoConfig, n_iterations: usize) {
        compare_agents(device, collector, net, &Algorithm::Ppo(config), n_iterations);
    }

    fn compare_agents(
        device: &Device,
        collector: impl Fn() -> Collector,
        net: &NetConfig,
        algorithm: &Algorithm<'_>,
        n_iterations: usize,
    ) {
        compare_stale(device, collector, net, algorithm, (n_iterations, 0));
    }

    /// Compares iterations in whose rollouts the policy of `lag` updates before acted.
    fn compare_stale(
        device: &Device,
        collector: impl Fn() -> Collector,
        net: &NetConfig,
        algorithm: &Algorithm<'_>,
        (n_iterations, lag): (usize, usize),
    ) {
        let pool = Pool::new(2).unwrap();
        let n_steps = match algorithm {
            Algorithm::Ppo(config) => config.n_steps,
            Algorithm::A2c(config) => config.n_steps,
        };
        let (mut here, mut there) = (collector(), collector());
        let policy = ActorCritic::new(here.observation_space(), here.action_space(), net, 3).unwrap();
        [&mut here, &mut there].into_iter().for_each(|collector| collector.remember(policy.network().state_len()));
        let mut rollouts = [here.rollout(n_steps).unwrap(), there.rollout(n_steps).unwrap()];
        let mut cpu = algorithm.agent(&here, net, None);
        let mut gpu = algorithm.agent(&there, net, Some((device, rollouts[0].shape())));
        let mut acting = VecDeque::new();
        for iteration in 0..n_iterations {
            let remaining = 1.0 - iteration as f32 / 10.0;
            acting.push_back([cpu.acting(remaining).copy(), gpu.acting(remaining).copy()]);
            let [of_cpu, of_gpu] = &acting[0];
            here.collect(&**of_cpu, &mut rollouts[0]).unwrap();
            there.collect(&**of_gpu, &mut rollouts[1]).unwrap();
            if acting.len() > lag {
                acting.pop_front();
            }
            assert_eq!(rollouts[0].is_stale(cpu.policy().weights().version), lag > 0 && iteration > 0);
            let expected = cpu.update(&rollouts[0], remaining, &pool).unwrap();
            let found = gpu.update(&rollouts[1], remaining, &pool).unwrap();
            let (a, b) = (cpu.save().unwrap(), gpu.save().unwrap());
            let context = format!("{device}, iteration {iteration}, {net:?}, {algorithm:?}\n{expected:?}\n{found:?}");
            assert_eq!((&a.counters, &a.statistics), (&b.counters, &b.statistics), "{context}");
            assert!(bits(&a.params) == bits(&b.params), "parameters: {context}");
            for ((name, a), (_, b)) in a.moments.iter().zip(&b.moments) {
                assert!(bits(a) == bits(b), "{name}: {context}");
            }
            assert!(expected.iter().map(|(name, _)| name).eq(found.iter().map(|(name, _)| name)), "{context}");
            for ((name, expected), (_, found)) in expected.iter().zip(found.iter()) {
                assert!(expected.to_bits() == found.to_bits(), "{name}: {context}");
            }
        }
    }

    fn cartpole(n_envs: usize) -> impl Fn() -> Collector {
        move || Collector::new(n_envs, &CartPole::default(), &Pool::new(1).unwrap(), 1).unwrap()
    }

    fn small() -> PpoConfig {
        PpoConfig { n_steps: 33, batch_size: 33, n_epochs: 2, ..PpoConfig::default() }
    }

    fn net(hidden: &[usize], shared_trunk: bool) -> NetConfig {
        let activation = if hidden.len() == 1 { Activation::Relu } else { Activation::Tanh };
        NetConfig { hidden: hidden.into(), shared_trunk, activation, ..NetConfig::default() }
    }

    #[test]
    fn updates_on_a_device_leave_the_cpus_bits() {
        if !has_fma() {
            return;
        }
        for device in &Device::for_tests() {
            for hidden in [&[][..], &[1], &[33, 16], &[65, 130], &[96, 64, 32]] {
                for shared_trunk in [false, true] {
                    compare(device, cartpole(3), &net(hidden, shared_trunk), &small(), 2);
                }
            }
            for critic in [&[70, 9][..], &[12], &[]] {
                for activation in [Activation::Tanh, Activation::Elu] {
                    let net = NetConfig { critic_hidden: Some(critic.into()), activation, ..net(&[33, 16], false) };
                    compare(device, cartpole(3), &net, &small(), 2);
                }
            }
        }
    }

    fn compare_gated(device: &Device) {
        for (activation, shared_trunk) in [(Activation::Silu, false), (Activation::Gelu, true)] {
            let net = NetConfig { activation, ..net(&[33, 16], shared_trunk) };
            compare(device, cartpole(3), &net, &small(), 2);
            compare(device, cartpole(3), &net, &PpoConfig { micro_batch: 40, ..small() }, 2);
            let conv = NetConfig { conv: vec![[5, 3, 2], [16, 2, 2]], hidden: vec![8], ..net };
            let snake = || Collector::new(3, &Snake::default(), &Pool::new(1).unwrap(), 1).unwrap();
            compare(device, snake, &conv, &PpoConfig { n_epochs: 1, ..small() }, 2);
            let film = NetConfig { memory: MemoryKind::Gru, memory_size: 7, ..conv };
            compare_stale(device, snake, &film, &Algorithm::A2c(&A2cConfig { n_steps: 5, ..A2cConfig::default() }), (2, 0));
        }
    }

    #[test]
    fn gates_on_a_device_leave_the_cpus_bits() {
        if !has_fma() {
            return;
        }
        Device::for_tests().iter().for_each(compare_gated);
        let mistakes = [
            ["w * fmaf(B, square, A)", "w * (B * square + A)"],
            ["fmaf(3.0f * B, square, A)", "fmaf(B, square, A)"],
            ["power * larger", "1.0f - larger"],
            ["w > 0.0f, larger, smaller", "w >= 0.5f, larger, smaller"],
            ["w > 0.0f, smaller, larger", "w > 0.0f, larger, smaller"],
            ["fmaf(y * dw, rest, share)", "y * dw * rest + share"],
            ["dx[i] * slopes[i]", "dx[i]"],
        ];
        let unnoticed = Device::unnoticed("gated.cu", &mistakes, compare_gated);
        assert!(unnoticed.is_empty(), "{unnoticed:?}");
    }

    fn compare_normed(device: &Device) {
        let normed = |net: NetConfig| NetConfig { layer_norm: true, ..net };
        for (hidden, activation, shared_trunk) in
            [(&[33, 16][..], Activation::Silu, false), (&[1, 70], Activation::Tanh, true), (&[130], Activation::Elu, false)]
        {
            let net = normed(NetConfig { activation, ..net(hidden, shared_trunk) });
            compare(device, cartpole(3), &net, &small(), 2);
            compare(device, cartpole(3), &net, &PpoConfig { micro_batch: 40, ..small() }, 2);
        }
        let conv = normed(NetConfig { conv: vec![[16, 3, 2]], ..net(&[8], false) });
        let snake = || Collector::new(3, &Snake::default(), &Pool::new(1).unwrap(), 1).unwrap();
        compare(device, snake, &conv, &PpoConfig { n_epochs: 1, ..small() }, 2);
        let film = NetConfig { memory: MemoryKind::Gru, memory_size: 7, ..conv };
        compare_stale(device, snake, &film, &Algorithm::A2c(&A2cConfig { n_steps: 5, ..A2cConfig::default() }), (2, 0));
    }

    #[test]
    fn normalized_layers_on_a_device_leave_the_cpus_bits() {
        if !has_fma() {
            return;
        }
        Device::for_tests().iter().for_each(compare_normed);
        let mistakes = [
            ["lanes[t] += lanes[t + half];", "lanes[t] = lanes[t + half];"],
            ["fmaf(x - mean, x - mean, own.product)", "(x - mean) * (x - mean) + own.product"],
            ["fmaf(own.product, share, EPSILON)", "own.product * share"],
            ["(x - mean) * inverse", "x * inverse"],
            ["fmaf(x, gains[j], offsets[j])", "x + offsets[j]"],
            ["dy[of.at + j] * gains[j],", "dy[of.at + j],"],
            ["fmaf(dx.x, dx.y, own.product)", "own.product"],
            ["x.x * gains[j] - mean)", "x.x * gains[j])"],
            ["x.x * x.y;", "x.y;"],
            ["inverse * fmaf", "fmaf"],
        ];
        let unnoticed = Device::unnoticed("layer_norm.cu", &mistakes, compare_normed);
        assert!(unnoticed.is_empty(), "{unnoticed:?}");
    }

    fn compare_parts(device: &Device) {
        let gaze = || Collector::new(5, &Gaze::<f32>::default(), &Pool::new(1).unwrap(), 1).unwrap();
        let ppo = PpoConfig { n_steps: 39, batch_size: 195, n_epochs: 1, ..PpoConfig::default() };
        for (conv, activation, shared_trunk) in
            [(vec![[16, 2, 1]], Activation::Tanh, true), (vec![[5, 2, 1], [16, 2, 1]], Activation::Silu, false)]
        {
            let net = NetConfig { conv, activation, normalize_obs: shared_trunk, ..net(&[9], shared_trunk) };
            compare(device, gaze, &net, &ppo, 2);
            compare(device, gaze, &net, &PpoConfig { micro_batch: 40, ..ppo.clone() }, 2);
            let film = NetConfig { memory: MemoryKind::Lstm, memory_size: 7, ..net };
            compare_stale(device, gaze, &film, &Algorithm::A2c(&A2cConfig { n_steps: 5, ..A2cConfig::default() }), (2, 0));
        }
    }

    #[test]
    fn parts_on_a_device_leave_the_cpus_bits() {
        if !has_fma() {
            return;
        }
        Device::for_tests().iter().for_each(compare_parts);
        let mistakes = [
            ["to[row * to_width + to_first + column]", "to[row * to_width + column]"],
            ["from[row * from_width + from_first + column]", "from[row * from_width + column]"],
            ["from_width + from_first + i % len", "from_width + i % len"],
            ["derive(activation, y[i], dy)", "dy"],
        ];
        let unnoticed = Device::unnoticed("columns.cu", &mistakes, compare_parts);
        assert!(unnoticed.is_empty(), "{unnoticed:?}");
    }

    #[test]
    fn minibatches_of_any_size_leave_the_cpus_bits() {
        if !has_fma() {
            return;
        }
        for device in &Device::for_tests() {
            // Slices of less than a tile, of several tiles, and of tiles of different numbers.
            for (n_envs, n_steps, batch_size) in [(1, 2, 2), (5, 39, 195), (7, 41, 287), (4, 194, 388)] {
                let config = PpoConfig { n_steps, batch_size, n_epochs: 2, ..PpoConfig::default() };
                compare(device, cartpole(n_envs), &net(&[8], false), &config, 2);
            }
        }
    }

    #[test]
    fn a_gaussian_policy_and_a2c_leave_the_cpus_bits() {
        if !has_fma() {
            return;
        }
        let pendulum = || Collector::new(5, &Pendulum::default(), &Pool::new(1).unwrap(), 1).unwrap();
        let ppo = PpoConfig { n_steps: 39, batch_size: 195, n_epochs: 2, ent_coef: 0.1, ..PpoConfig::default() };
        let ppo = PpoConfig { normalize_reward: true, ..ppo };
        let whole = A2cConfig { n_steps: 41, ent_coef: 0.1, ..A2cConfig::default() };
        let parts = A2cConfig { batch_size: 41, normalize_advantage: true, gae_lambda: 0.9, ..whole.clone() };
        for device in &Device::for_tests() {
            for algorithm in [Algorithm::Ppo(&ppo), Algorithm::A2c(&whole), Algorithm::A2c(&parts)] {
                compare_agents(device, pendulum, &net(&[16, 5], false), &algorithm, 2);
                compare_agents(device, cartpole(5), &net(&[16, 5], true), &algorithm, 2);
            }
        }
    }

    fn compare_off_policy(device: &Device) {
        let pendulum = || Collector::new(5, &Pendulum::default(), &Pool::new(1).unwrap(), 1).unwrap();
        let snake = || Collector::new(3, &Snake::default(), &Pool::new(1).unwrap(), 1).unwrap();
        let choices = || Collector::new(5, &Choices::default(), &Pool::new(1).unwrap(), 1).unwrap();
        let (net, rate) = (net(&[16, 5], false), Schedule::Constant(0.01));
        let n_steps = if device.is_stand_in() { 13 } else { 26 }; // it is slow
        let ppo = PpoConfig { n_steps, batch_size: 65, n_epochs: 2, learning_rate: rate, ent_coef: 0.1, ..PpoConfig::default() };
        let ppo = PpoConfig { clip_range_vf: 0.2, ..ppo };
        let bounded = PpoConfig { target_kl: 0.03, n_epochs: 5, normalize_reward: true, ..ppo.clone() };
        let a2c = A2cConfig { n_steps, batch_size: 65, normalize_advantage: true, gae_lambda: 0.9, ..A2cConfig::default() };
        let a2c = A2cConfig { learning_rate: rate, ..a2c };
        let whole = A2cConfig { batch_size: 0, normalize_advantage: false, ..a2c.clone() };
        let uncorrected = A2cConfig { vtrace: false, ..a2c.clone() };
        for algorithm in [Algorithm::Ppo(&ppo), Algorithm::Ppo(&bounded), Algorithm::A2c(&a2c), Algorithm::A2c(&whole)] {
            compare_stale(device, cartpole(5), &net, &algorithm, (4, 2));
            compare_stale(device, pendulum, &net, &algorithm, (3, 1));
            compare_stale(device, choices, &net, &algorithm, (3, 1));
        }
        for algorithm in [
            Algorithm::Ppo(&PpoConfig { batch_size: 39, ..bounded }),
            Algorithm::A2c(&A2cConfig { batch_size: 39, ..a2c.clone() }),
        ] {
            compare_stale(device, snake, &net, &algorithm, (3, 1));
        }
        compare_stale(device, cartpole(5), &net, &Algorithm::A2c(&uncorrected), (3, 1));
    }

    #[test]
    fn rollouts_of_older_policies_leave_the_cpus_bits() {
        if !has_fma() {
            return;
        }
        Device::for_tests().iter().for_each(compare_off_policy);
        let mistakes = [
            ["judged.rows ? judged.rows[i] : i", "i"],
            ["judgement.start[row]", "judgement.start[i]"],
            ["- 1.0f) - log_ratio", "- 1.0f)"],
            ["mask && mask[j] == 0 ? MASKED : logits[j]) - max", "logits[j]) - max"],
            ["f32 logit = mask && mask[j] == 0 ? MASKED : logits[j];", "f32 logit = logits[j];"],
            ["masks + row * a", "masks + i * a"],
            ["chosen - max - math::ln(sum)", "chosen - (max + math::ln(sum))"],
            ["log_prob += logits[chosen]", "log_prob = logits[chosen]"],
            ["actions[row] / radix % size", "actions[row] % size"],
            ["math::exp(-log_std[j])", "math::exp(log_std[j])"],
            ["ratio < 1.0f, ratio, 1.0f", "ratio < 2.0f, ratio, 1.0f"],
            ["next = weight * advantage", "next = advantage"],
            ["returns[at] = value + next", "returns[at] = value + advantage"],
            ["goes_on ? gamma", "has_future ? gamma"],
            ["advantage - (f32)mean", "advantage"],
            ["weighted[row] = advantage * weights[row]", "weighted[row] = advantage"],
        ];
        let unnoticed = Device::unnoticed("off_policy.cu", &mistakes, compare_off_policy);
        assert!(unnoticed.is_empty(), "{unnoticed:?}");
    }

    #[test]
    fn micro_batches_leave_the_cpus_bits_and_take_less_memory() {
        if !has_fma() {
            return;
        }
        let pendulum = || Collector::new(5, &Pendulum::default(), &Pool::new(1).unwrap(), 1).unwrap();
        let snake = || Collector::new(3, &Snake::default(), &Pool::new(1).unwrap(), 1).unwrap();
        let conv = NetConfig { conv: vec![[4, 3, 3], [16, 2, 1]], ..net(&[8], true) };
        for device in &Device::for_tests() {
            // Eight slices of 64 and 65 samples: one, two and four at a time.
            let ppo = PpoConfig { n_steps: 103, batch_size: 515, n_epochs: 1, ..PpoConfig::default() };
            let activations = [0, 300, 140, 1].map(|micro_batch| {
                let ppo = PpoConfig { micro_batch, ..ppo.clone() };
                compare(device, cartpole(5), &net(&[16, 5], true), &ppo, 2);
                let collector = cartpole(5)();
                let shape = collector.rollout(103).unwrap().shape();
                let mut agent = Algorithm::Ppo(&ppo).agent(&collector, &net(&[16, 5], true), Some((device, shape)));
                let memory = agent.device().unwrap().memory_use();
                memory.into_iter().find(|(name, _)| name.starts_with("activations")).unwrap().1
            });
            assert!(activations.is_sorted_by(|more, less| more > less), "{activations:?}");
            let a2c = A2cConfig { n_steps: 41, micro_batch: 110, ..A2cConfig::default() };
            compare_stale(device, pendulum, &net(&[16, 5], false), &Algorithm::A2c(&a2c), (3, 1));
            let config = PpoConfig { n_steps: 97, batch_size: 291, micro_batch: 80, n_epochs: 1, ..PpoConfig::default() };
            compare(device, snake, &conv, &config, 2);
        }
    }

    #[test]
    fn normalized_observations_leave_the_cpus_bits() {
        if !has_fma() {
            return;
        }
        let pendulum = || Collector::new(5, &Pendulum::default(), &Pool::new(1).unwrap(), 1).unwrap();
        let snake = || Collector::new(3, &Snake::default(), &Pool::new(1).unwrap(), 1).unwrap();
        let ppo = PpoConfig { n_steps: 26, batch_size: 26, n_epochs: 2, normalize_reward: true, ..PpoConfig::default() };
        let a2c = A2cConfig { n_steps: 26, batch_size: 26, ..A2cConfig::default() };
        let net = NetConfig { normalize_obs: true, ..net(&[16, 5], false) };
        for device in &Device::for_tests() {
            for algorithm in [Algorithm::Ppo(&ppo), Algorithm::A2c(&a2c)] {
                compare_stale(device, cartpole(5), &net, &algorithm, (3, 0));
                compare_stale(device, pendulum, &net, &algorithm, (3, 1));
                compare_stale(device, snake, &net, &algorithm, (2, 0));
            }
        }
    }

    #[test]
    fn several_heads_leave_the_cpus_bits() {
        if !has_fma() {
            return;
        }
        let choices = || Collector::new(5, &Choices::default(), &Pool::new(1).unwrap(), 1).unwrap();
        let ppo = PpoConfig { n_steps: 39, batch_size: 195, n_epochs: 3, ent_coef: 0.1, ..PpoConfig::default() };
        let a2c = A2cConfig { n_steps: 41, ent_coef: 0.1, ..A2cConfig::default() };
        let compare = |device: &Device| {
            for algorithm in [Algorithm::Ppo(&ppo), Algorithm::A2c(&a2c)] {
                compare_agents(device, choices, &net(&[16, 5], false), &algorithm, 3);
            }
        };
        Device::for_tests().iter().for_each(compare);
        let mistakes = [
            ["action / radix % size", "action % size"],
            ["(of_action + of_head)", "(of_action + entropy)"],
            ["entropy += of_head;", "entropy = of_head;"],
        ];
        let unnoticed = Device::unnoticed("actor_critic.cuh", &mistakes, compare);
        assert!(unnoticed.is_empty(), "{unnoticed:?}");
    }

    #[test]
    fn every_setting_of_the_loss_leaves_the_cpus_bits() {
        if !has_fma() {
            return;
        }
        let clipped = PpoConfig { clip_range_vf: 0.05, ent_coef: 0.1, max_grad_norm: 1e9, normalize_advantage: false, ..small() };
        let falling = PpoConfig { clip_range: Schedule::Linear(0.3), learning_rate: Schedule::Linear(0.01), ..small() };
        let stopped = PpoConfig { target_kl: 1e-4, learning_rate: Schedule::Constant(0.01), n_epochs: 10, ..small() };
        for device in &Device::for_tests() {
            for config in [&clipped, &falling, &stopped] {
                compare(device, cartpole(3), &net(&[8, 5], false), config, 3);
            }
        }
    }

    #[test]
    fn a_divergence_on_a_device_is_the_cpus() {
        if !has_fma() {
            return;
        }
        let pool = Pool::new(1).unwrap();
        let memory = NetConfig { memory: MemoryKind::Gru, memory_size: 4, ..net(&[8], false) };
        let both = [(net(&[8, 5], false), 11), (memory, 99)];
        for (device, (net, batch_size)) in Device::for_tests().iter().flat_map(|device| both.iter().map(move |of| (device, of))) {
            let config = PpoConfig { batch_size: *batch_size, n_epochs: 4, ..small() };
            let mut collector = cartpole(3)();
            let policy = ActorCritic::new(collector.observation_space(), collector.action_space(), net, 3).unwrap();
            collector.remember(policy.network().state_len());
            let mut rollout = collector.rollout(config.n_steps).unwrap();
            let [mut cpu, mut gpu] =
                [None, Some((device, rollout.shape()))].map(|device| Algorithm::Ppo(&config).agent(&collector, net, device));
            collector.collect(cpu.acting(1.0), &mut rollout).unwrap();
            rollout.columns().steps.rewards[[30, 1]] = f32::NAN;
            let errors = [cpu.update(&rollout, 1.0, &pool), gpu.update(&rollout, 1.0, &pool)].map(|result| match result {
                Err(crate::Error::Diverged(divergence)) => divergence,
                other => panic!("{device}: {other:?}"),
            });
            assert_eq!(errors[0].to_string(), errors[1].to_string(), "{device}");
            assert_eq!(format!("{:?}", errors[0].minibatch), format!("{:?}", errors[1].minibatch), "{device}");
            assert_eq!(cpu.save().unwrap().counters, gpu.save().unwrap().counters, "{device}");
        }
    }

    #[test]
    fn a_divergence_of_a_whole_rollout_on_a_device_is_the_cpus() {
        if !has_fma() {
            return;
        }
        let (config, pool) = (A2cConfig { n_steps: 40, ..A2cConfig::default() }, Pool::new(1).unwrap());
        for device in &Device::for_tests() {
            let mut collector = cartpole(3)();
            let mut rollout = collector.rollout(config.n_steps).unwrap();
            let [mut cpu, mut gpu] = [None, Some((device, rollout.shape()))]
                .map(|device| Algorithm::A2c(&config).agent(&collector, &net(&[8, 5], false), device));
            collector.collect(cpu.acting(1.0), &mut rollout).unwrap();
            rollout.columns().steps.rewards[[30, 1]] = f32::NAN;
            // Each update is one step, and the third that is skipped is the last.
            let minibatch = |agent: &mut dyn Agent| {
                let errors: Vec<_> = (0..3).filter_map(|_| agent.update(&rollout, 1.0, &pool).err()).collect();
                match &errors[..] {
                    [crate::Error::Diverged(divergence)] => format!("{:?}", divergence.minibatch),
                    other => panic!("{device}: {other:?}"),
                }
            };
            assert_eq!(minibatch(&mut *cpu), minibatch(&mut *gpu), "{device}");
        }
    }

    /// Compares updates of convolutions over Snake's board, whose observations are planes of 12 by 12.
    fn compare_convolutions(device: &Device, conv: &[[usize; 3]], shared_trunk: bool, config: &PpoConfig) {
        let snake = || Collector::new(3, &Snake::default(), &Pool::new(1).unwrap(), 1).unwrap();
        let net = NetConfig { conv: conv.into(), ..net(&[8], shared_trunk) };
        compare(device, snake, &net, config, 2);
    }

    #[test]
    fn convolutions_on_a_device_leave_the_cpus_bits() {
        if !has_fma() {
            return;
        }
        for device in &Device::for_tests() {
            // Kernels that overlap, touch and leave gaps; long sums of terms and of outputs; channels that are padded on the CPU.
            let nets: [&[[usize; 3]]; 4] =
                [&[[16, 3, 2]], &[[5, 3, 2], [16, 2, 2]], &[[100, 2, 5], [32, 3, 1]], &[[7, 4, 2], [97, 3, 1], [16, 2, 1]]];
            for conv in nets {
                compare_convolutions(device, conv, true, &PpoConfig { n_epochs: 1, ..small() });
            }
            // Several slices, tiles, and groups of a tile.
            let config = PpoConfig { n_steps: 97, batch_size: 291, n_epochs: 1, ..PpoConfig::default() };
            compare_convolutions(device, &[[4, 3, 3], [16, 2, 1]], false, &config);
        }
    }

    #[test]
    fn features_that_are_padded_on_the_cpu_are_refused_on_a_device() {
        let collector = Collector::new(3, &Snake::default(), &Pool::new(1).unwrap(), 1).unwrap();
        let net = NetConfig { conv: vec![[12, 3, 1]], ..net(&[8], true) };
        let policy = ActorCritic::new(collector.observation_space(), collector.action_space(), &net, 3).unwrap();
        let shape = collector.rollout(33).unwrap().shape();
        for device in &Device::for_tests() {
            let error = Ppo::new(policy.clone(), small(), 3, 5).unwrap().on_device(device, shape).err().unwrap().to_string();
            assert!(error.contains("conv is of 12 channels, but on a device"), "{error}");
        }
    }

    fn compare_sums(device: &Device) {
        let (stream, kernels) = (device.stream().unwrap(), LearnerKernels::new(device).unwrap());
        let mut rng = rl_envs::Rng::new(3, 0, 0, rl_envs::Purpose::Init);
        for n in [1, 31, 256, 257, 9_155, 65_537] {
            let x: Vec<f32> = (0..n).map(|_| 3.0 + rng.normal()).collect();
            let there = Buffer::of(device, &x).unwrap();
            let mut scratch = Buffer::zeros(device, LearnerKernels::sum_scratch(n)).unwrap();
            let [mut sum, mut squares, mut distances] = [(); 3].map(|()| Buffer::<f64>::zeros(device, 1).unwrap());
            let of = &there.view();
            kernels.sum(&stream, of, None, Terms::Numbers, &scratch.view_mut(), &sum.view_mut()).unwrap();
            kernels.sum(&stream, of, None, Terms::Squares, &scratch.view_mut(), &squares.view_mut()).unwrap();
            let about = Terms::SquaredDistances(sum.view());
            kernels.sum(&stream, of, None, about, &scratch.view_mut(), &distances.view_mut()).unwrap();
            let mean = crate::kernel::sums::sum(&x) / n as f64;
            let expected = [
                crate::kernel::sums::sum(&x),
                crate::kernel::sums::squared_distances(&x, 0.0),
                crate::kernel::sums::squared_distances(&x, mean),
            ];
            let found = [sum, squares, distances].map(|sum| {
                let mut to = [0.0];
                stream.download(&mut to, &sum.view()).unwrap();
                to[0]
            });
            assert_eq!(found, expected, "{device}: {n} numbers");
            let values: Vec<f32> = x.iter().map(|x| x + rng.normal()).collect();
            let mut of_values = Buffer::zeros(device, n).unwrap();
            stream.upload(&of_values.view_mut(), &values).unwrap();
            let mut scratch = Buffer::zeros(device, LearnerKernels::variance_scratch(n)).unwrap();
            let mut state = LearnerState::new(device).unwrap();
            let of = [&there.view(), &of_values.view()];
            kernels.explained_variance(&stream, of, &scratch.view_mut(), &mut state).unwrap();
            let (found, expected) = (state.totals(&stream).unwrap().explained_variance, explained_variance(&x, &values));
            assert_eq!(found.to_bits(), expected.to_bits(), "{device}: {n} numbers");
        }
    }

    #[test]
    fn sums_on_a_device_have_the_cpus_bits() {
        Device::for_tests().iter().for_each(compare_sums);
        let mistakes = [
            ["term(t) + term(t + THREADS)", "term(2 * t) + term(2 * t + 1)"],
            ["sums[t] += sums[t + half];", "sums[t] = sums[t + half] + sums[t] * 1.0000000000000002;"],
            ["at < n ? x[at] : 0.0", "at + 1 < n ? x[at] : 0.0"],
        ];
        let unnoticed = Device::unnoticed("sums.cu", &mistakes, compare_sums);
        assert!(unnoticed.is_empty(), "{unnoticed:?}");
    }

    /// Compares steps of an optimizer that begin with moments near the smallest.
    fn compare_optimizers(device: &Device) {
        let (stream, kernels) = (device.stream().unwrap(), LearnerKernels::new(device).unwrap());
        let smallest = 2f32.powi(-100);
        // Some that decay to the smallest, or to its neighbours.
        let around = |x: f32| (0..9).map(move |i| f32::from_bits(x.to_bits() - 4 + i));
        let moments: Vec<f32> = [0.9, 0.99, 0.999]
            .into_iter()
            .flat_map(|decay| around(smallest / decay))
            .chain([f32::from_bits(1), 1e-35, 1e-25])
            .collect();
        let n = moments.len();
        let gradient: Vec<f32> = (0..n).map(|i| if i + 2 < n { 0.0 } else { 1e-20 }).collect();
        for rule in [Rule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-5 }, Rule::RmsProp { alpha: 0.99, epsilon: 1e-5 }] {
            let mut optimizer = Optimizer::new(rule, n);
            let kept: Vec<_> = optimizer.moments().into_iter().map(|(name, _)| (name, moments.clone())).collect();
            optimizer.load(&kept, StepCount { taken: 0, skipped: 0 }).unwrap();
            let mut params = vec![0.5; n];
            let [there, grads] = [&params[..], &gradient].map(|x| Buffer::of(device, x).unwrap());
            let (mut there, mut of): (_, Vec<_>) = (there, kept.iter().map(|(_, x)| Buffer::of(device, x).unwrap()).collect());
            let mut scratch = Buffer::zeros(device, LearnerKernels::sum_scratch(n)).unwrap();
            let (mut squares, mut state) = (Buffer::<f64>::zeros(device, 1).unwrap(), LearnerState::new(device).unwrap());
            let decay = match rule {
                Rule::Adam { beta2, .. } => beta2,
                Rule::RmsProp { alpha, .. } => alpha,
            };
            let settings = UpdateSettings {
                learning_rate: 1e-2,
                max_norm: 1e9,
                beta1: 0.9,
                beta2: decay,
                epsilon: 1e-5,
                ..UpdateSettings::default()
            };
            state.set_settings(&stream, &settings).unwrap();
            kernels.begin(&stream, &mut state).unwrap();
            // The loss of a sample is 0: nothing skips the step.
            let slices = MinibatchSlices::new(1, 1, n, usize::MAX);
            let terms = Buffer::zeros(device, PARTS).unwrap();
            let mut tiles = Buffer::zeros(device, PARTS * slices.tiles()).unwrap();
            for _ in 0..2 {
                kernels.loss(&stream, &slices, &terms.view(), &tiles.view_mut(), &mut state).unwrap();
                optimizer.step(&mut params, &gradient, 1e-2, 1e9).unwrap();
                kernels.sum(&stream, &grads.view(), None, Terms::Squares, &scratch.view_mut(), &squares.view_mut()).unwrap();
                kernels.step(&stream, &squares.view(), &mut state).unwrap();
                match &mut of[..] {
                    [m, v] => {
                        let moments = [&m.view_mut(), &v.view_mut()];
                        kernels.adam(&stream, &grads.view(), &there.view_mut(), moments, &state).unwrap();
                    }
                    of => kernels.rms_prop(&stream, &grads.view(), &there.view_mut(), &of[0].view_mut(), &state).unwrap(),
                }
                let expected = [vec![params.clone()], optimizer.vectors().map(<[f32]>::to_vec).collect()].concat();
                for (found, expected) in [&there].into_iter().chain(&of).zip(expected) {
                    assert_eq!(bits(&download(&stream, &found.view()).unwrap()), bits(&expected), "{device}, {rule:?}");
                }
            }
        }
    }

    #[test]
    fn optimizers_on_a_device_have_the_cpus_bits() {
        Device::for_tests().iter().for_each(compare_optimizers);
        let mistakes = [
            ["f32 first = settled(", "f32 first = ("],
            ["f32 second = settled(", "f32 second = ("],
            ["< 7.888609e-31f", "<= 7.888609e-31f"],
            ["7.888609e-31f", "7.888610e-31f"],
        ];
        let unnoticed = Device::unnoticed("learner.cu", &mistakes, compare_optimizers);
        assert!(unnoticed.is_empty(), "{unnoticed:?}");
    }

    #[test]
    fn mistakes_planted_into_the_learners_kernels_are_noticed() {
        if !has_fma() {
            return;
        }
        let compare = |device: &Device| {
            let config = PpoConfig { n_steps: 140, batch_size: 280, n_epochs: 2, ent_coef: 0.1, ..PpoConfig::default() };
            compare(device, cartpole(2), &net(&[100, 7], false), &config, 2);
        };
        let all: [(&str, &[[&str; 2]]); 5] = [
            ("product.cuh", &[["const u32 LONG = 96;", "const u32 LONG = 128;"]]),
            ("activation.cuh", &[["fmaf(-y, y, 1.0f)", "(1.0f - y * y)"], ["p = fmaf(p, r, 0.5f);", "p = p * r + 0.5f;"]]),
            ("actor_critic.cuh", &[["(f64)n - 1.0", "(f64)n"], ["out.value * weight", "out.value / (f32)n"]]),
            ("learner.cuh", &[["const u32 TILE = 96;", "const u32 TILE = 64;"], ["sum = two + sum;", "sum = one + sum;"]]),
            ("learner.cu", &[["counters->epochs += 1;", ""], ["norm + 1e-6f", "norm"], ["(f64)settings->beta1", "0.9"]]),
        ];
        for (file, mistakes) in all {
            let unnoticed = Device::unnoticed(file, mistakes, compare);
            assert!(unnoticed.is_empty(), "{file}: {unnoticed:?}");
        }
    }

    fn remembering(memory: MemoryKind, memory_size: usize, hidden: &[usize], shared_trunk: bool) -> NetConfig {
        NetConfig { memory, memory_size, hidden: hidden.into(), shared_trunk, ..NetConfig::default() }
    }

    fn compare_through_time(device: &Device) {
        let pool = || Pool::new(1).unwrap();
        let pendulum = || Collector::new(9, &Pendulum::default(), &pool(), 1).unwrap();
        let choices = || Collector::new(9, &Choices::default(), &pool(), 1).unwrap();
        let snake = || Collector::new(5, &Snake::default(), &pool(), 1).unwrap();
        let rate = Schedule::Constant(0.01);
        let a2c = |n_steps| A2cConfig { n_steps, learning_rate: rate, ent_coef: 0.1, ..A2cConfig::default() };
        let ppo = |n_steps, batch_size| PpoConfig {
            n_steps,
            batch_size,
            n_epochs: 2,
            learning_rate: rate,
            ent_coef: 0.1,
            ..PpoConfig::default()
        };
        let (gru, lstm) = (remembering(MemoryKind::Gru, 5, &[7], false), remembering(MemoryKind::Lstm, 6, &[], false));
        // A slice of a whole block and another one; two slices; a rollout of an older policy.
        for net in [&gru, &remembering(MemoryKind::Lstm, 9, &[5, 4], true)] {
            compare_stale(device, cartpole(40), net, &Algorithm::A2c(&a2c(3)), (2, 0));
        }
        compare_stale(device, cartpole(40), &lstm, &Algorithm::A2c(&a2c(5)), (2, 0));
        compare_stale(device, cartpole(9), &lstm, &Algorithm::Ppo(&ppo(12, 36)), (3, 1));
        let of_horizon = NetConfig { memory_horizon: 5, normalize_obs: true, ..gru.clone() };
        compare_stale(device, pendulum, &of_horizon, &Algorithm::Ppo(&PpoConfig { target_kl: 0.03, ..ppo(12, 108) }), (3, 0));
        compare_stale(device, pendulum, &lstm, &Algorithm::A2c(&a2c(7)), (3, 1));
        compare_stale(device, choices, &gru, &Algorithm::Ppo(&ppo(10, 30)), (3, 1));
        let cards = || Collector::new(9, &RepeatFirst::default(), &pool(), 1).unwrap();
        compare_stale(device, cards, &lstm, &Algorithm::Ppo(&ppo(8, 24)), (2, 0));
        let conv = NetConfig { conv: vec![[16, 3, 3]], ..remembering(MemoryKind::Gru, 7, &[6], false) };
        compare_stale(device, snake, &conv, &Algorithm::A2c(&a2c(5)), (2, 0));
        if device.is_stand_in() {
            return; // slow
        }
        for net in [&gru, &lstm, &remembering(MemoryKind::Lstm, 100, &[16], true)] {
            compare_stale(device, cartpole(150), net, &Algorithm::A2c(&a2c(2)), (3, 0));
            compare_stale(device, cartpole(80), net, &Algorithm::Ppo(&ppo(16, 640)), (4, 2));
        }
    }

    #[test]
    fn updates_through_time_leave_the_cpus_bits() {
        if !has_fma() {
            return;
        }
        Device::for_tests().iter().for_each(compare_through_time);
        let mistakes = [
            ["forgets ? 0.0f : h;", "h;"],
            ["forgets ? 0.0f : c;", "c;"],
            ["sequences.begins(step + 1, column)", "sequences.begins(step, column)"],
            ["cell.dh[at] + (is_last ? 0.0f : cell.dh_now[i])", "cell.dh[at] + cell.dh_now[i]"],
            ["is_last ? 0.0f : cell.dc_now[i]", "cell.dc_now[i]"],
            ["|| begins(next, column)", "|| begins(step, column)"],
            ["next % horizon == 0", "step % horizon == 0"],
            ["cell.dh_now[i] = 0.0f;", ""],
            ["cell.inner[at] = sums[2];", ""],
            ["gate == 2 && !cell.is_lstm ? gates[gate] : sums[gate]", "sums[gate]"],
            ["step * least(width, end - begin)", "step * width"],
            ["(column - first(slice)) / width * width", "0"],
            ["sequences.rows == 0 ? column : least(sequences.rows[sequences.sample(0, column)], sequences.n_envs - 1)", "column"],
            ["(u64)row * len + offset", "(u64)row * len"],
            ["from[cell.size + j]", "from[j]"],
            ["fmaf(a[1], before - a[2], a[2])", "a[1] * (before - a[2]) + a[2]"],
            ["x * 0.5f), 0.5f, 0.5f)", "x), 0.5f, 0.5f)"],
            ["u[gate] = weights[gate * stride + of_gate];", "u[gate] = 0.0f;"],
            ["cell.h_next[i] = forgets", "cell.h_now[i] = forgets"],
            ["cell.c_before[at] = c_before;", ""],
        ];
        let unnoticed = Device::unnoticed("memory.cu", &mistakes, compare_through_time);
        assert!(unnoticed.is_empty(), "{unnoticed:?}");
    }
}
