//! The network kernel: tiles of samples pass through networks and loss in cache.
//!
//! A tile goes forward, through the loss, and backward. Networks are chains of dense layers over the flat parameter vector. A
//! chain starts at the observation, at the features of the convolutions, or at the output of another chain (a shared trunk).
//! Every product is [`multiply`]. Layers are padded to 16 columns; layers with few outputs get their gradient transposed, which
//! pads less.
//!
//! The order of operations of one output depends on its layer alone: not on other rows, not on threads. Acting and learning
//! therefore get the same bits, and the ratio of a policy to itself is exactly 1. A batch is cut into fixed slices. A tile's
//! gradient starts at zero and is added to its slice's, tile after tile; the slices' are summed by a tree (ARCHITECTURE.md, "The
//! order of summation"). Only the presence of fused multiply-add changes the bits.

use std::ops::Range;

use rl_envs::Pool;
use rl_envs::isa::{Isa, Set, Work, dispatch};

use crate::activation::Activation;
use crate::conv::{Conv, ConvStage, ConvWorkspace};
use crate::gemm::{Init, Matrix, Stride, add_rows, multiply, pad, reserve};
use crate::mlp::Mlp;
use crate::samples::{Samples, TILE};
use crate::slices::{self, MAX_SLICES};

/// Minimum numbers of a part of a gradient that a thread sums.
const MIN_PART: usize = 2048;
/// Rows that stay in the cache while their columns are read.
const PACKED_ROWS: usize = 16;

/// One dense layer, with the offsets of its parts.
#[derive(Clone, Debug)]
struct Dense {
    /// Number of inputs, including padding between runs.
    n_in: usize,
    n_out: usize,
    /// Length of a run of inputs, real and padded.
    ///
    /// There is one run, or one for each position of a convolution.
    runs: (usize, usize),
    /// Ranges of the flat parameter vector: (in, out), (out).
    weight: Range<usize>,
    bias: Range<usize>,
    /// Offsets in the packed parameters: (in, padded out), (padded out), transpose.
    ///
    /// The transpose is (out, padded in).
    packed_weight: usize,
    packed_bias: usize,
    packed_transpose: usize,
    /// Offsets in the gradient: (in, padded out), (padded out).
    ///
    /// `transposed` makes the former (out, padded in).
    grad_weight: usize,
    grad_bias: usize,
    transposed: bool,
    /// Column of the first output among those of all layers.
    column: usize,
}

impl Dense {
    fn in_pad(&self) -> usize {
        pad(self.n_in)
    }

    fn out_pad(&self) -> usize {
        pad(self.n_out)
    }

    /// Splits the flat weight into runs, each with the index of its first input.
    fn runs<'a>(&self, weight: &'a [f32]) -> impl Iterator<Item = (usize, &'a [f32])> {
        let (real, padded) = self.runs;
        weight.chunks(real * self.n_out).enumerate().map(move |(i, run)| (i * padded, run))
    }

    /// Range of the outputs of a tile, (TILE, padded out).
    fn outputs(&self) -> Range<usize> {
        self.column * TILE..(self.column + self.out_pad()) * TILE
    }
}

/// A sequence of dense layers.
#[derive(Clone, Debug)]
struct Chain {
    layers: Range<usize>,
    /// Index of the chain that this chain starts from; `None` for the observation.
    from: Option<usize>,
    /// True if the activation follows the last layer too, as in a trunk.
    activated: bool,
}

/// Networks in the layouts of the kernel.
#[derive(Clone, Debug)]
pub(crate) struct Net {
    conv: Option<ConvStage>,
    layers: Vec<Dense>,
    chains: Vec<Chain>,
    activation: Activation,
    /// Number of inputs of a first chain: the observation, or padded features.
    n_in: usize,
    columns: usize,
    packed_len: usize,
    grad_len: usize,
}

impl Net {
    /// Builds a chain for each network of `mlps`.
    ///
    /// Each network comes with the index of the network that it starts from; `None` is the features of `conv`, which without
    /// layers are the observation. A network that another one starts from must be a trunk.
    pub(crate) fn new(conv: &Conv, mlps: &[(&Mlp, Option<usize>)], activation: Activation) -> Self {
        let (mut packed_len, mut grad_len) = (0, 0);
        let conv = ConvStage::new(conv, &mut packed_len, &mut grad_len);
        let n_in = conv.as_ref().map_or(mlps[0].0.layers()[0].n_in, |conv| conv.features().0);
        let (layers, chains) = (Vec::new(), Vec::new());
        let mut net = Self { conv, layers, chains, activation, n_in, columns: 0, packed_len, grad_len };
        for (mlp, from) in mlps {
            let first = net.layers.len();
            for linear in mlp.layers() {
                let starts = from.is_none() && net.layers.len() == first;
                let plain = (linear.n_in, (linear.n_in, pad(linear.n_in)));
                let (n_in, runs) = net.conv.as_ref().filter(|_| starts).map_or(plain, ConvStage::features);
                let n_out = linear.n_out;
                let transposed = n_out * pad(n_in) < n_in * pad(n_out);
                let packed_weight = reserve(&mut net.packed_len, n_in * pad(n_out));
                let packed_bias = reserve(&mut net.packed_len, pad(n_out));
                let packed_transpose = reserve(&mut net.packed_len, n_out * pad(n_in));
                let size = if transposed { n_out * pad(n_in) } else { n_in * pad(n_out) };
                let grad_weight = reserve(&mut net.grad_len, size);
                let grad_bias = reserve(&mut net.grad_len, pad(n_out));
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

    /// Copies the parameters into the layouts of the kernel.
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
                for (rows, first) in run.chunks(PACKED_ROWS * n_out).zip((first..).step_by(PACKED_ROWS)) {
                    for (j, row) in to.chunks_exact_mut(in_pad).enumerate() {
                        row[first..].iter_mut().zip(rows[j..].iter().step_by(n_out)).for_each(|(to, &from)| *to = from);
                    }
                }
            }
        }
    }

    /// Copies a gradient from the layout of the kernel into the flat gradient.
    #[inline(always)]
    fn unpack_gradient(&self, grads: &[f32], flat: &mut [f32]) {
        if let Some(conv) = &self.conv {
            conv.unpack_gradient(grads, flat);
        }
        for layer in &self.layers {
            let ((real, padded), n_out, in_pad, out_pad) = (layer.runs, layer.n_out, layer.in_pad(), layer.out_pad());
            let from = &grads[layer.grad_weight..];
            for (i, to) in flat[layer.weight.clone()].chunks_mut(real * n_out).enumerate() {
                let first = i * padded;
                if layer.transposed {
                    for (i, to) in to.chunks_exact_mut(n_out).enumerate() {
                        to.iter_mut().enumerate().for_each(|(j, to)| *to = from[j * in_pad + first + i]);
                    }
                } else {
                    for (to, from) in to.chunks_exact_mut(n_out).zip(from[first * out_pad..].chunks_exact(out_pad)) {
                        to.copy_from_slice(&from[..n_out]);
                    }
                }
            }
            flat[layer.bias.clone()].copy_from_slice(&grads[layer.grad_bias..][..n_out]);
        }
    }

    /// Lengths of the buffers.
    pub(crate) fn lens(&self) -> Lens {
        let conv = |learning| self.conv.as_ref().map_or(0, |conv| conv.workspace_len(learning));
        let forward = TILE * (pad(self.n_in) + self.columns);
        let features = if self.conv.is_some() { TILE * self.n_in } else { 0 };
        let gradients = TILE * self.widest() * (self.chains.len() + 1) + features + self.grad_len;
        Lens { packed: self.packed_len, forward: forward + conv(false), learning: forward + conv(true) + gradients }
    }

    fn widest(&self) -> usize {
        self.layers.iter().map(|layer| layer.in_pad().max(layer.out_pad())).max().unwrap_or(pad(1))
    }
}

/// Lengths of the packed parameters, an acting workspace, and a learning one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lens {
    pub(crate) packed: usize,
    pub(crate) forward: usize,
    pub(crate) learning: usize,
}

/// Networks with their current parameters, and the instruction set to run with.
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

    /// Copies the parameters and the instruction set of a kernel of the same network.
    pub(crate) fn copy_from(&mut self, other: &Self) {
        self.isa = other.isa;
        self.packed.copy_from_slice(&other.packed);
    }

    /// Replaces the parameters.
    pub(crate) fn pack(&mut self, params: &[f32]) {
        self.net.pack(params, &mut self.packed);
    }

    /// Returns the kernel as arguments of [`forward`] and [`Slices::gradient`].
    pub(crate) fn view(&self) -> (Isa, &Net, &[f32]) {
        (self.isa, &self.net, &self.packed)
    }
}

/// Buffers of one thread that runs tiles through the networks.
#[derive(Clone, Debug)]
pub(crate) struct Workspace {
    inputs: Vec<f32>, // (TILE, padded D), or padded features
    conv: Option<ConvWorkspace>,
    outputs: Vec<f32>,        // every layer's, (TILE, padded out)
    out_grads: Vec<Vec<f32>>, // every chain's, (TILE, widest)
    delta: Vec<f32>,          // (TILE, widest)
    input_grads: Vec<f32>,    // (TILE, features), if there are convolutions
    grads: Vec<f32>,
}

impl Workspace {
    /// Allocates buffers to act with.
    pub(crate) fn forward(net: &Net) -> Self {
        Self {
            inputs: vec![0.0; TILE * pad(net.n_in)],
            conv: net.conv.as_ref().map(|conv| conv.workspace(false)),
            outputs: vec![0.0; TILE * net.columns],
            out_grads: Vec::new(),
            delta: Vec::new(),
            input_grads: Vec::new(),
            grads: Vec::new(),
        }
    }

    /// Allocates buffers to learn with.
    fn learning(net: &Net) -> Self {
        let widest = vec![0.0; TILE * net.widest()];
        let out_grads = vec![widest.clone(); net.chains.len()];
        let conv = net.conv.as_ref().map(|conv| conv.workspace(true));
        let input_grads = vec![0.0; if conv.is_some() { TILE * net.n_in } else { 0 }];
        Self { out_grads, delta: widest, conv, input_grads, grads: vec![0.0; net.grad_len], ..Self::forward(net) }
    }
}

/// A tile between forward and backward: the networks' outputs and their gradients.
pub(crate) struct Tile<'a> {
    net: &'a Net,
    outputs: &'a [f32],
    out_grads: &'a mut [Vec<f32>],
    samples: Range<usize>,
}

impl Tile<'_> {
    /// Range of the tile's samples within the batch.
    pub(crate) fn samples(&self) -> Range<usize> {
        self.samples.clone()
    }

    /// Copies output `j` of a chain, one number per sample.
    #[inline(always)]
    pub(crate) fn column(&self, chain: usize, j: usize, to: &mut [f32]) {
        let layer = &self.net.layers[self.net.chains[chain].layers.end - 1];
        let outputs = &self.outputs[layer.outputs()];
        to.iter_mut().zip(outputs.chunks_exact(layer.out_pad())).for_each(|(to, row)| *to = row[j]);
    }

    /// Sets the gradient of the loss with respect to output `j` of a chain.
    ///
    /// A loss must set every output of every chain that no other chain starts from.
    #[inline(always)]
    pub(crate) fn set_grad(&mut self, chain: usize, j: usize, from: &[f32]) {
        let stride = self.net.layers[self.net.chains[chain].layers.end - 1].out_pad();
        self.out_grads[chain].chunks_exact_mut(stride).zip(from).for_each(|(row, &from)| row[j] = from);
    }
}

/// A visitor of tiles between forward and backward.
///
/// A trait instead of a closure for the reason given in [`Work`].
pub(crate) trait EachTile {
    /// Reads the outputs and, before a backward pass, sets their gradients.
    ///
    /// Must be `inline(always)` in hot paths.
    fn tile(&mut self, tile: &mut Tile<'_>);
}

impl<F: FnMut(&mut Tile<'_>)> EachTile for F {
    #[inline(always)]
    fn tile(&mut self, tile: &mut Tile<'_>) {
        self(tile);
    }
}

/// Statistics of a loss, summed over the tiles of a slice.
pub(crate) trait Stats: Default + Clone + Send + Sync {
    /// Resets the sums to zero and keeps the memory.
    fn reset(&mut self);
}

impl Stats for () {
    fn reset(&mut self) {}
}

/// A loss, tile by tile.
pub(crate) trait TileLoss<S>: Sync {
    /// Sets the gradients of a tile's outputs and adds to the statistics.
    ///
    /// Must be `inline(always)`.
    fn tile(&self, tile: &mut Tile<'_>, stats: &mut S);
}

/// A loss with the statistics of one slice.
struct SliceLoss<'a, L, S> {
    loss: &'a L,
    stats: &'a mut S,
}

impl<S, L: TileLoss<S>> EachTile for SliceLoss<'_, L, S> {
    #[inline(always)]
    fn tile(&mut self, tile: &mut Tile<'_>) {
        self.loss.tile(tile, self.stats);
    }
}

/// Slices of a batch for parallel threads, each with statistics `S` of its loss.
pub(crate) struct Slices<S> {
    slices: Vec<(Workspace, Range<usize>, S)>,
}

impl<S: Stats> Slices<S> {
    /// Creates an empty list; [`Slices::gradient`] adds the slices that a batch needs.
    pub(crate) fn new() -> Self {
        Self { slices: Vec::new() }
    }

    /// Writes the gradient (P) of the summed loss of `n` samples.
    ///
    /// Leaves parameters that belong to no layer as they are. Returns each slice's statistics, in order.
    pub(crate) fn gradient<'s, L: TileLoss<S>>(
        &'s mut self,
        (isa, net, packed): (Isa, &Net, &[f32]),
        samples: Samples<'_>,
        n: usize,
        pool: &Pool,
        loss: &L,
        gradient: &mut [f32],
    ) -> impl Iterator<Item = &'s S> + Clone + use<'s, S, L> {
        let count = slices::of_minibatch(n, gradient.len());
        while self.slices.len() < count {
            self.slices.push((Workspace::learning(net), 0..0, S::default()));
        }
        let slices = &mut self.slices[..count];
        for (i, (_, range, _)) in slices.iter_mut().enumerate() {
            *range = i * n / count..(i + 1) * n / count;
        }
        pool.each(slices, &|(workspace, range, stats)| {
            stats.reset();
            let each = SliceLoss { loss, stats };
            dispatch(isa, Pass { net, packed, samples, range: range.clone(), workspace, each, skip: None, backward: true });
        });
        let (first, rest) = slices.split_at_mut(1);
        let grads = &mut first[0].0.grads;
        if !rest.is_empty() {
            let len = pad(net.grad_len.div_ceil(MAX_SLICES)).max(MIN_PART);
            let mut parts = (0..).step_by(len).zip(grads.chunks_mut(len));
            let mut parts: [_; MAX_SLICES] = std::array::from_fn(|_| parts.next());
            pool.each(&mut parts, &|part| {
                if let Some((from, first)) = part {
                    dispatch(isa, TreeSum { first, rest, from: *from });
                }
            });
        }
        net.unpack_gradient(grads, gradient);
        self.slices[..count].iter().map(|(.., stats)| stats)
    }
}

/// Sum of the slices' gradients over a part of them, left in the first slice's.
struct TreeSum<'a, S> {
    first: &'a mut [f32],
    rest: &'a [(Workspace, Range<usize>, S)],
    /// Offset of the part.
    from: usize,
}

impl<T> Work for TreeSum<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        match self.rest.len() {
            1 => self.sum::<2>(),
            3 => self.sum::<4>(),
            7 => self.sum::<8>(),
            15 => self.sum::<16>(),
            more => unreachable!("1 + {more} slices are not a power of two up to 16"),
        }
    }
}

impl<S> TreeSum<'_, S> {
    #[inline(always)]
    fn sum<const N: usize>(self) {
        let Self { first, rest, from } = self;
        let all: [&[f32]; N] =
            std::array::from_fn(|s| if s == 0 { &[][..] } else { &rest[s - 1].0.grads[from..from + first.len()] });
        for (i, to) in first.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let mut sums = [*to; N];
            for (sums, all) in sums.iter_mut().zip(&all).skip(1) {
                sums.copy_from_slice(&all[16 * i..16 * i + 16]);
            }
            *to = slices::tree(sums, |a, b| std::array::from_fn(|j| a[j] + b[j]));
        }
    }
}

/// Runs samples forward and passes every tile to `read`.
///
/// Skips chain `skip`; no other chain may start from it.
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

/// A range of samples on their way forward and, for learning, backward.
struct Pass<'a, F> {
    net: &'a Net,
    packed: &'a [f32],
    samples: Samples<'a>,
    range: Range<usize>,
    workspace: &'a mut Workspace,
    /// The loss, or the reader of the outputs.
    each: F,
    skip: Option<usize>,
    backward: bool,
}

impl<F: EachTile> Work for Pass<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Self { net, packed, samples, range, workspace, mut each, skip, backward } = self;
        if backward {
            workspace.grads.fill(0.0);
        }
        for start in range.clone().step_by(TILE) {
            let tile = start..(start + TILE).min(range.end);
            let m = tile.len();
            match (&net.conv, &mut workspace.conv) {
                (Some(conv), Some(conv_workspace)) => {
                    let features = &mut workspace.inputs;
                    conv.forward::<S>(&samples, tile.clone(), packed, backward, conv_workspace, features);
                }
                _ => samples.copy(tile.clone(), net.n_in, pad(net.n_in), &mut workspace.inputs),
            }
            for (_, chain) in net.chains.iter().enumerate().filter(|(i, _)| Some(*i) != skip) {
                chain_forward::<S>(net, chain, packed, m, workspace);
            }
            let outputs = &workspace.outputs;
            each.tile(&mut Tile { net, outputs, out_grads: &mut workspace.out_grads, samples: tile.clone() });
            if backward {
                for (grad, _) in workspace.out_grads.iter_mut().zip(&net.chains).filter(|(_, chain)| chain.activated) {
                    grad.fill(0.0);
                }
                workspace.input_grads.fill(0.0);
                for index in (0..net.chains.len()).rev() {
                    chain_backward::<S>(net, index, packed, m, workspace);
                }
                let Workspace { inputs, conv: conv_workspace, input_grads, grads, .. } = &mut *workspace;
                if let (Some(conv), Some(conv_workspace)) = (&net.conv, conv_workspace) {
                    conv.backward::<S>(&samples, tile, packed, inputs, input_grads, conv_workspace, grads);
                }
            }
        }
    }
}

#[inline(always)]
fn chain_forward<S: Set>(net: &Net, chain: &Chain, packed: &[f32], m: usize, workspace: &mut Workspace) {
    for l in chain.layers.clone() {
        let layer = &net.layers[l];
        let (n_in, out_pad) = (layer.n_in, layer.out_pad());
        // Layers are in order, so a layer reads from before the range that it writes.
        let (before, from_here) = workspace.outputs.split_at_mut(layer.column * TILE);
        let output = &mut from_here[..m * out_pad];
        let input = source(net, chain, l).map_or(&workspace.inputs[..], |source| &before[source.outputs()]);
        let a = Matrix { data: input, rows: Stride(layer.in_pad()), columns: Stride(1) };
        let b = &packed[layer.packed_weight..][..n_in * out_pad];
        let bias = &packed[layer.packed_bias..][..out_pad];
        multiply::<S>(output, a, b, (m, out_pad, n_in), Init::Bias(bias));
        if l + 1 < chain.layers.end || chain.activated {
            net.activation.apply::<S>(output);
        }
    }
}

/// Returns the layer read by layer `l` of a chain; `None` for the observation.
#[inline(always)]
fn source<'a>(net: &'a Net, chain: &Chain, l: usize) -> Option<&'a Dense> {
    if l > chain.layers.start {
        Some(&net.layers[l - 1])
    } else {
        chain.from.map(|from| &net.layers[net.chains[from].layers.end - 1])
    }
}

#[inline(always)]
fn chain_backward<S: Set>(net: &Net, index: usize, packed: &[f32], m: usize, workspace: &mut Workspace) {
    let chain = &net.chains[index];
    let mut delta = std::mem::take(&mut workspace.out_grads[index]);
    let mut next = std::mem::take(&mut workspace.delta);
    if chain.activated {
        let last = &net.layers[chain.layers.end - 1];
        net.activation.derive::<S>(&workspace.outputs[last.outputs()][..m * last.out_pad()], &mut delta);
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
            multiply::<S>(
                grad,
                Matrix { data: dz, rows: Stride(1), columns: Stride(out_pad) },
                input,
                (n_out, in_pad, m),
                Init::Add,
            );
        } else {
            let grad = &mut workspace.grads[layer.grad_weight..][..n_in * out_pad];
            multiply::<S>(
                grad,
                Matrix { data: input, rows: Stride(1), columns: Stride(in_pad) },
                dz,
                (n_in, out_pad, m),
                Init::Add,
            );
        }
        let grad = &mut workspace.grads[layer.grad_bias..][..out_pad];
        add_rows(dz, m, grad);
        let transpose = &packed[layer.packed_transpose..][..n_out * in_pad];
        let a = Matrix { data: dz, rows: Stride(out_pad), columns: Stride(1) };
        if l > chain.layers.start {
            let dx = &mut next[..m * in_pad];
            multiply::<S>(dx, a, transpose, (m, in_pad, n_out), Init::Zero);
            net.activation.derive::<S>(input, dx);
            std::mem::swap(&mut delta, &mut next);
        } else if let Some(from) = chain.from {
            multiply::<S>(&mut workspace.out_grads[from], a, transpose, (m, in_pad, n_out), Init::Add);
        } else if net.conv.is_some() {
            multiply::<S>(&mut workspace.input_grads, a, transpose, (m, in_pad, n_out), Init::Add);
        }
    }
    workspace.out_grads[index] = delta;
    workspace.delta = next;
}
