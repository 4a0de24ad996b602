//! GRU and LSTM on a device: the twin of [`MemoryStage`].
//!
//! Each gate's sums of the inputs are one product over all samples, as are the gradients of weights. A step of all columns is one
//! kernel for each cell; large cells, and all on the way back, have a product for each gate beside it.

use std::ops::Range;

use rl_cuda::learner::{
    Activation, CellBuffers, CellKind, CellState, DenseLayer, DenseParams, MAX_FUSED, MemoryKernels, MinibatchSlices,
    SequencePart,
};
use rl_cuda::{Device, View, ViewMut};

use crate::device::Queue;
use crate::kernel::dense::Dense;
use crate::kernel::encoder::memory::MemoryStage;
use crate::network::recurrent::MemoryKind;

/// A layer of a gate, with its place among the parameters.
#[derive(Clone, Debug)]
struct GateLayer {
    dense: DenseLayer,
    params: Range<usize>,
}

impl GateLayer {
    fn new(layer: &Dense) -> Self {
        let dense = DenseLayer { n_in: layer.n_in, n_out: layer.n_out, activation: Activation::None };
        Self { dense, params: layer.weight.start..layer.bias.end }
    }

    fn with<'a>(&self, params: &View<'a, f32>) -> DenseParams<'a> {
        DenseParams { layer: self.dense, params: params.slice(self.params.clone()) }
    }
}

/// A cell with its numbers.
#[derive(Debug)]
struct DeviceCell {
    buffers: CellBuffers,
    /// Layers of the inputs and of h, one for each gate.
    inputs: Vec<GateLayer>,
    hidden: Vec<GateLayer>,
    state: CellState,
}

/// Cells of a network on a device.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    kernels: MemoryKernels,
    cells: Vec<DeviceCell>,
}

impl DeviceMemory {
    /// Allocates memory for `held` samples.
    pub(crate) fn new(device: &Device, stage: &MemoryStage, held: usize, learns: bool) -> Result<Self, rl_cuda::Error> {
        let (mut offset, len) = (0, stage.state_len());
        let mut cells = Vec::new();
        for (kind, inputs, hidden) in stage.cells() {
            let kind = if kind == MemoryKind::Lstm { CellKind::Lstm } else { CellKind::Gru };
            let buffers = CellBuffers::new(device, kind, hidden[0].n_in, held, learns)?;
            let state = CellState { offset, len };
            offset += buffers.state_len();
            let layers = |layers: &[Dense]| layers.iter().map(GateLayer::new).collect();
            cells.push(DeviceCell { buffers, inputs: layers(inputs), hidden: layers(hidden), state });
        }
        Ok(Self { kernels: MemoryKernels::new(device)?, cells })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.cells.iter().map(|cell| cell.buffers.bytes()).sum()
    }

    /// Estimates the nodes of a step in a graph: forth and back, or re-evaluated.
    pub(crate) fn nodes_per_step(&self) -> usize {
        let of_cell = |cell: &DeviceCell| cell.inputs.len() * if cell.is_fused() { 1 } else { 2 } + 3;
        self.cells.iter().map(of_cell).sum::<usize>() + 14
    }

    /// Returns the outputs of a cell for the first `m` samples that are held.
    pub(crate) fn outputs(&self, cell: usize, m: usize) -> View<'_, f32> {
        self.cells[cell].buffers.outputs(0, m)
    }

    /// Returns outputs of a cell, and their gradients for writing.
    ///
    /// Those of `m` samples, from the one on that is held as `held`.
    pub(crate) fn outputs_and_gradients(&mut self, cell: usize, held: usize, m: usize) -> (View<'_, f32>, ViewMut<'_, f32>) {
        self.cells[cell].buffers.outputs_and_gradients(held, m)
    }

    /// Computes each gate's sum of the inputs (m, F), the first ones of `x`.
    pub(crate) fn read(
        &mut self,
        Queue { stream, kernels }: Queue<'_>,
        params: &View<'_, f32>,
        x: &View<'_, f32>,
        m: usize,
    ) -> Result<(), rl_cuda::Error> {
        for DeviceCell { buffers, inputs, .. } in &mut self.cells {
            for (gate, layer) in inputs.iter().enumerate() {
                let x = x.slice(0..m * layer.dense.n_in);
                kernels.forward(stream, layer.with(params), &x, &buffers.gate_mut(gate, 0, m))?;
            }
        }
        Ok(())
    }

    /// Takes one step of `n` columns from `states` (n, S).
    pub(crate) fn step(
        &mut self,
        queue: Queue<'_>,
        params: &View<'_, f32>,
        states: &View<'_, f32>,
        n: usize,
    ) -> Result<(), rl_cuda::Error> {
        let Self { kernels, cells } = self;
        for cell in cells {
            kernels.take(queue.stream, states, cell.state, n, &mut cell.buffers)?;
            let hidden = cell.sums(queue, params, n)?;
            kernels.step(queue.stream, n, hidden.as_ref(), &mut cell.buffers)?;
        }
        Ok(())
    }

    /// Writes the states (n, S) after the latest step.
    pub(crate) fn put(&self, queue: Queue<'_>, n: usize, states: &ViewMut<'_, f32>) -> Result<(), rl_cuda::Error> {
        self.cells.iter().try_for_each(|cell| self.kernels.put(queue.stream, &cell.buffers, cell.state, n, states))
    }

    /// Takes all steps of some columns.
    pub(crate) fn forth(
        &mut self,
        queue: Queue<'_>,
        params: &View<'_, f32>,
        columns: SequencePart<'_>,
    ) -> Result<(), rl_cuda::Error> {
        let (Self { kernels, cells }, n) = (self, columns.n_columns());
        for cell in cells {
            kernels.take_first(queue.stream, &columns, cell.state, &mut cell.buffers)?;
            for step in 0..columns.slices.n_steps() {
                let hidden = cell.sums(queue, params, n)?;
                kernels.step_of(queue.stream, &columns, step, hidden.as_ref(), &mut cell.buffers)?;
            }
        }
        Ok(())
    }

    /// Takes all steps back, from the gradients of the outputs to those of the sums.
    pub(crate) fn back(
        &mut self,
        queue: Queue<'_>,
        params: &View<'_, f32>,
        columns: SequencePart<'_>,
    ) -> Result<(), rl_cuda::Error> {
        let (Self { kernels, cells }, n) = (self, columns.n_columns());
        let horizon = columns.of.horizon;
        for DeviceCell { buffers, hidden, .. } in cells {
            for step in (0..columns.slices.n_steps()).rev() {
                kernels.step_back(queue.stream, &columns, step, buffers)?;
                if step == 0 || (horizon > 0 && step % horizon == 0) {
                    continue; // no gradient goes farther back
                }
                for (gate, layer) in hidden.iter().enumerate() {
                    let (dz, dh) = buffers.step_back_operands(gate, n);
                    queue.kernels.input_gradient(queue.stream, layer.with(params), &dz, None, true, &dh)?;
                }
            }
        }
        Ok(())
    }

    /// Writes partial gradients of all gates' layers, from the inputs `x` (n, F).
    pub(crate) fn gradient(
        &self,
        Queue { stream, kernels }: Queue<'_>,
        columns: SequencePart<'_>,
        x: &View<'_, f32>,
        partial: &mut ViewMut<'_, f32>,
    ) -> Result<(), rl_cuda::Error> {
        let (n, held, len) = (columns.n_samples(), columns.held, partial.len());
        for DeviceCell { buffers, inputs, hidden, .. } in &self.cells {
            for (gate, layer) in inputs.iter().enumerate() {
                let (dz, to) = (buffers.gate(gate, held, n), partial.slice_mut(layer.params.start..len));
                kernels.gradient(stream, layer.dense, columns.slices, x, &dz, &to)?;
            }
            for (gate, layer) in hidden.iter().enumerate() {
                let (dz, to) = (buffers.hidden_gate(gate, held, n), partial.slice_mut(layer.params.start..len));
                kernels.gradient(stream, layer.dense, columns.slices, &buffers.before(held, n), &dz, &to)?;
            }
        }
        Ok(())
    }

    /// Writes the gradient `dx` (n, F) of the inputs `x`, which `activation` made.
    pub(crate) fn input_gradient(
        &self,
        Queue { stream, kernels }: Queue<'_>,
        params: &View<'_, f32>,
        columns: SequencePart<'_>,
        activation: Activation,
        x: &View<'_, f32>,
        dx: &ViewMut<'_, f32>,
    ) -> Result<(), rl_cuda::Error> {
        let (n, held) = (columns.n_samples(), columns.held);
        let all = self.cells.iter().flat_map(|cell| cell.inputs.iter().enumerate().map(move |(gate, layer)| (cell, gate, layer)));
        let n_layers = all.clone().count();
        for (i, (cell, gate, layer)) in all.enumerate() {
            let derive = (i + 1 == n_layers).then_some((activation, x));
            let dz = cell.buffers.gate(gate, held, n);
            kernels.input_gradient(stream, layer.with(params), &dz, derive, i > 0, dx)?;
        }
        Ok(())
    }

    /// Sets the states (n, S) of environments whose episodes ended to zeros.
    pub(crate) fn forget(
        &self,
        queue: Queue<'_>,
        ended: [&View<'_, u8>; 2],
        states: &ViewMut<'_, f32>,
    ) -> Result<(), rl_cuda::Error> {
        self.kernels.forget(queue.stream, ended, states)
    }

    /// Writes the rows of all steps of some columns, in the order of `slices`.
    pub(crate) fn rows(
        &self,
        queue: Queue<'_>,
        columns: &View<'_, u32>,
        slices: &MinibatchSlices,
        n_envs: usize,
        rows: &ViewMut<'_, u32>,
    ) -> Result<(), rl_cuda::Error> {
        self.kernels.rows(queue.stream, columns, slices, n_envs, rows)
    }
}

impl DeviceCell {
    /// True if steps compute the sums of h themselves.
    fn is_fused(&self) -> bool {
        let follow = self.hidden.windows(2).all(|pair| pair[0].params.end == pair[1].params.start);
        follow && self.hidden[0].dense.n_out <= MAX_FUSED
    }

    /// Returns the layers of h for a step that computes its sums itself.
    ///
    /// Otherwise computes each gate's sum of h, of `n` columns.
    fn sums<'a>(
        &mut self,
        Queue { stream, kernels }: Queue<'_>,
        params: &View<'a, f32>,
        n: usize,
    ) -> Result<Option<View<'a, f32>>, rl_cuda::Error> {
        if self.is_fused() {
            return Ok(Some(params.slice(self.hidden[0].params.start..self.hidden[self.hidden.len() - 1].params.end)));
        }
        for (gate, layer) in self.hidden.iter().enumerate() {
            let (h, sums) = self.buffers.step_operands(gate, n);
            kernels.forward(stream, layer.with(params), &h, &sums)?;
        }
        Ok(None)
    }
}
