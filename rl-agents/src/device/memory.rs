//! GRU and LSTM on a device: the twin of [`MemoryStage`].
//!
//! Each gate's sums of the inputs are one product over all samples, as are the gradients of weights. From step to step go products
//! with the states of all columns, and one kernel for each cell.

use std::ops::Range;

use rl_cuda::learner::{
    Activation, CellBuffers, CellKind, CellState, DenseLayer, DenseParams, MemoryKernels, MinibatchSlices, SequenceColumns,
};
use rl_cuda::{Device, View, ViewMut};

use crate::device::net::Queue;
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

/// Columns of a minibatch, of which some slices pass here.
#[derive(Clone, Copy)]
pub(crate) struct Columns<'a> {
    pub(crate) of: SequenceColumns<'a>,
    /// Slices with the columns that pass.
    pub(crate) slices: &'a MinibatchSlices,
    /// First sample of them in the minibatch, and among those that are held.
    pub(crate) first: [usize; 2],
}

impl Columns<'_> {
    fn samples(&self) -> Range<usize> {
        self.slices.samples(0..self.slices.count())
    }

    fn n_columns(&self) -> usize {
        self.samples().len() / self.slices.n_steps()
    }
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

    /// Number of kernels of a step and of a step back, or of a step that is re-evaluated.
    pub(crate) fn nodes_per_step(&self) -> usize {
        let of_cells: usize = self.cells.iter().map(|cell| 2 * (cell.inputs.len() + 2)).sum();
        of_cells + 16
    }

    /// Returns the outputs of a cell for the first `m` samples that are held.
    pub(crate) fn outputs(&self, cell: usize, m: usize) -> View<'_, f32> {
        self.cells[cell].buffers.outputs(0, m)
    }

    /// Returns outputs of a cell, and their gradients for writing, of `m` samples from the one that is held as `held`.
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
            cell.sums(queue, params, n)?;
            kernels.step(queue.stream, n, &mut cell.buffers)?;
        }
        Ok(())
    }

    /// Writes the states (n, S) after the latest step.
    pub(crate) fn put(&self, queue: Queue<'_>, n: usize, states: &ViewMut<'_, f32>) -> Result<(), rl_cuda::Error> {
        self.cells.iter().try_for_each(|cell| self.kernels.put(queue.stream, &cell.buffers, cell.state, n, states))
    }

    /// Takes all steps of some columns.
    pub(crate) fn forth(&mut self, queue: Queue<'_>, params: &View<'_, f32>, columns: Columns<'_>) -> Result<(), rl_cuda::Error> {
        let (Self { kernels, cells }, n) = (self, columns.n_columns());
        for cell in cells {
            kernels.take_first(queue.stream, &columns.of, columns.slices, columns.first[0], cell.state, &mut cell.buffers)?;
            for step in 0..columns.slices.n_steps() {
                cell.sums(queue, params, n)?;
                kernels.step_of(queue.stream, &columns.of, columns.slices, columns.first, step, &mut cell.buffers)?;
            }
        }
        Ok(())
    }

    /// Takes all steps back, from the gradients of the outputs to those of each gate's sums.
    pub(crate) fn back(&mut self, queue: Queue<'_>, params: &View<'_, f32>, columns: Columns<'_>) -> Result<(), rl_cuda::Error> {
        let (Self { kernels, cells }, n) = (self, columns.n_columns());
        let horizon = columns.of.horizon;
        for DeviceCell { buffers, hidden, .. } in cells {
            for step in (0..columns.slices.n_steps()).rev() {
                kernels.step_back(queue.stream, &columns.of, columns.slices, columns.first, step, buffers)?;
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

    /// Writes partial gradients of all gates' layers, from the inputs (n, F) of the samples.
    pub(crate) fn gradient(
        &self,
        Queue { stream, kernels }: Queue<'_>,
        columns: Columns<'_>,
        x: &View<'_, f32>,
        partial: &mut ViewMut<'_, f32>,
    ) -> Result<(), rl_cuda::Error> {
        let (n, [_, held], len) = (columns.samples().len(), columns.first, partial.len());
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

    /// Writes the gradient `dx` (n, F) of the inputs, of which `derive` made `x`.
    pub(crate) fn input_gradient(
        &self,
        Queue { stream, kernels }: Queue<'_>,
        params: &View<'_, f32>,
        columns: Columns<'_>,
        derive: (Activation, &View<'_, f32>),
        dx: &ViewMut<'_, f32>,
    ) -> Result<(), rl_cuda::Error> {
        let (n, [_, held]) = (columns.samples().len(), columns.first);
        let all = self.cells.iter().flat_map(|cell| cell.inputs.iter().enumerate().map(move |(gate, layer)| (cell, gate, layer)));
        let n_layers = all.clone().count();
        for (i, (cell, gate, layer)) in all.enumerate() {
            let derive = (i + 1 == n_layers).then_some(derive);
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

    /// Writes the rows of all steps of some columns, in the order of the samples of `slices`.
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
    /// Computes each gate's sum of h, of `n` columns.
    fn sums(&mut self, Queue { stream, kernels }: Queue<'_>, params: &View<'_, f32>, n: usize) -> Result<(), rl_cuda::Error> {
        for (gate, layer) in self.hidden.iter().enumerate() {
            let (h, sums) = self.buffers.step_operands(gate, n);
            kernels.forward(stream, layer.with(params), &h, &sums)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::descent::tests::{Algorithm, compare_stale};
    use crate::fixture::{Choices, has_fma};
    use crate::{A2cConfig, Collector, NetConfig, PpoConfig, Schedule};
    use rl_envs::{Pool, cartpole::CartPole, pendulum::Pendulum, repeat_first::RepeatFirst, snake::Snake};

    fn net(memory: MemoryKind, memory_size: usize, hidden: &[usize], shared_trunk: bool) -> NetConfig {
        NetConfig { memory, memory_size, hidden: hidden.into(), shared_trunk, ..NetConfig::default() }
    }

    fn compare(device: &Device) {
        let pool = || Pool::new(1).unwrap();
        let cartpole = |n: usize| move || Collector::new(n, &CartPole::default(), &pool(), 1).unwrap();
        let pendulum = || Collector::new(9, &Pendulum::default(), &pool(), 1).unwrap();
        let choices = || Collector::new(9, &Choices::default(), &pool(), 1).unwrap();
        let snake = || Collector::new(5, &Snake::default(), &pool(), 1).unwrap();
        let rate = Schedule::Constant(0.01);
        let a2c = |n_steps| A2cConfig { n_steps, learning_rate: rate, ent_coef: 0.1, ..A2cConfig::default() };
        let ppo = |n_steps, batch_size| PpoConfig {
            n_steps,
            batch_size,
            n_epochs: 2,
            learning_rate: rate,
            ent_coef: 0.1,
            ..PpoConfig::default()
        };
        let (gru, lstm) = (net(MemoryKind::Gru, 5, &[7], false), net(MemoryKind::Lstm, 6, &[], false));
        // A slice of a whole block and another one; two slices; a rollout of an older policy.
        for net in [&gru, &net(MemoryKind::Lstm, 9, &[5, 4], true)] {
            compare_stale(device, cartpole(40), net, &Algorithm::A2c(&a2c(3)), (2, 0));
        }
        compare_stale(device, cartpole(40), &lstm, &Algorithm::A2c(&a2c(5)), (2, 0));
        compare_stale(device, cartpole(9), &lstm, &Algorithm::Ppo(&ppo(12, 36)), (3, 1));
        let of_horizon = NetConfig { memory_horizon: 5, normalize_obs: true, ..gru.clone() };
        compare_stale(device, pendulum, &of_horizon, &Algorithm::Ppo(&PpoConfig { target_kl: 0.03, ..ppo(12, 108) }), (3, 0));
        compare_stale(device, pendulum, &lstm, &Algorithm::A2c(&a2c(7)), (3, 1));
        compare_stale(device, choices, &gru, &Algorithm::Ppo(&ppo(10, 30)), (3, 1));
        let cards = || Collector::new(9, &RepeatFirst::default(), &pool(), 1).unwrap();
        compare_stale(device, cards, &lstm, &Algorithm::Ppo(&ppo(8, 24)), (2, 0));
        let conv = NetConfig { conv: vec![[16, 3, 3]], ..net(MemoryKind::Gru, 7, &[6], false) };
        compare_stale(device, snake, &conv, &Algorithm::A2c(&a2c(5)), (2, 0));
        if device.is_stand_in() {
            return; // slow
        }
        for net in [&gru, &lstm, &net(MemoryKind::Lstm, 70, &[16], true)] {
            compare_stale(device, cartpole(150), net, &Algorithm::A2c(&a2c(2)), (3, 0));
            compare_stale(device, cartpole(80), net, &Algorithm::Ppo(&ppo(16, 640)), (4, 2));
        }
    }

    #[test]
    fn updates_through_time_leave_the_cpus_bits() {
        if !has_fma() {
            return;
        }
        Device::for_tests().iter().for_each(compare);
        let mistakes = [
            ["forgets ? 0.0f : h;", "h;"],
            ["forgets ? 0.0f : c;", "c;"],
            ["sequences.begins(step + 1, column)", "sequences.begins(step, column)"],
            ["cell.dh[at] + (is_last ? 0.0f : cell.dh_now[i])", "cell.dh[at] + cell.dh_now[i]"],
            ["is_last ? 0.0f : cell.dc_now[i]", "cell.dc_now[i]"],
            ["|| begins(next, column)", "|| begins(step, column)"],
            ["next % horizon == 0", "step % horizon == 0"],
            ["cell.dh_now[i] = 0.0f;", ""],
            ["cell.inner[at] = sums[2];", ""],
            ["gate == 2 && !cell.is_lstm ? gates[gate] : sums[gate]", "sums[gate]"],
            ["step * least(width, end - begin)", "step * width"],
            ["(column - first) / width * width", "0"],
            ["sequences.rows == 0 ? column : least(sequences.rows[sequences.sample(0, column)], sequences.n_envs - 1)", "column"],
            ["(u64)row * len + offset", "(u64)row * len"],
            ["from[cell.size + j]", "from[j]"],
            ["fmaf(a[1], before - a[2], a[2])", "a[1] * (before - a[2]) + a[2]"],
            ["x * 0.5f), 0.5f, 0.5f)", "x), 0.5f, 0.5f)"],
            ["cell.c_before[at] = c_before;", ""],
        ];
        let unnoticed = Device::unnoticed("memory.cu", &mistakes, compare);
        assert!(unnoticed.is_empty(), "{unnoticed:?}");
    }
}
