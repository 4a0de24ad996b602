//! Networks over one parameter vector, shared by policies and action values.
//!
//! A [`Network`] holds layout, parameters, the kernel's copy of them, running statistics of observations, and the version.
//! The policies of this crate, and the critics of SAC and TD3, are heads on it.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use rl_buffer::{ObsSlice, Rollout};
use rl_envs::{Pool, Space, pool};
use serde::{Deserialize, Serialize};

use crate::kernel::encoder::categories::Categories;
use crate::kernel::encoder::parts::Encoder;
use crate::kernel::net::{Kernel, Net, PackedNet};
use crate::kernel::samples::{Samples, TILE};
use crate::kernel::slices::{self, MAX_SLICES};
use crate::kernel::tile::Workspace;
use crate::network::activation::Activation;
use crate::network::mlp::{Hidden, Linear, Mlp};
use crate::network::normalize::{Moments, Normalizer};
use crate::network::params::{Initialization, Layout};
use crate::network::precision::candle_device;
use crate::network::recurrent::{Cell, Cells, MemoryKind, TensorSequences};
use crate::probe::Threads;
use crate::settings::{self, Kind};
use crate::{Error, Precision, Scratch, Snapshot, Weights};

/// Implementation of losses, gradients and acting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LearnerKind {
    /// The tile kernel.
    #[default]
    Fused,
    /// candle's operations: slow and obvious, the referee of the tile kernel.
    Reference,
}

crate::settings! {
    /// Settings of the networks.
    pub struct NetConfig, "" {
        /// Convolutions before the hidden layers; "nature": those of Nature-DQN.
        ///
        /// Policy and value function share them; with SAC and TD3, the critics do, and the policy has its own. Observations are
        /// planes (channels, height, width).
        conv: Vec<[usize; 3]> = Vec::new(), Kind::Conv;
        /// Sizes of the hidden layers of each network.
        hidden: Vec<usize> = vec![64, 64], Kind::Sizes;
        /// Sizes of the hidden layers of value function or critics; left out: hidden.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        critic_hidden: Option<Vec<usize>> = None, Kind::Sizes;
        /// Activation after each hidden layer.
        ///
        /// gelu is approximated with tanh.
        activation: Activation = Activation::Tanh, Kind::Choice(&["tanh", "relu", "elu", "silu", "gelu"]);
        /// Normalizes the sums of each hidden layer before its activation.
        ///
        /// Each has a gain and an offset (Ba et al., "Layer normalization", 2016). Convolutions and memory have none.
        #[serde(default)]
        layer_norm: bool = false, Kind::Bool;
        /// Shares the hidden layers between policy and value function.
        shared_trunk: bool = false, Kind::Bool;
        /// Memory before the hidden layers, of PPO and A2C.
        ///
        /// Policy and value function have one each, or share one with shared_trunk = true. It is forgotten when an episode ends.
        /// A minibatch is made of whole columns of the rollout: its size is a multiple of n_steps.
        #[serde(default)]
        memory: MemoryKind = MemoryKind::None, Kind::Choice(&["none", "gru", "lstm"]);
        /// Outputs of the memory, and length of each vector of its state.
        #[serde(default = "NetConfig::memory_size")]
        memory_size: usize = 64, Kind::Int(1, settings::MAX_UNITS);
        /// Gradients stop at every multiple of this step; 0: at the rollout's first.
        ///
        /// That truncates the propagation through time.
        #[serde(default)]
        memory_horizon: usize = 0, Kind::Int(0, 1 << 24), resumable;
        /// Initial bias of the gate that keeps the memory's state.
        ///
        /// 1 remembers longer (Jozefowicz et al., "An empirical exploration of recurrent network architectures", 2015); 0 may
        /// learn sooner where little must be remembered.
        #[serde(default = "NetConfig::forget_bias")]
        forget_bias: f32 = 1.0, Kind::Float(-20.0, 20.0);
        /// Implementation of networks: fused: the tile kernel; reference: candle, slow.
        learner: LearnerKind = LearnerKind::Fused, Kind::Choice(&["fused", "reference"]);
        /// Precision of matrix products with learner = "reference"; all else is f32.
        ///
        /// Losses are scaled for f16.
        #[serde(default)]
        precision: Precision = Precision::F32, Kind::Choice(&["f32", "bf16", "f16"]), resumable;
        /// Draws orthogonal weights at the start, and biases of 0; false: uniform ones.
        ///
        /// Uniform weights and biases lie within 1 / sqrt(inputs), as PyTorch draws them.
        #[serde(default = "NetConfig::ortho_init")]
        ortho_init: bool = true, Kind::Bool;
        /// Initial logarithm of the standard deviations of continuous actions.
        log_std_init: f32 = 0.0, Kind::Float(-20.0, 20.0);
        /// Normalizes observations by their running mean and variance.
        normalize_obs: bool = false, Kind::Bool;
    }
}

impl NetConfig {
    /// Returns the sizes of the hidden layers of value function or critics.
    #[must_use]
    pub fn hidden_of_critic(&self) -> &[usize] {
        self.critic_hidden.as_deref().unwrap_or(&self.hidden)
    }

    /// Checks every range, and that learner, precision and layers fit.
    ///
    /// # Errors
    /// [`Error::Range`] or [`Error::Setting`] if a setting is not allowed.
    pub fn check(&self, obs: &Space) -> Result<(), Error> {
        settings::check(Self::KEYS, self)?;
        if self.precision != Precision::F32 && self.learner == LearnerKind::Fused {
            let allowed = "but the tile kernel computes in f32 only; leave it at f32, or set learner = \"reference\"";
            let value = self.precision.dtype().as_str().into();
            return Err(Error::Setting { name: "precision", value, allowed });
        }
        Encoder::new(&mut Layout::default(), obs, &self.conv, self.activation).map(|_| ())
    }

    /// Refuses memory, for the reason and with the way out of `allowed`.
    pub(crate) fn check_no_memory(&self, allowed: &'static str) -> Result<(), Error> {
        let value = format!("{:?}", self.memory).to_lowercase();
        if self.memory == MemoryKind::None { Ok(()) } else { Err(Error::Setting { name: "memory", value, allowed }) }
    }
}

/// Reason for which algorithms with a replay memory refuse a policy's memory.
pub(crate) const NO_MEMORY: &str = "but only PPO and A2C learn with memory; leave it at none";

/// Name, hidden layers without those of a trunk, and outputs of a network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadLayers<'a> {
    pub(crate) name: &'a str,
    pub(crate) hidden: &'a [usize],
    pub(crate) n_out: usize,
}

/// Layout of networks without parameters.
///
/// An encoder, memory, an optional trunk, heads.
#[derive(Debug)]
pub(crate) struct NetworkShape {
    pub(crate) layout: Layout,
    pub(crate) encoder: Encoder,
    /// Memory: a cell for each head, one that they share, or none.
    pub(crate) cells: Cells,
    trunk: Option<Mlp>,
    heads: Vec<Mlp>,
    /// True if first weights are orthogonal.
    ortho_init: bool,
}

impl NetworkShape {
    /// Lays out a network for each of `heads`.
    ///
    /// If `shared`, a trunk has the settings' hidden layers, and the heads have none.
    ///
    /// # Errors
    /// Errors of [`NetConfig::check`].
    pub(crate) fn new(obs: &Space, net: &NetConfig, heads: &[HeadLayers<'_>], shared: bool) -> Result<Self, Error> {
        net.check(obs)?;
        let mut layout = Layout::default();
        let encoder = Encoder::new(&mut layout, obs, &net.conv, net.activation)?;
        let remembers = net.memory != MemoryKind::None;
        let names = heads.iter().filter(|_| !shared).map(|head| format!("{}.memory", head.name));
        let names: Vec<_> = names.chain(shared.then(|| "memory".into())).filter(|_| remembers).collect();
        let (n_in, size) = (encoder.n_out(), net.memory_size);
        let cell = |name: &String| Cell::new(&mut layout, name, net.memory, n_in, size, net.forget_bias);
        let cells = Cells(names.iter().map(cell).collect());
        let n_in = if remembers { net.memory_size } else { encoder.n_out() };
        let hidden = Hidden { activation: net.activation, layer_norm: net.layer_norm };
        let mut mlp = |name: &str, sizes: &[&[usize]], trunk| Mlp::new(&mut layout, name, &sizes.concat(), hidden, trunk);
        let trunk = (shared && !net.hidden.is_empty()).then(|| mlp("trunk", &[&[n_in], &net.hidden], true));
        let last = net.hidden.last().filter(|_| shared).copied();
        let head = |&HeadLayers { name, hidden, n_out }: &HeadLayers<'_>| match last {
            Some(last) => mlp(name, &[&[last], &[n_out]], false),
            None => mlp(name, &[&[n_in], hidden, &[n_out]], false),
        };
        let heads = heads.iter().map(head).collect();
        Ok(Self { layout, encoder, cells, trunk, heads, ortho_init: net.ortho_init })
    }

    /// Hidden layers that all heads share, if there are any.
    pub(crate) fn trunk(&self) -> Option<&Mlp> {
        self.trunk.as_ref()
    }

    /// Networks of the heads.
    pub(crate) fn heads(&self) -> &[Mlp] {
        &self.heads
    }

    /// Returns the networks in the layouts of the kernel.
    pub(crate) fn kernel(&self, activation: Activation) -> Net {
        Net::new(&self.encoder, &self.cells, &self.mlps(), activation)
    }

    /// Returns the networks in order, each with the index of the one that it follows.
    pub(crate) fn mlps(&self) -> Vec<(&Mlp, Option<usize>)> {
        let from = self.trunk.as_ref().map(|_| 0);
        self.trunk.iter().map(|mlp| (mlp, None)).chain(self.heads.iter().map(|mlp| (mlp, from))).collect()
    }
}

/// Networks with one parameter vector.
#[derive(Debug)]
pub(crate) struct Network {
    /// Shared by all copies of a network.
    shape: Arc<NetworkShape>,
    params: Vec<f32>, // (P)
    obs_len: usize,
    scale: f32,
    normalizer: Option<Normalizer>,
    version: u64,
    kernel: Option<Kernel>,
    /// Steps that a gradient goes back through the memory; 0: all of a rollout.
    memory_horizon: usize,
    /// Precision of the reference learner.
    precision: Precision,
    /// Device of the reference learner.
    device: Device,
}

impl Network {
    /// Creates networks with zeros as parameters.
    pub(crate) fn unset(shape: NetworkShape, obs: &Space, net: &NetConfig) -> Self {
        let params = vec![0.0; shape.layout.len()];
        let kernel = match net.learner {
            LearnerKind::Fused => Some(Kernel::new(shape.kernel(net.activation), &params)),
            LearnerKind::Reference => None,
        };
        let normalizer = net.normalize_obs.then(|| Normalizer::new(obs));
        let (obs_len, scale) = (obs.len(), obs.scale());
        Self {
            shape: Arc::new(shape),
            params,
            obs_len,
            scale,
            normalizer,
            version: 0,
            kernel,
            memory_horizon: net.memory_horizon,
            precision: net.precision,
            device: Device::Cpu,
        }
    }

    /// Draws weights and biases.
    ///
    /// The gain of orthogonal weights is sqrt(2) in hidden layers and that of `gains` in the last layer of each head.
    pub(crate) fn init(&mut self, gains: &[f32], seed: u64) {
        let Self { shape, params, .. } = self;
        let NetworkShape { encoder, cells, trunk, heads, ortho_init, .. } = &**shape;
        let init = Initialization { ortho: *ortho_init, seed };
        encoder.init(params, init);
        let mut index = encoder.n_layers();
        for cell in &cells.0 {
            cell.init(params, init, index);
            index += cell.layers().count() as u32;
        }
        let trunk = trunk.iter().map(|mlp| (mlp, std::f32::consts::SQRT_2));
        for (mlp, gain) in trunk.chain(heads.iter().zip(gains.iter().copied())) {
            mlp.init(params, gain, init, index);
            index += mlp.n_layers();
        }
        self.pack(Threads::of(&Pool::default()));
    }

    /// Replaces the instruction set, which this machine has.
    #[cfg(test)]
    pub(crate) fn set_isa(&mut self, isa: rl_envs::Isa) {
        self.kernel.iter_mut().for_each(|kernel| kernel.isa = isa);
    }

    pub(crate) fn learner(&self) -> LearnerKind {
        if self.kernel.is_some() { LearnerKind::Fused } else { LearnerKind::Reference }
    }

    /// Precision of the reference learner.
    pub(crate) fn precision(&self) -> Precision {
        self.precision
    }

    /// Device of the reference learner.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Moves the reference learner to a GPU.
    ///
    /// Returns false for the tile kernel, and for the emulated device, which candle does not know.
    ///
    /// # Errors
    /// Errors of [`candle_device`].
    pub(crate) fn move_to(&mut self, device: &rl_cuda::Device) -> Result<bool, Error> {
        if self.kernel.is_some() || device.is_emulated() {
            return Ok(false);
        }
        self.device = candle_device(device.ordinal())?;
        Ok(true)
    }

    pub(crate) fn shape(&self) -> &NetworkShape {
        &self.shape
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.shape.layout
    }

    pub(crate) fn params(&self) -> &[f32] {
        &self.params
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn obs_len(&self) -> usize {
        self.obs_len
    }

    /// Categories among the elements of an observation, if there are any.
    pub(crate) fn categories(&self) -> Option<&Categories> {
        self.shape.encoder.categories().map(|categories| &**categories)
    }

    /// Factor that bytes of observations are multiplied by.
    pub(crate) fn obs_scale(&self) -> f32 {
        self.scale
    }

    /// True if the heads follow a trunk.
    pub(crate) fn has_trunk(&self) -> bool {
        self.shape.trunk.is_some()
    }

    /// Returns the kernel's chain of a head.
    #[inline(always)]
    pub(crate) fn chain(&self, head: usize) -> usize {
        head + usize::from(self.shape.trunk.is_some())
    }

    /// Makes the network one through which nothing goes back, such as a target network.
    pub(crate) fn only_forward(&mut self) {
        self.kernel.iter_mut().for_each(|kernel| kernel.net.goes_back = false);
    }

    /// Changes the parameters, and with them the version.
    pub(crate) fn change<R>(&mut self, f: impl FnOnce(&mut [f32]) -> R) -> R {
        self.change_on(Threads::of(&Pool::default()), f)
    }

    /// Changes the parameters as [`Network::change`] does, on several threads.
    pub(crate) fn change_on<R>(&mut self, threads: Threads<'_>, f: impl FnOnce(&mut [f32]) -> R) -> R {
        let result = f(&mut self.params);
        self.version += 1;
        self.pack(threads);
        result
    }

    /// Replaces parameters and version.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if the number of parameters differs.
    pub(crate) fn set_params(&mut self, params: &[f32], version: u64) -> Result<(), Error> {
        if params.len() != self.params.len() {
            let (found, expected) = (params.len(), self.params.len());
            return Err(Error::Snapshot(format!("it has {found} parameters, this network has {expected}")));
        }
        self.params.copy_from_slice(params);
        self.version = version;
        self.pack(Threads::of(&Pool::default()));
        Ok(())
    }

    /// Replaces the version, for parameters that follow.
    pub(crate) fn set_version(&mut self, version: u64) {
        self.version = version;
    }

    fn pack(&mut self, threads: Threads<'_>) {
        if let Some(kernel) = &mut self.kernel {
            kernel.pack(&self.params, threads);
        }
    }

    /// Running statistics of observations, if they are normalized.
    pub(crate) fn obs_moments(&self) -> Option<&Moments> {
        self.normalizer.as_ref().map(Normalizer::moments)
    }

    pub(crate) fn normalizer(&self) -> Option<&Normalizer> {
        self.normalizer.as_ref()
    }

    /// Adds a rollout's observations to the statistics, if they are normalized.
    ///
    /// The version changes, because the outputs do.
    pub(crate) fn merge_obs(&mut self, rollout: &Rollout, pool: &Pool) {
        if let Some(normalizer) = &mut self.normalizer {
            normalizer.merge(rollout, self.scale, pool);
            self.version += 1;
        }
    }

    /// [`Network::merge_obs`] of moments by slices of environments.
    pub(crate) fn merge_moments(&mut self, slices: &[Moments]) {
        if let Some(normalizer) = &mut self.normalizer {
            normalizer.merge_slices(slices);
            self.version += 1;
        }
    }

    /// Floating-point operations of learning from one sample.
    ///
    /// Forward, gradients of the weights, and gradients of the inputs except for the first layers count two for each product.
    pub(crate) fn flops_per_sample(&self) -> usize {
        let weights = |layer: &Linear| layer.weight.len();
        let NetworkShape { encoder, cells, trunk, heads, .. } = &*self.shape;
        let of_cells = cells.0.iter().flat_map(Cell::layers);
        let dense: usize = of_cells.chain(trunk.iter().chain(heads).flat_map(Mlp::layers)).map(|layer| 6 * weights(layer)).sum();
        let [convolutions, of_pictures] = encoder.products();
        let of_first = match trunk {
            _ if encoder.has_convs() => of_pictures,
            _ if !cells.0.is_empty() => cells.0.iter().flat_map(|cell| &cell.inputs).map(weights).sum(),
            Some(trunk) => weights(&trunk.layers()[0]),
            None => heads.iter().map(|mlp| weights(&mlp.layers()[0])).sum(),
        };
        // Of the weights of a category, those of one row are read and get a gradient.
        let used = match encoder.categories() {
            Some(categories) if !encoder.has_convs() => of_first / encoder.n_out() * categories.n_elements(),
            _ => of_first,
        };
        6 * convolutions + dense - 6 * of_first + 4 * used
    }

    /// Computes the outputs (B, out) of each head with candle operations.
    ///
    /// Observations (B, D) are scaled and normalized. Gradients flow to `params` (P). The network has no memory.
    pub(crate) fn forward(&self, params: &Tensor, obs: &Tensor) -> candle_core::Result<Vec<Tensor>> {
        let features = self.encoded(params, obs)?;
        self.of_heads(params, &features, |_| &features)
    }

    /// [`Network::forward`] of sequences, with their last states (C, S).
    ///
    /// For a network with memory; the samples (T C) are time-major.
    pub(crate) fn forward_sequences(
        &self,
        params: &Tensor,
        obs: &Tensor,
        sequences: &TensorSequences,
    ) -> candle_core::Result<(Vec<Tensor>, Tensor)> {
        let cells = &self.shape.cells;
        let (outputs, states) = cells.forward(params, &self.encoded(params, obs)?, sequences, self.precision)?;
        Ok((self.of_heads(params, &outputs[0], |head| &outputs[cells.of_head(head)])?, states))
    }

    /// Computes the features of observations.
    fn encoded(&self, params: &Tensor, obs: &Tensor) -> candle_core::Result<Tensor> {
        self.shape.encoder.forward(params, obs, self.precision)
    }

    /// Computes the outputs of each head, of its own `inputs`.
    ///
    /// With a trunk, of what it makes of `common`.
    fn of_heads<'a>(
        &self,
        params: &Tensor,
        common: &Tensor,
        inputs: impl Fn(usize) -> &'a Tensor,
    ) -> candle_core::Result<Vec<Tensor>> {
        let NetworkShape { trunk, heads, .. } = &*self.shape;
        let common = trunk.as_ref().map(|trunk| trunk.forward(params, common, self.precision)).transpose()?;
        let of_head = |(i, head): (usize, &Mlp)| head.forward(params, common.as_ref().unwrap_or(inputs(i)), self.precision);
        heads.iter().enumerate().map(of_head).collect()
    }

    /// Number of elements of the memory's state.
    pub(crate) fn state_len(&self) -> usize {
        self.shape.cells.state_len()
    }

    /// Steps that a gradient goes back through the memory; 0: all of a rollout.
    pub(crate) fn memory_horizon(&self) -> usize {
        self.memory_horizon
    }

    /// Returns the kernel with the current parameters, if it is the learner.
    pub(crate) fn kernel(&self) -> Option<PackedNet<'_>> {
        self.kernel.as_ref().map(Kernel::view)
    }

    /// Cuts n rows into slices for the threads of `pool`.
    ///
    /// `part` cuts the outputs of the next rows off; `work` gets the range of a slice, its outputs and scratch memory.
    pub(crate) fn each_slice<T: Send>(
        &self,
        n: usize,
        pool: &Pool,
        scratches: &mut Vec<Scratch>,
        mut part: impl FnMut(usize) -> T,
        work: &(impl Fn(Range<usize>, &mut T, &mut Scratch) -> Result<(), Error> + Sync),
    ) -> Result<(), Error> {
        let convolves = self.kernel.as_ref().is_some_and(|kernel| kernel.net.convolves());
        let mut all = Vec::with_capacity(MAX_SLICES);
        for (i, range) in pool::slices(n, MAX_SLICES, slices::least(n, convolves)).enumerate() {
            if scratches.len() == i {
                scratches.push(Scratch::default());
            }
            let len = range.len();
            all.push((range, part(len), Ok(())));
        }
        let mut all: Vec<_> = all.into_iter().zip(scratches).collect();
        pool.each(&mut all, &|((range, part, result), scratch)| *result = work(range.clone(), part, scratch));
        all.into_iter().try_for_each(|((.., result), _)| result)
    }

    /// Wraps observations as samples for the kernel.
    pub(crate) fn samples<'a>(&'a self, obs: ObsSlice<'a>, rows: Option<&'a [u32]>) -> Samples<'a> {
        Samples { obs, scale: self.scale, normalizer: self.normalizer.as_ref(), rows, sequences: None }
    }

    /// Returns the parameters as a tensor without gradient.
    pub(crate) fn params_tensor(&self) -> candle_core::Result<Tensor> {
        Tensor::from_slice(&self.params, self.params.len(), &self.device)
    }

    /// Returns observations (B, D), scaled and normalized.
    pub(crate) fn features(&self, obs: ObsSlice<'_>) -> candle_core::Result<Tensor> {
        let mut features = Vec::new();
        self.push_features(obs, &mut features);
        let n = features.len() / self.obs_len;
        Tensor::from_vec(features, (n, self.obs_len), &self.device)
    }

    /// Appends observations, scaled and normalized.
    pub(crate) fn push_features(&self, obs: ObsSlice<'_>, features: &mut Vec<f32>) {
        let begin = features.len();
        match obs {
            ObsSlice::F32(obs) => features.extend_from_slice(obs),
            ObsSlice::U8(obs) => features.extend(obs.iter().map(|&x| f32::from(x) * self.scale)),
        }
        if let Some(normalizer) = &self.normalizer {
            features[begin..].chunks_exact_mut(self.obs_len).for_each(|row| normalizer.apply(0, row));
        }
    }

    /// Returns the memory to act with, for `n_actions` outputs.
    pub(crate) fn tile_scratch<'a>(&self, scratch: &'a mut Scratch, n_actions: usize) -> &'a mut TileScratch {
        let scratch: &mut TileScratch = scratch.get();
        if !scratch.shape.as_ref().is_some_and(|shape| Arc::ptr_eq(shape, &self.shape)) {
            let columns = vec![0.0; n_actions * TILE];
            *scratch = TileScratch {
                shape: Some(self.shape.clone()),
                workspace: self.kernel.as_ref().map(|kernel| Workspace::forward(&kernel.net)),
                outputs: columns.clone(),
                row: vec![0.0; n_actions],
                chosen: columns,
                states: Vec::new(),
            };
        }
        scratch
    }

    /// Returns parameters, version and statistics.
    pub(crate) fn weights(&self) -> Weights<'_> {
        Weights { version: self.version, params: Cow::Borrowed(&self.params), obs: self.obs_moments() }
    }

    /// Loads parameters, statistics and version from a snapshot.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if they do not fit; nothing has changed then.
    pub(crate) fn load(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let mut normalizer = self.normalizer.clone();
        let fits = match (&mut normalizer, &snapshot.statistics.obs) {
            (Some(normalizer), Some(moments)) => normalizer.set(moments),
            (None, None) => true,
            _ => false,
        };
        if !fits {
            return Err(Error::Snapshot("the statistics of its observations are not those that this policy keeps".into()));
        }
        self.set_params(&snapshot.params, snapshot.counters.version)?;
        self.normalizer = normalizer;
        Ok(())
    }
}

impl Clone for Network {
    fn clone(&self) -> Self {
        Self {
            shape: self.shape.clone(),
            params: self.params.clone(),
            obs_len: self.obs_len,
            scale: self.scale,
            normalizer: self.normalizer.clone(),
            version: self.version,
            kernel: self.kernel.clone(),
            memory_horizon: self.memory_horizon,
            precision: self.precision,
            device: self.device.clone(),
        }
    }

    /// Copies without allocating if one network is a copy of the other.
    fn clone_from(&mut self, source: &Self) {
        if !Arc::ptr_eq(&self.shape, &source.shape) {
            *self = source.clone();
            return;
        }
        self.params.copy_from_slice(&source.params);
        self.version = source.version;
        self.device = source.device.clone();
        if let (Some(normalizer), Some(source)) = (&mut self.normalizer, &source.normalizer) {
            normalizer.copy_from(source);
        }
        if let (Some(kernel), Some(source)) = (&mut self.kernel, &source.kernel) {
            kernel.copy_from(source);
        }
    }
}

/// Memory of an acting network.
#[derive(Debug, Default)]
pub(crate) struct TileScratch {
    /// Shape of the network that the memory fits.
    shape: Option<Arc<NetworkShape>>,
    pub(crate) workspace: Option<Workspace>,
    pub(crate) outputs: Vec<f32>, // (A, TILE)
    pub(crate) row: Vec<f32>,     // (A), of discrete actions
    pub(crate) chosen: Vec<f32>,  // (A, TILE), of continuous ones
    pub(crate) states: Vec<f32>,  // (N, S), where those of the caller must stay
}

/// Passes the outputs (n, A) of candle operations to `choose`, tile by tile.
///
/// The outputs of a tile are columns (A, m), like the kernel's.
pub(crate) fn each_reference_tile(
    outputs: &Tensor,
    n: usize,
    choose: &mut impl FnMut(Range<usize>, &mut [f32]),
) -> candle_core::Result<()> {
    let all = outputs.t()?.contiguous()?.to_vec2::<f32>()?;
    for start in (0..n).step_by(TILE) {
        let range = start..(start + TILE).min(n);
        let mut columns: Vec<f32> = all.iter().flat_map(|column| &column[range.clone()]).copied().collect();
        choose(range, &mut columns);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rl_envs::{ActionSpace, Space};

    use super::NetConfig;
    use crate::ActorCritic;
    use crate::network::recurrent::MemoryKind;

    #[test]
    fn uniform_parameters_of_all_layers_fill_the_ranges_of_pytorch_s() {
        let net = NetConfig {
            conv: vec![[16, 3, 1], [24, 2, 1]],
            hidden: vec![60, 50],
            layer_norm: true,
            memory: MemoryKind::Gru,
            memory_size: 40,
            forget_bias: 0.0,
            ortho_init: false,
            ..NetConfig::default()
        };
        let (space, actions) = (Space::bytes(&[3, 8, 8], 1, 1.0), ActionSpace::Discrete { n: 5, masked: false });
        let policy = ActorCritic::new(&space, &actions, &net, 3).unwrap();
        let (params, tensors) = (policy.params(), policy.layout().tensors());
        let layers: Vec<_> = tensors.windows(2).filter(|pair| pair[0].shape.len() > 1).collect();
        assert_eq!(layers.len(), 2 + 2 * 6 + 2 * 3, "convolutions, gates and layers of actor and critic");
        for pair in layers {
            let n_in = match &pair[0].shape[..] {
                [_, n_in, height, width] => n_in * height * width,
                _ if pair[0].name.contains("memory") => net.memory_size,
                shape => shape[0],
            };
            let bound = (n_in as f32).sqrt().recip();
            for tensor in pair {
                let of = &params[tensor.range.clone()];
                let max = of.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
                assert!(max <= bound && (max > 0.8 * bound || of.len() < 16), "{} {max} {bound}", tensor.name);
                assert!(of.iter().all(|x| *x != 0.0), "{}", tensor.name);
            }
        }
        let gains = tensors.iter().filter(|tensor| tensor.name.ends_with("norm.weight"));
        assert!(gains.flat_map(|tensor| &params[tensor.range.clone()]).all(|gain| *gain == 1.0));
    }
}
