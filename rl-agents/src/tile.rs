//! The network kernel: a tile of samples goes forward through the networks, through a loss, and backward, without leaving the
//! cache.
//!
//! Networks are chains of dense layers over the flat parameter vector; a chain starts at the observation, at the features that
//! convolutions make of it, or at the output of another (a shared trunk). Every product, forward and backward, is one function,
//! `C (m, n) += A (m, k) B (k, n)`: rows of B and C are vectors, A is read element by element with free offsets, so that it serves
//! `x W`, `dz W^T` (with a transposed copy of W) and `x^T dz` (with the offsets of x swapped) alike. Its inner block keeps 6 rows
//! by 64 columns in registers (AVX-512; 6 by 16
//! with AVX2). Layers are padded to 16 columns; layers with few outputs get their gradient transposed, which pads less.
//!
//! The order of operations for one output element depends on nothing but the layer: not on the rows around it, not on threads.
//! So acting and learning see the same bits, and the ratio of a policy to itself is exactly 1. A batch is cut into fixed slices,
//! whose gradients are summed in order. Only the instruction set changes the bits: with fused multiply-add or without.
#![allow(unsafe_code)]

use std::ops::Range;

use rl_buffer::ObsSlice;
use rl_envs::Pool;
use rl_envs::isa::{Isa, Work, dispatch};

use crate::conv::{Conv, Space, Stage};
use crate::mlp::{Activation, Mlp};
use crate::normalize::Normalizer;

/// Samples that go through the networks together.
pub(crate) const TILE: usize = 96;
/// Columns are padded to multiples of this.
const LANES: usize = 16;
/// A batch is cut into at most this many slices, whose gradients are summed in order.
const MAX_SLICES: usize = 16;
/// A slice has at least so many samples: below, summing its gradient costs more than another thread gains.
const MIN_SLICE: usize = 64;
/// Sums of more than [`TILE`] terms are made of sums of so many.
const TERMS: usize = 32;

/// Floating-point operations of one round of [`multiply_adds`].
pub const ROUND_FLOPS: u64 = 2 * 8 * 64;

/// `rounds` times 8 independent multiply-adds of 64 numbers: what the machine can do, to compare the kernel with. Returns something
/// that depends on all of them.
#[must_use]
pub fn multiply_adds(isa: Isa, rounds: u64) -> f32 {
    struct Spin(u64);
    impl Work for Spin {
        type Output = f32;
        #[inline(always)]
        fn run<const FMA: bool, const ROWS: usize, const WIDE: usize>(self) -> f32 {
            let mut sums = [[1.0f32; WIDE]; ROWS];
            let (a, b, c) = std::hint::black_box(([0.999f32; ROWS], [1e-3f32; WIDE], 1e-3));
            for _ in 0..self.0 * (8 * 64) / (ROWS * WIDE) as u64 {
                for (sums, &a) in sums.iter_mut().zip(&a) {
                    // Which of the two the compiler keeps in registers depends on their number.
                    if WIDE == 64 {
                        sums.iter_mut().for_each(|sum| *sum = multiply_add::<FMA>(*sum, a, c));
                    } else {
                        sums.iter_mut().zip(&b).for_each(|(sum, &b)| *sum = multiply_add::<FMA>(*sum, a, b));
                    }
                }
            }
            sums.iter().flatten().sum()
        }
    }
    dispatch(isa, Spin(rounds))
}

pub(crate) fn pad(n: usize) -> usize {
    n.next_multiple_of(LANES)
}

/// Makes an array `more` longer, and returns where that begins.
pub(crate) fn take(len: &mut usize, more: usize) -> usize {
    std::mem::replace(len, *len + more)
}

/// One dense layer and where its parts lie.
#[derive(Clone, Debug)]
struct Dense {
    /// Inputs as they lie.
    n_in: usize,
    n_out: usize,
    /// Inputs lie in runs of how many: real and padded. One run, but for the channels of a convolution's positions.
    runs: (usize, usize),
    /// In the flat parameter vector: (in, out).
    weight: Range<usize>,
    bias: Range<usize>,
    /// In the packed parameters: (in, padded out), (padded out), and the transpose (out, padded in).
    packed_weight: usize,
    packed_bias: usize,
    packed_transpose: usize,
    /// In the gradient: (in, padded out), or (out, padded in) if `transposed`; and (padded out).
    grad_weight: usize,
    grad_bias: usize,
    transposed: bool,
    /// Where its outputs begin among those of all layers, in columns.
    column: usize,
}

impl Dense {
    fn in_pad(&self) -> usize {
        pad(self.n_in)
    }

    fn out_pad(&self) -> usize {
        pad(self.n_out)
    }

    /// Rows of the flat weight, and which input is the first of each run of them.
    fn runs<'a>(&self, weight: &'a [f32]) -> impl Iterator<Item = (usize, &'a [f32])> {
        let (real, padded) = self.runs;
        weight.chunks(real * self.n_out).enumerate().map(move |(i, run)| (i * padded, run))
    }

    /// Its outputs for a tile, (TILE, padded out).
    fn outputs(&self) -> Range<usize> {
        self.column * TILE..(self.column + self.out_pad()) * TILE
    }
}

#[derive(Clone, Debug)]
struct Chain {
    layers: Range<usize>,
    /// The chain whose output this one starts from; the observation if none.
    from: Option<usize>,
    /// Whether the activation follows the last layer too, as in a trunk.
    activated: bool,
}

/// Networks, ready for the kernel.
#[derive(Clone, Debug)]
pub(crate) struct Net {
    conv: Option<Stage>,
    layers: Vec<Dense>,
    chains: Vec<Chain>,
    activation: Activation,
    /// Inputs of the chains that start from no other: the observation, or features as they lie.
    n_in: usize,
    columns: usize,
    packed_len: usize,
    grad_len: usize,
}

impl Net {
    /// The networks `mlps`, each with the index of the one that it starts from, if it is not the features of `conv` (without
    /// layers: the observation). A network that another starts from has its activation after its last layer too.
    pub(crate) fn new(conv: &Conv, mlps: &[(&Mlp, Option<usize>)], activation: Activation) -> Self {
        let (mut packed_len, mut grad_len) = (0, 0);
        let conv = Stage::new(conv, &mut packed_len, &mut grad_len);
        let n_in = conv.as_ref().map_or(mlps[0].0.layers()[0].n_in, |conv| conv.features().0);
        let (layers, chains) = (Vec::new(), Vec::new());
        let mut net = Self { conv, layers, chains, activation, n_in, columns: 0, packed_len, grad_len };
        for (mlp, from) in mlps {
            let first = net.layers.len();
            for linear in mlp.layers() {
                let starts = from.is_none() && net.layers.len() == first;
                let plain = (linear.n_in, (linear.n_in, pad(linear.n_in)));
                let (n_in, runs) = net.conv.as_ref().filter(|_| starts).map_or(plain, Stage::features);
                let n_out = linear.n_out;
                let transposed = n_out * pad(n_in) < n_in * pad(n_out);
                let packed_weight = take(&mut net.packed_len, n_in * pad(n_out));
                let packed_bias = take(&mut net.packed_len, pad(n_out));
                let packed_transpose = take(&mut net.packed_len, n_out * pad(n_in));
                let size = if transposed { n_out * pad(n_in) } else { n_in * pad(n_out) };
                let grad_weight = take(&mut net.grad_len, size);
                let grad_bias = take(&mut net.grad_len, pad(n_out));
                let (weight, bias) = (linear.weight.clone(), linear.bias.clone());
                let column = net.columns;
                net.columns += pad(n_out);
                net.layers.push(Dense {
                    n_in,
                    n_out,
                    runs,
                    weight,
                    bias,
                    packed_weight,
                    packed_bias,
                    packed_transpose,
                    grad_weight,
                    grad_bias,
                    transposed,
                    column,
                });
            }
            net.chains.push(Chain { layers: first..net.layers.len(), from: *from, activated: mlp.is_trunk() });
        }
        net
    }

    /// Copies the parameters into the forms that the kernel reads.
    pub(crate) fn pack(&self, params: &[f32], packed: &mut Vec<f32>) {
        packed.resize(self.packed_len, 0.0);
        if let Some(conv) = &self.conv {
            conv.pack(params, packed);
        }
        for layer in &self.layers {
            let (n_in, n_out, in_pad, out_pad) = (layer.n_in, layer.n_out, layer.in_pad(), layer.out_pad());
            let weight = &params[layer.weight.clone()];
            let to = &mut packed[layer.packed_weight..][..n_in * out_pad];
            for (first, run) in layer.runs(weight) {
                for (to, from) in to[first * out_pad..].chunks_exact_mut(out_pad).zip(run.chunks_exact(n_out)) {
                    to[..n_out].copy_from_slice(from);
                }
            }
            packed[layer.packed_bias..][..n_out].copy_from_slice(&params[layer.bias.clone()]);
            let to = &mut packed[layer.packed_transpose..][..n_out * in_pad];
            for (first, run) in layer.runs(weight) {
                // A few rows at a time stay in the cache while their columns are read.
                for (rows, first) in run.chunks(LANES * n_out).zip((first..).step_by(LANES)) {
                    for (j, row) in to.chunks_exact_mut(in_pad).enumerate() {
                        row[first..].iter_mut().zip(rows[j..].iter().step_by(n_out)).for_each(|(to, &from)| *to = from);
                    }
                }
            }
        }
    }

    /// Adds a slice's gradient to the flat one.
    #[inline(always)]
    fn add_gradient(&self, grads: &[f32], flat: &mut [f32]) {
        if let Some(conv) = &self.conv {
            conv.add_gradient(grads, flat);
        }
        for layer in &self.layers {
            let ((real, padded), n_out, in_pad, out_pad) = (layer.runs, layer.n_out, layer.in_pad(), layer.out_pad());
            let from = &grads[layer.grad_weight..];
            for (i, to) in flat[layer.weight.clone()].chunks_mut(real * n_out).enumerate() {
                let first = i * padded;
                if layer.transposed {
                    for (i, to) in to.chunks_exact_mut(n_out).enumerate() {
                        to.iter_mut().enumerate().for_each(|(j, to)| *to += from[j * in_pad + first + i]);
                    }
                } else {
                    for (to, from) in to.chunks_exact_mut(n_out).zip(from[first * out_pad..].chunks_exact(out_pad)) {
                        to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
                    }
                }
            }
            let to = &mut flat[layer.bias.clone()];
            to.iter_mut().zip(&grads[layer.grad_bias..][..n_out]).for_each(|(to, from)| *to += from);
        }
    }

    /// Lengths of what it takes.
    pub(crate) fn lens(&self) -> Lens {
        let conv = |learning| self.conv.as_ref().map_or(0, |conv| conv.space_len(learning));
        let forward = TILE * (pad(self.n_in) + self.columns);
        let features = if self.conv.is_some() { TILE * self.n_in } else { 0 };
        let gradients = TILE * self.widest() * (self.chains.len() + 1) + features + self.grad_len;
        Lens { packed: self.packed_len, forward: forward + conv(false), learning: forward + conv(true) + gradients }
    }

    fn widest(&self) -> usize {
        self.layers.iter().map(|layer| layer.in_pad().max(layer.out_pad())).max().unwrap_or(LANES)
    }
}

/// Numbers of the packed parameters, and of a workspace to act with and to learn with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lens {
    pub(crate) packed: usize,
    pub(crate) forward: usize,
    pub(crate) learning: usize,
}

/// Networks with an instruction set to run them with and their parameters as they are now.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) isa: Isa,
    pub(crate) net: Net,
    packed: Vec<f32>,
}

impl Kernel {
    pub(crate) fn new(net: Net, params: &[f32]) -> Self {
        let mut kernel = Self { isa: Isa::best(), net, packed: Vec::new() };
        kernel.pack(params);
        kernel
    }

    /// Takes other parameters.
    pub(crate) fn pack(&mut self, params: &[f32]) {
        self.net.pack(params, &mut self.packed);
    }

    /// As functions of this file take it.
    pub(crate) fn view(&self) -> (Isa, &Net, &[f32]) {
        (self.isa, &self.net, &self.packed)
    }
}

/// The samples of a batch: which rows of which observations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Samples<'a> {
    /// All observations, D elements each.
    pub(crate) obs: ObsSlice<'a>,
    /// What a byte is multiplied by.
    pub(crate) scale: f32,
    /// What normalizes them, after that.
    pub(crate) normalizer: Option<&'a Normalizer>,
    /// The rows of the samples; all rows in their order if there are none.
    pub(crate) rows: Option<&'a [u32]>,
}

impl Samples<'_> {
    /// Copies the observations of samples `range` into rows of `stride`.
    #[inline(always)]
    pub(crate) fn copy(&self, range: Range<usize>, d: usize, stride: usize, to: &mut [f32]) {
        for (to, sample) in to.chunks_exact_mut(stride).zip(range) {
            let row = self.rows.map_or(sample, |rows| rows[sample] as usize);
            match self.obs {
                ObsSlice::F32(obs) => to[..d].copy_from_slice(&obs[row * d..][..d]),
                ObsSlice::U8(obs) => {
                    to[..d].iter_mut().zip(&obs[row * d..][..d]).for_each(|(to, &x)| *to = f32::from(x) * self.scale);
                }
            }
            if let Some(normalizer) = self.normalizer {
                normalizer.apply(&mut to[..d]);
            }
        }
    }
}

/// What one thread needs to put tiles through the networks.
#[derive(Clone, Debug)]
pub(crate) struct Workspace {
    inputs: Vec<f32>, // (TILE, padded D), or features as they lie
    conv: Option<Space>,
    outputs: Vec<f32>,        // every layer's, (TILE, padded out)
    out_grads: Vec<Vec<f32>>, // every chain's, (TILE, widest)
    delta: Vec<f32>,          // (TILE, widest)
    input_grads: Vec<f32>,    // (TILE, features), if there are convolutions
    grads: Vec<f32>,
}

impl Workspace {
    /// For acting only.
    pub(crate) fn forward(net: &Net) -> Self {
        Self {
            inputs: vec![0.0; TILE * pad(net.n_in)],
            conv: net.conv.as_ref().map(|conv| conv.space(false)),
            outputs: vec![0.0; TILE * net.columns],
            out_grads: Vec::new(),
            delta: Vec::new(),
            input_grads: Vec::new(),
            grads: Vec::new(),
        }
    }

    fn learning(net: &Net) -> Self {
        let widest = vec![0.0; TILE * net.widest()];
        let out_grads = vec![widest.clone(); net.chains.len()];
        let conv = net.conv.as_ref().map(|conv| conv.space(true));
        let input_grads = vec![0.0; if conv.is_some() { TILE * net.n_in } else { 0 }];
        Self { out_grads, delta: widest, conv, input_grads, grads: vec![0.0; net.grad_len], ..Self::forward(net) }
    }
}

/// A tile on its way: what the networks gave, and where the loss writes the gradient.
pub(crate) struct Tile<'a> {
    net: &'a Net,
    outputs: &'a [f32],
    out_grads: &'a mut [Vec<f32>],
    samples: Range<usize>,
}

impl Tile<'_> {
    /// Which samples of the batch it holds.
    pub(crate) fn samples(&self) -> Range<usize> {
        self.samples.clone()
    }

    /// Copies output `j` of chain `chain`, one number a sample.
    #[inline(always)]
    pub(crate) fn column(&self, chain: usize, j: usize, to: &mut [f32]) {
        let layer = &self.net.layers[self.net.chains[chain].layers.end - 1];
        let outputs = &self.outputs[layer.outputs()];
        to.iter_mut().zip(outputs.chunks_exact(layer.out_pad())).for_each(|(to, row)| *to = row[j]);
    }

    /// Sets the gradient of the loss with respect to output `j` of chain `chain`. Every output of every chain that no other
    /// starts from has to be set.
    #[inline(always)]
    pub(crate) fn set_grad(&mut self, chain: usize, j: usize, from: &[f32]) {
        let stride = self.net.layers[self.net.chains[chain].layers.end - 1].out_pad();
        self.out_grads[chain].chunks_exact_mut(stride).zip(from).for_each(|(row, &from)| row[j] = from);
    }
}

/// Whoever sees every tile between forward and backward. See [`Work`] for why this is no closure.
pub(crate) trait EachTile {
    /// Reads the outputs; if the tile goes backward, sets their gradients. To be `inline(always)` where it counts.
    fn tile(&mut self, tile: &mut Tile<'_>);
}

impl<F: FnMut(&mut Tile<'_>)> EachTile for F {
    #[inline(always)]
    fn tile(&mut self, tile: &mut Tile<'_>) {
        self(tile);
    }
}

/// What a loss counts up over the tiles of a slice.
pub(crate) trait Stats: Default + Clone + Send {
    /// Begins at zero, keeping its memory.
    fn reset(&mut self);
}

impl Stats for () {
    fn reset(&mut self) {}
}

/// A loss: sets the gradients of a tile's outputs and adds to the statistics `S`.
pub(crate) trait TileLoss<S>: Sync {
    /// To be `inline(always)`.
    fn tile(&self, tile: &mut Tile<'_>, stats: &mut S);
}

/// A loss with the statistics of one slice.
struct Counted<'a, L, S> {
    loss: &'a L,
    stats: &'a mut S,
}

impl<S, L: TileLoss<S>> EachTile for Counted<'_, L, S> {
    #[inline(always)]
    fn tile(&mut self, tile: &mut Tile<'_>) {
        self.loss.tile(tile, self.stats);
    }
}

/// The parts of a batch that are worked on at the same time, each with the statistics `S` of its loss.
pub(crate) struct Slices<S> {
    slices: Vec<(Workspace, Range<usize>, S)>,
}

impl<S: Stats> Slices<S> {
    /// For batches of up to any size.
    pub(crate) fn new() -> Self {
        Self { slices: Vec::new() }
    }

    /// Writes the gradient (P) of the summed loss of `n` samples, and returns each slice's statistics in order. `loss` is called
    /// for every tile.
    pub(crate) fn gradient<'s, L: TileLoss<S>>(
        &'s mut self,
        (isa, net, packed): (Isa, &Net, &[f32]),
        samples: Samples<'_>,
        n: usize,
        pool: &Pool,
        loss: &L,
        gradient: &mut [f32],
    ) -> impl Iterator<Item = &'s S> + use<'s, S, L> {
        let count = (n / MIN_SLICE).clamp(1, MAX_SLICES);
        let count = 1 << count.ilog2(); // so that two, four or eight threads have the same to do
        while self.slices.len() < count {
            self.slices.push((Workspace::learning(net), 0..0, S::default()));
        }
        let slices = &mut self.slices[..count];
        for (i, (_, range, _)) in slices.iter_mut().enumerate() {
            *range = i * n / count..(i + 1) * n / count;
        }
        pool.each(slices, &|(workspace, range, stats)| {
            stats.reset();
            let each = Counted { loss, stats };
            dispatch(isa, Pass { net, packed, samples, range: range.clone(), workspace, each, skip: None, backward: true });
        });
        dispatch(isa, Sum { net, slices: &self.slices[..count], gradient });
        self.slices[..count].iter().map(|(.., stats)| stats)
    }
}

/// The sum of the slices' gradients, in order.
struct Sum<'a, S> {
    net: &'a Net,
    slices: &'a [(Workspace, Range<usize>, S)],
    gradient: &'a mut [f32],
}

impl<S> Work for Sum<'_, S> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool, const ROWS: usize, const WIDE: usize>(self) {
        self.gradient.fill(0.0);
        for (workspace, ..) in self.slices {
            self.net.add_gradient(&workspace.grads, self.gradient);
        }
    }
}

/// Puts samples through the networks, but not through chain `skip`, from which no other starts; `read` sees every tile.
pub(crate) fn forward<F: EachTile>(
    (isa, net, packed): (Isa, &Net, &[f32]),
    samples: Samples<'_>,
    n: usize,
    skip: Option<usize>,
    workspace: &mut Workspace,
    read: F,
) {
    dispatch(isa, Pass { net, packed, samples, range: 0..n, workspace, each: read, skip, backward: false });
}

/// Some samples on their way through the networks, and back if they are learnt from.
struct Pass<'a, F> {
    net: &'a Net,
    packed: &'a [f32],
    samples: Samples<'a>,
    range: Range<usize>,
    workspace: &'a mut Workspace,
    /// The loss, or whoever reads the outputs.
    each: F,
    skip: Option<usize>,
    backward: bool,
}

impl<F: EachTile> Work for Pass<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool, const ROWS: usize, const WIDE: usize>(self) {
        let Self { net, packed, samples, range, workspace, mut each, skip, backward } = self;
        if backward {
            workspace.grads.fill(0.0);
        }
        for start in range.clone().step_by(TILE) {
            let tile = start..(start + TILE).min(range.end);
            let m = tile.len();
            match (&net.conv, &mut workspace.conv) {
                (Some(conv), Some(space)) => {
                    let features = &mut workspace.inputs;
                    conv.forward::<FMA, ROWS, WIDE>(&samples, tile.clone(), packed, backward, space, features);
                }
                _ => samples.copy(tile.clone(), net.n_in, pad(net.n_in), &mut workspace.inputs),
            }
            for (_, chain) in net.chains.iter().enumerate().filter(|(i, _)| Some(*i) != skip) {
                chain_forward::<FMA, ROWS, WIDE>(net, chain, packed, m, workspace);
            }
            let outputs = &workspace.outputs;
            each.tile(&mut Tile { net, outputs, out_grads: &mut workspace.out_grads, samples: tile.clone() });
            if backward {
                for (grad, _) in workspace.out_grads.iter_mut().zip(&net.chains).filter(|(_, chain)| chain.activated) {
                    grad.fill(0.0);
                }
                workspace.input_grads.fill(0.0);
                for index in (0..net.chains.len()).rev() {
                    chain_backward::<FMA, ROWS, WIDE>(net, index, packed, m, workspace);
                }
                let Workspace { inputs, conv: space, input_grads, grads, .. } = &mut *workspace;
                if let (Some(conv), Some(space)) = (&net.conv, space) {
                    conv.backward::<FMA, ROWS, WIDE>(&samples, tile, packed, inputs, input_grads, space, grads);
                }
            }
        }
    }
}

#[inline(always)]
fn chain_forward<const FMA: bool, const ROWS: usize, const WIDE: usize>(
    net: &Net,
    chain: &Chain,
    packed: &[f32],
    m: usize,
    workspace: &mut Workspace,
) {
    for l in chain.layers.clone() {
        let layer = &net.layers[l];
        let (n_in, out_pad) = (layer.n_in, layer.out_pad());
        // Layers come in order, so what a layer reads lies before what it writes.
        let (before, from_here) = workspace.outputs.split_at_mut(layer.column * TILE);
        let output = &mut from_here[..m * out_pad];
        let input = source(net, chain, l).map_or(&workspace.inputs[..], |source| &before[source.outputs()]);
        let a = Matrix { data: input, rows: Even(layer.in_pad()), columns: Even(1) };
        let b = &packed[layer.packed_weight..][..n_in * out_pad];
        let bias = &packed[layer.packed_bias..][..out_pad];
        multiply::<FMA, ROWS, WIDE>(output, a, b, (m, out_pad, n_in), Start::Bias(bias));
        if l + 1 < chain.layers.end || chain.activated {
            activate::<FMA>(net.activation, output);
        }
    }
}

/// The layer whose outputs layer `l` of a chain reads; none for the observation.
#[inline(always)]
fn source<'a>(net: &'a Net, chain: &Chain, l: usize) -> Option<&'a Dense> {
    if l > chain.layers.start {
        Some(&net.layers[l - 1])
    } else {
        chain.from.map(|from| &net.layers[net.chains[from].layers.end - 1])
    }
}

#[inline(always)]
fn chain_backward<const FMA: bool, const ROWS: usize, const WIDE: usize>(
    net: &Net,
    index: usize,
    packed: &[f32],
    m: usize,
    workspace: &mut Workspace,
) {
    let chain = &net.chains[index];
    let mut delta = std::mem::take(&mut workspace.out_grads[index]);
    let mut next = std::mem::take(&mut workspace.delta);
    if chain.activated {
        let last = &net.layers[chain.layers.end - 1];
        derive::<FMA>(net.activation, &workspace.outputs[last.outputs()][..m * last.out_pad()], &mut delta);
    }
    for l in chain.layers.clone().rev() {
        let layer = &net.layers[l];
        let (n_in, n_out, in_pad, out_pad) = (layer.n_in, layer.n_out, layer.in_pad(), layer.out_pad());
        let source = source(net, chain, l);
        let input = source.map_or(&workspace.inputs[..], |source| &workspace.outputs[source.outputs()]);
        let input = &input[..m * in_pad];
        let dz = &delta[..m * out_pad];
        if layer.transposed {
            let grad = &mut workspace.grads[layer.grad_weight..][..n_out * in_pad];
            multiply::<FMA, ROWS, WIDE>(
                grad,
                Matrix { data: dz, rows: Even(1), columns: Even(out_pad) },
                input,
                (n_out, in_pad, m),
                Start::Add,
            );
        } else {
            let grad = &mut workspace.grads[layer.grad_weight..][..n_in * out_pad];
            multiply::<FMA, ROWS, WIDE>(
                grad,
                Matrix { data: input, rows: Even(1), columns: Even(in_pad) },
                dz,
                (n_in, out_pad, m),
                Start::Add,
            );
        }
        let grad = &mut workspace.grads[layer.grad_bias..][..out_pad];
        for row in dz.chunks_exact(out_pad) {
            grad.iter_mut().zip(row).for_each(|(grad, dz)| *grad += dz);
        }
        let transpose = &packed[layer.packed_transpose..][..n_out * in_pad];
        let a = Matrix { data: dz, rows: Even(out_pad), columns: Even(1) };
        if l > chain.layers.start {
            let dx = &mut next[..m * in_pad];
            multiply::<FMA, ROWS, WIDE>(dx, a, transpose, (m, in_pad, n_out), Start::Zero);
            derive::<FMA>(net.activation, input, dx);
            std::mem::swap(&mut delta, &mut next);
        } else if let Some(from) = chain.from {
            multiply::<FMA, ROWS, WIDE>(&mut workspace.out_grads[from], a, transpose, (m, in_pad, n_out), Start::Add);
        } else if net.conv.is_some() {
            multiply::<FMA, ROWS, WIDE>(&mut workspace.input_grads, a, transpose, (m, in_pad, n_out), Start::Add);
        }
    }
    workspace.out_grads[index] = delta;
    workspace.delta = next;
}

/// Applies the activation.
#[inline(always)]
pub(crate) fn activate<const FMA: bool>(activation: Activation, x: &mut [f32]) {
    match activation {
        Activation::Tanh => x.iter_mut().for_each(|x| *x = tanh::<FMA>(*x)),
        Activation::Relu => x.iter_mut().for_each(|x| *x = if *x > 0.0 { *x } else { 0.0 }),
    }
}

/// Multiplies `dx` by the derivative of the activation, which follows from its value `y`.
#[inline(always)]
pub(crate) fn derive<const FMA: bool>(activation: Activation, y: &[f32], dx: &mut [f32]) {
    match activation {
        Activation::Tanh => dx.iter_mut().zip(y).for_each(|(dx, y)| *dx *= multiply_add::<FMA>(-y, *y, 1.0)),
        Activation::Relu => dx.iter_mut().zip(y).for_each(|(dx, &y)| *dx = if y > 0.0 { *dx } else { 0.0 }),
    }
}

#[inline(always)]
fn multiply_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// The hyperbolic tangent: with `t = exp(-2 |x|)` and `e = t - 1`, which is accurate also where it is small, it is `-e / (2 + e)`
/// near 0 and `1 - 2 t / (1 + t)` elsewhere, with the sign of x. Gradients need it so accurate: `1 - tanh^2` magnifies its error.
#[inline(always)]
fn tanh<const FMA: bool>(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding and subtracting it rounds to an integer
    const LN_2_A: f32 = 0.693_359_4;
    const LN_2_B: f32 = -2.121_944_4e-4;
    let z = -2.0 * x.abs();
    let z = if z < -20.0 { -20.0 } else { z };
    let shifted = multiply_add::<FMA>(z, std::f32::consts::LOG2_E, ROUND);
    let k = shifted - ROUND;
    let r = multiply_add::<FMA>(-k, LN_2_B, multiply_add::<FMA>(-k, LN_2_A, z));
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = multiply_add::<FMA>(p, r, c);
    }
    let p = multiply_add::<FMA>(p, r * r, r);
    let scale = f32::from_bits(((((shifted.to_bits() & 0x007F_FFFF) as i32) - 0x0040_0000 + 127) << 23) as u32);
    let e = multiply_add::<FMA>(scale, p, scale - 1.0);
    let t = multiply_add::<FMA>(scale, p, scale);
    let far = z < -1.1;
    let q = (if far { 2.0 * t } else { -e }) / (if far { 1.0 + t } else { 2.0 + e });
    (if far { 1.0 - q } else { q }).copysign(x)
}

/// Where the rows, or the columns, of a matrix lie.
pub(crate) trait Offsets: Copy {
    /// Whether there are `n` of them, none of which lies beyond number n - 1.
    fn ascend(self, n: usize) -> bool;

    /// Where number `i` lies.
    ///
    /// # Safety
    /// [`Self::ascend`] is true of more than `i`.
    unsafe fn at(self, i: usize) -> usize;
}

/// So far from each other.
#[derive(Clone, Copy)]
pub(crate) struct Even(pub(crate) usize);

impl Offsets for Even {
    #[inline(always)]
    fn ascend(self, _: usize) -> bool {
        true
    }

    #[inline(always)]
    unsafe fn at(self, i: usize) -> usize {
        i * self.0
    }
}

/// Offsets in ascending order.
#[derive(Clone, Debug)]
pub(crate) struct Table(Vec<u32>);

impl Table {
    /// Of these.
    ///
    /// # Panics
    /// If they do not ascend.
    pub(crate) fn new(offsets: impl Iterator<Item = usize>) -> Self {
        let offsets: Vec<u32> = offsets.map(|at| u32::try_from(at).expect("fewer than 2^32 numbers")).collect();
        assert!(offsets.is_sorted(), "ascending offsets");
        Self(offsets)
    }

    pub(crate) fn offsets(&self) -> Listed<'_> {
        Listed(&self.0)
    }
}

/// The offsets of a table.
#[derive(Clone, Copy)]
pub(crate) struct Listed<'a>(&'a [u32]);

impl Offsets for Listed<'_> {
    #[inline(always)]
    fn ascend(self, n: usize) -> bool {
        n <= self.0.len()
    }

    #[inline(always)]
    unsafe fn at(self, i: usize) -> usize {
        // SAFETY: the caller has compared with the length.
        unsafe { *self.0.get_unchecked(i) as usize }
    }
}

/// A matrix read element by element: it lies at the sum of its row's and its column's offset.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, R, C> {
    pub(crate) data: &'a [f32],
    pub(crate) rows: R,
    pub(crate) columns: C,
}

/// What a product is added to.
#[derive(Clone, Copy)]
pub(crate) enum Start<'a> {
    /// A row that is the same everywhere.
    Bias(&'a [f32]),
    /// Nothing.
    Zero,
    /// What is there.
    Add,
}

/// `C (m, n) = start + A (m, k) B (k, n)`; rows of B and C follow each other, n is a multiple of 16. Long sums are made of short
/// ones, which keeps their error small.
#[inline(always)]
pub(crate) fn multiply<const FMA: bool, const ROWS: usize, const WIDE: usize>(
    c: &mut [f32],
    a: Matrix<'_, impl Offsets, impl Offsets>,
    b: &[f32],
    (m, n, k): (usize, usize, usize),
    start: Start<'_>,
) {
    multiply_onto::<FMA, ROWS, WIDE>(c, Even(n), a, b, (m, n, k), start);
}

/// The same with the rows of C at `to`. If [`Start::Add`] is the start, they may lie over each other.
#[inline(always)]
pub(crate) fn multiply_onto<const FMA: bool, const ROWS: usize, const WIDE: usize>(
    c: &mut [f32],
    to: impl Offsets,
    a: Matrix<'_, impl Offsets, impl Offsets>,
    b: &[f32],
    size: (usize, usize, usize),
    start: Start<'_>,
) {
    // A call of its own: in line everywhere, the products would be most of what is compiled.
    let isa = if WIDE > 16 {
        Isa::Avx512
    } else if FMA {
        Isa::Avx2
    } else {
        Isa::Plain
    };
    dispatch(isa, Product { c, to, a, b, size, start });
}

/// A product to be made.
struct Product<'a, T, R, C> {
    c: &'a mut [f32],
    to: T,
    a: Matrix<'a, R, C>,
    b: &'a [f32],
    size: (usize, usize, usize),
    start: Start<'a>,
}

impl<T: Offsets, R: Offsets, C: Offsets> Work for Product<'_, T, R, C> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool, const ROWS: usize, const WIDE: usize>(self) {
        let Self { c, to, a, b, size, start } = self;
        product::<FMA, ROWS, WIDE>(c, to, a, b, size, start);
    }
}

#[inline(always)]
fn product<const FMA: bool, const ROWS: usize, const WIDE: usize>(
    c: &mut [f32],
    to: impl Offsets,
    a: Matrix<'_, impl Offsets, impl Offsets>,
    b: &[f32],
    (m, n, k): (usize, usize, usize),
    start: Start<'_>,
) {
    assert!(n.is_multiple_of(LANES) && m > 0 && k > 0);
    assert!(to.ascend(m) && a.rows.ascend(m) && a.columns.ascend(k) && b.len() >= k * n);
    // SAFETY: the assertion above says that there are so many rows and columns.
    let (c_end, a_end) = unsafe { (to.at(m - 1) + n, a.rows.at(m - 1) + a.columns.at(k - 1)) };
    assert!(c.len() >= c_end && a.data.len() > a_end);
    if let Start::Bias(bias) = start {
        assert!(bias.len() >= n);
    }
    let (rows, terms) = if k > TILE { (TILE, TERMS) } else { (m, k) };
    for row in (0..m).step_by(rows) {
        for term in (0..k).step_by(terms) {
            let range = (row..(row + rows).min(m), term..(term + terms).min(k));
            let start = if term == 0 { start } else { Start::Add };
            let mut column = 0;
            while column < n {
                let left = n - column;
                // SAFETY: the assertions above say that rows 0..m, columns 0..n and terms 0..k lie within their arrays; a panel
                // covers no more than the columns that are left.
                column += unsafe {
                    if WIDE >= 64 && left >= 64 {
                        panel::<FMA, ROWS, 64>(c, to, a, b, n, range.clone(), start, column)
                    } else if WIDE >= 32 && left >= 32 {
                        panel::<FMA, ROWS, 32>(c, to, a, b, n, range.clone(), start, column)
                    } else {
                        panel::<FMA, ROWS, 16>(c, to, a, b, n, range.clone(), start, column)
                    }
                };
            }
        }
    }
}

/// Rows and terms of `range` of a product, columns `column..column + N`. Returns N.
///
/// # Safety
/// These rows, columns and terms lie within the arrays.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "what a product consists of")]
unsafe fn panel<const FMA: bool, const ROWS: usize, const N: usize>(
    c: &mut [f32],
    to: impl Offsets,
    a: Matrix<'_, impl Offsets, impl Offsets>,
    b: &[f32],
    n: usize,
    (rows, terms): (Range<usize>, Range<usize>),
    start: Start<'_>,
    column: usize,
) -> usize {
    let mut i = rows.start;
    while i < rows.end {
        let left = rows.end - i;
        let terms = terms.clone();
        // SAFETY: as the caller says; a block covers no more than the rows that are left.
        i += unsafe {
            if left >= ROWS {
                block::<FMA, ROWS, N>(c, to, a, b, n, terms, start, (i, column))
            } else if ROWS > 4 && left >= 4 {
                block::<FMA, 4, N>(c, to, a, b, n, terms, start, (i, column))
            } else if left >= 2 {
                block::<FMA, 2, N>(c, to, a, b, n, terms, start, (i, column))
            } else {
                block::<FMA, 1, N>(c, to, a, b, n, terms, start, (i, column))
            }
        };
    }
    N
}

/// Rows `i..i + M`, columns `column..column + N` of a product, in registers. Returns M.
///
/// # Safety
/// These rows and columns and the terms lie within the arrays.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "what a product consists of")]
unsafe fn block<const FMA: bool, const M: usize, const N: usize>(
    c: &mut [f32],
    to: impl Offsets,
    a: Matrix<'_, impl Offsets, impl Offsets>,
    b: &[f32],
    n: usize,
    terms: Range<usize>,
    start: Start<'_>,
    (i, column): (usize, usize),
) -> usize {
    let mut sums = [[0.0f32; N]; M];
    for sums in &mut sums {
        if let Start::Bias(bias) = start {
            // SAFETY: `column + N` columns lie within the bias.
            sums.copy_from_slice(unsafe { bias.get_unchecked(column..column + N) });
        }
    }
    for k in terms {
        // A copy: next to one that lies elsewhere, the compiler may leave the sums in memory, which costs nine tenths of the speed.
        let mut row = [0.0f32; N];
        // SAFETY: this term and these columns lie within B.
        row.copy_from_slice(unsafe { b.get_unchecked(k * n + column..k * n + column + N) });
        // SAFETY: there is such a term.
        let term = unsafe { a.columns.at(k) };
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: this row and term lie within A.
            let x = unsafe { *a.data.get_unchecked(a.rows.at(i + r) + term) };
            for (sum, &y) in sums.iter_mut().zip(&row) {
                *sum = multiply_add::<FMA>(x, y, *sum);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        // SAFETY: there is such a row.
        let at = unsafe { to.at(i + r) } + column;
        // SAFETY: this row and these columns lie within C.
        let c = unsafe { c.get_unchecked_mut(at..at + N) };
        if let Start::Add = start {
            c.iter_mut().zip(sums).for_each(|(c, sum)| *c += sum);
        } else {
            c.copy_from_slice(sums);
        }
    }
    M
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tanh_is_accurate_to_two_and_a_half_ulp() {
        let mut worst: f64 = 0.0;
        for bits in (0..=u32::MAX / 1009).map(|i| i * 1009) {
            let x = f32::from_bits(bits);
            if x.is_nan() {
                continue;
            }
            let exact = f64::from(x).tanh();
            let nearest = (exact as f32).abs().max(f32::MIN_POSITIVE);
            let ulp = f64::from(f32::from_bits(nearest.to_bits() + 1)) - f64::from(nearest);
            for got in [tanh::<true>(x), tanh::<false>(x)] {
                worst = worst.max((f64::from(got) - exact).abs() / ulp);
            }
        }
        println!("{worst:.3} ulp");
        assert!(worst < 2.5, "{worst}");
        assert!(tanh::<true>(f32::NAN).is_nan());
    }

    #[test]
    fn all_instruction_sets_agree_on_a_product_but_for_rounding() {
        struct Product<'a>(&'a mut [f32], &'a [f32], &'a [f32], (usize, usize, usize));
        impl Work for Product<'_> {
            type Output = ();
            #[inline(always)]
            fn run<const FMA: bool, const ROWS: usize, const WIDE: usize>(self) {
                let a = Matrix { data: self.1, rows: Even(self.3.2), columns: Even(1) };
                multiply::<FMA, ROWS, WIDE>(self.0, a, self.2, self.3, Start::Zero);
            }
        }
        for (m, n, k) in [(1, 16, 1), (7, 48, 3), (13, 112, 33), (96, 64, 65)] {
            let a: Vec<f32> = (0..m * k).map(|i| (i % 7) as f32 - 3.0).collect();
            let b: Vec<f32> = (0..k * n).map(|i| (i % 5) as f32 - 2.0).collect();
            for isa in Isa::ALL.into_iter().filter(|isa| isa.supported()) {
                let mut c = vec![f32::NAN; m * n];
                dispatch(isa, Product(&mut c, &a, &b, (m, n, k)));
                for (i, row) in c.chunks(n).enumerate() {
                    for (j, &c) in row.iter().enumerate() {
                        // Small whole numbers: exact in any order.
                        let exact: f32 = (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
                        assert_eq!(c, exact, "{isa:?} {m}x{n}x{k} at {i}, {j}");
                    }
                }
            }
        }
    }
}
