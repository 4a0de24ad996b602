//! The network kernel: tiles of samples pass through networks and loss in cache.
//!
//! A tile goes forward, through the loss, and backward. Every product is [`multiply`](crate::kernel::gemm::multiply). Networks
//! too wide for the cache pass [layer by layer](crate::kernel::layered) instead, with the same operations in the same order.
//!
//! The order of operations of one output depends on its layer alone: not on other rows, not on threads. Acting and learning
//! therefore get the same bits, and the ratio of a policy to itself is exactly 1. A batch is cut into fixed slices. A tile's
//! gradient starts at zero and is added to its slice's, tile after tile; the slices' are summed by a tree
//! (docs/design/numerics.md). Only the presence of fused multiply-add changes the bits.

use std::ops::Range;

use rl_envs::isa::{Isa, Set, Work, dispatch};

use crate::kernel::aligned::Aligned;
use crate::kernel::encoder::memory::{MemoryStage, MemoryWorkspace};
use crate::kernel::encoder::parts::EncoderWorkspace;
use crate::kernel::gemm::{Init, PANEL, Rows, panels};
use crate::kernel::net::{Chain, Net, PackedNet};
use crate::kernel::samples::{Samples, TILE};
use crate::kernel::slices::BatchSlice;
use crate::network::layer_norm::{NormRows, TileRows};
use crate::probe::{Probe, Stage, report};

/// Buffers of one thread that runs tiles through the networks.
///
/// Matrices are (TILE, columns), in panels.
#[derive(Clone, Debug, Default)]
pub(crate) struct Workspace {
    inputs: Aligned, // of the dense layers: observations, padded features, or outputs of the memory
    pub(crate) encoder: Option<EncoderWorkspace>,
    pub(crate) features: Aligned,      // of the memory, if there is one
    pub(crate) feature_grads: Aligned, // likewise, after convolutions
    pub(crate) memory: Option<MemoryWorkspace>,
    outputs: Vec<Aligned>,   // every layer's
    slopes: Vec<Aligned>,    // every layer's whose activation keeps them, if gradients are wanted
    normed: Vec<Aligned>,    // every layer's that normalizes its sums, likewise
    inv_stds: Vec<Aligned>,  // likewise, (TILE) each
    out_grads: Vec<Aligned>, // every chain's, as wide as the widest layer
    delta: Aligned,          // as wide as the widest layer
    input_grads: Aligned,    // if convolutions or memory come before, or if they are wanted
}

/// Reason why a workspace has buffers of the memory's stage.
pub(crate) const REMEMBERS: &str = "the workspace is that of a network with memory";

/// Allocates a matrix of a tile.
fn matrix(columns: usize) -> Aligned {
    Aligned::zeros(TILE * panels(columns) * PANEL)
}

impl Workspace {
    /// Allocates buffers to act with.
    pub(crate) fn forward(net: &Net) -> Self {
        let features = net.memory.as_ref().map_or(Aligned::default(), |memory| matrix(memory.n_features()));
        Self {
            inputs: matrix(net.n_in),
            encoder: net.encoder.as_ref().map(|encoder| encoder.workspace(false)),
            features,
            memory: net.memory.as_ref().map(MemoryStage::workspace),
            outputs: net.layers.iter().map(|layer| matrix(layer.n_out)).collect(),
            slopes: vec![Aligned::default(); net.layers.len()],
            normed: vec![Aligned::default(); net.layers.len()],
            inv_stds: vec![Aligned::default(); net.layers.len()],
            ..Self::default()
        }
    }

    /// Allocates buffers to compute gradients of the inputs with.
    pub(crate) fn of_inputs(net: &Net) -> Self {
        let widest = matrix(net.widest());
        let out_grads = vec![widest.clone(); net.chains.len()];
        let inv_stds = net.normed(|_| Aligned::zeros(TILE));
        let (slopes, normed, input_grads) = (net.slopes(matrix), net.normed(matrix), matrix(net.n_in));
        Self { slopes, normed, inv_stds, out_grads, delta: widest, input_grads, ..Self::forward(net) }
    }

    /// Allocates buffers to learn with.
    pub(crate) fn learning(net: &Net) -> Self {
        let mut all = Self::of_inputs(net);
        all.encoder = net.encoder.as_ref().map(|encoder| encoder.workspace(true));
        if net.convolves() {
            all.feature_grads = all.features.clone();
        } else if net.memory.is_none() {
            all.input_grads = Aligned::default();
        }
        all
    }

    /// Makes the memory's buffers hold `rows`.
    pub(crate) fn reserve(&mut self, stage: &MemoryStage, rows: usize) {
        stage.reserve(rows, self.memory.as_mut().expect(REMEMBERS));
    }

    /// Makes the memory's outputs of `rows` the inputs of the dense layers.
    pub(crate) fn read_memory(&mut self, stage: &MemoryStage, rows: &Range<usize>) {
        stage.outputs(rows, self.memory.as_ref().expect(REMEMBERS), &mut self.inputs);
    }

    /// Makes the gradients of the inputs those of the memory's outputs of `rows`.
    pub(crate) fn set_memory_grads(&mut self, stage: &MemoryStage, rows: &Range<usize>) {
        stage.set_output_grads(rows, self.memory.as_mut().expect(REMEMBERS), &self.input_grads);
    }

    /// The tile of samples `range`, which the networks have passed.
    pub(crate) fn tile<'a>(&'a mut self, net: &'a Net, range: Range<usize>) -> Tile<'a> {
        Tile { net, outputs: (&self.outputs, TILE, 0), out_grads: (&mut self.out_grads, TILE, 0), samples: range }
    }
}

/// A tile between forward and backward: the networks' outputs and their gradients.
pub(crate) struct Tile<'a> {
    pub(crate) net: &'a Net,
    /// Outputs of every layer, the height of their panels, and the tile's first row.
    pub(crate) outputs: (&'a [Aligned], usize, usize),
    /// Gradients of every chain's outputs, likewise.
    pub(crate) out_grads: (&'a mut [Aligned], usize, usize),
    /// Its samples within the batch.
    pub(crate) samples: Range<usize>,
}

/// Offset of column `j` in panels of `height` rows, from row `first` on.
#[inline(always)]
fn column(j: usize, height: usize, first: usize) -> usize {
    (j / PANEL * height + first) * PANEL + j % PANEL
}

impl Tile<'_> {
    /// Copies output `j` of a chain, one number per sample.
    #[inline(always)]
    pub(crate) fn column(&self, chain: usize, j: usize, to: &mut [f32]) {
        let (outputs, height, first) = self.outputs;
        let outputs = &outputs[self.net.chains[chain].last()][column(j, height, first)..];
        to.iter_mut().zip(outputs.iter().step_by(PANEL)).for_each(|(to, from)| *to = *from);
    }

    /// Sets the gradient of the loss with respect to output `j` of a chain.
    ///
    /// A loss must set every output of every chain that no other chain starts from.
    #[inline(always)]
    pub(crate) fn set_grad(&mut self, chain: usize, j: usize, from: &[f32]) {
        let (grads, height, first) = &mut self.out_grads;
        let grads = &mut grads[chain][column(j, *height, *first)..];
        grads.iter_mut().step_by(PANEL).zip(from).for_each(|(to, from)| *to = *from);
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

    /// Appends the sums to a message to other ranks; nothing if there are none.
    fn write(&self, _message: &mut Vec<u8>) {}

    /// Replaces the sums by those that another rank has written.
    fn read(&mut self, _message: &[u8]) {}
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

    /// Returns the number of bytes of a slice's statistics in a message to other ranks.
    fn stats_len(&self, _n_samples: usize) -> usize {
        0
    }
}

/// A loss with the statistics of one slice.
pub(crate) struct SliceLoss<'a, L, S> {
    pub(crate) loss: &'a L,
    pub(crate) stats: &'a mut S,
}

impl<S, L: TileLoss<S>> EachTile for SliceLoss<'_, L, S> {
    #[inline(always)]
    fn tile(&mut self, tile: &mut Tile<'_>) {
        self.loss.tile(tile, self.stats);
    }
}

/// Runs samples forward and passes every tile to `read`.
///
/// Skips chain `skip`; no other chain may start from it. With memory, takes one step from `states` (N, S), and replaces them.
pub(crate) fn forward<F: EachTile>(
    PackedNet { isa, net, packed }: PackedNet<'_>,
    samples: Samples<'_>,
    n: usize,
    skip: Option<usize>,
    states: &mut [f32],
    workspace: &mut Workspace,
    mut read: F,
) {
    for start in (0..n).step_by(TILE) {
        let range = start..(start + TILE).min(n);
        let m = range.len();
        dispatch(isa, TileInputs { net, packed, samples, range: range.clone(), workspace, learning: false, probe: None });
        if let Some(stage) = &net.memory {
            let s = stage.state_len();
            dispatch(isa, Step { stage, packed, states: &mut states[start * s..range.end * s], workspace });
            workspace.read_memory(stage, &(0..m));
        }
        dispatch(isa, TileForward { net, packed, m, workspace, skip, probe: None });
        visit(isa, workspace.tile(net, range), &mut read);
    }
}

/// Runs a slice forward, through the loss and backward.
///
/// Writes its gradient to `grads`, as the layers compute it.
pub(crate) fn backward<S: Stats, L: TileLoss<S>>(
    PackedNet { isa, net, packed }: PackedNet<'_>,
    samples: Samples<'_>,
    BatchSlice { range, stats }: &mut BatchSlice<S>,
    workspace: &mut Workspace,
    grads: &mut [f32],
    loss: &L,
    probe: Option<&Probe>,
) {
    // Convolutions only add to their gradient, so with an encoder all begins as zeros.
    if net.encoder.is_some() {
        grads.fill(0.0);
    }
    let first = range.start;
    for start in range.clone().step_by(TILE) {
        let range = start..(start + TILE).min(range.end);
        let m = range.len();
        let init = if start == first && net.encoder.is_none() { Init::Cleared } else { Init::Add };
        dispatch(isa, TileInputs { net, packed, samples, range: range.clone(), workspace, learning: true, probe });
        dispatch(isa, TileForward { net, packed, m, workspace, skip: None, probe });
        visit(isa, workspace.tile(net, range.clone()), &mut SliceLoss { loss, stats });
        report(probe, Stage::Loss);
        dispatch(isa, TileBackward { net, packed, m, workspace, init, grads: &mut *grads });
        if net.convolves() {
            dispatch(isa, EncoderBackward { net, packed, samples, range, workspace, grads });
        }
        report(probe, Stage::Backward);
    }
}

/// Gradients of inputs to compute.
pub(crate) struct InputPass {
    /// First input of the dense layers that needs a gradient; all after it do, too.
    pub(crate) first: usize,
    /// Chain to leave out.
    pub(crate) skip: Option<usize>,
}

/// Runs samples forward, through `loss`, and backward to their inputs.
///
/// The loss gives a sample a gradient in one chain and zeros in the others, so a chain goes back with its own samples alone. No
/// chain may start from another. Passes the gradients to `read`: samples, the index of a wanted input among these, and a number
/// for each sample.
pub(crate) fn input_gradient<F: EachTile>(
    PackedNet { isa, net, packed }: PackedNet<'_>,
    samples: Samples<'_>,
    n: usize,
    InputPass { first, skip }: InputPass,
    workspace: &mut Workspace,
    mut loss: F,
    mut read: impl FnMut(&[usize], usize, &[f32]),
) {
    for start in (0..n).step_by(TILE) {
        let range = start..(start + TILE).min(n);
        let m = range.len();
        dispatch(isa, TileInputs { net, packed, samples, range: range.clone(), workspace, learning: false, probe: None });
        dispatch(isa, TileForward { net, packed, m, workspace, skip, probe: None });
        visit(isa, workspace.tile(net, range), &mut loss);
        for (chain, of) in net.chains.iter().enumerate().filter(|(chain, _)| Some(*chain) != skip) {
            let (mut own, mut len) = ([0; TILE], 0);
            for s in 0..m {
                own[len] = s;
                let grads = &workspace.out_grads[chain];
                len += usize::from((0..net.layers[of.last()].n_out).any(|j| grads[column(j, TILE, s)] != 0.0));
            }
            if len == 0 {
                continue;
            }
            let own = &mut own[..len];
            gather(own, &mut workspace.out_grads[chain]);
            workspace.outputs[of.layers.clone()].iter_mut().for_each(|outputs| gather(own, outputs));
            workspace.slopes[of.layers.clone()].iter_mut().for_each(|slopes| gather(own, slopes));
            workspace.normed[of.layers.clone()].iter_mut().for_each(|normed| gather(own, normed));
            for inv_stds in workspace.inv_stds[of.layers.clone()].iter_mut().filter(|inv_stds| !inv_stds.is_empty()) {
                own.iter().enumerate().for_each(|(to, from)| inv_stds[to] = inv_stds[*from]);
            }
            dispatch(isa, InputGradient { net, chain, packed, m: len, first_panel: first / PANEL, workspace });
            own.iter_mut().for_each(|s| *s += start);
            let mut numbers = [0.0; TILE];
            for (j, input) in (first..net.n_in).enumerate() {
                let from = workspace.input_grads[column(input, TILE, 0)..].iter().step_by(PANEL);
                numbers.iter_mut().zip(from).take(len).for_each(|(to, from)| *to = *from);
                read(own, j, &numbers[..len]);
            }
        }
    }
}

/// Moves rows, in ascending order, to the beginning of a matrix of a tile.
fn gather(rows: &[usize], matrix: &mut [f32]) {
    for panel in matrix.chunks_exact_mut(TILE * PANEL) {
        rows.iter().enumerate().for_each(|(to, from)| panel.copy_within(from * PANEL..(from + 1) * PANEL, to * PANEL));
    }
}

/// Passes a tile to its reader or its loss, compiled for an instruction set.
pub(crate) fn visit<F: EachTile>(isa: Isa, tile: Tile<'_>, each: &mut F) {
    dispatch(isa, Visit { tile, each });
}

/// A tile and its visitor.
///
/// Separate from [`TileForward`] and [`TileBackward`], so that they are not compiled again for each visitor.
struct Visit<'a, 'b, F> {
    tile: Tile<'a>,
    each: &'b mut F,
}

impl<F: EachTile> Work for Visit<'_, '_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(mut self) {
        self.each.tile(&mut self.tile);
    }
}

/// A tile of observations on its way to the dense layers, or to the memory.
pub(crate) struct TileInputs<'a> {
    pub(crate) net: &'a Net,
    pub(crate) packed: &'a [f32],
    pub(crate) samples: Samples<'a>,
    pub(crate) range: Range<usize>,
    pub(crate) workspace: &'a mut Workspace,
    /// True if convolutions go back later.
    pub(crate) learning: bool,
    pub(crate) probe: Option<&'a Probe>,
}

impl Work for TileInputs<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Self { net, packed, samples, range, workspace, learning, probe } = self;
        let (n, to) = match &net.memory {
            Some(memory) => (memory.n_features(), &mut workspace.features),
            None => (net.n_in, &mut workspace.inputs),
        };
        match (&net.encoder, &mut workspace.encoder) {
            (Some(encoder), Some(encoder_workspace)) => {
                encoder.forward::<S>(&samples, range, packed, learning, encoder_workspace, to);
                report(probe, Stage::Forward);
            }
            _ => {
                for (p, panel) in to.chunks_exact_mut(TILE * PANEL).enumerate() {
                    samples.copy(range.clone(), n, p * PANEL..n.min((p + 1) * PANEL), PANEL, panel);
                }
                report(probe, Stage::Inputs);
            }
        }
    }
}

/// A step of the memory for the samples of a tile.
struct Step<'a> {
    stage: &'a MemoryStage,
    packed: &'a [f32],
    states: &'a mut [f32], // (m, S)
    workspace: &'a mut Workspace,
}

impl Work for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Self { stage, packed, states, workspace: Workspace { features, memory, .. } } = self;
        let memory = memory.as_mut().expect(REMEMBERS);
        let rows = 0..states.len() / stage.state_len();
        stage.reserve(TILE, memory);
        stage.read::<S>(packed, features, rows.clone(), memory);
        states.chunks_exact(stage.state_len()).enumerate().for_each(|(i, state)| stage.set_state(i, state, memory));
        stage.step::<S>(packed, &rows, memory);
        stage.states(&rows, memory, states);
    }
}

/// A tile on its way through the dense layers.
pub(crate) struct TileForward<'a> {
    pub(crate) net: &'a Net,
    pub(crate) packed: &'a [f32],
    /// Number of samples.
    pub(crate) m: usize,
    pub(crate) workspace: &'a mut Workspace,
    pub(crate) skip: Option<usize>,
    pub(crate) probe: Option<&'a Probe>,
}

impl Work for TileForward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Self { net, packed, m, workspace, skip, probe } = self;
        for (_, chain) in net.chains.iter().enumerate().filter(|(i, _)| Some(*i) != skip) {
            chain_forward::<S>(net, chain, packed, m, workspace);
        }
        report(probe, Stage::Forward);
    }
}

/// A tile on its way back through the dense layers.
pub(crate) struct TileBackward<'a> {
    pub(crate) net: &'a Net,
    pub(crate) packed: &'a [f32],
    /// Number of samples.
    pub(crate) m: usize,
    pub(crate) workspace: &'a mut Workspace,
    /// Says whether its gradient replaces the slice's or is added.
    pub(crate) init: Init<'static>,
    pub(crate) grads: &'a mut [f32],
}

impl Work for TileBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Self { net, packed, m, workspace, init, grads } = self;
        debug_assert!(net.goes_back, "the transposed weights are not packed");
        for (grad, _) in workspace.out_grads.iter_mut().zip(&net.chains).filter(|(_, chain)| chain.activated) {
            grad.fill(0.0);
        }
        workspace.input_grads.fill(0.0);
        for index in (0..net.chains.len()).rev() {
            chain_backward::<S>(net, index, packed, m, workspace, 0, Some((init, &mut *grads)));
        }
    }
}

/// Samples on their way back through a chain to its inputs.
struct InputGradient<'a> {
    net: &'a Net,
    chain: usize,
    packed: &'a [f32],
    /// Number of samples.
    m: usize,
    /// First panel of the inputs that is computed.
    first_panel: usize,
    workspace: &'a mut Workspace,
}

impl Work for InputGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Self { net, chain, packed, m, first_panel, workspace } = self;
        debug_assert!(net.goes_back, "the transposed weights are not packed");
        workspace.input_grads[first_panel * TILE * PANEL..].fill(0.0);
        chain_backward::<S>(net, chain, packed, m, workspace, first_panel, None);
    }
}

/// A tile on its way back through the convolutions, after the dense layers.
struct EncoderBackward<'a> {
    net: &'a Net,
    packed: &'a [f32],
    samples: Samples<'a>,
    range: Range<usize>,
    workspace: &'a mut Workspace,
    grads: &'a mut [f32],
}

impl Work for EncoderBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Self { net, packed, samples, range, workspace, grads } = self;
        let Workspace { inputs, encoder: encoder_workspace, input_grads, .. } = workspace;
        if let (Some(encoder), Some(encoder_workspace)) = (&net.encoder, encoder_workspace) {
            encoder.backward::<S>(&samples, range, packed, inputs, input_grads, encoder_workspace, grads);
        }
    }
}

/// The first `m` rows of a matrix of a tile.
#[inline(always)]
fn rows(data: &[f32], m: usize) -> Rows<'_> {
    Rows { data, height: TILE, m }
}

/// The first `m` rows of each panel of a matrix of a tile.
#[inline(always)]
fn each_panel(data: &mut [f32], m: usize) -> impl Iterator<Item = (usize, &mut [f32])> {
    data.chunks_exact_mut(TILE * PANEL).map(move |panel| &mut panel[..m * PANEL]).enumerate()
}

#[inline(always)]
fn chain_forward<S: Set>(net: &Net, chain: &Chain, packed: &[f32], m: usize, workspace: &mut Workspace) {
    let Workspace { inputs, outputs, slopes, normed, inv_stds, .. } = workspace;
    for l in chain.layers.clone() {
        // Layers are in order, so a layer reads one before it.
        let (before, from_here) = outputs.split_at_mut(l);
        let (layer, place) = (&net.layers[l], net.places[l]);
        let activation = place.activation.filter(|_| layer.norm.is_none());
        let input = rows(place.source.map_or(&inputs[chain.first..], |source| &before[source]), m);
        let mut of_panels = each_panel(&mut slopes[l], m);
        for (p, output) in each_panel(&mut from_here[0], m) {
            let slopes = of_panels.next().map_or(&mut [][..], |(_, slopes)| slopes);
            layer.forward::<S>(p, packed, input, activation, output, slopes);
        }
        drop(of_panels);
        if let (Some(norm), Some(activation)) = (&layer.norm, place.activation) {
            let [sums, normed, slopes] = [&mut from_here[0], &mut normed[l], &mut slopes[l]].map(|data| TileRows { data, m });
            norm.forward::<S, _>(packed, NormRows { sums, normed, inv_stds: &mut inv_stds[l] }, activation, slopes);
        }
    }
}

#[inline(always)]
fn chain_backward<S: Set>(
    net: &Net,
    index: usize,
    packed: &[f32],
    m: usize,
    workspace: &mut Workspace,
    first_panel: usize,
    mut grads: Option<(Init<'_>, &mut [f32])>,
) {
    let chain = &net.chains[index];
    let Workspace { inputs, outputs, slopes, normed, inv_stds, out_grads, delta: next, input_grads, .. } = workspace;
    let kept = |l: usize| if net.keeps_slopes(l) { &slopes[l] } else { &outputs[l] }.chunks_exact(TILE * PANEL);
    let (shared, own) = out_grads.split_at_mut(index);
    let delta = &mut own[0];
    if chain.activated {
        for ((_, delta), kept) in each_panel(delta, m).zip(kept(chain.last())) {
            net.activation.derive::<S>(kept, delta);
        }
    }
    for l in chain.layers.clone().rev() {
        let layer = &net.layers[l];
        let input = net.places[l].source.map_or(&inputs[chain.first..], |source| &outputs[source]);
        if let Some(norm) = &layer.norm {
            if let Some((init, grads)) = &mut grads {
                layer.sum_grads(norm.offset_grads(), rows(delta, m), *init, grads);
            }
            let [sums, kept] = [&mut **delta, &mut normed[l]].map(|data| TileRows { data, m });
            norm.backward::<S, _>(packed, NormRows { sums, normed: kept, inv_stds: &mut inv_stds[l] });
            if let Some((init, grads)) = &mut grads {
                layer.sum_grads(norm.grad, rows(&normed[l], m), *init, grads);
            }
        }
        let dz = rows(delta, m);
        if let Some((init, grads)) = &mut grads {
            layer.grads::<S>(rows(input, m), dz, *init, grads);
        }
        if l > chain.layers.start {
            for ((q, dx), kept) in each_panel(next, m).zip(kept(l - 1)) {
                layer.input_grad::<S>(q, packed, dz, Init::Zero, dx);
                net.activation.derive::<S>(kept, dx);
            }
            std::mem::swap(delta, next);
        } else if let Some(onto) =
            chain.from.map(|from| &mut shared[from][..]).or(input_grads.get_mut(chain.first..).filter(|grads| !grads.is_empty()))
        {
            let n = panels(layer.n_in);
            each_panel(onto, m).take(n).skip(first_panel).for_each(|(q, dx)| layer.input_grad::<S>(q, packed, dz, Init::Add, dx));
        }
    }
}
