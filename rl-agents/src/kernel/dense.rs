//! A dense layer in the layouts of the network kernel, and its three products.
//!
//! Inputs and outputs of samples are in panels (see [`gemm`](crate::kernel::gemm)), and so are the packed weights (in, out) and
//! their transpose (out, in). The unit of a forward pass is a panel of the outputs; of the gradient of the inputs, a panel of the
//! inputs; of the gradient of the weights, a block: one panel of the inputs by one of the outputs. No unit depends on another, so
//! threads can share a layer. Layers with few outputs get their gradient transposed, which pads less.

use std::ops::Range;
use std::sync::Arc;

use rl_envs::isa::Set;

use crate::kernel::encoder::categories::Categories;
use crate::kernel::gemm::{
    Fixed, Init, Matrix, PANEL, ProductSize, RowMajor, Rows, Stride, add_rows, multiply, pad, panels, reserve, width,
};
use crate::network::activation::Activation;
use crate::network::layer_norm::{LayerNorm, PackedNorm};
use crate::network::mlp::Linear;

/// Maximum numbers of a block of the gradient.
pub(crate) const BLOCK: usize = PANEL * PANEL;
/// Rows of the transpose that stay in the cache while they are written.
const PACKED_ROWS: usize = 64;

/// A part of a layer's gradient.
#[derive(Clone, Copy)]
pub(crate) enum GradPart {
    /// The blocks of one panel of the inputs.
    Inputs(usize),
    Bias,
    /// Gains of the normalization.
    Gain,
    /// Offsets of the normalization.
    Offset,
}

/// A part of a layer's packed parameters.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    /// A panel of the weights.
    Weight(usize),
    Bias,
    /// A panel of the transpose.
    Transpose(usize),
    /// Gains and offsets of the normalization.
    Norm,
}

/// Inputs that are runs of equal length, with padding after each.
#[derive(Clone, Copy, Debug)]
struct Runs {
    /// Index of the first input with padding, and without.
    first: usize,
    first_real: usize,
    /// Length of a run with its padding, and without.
    padded: usize,
    real: usize,
}

/// Runs of a layer's inputs.
///
/// One run, or one for each position of a convolution and one for numbers beside pictures.
#[derive(Clone, Debug, Default)]
pub(crate) struct InputRuns {
    all: Vec<Runs>,
    len: usize,
}

impl InputRuns {
    /// One run of `n` inputs.
    pub(crate) fn one(n: usize) -> Self {
        let mut runs = Self::default();
        runs.push([n, n, pad(n)]);
        runs
    }

    /// Appends `len` inputs: runs of `real` ones in the place of `padded`.
    pub(crate) fn push(&mut self, [len, real, padded]: [usize; 3]) {
        let first_real = if self.len == 0 { 0 } else { self.real_before(self.len) };
        self.all.push(Runs { first: self.len, first_real, padded, real });
        self.len += len;
    }

    /// Number of inputs, including padding.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the runs that input `i` belongs to, or the last ones.
    fn of(&self, i: usize) -> &Runs {
        self.all.iter().rfind(|runs| runs.first <= i).expect("the first runs begin at 0")
    }

    /// Number of inputs before input `i` without padding.
    fn real_before(&self, i: usize) -> usize {
        let Runs { first, first_real, padded, real } = *self.of(i);
        first_real + (i - first) / padded * real + ((i - first) % padded).min(real)
    }

    /// True if input `i` is no padding.
    fn is_real(&self, i: usize) -> bool {
        let Runs { first, padded, real, .. } = *self.of(i);
        (i - first) % padded < real
    }
}

/// One dense layer, with the offsets of its parts.
#[derive(Clone, Debug)]
pub(crate) struct Dense {
    /// Number of inputs, including padding between runs.
    pub(crate) n_in: usize,
    pub(crate) n_out: usize,
    runs: InputRuns,
    /// Ranges of the flat parameter vector: (in, out), (out).
    pub(crate) weight: Range<usize>,
    pub(crate) bias: Range<usize>,
    /// Offsets in the packed parameters.
    ///
    /// The weights are (in, padded out) in panels, the biases (padded out), the transpose (out, padded in) in panels.
    packed_weight: usize,
    packed_bias: usize,
    packed_transpose: usize,
    /// Offsets in the gradient.
    ///
    /// The weights are blocks, one panel of inputs after the other; the biases are (padded out).
    grad_weight: usize,
    grad_bias: usize,
    /// True if blocks are (out, padded in) instead of (in, padded out).
    transposed: bool,
    /// Categories among the elements of the observations that the layer reads.
    ///
    /// Its inputs are those of the elements. The layer has no transpose: nothing needs the gradient of its inputs.
    categories: Option<Arc<Categories>>,
    /// Normalization of its sums.
    pub(crate) norm: Option<PackedNorm>,
}

impl Dense {
    /// Reserves space in the packed parameters and the gradient.
    pub(crate) fn new(
        linear: &Linear,
        runs: InputRuns,
        categories: Option<Arc<Categories>>,
        packed_len: &mut usize,
        grad_len: &mut usize,
    ) -> Self {
        let (n_in, n_out) = (runs.len(), linear.n_out);
        let transposed = categories.is_none() && n_out * pad(n_in) < n_in * pad(n_out);
        Self {
            n_in,
            n_out,
            runs,
            weight: linear.weight.clone(),
            bias: linear.bias.clone(),
            packed_weight: reserve(packed_len, n_in * pad(n_out)),
            packed_bias: reserve(packed_len, pad(n_out)),
            packed_transpose: reserve(packed_len, if categories.is_some() { 0 } else { n_out * pad(n_in) }),
            grad_weight: reserve(grad_len, if transposed { n_out * pad(n_in) } else { n_in * pad(n_out) }),
            grad_bias: reserve(grad_len, pad(n_out)),
            transposed,
            categories,
            norm: linear.norm.as_ref().map(|norm: &LayerNorm| PackedNorm {
                norm: norm.clone(),
                packed: reserve(packed_len, PackedNorm::packed_len(n_out)),
                grad: reserve(grad_len, PackedNorm::packed_len(n_out)),
            }),
        }
    }

    /// Computes panel `p` of the outputs of some rows, (m, 64).
    ///
    /// Slopes of the activation are kept in `slopes`, (m, 64) or empty.
    #[inline(always)]
    pub(crate) fn forward<S: Set>(
        &self,
        p: usize,
        packed: &[f32],
        input: Rows<'_>,
        activation: Option<Activation>,
        output: &mut [f32],
        slopes: &mut [f32],
    ) {
        let (n, first) = (width(self.n_out, p), p * PANEL);
        let b = &packed[self.packed_weight + first * self.n_in..][..n * self.n_in];
        let bias = &packed[self.packed_bias + first..][..n];
        match &self.categories {
            Some(categories) => categories.forward::<S>(input, b, bias, output),
            None => {
                let (b, size) = (RowMajor { data: b, stride: n }, ProductSize { m: input.m, n, k: self.n_in });
                multiply::<S>(output, Fixed::<PANEL>, input.matrix(), b, size, Init::Bias(bias));
            }
        }
        let Some(activation) = activation else { return };
        if n == PANEL {
            return activation.apply::<S>(output, slopes);
        }
        let mut slopes = slopes.chunks_exact_mut(PANEL);
        for row in output.chunks_exact_mut(PANEL) {
            activation.apply::<S>(&mut row[..n], slopes.next().map_or(&mut [], |slopes| &mut slopes[..n]));
        }
    }

    /// Computes panel `q` of the gradient of the inputs of some rows, (m, 64).
    #[inline(always)]
    pub(crate) fn input_grad<S: Set>(&self, q: usize, packed: &[f32], dz: Rows<'_>, init: Init<'_>, dx: &mut [f32]) {
        let n = width(self.n_in, q);
        let b = &packed[self.packed_transpose + q * PANEL * self.n_out..][..n * self.n_out];
        let (b, size) = (RowMajor { data: b, stride: n }, ProductSize { m: dz.m, n, k: self.n_out });
        multiply::<S>(dx, Fixed::<PANEL>, dz.matrix(), b, size, init);
    }

    /// Computes a tile's gradient of block (q, p) of the weights.
    ///
    /// `dz` is the gradient of its outputs. `init` says whether it replaces `grad` or is added.
    #[inline(always)]
    pub(crate) fn weight_grad<S: Set>(
        &self,
        q: usize,
        p: usize,
        input: Rows<'_>,
        dz: Rows<'_>,
        init: Init<'_>,
        grad: &mut [f32],
    ) {
        let (m, rows, n) = (input.m, self.block_rows(q, p), self.block_width(q, p));
        if let Some(categories) = &self.categories {
            if let Init::Cleared = init {
                grad[..rows * n].fill(0.0);
            }
            return categories.weight_grad::<S>(q, input, dz.panel(p), &mut grad[..rows * n], n);
        }
        let (a, b) = if self.transposed { (dz.panel(p), input.panel(q)) } else { (input.panel(q), dz.panel(p)) };
        let a = Matrix { data: a, rows: Fixed::<1>, columns: Fixed::<PANEL> };
        let (b, size) = (RowMajor { data: b, stride: PANEL }, ProductSize { m: rows, n, k: m });
        multiply::<S>(&mut grad[..rows * n], Stride(n), a, b, size, init);
    }

    /// True if panel `q` of the inputs holds categories that no sample has.
    ///
    /// Its gradient is 0.
    pub(crate) fn misses(&self, q: usize, input: Rows<'_>) -> bool {
        self.categories.as_ref().is_some_and(|categories| categories.misses(q, input))
    }

    /// Computes a tile's gradient of panel `p` of the biases.
    ///
    /// `init` says whether it replaces `grad` or is added.
    #[inline(always)]
    pub(crate) fn bias_grad(&self, p: usize, dz: Rows<'_>, init: Init<'_>, grad: &mut [f32]) {
        let grad = &mut grad[..width(self.n_out, p)];
        if let Init::Cleared = init {
            grad.fill(0.0);
        }
        add_rows(dz.panel(p), PANEL, dz.m, grad);
    }

    /// Computes a tile's gradients of biases, gains or offsets: sums of `terms`.
    ///
    /// `at` is their offset in `grads`. `init` says whether they replace the slice's or are added.
    #[inline(always)]
    pub(crate) fn sum_grads(&self, at: usize, terms: Rows<'_>, init: Init<'_>, grads: &mut [f32]) {
        for p in 0..panels(self.n_out) {
            self.bias_grad(p, terms, init, &mut grads[at + p * PANEL..]);
        }
    }

    /// Computes a tile's gradients of weights and biases.
    ///
    /// `init` says whether they replace the slice's or are added.
    #[inline(always)]
    pub(crate) fn grads<S: Set>(&self, input: Rows<'_>, dz: Rows<'_>, init: Init<'_>, grads: &mut [f32]) {
        for (q, p) in self.blocks() {
            let grad = &mut grads[self.grad_weight + self.block_start(q, p)..];
            self.weight_grad::<S>(q, p, input, dz, init, grad);
        }
        self.sum_grads(self.grad_bias, dz, init, grads);
    }

    /// Blocks of the weights: a panel of the inputs and one of the outputs.
    fn blocks(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (inputs, outputs) = (panels(self.n_in), panels(self.n_out));
        (0..inputs).flat_map(move |q| (0..outputs).map(move |p| (q, p)))
    }

    /// Length of the block of a part of the gradient in panel `p` of the outputs.
    pub(crate) fn block_len(&self, part: GradPart, p: usize) -> usize {
        match part {
            GradPart::Inputs(q) => self.block_rows(q, p) * self.block_width(q, p),
            GradPart::Bias | GradPart::Gain | GradPart::Offset => width(self.n_out, p),
        }
    }

    fn block_rows(&self, q: usize, p: usize) -> usize {
        if self.transposed { (self.n_out - p * PANEL).min(PANEL) } else { (self.n_in - q * PANEL).min(PANEL) }
    }

    fn block_width(&self, q: usize, p: usize) -> usize {
        if self.transposed { width(self.n_in, q) } else { width(self.n_out, p) }
    }

    /// Offset of a block in the gradient of the weights.
    fn block_start(&self, q: usize, p: usize) -> usize {
        let (row, next) =
            if self.transposed { (self.n_out, self.block_width(q, p)) } else { (pad(self.n_out), self.block_rows(q, p)) };
        q * PANEL * row + p * PANEL * next
    }

    /// Copies a gradient from the layout of the kernel into the flat gradient.
    pub(crate) fn unpack(&self, grads: &[f32], flat: &mut [f32]) {
        let to = &mut flat[self.weight.clone()];
        for (q, p) in self.blocks() {
            self.unpack_block(q, p, &grads[self.grad_weight + self.block_start(q, p)..], &mut to[self.rows_of(q)]);
        }
        flat[self.bias.clone()].copy_from_slice(&grads[self.grad_bias..][..self.n_out]);
        self.norm.iter().for_each(|norm| norm.unpack(grads, flat));
    }

    /// Parts of the layer's gradient, with their ranges of the flat one.
    pub(crate) fn grad_parts(&self) -> impl Iterator<Item = (Range<usize>, GradPart)> {
        let inputs = (0..panels(self.n_in)).map(|q| {
            let rows = self.rows_of(q);
            (self.weight.start + rows.start..self.weight.start + rows.end, GradPart::Inputs(q))
        });
        let norm =
            |PackedNorm { norm, .. }: &PackedNorm| [(norm.gain.clone(), GradPart::Gain), (norm.offset.clone(), GradPart::Offset)];
        inputs.chain([(self.bias.clone(), GradPart::Bias)]).chain(self.norm.iter().flat_map(norm))
    }

    /// Range of panel `q` of the inputs within the flat weight.
    fn rows_of(&self, q: usize) -> Range<usize> {
        let row = |i: usize| self.runs.real_before(i) * self.n_out;
        row(q * PANEL)..row(((q + 1) * PANEL).min(self.n_in))
    }

    /// Indices in panel `q` of those inputs that are no padding.
    fn inputs(&self, q: usize) -> impl Iterator<Item = usize> {
        (0..(self.n_in - q * PANEL).min(PANEL)).filter(move |i| self.runs.is_real(q * PANEL + i))
    }

    /// Copies block (q, p) of the gradient into the rows of panel `q` of the flat one.
    pub(crate) fn unpack_block(&self, q: usize, p: usize, from: &[f32], to: &mut [f32]) {
        let n = self.block_width(q, p);
        for (i, to) in self.inputs(q).zip(to.chunks_exact_mut(self.n_out)) {
            let to = &mut to[p * PANEL..self.n_out.min((p + 1) * PANEL)];
            if self.transposed {
                to.iter_mut().zip(from[i..].iter().step_by(n)).for_each(|(to, from)| *to = *from);
            } else {
                to.copy_from_slice(&from[i * n..][..to.len()]);
            }
        }
    }

    /// Copies panel `p` of the flat weight, (in, padded panel).
    fn pack_weight(&self, p: usize, weight: &[f32], to: &mut [f32]) {
        let (n, columns) = (width(self.n_out, p), p * PANEL..self.n_out.min((p + 1) * PANEL));
        for q in 0..panels(self.n_in) {
            for (i, row) in self.inputs(q).zip(weight[self.rows_of(q)].chunks_exact(self.n_out)) {
                to[(q * PANEL + i) * n..][..columns.len()].copy_from_slice(&row[columns.clone()]);
            }
        }
    }

    /// Copies panel `q` of the transposed flat weight, (out, padded panel).
    fn pack_transpose(&self, q: usize, weight: &[f32], to: &mut [f32]) {
        let n = width(self.n_in, q);
        for (to, first) in to.chunks_mut(PACKED_ROWS * n).zip((0..).step_by(PACKED_ROWS)) {
            for (i, row) in self.inputs(q).zip(weight[self.rows_of(q)].chunks_exact(self.n_out)) {
                to[i..].iter_mut().step_by(n).zip(&row[first..]).for_each(|(to, from)| *to = *from);
            }
        }
    }

    /// Cuts the layer's packed parameters, which `packed` starts with.
    ///
    /// Passes each piece to `take`: panels of weights, biases, panels of the transpose, the normalization. Returns the rest.
    pub(crate) fn pieces<'a>(&self, packed: &'a mut [f32], mut take: impl FnMut(Part, &'a mut [f32])) -> &'a mut [f32] {
        let parts = (0..panels(self.n_out)).map(|p| (Part::Weight(p), self.n_in * width(self.n_out, p)));
        let parts = parts.chain([(Part::Bias, pad(self.n_out))]);
        let n_transposed = if self.categories.is_some() { 0 } else { panels(self.n_in) };
        let parts = parts.chain((0..n_transposed).map(|q| (Part::Transpose(q), self.n_out * width(self.n_in, q))));
        let parts = parts.chain(self.norm.iter().map(|_| (Part::Norm, PackedNorm::packed_len(self.n_out))));
        let mut rest = packed;
        for (part, len) in parts {
            let (to, more) = rest.split_at_mut(len);
            take(part, to);
            rest = more;
        }
        rest
    }

    /// Copies a part of the flat parameters into the layout of the kernel.
    pub(crate) fn pack(&self, part: Part, params: &[f32], to: &mut [f32]) {
        match part {
            Part::Weight(p) => self.pack_weight(p, &params[self.weight.clone()], to),
            Part::Bias => to[..self.n_out].copy_from_slice(&params[self.bias.clone()]),
            Part::Transpose(q) => self.pack_transpose(q, &params[self.weight.clone()], to),
            Part::Norm => self.norm.iter().for_each(|norm| norm.pack(params, to)),
        }
    }
}
