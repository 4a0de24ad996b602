//! Convolutions in front of the dense layers.
//!
//! Composed of candle operations they are the referee; as a stage of the tile kernel they run.
//!
//! Observations are planes, (channels, rows, columns). A layer has a square kernel, a stride, no padding, and the activation
//! after it; its weights are (out, in, kernel, kernel). Outputs, and the features that the dense layers read, are (rows, columns,
//! channels).
//!
//! The kernel gathers no patches. The index of element (position, term) of the matrix of patches is the sum of two offsets, one
//! for the position and one for the term, so the product reads patches in place. The gradient of the weights is the product with
//! the two offsets swapped. The gradient of the inputs is a sum of products, one for each row and column of the kernel, added one
//! by one. A few samples at a time go through the layers, so that they stay in the cache.

use std::ops::Range;

use candle_core::Tensor;
use rl_envs::isa::Set;

use crate::kernel::aligned::Aligned;
use crate::kernel::gemm::{
    Fixed, Init, Matrix, OffsetTable, ProductSize, RowMajor, Stride, add_rows, multiply, pad, read_row, reserve, write_row,
};
use crate::kernel::samples::{Samples, TILE};
use crate::network::activation::Activation;
use crate::network::params::{Initialization, Layout};
use crate::{Error, Precision};

/// Numbers (observations and outputs) that pass through the layers at a time.
const NUMBERS: usize = 48 << 10;

/// Shape of one layer, and its ranges of the parameter vector.
#[derive(Clone, Debug)]
pub(crate) struct ConvShape {
    pub(crate) weight: Range<usize>, // (n_out, n_in, kernel, kernel)
    pub(crate) bias: Range<usize>,   // (n_out)
    pub(crate) n_in: usize,
    pub(crate) n_out: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) in_size: [usize; 2], // rows, columns
    out_size: [usize; 2],
}

impl ConvShape {
    fn n_positions(&self) -> usize {
        self.out_size[0] * self.out_size[1]
    }

    /// Number of terms of one output: inputs under the kernel.
    fn n_terms(&self) -> usize {
        self.n_in * self.kernel * self.kernel
    }

    /// Offsets of the positions' patches in an input with columns `distance` apart.
    fn positions(&self, distance: usize) -> impl Iterator<Item = usize> {
        let ([_, columns], [out_rows, out_columns], stride) = (self.in_size, self.out_size, self.stride);
        (0..out_rows).flat_map(move |y| (0..out_columns).map(move |x| (y * columns + x) * stride * distance))
    }

    /// Terms (channel, row, column) in the order of the weights.
    fn terms(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let (n_in, kernel) = (self.n_in, self.kernel);
        (0..n_in).flat_map(move |c| (0..kernel).flat_map(move |y| (0..kernel).map(move |x| (c, y, x))))
    }
}

/// A picture within an observation.
pub(crate) struct Pixels<'a> {
    /// Channels, rows and columns; other shapes are refused.
    pub(crate) shape: &'a [usize],
    /// Index of the first element.
    pub(crate) first: usize,
}

/// Convolutions of one picture.
#[derive(Clone, Debug)]
pub(crate) struct Conv {
    /// At least one.
    layers: Vec<ConvShape>,
    activation: Activation,
    /// Elements of the picture within an observation.
    elements: Range<usize>,
}

impl Conv {
    /// Creates layers of [channels, kernel, stride] over a picture.
    ///
    /// Appends the tensors to `layout` as `conv.0.weight`, `conv.0.bias`, ..., with `name` before the number of the layer. It is
    /// empty or ends with a point.
    pub(crate) fn new(
        layout: &mut Layout,
        name: &str,
        Pixels { shape, first }: Pixels<'_>,
        sizes: &[[usize; 3]],
        activation: Activation,
    ) -> Result<Self, Error> {
        let elements = first..first + shape.iter().product::<usize>();
        let refused = |what: String, allowed| Err(Error::Setting { name: "conv", value: format!("{sizes:?}{what}"), allowed });
        let mut layers: Vec<ConvShape> = Vec::with_capacity(sizes.len());
        for (l, &[n_out, kernel, stride]) in sizes.iter().enumerate() {
            let &[channels, rows, columns] = shape else {
                let what = format!(" over observations of shape {shape:?}");
                return refused(what, "convolutions need planes: channels, rows and columns");
            };
            if n_out == 0 || kernel == 0 || stride == 0 {
                return refused(String::new(), "channels, kernel and stride of every layer are 1 at least");
            }
            let (n_in, in_size) = layers.last().map_or((channels, [rows, columns]), |layer| (layer.n_out, layer.out_size));
            if in_size.iter().any(|&size| size < kernel) {
                let what =
                    format!(" over observations of shape {shape:?}, where layer {l} meets {} x {}", in_size[0], in_size[1]);
                return refused(what, "a kernel must fit into what it meets");
            }
            let numbers = in_size.iter().fold(pad(n_in), |numbers, &size| numbers.saturating_mul(size));
            if numbers > u32::MAX as usize {
                return refused(format!(" over observations of shape {shape:?}"), "a layer meets 2^32 - 1 numbers at most");
            }
            layers.push(ConvShape {
                weight: layout.push(format!("conv.{name}{l}.weight"), &[n_out, n_in, kernel, kernel]),
                bias: layout.push(format!("conv.{name}{l}.bias"), &[n_out]),
                n_in,
                n_out,
                kernel,
                stride,
                in_size,
                out_size: in_size.map(|size| (size - kernel) / stride + 1),
            });
        }
        Ok(Self { layers, activation, elements })
    }

    /// Shapes of the layers, in order.
    pub(crate) fn layers(&self) -> &[ConvShape] {
        &self.layers
    }

    /// Elements of the picture within an observation.
    pub(crate) fn elements(&self) -> Range<usize> {
        self.elements.clone()
    }

    /// The last layer.
    fn last(&self) -> &ConvShape {
        &self.layers[self.layers.len() - 1]
    }

    /// Number of features.
    pub(crate) fn n_out(&self) -> usize {
        self.last().n_positions() * self.last().n_out
    }

    /// Numbers of one sample's outputs and patches in all layers.
    pub(crate) fn patches(&self) -> usize {
        self.layers.iter().map(|layer| layer.n_positions() * (layer.n_terms() + layer.n_out)).sum()
    }

    /// Multiplications of a forward pass of one sample, by layer.
    pub(crate) fn products(&self) -> impl Iterator<Item = usize> {
        self.layers.iter().map(|layer| layer.n_positions() * layer.weight.len())
    }

    /// Draws weights, orthogonal ones with gain sqrt(2), and biases.
    ///
    /// `first_index` is the index of the first layer among all layers drawn from one seed.
    pub(crate) fn init(&self, params: &mut [f32], init: Initialization, first_index: u32) {
        for (layer, index) in self.layers.iter().zip(first_index..) {
            let (range, n_terms) = (layer.weight.start..layer.bias.end, layer.n_terms());
            init.layer(&mut params[range], [layer.n_out, n_terms], n_terms, std::f32::consts::SQRT_2, index);
        }
    }

    /// Computes features (B, F) of observations (B, D) with candle operations.
    ///
    /// `params` is the whole vector (P); `precision` is that of the products. candle's own convolutions are not used: their
    /// gradients are slow.
    pub(crate) fn forward(&self, params: &Tensor, obs: &Tensor, precision: Precision) -> candle_core::Result<Tensor> {
        let (b, mut x) = (obs.dim(0)?, obs.clone());
        for (l, layer) in self.layers.iter().enumerate() {
            let ([rows, columns], n_in, k) = (layer.in_size, layer.n_in, layer.n_terms());
            // In observations planes come first; in outputs of layers channels come last.
            let (first, channel, column) = if l == 0 { (self.elements.start, rows * columns, 1) } else { (0, 1, n_in) };
            let term = |(c, y, x): (usize, usize, usize)| first + c * channel + (y * columns + x) * column;
            let index = layer.positions(column).flat_map(|at| layer.terms().map(move |t| (at + term(t)) as u32));
            let index = Tensor::from_iter(index, obs.device())?;
            let patches = x.index_select(&index, 1)?.reshape((b * layer.n_positions(), k))?;
            let weight = params.narrow(0, layer.weight.start, layer.weight.len())?.reshape((layer.n_out, k))?;
            let bias = params.narrow(0, layer.bias.start, layer.bias.len())?;
            let z = precision.matmul(&patches, &weight.t()?)?.broadcast_add(&bias)?;
            x = self.activation.forward(&z)?.reshape((b, layer.n_positions() * layer.n_out))?;
        }
        Ok(x)
    }
}

/// One layer in the layouts of the kernel.
#[derive(Clone, Debug)]
struct ConvLayer {
    shape: ConvShape,
    /// Length of one sample's input: planes, or (rows, columns, padded channels).
    in_len: usize,
    /// Offsets of the positions' patches, for all samples that pass together.
    positions: OffsetTable,
    /// Offsets of the terms within a patch, ascending.
    terms: OffsetTable,
    /// Index of each term within the weight.
    order: Vec<usize>,
    /// Offsets in the packed parameters: (terms, padded out), (padded out), transpose.
    ///
    /// The transpose, absent in the first layer, is (out, kernel, padded in) for each row of the kernel.
    packed_weight: usize,
    packed_bias: usize,
    packed_transpose: usize,
    /// Offsets in the gradient: (terms, padded out), (padded out).
    grad_weight: usize,
    grad_bias: usize,
}

impl ConvLayer {
    /// Length of one sample's output, including padding.
    fn out_len(&self) -> usize {
        self.shape.n_positions() * pad(self.shape.n_out)
    }

    /// Length of one row of the kernel over one position of the input.
    fn kernel_row(&self) -> usize {
        self.shape.kernel * pad(self.shape.n_in)
    }
}

/// Convolutions as a stage of the kernel.
#[derive(Clone, Debug)]
pub(crate) struct ConvStage {
    layers: Vec<ConvLayer>,
    pub(crate) activation: Activation,
    /// Elements of the picture within an observation, and their number in all.
    elements: Range<usize>,
    obs_len: usize,
    /// Index of the first feature.
    first: usize,
    /// Number of samples that pass through the layers together.
    pub(crate) together: usize,
    /// Range of the gradient.
    grads: Range<usize>,
}

/// Buffers of one thread for the stage.
#[derive(Clone, Debug)]
pub(crate) struct ConvWorkspace {
    obs: Aligned,         // (together, elements)
    hidden: Vec<Aligned>, // every layer's outputs but the last's: of a tile to learn from, of the samples together to act
    features: Aligned,    // (together, F), the last layer's outputs
    slopes: Vec<Aligned>, // of every layer's outputs in a tile to learn from, if the activation keeps them
    delta: Aligned,       // (together, widest)
    next: Aligned,        // (together, widest)
    grads: Aligned,       // gradient of a tile, at the offsets of the slice's
}

impl ConvStage {
    /// Reserves space in the packed parameters and the gradient.
    ///
    /// An observation has `obs_len` elements; the picture's features begin at index `first`.
    pub(crate) fn new(conv: &Conv, obs_len: usize, first: usize, packed_len: &mut usize, grad_len: &mut usize) -> Self {
        let numbers: usize = conv.layers.iter().map(|layer| layer.n_positions() * pad(layer.n_out)).sum();
        let together = (NUMBERS / (conv.elements.len() + numbers)).clamp(1, TILE);
        let begin = *grad_len;
        let mut layers = Vec::with_capacity(conv.layers.len());
        for (l, shape) in conv.layers.iter().enumerate() {
            let ([rows, columns], kernel) = (shape.in_size, shape.kernel);
            let (channel, column) = if l == 0 { (rows * columns, 1) } else { (1, pad(shape.n_in)) };
            let in_len = if l == 0 { conv.elements.len() } else { rows * columns * column };
            let mut terms: Vec<(usize, usize)> =
                shape.terms().map(|(c, y, x)| c * channel + (y * columns + x) * column).zip(0..).collect();
            terms.sort_unstable();
            let positions = (0..together).flat_map(|s| shape.positions(column).map(move |at| s * in_len + at));
            let out_pad = pad(shape.n_out);
            layers.push(ConvLayer {
                shape: shape.clone(),
                in_len,
                positions: OffsetTable::new(positions),
                terms: OffsetTable::new(terms.iter().map(|&(at, _)| at)),
                order: terms.iter().map(|&(_, term)| term).collect(),
                packed_weight: reserve(packed_len, shape.n_terms() * out_pad),
                packed_bias: reserve(packed_len, out_pad),
                packed_transpose: reserve(packed_len, if l == 0 { 0 } else { kernel * shape.n_out * kernel * column }),
                grad_weight: reserve(grad_len, shape.n_terms() * out_pad),
                grad_bias: reserve(grad_len, out_pad),
            });
        }
        let (elements, grads) = (conv.elements.clone(), begin..*grad_len);
        Self { layers, activation: conv.activation, elements, obs_len, first, together, grads }
    }

    /// Elements of the picture within an observation.
    pub(crate) fn elements(&self) -> Range<usize> {
        self.elements.clone()
    }

    /// Index of the first feature.
    pub(crate) fn first(&self) -> usize {
        self.first
    }

    /// Shapes of the layers.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = &ConvShape> {
        self.layers.iter().map(|layer| &layer.shape)
    }

    fn last(&self) -> &ConvLayer {
        &self.layers[self.layers.len() - 1]
    }

    /// Number of padded features, and channels without and with padding.
    pub(crate) fn features(&self) -> [usize; 3] {
        let real = self.last().shape.n_out;
        [self.last().out_len(), real, pad(real)]
    }

    /// Length of the buffers of [`ConvStage::workspace`].
    pub(crate) fn workspace_len(&self, learning: bool) -> usize {
        let kept = if learning { TILE } else { self.together };
        let hidden: usize = self.layers[..self.layers.len() - 1].iter().map(|layer| kept * layer.out_len()).sum();
        let widest = self.layers.iter().map(ConvLayer::out_len).max().unwrap_or(0);
        let slopes: usize =
            if self.keeps_slopes(learning) { self.layers.iter().map(|layer| TILE * layer.out_len()).sum() } else { 0 };
        hidden
            + slopes
            + self.together * (self.elements.len() + self.last().out_len() + if learning { 2 * widest } else { 0 })
            + if learning { self.grads.len() } else { 0 }
    }

    /// True if slopes of the activation are kept.
    fn keeps_slopes(&self, learning: bool) -> bool {
        learning && self.activation.keeps_slopes()
    }

    /// Allocates buffers to act with or to learn with.
    pub(crate) fn workspace(&self, learning: bool) -> ConvWorkspace {
        let kept = if learning { TILE } else { self.together };
        let hidden = self.layers[..self.layers.len() - 1].iter().map(|layer| Aligned::zeros(kept * layer.out_len())).collect();
        let widest = self.layers.iter().map(ConvLayer::out_len).max().unwrap_or(0);
        let delta = Aligned::zeros(if learning { self.together * widest } else { 0 });
        let slopes = |layer: &ConvLayer| Aligned::zeros(if self.keeps_slopes(learning) { TILE * layer.out_len() } else { 0 });
        ConvWorkspace {
            slopes: self.layers.iter().map(slopes).collect(),
            obs: Aligned::zeros(self.together * self.elements.len()),
            hidden,
            features: Aligned::zeros(self.together * self.last().out_len()),
            next: delta.clone(),
            delta,
            grads: Aligned::zeros(if learning { self.grads.len() } else { 0 }),
        }
    }

    /// Copies the parameters into the layouts of the kernel.
    pub(crate) fn pack(&self, params: &[f32], packed: &mut [f32]) {
        for (l, layer) in self.layers.iter().enumerate() {
            let shape = &layer.shape;
            let (weight, k) = (&params[shape.weight.clone()], shape.n_terms());
            let rows = packed[layer.packed_weight..].chunks_exact_mut(pad(shape.n_out));
            for (row, &term) in rows.zip(&layer.order) {
                row.iter_mut().zip(weight[term..].iter().step_by(k)).for_each(|(to, &from)| *to = from);
            }
            packed[layer.packed_bias..][..shape.n_out].copy_from_slice(&params[shape.bias.clone()]);
            if l > 0 {
                let (in_pad, width) = (pad(shape.n_in), layer.kernel_row());
                let to = &mut packed[layer.packed_transpose..];
                for (o, weight) in weight.chunks_exact(k).enumerate() {
                    for ((c, y, x), &from) in shape.terms().zip(weight) {
                        to[(y * shape.n_out + o) * width + x * in_pad + c] = from;
                    }
                }
            }
        }
    }

    /// Copies a gradient from the layout of the kernel into the flat gradient.
    #[inline(always)]
    pub(crate) fn unpack_gradient(&self, grads: &[f32], flat: &mut [f32]) {
        for layer in &self.layers {
            let (shape, k) = (&layer.shape, layer.shape.n_terms());
            let rows = grads[layer.grad_weight..].chunks_exact(pad(shape.n_out));
            let to = &mut flat[shape.weight.clone()];
            for (row, &term) in rows.zip(&layer.order) {
                to[term..].iter_mut().step_by(k).zip(row).for_each(|(to, from)| *to = *from);
            }
            flat[shape.bias.clone()].copy_from_slice(&grads[layer.grad_bias..][..shape.n_out]);
        }
    }

    /// Writes the padded features (TILE, F) of the samples of a tile, in panels.
    ///
    /// With `learning`, it keeps the data that the backward pass needs.
    #[inline(always)]
    pub(crate) fn forward<S: Set>(
        &self,
        samples: &Samples<'_>,
        tile: Range<usize>,
        packed: &[f32],
        learning: bool,
        workspace: &mut ConvWorkspace,
        features: &mut [f32],
    ) {
        for first in (0..tile.len()).step_by(self.together) {
            let n = self.together.min(tile.len() - first);
            let kept = if learning { first } else { 0 };
            let begin = tile.start + first;
            let elements = self.elements.clone();
            samples.copy(begin..begin + n, self.obs_len, elements, self.elements.len(), &mut workspace.obs);
            for (l, layer) in self.layers.iter().enumerate() {
                let (n_positions, out_pad, k) = (layer.shape.n_positions(), pad(layer.shape.n_out), layer.shape.n_terms());
                let (before, from_here) = workspace.hidden.split_at_mut(l);
                let input = match before.last() {
                    Some(hidden) => &hidden[kept * layer.in_len..],
                    None => &workspace.obs[..],
                };
                let output = match from_here.first_mut() {
                    Some(hidden) => &mut hidden[kept * layer.out_len()..],
                    None => &mut workspace.features[..],
                };
                let output = &mut output[..n * layer.out_len()];
                let a = Matrix { data: input, rows: layer.positions.offsets(), columns: layer.terms.offsets() };
                let b = RowMajor { data: &packed[layer.packed_weight..][..k * out_pad], stride: out_pad };
                let bias = &packed[layer.packed_bias..][..out_pad];
                let size = ProductSize { m: n * n_positions, n: out_pad, k };
                multiply::<S>(output, Stride(out_pad), a, b, size, Init::Bias(bias));
                let slopes = if self.keeps_slopes(learning) {
                    &mut workspace.slopes[l][kept * layer.out_len()..][..output.len()]
                } else {
                    &mut []
                };
                self.activation.apply::<S>(output, slopes);
            }
            let width = self.last().out_len();
            for (s, row) in workspace.features.chunks_exact(width).take(n).enumerate() {
                write_row(row, first + s, self.first, TILE, features);
            }
        }
    }

    /// Adds the gradient of the weights, from that of the features, after `forward`.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "buffers of a tile")]
    pub(crate) fn backward<S: Set>(
        &self,
        samples: &Samples<'_>,
        tile: Range<usize>,
        packed: &[f32],
        features: &[f32],
        feature_grads: &[f32],
        workspace: &mut ConvWorkspace,
        grads: &mut [f32],
    ) {
        let ConvWorkspace { obs, hidden, features: rows, slopes, delta, next, grads: tile_grads } = workspace;
        tile_grads.fill(0.0);
        let width = self.last().out_len();
        for first in (0..tile.len()).step_by(self.together) {
            let n = self.together.min(tile.len() - first);
            let begin = tile.start + first;
            samples.copy(begin..begin + n, self.obs_len, self.elements.clone(), self.elements.len(), obs);
            for (from, to) in [(features, &mut *rows), (feature_grads, &mut *delta)] {
                for (s, row) in to.chunks_exact_mut(width).take(n).enumerate() {
                    read_row(from, first + s, self.first, TILE, row);
                }
            }
            let kept = if self.keeps_slopes(true) { &slopes[self.layers.len() - 1][first * width..] } else { &rows[..] };
            self.activation.derive::<S>(&kept[..n * width], delta);
            for (l, layer) in self.layers.iter().enumerate().rev() {
                let ConvLayer { shape, in_len, .. } = layer;
                let (rows, out_pad, k) = (n * shape.n_positions(), pad(shape.n_out), shape.n_terms());
                let input = if l == 0 { &obs[..] } else { &hidden[l - 1][first * in_len..] };
                let dz = &delta[..rows * out_pad];
                let a = Matrix { data: input, rows: layer.terms.offsets(), columns: layer.positions.offsets() };
                let grad = &mut tile_grads[layer.grad_weight - self.grads.start..][..k * out_pad];
                let (b, size) = (RowMajor { data: dz, stride: out_pad }, ProductSize { m: k, n: out_pad, k: rows });
                multiply::<S>(grad, Stride(out_pad), a, b, size, Init::Add);
                add_rows(dz, out_pad, shape.n_positions(), &mut tile_grads[layer.grad_bias - self.grads.start..][..out_pad]);
                if l > 0 {
                    let (columns, in_pad, width) = (shape.in_size[1], pad(shape.n_in), layer.kernel_row());
                    let dx = &mut next[..n * in_len];
                    dx.fill(0.0);
                    let a = Matrix { data: dz, rows: Stride(out_pad), columns: Fixed::<1> };
                    let size = ProductSize { m: rows, n: in_pad, k: shape.n_out };
                    let transpose = &packed[layer.packed_transpose..][..shape.kernel * shape.n_out * width];
                    for (y, b) in transpose.chunks_exact(shape.n_out * width).enumerate() {
                        // No two rows of a column of the kernel overlap, so the order is that of the kernel's columns.
                        for x in 0..shape.kernel {
                            let onto = &mut dx[(y * columns + x) * in_pad..];
                            let b = RowMajor { data: &b[x * in_pad..], stride: width };
                            multiply::<S>(onto, layer.positions.offsets(), a, b, size, Init::Add);
                        }
                    }
                    let kept = if self.keeps_slopes(true) { &slopes[l - 1][first * in_len..] } else { input };
                    self.activation.derive::<S>(&kept[..n * in_len], dx);
                    std::mem::swap(delta, next);
                }
            }
        }
        grads[self.grads.clone()].iter_mut().zip(&**tile_grads).for_each(|(sum, grad)| *sum += *grad);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ActorCritic, Agent, Collector, NetConfig, Ppo, PpoConfig, Schedule};
    use rl_envs::{ActionSpace, Pool, Space, snake::Snake};

    #[test]
    fn weights_lie_as_out_in_rows_columns_and_what_does_not_fit_is_refused() {
        let new = |shape: &[usize], sizes: &[[usize; 3]]| {
            let mut layout = Layout::default();
            let conv = Conv::new(&mut layout, "", Pixels { shape, first: 0 }, sizes, Activation::Relu)?;
            Ok::<_, Error>((conv.n_out(), layout.tensors().iter().map(|tensor| tensor.shape.clone()).collect::<Vec<_>>()))
        };
        let (n_out, shapes) = new(&[4, 84, 84], &[[32, 8, 4], [64, 4, 2], [64, 3, 1]]).unwrap();
        assert_eq!((n_out, shapes.len(), &shapes[2][..]), (7 * 7 * 64, 6, &[64, 32, 4, 4][..]));
        for (shape, sizes, why) in [
            (&[4][..], &[[16, 3, 1]][..], "conv is [[16, 3, 1]] over observations of shape [4], convolutions need planes"),
            (&[1, 5, 6], &[[1, 3, 1], [1, 4, 1]], "where layer 1 meets 3 x 4, a kernel must fit into what it meets"),
            (&[1, 5, 6], &[[1, 3, 0]], "channels, kernel and stride of every layer are 1 at least"),
        ] {
            let error = new(shape, sizes).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let net = NetConfig { conv: vec![[1, 3, 1]], ..NetConfig::default() };
        assert!(
            ActorCritic::new(&Space::vector(&[0.0], &[1.0]), &ActionSpace::Discrete { n: 2, masked: false }, &net, 0).is_err()
        );
    }

    #[test]
    fn operations_of_a_sample_equal_the_count_by_hand() {
        let net = NetConfig { conv: vec![[16, 3, 1], [32, 3, 1]], hidden: vec![128], shared_trunk: true, ..NetConfig::default() };
        let actions = ActionSpace::Discrete { n: 4, masked: true };
        let policy = ActorCritic::new(&Space::bytes(&[5, 12, 12], 255, 1.0), &actions, &net, 0).unwrap();
        // 10 x 10 x 45 x 16 products without a gradient of the input; 8 x 8 x 144 x 32, 2048 x 128 and 128 x 5 with it.
        assert_eq!(policy.flops_per_sample(), 4 * 72_000 + 6 * (294_912 + 262_144 + 640));
    }

    #[test]
    fn the_ratio_is_exactly_one_and_threads_change_no_bit() {
        let net = NetConfig { conv: vec![[16, 3, 1], [20, 3, 2]], hidden: vec![32], shared_trunk: true, ..NetConfig::default() };
        let update = |threads, learning_rate| {
            let pool = Pool::new(threads).unwrap();
            let mut collector = Collector::new(9, &Snake::default(), &pool, 1).unwrap();
            let policy = ActorCritic::new(collector.observation_space(), collector.action_space(), &net, 1).unwrap();
            let (learning_rate, clip_range) = (Schedule::Constant(learning_rate), Schedule::Constant(0.0));
            let config =
                PpoConfig { n_steps: 32, batch_size: 144, n_epochs: 1, learning_rate, clip_range, ..PpoConfig::default() };
            let mut agent = Ppo::new(policy, config, 9, 0).unwrap();
            let mut rollout = collector.rollout(32).unwrap();
            collector.collect(agent.acting(1.0), &mut rollout).unwrap();
            let metrics = agent.update(&rollout, 1.0, &pool).unwrap();
            let moved = ["train/approx_kl", "train/clip_fraction"].map(|name| metrics.get(name).unwrap());
            (moved, agent.save().unwrap().params)
        };
        assert_eq!(update(1, 0.0).0, [0.0, 0.0], "a clip range of 0 clips any other ratio");
        let (_, params) = update(1, 1e-3);
        assert_ne!(params, update(1, 0.0).1);
        assert_eq!(params, update(3, 1e-3).1);
    }

    #[test]
    fn products_have_the_given_precision() {
        let mut layout = Layout::default();
        let pixels = Pixels { shape: &[2, 5, 5], first: 0 };
        let conv = Conv::new(&mut layout, "", pixels, &[[3, 3, 1]], Activation::Tanh).unwrap();
        let numbers = |n: usize| Tensor::from_iter((0..n).map(|i| (i as f32).sin()), &candle_core::Device::Cpu).unwrap();
        let (params, obs) = (numbers(layout.len()), numbers(100).reshape((2, 50)).unwrap());
        let features =
            |precision| conv.forward(&params, &obs, precision).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for precision in [Precision::Bf16, Precision::F16] {
            crate::fixture::assert_rounded(precision, &features(precision), &features(Precision::F32));
        }
    }
}
