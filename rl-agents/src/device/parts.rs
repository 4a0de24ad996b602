//! Encoder of observations on a device.
//!
//! The twin of [`EncoderStage`](crate::kernel::encoder::parts::EncoderStage).

use std::ops::Range;

use rl_cuda::learner::{Activation, MatrixColumns, MinibatchSlices};
use rl_cuda::{Buffer, Device, View, ViewMut};

use crate::Error;
use crate::device::conv::{DeviceConvs, Features};
use crate::device::{Purpose, Queue};
use crate::kernel::encoder::parts::SegmentStage;
use crate::kernel::net::Net;

/// Encoder of observations.
#[derive(Debug)]
pub(crate) enum DeviceEncoder {
    /// Dense layers or the memory read the inputs.
    Nothing,
    /// Convolutions of an observation that is a picture.
    Picture(DeviceConvs),
    /// Several parts, some of which are pictures.
    Parts(SeveralParts),
}

/// Several parts of an observation, and their features beside each other.
#[derive(Debug)]
pub(crate) struct SeveralParts {
    all: Vec<DevicePart>,
    /// Numbers I of a sample's inputs, and F of its features.
    n_inputs: usize,
    n_features: usize,
    features: Buffer<f32>, // (H, F)
    deltas: Buffer<f32>,   // (H, F)
}

#[derive(Debug)]
struct DevicePart {
    inputs: Range<usize>,
    /// Index of the first feature.
    first: usize,
    /// `None` if the features are the inputs.
    picture: Option<DevicePicture>,
}

#[derive(Debug)]
struct DevicePicture {
    pixels: Buffer<f32>, // (H, N)
    convs: DeviceConvs,
}

impl DeviceEncoder {
    /// Allocates the encoder of a network, for `held` samples.
    ///
    /// # Errors
    /// [`Error::Setting`] if there are no kernels for it; [`Error::Device`].
    pub(crate) fn new(device: &Device, net: &Net, held: usize, purpose: Purpose) -> Result<Self, Error> {
        let learns = purpose == Purpose::Learns;
        // One-hot vectors alone are the inputs.
        let Some(encoder) = net.encoder.as_ref().filter(|encoder| encoder.convolves()) else { return Ok(Self::Nothing) };
        let segments: Vec<_> = encoder.segments().collect();
        if let [SegmentStage { conv: Some(conv), .. }] = segments[..] {
            return Ok(Self::Picture(DeviceConvs::new(device, conv, held, learns)?));
        }
        let n_features = encoder.features().len();
        let part = |SegmentStage { inputs, first, conv }: &SegmentStage<'_>| {
            let picture = conv.map(|conv| {
                let pixels = Buffer::zeros(device, held * inputs.len())?;
                Ok::<_, Error>(DevicePicture { pixels, convs: DeviceConvs::new(device, conv, held, learns)? })
            });
            Ok(DevicePart { inputs: inputs.clone(), first: *first, picture: picture.transpose()? })
        };
        Ok(Self::Parts(SeveralParts {
            all: segments.iter().map(part).collect::<Result<_, Error>>()?,
            n_inputs: segments.iter().map(|segment| segment.inputs.len()).sum(),
            n_features,
            features: Buffer::zeros(device, held * n_features)?,
            deltas: Buffer::zeros(device, if purpose == Purpose::Acts { 0 } else { held * n_features })?,
        }))
    }

    /// Returns the number of inputs of a sample; `None` without an encoder.
    pub(crate) fn n_inputs(&self) -> Option<usize> {
        match self {
            Self::Nothing => None,
            Self::Picture(convs) => Some(convs.n_inputs()),
            Self::Parts(parts) => Some(parts.n_inputs),
        }
    }

    /// Bytes of the activations and their gradients.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Picture(convs) => convs.bytes(),
            Self::Parts(SeveralParts { all, features, deltas, .. }) => {
                let pictures = all.iter().flat_map(|part| &part.picture);
                let pictures = pictures.map(|DevicePicture { pixels, convs }| pixels.bytes() + convs.bytes());
                pictures.sum::<usize>() + features.bytes() + deltas.bytes()
            }
        }
    }

    /// Returns the features of samples.
    pub(crate) fn features<'a>(&'a self, inputs: View<'a, f32>) -> View<'a, f32> {
        match self {
            Self::Nothing => inputs,
            Self::Picture(convs) => convs.outputs(),
            Self::Parts(parts) => parts.features.view(),
        }
    }

    /// Returns what the way back needs, and the features.
    pub(crate) fn features_mut<'a>(&'a mut self, inputs: &'a Buffer<f32>) -> (Option<Features<'a>>, &'a Buffer<f32>) {
        match self {
            Self::Nothing => (None, inputs),
            Self::Picture(convs) => {
                let (outputs, features) = convs.features_mut();
                (Some(features), outputs)
            }
            Self::Parts(SeveralParts { features, deltas, .. }) => {
                (Some(Features { activation: Activation::None, slopes: None, dx: deltas }), features)
            }
        }
    }

    /// Returns the gradients of the features of several parts.
    pub(crate) fn deltas(&self) -> Option<View<'_, f32>> {
        if let Self::Parts(parts) = self { Some(parts.deltas.view()) } else { None }
    }

    /// Runs `m` samples forward.
    pub(crate) fn forward(
        &mut self,
        queue: Queue<'_>,
        params: &View<'_, f32>,
        m: usize,
        inputs: View<'_, f32>,
    ) -> Result<(), Error> {
        match self {
            Self::Nothing => Ok(()),
            Self::Picture(convs) => convs.forward(queue, params, m, inputs),
            Self::Parts(parts) => parts.forward(queue, params, m, inputs),
        }
    }

    /// Writes partial gradients of the samples `held`, whose activations are held.
    ///
    /// The gradients of the features have been written; those of a picture's sums, if it is the whole observation.
    pub(crate) fn gradient(
        &mut self,
        queue: Queue<'_>,
        params: &View<'_, f32>,
        slices: &MinibatchSlices,
        inputs: &Buffer<f32>,
        held: Range<usize>,
        partial: &mut ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        match self {
            Self::Nothing => Ok(()),
            Self::Picture(convs) => convs.gradient(queue, params, slices, inputs, held, partial),
            Self::Parts(SeveralParts { all, n_features, deltas, .. }) => {
                let (width, deltas) = (*n_features, deltas.view());
                for DevicePart { first, picture, .. } in all {
                    let Some(DevicePicture { pixels, convs }) = picture else { continue };
                    let matrix = deltas.slice(held.start * width..held.end * width);
                    convs.take_gradient(queue, &MatrixColumns { matrix, width, first: *first }, held.clone())?;
                    convs.gradient(queue, params, slices, pixels, held.clone(), partial)?;
                }
                Ok(())
            }
        }
    }
}

impl SeveralParts {
    fn forward(&mut self, queue: Queue<'_>, params: &View<'_, f32>, m: usize, inputs: View<'_, f32>) -> Result<(), Error> {
        let (Queue { stream, kernels }, width) = (queue, self.n_features);
        for DevicePart { inputs: of, first, picture } in &mut self.all {
            let from = MatrixColumns { matrix: inputs.slice(0..m * self.n_inputs), width: self.n_inputs, first: of.start };
            let to = MatrixColumns { matrix: self.features.view_mut().into_slice(0..m * width), width, first: *first };
            let Some(DevicePicture { pixels, convs }) = picture else {
                kernels.copy_columns(stream, &from, &to, of.len())?;
                continue;
            };
            let matrix = pixels.view_mut().into_slice(0..m * of.len());
            kernels.copy_columns(stream, &from, &MatrixColumns { matrix, width: of.len(), first: 0 }, of.len())?;
            convs.forward(queue, params, m, pixels.view())?;
            let n = convs.n_outputs();
            let outputs = MatrixColumns { matrix: convs.outputs().slice(0..m * n), width: n, first: 0 };
            kernels.copy_columns(stream, &outputs, &to, n)?;
        }
        Ok(())
    }
}
