//! Dense layers and their gradients.
//!
//! Three files of kernels have the same sums: `few` for up to eight inputs or outputs, `wide` for matrices that fill a device
//! with its large blocks, `dense` for all others.

use super::kernels::{BLOCK, LearnerKernels};
use super::layer::{Activation, DenseLayer, DenseParams, NormParams};
use super::slices::MinibatchSlices;
use crate::driver::args::args;
use crate::error::length;
use crate::{Error, Stream, View, ViewMut};

/// Rows and columns that a block of a product computes, with 128 threads.
const SIDE: usize = 64;

/// Rows and columns that a block of `wide` computes, with 128 threads.
const WIDE: [usize; 2] = [128, 64];
/// Number of such blocks that fill a device better than twice as many others.
const MANY_BLOCKS: usize = 64;

/// Largest number of inputs or outputs that counts as few.
const FEW: usize = 8;
/// Samples of a block of `few_forward`: few, so that they fill a device.
const FEW_SAMPLES: u32 = 32;
/// Rows of a block of `few_input_gradient`.
const GRADIENT_ROWS: usize = 8;
/// Columns of a block of `few_weight_gradient`, and its threads.
const FEW_COLUMNS: usize = 32;
const FEW_THREADS: u32 = 256;

/// Biases whose partial gradients a block computes, and its threads.
pub(super) const BIAS_COLUMNS: usize = 32;
pub(super) const BIAS_THREADS: u32 = 256;
/// Rows that a block of a normalization has, and the threads of a row.
const NORM_ROWS: usize = 4;
const NORM_LANES: u64 = 32;
/// Parameters whose partial gradients a block sums, and its threads.
const SUM_PARAMS: usize = 32;
const SUM_THREADS: u32 = 512;

/// Number of blocks of a product.
pub(super) fn blocks(rows: usize, columns: usize) -> u64 {
    (rows.div_ceil(SIDE) * columns.div_ceil(SIDE)) as u64
}

/// Number of blocks of `wide` for a matrix.
///
/// `None` if it does not fill a device with them, or if a size of the layer or a matrix is not one of aligned groups of four.
fn wide_blocks([rows, columns]: [usize; 2], times: usize, layer: DenseLayer, matrices: &[u64]) -> Option<u64> {
    let blocks = rows.div_ceil(WIDE[0]) * columns.div_ceil(WIDE[1]) * times;
    let aligned = matrices.iter().all(|matrix| matrix.is_multiple_of(16));
    let fours = layer.n_in.is_multiple_of(4) && layer.n_out.is_multiple_of(4) && aligned;
    (fours && blocks >= MANY_BLOCKS).then_some(blocks as u64)
}

#[allow(unsafe_code)]
impl LearnerKernels {
    /// Computes outputs `y`, (m, N), from inputs `x`, (m, K).
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn forward(
        &self,
        stream: &Stream,
        DenseParams { layer, params }: DenseParams<'_>,
        x: &View<'_, f32>,
        y: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let DenseLayer { n_in, n_out, activation } = layer;
        let m = y.len() / n_out.max(1);
        length("y", m * n_out, y.len())?;
        length("x", m * n_in, x.len())?;
        length("params", (n_in + 1) * n_out, params.len())?;
        let bias = params.slice(n_in * n_out..params.len());
        let args = args![params, bias, x, y, layer.words(m, activation)];
        let wide = wide_blocks([m, n_out], 1, layer, &[x.address(), y.address()]);
        let (kernels, threads) = match wide {
            _ if n_out <= FEW => (&self.few, m as u64),
            Some(blocks) => (&self.wide, blocks * u64::from(BLOCK)),
            None => (&self.dense, blocks(m, n_out) * u64::from(BLOCK)),
        };
        // SAFETY: the parameters are those of `dense_forward`, `wide_forward` and `few_forward`; lengths were checked above.
        unsafe { kernels.forward.launch(stream, threads, if n_out <= FEW { FEW_SAMPLES } else { BLOCK }, args) }
    }

    /// Computes the gradient `dx`, (m, K), of the inputs.
    ///
    /// `dz`, (m, N), is the gradient of the sums. With `add`, it is added to `dx`. `derive` holds the activation that made the
    /// inputs, and the inputs; its derivative is applied last.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn input_gradient(
        &self,
        stream: &Stream,
        DenseParams { layer, params }: DenseParams<'_>,
        dz: &View<'_, f32>,
        derive: Option<(Activation, &View<'_, f32>)>,
        add: bool,
        dx: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let DenseLayer { n_in, n_out, .. } = layer;
        let m = dx.len() / n_in.max(1);
        length("dx", m * n_in, dx.len())?;
        length("dz", m * n_out, dz.len())?;
        length("params", (n_in + 1) * n_out, params.len())?;
        let (activation, y) = derive.map_or((Activation::None, 0), |(activation, y)| (activation, y.address()));
        length("y", dx.len(), derive.map_or(dx.len(), |(_, y)| y.len()))?;
        let args = args![params, dz, y, dx, layer.words(m, activation), u32::from(add)];
        let (kernels, threads) = match wide_blocks([m, n_in], 1, layer, &[dz.address(), y, dx.address()]) {
            _ if n_out <= FEW => (&self.few, (m.div_ceil(GRADIENT_ROWS) * n_in.next_multiple_of(BLOCK as usize)) as u64),
            Some(blocks) => (&self.wide, blocks * u64::from(BLOCK)),
            None => (&self.dense, blocks(m, n_in) * u64::from(BLOCK)),
        };
        // SAFETY: the parameters are those of `dense_input_gradient`, `wide_..` and `few_..`; lengths were checked above.
        unsafe { kernels.input_gradient.launch(stream, threads, BLOCK, args) }
    }

    /// Writes a layer's partial gradients.
    ///
    /// `x`, (n, K), are its inputs, and `dz`, (n, N), is the gradient of its sums.
    /// `partial` begins with the layer's first number: weights (K, N), then biases (N).
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn gradient(
        &self,
        stream: &Stream,
        layer: DenseLayer,
        slices: &MinibatchSlices,
        x: &View<'_, f32>,
        dz: &View<'_, f32>,
        partial: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let DenseLayer { n_in, n_out, .. } = layer;
        length("x", slices.n * n_in, x.len())?;
        length("dz", slices.n * n_out, dz.len())?;
        let len = (slices.rows() - 1) * slices.len + (n_in + 1) * n_out;
        length("partial", len, partial.len().min(len))?;
        let (size, words) = (layer.words(slices.n, Activation::None), slices.words());
        let args = args![x, dz, partial, size, words];
        if n_in.min(n_out) <= FEW {
            let columns = if n_out <= FEW { n_in + 1 } else { n_out };
            let n = (slices.rows() * columns.div_ceil(FEW_COLUMNS)) as u64 * u64::from(FEW_THREADS);
            // SAFETY: the parameters are those of `few_weight_gradient`; lengths were checked above.
            return unsafe { self.few.weight_gradient.launch(stream, n, FEW_THREADS, args) };
        }
        if let Some(blocks) = wide_blocks([n_in, n_out], slices.rows(), layer, &[x.address(), dz.address()]) {
            // SAFETY: the parameters are those of `wide_weight_gradient`; lengths were checked above.
            return unsafe { self.wide.weight_gradient.launch(stream, blocks * u64::from(BLOCK), BLOCK, args) };
        }
        let n = blocks(n_in, n_out) * slices.rows() as u64 * u64::from(BLOCK);
        // SAFETY: the parameters are those of `dense_weight_gradient`; lengths were checked above.
        unsafe { self.dense.weight_gradient.launch(stream, n, BLOCK, args)? };
        let bias = partial.address() + 4 * (n_in * n_out) as u64;
        let args = args![dz, bias, size, words];
        let blocks = (slices.rows() * n_out.div_ceil(BIAS_COLUMNS)) as u64;
        // SAFETY: the parameters are those of `dense_bias_gradient`; lengths were checked above.
        unsafe { self.bias_gradient.launch(stream, blocks * u64::from(BIAS_THREADS), BIAS_THREADS, args) }
    }

    /// Writes partial gradients of N parameters, whose terms are `terms`, (n, N).
    ///
    /// The order of the sum is that of a bias's gradient. `partial` begins with the first parameter.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn term_gradient(
        &self,
        stream: &Stream,
        slices: &MinibatchSlices,
        terms: &View<'_, f32>,
        partial: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let n_out = terms.len() / slices.n.max(1);
        length("terms", slices.n * n_out, terms.len())?;
        let len = (slices.rows() - 1) * slices.len + n_out;
        length("partial", len, partial.len().min(len))?;
        let layer = DenseLayer { n_in: 0, n_out, activation: Activation::None };
        let args = args![terms, partial, layer.words(slices.n, Activation::None), slices.words()];
        let blocks = (slices.rows() * n_out.div_ceil(BIAS_COLUMNS)) as u64;
        // SAFETY: the parameters are those of `dense_bias_gradient`; lengths were checked above.
        unsafe { self.bias_gradient.launch(stream, blocks * u64::from(BIAS_THREADS), BIAS_THREADS, args) }
    }

    /// Normalizes the sums `z`, (m, N), in place, and applies an activation.
    ///
    /// `kept` gets the normalized numbers, (m, N), and the inverse standard deviations, (m), if there is a way back.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn normalize_sums(
        &self,
        stream: &Stream,
        NormParams { gains, offsets }: NormParams<'_>,
        activation: Activation,
        z: &ViewMut<'_, f32>,
        kept: Option<[&ViewMut<'_, f32>; 2]>,
    ) -> Result<(), Error> {
        let n = gains.len();
        let m = z.len() / n.max(1);
        length("z", m * n, z.len())?;
        length("offsets", n, offsets.len())?;
        if let Some([normed, inv_stds]) = kept {
            length("normed", z.len(), normed.len())?;
            length("inv_stds", m, inv_stds.len())?;
        }
        let [normed, inv_stds] = kept.map_or([0; 2], |kept| kept.map(ViewMut::address));
        let args = args![z, gains, offsets, normed, inv_stds, m as u32, n as u32, 1.0 / n as f32, activation as u32];
        // SAFETY: the parameters are those of `layer_norm_forward`; lengths were checked above.
        unsafe { self.layer_norm[0].launch(stream, m.next_multiple_of(NORM_ROWS) as u64 * NORM_LANES, BLOCK, args) }
    }

    /// Replaces the gradient `dy`, (m, N), by the gradient of the sums.
    ///
    /// `dy` is the gradient after gains and offsets. The normalized numbers become the terms of the gains' gradient.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn normalized_gradient(
        &self,
        stream: &Stream,
        NormParams { gains, .. }: NormParams<'_>,
        dy: &ViewMut<'_, f32>,
        normed: &ViewMut<'_, f32>,
        inv_stds: &View<'_, f32>,
    ) -> Result<(), Error> {
        let n = gains.len();
        let m = dy.len() / n.max(1);
        length("dy", m * n, dy.len())?;
        length("normed", dy.len(), normed.len())?;
        length("inv_stds", m, inv_stds.len())?;
        let args = args![dy, gains, normed, inv_stds, m as u32, n as u32, 1.0 / n as f32];
        // SAFETY: the parameters are those of `layer_norm_backward`; lengths were checked above.
        unsafe { self.layer_norm[1].launch(stream, m.next_multiple_of(NORM_ROWS) as u64 * NORM_LANES, BLOCK, args) }
    }

    /// Sums partial gradients into `gradient`, (P).
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn sum_gradients(
        &self,
        stream: &Stream,
        slices: &MinibatchSlices,
        partial: &View<'_, f32>,
        gradient: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let len = slices.len;
        length("gradient", len, gradient.len())?;
        length("partial", slices.rows() * len, partial.len())?;
        let args = args![partial, gradient, slices.words(), len as u64];
        let blocks = len.div_ceil(SUM_PARAMS) as u64;
        // SAFETY: the parameters are those of `dense_sum_gradients`; lengths were checked above.
        unsafe { self.sum_gradients.launch(stream, blocks * u64::from(SUM_THREADS), SUM_THREADS, args) }
    }
}
