//! Narrow networks: all layers of their chains in one launch.

use std::ops::Range;

use super::kernels::{BLOCK, LearnerKernels};
use super::layer::{Activation, DenseLayer};
use super::slices::MinibatchSlices;
use crate::driver::args::args;
use crate::error::length;
use crate::{Buffer, Device, Error, Stream, View, ViewMut};

/// Maximum number of inputs or outputs of a layer.
const WIDTH: usize = 64;
/// Maximum number of layers of a chain.
const LAYERS: usize = 4;
/// Samples that a block takes forward.
const SAMPLES: usize = 32;
/// Number of samples from which on a block takes twice as many.
///
/// Then there are blocks enough to fill a device, and larger ones read less from shared memory.
const MANY: usize = 1 << 14;

/// Layer of a chain, with the places of its first numbers.
#[derive(Clone, Copy, Debug)]
pub struct NarrowLayer {
    /// Sizes of the layer.
    pub layer: DenseLayer,
    /// Place among the parameters: weights (K, N), then biases (N).
    pub params: usize,
    /// Place of the outputs, (m, N), a multiple of 4.
    pub outputs: usize,
    /// Place of the gradient of the sums, (m, N).
    ///
    /// Only a chain's last layer needs it.
    pub deltas: usize,
}

/// Chains of narrow layers, each of which starts at the inputs.
#[derive(Debug)]
pub struct NarrowNet {
    table: Buffer<u32>,
    chains: Vec<Vec<NarrowLayer>>,
}

/// Samples of a narrow network's forward pass, in device memory.
#[derive(Debug)]
pub struct NarrowSamples<'a> {
    /// Parameters.
    pub params: View<'a, f32>,
    /// Inputs, (m, K).
    pub inputs: View<'a, f32>,
    /// Outputs of all layers.
    pub outputs: ViewMut<'a, f32>,
    /// True if all layers' outputs are written, not only those of the last layers.
    pub keeps: bool,
    /// First sample's place among the outputs of the chains' last layers.
    pub first: usize,
    /// Two flags of each sample, (m), if only samples with one of them are needed.
    pub needed: Option<[View<'a, u8>; 2]>,
}

/// Numbers of a narrow network in device memory.
#[derive(Clone, Copy, Debug)]
pub struct NarrowNumbers<'a> {
    /// Parameters.
    pub params: View<'a, f32>,
    /// Inputs, (m, K).
    pub inputs: View<'a, f32>,
    /// Outputs of all layers.
    pub outputs: View<'a, f32>,
    /// Gradients of the sums of the chains' last layers.
    pub deltas: View<'a, f32>,
    /// First sample's place among the inputs.
    ///
    /// And among the outputs of all layers but the chains' last ones.
    pub held: usize,
    /// First sample's place among the gradients.
    pub first: usize,
}

impl NarrowNet {
    /// Copies the sizes and places of the layers to the device.
    ///
    /// `None` if the kernels do not support them: more than 64 inputs or outputs of a layer, more than 4 layers of a chain, or no
    /// activation between two layers.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(device: &Device, chains: Vec<Vec<NarrowLayer>>) -> Result<Option<Self>, Error> {
        let n_in = chains.first().and_then(|chain| chain.first()).map_or(0, |first| first.layer.n_in);
        let is_layer = |of: &NarrowLayer| {
            let DenseLayer { n_in, n_out, .. } = of.layer;
            let places = [of.params, of.outputs, of.deltas].iter().all(|&place| u32::try_from(place).is_ok());
            (1..=WIDTH).contains(&n_in) && (1..=WIDTH).contains(&n_out) && places && of.outputs.is_multiple_of(4)
        };
        let is_chain = |chain: &Vec<NarrowLayer>| {
            let follow = chain
                .windows(2)
                .all(|pair| pair[0].layer.n_out == pair[1].layer.n_in && pair[0].layer.activation != Activation::None);
            chain.first().is_some_and(|first| first.layer.n_in == n_in) && chain.len() <= LAYERS && follow
        };
        if chains.is_empty() || !chains.iter().all(is_chain) || !chains.iter().flatten().all(is_layer) {
            return Ok(None);
        }
        let words = |chain: &Vec<NarrowLayer>| {
            let mut words = vec![chain.len() as u32];
            for NarrowLayer { layer: DenseLayer { n_in, n_out, activation }, params, outputs, deltas } in chain {
                words.extend([*n_in as u32, *n_out as u32, *activation as u32, *params as u32, *outputs as u32, *deltas as u32]);
            }
            words.resize(1 + 6 * LAYERS, 0);
            words
        };
        let words: Vec<u32> = chains.iter().flat_map(words).collect();
        Ok(Some(Self { table: Buffer::of(device, &words)?, chains }))
    }

    /// Number of inputs K.
    fn n_in(&self) -> usize {
        self.chains[0][0].layer.n_in
    }
}

#[allow(unsafe_code)]
impl LearnerKernels {
    /// Computes the outputs of the layers of some chains.
    ///
    /// Those of samples that are not needed are undefined.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn narrow_forward(
        &self,
        stream: &Stream,
        net: &NarrowNet,
        chains: Range<usize>,
        samples: NarrowSamples<'_>,
    ) -> Result<(), Error> {
        let NarrowSamples { params, inputs, outputs, keeps, first, needed } = samples;
        let m = inputs.len() / net.n_in();
        for flags in needed.iter().flatten() {
            length("flags", m, flags.len())?;
        }
        length("inputs", m * net.n_in(), inputs.len())?;
        for chain in &net.chains[chains.clone()] {
            for (l, of) in chain.iter().enumerate() {
                let rows = if l + 1 == chain.len() { first + m } else { m };
                within("params", of.params + (of.layer.n_in + 1) * of.layer.n_out, params.len())?;
                within("outputs", of.outputs + rows * of.layer.n_out, outputs.len())?;
            }
        }
        let [one, other] = needed.map_or([None, None], |flags| flags.map(Some));
        let args = args![net.table, params, inputs, outputs, one, other, m as u32, first as u32];
        let args = args![args; chains.start as u32, chains.len() as u32, u32::from(keeps)];
        let (kernel, samples) = if m < MANY { (&self.narrow_forward, SAMPLES) } else { (&self.narrow_forward_many, 2 * SAMPLES) };
        let blocks = (m.div_ceil(samples) * chains.len()) as u64;
        // SAFETY: the parameters are those of both kernels; lengths were checked above, sizes when the table was made.
        unsafe { kernel.launch(stream, blocks * u64::from(BLOCK), BLOCK, args) }
    }

    /// Writes partial gradients of all chains.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn narrow_gradient(
        &self,
        stream: &Stream,
        net: &NarrowNet,
        slices: &MinibatchSlices,
        numbers: NarrowNumbers<'_>,
        partial: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let NarrowNumbers { params, inputs, outputs, deltas, held, first } = numbers;
        length("samples of a column", 1, slices.n_steps())?;
        within("inputs", (held + slices.n) * net.n_in(), inputs.len())?;
        for chain in &net.chains {
            for (l, of) in chain.iter().enumerate() {
                let end = of.params + (of.layer.n_in + 1) * of.layer.n_out;
                within("params", end, params.len())?;
                within("partial", (slices.rows() - 1) * slices.len + end, partial.len())?;
                if l + 1 == chain.len() {
                    within("deltas", of.deltas + (first + slices.n) * of.layer.n_out, deltas.len())?;
                } else {
                    within("outputs", of.outputs + (held + slices.n) * of.layer.n_out, outputs.len())?;
                }
            }
        }
        let args = args![net.table, params, inputs, outputs, deltas, partial, slices.words()];
        let args = args![args; held as u32, first as u32, net.chains.len() as u32];
        let blocks = (slices.rows() * net.chains.len()) as u64;
        // SAFETY: the parameters are those of `narrow_gradient`; lengths were checked above, sizes when the table was made.
        unsafe { self.narrow_gradient.launch(stream, blocks * u64::from(BLOCK), BLOCK, args) }
    }
}

/// Checks that a range ends within a length.
fn within(what: &'static str, end: usize, len: usize) -> Result<(), Error> {
    length(what, end, len.min(end))
}
