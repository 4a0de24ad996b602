//! Networks on a device: the layers of [`Net`](crate::kernel::net::Net).
//!
//! Narrow dense layers are one kernel in each direction; all others have one or two kernels for each layer and direction, and
//! one more for SiLU and GELU; a normalization has one forward and three back. Features take the observations' place before
//! dense layers. Outputs that no layer reads, and their gradients, are held for all samples of a minibatch. The other activations
//! may be held for fewer samples: one forward pass, part by part, gives the loss of all samples; then each part is computed
//! again before its gradient.

use std::ops::Range;

use rl_cuda::learner::{
    self, DenseLayer, DenseParams, Gate, MinibatchSlices, NarrowLayer, NarrowNet, NarrowNumbers, NarrowSamples, NormParams,
    SequenceColumns, SequencePart,
};
use rl_cuda::{Buffer, Device, View, ViewMut};

use crate::Error;
use crate::device::conv::Features;
use crate::device::memory::DeviceMemory;
use crate::device::parts::DeviceEncoder;
use crate::device::{Purpose, Queue, activation};
use crate::kernel::dense::Dense;
use crate::kernel::net::{Net, Place};
use crate::network::layer_norm::LayerNorm;

/// A layer, with its place among the parameters and among the layers.
#[derive(Clone, Debug)]
struct DeviceLayer {
    dense: DenseLayer,
    /// Normalization of its sums.
    norm: Option<LayerNorm>,
    /// Function that its sums pass after the layer.
    gate: Option<Gate>,
    params: Range<usize>,
    /// Index of the layer that this layer reads; `None` for the observation.
    source: Option<usize>,
    /// Index of the cell that it reads in place of the observation, if there is memory.
    cell: usize,
    /// True if another layer reads this one.
    is_read: bool,
}

/// Layers with their activations for a minibatch, in device memory.
#[derive(Debug)]
pub(crate) struct DeviceNet {
    encoder: DeviceEncoder,
    memory: Option<DeviceMemory>,
    layers: Vec<DeviceLayer>,
    /// Layers of each chain.
    chains: Vec<Range<usize>>,
    /// Inputs of the first layers, (H, I): one-hot vectors for categories.
    inputs: Buffer<f32>,
    outputs: Buffer<f32>,
    /// Derivatives of gates, at the places of the outputs.
    ///
    /// Empty if there are no gates, or none to learn with.
    slopes: Buffer<f32>,
    /// Normalized sums, and inverse standard deviations, (layers, H).
    ///
    /// The sums are at the places of the outputs. On the way back they become terms of the gains' gradient.
    /// Empty without normalization, or to act with.
    normed: [Buffer<f32>; 2],
    deltas: Buffer<f32>,
    /// Places of every layer's outputs, (H, N), or (M, N) if no other reads it.
    output_places: Vec<Range<usize>>,
    /// Places of the gradients of its sums, as many.
    ///
    /// Empty where they stay within a kernel.
    delta_places: Vec<Range<usize>>,
    /// Kernels of all layers of a chain, if they are narrow.
    narrow: Option<NarrowNet>,
    /// Number H of samples whose activations are held at the same time.
    held: usize,
    /// Samples whose activations are held.
    holds: Range<usize>,
    /// Gradients of the inputs, (H, I), where they are wanted.
    input_deltas: Buffer<f32>,
    /// True if there is memory for gradients.
    learns: bool,
}

/// Slices of a minibatch.
#[derive(Clone, Copy)]
pub(crate) struct SlicedMinibatch<'a> {
    pub(crate) slices: &'a MinibatchSlices,
    /// Columns that the samples are, for a network with memory.
    pub(crate) columns: Option<SequenceColumns<'a>>,
}

/// States that a forward pass starts from, and parts that may be left out.
#[derive(Clone, Copy, Default)]
pub(crate) struct Needed<'a> {
    /// Chain that is left out. No other chain starts from it.
    pub(crate) not_chain: Option<usize>,
    /// Two flags of each sample, if only samples with one of them are needed.
    pub(crate) ended: Option<[View<'a, u8>; 2]>,
    /// States (m, S) to start from; `None` without memory.
    pub(crate) states: Option<View<'a, f32>>,
}

/// Cuts a range into parts of at most `len`.
pub(crate) fn parts(all: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    let end = all.end;
    all.step_by(len).map(move |first| first..end.min(first + len))
}

/// Lays out matrices of these lengths, each at a multiple of 4 numbers.
///
/// The second result is the length of all.
fn places(lens: impl Iterator<Item = usize>) -> (Vec<Range<usize>>, usize) {
    let mut end = 0;
    let place = |len: usize| {
        let start = end;
        end += len.next_multiple_of(4);
        start..start + len
    };
    (lens.map(place).collect(), end)
}

/// Returns the place of the first numbers of a matrix.
fn first(place: &Range<usize>, len: usize) -> Range<usize> {
    place.start..place.start + len
}

impl LayerNorm {
    /// Borrows its numbers from the parameter vector.
    fn of<'a>(&self, params: &View<'a, f32>) -> NormParams<'a> {
        NormParams { gains: params.slice(self.gain.clone()), offsets: params.slice(self.offset.clone()) }
    }
}

impl DeviceNet {
    /// Allocates memory for `m` samples, `held` at the same time.
    ///
    /// A network that learns has memory for gradients, too.
    ///
    /// # Errors
    /// [`Error::Setting`] if there are no kernels for the network; [`Error::Device`].
    pub(crate) fn new(device: &Device, net: &Net, held: usize, m: usize, learns: bool) -> Result<Self, Error> {
        Self::with(device, net, held, m, if learns { Purpose::Learns } else { Purpose::Acts })
    }

    /// Allocates memory for gradients of what dense layers read of `m` samples.
    ///
    /// The network has no memory.
    ///
    /// # Errors
    /// [`Error::Setting`] if there are no kernels for the network; [`Error::Device`].
    pub(crate) fn of_inputs(device: &Device, net: &Net, m: usize) -> Result<Self, Error> {
        Self::with(device, net, m, m, Purpose::Inputs)
    }

    fn with(device: &Device, net: &Net, held: usize, m: usize, purpose: Purpose) -> Result<Self, Error> {
        let learns = purpose != Purpose::Acts;
        let encoder = DeviceEncoder::new(device, net, held, purpose)?;
        let memory = net.memory.as_ref().map(|stage| DeviceMemory::new(device, stage, held, learns)).transpose()?;
        let cell_of = |l: usize| net.chains.iter().find(|chain| chain.layers.contains(&l)).map_or(0, |chain| chain.cell);
        let layer = |(l, (layer, place)): (usize, (&Dense, &Place))| {
            let (activation, gate) = activation(place.activation);
            DeviceLayer {
                dense: DenseLayer { n_in: layer.n_in, n_out: layer.n_out, activation },
                norm: layer.norm.as_ref().map(|packed| packed.norm.clone()),
                gate,
                params: layer.weight.start..layer.bias.end,
                source: place.source,
                cell: cell_of(l),
                is_read: net.places.iter().any(|reader| reader.source == Some(l)),
            }
        };
        let layers: Vec<_> = net.layers.iter().zip(&net.places).enumerate().map(layer).collect();
        let is_gated = layers.iter().any(|layer| layer.gate.is_some());
        let is_normed = layers.iter().any(|layer| layer.norm.is_some());
        let chains: Vec<_> = net.chains.iter().map(|chain| chain.layers.clone()).collect();
        let len = |layer: &DeviceLayer| if layer.is_read { held } else { m } * layer.dense.n_out;
        let (output_places, n_outputs) = places(layers.iter().map(len));
        let of_heads = |layer: &DeviceLayer| if learns && !layer.is_read { len(layer) } else { 0 };
        let (mut delta_places, mut n_deltas) = places(layers.iter().map(of_heads));
        let starts_at_inputs =
            encoder.n_inputs().is_none() && memory.is_none() && net.chains.iter().all(|chain| chain.from.is_none());
        let of = |l: usize| {
            let DeviceLayer { dense, params, .. } = &layers[l];
            let [outputs, deltas] = [&output_places[l], &delta_places[l]].map(|place| place.start);
            NarrowLayer { layer: *dense, params: params.start, outputs, deltas }
        };
        let of_chains = chains.iter().map(|chain| chain.clone().map(of).collect()).collect();
        // Narrow kernels have no gradients of inputs, no normalization and no gates.
        let is_narrow = starts_at_inputs && purpose != Purpose::Inputs && !is_normed && !is_gated;
        let narrow = if is_narrow { NarrowNet::new(device, of_chains)? } else { None };
        if learns && narrow.is_none() {
            (delta_places, n_deltas) = places(layers.iter().map(len));
        }
        let first_cell = net.memory.as_ref().and_then(|stage| stage.cells().next());
        let first_dense = first_cell.map_or(net.layers[0].n_in, |(_, inputs, _)| inputs[0].n_in);
        let n_inputs = encoder.n_inputs().unwrap_or(first_dense);
        let n_input_deltas = if purpose == Purpose::Inputs && encoder.n_inputs().is_none() { held * n_inputs } else { 0 };
        Ok(Self {
            inputs: Buffer::zeros(device, held * n_inputs)?,
            encoder,
            memory,
            outputs: Buffer::zeros(device, n_outputs)?,
            slopes: Buffer::zeros(device, if is_gated && learns { n_outputs } else { 0 })?,
            normed: [
                Buffer::zeros(device, if is_normed && learns { n_outputs } else { 0 })?,
                Buffer::zeros(device, if is_normed && learns { layers.len() * held } else { 0 })?,
            ],
            deltas: Buffer::zeros(device, n_deltas)?,
            input_deltas: Buffer::zeros(device, n_input_deltas)?,
            output_places,
            delta_places,
            narrow,
            held,
            learns,
            holds: 0..0,
            chains,
            layers,
        })
    }

    /// Returns the inputs of the first `m` samples for writing.
    pub(crate) fn inputs_mut(&mut self, m: usize) -> ViewMut<'_, f32> {
        let len = m * (self.inputs.len() / self.held);
        self.inputs.view_mut().into_slice(0..len)
    }

    /// Bytes of the activations and their gradients.
    pub(crate) fn bytes(&self) -> usize {
        let of_memory = self.memory.as_ref().map_or(0, DeviceMemory::bytes);
        of_memory
            + self.encoder.bytes()
            + [&self.inputs, &self.outputs, &self.slopes, &self.deltas, &self.input_deltas]
                .into_iter()
                .chain(&self.normed)
                .map(Buffer::bytes)
                .sum::<usize>()
    }

    /// Returns the outputs of a chain for the first `m` samples.
    pub(crate) fn outputs(&self, chain: usize, m: usize) -> View<'_, f32> {
        let last = self.chains[chain].end - 1;
        self.outputs.view().slice(first(&self.output_places[last], m * self.layers[last].dense.n_out))
    }

    /// Returns the outputs of a chain, and their gradient for writing.
    ///
    /// For the first `m` samples.
    pub(crate) fn head(&mut self, chain: usize, m: usize) -> (View<'_, f32>, ViewMut<'_, f32>) {
        let last = self.chains[chain].end - 1;
        let of = |places: &[Range<usize>]| first(&places[last], m * self.layers[last].dense.n_out);
        let (outputs, deltas) = (of(&self.output_places), of(&self.delta_places));
        (self.outputs.view().slice(outputs), self.deltas.view_mut().into_slice(deltas))
    }

    /// Returns the gradients of what dense layers read, (m, F).
    ///
    /// Their activations are held. The gradients of the outputs have been written.
    pub(crate) fn input_gradient(&mut self, queue: Queue<'_>, params: &View<'_, f32>, m: usize) -> Result<View<'_, f32>, Error> {
        self.dense_back(queue, params, 0..m, None)?;
        let all = self.encoder.deltas().unwrap_or_else(|| self.input_deltas.view());
        Ok(all.slice(0..m * (all.len() / self.held)))
    }

    /// Returns the outputs of two chains, and their gradients for writing.
    ///
    /// # Panics
    /// If the second chain does not follow the first.
    pub(crate) fn heads(&mut self, [one, two]: [usize; 2], m: usize) -> ([View<'_, f32>; 2], [ViewMut<'_, f32>; 2]) {
        let [a, b] = [one, two].map(|chain| self.chains[chain].end - 1);
        let len = |l: usize| m * self.layers[l].dense.n_out;
        let at = self.delta_places[b].start;
        let (before, from_b) = self.deltas.view_mut().split_at(at);
        let deltas = [before.into_slice(first(&self.delta_places[a], len(a))), from_b.into_slice(0..len(b))];
        let outputs = [a, b].map(|l| self.outputs.view().slice(first(&self.output_places[l], len(l))));
        (outputs, deltas)
    }

    /// Returns the number of samples whose activations are held at the same time.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Runs the first `m` samples forward, as far as they are needed.
    ///
    /// Their observations are in `inputs`.
    pub(crate) fn forward(
        &mut self,
        queue: Queue<'_>,
        params: &View<'_, f32>,
        m: usize,
        needed: Needed<'_>,
    ) -> Result<(), Error> {
        self.forward_held(queue, params, 0..m, None, needed)
    }

    /// Memory of the network, if it has one.
    pub(crate) fn memory(&self) -> Option<&DeviceMemory> {
        self.memory.as_ref()
    }

    /// Runs samples forward whose inputs (m, I) are given, as far as they are needed.
    pub(crate) fn forward_from(
        &mut self,
        queue: Queue<'_>,
        params: &View<'_, f32>,
        inputs: View<'_, f32>,
        needed: Needed<'_>,
    ) -> Result<(), Error> {
        let m = inputs.len() / (self.inputs.len() / self.held);
        self.forward_held(queue, params, 0..m, Some(inputs), needed)
    }

    /// Runs some samples of a minibatch forward.
    ///
    /// `write` writes the observations of a part of them.
    pub(crate) fn forward_samples(
        &mut self,
        queue: Queue<'_>,
        params: &View<'_, f32>,
        samples: Range<usize>,
        write: impl Fn(Range<usize>, &ViewMut<'_, f32>) -> Result<(), rl_cuda::Error>,
    ) -> Result<(), Error> {
        parts(samples, self.held).try_for_each(|part| self.forward_part(queue, params, part, &write))
    }

    /// Runs all steps of the columns of some slices forward, for a network with memory.
    ///
    /// The activations of all their samples are held. `write` writes the observations.
    pub(crate) fn forward_columns(
        &mut self,
        queue: Queue<'_>,
        params: &View<'_, f32>,
        own: Range<usize>,
        SlicedMinibatch { slices: minibatch, columns }: SlicedMinibatch<'_>,
        write: impl Fn(Range<usize>, &ViewMut<'_, f32>) -> Result<(), rl_cuda::Error>,
    ) -> Result<(), Error> {
        let samples = minibatch.samples(own.clone());
        write(samples.clone(), &self.inputs_mut(samples.len()))?;
        self.encoder.forward(queue, params, samples.len(), self.inputs.view())?;
        let (Self { encoder, memory: Some(memory), inputs, .. }, Some(of)) = (&mut *self, columns) else {
            return Err(Error::Sequences);
        };
        memory.read(queue, params, &encoder.features(inputs.view()), samples.len())?;
        for (part, slices) in minibatch.parts(own) {
            let first = minibatch.samples(part).start;
            memory.forth(queue, params, SequencePart { of, slices: &slices, first, held: first - samples.start })?;
        }
        self.dense(queue, params, samples, None, Needed::default())
    }

    fn forward_part(
        &mut self,
        queue: Queue<'_>,
        params: &View<'_, f32>,
        part: Range<usize>,
        write: impl Fn(Range<usize>, &ViewMut<'_, f32>) -> Result<(), rl_cuda::Error>,
    ) -> Result<(), Error> {
        write(part.clone(), &self.inputs_mut(part.len()))?;
        self.forward_held(queue, params, part, None, Needed::default())
    }

    /// Writes partial gradients of some slices of a minibatch.
    ///
    /// The gradients fill the first rows of `partial`. The gradients of the outputs have been written, and
    /// [`DeviceNet::forward_samples`] has run, or with memory [`DeviceNet::forward_columns`]. `write` writes the same
    /// observations again.
    pub(crate) fn gradient(
        &mut self,
        queue: Queue<'_>,
        params: &View<'_, f32>,
        slices: Range<usize>,
        SlicedMinibatch { slices: minibatch, columns }: SlicedMinibatch<'_>,
        partial: &mut ViewMut<'_, f32>,
        write: impl Fn(Range<usize>, &ViewMut<'_, f32>) -> Result<(), rl_cuda::Error>,
    ) -> Result<(), Error> {
        let row = |slice: usize| minibatch.first(slice - slices.start).rows() * params.len();
        let together = (self.held / minibatch.largest()).max(1);
        for (part, of) in parts(slices.clone(), together).flat_map(|slices| minibatch.parts(slices)) {
            let samples = minibatch.samples(part.clone());
            if samples.start < self.holds.start || samples.end > self.holds.end {
                self.forward_part(queue, params, samples.clone(), &write)?;
            }
            self.backward(queue, params, samples, &of, columns, &mut partial.slice_mut(row(part.start)..row(part.end)))?;
        }
        Ok(())
    }

    /// Runs samples forward, as far as they are needed.
    ///
    /// Their inputs are in `inputs`, unless they are given.
    fn forward_held(
        &mut self,
        queue: Queue<'_>,
        params: &View<'_, f32>,
        samples: Range<usize>,
        given: Option<View<'_, f32>>,
        needed: Needed<'_>,
    ) -> Result<(), Error> {
        let m = samples.len();
        let Self { encoder, memory, inputs, .. } = &mut *self;
        let inputs = given.unwrap_or_else(|| inputs.view());
        encoder.forward(queue, params, m, inputs)?;
        if let Some(memory) = memory {
            let states = needed.states.ok_or(Error::Sequences)?;
            memory.read(queue, params, &encoder.features(inputs), m)?;
            memory.step(queue, params, &states, m)?;
        }
        self.dense(queue, params, samples, given, needed)
    }

    /// Runs samples through the dense layers.
    fn dense(
        &mut self,
        Queue { stream, kernels }: Queue<'_>,
        params: &View<'_, f32>,
        samples: Range<usize>,
        given: Option<View<'_, f32>>,
        needed: Needed<'_>,
    ) -> Result<(), Error> {
        let (of, of_all) = (|len: usize| 0..samples.len() * len, |len: usize| samples.start * len..samples.end * len);
        self.holds = samples.clone();
        let Self { encoder, memory, layers, chains, inputs, outputs, slopes, output_places, narrow, learns, .. } = self;
        let ([normed, inv_stds], held) = (&mut self.normed, self.held);
        let inputs = given.unwrap_or_else(|| inputs.view());
        if let Some(narrow) = narrow {
            let x = inputs.slice(of(layers[0].dense.n_in));
            let skipped = needed.not_chain.unwrap_or(chains.len());
            let runs = [0..skipped, (skipped + 1).min(chains.len())..chains.len()];
            return runs.into_iter().filter(|run| !run.is_empty()).try_for_each(|run| {
                let (outputs, first) = (outputs.view_mut(), samples.start);
                let needed = needed.ended;
                let samples = NarrowSamples { params: *params, inputs: x, outputs, keeps: *learns, first, needed };
                Ok(kernels.narrow_forward(stream, narrow, run, samples)?)
            });
        }
        let inputs = encoder.features(inputs);
        for (_, chain) in chains.iter().enumerate().filter(|(i, _)| Some(*i) != needed.not_chain) {
            for l in chain.clone() {
                let DeviceLayer { dense, norm, gate, params: range, source, cell, is_read } = &layers[l];
                // A layer reads one before it.
                let (before, from_here) = outputs.view_mut().split_at(output_places[l].start);
                let before = before.into_view();
                let x = match (source, &*memory) {
                    (Some(source), _) => before.slice(output_places[*source].clone()),
                    (None, Some(memory)) => memory.outputs(*cell, samples.len()),
                    (None, None) => inputs,
                };
                let x = x.slice(of(dense.n_in));
                let y = from_here.into_slice(if *is_read { of(dense.n_out) } else { of_all(dense.n_out) });
                let layer = if norm.is_some() { DenseLayer { activation: learner::Activation::None, ..*dense } } else { *dense };
                kernels.forward(stream, DenseParams { layer, params: params.slice(range.clone()) }, &x, &y)?;
                if let Some(norm) = norm {
                    let kept = learns.then(|| {
                        let normed = normed.view_mut().into_slice(first(&output_places[l], y.len()));
                        (normed, inv_stds.view_mut().into_slice(l * held..l * held + samples.len()))
                    });
                    let kept = kept.as_ref().map(|(normed, inv_stds)| [normed, inv_stds]);
                    kernels.normalize_sums(stream, norm.of(params), dense.activation, &y, kept)?;
                }
                if let Some(gate) = gate {
                    let slopes = learns.then(|| slopes.view_mut().into_slice(first(&output_places[l], y.len())));
                    kernels.gate(stream, *gate, &y, slopes.as_ref())?;
                }
            }
        }
        Ok(())
    }

    /// Writes partial gradients of some samples whose activations are held.
    ///
    /// `slices` are those of the samples, whose rows are the first ones of `partial`.
    fn backward(
        &mut self,
        queue: Queue<'_>,
        params: &View<'_, f32>,
        samples: Range<usize>,
        slices: &MinibatchSlices,
        columns: Option<SequenceColumns<'_>>,
        partial: &mut ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let Queue { stream, kernels } = queue;
        let held = samples.start - self.holds.start;
        let columns = columns.map(|of| SequencePart { of, slices, first: samples.start, held });
        if let Some(narrow) = &self.narrow {
            let (inputs, outputs, deltas) = (self.inputs.view(), self.outputs.view(), self.deltas.view());
            let numbers = NarrowNumbers { params: *params, inputs, outputs, deltas, held, first: samples.start };
            let len = partial.len();
            return Ok(kernels.narrow_gradient(stream, narrow, slices, numbers, &partial.slice_mut(0..len))?);
        }
        self.dense_back(queue, params, samples.clone(), Some((slices, &mut *partial)))?;
        let of = |len: usize| held * len..(held + samples.len()) * len;
        let Self { encoder, memory, inputs, held: held_len, .. } = self;
        if let (Some(memory), Some(columns)) = (memory, columns) {
            let (features, inputs_of_dense) = encoder.features_mut(inputs);
            memory.back(queue, params, columns)?;
            let n_in = of(inputs_of_dense.len() / *held_len);
            let x = inputs_of_dense.view().slice(n_in.clone());
            memory.gradient(queue, columns, &x, partial)?;
            if let Some(Features { activation, slopes, dx }) = features {
                let dx = dx.view_mut().into_slice(n_in.clone());
                memory.input_gradient(queue, params, columns, activation, &x, &dx)?;
                queue.pass_gate(slopes, n_in, &dx)?;
            }
        }
        encoder.gradient(queue, params, slices, inputs, held..held + samples.len(), partial)
    }

    /// Takes gradients of the outputs of some samples back through the dense layers.
    ///
    /// Their activations are held. With slices, writes the partial gradients of the weights, too.
    fn dense_back(
        &mut self,
        queue: Queue<'_>,
        params: &View<'_, f32>,
        samples: Range<usize>,
        mut weights: Option<(&MinibatchSlices, &mut ViewMut<'_, f32>)>,
    ) -> Result<(), Error> {
        let Queue { stream, kernels } = queue;
        let held = samples.start - self.holds.start;
        let of = |len: usize| held * len..(held + samples.len()) * len;
        let of_all = |len: usize| samples.start * len..samples.end * len;
        let Self { encoder, memory, layers, chains, inputs, outputs, slopes, deltas, .. } = self;
        let Self { input_deltas, output_places, delta_places, normed: [normed, inv_stds], held: all_held, .. } = self;
        let (mut features, inputs_of_dense) = encoder.features_mut(inputs);
        for l in chains.iter().rev().flat_map(|chain| chain.clone().rev()) {
            let DeviceLayer { dense, norm, params: range, source, cell, is_read, .. } = &layers[l];
            let outputs = |source: usize| outputs.view().slice(output_places[source].clone());
            let mut of_cell = memory.as_mut().map(|memory| memory.outputs_and_gradients(*cell, held, samples.len()));
            let x = match (source, &of_cell) {
                (Some(source), _) => outputs(*source).slice(of(dense.n_in)),
                (None, Some((outputs, _))) => *outputs,
                (None, None) => inputs_of_dense.view().slice(of(dense.n_in)),
            };
            let (before, from_here) = deltas.view_mut().split_at(delta_places[l].start);
            let mut dz = from_here.into_slice(if *is_read { of(dense.n_out) } else { of_all(dense.n_out) });
            if let Some(norm) = norm {
                let place = output_places[l].start + held * dense.n_out;
                let normed = normed.view_mut().into_slice(place..place + dz.len());
                let inv_stds = inv_stds.view().slice(l * *all_held + held..l * *all_held + held + samples.len());
                let mut terms = |terms: &View<'_, f32>, range: &Range<usize>| match &mut weights {
                    Some((slices, partial)) => {
                        let len = partial.len();
                        kernels.term_gradient(stream, slices, terms, &partial.slice_mut(range.start..len))
                    }
                    None => Ok(()),
                };
                let len = dz.len();
                terms(&dz.slice_mut(0..len).into_view(), &norm.offset)?;
                kernels.normalized_gradient(stream, norm.of(params), &dz, &normed, &inv_stds)?;
                terms(&normed.into_view(), &norm.gain)?;
            }
            let dz = dz.into_view();
            if let Some((slices, partial)) = &mut weights {
                let len = partial.len();
                kernels.gradient(stream, *dense, slices, &x, &dz, &partial.slice_mut(range.start..len))?;
            }
            let (activation, slopes, dx) = match (*source, of_cell.take(), &mut features) {
                (Some(source), ..) => {
                    let dx = before.into_slice(delta_places[source].clone());
                    let DeviceLayer { dense: DenseLayer { activation, .. }, gate, .. } = layers[source];
                    let slopes = gate.map(|_| slopes.view().slice(output_places[source].clone()));
                    (activation, slopes, dx.into_slice(of(dense.n_in)))
                }
                (None, Some((_, dx)), _) => (learner::Activation::None, None, dx),
                (None, None, Some(Features { activation, slopes, dx })) => {
                    (*activation, *slopes, dx.view_mut().into_slice(of(dense.n_in)))
                }
                (None, None, None) if input_deltas.is_empty() => continue,
                (None, None, None) => (learner::Activation::None, None, input_deltas.view_mut().into_slice(of(dense.n_in))),
            };
            // The layers that read one layer add up, the last one first; the derivative follows the first one.
            let reads = |&reader: &usize| layers[reader].source == *source && (source.is_some() || layers[reader].cell == *cell);
            let mut readers = (0..layers.len()).filter(reads);
            let (first, last) = (readers.next(), readers.next_back());
            let derive = (first == Some(l)).then_some((activation, &x));
            let add = last.is_some_and(|last| last != l);
            let layer = DenseParams { layer: *dense, params: params.slice(range.clone()) };
            kernels.input_gradient(stream, layer, &dz, derive, add, &dx)?;
            queue.pass_gate(slopes.filter(|_| first == Some(l)), of(dense.n_in), &dx)?;
        }
        Ok(())
    }
}
