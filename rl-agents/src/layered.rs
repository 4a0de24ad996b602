//! Wide networks: a minibatch passes layer by layer, and threads share every layer.
//!
//! In tiles, a network too wide for the cache would be read again for each of them, and each slice would need a gradient as large
//! as the network. Here a thread computes a panel of a layer's outputs for some hundred samples, or a block of a layer's gradient
//! for all samples. Each number has the operations of the [tile kernel](crate::tile) in the same order, so the bits are the same.

use std::ops::Range;

use rl_envs::isa::{Isa, Set, Work, dispatch};

use crate::dense::{BLOCK, Dense, GradPart, Rows};
use crate::gemm::{Init, PANEL, panels};
use crate::net::Net;
use crate::probe::{Stage, Threads};
use crate::samples::{Samples, TILE};
use crate::slices::MAX_SLICES;
use crate::tile::{BatchSlice, Stats, Tile, TileLoss};

/// Length of packed parameters from which networks pass layer by layer.
const WIDE: usize = 1 << 17;
/// Maximum numbers of a minibatch's activations and gradients.
///
/// Larger minibatches pass in tiles.
const MAX_NUMBERS: usize = 1 << 27;
/// Rows of a panel that are computed together.
const ROWS: usize = 2 * TILE;
/// Levels of the tree over slices.
const LEVELS: usize = MAX_SLICES.ilog2() as usize + 1;

/// Buffers of a minibatch. Matrices are (n, columns), in panels.
#[derive(Default)]
pub(crate) struct Layered {
    n: usize,
    inputs: Vec<f32>,
    outputs: Vec<Vec<f32>>,        // every layer's
    deltas: Vec<Vec<f32>>,         // gradients of every layer's sums
    out_grads: Vec<Vec<Vec<f32>>>, // each slice's, of every chain's outputs
}

/// Some rows of one panel of a layer.
struct Unit<'a> {
    layer: usize,
    panel: usize,
    first: usize,
    to: &'a mut [f32],
}

impl Unit<'_> {
    /// Range of the unit's samples within the minibatch.
    fn samples(&self) -> Range<usize> {
        self.first..self.first + self.to.len() / PANEL
    }
}

/// Cuts a matrix of `n` rows into units.
fn units(n: usize, layer: usize, matrix: &mut [f32]) -> impl Iterator<Item = Unit<'_>> {
    matrix.chunks_exact_mut(n * PANEL).enumerate().flat_map(move |(panel, rows)| {
        let rows = rows.chunks_mut(ROWS * PANEL).enumerate();
        rows.map(move |(i, to)| Unit { layer, panel, first: i * ROWS, to })
    })
}

/// Computes the matrices of the layers at one depth, unit by unit.
///
/// `compute` reads the matrices of the other layers.
fn compute_depth(
    (net, n, threads): (&Net, usize, Threads<'_>),
    (stage, depth): (Stage, usize),
    matrices: &mut [Vec<f32>],
    compute: impl Fn(&mut Unit<'_>, &[Vec<f32>]) + Sync,
) {
    let layers = (0..net.layers.len()).filter(|&l| net.places[l].depth == depth);
    let mut taken: Vec<_> = layers.map(|l| (l, std::mem::take(&mut matrices[l]))).collect();
    let mut all: Vec<_> = taken.iter_mut().flat_map(|(l, matrix)| units(n, *l, matrix)).collect();
    // A core keeps rows of the inputs in its cache, and reads panels of the weights.
    all.sort_by_key(|unit| unit.first);
    threads.each(stage, &mut all, &|unit| compute(unit, matrices));
    taken.into_iter().for_each(|(l, matrix)| matrices[l] = matrix);
}

/// True if minibatches that fit pass the networks layer by layer.
pub(crate) fn suits(net: &Net) -> bool {
    net.conv.is_none() && net.lens().packed >= WIDE
}

/// True if a minibatch of `n` samples of `sample` numbers is not too large.
pub(crate) fn fits(n: usize, sample: usize) -> bool {
    n.saturating_mul(sample) <= MAX_NUMBERS
}

impl Layered {
    /// Makes the buffers fit.
    fn reserve<S>(&mut self, net: &Net, n: usize, slices: &[BatchSlice<S>]) {
        let matrix = |n: usize, columns: usize| vec![0.0; n * panels(columns) * PANEL];
        if self.n != n || self.out_grads.len() != slices.len() {
            let all = || net.layers.iter().map(|layer| matrix(n, layer.n_out)).collect();
            let heads = net.chains.iter().map(|chain| if chain.activated { 0 } else { net.layers[chain.last()].n_out });
            let heads = heads.map(|n_out| matrix(n.div_ceil(slices.len()), n_out)).collect();
            let (inputs, out_grads) = (matrix(n, net.n_in), vec![heads; slices.len()]);
            *self = Self { n, inputs, outputs: all(), deltas: all(), out_grads };
        }
    }

    /// Writes the gradient (P) of the summed loss of the samples of all slices.
    pub(crate) fn gradient<S: Stats, L: TileLoss<S>>(
        &mut self,
        (isa, net, packed): (Isa, &Net, &[f32]),
        samples: Samples<'_>,
        slices: &mut [BatchSlice<S>],
        threads: Threads<'_>,
        loss: &L,
        gradient: &mut [f32],
    ) {
        let n = slices.last().map_or(0, |slice| slice.range.end);
        self.reserve(net, n, slices);
        let Self { inputs, outputs, deltas, out_grads, .. } = self;
        let with = (net, n, threads);

        let mut all: Vec<_> = units(n, 0, inputs).collect();
        threads.each(Stage::Inputs, &mut all, &|unit| {
            let columns = unit.panel * PANEL..net.n_in.min((unit.panel + 1) * PANEL);
            samples.copy(unit.samples(), net.n_in, columns, PANEL, unit.to);
        });
        for depth in 0..net.depth() {
            compute_depth(with, (Stage::Forward, depth), outputs, |unit, outputs| {
                let input = net.places[unit.layer].source.map_or(&*inputs, |source| &outputs[source]);
                let input = Rows::new(input, n, unit.samples());
                dispatch(isa, Forward { net, packed, input, unit });
            });
        }

        let height = n.div_ceil(slices.len());
        let mut all: Vec<_> = slices.iter_mut().zip(&mut *out_grads).collect();
        threads.each(Stage::Loss, &mut all, &|(slice, grads)| {
            dispatch(isa, LossPass { net, loss, outputs: (outputs, n), grads: (grads, height), slice });
        });
        for (c, chain) in net.chains.iter().enumerate().filter(|(_, chain)| !chain.activated) {
            for (slice, grads) in slices.iter().zip(&*out_grads) {
                let to = deltas[chain.last()].chunks_exact_mut(n * PANEL);
                for (to, from) in to.zip(grads[c].chunks_exact(height * PANEL)) {
                    let to = &mut to[slice.range.start * PANEL..slice.range.end * PANEL];
                    to.copy_from_slice(&from[..to.len()]);
                }
            }
        }

        for depth in (0..net.depth() - 1).rev() {
            compute_depth(with, (Stage::Backward, depth), deltas, |unit, deltas| {
                let dz = |reader: usize| Rows::new(&deltas[reader], n, unit.samples());
                let readers: Vec<_> = net.readers(unit.layer).map(|reader| (&net.layers[reader], dz(reader))).collect();
                let y = Rows::new(&outputs[unit.layer], n, unit.samples()).panel(unit.panel);
                dispatch(isa, Backward { net, packed, readers: &readers, y, unit });
            });
        }

        let ranges: Vec<Range<usize>> = slices.iter().map(|slice| slice.range.clone()).collect();
        let parts = |(l, layer): (usize, &Dense)| layer.grad_parts().map(|part| (l, part)).collect::<Vec<_>>();
        let mut parts: Vec<_> = net.layers.iter().enumerate().flat_map(parts).collect();
        parts.sort_by_key(|(_, (range, _))| range.start);
        let (mut rest, mut begin) = (gradient, 0);
        let mut all = Vec::with_capacity(parts.len());
        for (l, (range, part)) in parts {
            let (to, more) = std::mem::take(&mut rest)[range.start - begin..].split_at_mut(range.len());
            (rest, begin) = (more, range.end);
            let input = net.places[l].source.map_or(&*inputs, |source| &outputs[source]);
            all.push((l, part, Rows::new(input, n, 0..n), Rows::new(&deltas[l], n, 0..n), to));
        }
        threads.each(Stage::Backward, &mut all, &|(l, part, input, dz, to)| {
            dispatch(isa, Gradient { layer: &net.layers[*l], part: *part, input: *input, dz: *dz, slices: &ranges, to });
        });
    }
}

/// Outputs of a unit.
struct Forward<'a, 'b> {
    net: &'a Net,
    packed: &'a [f32],
    input: Rows<'a>,
    unit: &'a mut Unit<'b>,
}

impl Work for Forward<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Self { net, packed, input, unit: Unit { layer, panel, to, .. } } = self;
        net.layers[*layer].forward::<S>(*panel, packed, input, net.places[*layer].activation, to);
    }
}

/// The loss of a slice.
struct LossPass<'a, S, L> {
    net: &'a Net,
    loss: &'a L,
    /// Outputs of every layer, and the number of their rows.
    outputs: (&'a [Vec<f32>], usize),
    /// Gradients of every chain's outputs for the slice, and the number of their rows.
    grads: (&'a mut [Vec<f32>], usize),
    slice: &'a mut BatchSlice<S>,
}

impl<S, L: TileLoss<S>> Work for LossPass<'_, S, L> {
    type Output = ();

    #[inline(always)]
    fn run<I: Set>(self) {
        let Self { net, loss, outputs, grads, slice: BatchSlice { range, stats } } = self;
        for start in range.clone().step_by(TILE) {
            let samples = start..(start + TILE).min(range.end);
            let (outputs, out_grads) = ((outputs.0, outputs.1, start), (&mut *grads.0, grads.1, start - range.start));
            loss.tile(&mut Tile { net, outputs, out_grads, samples }, stats);
        }
    }
}

/// Gradients of the sums of a unit, from those of the layers that read it.
struct Backward<'a, 'b> {
    net: &'a Net,
    packed: &'a [f32],
    readers: &'a [(&'a Dense, Rows<'a>)],
    /// Outputs of the unit.
    y: &'a [f32],
    unit: &'a mut Unit<'b>,
}

impl Work for Backward<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Self { net, packed, readers, y, unit: Unit { panel, to, .. } } = self;
        for (i, (layer, dz)) in readers.iter().enumerate() {
            layer.input_grad::<S>(*panel, packed, *dz, if i == 0 { Init::Zero } else { Init::Add }, to);
        }
        // Layers without readers are heads, whose gradient is the loss's.
        if !readers.is_empty() {
            net.activation.derive::<S>(y, to);
        }
    }
}

/// A part of a layer's gradient, summed over the slices.
struct Gradient<'a, 'b> {
    layer: &'a Dense,
    part: GradPart,
    input: Rows<'a>,
    dz: Rows<'a>,
    slices: &'a [Range<usize>],
    to: &'a mut &'b mut [f32],
}

impl Work for Gradient<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Self { layer, part, input, dz, slices, to } = self;
        // The tree of `slices::tree`: level i holds the sum of a subtree that waits for its neighbour.
        let mut levels = [[0.0f32; BLOCK]; LEVELS];
        for p in 0..panels(layer.n_out) {
            for (i, slice) in slices.iter().enumerate() {
                let mut level = i.count_ones() as usize;
                levels[level].fill(0.0);
                for start in slice.clone().step_by(TILE) {
                    let tile = start..(start + TILE).min(slice.end);
                    let (input, dz, sum) = (input.part(tile.clone()), dz.part(tile), &mut levels[level]);
                    match part {
                        GradPart::Inputs(q) => layer.weight_grad::<S>((q, p), input, dz, sum),
                        GradPart::Bias => layer.bias_grad(p, dz, sum),
                    }
                }
                for _ in 0..i.trailing_ones() {
                    let (left, right) = levels.split_at_mut(level);
                    level -= 1;
                    left[level].iter_mut().zip(&right[0]).for_each(|(sum, x)| *sum += x);
                }
            }
            match part {
                GradPart::Inputs(q) => layer.unpack_block((q, p), &levels[0], to),
                GradPart::Bias => to.chunks_mut(PANEL).skip(p).take(1).for_each(|to| to.copy_from_slice(&levels[0][..to.len()])),
            }
        }
    }
}
