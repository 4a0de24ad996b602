//! Layer normalization: as candle operations, and in place for the network kernel.
//!
//! The N sums z of a sample become `(z - mean) / sqrt(variance + EPSILON) * gain + offset`, with a gain and an offset for each of
//! them (Ba et al., "Layer normalization", 2016). A sum over them has 32 lanes: number j is added to lane j % 32. Then the
//! second half of the lanes is added to the first, until one is left.

use std::ops::Range;

use candle_core::Tensor;
use rl_envs::isa::Set;

use crate::kernel::gemm::{PANEL, pad};
use crate::kernel::samples::TILE;
use crate::network::activation::Activation;
use crate::network::params::Layout;

/// Number added to variances.
pub(crate) const EPSILON: f32 = 1e-5;
/// Partial sums over a sample's numbers.
const LANES: usize = 32;

/// The parameters of a normalization, as ranges of the parameter vector.
#[derive(Clone, Debug)]
pub(crate) struct LayerNorm {
    pub(crate) gain: Range<usize>,   // (N)
    pub(crate) offset: Range<usize>, // (N)
}

impl LayerNorm {
    /// Creates a normalization of `n` numbers.
    ///
    /// Appends its tensors to `layout` as `name.weight` and `name.bias`.
    pub(crate) fn new(layout: &mut Layout, name: &str, n: usize) -> Self {
        let gain = layout.push(format!("{name}.weight"), &[n]);
        Self { gain, offset: layout.push(format!("{name}.bias"), &[n]) }
    }

    /// Sets gains to 1 and offsets to 0.
    pub(crate) fn init(&self, params: &mut [f32]) {
        params[self.gain.clone()].fill(1.0);
        params[self.offset.clone()].fill(0.0);
    }

    /// Normalizes the rows of `z`, (B, N), with candle operations.
    pub(crate) fn forward(&self, params: &Tensor, z: &Tensor) -> candle_core::Result<Tensor> {
        let of = |range: &Range<usize>| params.narrow(0, range.start, range.len());
        let distances = z.broadcast_sub(&z.mean_keepdim(1)?)?;
        let squares = distances.sqr()?.mean_keepdim(1)?;
        let normed = distances.broadcast_div(&(squares + f64::from(EPSILON))?.sqrt()?)?;
        normed.broadcast_mul(&of(&self.gain)?)?.broadcast_add(&of(&self.offset)?)
    }
}

/// Rows of a matrix in panels.
pub(crate) trait PanelRows {
    /// Rows of panel `p`, (m, 64); empty if the matrix is.
    fn panel(&mut self, p: usize) -> &mut [f32];
}

impl PanelRows for &mut Vec<&mut [f32]> {
    #[inline(always)]
    fn panel(&mut self, p: usize) -> &mut [f32] {
        if self.is_empty() { &mut [] } else { self[p] }
    }
}

/// The first rows of a matrix of a tile, or of an empty one.
pub(crate) struct TileRows<'a> {
    pub(crate) data: &'a mut [f32],
    pub(crate) m: usize,
}

impl PanelRows for TileRows<'_> {
    #[inline(always)]
    fn panel(&mut self, p: usize) -> &mut [f32] {
        if self.data.is_empty() { &mut [] } else { &mut self.data[p * TILE * PANEL..(p * TILE + self.m) * PANEL] }
    }
}

/// Rows of the matrices of a normalized layer.
pub(crate) struct NormRows<'a, P> {
    /// Sums, which become outputs.
    ///
    /// On the way back: the gradient before the activation, which becomes the gradient of the sums.
    pub(crate) sums: P,
    /// Normalized sums, before gain and offset; empty if nothing goes back.
    ///
    /// On the way back they become the terms of the gradient of the gains.
    pub(crate) normed: P,
    /// Inverse standard deviations, (m); empty if nothing goes back.
    pub(crate) inv_stds: &'a mut [f32],
}

/// Adds numbers to a row's partial sums, of which some panels came before.
#[inline(always)]
fn add(numbers: &[f32], lanes: &mut [f32; LANES]) {
    let (whole, rest) = numbers.as_chunks::<LANES>();
    for numbers in whole {
        lanes.iter_mut().zip(numbers).for_each(|(sum, x)| *sum += x);
    }
    lanes.iter_mut().zip(rest).for_each(|(sum, x)| *sum += x);
}

/// Adds products to a row's partial sums.
#[inline(always)]
fn add_products<S: Set>(a: &[f32], b: &[f32], lanes: &mut [f32; LANES]) {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *sum = S::multiply_add(*a, *b, *sum);
        }
    }
    for ((sum, a), b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *sum = S::multiply_add(*a, *b, *sum);
    }
}

/// Returns the sum of a row's lanes.
#[inline(always)]
fn total(mut lanes: [f32; LANES]) -> f32 {
    for half in [16, 8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

/// Normalization in the layouts of the kernel.
#[derive(Clone, Debug)]
pub(crate) struct PackedNorm {
    pub(crate) norm: LayerNorm,
    /// Offset of gains and offsets in the packed parameters, (2, padded N).
    pub(crate) packed: usize,
    /// Offset of their gradients, likewise.
    pub(crate) grad: usize,
}

impl PackedNorm {
    fn len(&self) -> usize {
        self.norm.gain.len()
    }

    /// Number of packed parameters, and of their gradients.
    pub(crate) fn packed_len(n: usize) -> usize {
        2 * pad(n)
    }

    /// Offset of the offsets' gradient.
    pub(crate) fn offset_grads(&self) -> usize {
        self.grad + pad(self.len())
    }

    /// Copies gains and offsets into the layout of the kernel.
    pub(crate) fn pack(&self, params: &[f32], to: &mut [f32]) {
        let (gains, offsets) = to.split_at_mut(pad(self.len()));
        gains[..self.len()].copy_from_slice(&params[self.norm.gain.clone()]);
        offsets[..self.len()].copy_from_slice(&params[self.norm.offset.clone()]);
    }

    /// Copies a gradient from the layout of the kernel into the flat one.
    pub(crate) fn unpack(&self, grads: &[f32], flat: &mut [f32]) {
        let (gains, offsets) = grads[self.grad..].split_at(pad(self.len()));
        flat[self.norm.gain.clone()].copy_from_slice(&gains[..self.len()]);
        flat[self.norm.offset.clone()].copy_from_slice(&offsets[..self.len()]);
    }

    /// Normalizes rows, and applies the activation.
    ///
    /// `slopes` keeps those of the activation, or is empty.
    #[inline(always)]
    pub(crate) fn forward<S: Set, P: PanelRows>(
        &self,
        packed: &[f32],
        mut rows: NormRows<'_, P>,
        activation: Activation,
        mut slopes: P,
    ) {
        let n = self.len();
        if n.is_multiple_of(PANEL) {
            self.normalize::<S, P, true>(packed, &mut rows);
        } else {
            self.normalize::<S, P, false>(packed, &mut rows);
        }
        for (p, columns) in columns::<false>(n) {
            let (outputs, slopes) = (rows.sums.panel(p), slopes.panel(p));
            if columns.len() == PANEL {
                activation.apply::<S>(outputs, slopes);
                continue;
            }
            let mut slopes = slopes.chunks_exact_mut(PANEL);
            for row in outputs.chunks_exact_mut(PANEL) {
                let slopes = slopes.next().map_or(&mut [][..], |slopes| &mut slopes[..columns.len()]);
                activation.apply::<S>(&mut row[..columns.len()], slopes);
            }
        }
    }

    #[inline(always)]
    fn normalize<S: Set, P: PanelRows, const WHOLE: bool>(
        &self,
        packed: &[f32],
        NormRows { sums, normed, inv_stds }: &mut NormRows<'_, P>,
    ) {
        let n = self.len();
        let share = 1.0 / n as f32;
        let (gains, offsets) = packed[self.packed..].split_at(pad(n));
        for row in 0..sums.panel(0).len() / PANEL {
            let mut lanes = [0.0; LANES];
            for (p, columns) in columns::<WHOLE>(n) {
                add(&sums.panel(p)[row * PANEL..][..columns.len()], &mut lanes);
            }
            let mean = total(lanes) * share;
            lanes = [0.0; LANES];
            for (p, columns) in columns::<WHOLE>(n) {
                let z = &mut sums.panel(p)[row * PANEL..][..columns.len()];
                z.iter_mut().for_each(|z| *z -= mean);
                add_products::<S>(z, z, &mut lanes);
            }
            let inverse = 1.0 / S::multiply_add(total(lanes), share, EPSILON).sqrt();
            for (p, columns) in columns::<WHOLE>(n) {
                let z = &mut sums.panel(p)[row * PANEL..][..columns.len()];
                z.iter_mut().for_each(|z| *z *= inverse);
                let kept = normed.panel(p);
                if !kept.is_empty() {
                    kept[row * PANEL..][..z.len()].copy_from_slice(z);
                }
                for ((z, gain), offset) in z.iter_mut().zip(&gains[columns.clone()]).zip(&offsets[columns]) {
                    *z = S::multiply_add(*z, *gain, *offset);
                }
            }
            if let Some(kept) = inv_stds.get_mut(row) {
                *kept = inverse;
            }
        }
    }

    /// Replaces the gradient after gain and offset by the gradient of the sums.
    #[inline(always)]
    pub(crate) fn backward<S: Set, P: PanelRows>(&self, packed: &[f32], rows: NormRows<'_, P>) {
        if self.len().is_multiple_of(PANEL) {
            self.go_back::<S, P, true>(packed, rows);
        } else {
            self.go_back::<S, P, false>(packed, rows);
        }
    }

    #[inline(always)]
    fn go_back<S: Set, P: PanelRows, const WHOLE: bool>(
        &self,
        packed: &[f32],
        NormRows { mut sums, mut normed, inv_stds }: NormRows<'_, P>,
    ) {
        let n = self.len();
        let share = 1.0 / n as f32;
        let gains = &packed[self.packed..][..n];
        for (row, inverse) in inv_stds.iter().enumerate().take(sums.panel(0).len() / PANEL) {
            let (mut lanes, mut products) = ([0.0; LANES], [0.0; LANES]);
            for (p, columns) in columns::<WHOLE>(n) {
                let at = row * PANEL..row * PANEL + columns.len();
                let mut dx = [0.0; PANEL];
                let dx = &mut dx[..columns.len()];
                for ((dx, dy), gain) in dx.iter_mut().zip(&sums.panel(p)[at.clone()]).zip(&gains[columns]) {
                    *dx = dy * gain;
                }
                add(dx, &mut lanes);
                add_products::<S>(dx, &normed.panel(p)[at], &mut products);
            }
            let (mean, of_normed) = (total(lanes) * share, total(products) * share);
            for (p, columns) in columns::<WHOLE>(n) {
                let at = row * PANEL..row * PANEL + columns.len();
                let (dy, normed) = (&mut sums.panel(p)[at.clone()], &mut normed.panel(p)[at]);
                for ((dy, normed), gain) in dy.iter_mut().zip(normed).zip(&gains[columns]) {
                    let term = *dy * *normed;
                    *dy = inverse * S::multiply_add(-*normed, of_normed, *dy * gain - mean);
                    *normed = term;
                }
            }
        }
    }
}

/// Columns of each panel of `n`, without padding; `WHOLE` if no panel has padding.
#[inline(always)]
fn columns<const WHOLE: bool>(n: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    (0..n).step_by(PANEL).map(move |first| first..if WHOLE { first + PANEL } else { n.min(first + PANEL) }).enumerate()
}
