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
    /// Panels of these rows, (m, 64) each.
    fn panels(&mut self) -> impl Iterator<Item = &mut [f32]>;
}

impl PanelRows for &mut Vec<&mut [f32]> {
    fn panels(&mut self) -> impl Iterator<Item = &mut [f32]> {
        self.iter_mut().map(|panel| &mut **panel)
    }
}

/// The first rows of a matrix of a tile, or of an empty one.
pub(crate) struct TileRows<'a> {
    pub(crate) data: &'a mut [f32],
    pub(crate) m: usize,
}

impl PanelRows for TileRows<'_> {
    #[inline(always)]
    fn panels(&mut self) -> impl Iterator<Item = &mut [f32]> {
        let len = self.m * PANEL;
        self.data.chunks_exact_mut(TILE * PANEL).map(move |panel| &mut panel[..len])
    }
}

/// At most [`TILE`] rows of the matrices of a normalized layer.
pub(crate) struct NormRows<'a, P> {
    /// Sums, which become outputs.
    ///
    /// On the way back gradients before the activation, which become those of the sums.
    pub(crate) sums: P,
    /// Normalized sums, before gain and offset; empty if nothing goes back.
    ///
    /// On the way back they become the terms of the gradient of the gains.
    pub(crate) normed: P,
    /// Inverse standard deviations, (m); empty if nothing goes back.
    pub(crate) inv_stds: &'a mut [f32],
}

/// Partial sums of each row.
struct RowSums([[f32; LANES]; TILE]);

impl RowSums {
    #[inline(always)]
    fn new() -> Self {
        Self([[0.0; LANES]; TILE])
    }

    /// Adds a term for each of a row's numbers, of which some panels came before.
    #[inline(always)]
    fn add(&mut self, row: usize, numbers: &[f32], term: impl Fn(f32, f32) -> f32) {
        let (whole, rest) = numbers.as_chunks::<LANES>();
        for numbers in whole {
            self.0[row].iter_mut().zip(numbers).for_each(|(sum, &x)| *sum = term(*sum, x));
        }
        self.0[row].iter_mut().zip(rest).for_each(|(sum, &x)| *sum = term(*sum, x));
    }

    /// Adds the products of a row's numbers.
    #[inline(always)]
    fn add_products<S: Set>(&mut self, row: usize, a: &[f32], b: &[f32]) {
        let lanes = &mut self.0[row];
        for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
            lanes.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum = S::multiply_add(*a, *b, *sum));
        }
    }

    /// Returns the sum of a row's lanes.
    #[inline(always)]
    fn total(&mut self, row: usize) -> f32 {
        let lanes = &mut self.0[row];
        let mut half = LANES / 2;
        while half > 0 {
            let (a, b) = lanes.split_at_mut(half);
            a.iter_mut().zip(b).for_each(|(a, b)| *a += *b);
            half /= 2;
        }
        lanes[0]
    }
}

/// A panel's rows without their padding: the panel begins at column `first` of `n`.
#[inline(always)]
fn rows_of(panel: &mut [f32], first: usize, n: usize) -> impl Iterator<Item = &mut [f32]> {
    panel.chunks_exact_mut(PANEL).map(move |row| &mut row[..(n - first).min(PANEL)])
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
        NormRows { mut sums, mut normed, inv_stds }: NormRows<'_, P>,
        activation: Activation,
        mut slopes: P,
    ) {
        let n = self.len();
        let share = 1.0 / n as f32;
        let mut totals = RowSums::new();
        for (panel, first) in sums.panels().zip((0..).step_by(PANEL)) {
            rows_of(panel, first, n).enumerate().for_each(|(row, z)| totals.add(row, z, |sum, z| sum + z));
        }
        let mut squares = RowSums::new();
        let mut means = [0.0; TILE];
        means.iter_mut().enumerate().for_each(|(row, mean)| *mean = totals.total(row) * share);
        for (panel, first) in sums.panels().zip((0..).step_by(PANEL)) {
            for ((row, z), mean) in rows_of(panel, first, n).enumerate().zip(&means) {
                z.iter_mut().for_each(|z| *z -= mean);
                squares.add(row, z, |sum, distance| S::multiply_add(distance, distance, sum));
            }
        }
        let mut inverse = [0.0; TILE];
        for (row, inverse) in inverse.iter_mut().enumerate() {
            *inverse = 1.0 / S::multiply_add(squares.total(row), share, EPSILON).sqrt();
        }
        inv_stds.iter_mut().zip(&inverse).for_each(|(to, from)| *to = *from);
        let (gains, offsets) = packed[self.packed..].split_at(pad(n));
        let (mut normed, mut slopes) = (normed.panels(), slopes.panels());
        for (panel, first) in sums.panels().zip((0..).step_by(PANEL)) {
            let mut kept = normed.next().unwrap_or_default().chunks_exact_mut(PANEL);
            for (z, inverse) in rows_of(panel, first, n).zip(&inverse) {
                z.iter_mut().for_each(|z| *z *= inverse);
                if let Some(kept) = kept.next() {
                    kept[..z.len()].copy_from_slice(z);
                }
                let parameters = gains[first..].iter().zip(&offsets[first..]);
                z.iter_mut().zip(parameters).for_each(|(z, (gain, offset))| *z = S::multiply_add(*z, *gain, *offset));
            }
            let slopes = slopes.next().unwrap_or_default();
            if n - first >= PANEL {
                activation.apply::<S>(panel, slopes);
            } else {
                let mut slopes = slopes.chunks_exact_mut(PANEL);
                for z in rows_of(panel, first, n) {
                    activation.apply::<S>(z, slopes.next().map_or(&mut [], |slopes| &mut slopes[..z.len()]));
                }
            }
        }
    }

    /// Replaces gradients after gain and offset by those of the sums.
    #[inline(always)]
    pub(crate) fn backward<S: Set, P: PanelRows>(
        &self,
        packed: &[f32],
        NormRows { mut sums, mut normed, inv_stds }: NormRows<'_, P>,
    ) {
        let n = self.len();
        let share = 1.0 / n as f32;
        let gains = &packed[self.packed..][..n];
        let (mut totals, mut products) = (RowSums::new(), RowSums::new());
        for ((panel, kept), first) in sums.panels().zip(normed.panels()).zip((0..).step_by(PANEL)) {
            for ((row, dy), kept) in rows_of(panel, first, n).enumerate().zip(kept.chunks_exact(PANEL)) {
                let mut numbers = [0.0; PANEL];
                let numbers = &mut numbers[..dy.len()];
                numbers.iter_mut().zip(&*dy).zip(&gains[first..]).for_each(|((to, dy), gain)| *to = dy * gain);
                totals.add(row, numbers, |sum, x| sum + x);
                products.add_products::<S>(row, numbers, kept);
            }
        }
        let (mut means, mut shares) = ([0.0; TILE], [0.0; TILE]);
        for (row, (mean, of_normed)) in means.iter_mut().zip(&mut shares).enumerate() {
            (*mean, *of_normed) = (totals.total(row) * share, products.total(row) * share);
        }
        for ((panel, kept), first) in sums.panels().zip(normed.panels()).zip((0..).step_by(PANEL)) {
            let rows = rows_of(panel, first, n).zip(kept.chunks_exact_mut(PANEL)).zip(&means).zip(&shares).zip(&*inv_stds);
            for ((((dy, kept), mean), of_normed), inverse) in rows {
                for ((dy, normed), gain) in dy.iter_mut().zip(kept).zip(&gains[first..]) {
                    let term = *dy * *normed;
                    *dy = inverse * S::multiply_add(-*normed, *of_normed, *dy * gain - mean);
                    *normed = term;
                }
            }
        }
    }
}
