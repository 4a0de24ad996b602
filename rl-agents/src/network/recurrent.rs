//! Cells of memory, over slices of the flat parameter vector: GRU and LSTM.
//!
//! As in PyTorch, each gate has a layer of the inputs and one of the state h, both with biases. With `a = x W + b` of the inputs
//! and `u = h W + b` of the state, elementwise:
//!
//! - GRU (Cho et al., 2014), state h: `r = sigmoid(a_r + u_r)`, `z = sigmoid(a_z + u_z)`, `n = tanh(a_n + r u_n)`, `h' = n + z (h
//!   - n)`;
//! - LSTM (Hochreiter and Schmidhuber, 1997), state (h, c): `i = sigmoid(a_i + u_i)`, `f` and `o` likewise, `g = tanh(a_g +
//!   u_g)`, `c' = f c + i g`, `h' = o tanh(c')`.
//!
//! The output is h'.

use candle_core::Tensor;
use serde::{Deserialize, Serialize};

use crate::Precision;
use crate::network::mlp::Linear;
use crate::network::params::{Initialization, Layout};

/// Memory of a policy from step to step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryKind {
    /// The policy acts on the latest observation alone.
    #[default]
    None,
    /// Gated recurrent unit.
    Gru,
    /// Long short-term memory.
    Lstm,
}

impl MemoryKind {
    /// Names of the gates, in the order of the layers.
    pub(crate) fn gates(self) -> &'static [&'static str] {
        match self {
            Self::None => &[],
            Self::Gru => &["r", "z", "n"],
            Self::Lstm => &["i", "f", "g", "o"],
        }
    }

    /// Number of vectors of the state.
    pub(crate) fn n_vectors(self) -> usize {
        match self {
            Self::None => 0,
            Self::Gru => 1,
            Self::Lstm => 2,
        }
    }
}

/// A cell: a layer of the inputs and a layer of h for each gate.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) kind: MemoryKind,
    /// Number H of outputs.
    pub(crate) size: usize,
    /// Initial bias of the inputs in the gate that keeps the state, z or f.
    forget_bias: f32,
    /// Layers of the inputs, (F, H) each, in the order of the gates.
    pub(crate) inputs: Vec<Linear>,
    /// Layers of h, (H, H) each.
    pub(crate) hidden: Vec<Linear>,
}

impl Cell {
    /// Creates a cell of `size` outputs over `n_in` inputs.
    ///
    /// Appends the tensors to `layout` as `name.input.r.weight`, `name.input.r.bias`, ..., `name.hidden.r.weight`, ...
    pub(crate) fn new(layout: &mut Layout, name: &str, kind: MemoryKind, n_in: usize, size: usize, forget_bias: f32) -> Self {
        let mut layers = |of: &str, n_in: usize| {
            let layer = |gate: &&str| Linear::new(layout, &format!("{name}.{of}.{gate}"), n_in, size);
            kind.gates().iter().map(layer).collect()
        };
        let (inputs, hidden) = (layers("input", n_in), layers("hidden", size));
        Self { kind, size, forget_bias, inputs, hidden }
    }

    /// Layers, in order.
    pub(crate) fn layers(&self) -> impl Iterator<Item = &Linear> {
        self.inputs.iter().chain(&self.hidden)
    }

    /// Number of elements of the state.
    pub(crate) fn state_len(&self) -> usize {
        self.kind.n_vectors() * self.size
    }

    /// Draws weights and biases.
    ///
    /// Orthogonal weights have gain 1; uniform numbers lie within 1 / sqrt(H). `forget_bias` is added to the bias of the inputs
    /// in the gate that keeps the state. `first_index` is the index of the first layer among all layers drawn from one seed.
    pub(crate) fn init(&self, params: &mut [f32], init: Initialization, first_index: u32) {
        for (layer, index) in self.layers().zip(first_index..) {
            init.layer(&mut params[layer.range()], [layer.n_in, layer.n_out], self.size, 1.0, index);
        }
        // The second gate is z or f.
        params[self.inputs[1].bias.clone()].iter_mut().for_each(|bias| *bias += self.forget_bias);
    }

    /// Computes each gate's sum of the inputs `x` (B, F), (B, H).
    ///
    /// With candle operations.
    pub(crate) fn of_inputs(&self, params: &Tensor, x: &Tensor, precision: Precision) -> candle_core::Result<Vec<Tensor>> {
        self.inputs.iter().map(|layer| layer.forward(params, x, precision)).collect()
    }

    /// Computes the next state (B, S), which begins with the outputs.
    ///
    /// With candle operations; `a` are the gates' sums of the inputs.
    pub(crate) fn step(
        &self,
        params: &Tensor,
        a: &[Tensor],
        state: &Tensor,
        precision: Precision,
    ) -> candle_core::Result<Tensor> {
        let h = state.narrow(1, 0, self.size)?;
        let u = self.hidden.iter().map(|layer| layer.forward(params, &h, precision)).collect::<candle_core::Result<Vec<_>>>()?;
        let sum = |gate: usize| &a[gate] + &u[gate];
        let sigmoid = |gate: usize| candle_nn::ops::sigmoid(&sum(gate)?);
        match self.kind {
            MemoryKind::None => unreachable!("a cell remembers"),
            MemoryKind::Gru => {
                let (r, z) = (sigmoid(0)?, sigmoid(1)?);
                let n = (&a[2] + (r * &u[2])?)?.tanh()?;
                &n + (z * (h - &n)?)?
            }
            MemoryKind::Lstm => {
                let (i, f, g, o) = (sigmoid(0)?, sigmoid(1)?, sum(2)?.tanh()?, sigmoid(3)?);
                let c = ((f * state.narrow(1, self.size, self.size)?)? + (i * g)?)?;
                Tensor::cat(&[(o * c.tanh()?)?, c], 1)
            }
        }
    }
}

/// Memory of a network: the cells that its heads read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cells(pub(crate) Vec<Cell>);

impl Cells {
    /// Number of elements S of the state: that of each cell, one after the other.
    pub(crate) fn state_len(&self) -> usize {
        self.0.iter().map(Cell::state_len).sum()
    }

    /// Index of the cell that head `head` reads.
    pub(crate) fn of_head(&self, head: usize) -> usize {
        head.min(self.0.len() - 1)
    }

    /// Computes every cell's outputs (T C, H), and the last states (C, S).
    ///
    /// With candle operations. `x` (T C, F) are the inputs of C sequences, time-major.
    pub(crate) fn forward(
        &self,
        params: &Tensor,
        x: &Tensor,
        sequences: &TensorSequences,
        precision: Precision,
    ) -> candle_core::Result<(Vec<Tensor>, Tensor)> {
        let (mut outputs, mut states) = (Vec::with_capacity(self.0.len()), Vec::with_capacity(self.0.len()));
        let (c, mut first) = (sequences.first.dim(0)?, 0);
        for cell in &self.0 {
            let a = cell.of_inputs(params, x, precision)?;
            let mut state = sequences.first.narrow(1, first, cell.state_len())?;
            first += cell.state_len();
            let mut steps = Vec::with_capacity(sequences.continues.len() + 1);
            for t in 0..=sequences.continues.len() {
                if let Some(before) = t.checked_sub(1) {
                    state = state.broadcast_mul(&sequences.continues[before])?;
                    if sequences.horizon > 0 && t % sequences.horizon == 0 {
                        state = state.detach();
                    }
                }
                let a = a.iter().map(|a| a.narrow(0, t * c, c)).collect::<candle_core::Result<Vec<_>>>()?;
                state = cell.step(params, &a, &state, precision)?;
                steps.push(state.narrow(1, 0, cell.size)?);
            }
            outputs.push(Tensor::cat(&steps, 0)?);
            states.push(state);
        }
        Ok((outputs, Tensor::cat(&states, 1)?))
    }
}

/// Sequences as tensors, for the reference.
#[derive(Clone, Debug)]
pub(crate) struct TensorSequences {
    /// States before the first step (C, S).
    pub(crate) first: Tensor,
    /// For each later step, 1 if the episode continues, 0 if another begins (C, 1).
    pub(crate) continues: Vec<Tensor>,
    /// Steps that a gradient goes back over; 0: all.
    pub(crate) horizon: usize,
}

#[cfg(test)]
mod tests {
    use super::{Cell, MemoryKind};
    use crate::network::params::{Initialization, Layout};

    #[test]
    fn the_gate_that_keeps_the_state_begins_with_its_bias_beside_the_others() {
        for (kind, keeps) in [(MemoryKind::Gru, "m.input.z.bias"), (MemoryKind::Lstm, "m.input.f.bias")] {
            for ortho in [false, true] {
                let init = |forget_bias| {
                    let mut layout = Layout::default();
                    let cell = Cell::new(&mut layout, "m", kind, 3, 4, forget_bias);
                    let mut params = vec![7.0; layout.len()];
                    cell.init(&mut params, Initialization { ortho, seed: 1 }, 0);
                    (layout, params)
                };
                let ((layout, params), (_, without)) = (init(0.5), init(0.0));
                for tensor in layout.tensors() {
                    let moved = if tensor.name == keeps { 0.5 } else { 0.0 };
                    for (x, without) in tensor.range.clone().map(|i| (params[i], without[i])) {
                        assert_eq!(x, without + moved, "{}", tensor.name);
                        assert!(if ortho && tensor.name.ends_with("bias") { without == 0.0 } else { without.abs() <= 1.0 });
                        assert!(ortho || (without.abs() <= 0.5 && without != 0.0), "{}", tensor.name);
                    }
                }
            }
        }
    }
}
