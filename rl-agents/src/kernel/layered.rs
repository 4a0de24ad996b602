//! Wide networks: a minibatch passes layer by layer, and threads share every layer.
//!
//! In tiles, a network too wide for the cache would be read again for each of them, and each slice would need a gradient as large
//! as the network. Here a thread computes a panel of a layer's outputs for some hundred samples, or a block of a layer's gradient
//! for all samples. Each number has the operations of the [tile kernel](crate::kernel::tile) in the same order, so the bits are
//! the same.

use std::ops::Range;
use std::sync::Mutex;

use rl_envs::isa::{Set, Work, dispatch};

use crate::kernel::aligned::Aligned;
use crate::kernel::dense::{BLOCK, Dense, GradPart};
use crate::kernel::gemm::{CACHED_ROWS, Init, PANEL, Rows, panels};
use crate::kernel::net::{Net, PackedNet};
use crate::kernel::samples::{Samples, TILE};
use crate::kernel::slices::{BatchSlice, MAX_SLICES};
use crate::kernel::tile::{SliceLoss, Stats, Tile, TileLoss, visit};
use crate::network::layer_norm::NormRows;
use crate::probe::{Stage, Threads};

/// Length of packed parameters from which networks pass layer by layer.
const WIDE: usize = 1 << 17;
/// Maximum samples of a chunk, whose panels stay in the cache of a core.
pub(crate) const CHUNK: usize = 8 * TILE;
/// Samples of a tile whose outputs are read, few enough for several threads.
const READ_ROWS: usize = TILE / 3 * 2;
/// Levels of the tree over slices.
const LEVELS: usize = MAX_SLICES.ilog2() as usize + 1;

/// Buffers of a chunk. Matrices are (height, columns), in panels.
#[derive(Default)]
pub(crate) struct Layered {
    height: usize,
    /// Number of samples of a minibatch that has gone forward, and not back.
    forward_of: Option<usize>,
    inputs: Aligned,
    outputs: Vec<Aligned>,        // every layer's
    slopes: Vec<Aligned>,         // every layer's whose activation keeps them
    deltas: Vec<Aligned>,         // gradients of every layer's sums
    normed: Vec<Aligned>,         // every layer's that normalizes its sums: these numbers, then terms of the gains' gradient
    terms: Vec<Aligned>,          // terms of the gradient of their offsets
    inv_stds: Vec<Aligned>,       // likewise, (height) each
    out_grads: Vec<Vec<Aligned>>, // each tile's, (TILE, columns) of every chain's outputs
    sums: Aligned,                // levels of the tree, of every block of the gradient, if there are several chunks
    levels: Vec<Mutex<Aligned>>,  // each thread's, of a block, used if there is one chunk
}

/// A tile of a slice.
struct SliceTile {
    slice: usize,
    samples: Range<usize>,
    /// True for the first and the last tile of the slice.
    first: bool,
    last: bool,
}

/// Cuts slices into tiles, and these into chunks.
fn chunks<'a>(slices: impl Iterator<Item = &'a Range<usize>>) -> Vec<Vec<SliceTile>> {
    let mut chunks: Vec<Vec<SliceTile>> = Vec::new();
    for (slice, range) in slices.enumerate() {
        for start in range.clone().step_by(TILE) {
            let samples = start..(start + TILE).min(range.end);
            if chunks.last().is_none_or(|chunk| samples.end - chunk[0].samples.start > CHUNK) {
                chunks.push(Vec::new());
            }
            let (first, last) = (start == range.start, samples.end == range.end);
            chunks.last_mut().expect("a chunk was added").push(SliceTile { slice, samples, first, last });
        }
    }
    chunks
}

/// Samples of a chunk.
fn rows_of(chunk: &[SliceTile]) -> Range<usize> {
    chunk[0].samples.start..chunk[chunk.len() - 1].samples.end
}

/// Some rows of one panel of a layer.
struct Unit<'a> {
    layer: usize,
    panel: usize,
    first: usize,
    to: &'a mut [f32],
    /// Slopes of these numbers, if they are outputs whose activation keeps them.
    slopes: &'a mut [f32],
}

impl Unit<'_> {
    /// Range of the unit's samples within the chunk.
    fn samples(&self) -> Range<usize> {
        self.first..self.first + self.to.len() / PANEL
    }
}

/// Cuts the first `n` rows of a matrix with some panels into units.
///
/// `slopes` are as many numbers, or none.
fn units<'a>(
    n: usize,
    n_panels: usize,
    layer: usize,
    matrix: &'a mut [f32],
    slopes: &'a mut [f32],
) -> impl Iterator<Item = Unit<'a>> {
    let panel_len = matrix.len() / n_panels;
    let mut slopes = slopes.chunks_exact_mut(panel_len);
    matrix.chunks_exact_mut(panel_len).enumerate().flat_map(move |(panel, rows)| {
        let mut slopes = slopes.next().unwrap_or_default().chunks_mut(CACHED_ROWS * PANEL);
        let rows = rows[..n * PANEL].chunks_mut(CACHED_ROWS * PANEL).enumerate();
        rows.map(move |(i, to)| {
            let slopes = slopes.next().map_or(&mut [][..], |slopes| &mut slopes[..to.len()]);
            Unit { layer, panel, first: i * CACHED_ROWS, to, slopes }
        })
    })
}

/// Computes the first `n` rows of the layers at one depth, unit by unit.
///
/// `compute` reads the matrices of the other layers. The list of slopes may be empty.
#[expect(clippy::too_many_arguments, reason = "what a stage is of")]
fn compute_depth(
    net: &Net,
    n: usize,
    threads: Threads<'_>,
    stage: Stage,
    depth: usize,
    matrices: &mut [Aligned],
    slopes: &mut [Aligned],
    compute: impl Fn(&mut Unit<'_>, &[Aligned]) + Sync,
) {
    let layers = (0..net.layers.len()).filter(|&l| net.places[l].depth == depth);
    let mut taken: Vec<_> = layers
        .map(|l| (l, std::mem::take(&mut matrices[l]), slopes.get_mut(l).map(std::mem::take).unwrap_or_default()))
        .collect();
    let all = taken.iter_mut().flat_map(|(l, matrix, slopes)| units(n, panels(net.layers[*l].n_out), *l, matrix, slopes));
    let mut all: Vec<_> = all.collect();
    // A thread's share is one network, or its neighbouring rows, whose weights and inputs its cache has from the depth before. It
    // keeps rows of the inputs, and reads panels of the weights.
    all.sort_by_key(|unit| (unit.layer, unit.first));
    threads.each(stage, &mut all, &|unit| compute(unit, matrices));
    for (l, matrix, kept) in taken {
        matrices[l] = matrix;
        if let Some(slopes) = slopes.get_mut(l) {
            *slopes = kept;
        }
    }
}

/// True if minibatches that fit pass the networks layer by layer.
pub(crate) fn suits(net: &Net) -> bool {
    net.encoder.is_none() && net.memory.is_none() && net.lens().packed >= WIDE
}

/// Rows of the panels for a minibatch of `n` samples.
///
/// Those of a chunk, filled up to an odd multiple of 32: the same rows of all panels then lie in different sets of a cache.
/// Panels of 512 rows would all share those of a few.
pub(crate) fn height(n: usize) -> usize {
    n.min(CHUNK).div_ceil(32) / 2 * 64 + 32
}

impl Layered {
    /// Makes the buffers fit one chunk of `height` rows, or several.
    fn reserve(&mut self, net: &Net, height: usize, several: bool) {
        let matrix = |columns: usize| Aligned::zeros(height * panels(columns) * PANEL);
        if self.height < height {
            let all = || net.layers.iter().map(|layer| matrix(layer.n_out)).collect();
            let slopes = net.slopes(matrix);
            let [normed, terms, inv_stds] = [net.normed(matrix), net.normed(matrix), net.normed(|_| Aligned::zeros(height))];
            let (inputs, outputs, deltas) = (matrix(net.n_in), all(), all());
            *self = Self { height, inputs, outputs, slopes, deltas, normed, terms, inv_stds, ..Self::default() };
        }
        if several && self.sums.is_empty() {
            self.sums = Aligned::zeros(sums_len(net));
        }
    }

    /// Runs `n` samples forward, as the first half of their gradient.
    ///
    /// The caller takes the gradient of the same samples and parameters next. `item(m)` makes what `read` gets beside a tile of
    /// m samples.
    pub(crate) fn run_forward<T: Send>(
        &mut self,
        kernel: PackedNet<'_>,
        samples: Samples<'_>,
        n: usize,
        threads: Threads<'_>,
        mut item: impl FnMut(usize) -> T,
        read: &(impl Fn(&Tile<'_>, &mut T) + Sync),
    ) {
        debug_assert!(n <= CHUNK, "the outputs of one chunk are kept");
        self.reserve(kernel.net, height(n), false);
        self.forward(kernel, samples, threads, 0..n);
        self.forward_of = Some(n);
        let tiles = (0..n).step_by(READ_ROWS).map(|start| start..(start + READ_ROWS).min(n));
        let tiles = tiles.map(|samples| (item(samples.len()), samples));
        let outputs = (&*self.outputs, self.height);
        threads.each(Stage::Forward, &mut tiles.collect::<Vec<_>>(), &|(item, samples)| {
            let outputs = (outputs.0, outputs.1, samples.start);
            let tile = Tile { net: kernel.net, outputs, out_grads: (&mut [], TILE, 0), samples: samples.clone() };
            visit(kernel.isa, tile, &mut |tile: &mut Tile<'_>| read(tile, item));
        });
    }

    /// Writes the gradient (P) of the summed loss of the samples of all slices.
    ///
    /// Those of one chunk may have [gone forward](Self::run_forward).
    pub(crate) fn gradient<S: Stats, L: TileLoss<S>>(
        &mut self,
        kernel: PackedNet<'_>,
        samples: Samples<'_>,
        slices: &mut [BatchSlice<S>],
        threads: Threads<'_>,
        loss: &L,
        gradient: &mut [f32],
    ) {
        let chunks = chunks(slices.iter().map(|slice| &slice.range));
        let n = slices.iter().map(|slice| slice.range.len()).sum::<usize>();
        self.reserve(kernel.net, height(n), chunks.len() > 1);
        let forward_of = self.forward_of.take();
        for (i, chunk) in chunks.iter().enumerate() {
            if forward_of != Some(n) {
                self.forward(kernel, samples, threads, rows_of(chunk));
            }
            self.loss(kernel, slices, threads, loss, chunk);
            self.backward(kernel, threads, chunk);
            self.weights(kernel, threads, chunk, chunks.len() > 1, i + 1 == chunks.len(), gradient);
        }
    }

    /// Computes a chunk's outputs.
    fn forward(&mut self, kernel: PackedNet<'_>, samples: Samples<'_>, threads: Threads<'_>, chunk: Range<usize>) {
        let PackedNet { isa, net, packed } = kernel;
        let Self { height, inputs, outputs, slopes, normed, inv_stds, .. } = self;
        let (height, n) = (*height, chunk.len());
        let mut all: Vec<_> = units(n, panels(net.n_in), 0, inputs, &mut []).collect();
        threads.each(Stage::Inputs, &mut all, &|unit| {
            let columns = unit.panel * PANEL..net.n_in.min((unit.panel + 1) * PANEL);
            let range = chunk.start + unit.first..chunk.start + unit.samples().end;
            samples.copy(range, net.n_in, columns, PANEL, unit.to);
        });
        for depth in 0..net.depth() {
            compute_depth(net, n, threads, Stage::Forward, depth, outputs, slopes, |unit, outputs| {
                let input = net.places[unit.layer].source.map_or(&*inputs, |source| &outputs[source]);
                let input = Rows::new(input, height, unit.samples());
                dispatch(isa, Forward { net, packed, input, unit });
            });
            let mut all = norm_units(net, depth, n, height, [&mut *outputs, normed, slopes], inv_stds);
            threads.each(Stage::Forward, &mut all, &|unit| dispatch(isa, Normalize { net, packed, back: false, unit }));
        }
    }

    /// Computes the gradients of the sums of a chunk's heads.
    fn loss<S: Stats, L: TileLoss<S>>(
        &mut self,
        PackedNet { isa, net, .. }: PackedNet<'_>,
        slices: &mut [BatchSlice<S>],
        threads: Threads<'_>,
        loss: &L,
        chunk: &[SliceTile],
    ) {
        let Self { height, outputs, out_grads, .. } = self;
        let (height, start) = (*height, rows_of(chunk).start);
        while out_grads.len() < chunk.len() {
            let heads = net.chains.iter().map(|chain| if chain.activated { 0 } else { net.layers[chain.last()].n_out });
            out_grads.push(heads.map(|n_out| Aligned::zeros(TILE * panels(n_out) * PANEL)).collect());
        }
        let mut tiles = chunk.iter().zip(&mut *out_grads).peekable();
        let mut all = Vec::new();
        for (i, BatchSlice { stats, .. }) in slices.iter_mut().enumerate() {
            let of_slice: Vec<_> = std::iter::from_fn(|| tiles.next_if(|(tile, _)| tile.slice == i)).collect();
            all.push((stats, of_slice));
        }
        threads.each(Stage::Loss, &mut all, &|(stats, tiles)| {
            for (tile, grads) in tiles {
                let outputs = (&**outputs, height, tile.samples.start - start);
                let tile = Tile { net, outputs, out_grads: (grads, TILE, 0), samples: tile.samples.clone() };
                visit(isa, tile, &mut SliceLoss { loss, stats: &mut **stats });
            }
        });
    }

    /// Computes the gradients of every layer's sums from those of a chunk's heads.
    fn backward(&mut self, PackedNet { isa, net, packed }: PackedNet<'_>, threads: Threads<'_>, chunk: &[SliceTile]) {
        let Self { height, outputs, slopes, deltas, normed, terms, inv_stds, out_grads, .. } = self;
        let (height, Range { start, end }) = (*height, rows_of(chunk));
        let n = end - start;
        for (c, chain) in net.chains.iter().enumerate().filter(|(_, chain)| !chain.activated) {
            for (tile, grads) in chunk.iter().zip(&*out_grads) {
                let rows = (tile.samples.start - start) * PANEL..(tile.samples.end - start) * PANEL;
                let to = deltas[chain.last()].chunks_exact_mut(height * PANEL);
                for (to, from) in to.zip(grads[c].chunks_exact(TILE * PANEL)) {
                    to[rows.clone()].copy_from_slice(&from[..rows.len()]);
                }
            }
        }
        for depth in (0..net.depth() - 1).rev() {
            compute_depth(net, n, threads, Stage::Backward, depth, deltas, &mut [], |unit, deltas| {
                let dz = |reader: usize| Rows::new(&deltas[reader], height, unit.samples());
                let readers: Vec<_> = net.readers(unit.layer).map(|reader| (&net.layers[reader], dz(reader))).collect();
                let kept = if net.keeps_slopes(unit.layer) { &slopes[unit.layer] } else { &outputs[unit.layer] };
                let kept = Rows::new(kept, height, unit.samples()).panel(unit.panel);
                dispatch(isa, Backward { net, packed, readers: &readers, kept, unit });
            });
            let mut all = norm_units(net, depth, n, height, [&mut *deltas, normed, terms], inv_stds);
            threads.each(Stage::Backward, &mut all, &|unit| dispatch(isa, Normalize { net, packed, back: true, unit }));
        }
    }

    /// Adds a chunk to the sums of the gradient.
    ///
    /// The gradient is complete after the last chunk.
    fn weights(
        &mut self,
        PackedNet { isa, net, .. }: PackedNet<'_>,
        threads: Threads<'_>,
        chunk: &[SliceTile],
        several: bool,
        last: bool,
        gradient: &mut [f32],
    ) {
        let Self { height, inputs, outputs, deltas, normed, terms, sums, levels, .. } = self;
        let n = rows_of(chunk).len();
        while levels.len() < threads.pool.n_threads() {
            levels.push(Mutex::new(Aligned::zeros(LEVELS * BLOCK)));
        }
        let mut parts: Vec<_> = grad_parts(net).collect();
        parts.sort_by_key(|(_, (range, _))| range.start);
        let (mut rest, mut begin, mut sums) = (gradient, 0, &mut sums[..]);
        let mut all = Vec::with_capacity(parts.len());
        for (l, (range, part)) in parts {
            let (to, more) = std::mem::take(&mut rest)[range.start - begin..].split_at_mut(range.len());
            (rest, begin) = (more, range.end);
            let layer = &net.layers[l];
            let len = if several { panels(layer.n_out) * LEVELS * BLOCK } else { 0 };
            let (kept, more) = std::mem::take(&mut sums).split_at_mut(len);
            sums = more;
            let input = net.places[l].source.map_or(&*inputs, |source| &outputs[source]);
            let summed = match part {
                GradPart::Inputs(_) | GradPart::Bias => &deltas[l],
                GradPart::Gain => &normed[l],
                GradPart::Offset => &terms[l],
            };
            let (input, dz) = (Rows::new(input, *height, 0..n), Rows::new(summed, *height, 0..n));
            all.push(Gradient { layer, part, input, dz, chunk, last, kept, to });
        }
        threads.each_with(Stage::Backward, &mut all, levels, &|part, levels| dispatch(isa, AddChunk { part, levels }));
    }
}

/// Parts of the gradients of all layers, each with the index of its layer.
fn grad_parts(net: &Net) -> impl Iterator<Item = (usize, (Range<usize>, GradPart))> {
    net.layers.iter().enumerate().flat_map(|(l, layer)| layer.grad_parts().map(move |part| (l, part)))
}

/// Length of the levels of all blocks.
pub(crate) fn sums_len(net: &Net) -> usize {
    grad_parts(net).map(|(l, _)| panels(net.layers[l].n_out) * LEVELS * BLOCK).sum()
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
        let Self { net, packed, input, unit: Unit { layer, panel, to, slopes, .. } } = self;
        let (layer, place) = (&net.layers[*layer], net.places[*layer]);
        layer.forward::<S>(*panel, packed, input, place.activation.filter(|_| layer.norm.is_none()), to, slopes);
    }
}

/// Gradients of the sums of a unit, from those of the layers that read it.
struct Backward<'a, 'b> {
    net: &'a Net,
    packed: &'a [f32],
    readers: &'a [(&'a Dense, Rows<'a>)],
    /// Outputs of the unit, or the slopes that its activation keeps.
    kept: &'a [f32],
    unit: &'a mut Unit<'b>,
}

impl Work for Backward<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Self { net, packed, readers, kept, unit: Unit { panel, to, .. } } = self;
        debug_assert!(net.goes_back, "the transposed weights are not packed");
        for (i, (layer, dz)) in readers.iter().enumerate() {
            layer.input_grad::<S>(*panel, packed, *dz, if i == 0 { Init::Zero } else { Init::Add }, to);
        }
        // Layers without readers are heads, whose gradient is the loss's.
        if !readers.is_empty() {
            net.activation.derive::<S>(kept, to);
        }
    }
}

/// Some rows of a layer's normalization.
struct NormUnit<'a> {
    layer: usize,
    /// Outputs, normalized sums, and slopes.
    ///
    /// On the way back gradients, normalized sums, and terms of the gradient of the offsets.
    matrices: [Vec<&'a mut [f32]>; 3],
    inv_stds: &'a mut [f32],
}

/// Cuts the first `n` rows of a matrix into groups: a part of every panel each.
fn row_groups(n: usize, height: usize, matrix: &mut [f32]) -> Vec<Vec<&mut [f32]>> {
    let mut groups: Vec<_> = (0..n.div_ceil(CACHED_ROWS)).map(|_| Vec::new()).collect();
    for panel in matrix.chunks_exact_mut(height * PANEL) {
        panel[..n * PANEL].chunks_mut(CACHED_ROWS * PANEL).zip(&mut groups).for_each(|(rows, group)| group.push(rows));
    }
    groups
}

/// Cuts the first `n` rows of the normalizations at one depth into units.
fn norm_units<'a>(
    net: &Net,
    depth: usize,
    n: usize,
    height: usize,
    [a, b, c]: [&'a mut [Aligned]; 3],
    inv_stds: &'a mut [Aligned],
) -> Vec<NormUnit<'a>> {
    let mut all = Vec::new();
    for (layer, (((a, b), c), inv_stds)) in a.iter_mut().zip(b).zip(c).zip(inv_stds).enumerate() {
        if net.places[layer].depth == depth && net.layers[layer].norm.is_some() {
            let [a, b, c] = [a, b, c].map(|matrix| row_groups(n, height, matrix));
            let groups = a.into_iter().zip(b).zip(c).zip(inv_stds.chunks_mut(CACHED_ROWS));
            all.extend(groups.map(|(((a, b), c), inv_stds)| NormUnit { layer, matrices: [a, b, c], inv_stds }));
        }
    }
    all
}

/// Rows on their way through a normalization, forward or back.
struct Normalize<'a, 'b> {
    net: &'a Net,
    packed: &'a [f32],
    back: bool,
    unit: &'a mut NormUnit<'b>,
}

impl Work for Normalize<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Self { net, packed, back, unit: NormUnit { layer, matrices: [sums, normed, other], inv_stds } } = self;
        let (Some(norm), Some(activation)) = (&net.layers[*layer].norm, net.places[*layer].activation) else { return };
        if back {
            other.iter_mut().zip(&*sums).for_each(|(terms, from)| terms.copy_from_slice(from));
            norm.backward::<S, _>(packed, NormRows { sums, normed, inv_stds });
        } else {
            norm.forward::<S, _>(packed, NormRows { sums, normed, inv_stds }, activation, other);
        }
    }
}

/// A part of a layer's gradient, to which a chunk is added.
struct Gradient<'a> {
    layer: &'a Dense,
    part: GradPart,
    input: Rows<'a>,
    dz: Rows<'a>,
    chunk: &'a [SliceTile],
    /// True for the last chunk.
    last: bool,
    /// Levels of the blocks' trees, from chunk to chunk; empty if there is one.
    kept: &'a mut [f32],
    to: &'a mut [f32],
}

/// A part that a chunk is added to, and levels to use if none are kept.
struct AddChunk<'a, 'b> {
    part: &'b mut Gradient<'a>,
    levels: &'b mut [f32],
}

impl Work for AddChunk<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Gradient { layer, part, input, dz, chunk, last, kept, to } = self.part;
        if let GradPart::Inputs(q) = part
            && kept.is_empty()
            && layer.misses(*q, *input)
        {
            return to.fill(0.0);
        }
        // The tree of `slices::tree`: level i holds the sum of a subtree that waits for its neighbour.
        let own = self.levels.as_chunks_mut::<BLOCK>().0;
        let mut kept = kept.as_chunks_mut::<BLOCK>().0.chunks_exact_mut(LEVELS);
        for p in 0..panels(layer.n_out) {
            let (levels, len) = (kept.next().unwrap_or(&mut *own), layer.block_len(*part, p));
            for tile in *chunk {
                let mut level = tile.slice.count_ones() as usize;
                let mut ended = if tile.last { tile.slice.trailing_ones() } else { 0 };
                let mut init = if tile.first { Init::Cleared } else { Init::Add };
                if tile.first && ended > 0 {
                    // A slice of one tile needs no level of its own beside its neighbour's.
                    (level, ended, init) = (level - 1, ended - 1, Init::Add);
                }
                let rows = tile.samples.start - chunk[0].samples.start..tile.samples.end - chunk[0].samples.start;
                let (input, dz, sum) = (input.part(rows.clone()), dz.part(rows), &mut levels[level][..len]);
                match part {
                    GradPart::Inputs(q) => layer.weight_grad::<S>(*q, p, input, dz, init, sum),
                    _ => layer.bias_grad(p, dz, init, sum),
                }
                for _ in 0..ended {
                    let (left, right) = levels.split_at_mut(level);
                    level -= 1;
                    left[level][..len].iter_mut().zip(&right[0][..len]).for_each(|(sum, x)| *sum += x);
                }
            }
            match part {
                _ if !*last => {}
                GradPart::Inputs(q) => layer.unpack_block(*q, p, &levels[0], to),
                _ => {
                    let to = &mut to[p * PANEL..layer.n_out.min((p + 1) * PANEL)];
                    to.copy_from_slice(&levels[0][..to.len()]);
                }
            }
        }
    }
}
