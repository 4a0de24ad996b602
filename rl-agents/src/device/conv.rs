//! Convolutions of a picture on a device.

use std::ops::Range;

use rl_cuda::learner::{self, ConvLayer, ConvShape, Gate, MatrixColumns, MinibatchSlices};
use rl_cuda::{Buffer, Device, View, ViewMut};

use crate::Error;
use crate::device::{Queue, activation};
use crate::kernel::encoder::conv;

/// A convolution, with its place among the parameters.
#[derive(Debug)]
struct DeviceConv {
    conv: ConvLayer,
    /// Function that its sums pass after the layer.
    gate: Option<Gate>,
    params: Range<usize>,
    outputs: Buffer<f32>, // (H, F)
    slopes: Buffer<f32>,  // derivatives of the gate, likewise; empty if there is none, or none to learn with
    deltas: Buffer<f32>,  // gradient of the sums, (H, F)
}

/// Features of the last convolution, as the way back needs them.
pub(crate) struct Features<'a> {
    pub(crate) activation: learner::Activation,
    /// Derivatives of its gate, if it has one, (H, F).
    pub(crate) slopes: Option<View<'a, f32>>,
    /// Gradient of its sums, (H, F).
    pub(crate) dx: &'a mut Buffer<f32>,
}

/// All convolutions of a picture, in order.
#[derive(Debug)]
pub(crate) struct DeviceConvs(Vec<DeviceConv>);

impl DeviceConvs {
    /// Allocates convolutions for `held` samples.
    ///
    /// # Errors
    /// [`Error::Setting`] if there are no kernels for them; [`Error::Device`].
    pub(crate) fn new(device: &Device, stage: &conv::ConvStage, held: usize, learns: bool) -> Result<Self, Error> {
        let [_, channels, padded] = stage.features();
        if channels != padded {
            let allowed = "but on a device the last convolution has a multiple of 16 channels; use --device cpu";
            return Err(Error::Setting { name: "conv", value: format!("of {channels} channels"), allowed });
        }
        let (activation, gate) = activation(Some(stage.activation));
        let layer = |(l, shape): (usize, &conv::ConvShape)| {
            let conv::ConvShape { n_in, n_out, kernel, stride, in_size, .. } = *shape;
            let (together, planes) = (stage.together, l == 0);
            let conv = ConvLayer::new(device, ConvShape { n_in, n_out, kernel, stride, in_size, planes, activation, together })?;
            let matrix = |needed: bool| Buffer::zeros(device, usize::from(needed) * held * conv.shape().out_len());
            let (outputs, slopes, deltas) = (matrix(true)?, matrix(learns && gate.is_some())?, matrix(learns)?);
            Ok(DeviceConv { params: shape.weight.start..shape.bias.end, outputs, slopes, deltas, conv, gate })
        };
        Ok(Self(stage.shapes().enumerate().map(layer).collect::<Result<_, Error>>()?))
    }

    /// Returns the number of inputs of a sample.
    pub(crate) fn n_inputs(&self) -> usize {
        self.0[0].conv.shape().in_len()
    }

    fn last(&self) -> &DeviceConv {
        &self.0[self.0.len() - 1]
    }

    /// Returns the number of features of a sample.
    pub(crate) fn n_outputs(&self) -> usize {
        self.last().conv.shape().out_len()
    }

    /// Bytes of the activations and their gradients.
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().flat_map(|conv| [&conv.outputs, &conv.slopes, &conv.deltas]).map(Buffer::bytes).sum()
    }

    /// Returns the features (H, F).
    pub(crate) fn outputs(&self) -> View<'_, f32> {
        self.last().outputs.view()
    }

    /// Returns the features, and what the way back needs of them.
    pub(crate) fn features_mut(&mut self) -> (&Buffer<f32>, Features<'_>) {
        let last = self.0.len() - 1;
        let DeviceConv { conv, gate, outputs, slopes, deltas, .. } = &mut self.0[last];
        let slopes = gate.map(|_| slopes.view());
        (outputs, Features { activation: conv.shape().activation, slopes, dx: deltas })
    }

    /// Writes the gradients of the sums of the samples `held`.
    ///
    /// Those of their features are columns.
    pub(crate) fn take_gradient(
        &mut self,
        queue: Queue<'_>,
        from: &MatrixColumns<View<'_, f32>>,
        held: Range<usize>,
    ) -> Result<(), Error> {
        let n = self.n_outputs();
        let rows = held.start * n..held.end * n;
        let (outputs, Features { activation, slopes, dx }) = self.features_mut();
        let dz = dx.view_mut().into_slice(rows.clone());
        let y = outputs.view().slice(rows.clone());
        queue.kernels.derive_columns(queue.stream, from, activation, &y, &dz)?;
        Ok(queue.pass_gate(slopes, rows, &dz)?)
    }

    /// Runs `m` samples forward.
    pub(crate) fn forward(
        &mut self,
        Queue { stream, kernels }: Queue<'_>,
        params: &View<'_, f32>,
        m: usize,
        inputs: View<'_, f32>,
    ) -> Result<(), Error> {
        for l in 0..self.0.len() {
            let (before, from_here) = self.0.split_at_mut(l);
            let DeviceConv { conv, gate, params: range, outputs, slopes, .. } = &mut from_here[0];
            let x = before.last().map_or(inputs, |source| source.outputs.view()).slice(0..m * conv.shape().in_len());
            let y = outputs.view_mut().into_slice(0..m * conv.shape().out_len());
            conv.forward(stream, &params.slice(range.clone()), &x, &y)?;
            if let Some(gate) = gate {
                let slopes = (!slopes.is_empty()).then(|| slopes.view_mut().into_slice(0..y.len()));
                kernels.gate(stream, *gate, &y, slopes.as_ref())?;
            }
        }
        Ok(())
    }

    /// Writes partial gradients of the samples `held`, whose activations are held.
    ///
    /// The gradients of the sums of the last convolution have been written.
    pub(crate) fn gradient(
        &mut self,
        queue: Queue<'_>,
        params: &View<'_, f32>,
        slices: &MinibatchSlices,
        inputs: &Buffer<f32>,
        held: Range<usize>,
        partial: &mut ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let (stream, len) = (queue.stream, partial.len());
        for l in (0..self.0.len()).rev() {
            let (before, from_here) = self.0.split_at_mut(l);
            let DeviceConv { conv, params: range, deltas, .. } = &from_here[0];
            let (x, dx) = match before.last_mut() {
                Some(DeviceConv { conv, gate, outputs, slopes, deltas, .. }) => {
                    (&*outputs, Some((conv.shape().activation, gate.map(|_| slopes.view()), deltas)))
                }
                None => (inputs, None),
            };
            let of = |len: usize| held.start * len..held.end * len;
            let (n_in, n_out) = (of(conv.shape().in_len()), of(conv.shape().out_len()));
            let (x, dz) = (x.view().slice(n_in.clone()), deltas.view().slice(n_out));
            conv.gradient(stream, slices, &x, &dz, &partial.slice_mut(range.start..len))?;
            if let Some((activation, slopes, dx)) = dx {
                let (weights, dx) = (&params.slice(range.clone()), dx.view_mut().into_slice(n_in.clone()));
                conv.input_gradient(stream, weights, &dz, activation, &x, &dx)?;
                queue.pass_gate(slopes, n_in, &dx)?;
            }
        }
        Ok(())
    }
}
