//! Memory in the layouts of the network kernel: GRU and LSTM.
//!
//! Cells pass blocks of sequences, step by step. The formulas are those of [`Cell`](crate::network::recurrent::Cell). Every
//! product is a dense layer's; a sum `a + u` is that of the inputs plus that of h. `sigmoid(x) = (tanh(x / 2) + 1) / 2`.

use std::ops::Range;
use std::sync::Arc;

use rl_envs::isa::Set;

use crate::kernel::aligned::Aligned;
use crate::kernel::dense::{Dense, InputRuns};
use crate::kernel::encoder::categories::Categories;
use crate::kernel::gemm::{Init, PANEL, Rows, panels};
use crate::kernel::samples::TILE;
use crate::network::activation::{sigmoid, tanh};
use crate::network::mlp::Linear;
use crate::network::recurrent::{Cell, Cells, MemoryKind};

/// A cell's layers of inputs and of h, one for each gate.
#[derive(Clone, Debug)]
struct CellStage {
    kind: MemoryKind,
    size: usize,
    inputs: Vec<Dense>,
    hidden: Vec<Dense>,
}

/// The cells between features and dense layers.
#[derive(Clone, Debug)]
pub(crate) struct MemoryStage {
    cells: Vec<CellStage>,
    /// Number of features that the cells read.
    n_features: usize,
    state_len: usize,
}

/// Numbers of a cell over a block of sequences.
///
/// Matrices in panels, with a row for each sample.
#[derive(Clone, Debug, Default)]
struct CellTrace {
    /// For each gate: its sum of inputs, its value, the gradient of its sum.
    gates: Vec<Aligned>,
    /// GRU: `u_n`, then its gradient. LSTM: `tanh(c')`.
    inner: Aligned,
    /// State before each step.
    h_before: Aligned,
    c_before: Aligned,
    /// Outputs, then their gradients.
    h: Aligned,
}

/// Numbers that go from step to step of a block: matrices of a tile, in panels.
#[derive(Clone, Debug)]
struct Carry {
    /// For each gate, the sum of h.
    u: Vec<Aligned>,
    /// State c after the latest step.
    c: Aligned,
    /// Gradients of the state before the latest step, on the way back.
    dh: Aligned,
    dc: Aligned,
}

/// Buffers of one thread for blocks of sequences.
#[derive(Clone, Debug)]
pub(crate) struct MemoryWorkspace {
    /// Number of rows of the traces.
    height: usize,
    /// Features.
    x: Aligned,
    traces: Vec<CellTrace>,
    carries: Vec<Carry>,
}

/// Length of a matrix in panels.
fn len(height: usize, columns: usize) -> usize {
    height * panels(columns) * PANEL
}

/// The numbers of `rows` in panel `p` of a matrix.
#[inline(always)]
fn part(p: usize, height: usize, rows: &Range<usize>) -> Range<usize> {
    (p * height + rows.start) * PANEL..(p * height + rows.end) * PANEL
}

/// Rows of a matrix: the number of all of them, and the first.
#[derive(Clone, Copy)]
struct At {
    height: usize,
    first: usize,
}

/// The first row of a tile.
const TILE_START: At = At { height: TILE, first: 0 };

/// Copies `m` rows of a matrix with `columns` columns to another one.
#[inline(always)]
fn copy_rows(columns: usize, m: usize, from: &[f32], from_at: At, to: &mut [f32], to_at: At) {
    for p in 0..panels(columns) {
        let rows = |at: At| part(p, at.height, &(at.first..at.first + m));
        to[rows(to_at)].copy_from_slice(&from[rows(from_at)]);
    }
}

impl CellStage {
    fn new(
        cell: &Cell,
        runs: &InputRuns,
        categories: Option<&Arc<Categories>>,
        packed_len: &mut usize,
        grad_len: &mut usize,
    ) -> Self {
        let mut dense = |layer: &Linear, runs: InputRuns, categories: Option<&Arc<Categories>>| {
            Dense::new(layer, runs, categories.cloned(), packed_len, grad_len)
        };
        let inputs = cell.inputs.iter().map(|layer| dense(layer, runs.clone(), categories)).collect();
        let hidden = cell.hidden.iter().map(|layer| dense(layer, InputRuns::one(cell.size), None)).collect();
        Self { kind: cell.kind, size: cell.size, inputs, hidden }
    }

    fn reserve(&self, height: usize) -> CellTrace {
        let matrix = || Aligned::zeros(len(height, self.size));
        let c = if self.kind == MemoryKind::Lstm { matrix() } else { Aligned::default() };
        let gates = self.inputs.iter().map(|_| matrix()).collect();
        CellTrace { gates, inner: matrix(), h_before: matrix(), c_before: c, h: matrix() }
    }

    fn carry(&self) -> Carry {
        let matrix = || Aligned::zeros(len(TILE, self.size));
        Carry { u: self.hidden.iter().map(|_| matrix()).collect(), c: matrix(), dh: matrix(), dc: matrix() }
    }

    /// Number of matrices of a trace, and of a carry.
    fn n_matrices(&self) -> (usize, usize) {
        (self.inputs.len() + if self.kind == MemoryKind::Lstm { 4 } else { 3 }, self.hidden.len() + 3)
    }

    /// Takes one step of `rows`, from the state before it to the outputs.
    #[inline(always)]
    fn step<S: Set>(&self, packed: &[f32], height: usize, rows: &Range<usize>, trace: &mut CellTrace, carry: &mut Carry) {
        let CellTrace { gates, inner, h_before, c_before, h } = trace;
        let m = rows.len();
        for p in 0..panels(self.size) {
            let (all, here) = (part(p, height, rows), part(p, TILE, &(0..m)));
            for (layer, u) in self.hidden.iter().zip(&mut carry.u) {
                layer.forward::<S>(p, packed, Rows::new(h_before, height, rows.clone()), None, &mut u[here.clone()], &mut []);
            }
            match (&mut gates[..], &carry.u[..]) {
                ([r, z, n], [u_r, u_z, u_n]) => {
                    let (r, z, n) = (&mut r[all.clone()], &mut z[all.clone()], &mut n[all.clone()]);
                    for (gate, u) in [(&mut *r, u_r), (&mut *z, u_z)] {
                        gate.iter_mut().zip(&u[here.clone()]).for_each(|(gate, u)| *gate += u);
                        sigmoid::<S>(gate);
                    }
                    let u_n = &u_n[here];
                    inner[all.clone()].copy_from_slice(u_n);
                    n.iter_mut().zip(&*r).zip(u_n).for_each(|((n, r), u)| *n = S::multiply_add(*r, *u, *n));
                    tanh::<S>(n);
                    let before = &h_before[all.clone()];
                    for (((h, z), n), before) in h[all].iter_mut().zip(&*z).zip(&*n).zip(before) {
                        *h = S::multiply_add(*z, before - n, *n);
                    }
                }
                ([i, f, g, o], u) => {
                    let (i, f, g, o) = (&mut i[all.clone()], &mut f[all.clone()], &mut g[all.clone()], &mut o[all.clone()]);
                    for (gate, u) in [&mut *i, &mut *f, &mut *g, &mut *o].into_iter().zip(u) {
                        gate.iter_mut().zip(&u[here.clone()]).for_each(|(gate, u)| *gate += u);
                    }
                    sigmoid::<S>(i);
                    sigmoid::<S>(f);
                    sigmoid::<S>(o);
                    tanh::<S>(g);
                    let (before, after) = (&c_before[all.clone()], &mut carry.c[here]);
                    for ((((c, before), i), f), g) in after.iter_mut().zip(before).zip(&*i).zip(&*f).zip(&*g) {
                        *c = S::multiply_add(*f, *before, i * g);
                    }
                    let inner = &mut inner[all.clone()];
                    inner.copy_from_slice(after);
                    tanh::<S>(inner);
                    h[all].iter_mut().zip(&*o).zip(&*inner).for_each(|((h, o), c)| *h = o * c);
                }
                _ => unreachable!("a cell of three or four gates"),
            }
        }
    }

    /// Takes one step back.
    ///
    /// From the gradients of outputs and later state to those of sums and earlier state.
    #[inline(always)]
    fn step_back<S: Set>(&self, packed: &[f32], height: usize, rows: &Range<usize>, trace: &mut CellTrace, carry: &mut Carry) {
        let CellTrace { gates, inner, h_before, c_before, h: dh } = trace;
        let m = rows.len();
        for p in 0..panels(self.size) {
            let (all, here) = (part(p, height, rows), part(p, TILE, &(0..m)));
            let (dh, inner, later) = (&dh[all.clone()], &mut inner[all.clone()], &mut carry.dh[here.clone()]);
            match &mut gates[..] {
                [r, z, n] => {
                    let (r, z, n) = (&mut r[all.clone()], &mut z[all.clone()], &mut n[all.clone()]);
                    let before = &h_before[all];
                    for j in 0..dh.len() {
                        let dh = dh[j] + later[j];
                        later[j] = dh * z[j];
                        let d_n = dh * (1.0 - z[j]) * S::multiply_add(-n[j], n[j], 1.0);
                        let d_z = dh * (before[j] - n[j]) * (z[j] * (1.0 - z[j]));
                        let d_r = d_n * inner[j] * (r[j] * (1.0 - r[j]));
                        inner[j] = d_n * r[j];
                        (r[j], z[j], n[j]) = (d_r, d_z, d_n);
                    }
                }
                [i, f, g, o] => {
                    let (i, f, g, o) = (&mut i[all.clone()], &mut f[all.clone()], &mut g[all.clone()], &mut o[all.clone()]);
                    let (before, later_c) = (&c_before[all], &mut carry.dc[here]);
                    for j in 0..dh.len() {
                        let dh = dh[j] + later[j];
                        later[j] = 0.0;
                        let c = inner[j];
                        let dc = S::multiply_add(dh * o[j], S::multiply_add(-c, c, 1.0), later_c[j]);
                        later_c[j] = dc * f[j];
                        let d_o = dh * c * (o[j] * (1.0 - o[j]));
                        let d_i = dc * g[j] * (i[j] * (1.0 - i[j]));
                        let d_f = dc * before[j] * (f[j] * (1.0 - f[j]));
                        let d_g = dc * i[j] * S::multiply_add(-g[j], g[j], 1.0);
                        (i[j], f[j], g[j], o[j]) = (d_i, d_f, d_g, d_o);
                    }
                }
                _ => unreachable!("a cell of three or four gates"),
            }
        }
        for (gate, layer) in self.hidden.iter().enumerate() {
            let dz = Rows::new(self.of_hidden(gate, gates, inner), height, rows.clone());
            for q in 0..panels(self.size) {
                layer.input_grad::<S>(q, packed, dz, Init::Add, &mut carry.dh[part(q, TILE, &(0..m))]);
            }
        }
    }

    /// Gradient of a gate's sum of h: the gate's, but for the last one of a GRU.
    #[inline(always)]
    fn of_hidden<'a>(&self, gate: usize, gates: &'a [Aligned], inner: &'a Aligned) -> &'a Aligned {
        if self.kind == MemoryKind::Gru && gate == 2 { inner } else { &gates[gate] }
    }
}

impl MemoryStage {
    /// Reserves space in the packed parameters and the gradient; `None` without cells.
    ///
    /// The cells read `runs` of features, of which some elements may be `categories`.
    pub(crate) fn new(
        cells: &Cells,
        runs: &InputRuns,
        n_features: usize,
        categories: Option<&Arc<Categories>>,
        packed_len: &mut usize,
        grad_len: &mut usize,
    ) -> Option<Self> {
        let stage = |cell: &Cell| CellStage::new(cell, runs, categories, packed_len, grad_len);
        let stages: Vec<_> = cells.0.iter().map(stage).collect();
        (!stages.is_empty()).then(|| Self { cells: stages, n_features, state_len: cells.state_len() })
    }

    /// Layers of all cells, in the order of their packed parameters.
    pub(crate) fn layers(&self) -> impl Iterator<Item = &Dense> {
        self.cells.iter().flat_map(|cell| cell.inputs.iter().chain(&cell.hidden))
    }

    /// Kind of each cell, and its layers of inputs and of h.
    pub(crate) fn cells(&self) -> impl Iterator<Item = (MemoryKind, &[Dense], &[Dense])> {
        self.cells.iter().map(|cell| (cell.kind, &cell.inputs[..], &cell.hidden[..]))
    }

    /// Number of elements S of the state.
    pub(crate) fn state_len(&self) -> usize {
        self.state_len
    }

    /// Number of features that the cells read.
    pub(crate) fn n_features(&self) -> usize {
        self.n_features
    }

    /// Number of columns of the outputs: whole panels for each cell.
    pub(crate) fn n_out(&self) -> usize {
        self.cells.iter().map(|cell| panels(cell.size) * PANEL).sum()
    }

    /// First column of a cell's outputs.
    pub(crate) fn first_column(&self, cell: usize) -> usize {
        self.cells[..cell].iter().map(|cell| panels(cell.size) * PANEL).sum()
    }

    /// Allocates buffers for one step of a tile.
    pub(crate) fn workspace(&self) -> MemoryWorkspace {
        let mut workspace = MemoryWorkspace {
            height: 0,
            x: Aligned::default(),
            traces: Vec::new(),
            carries: self.cells.iter().map(CellStage::carry).collect(),
        };
        self.reserve(TILE, &mut workspace);
        workspace
    }

    /// Numbers of a workspace for one step of a tile, and of each sample of a block.
    pub(crate) fn lens(&self) -> (usize, usize) {
        let features = panels(self.n_features) * PANEL;
        let columns = |cell: &CellStage| panels(cell.size) * PANEL;
        let sample = features + self.cells.iter().map(|cell| cell.n_matrices().0 * columns(cell)).sum::<usize>();
        let carried: usize = self.cells.iter().map(|cell| cell.n_matrices().1 * columns(cell)).sum();
        (TILE * (sample + carried), sample)
    }

    /// Makes the buffers hold `height` rows.
    pub(crate) fn reserve(&self, height: usize, workspace: &mut MemoryWorkspace) {
        if workspace.x.len() < len(height, self.n_features) {
            workspace.x = Aligned::zeros(len(height, self.n_features));
            workspace.traces = self.cells.iter().map(|cell| cell.reserve(height)).collect();
        }
        workspace.height = height;
    }

    /// Takes the features of a tile, and computes each gate's sum of them.
    #[inline(always)]
    pub(crate) fn read<S: Set>(&self, packed: &[f32], features: &[f32], rows: Range<usize>, workspace: &mut MemoryWorkspace) {
        let MemoryWorkspace { height, x, traces, .. } = workspace;
        copy_rows(self.n_features, rows.len(), features, TILE_START, x, At { height: *height, first: rows.start });
        for (cell, trace) in self.cells.iter().zip(traces) {
            for (layer, gate) in cell.inputs.iter().zip(&mut trace.gates) {
                for p in 0..panels(cell.size) {
                    let to = &mut gate[part(p, *height, &rows)];
                    layer.forward::<S>(p, packed, Rows::new(x, *height, rows.clone()), None, to, &mut []);
                }
            }
        }
    }

    /// Takes one step of all cells, for at most a tile of sequences.
    #[inline(always)]
    pub(crate) fn step<S: Set>(&self, packed: &[f32], rows: &Range<usize>, workspace: &mut MemoryWorkspace) {
        let MemoryWorkspace { height, traces, carries, .. } = workspace;
        for (cell, (trace, carry)) in self.cells.iter().zip(traces.iter_mut().zip(carries)) {
            cell.step::<S>(packed, *height, rows, trace, carry);
        }
    }

    /// Takes one step of all cells back.
    #[inline(always)]
    pub(crate) fn step_back<S: Set>(&self, packed: &[f32], rows: &Range<usize>, workspace: &mut MemoryWorkspace) {
        let MemoryWorkspace { height, traces, carries, .. } = workspace;
        for (cell, (trace, carry)) in self.cells.iter().zip(traces.iter_mut().zip(carries)) {
            cell.step_back::<S>(packed, *height, rows, trace, carry);
        }
    }

    /// Adds the gradient of the layers of all cells over `rows`.
    ///
    /// Adds the gradient of the features of a tile to `feature_grads`, unless it is empty.
    #[inline(always)]
    pub(crate) fn grads<S: Set>(
        &self,
        packed: &[f32],
        rows: Range<usize>,
        workspace: &MemoryWorkspace,
        grads: &mut [f32],
        feature_grads: &mut [f32],
    ) {
        let MemoryWorkspace { height, x, traces, .. } = workspace;
        for (cell, CellTrace { gates, inner, h_before, .. }) in self.cells.iter().zip(traces) {
            for (layer, gate) in cell.inputs.iter().zip(gates) {
                let dz = Rows::new(gate, *height, rows.clone());
                layer.grads::<S>(Rows::new(x, *height, rows.clone()), dz, Init::Add, grads);
                for (q, dx) in feature_grads.chunks_exact_mut(TILE * PANEL).enumerate() {
                    layer.input_grad::<S>(q, packed, dz, Init::Add, &mut dx[..rows.len() * PANEL]);
                }
            }
            for (gate, layer) in cell.hidden.iter().enumerate() {
                let dz = Rows::new(cell.of_hidden(gate, gates, inner), *height, rows.clone());
                layer.grads::<S>(Rows::new(h_before, *height, rows.clone()), dz, Init::Add, grads);
            }
        }
    }

    /// Copies the outputs of `rows` to a tile.
    #[inline(always)]
    pub(crate) fn outputs(&self, rows: &Range<usize>, workspace: &MemoryWorkspace, tile: &mut [f32]) {
        let mut to = tile;
        for (cell, trace) in self.cells.iter().zip(&workspace.traces) {
            copy_rows(cell.size, rows.len(), &trace.h, At { height: workspace.height, first: rows.start }, to, TILE_START);
            to = &mut to[len(TILE, cell.size)..];
        }
    }

    /// Replaces the outputs of `rows` by their gradients, those of a tile.
    #[inline(always)]
    pub(crate) fn set_output_grads(&self, rows: &Range<usize>, workspace: &mut MemoryWorkspace, tile: &[f32]) {
        let mut from = tile;
        for (cell, trace) in self.cells.iter().zip(&mut workspace.traces) {
            copy_rows(cell.size, rows.len(), from, TILE_START, &mut trace.h, At { height: workspace.height, first: rows.start });
            from = &from[len(TILE, cell.size)..];
        }
    }

    /// Sets the state before the step of `row` to `state` (S).
    pub(crate) fn set_state(&self, row: usize, state: &[f32], workspace: &mut MemoryWorkspace) {
        let (height, mut rest) = (workspace.height, state);
        for (cell, CellTrace { h_before, c_before, .. }) in self.cells.iter().zip(&mut workspace.traces) {
            for to in [h_before, c_before].into_iter().take(cell.kind.n_vectors()) {
                let (from, others) = rest.split_at(cell.size);
                rest = others;
                for (p, from) in from.chunks(PANEL).enumerate() {
                    to[part(p, height, &(row..row + 1))][..from.len()].copy_from_slice(from);
                }
            }
        }
    }

    /// Sets the state before the step of `row` to zeros.
    pub(crate) fn forget_state(&self, row: usize, workspace: &mut MemoryWorkspace) {
        let height = workspace.height;
        for (cell, CellTrace { h_before, c_before, .. }) in self.cells.iter().zip(&mut workspace.traces) {
            for state in [h_before, c_before].into_iter().take(cell.kind.n_vectors()) {
                (0..panels(cell.size)).for_each(|p| state[part(p, height, &(row..row + 1))].fill(0.0));
            }
        }
    }

    /// Sets the states before a step, that of `rows`, to those after the step before.
    pub(crate) fn keep_states(&self, rows: &Range<usize>, workspace: &mut MemoryWorkspace) {
        let MemoryWorkspace { height, traces, carries, .. } = workspace;
        let m = rows.len();
        for (cell, (trace, carry)) in self.cells.iter().zip(traces.iter_mut().zip(carries)) {
            let CellTrace { h, h_before, c_before, .. } = trace;
            let at = |first: usize| At { height: *height, first };
            copy_rows(cell.size, m, h, at(rows.start - m), h_before, at(rows.start));
            if cell.kind == MemoryKind::Lstm {
                copy_rows(cell.size, m, &carry.c, TILE_START, c_before, at(rows.start));
            }
        }
    }

    /// Writes the states after the latest step, that of `rows`, (m, S).
    pub(crate) fn states(&self, rows: &Range<usize>, workspace: &MemoryWorkspace, states: &mut [f32]) {
        let MemoryWorkspace { height, traces, carries, .. } = workspace;
        for (i, state) in states.chunks_exact_mut(self.state_len).enumerate() {
            let mut rest = state;
            for (cell, (trace, carry)) in self.cells.iter().zip(traces.iter().zip(carries)) {
                let of_both = [(&trace.h, *height, rows.start + i), (&carry.c, TILE, i)];
                for (from, height, row) in of_both.into_iter().take(cell.kind.n_vectors()) {
                    let (to, others) = rest.split_at_mut(cell.size);
                    rest = others;
                    for (p, to) in to.chunks_mut(PANEL).enumerate() {
                        to.copy_from_slice(&from[part(p, height, &(row..row + 1))][..to.len()]);
                    }
                }
            }
        }
    }

    /// Forgets the gradients of all states.
    pub(crate) fn forget_grads(&self, workspace: &mut MemoryWorkspace) {
        for Carry { dh, dc, .. } in &mut workspace.carries {
            dh.fill(0.0);
            dc.fill(0.0);
        }
    }

    /// Forgets the gradient of the state of sequence `i` of the block.
    pub(crate) fn forget_grad(&self, i: usize, workspace: &mut MemoryWorkspace) {
        for (cell, Carry { dh, dc, .. }) in self.cells.iter().zip(&mut workspace.carries) {
            for p in 0..panels(cell.size) {
                dh[part(p, TILE, &(i..i + 1))].fill(0.0);
                dc[part(p, TILE, &(i..i + 1))].fill(0.0);
            }
        }
    }
}
