//! Convolutions and their gradients.

use super::dense::{BIAS_COLUMNS, BIAS_THREADS, blocks};
use super::kernels::BLOCK;
use super::layer::Activation;
use super::slices::MinibatchSlices;
use crate::driver::args::args;
use crate::driver::kernel::Kernel;
use crate::error::length;
use crate::{Buffer, Device, Error, Stream, View, ViewMut};

/// Shape of a convolution with a square kernel and no padding.
#[derive(Clone, Copy, Debug)]
pub struct ConvShape {
    /// Channels of the inputs.
    pub n_in: usize,
    /// Channels of the outputs.
    pub n_out: usize,
    /// Rows and columns of the kernel.
    pub kernel: usize,
    /// Distance from one position of the kernel to the next.
    pub stride: usize,
    /// Rows and columns of the inputs.
    pub in_size: [usize; 2],
    /// True for inputs (channels, rows, columns), false for (rows, columns, channels).
    pub planes: bool,
    /// Activation after the layer.
    pub activation: Activation,
    /// Samples of a tile whose gradients are summed from zero, 1 or more.
    pub together: usize,
}

impl ConvShape {
    fn out_size(&self) -> [usize; 2] {
        self.in_size.map(|size| (size - self.kernel) / self.stride + 1)
    }

    fn n_positions(&self) -> usize {
        self.out_size().iter().product()
    }

    fn n_weights(&self) -> usize {
        self.n_out * self.n_in * self.kernel * self.kernel
    }

    /// Numbers of one sample's inputs.
    #[must_use]
    pub fn in_len(&self) -> usize {
        self.n_in * self.in_size[0] * self.in_size[1]
    }

    /// Numbers of one sample's outputs, (rows, columns, channels).
    #[must_use]
    pub fn out_len(&self) -> usize {
        self.n_positions() * self.n_out
    }

    /// Numbers of the weights, (out, in, kernel, kernel), and the biases, (out).
    #[must_use]
    pub fn n_params(&self) -> usize {
        self.n_weights() + self.n_out
    }

    /// Distances of the inputs of two channels, and of two columns.
    fn distances(&self) -> [usize; 2] {
        if self.planes { [self.in_size[0] * self.in_size[1], 1] } else { [1, self.n_in] }
    }

    /// Offset of each position's patch in a sample's inputs.
    fn positions(&self) -> Vec<u32> {
        let ([rows, columns], [_, column]) = (self.out_size(), self.distances());
        let at = |y, x| (y * self.in_size[1] + x) * self.stride * column;
        (0..rows).flat_map(|y| (0..columns).map(move |x| at(y, x) as u32)).collect()
    }

    /// Offsets of the terms in a patch, ascending, and their places in the weights.
    fn terms(&self) -> (Vec<u32>, Vec<u32>) {
        let ([channel, column], k) = (self.distances(), self.kernel);
        let at = |c, y, x| c * channel + (y * self.in_size[1] + x) * column;
        let offsets = (0..self.n_in).flat_map(|c| (0..k).flat_map(move |y| (0..k).map(move |x| at(c, y, x) as u32)));
        let mut terms: Vec<(u32, u32)> = offsets.zip(0..).collect();
        terms.sort_unstable();
        terms.into_iter().unzip()
    }

    /// Returns the kernels' `Shape` of a layer with `m` samples.
    ///
    /// # Errors
    /// [`Error::Length`] if a kernel cannot count the positions of the samples.
    fn words(&self, m: usize, activation: Activation) -> Result<[u32; 12], Error> {
        let ([in_rows, in_columns], [out_rows, out_columns]) = (self.in_size, self.out_size());
        let most = (m * self.n_positions()).max(self.in_len()).max(self.n_weights());
        length("positions of all samples", most.min(u32::MAX as usize), most)?;
        let Self { n_in, n_out, kernel, stride, together, .. } = *self;
        let sizes = [m, self.in_len(), n_in, n_out, kernel, stride, in_rows, in_columns, out_rows, out_columns];
        let mut words = [0; 12];
        words.iter_mut().zip(sizes).for_each(|(word, size)| *word = size as u32);
        words[10..].copy_from_slice(&[activation as u32, together as u32]);
        Ok(words)
    }
}

/// A convolution: its kernels, and its offsets in device memory.
#[derive(Debug)]
pub struct ConvLayer {
    shape: ConvShape,
    positions: Buffer<u32>,
    terms: Buffer<u32>,
    order: Buffer<u32>,
    forward: Kernel,
    input_gradient: Kernel,
    weight_gradient: Kernel,
    bias_gradient: Kernel,
}

#[allow(unsafe_code)]
impl ConvLayer {
    /// Loads the kernels, and copies the offsets.
    ///
    /// # Errors
    /// [`Error::Module`], [`Error::Emulation`] or [`Error::Driver`].
    ///
    /// # Panics
    /// If the kernel, the stride, the number of samples together or a number of channels is 0, or if the kernel does not fit into
    /// the inputs.
    pub fn new(device: &Device, shape: ConvShape) -> Result<Self, Error> {
        let ConvShape { n_in, n_out, kernel, stride, in_size, together, .. } = shape;
        assert!(n_in * n_out * kernel * stride * together > 0 && in_size.iter().all(|&size| size >= kernel), "{shape:?}");
        let loaded = |name: &str| device.kernel("conv", format!("conv_{name}"));
        let (terms, order) = shape.terms();
        Ok(Self {
            positions: Buffer::of(device, &shape.positions())?,
            terms: Buffer::of(device, &terms)?,
            order: Buffer::of(device, &order)?,
            forward: loaded("forward")?,
            input_gradient: loaded("input_gradient")?,
            weight_gradient: loaded("weight_gradient")?,
            bias_gradient: loaded("bias_gradient")?,
            shape,
        })
    }

    /// Returns the shape.
    #[must_use]
    pub fn shape(&self) -> &ConvShape {
        &self.shape
    }

    /// Computes outputs `y`, (m, rows, columns, channels), from inputs `x`.
    ///
    /// `params` are weights, then biases.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn forward(&self, stream: &Stream, params: &View<'_, f32>, x: &View<'_, f32>, y: &ViewMut<'_, f32>) -> Result<(), Error> {
        let shape = &self.shape;
        let m = y.len() / shape.out_len();
        length("y", m * shape.out_len(), y.len())?;
        length("x", m * shape.in_len(), x.len())?;
        length("params", shape.n_params(), params.len())?;
        let bias = params.slice(shape.n_weights()..params.len());
        let args = args![params, bias, x, y, self.positions, self.terms, self.order, shape.words(m, shape.activation)?];
        // SAFETY: the parameters are those of `conv_forward`; lengths were checked above, and offsets are within a sample's
        // inputs.
        unsafe { self.forward.launch(stream, blocks(m * shape.n_positions(), shape.n_out) * u64::from(BLOCK), BLOCK, args) }
    }

    /// Computes the gradient `dx` of the sums of the layer before.
    ///
    /// It is (m, rows, columns, channels). `dz` is the gradient of this layer's sums. `y` are its inputs, which `activation` has
    /// made.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    ///
    /// # Panics
    /// If the inputs are planes.
    pub fn input_gradient(
        &self,
        stream: &Stream,
        params: &View<'_, f32>,
        dz: &View<'_, f32>,
        activation: Activation,
        y: &View<'_, f32>,
        dx: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let shape = &self.shape;
        assert!(!shape.planes, "planes are observations, which have no gradient");
        let m = dx.len() / shape.in_len();
        length("dx", m * shape.in_len(), dx.len())?;
        length("y", m * shape.in_len(), y.len())?;
        length("dz", m * shape.out_len(), dz.len())?;
        length("params", shape.n_params(), params.len())?;
        let args = args![params, dz, y, dx, shape.words(m, activation)?];
        // SAFETY: the parameters are those of `conv_input_gradient`; lengths were checked above.
        unsafe { self.input_gradient.launch(stream, dx.len() as u64, BLOCK, args) }
    }

    /// Writes the layer's partial gradients.
    ///
    /// `x` are its inputs, and `dz` is the gradient of its sums. `partial` begins with the layer's first number: weights, then
    /// biases.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn gradient(
        &self,
        stream: &Stream,
        slices: &MinibatchSlices,
        x: &View<'_, f32>,
        dz: &View<'_, f32>,
        partial: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let shape = &self.shape;
        length("x", slices.n * shape.in_len(), x.len())?;
        length("dz", slices.n * shape.out_len(), dz.len())?;
        let len = (slices.rows() - 1) * slices.len + shape.n_params();
        length("partial", len, partial.len().min(len))?;
        let (size, words) = (shape.words(slices.n, Activation::None)?, slices.words());
        let args = args![x, dz, partial, self.positions, self.terms, self.order, size, words];
        let n = blocks(shape.n_weights() / shape.n_out, shape.n_out) * slices.rows() as u64 * u64::from(BLOCK);
        // SAFETY: the parameters are those of `conv_weight_gradient`; lengths were checked above, and offsets are within a
        // sample's inputs and the weights.
        unsafe { self.weight_gradient.launch(stream, n, BLOCK, args)? };
        let bias = partial.address() + 4 * shape.n_weights() as u64;
        let args = args![dz, bias, size, words];
        let blocks = (slices.rows() * shape.n_out.div_ceil(BIAS_COLUMNS)) as u64;
        // SAFETY: the parameters are those of `conv_bias_gradient`; lengths were checked above.
        unsafe { self.bias_gradient.launch(stream, blocks * u64::from(BIAS_THREADS), BIAS_THREADS, args) }
    }
}
