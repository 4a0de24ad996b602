//! Cells of GRU and LSTM, a step at a time.

use std::ops::Range;

use super::kernels::BLOCK;
use super::slices::MinibatchSlices;
use crate::driver::args::{args, long};
use crate::driver::kernel::Kernel;
use crate::error::length;
use crate::{Buffer, Device, Error, Stream, View, ViewMut};

/// Largest number of elements of a matrix, and of samples.
const MAX_NUMBERS: usize = 1 << 28;

/// A cell of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellKind {
    /// Three gates, state h.
    Gru,
    /// Four gates, states h and c.
    Lstm,
}

impl CellKind {
    /// Number of gates.
    #[must_use]
    pub fn n_gates(self) -> usize {
        if self == Self::Lstm { 4 } else { 3 }
    }
}

/// Numbers of a cell in device memory.
#[derive(Debug)]
pub struct CellBuffers {
    kind: CellKind,
    size: usize,
    n_samples: usize,
    gates: Buffer<f32>,
    sums: Buffer<f32>,
    inner: Buffer<f32>,
    before: [Buffer<f32>; 2],
    h: Buffer<f32>,
    now: [Buffer<f32>; 2],
    /// States h after a step that reads those of the whole column.
    next: Buffer<f32>,
    /// True if `next` holds the states h before the next step.
    is_next: bool,
    dh: Buffer<f32>,
    d_now: [Buffer<f32>; 2],
}

impl CellBuffers {
    /// Allocates a cell of `size` outputs for `n_samples` samples.
    ///
    /// Each of them may be a step of its own. A cell that learns has memory for gradients, too.
    ///
    /// # Errors
    /// [`Error::Length`] if a matrix has more than 2^28 numbers; errors of the device.
    pub fn new(device: &Device, kind: CellKind, size: usize, n_samples: usize, learns: bool) -> Result<Self, Error> {
        let n = n_samples.saturating_mul(size);
        length("numbers of a cell", n, n.min(MAX_NUMBERS))?;
        let matrix = |needed: bool| Buffer::zeros(device, if needed { n } else { 0 });
        let is_lstm = kind == CellKind::Lstm;
        Ok(Self {
            kind,
            size,
            n_samples,
            gates: Buffer::zeros(device, kind.n_gates() * n)?,
            sums: Buffer::zeros(device, kind.n_gates() * n)?,
            inner: matrix(true)?,
            before: [matrix(true)?, matrix(is_lstm)?],
            h: matrix(true)?,
            now: [matrix(true)?, matrix(is_lstm)?],
            next: matrix(true)?,
            is_next: false,
            dh: matrix(learns)?,
            d_now: [matrix(learns)?, matrix(learns && is_lstm)?],
        })
    }

    /// Bytes of all buffers.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let Self { gates, sums, inner, before, h, now, next, dh, d_now, .. } = self;
        let all = [gates, sums, inner, h, next, dh].into_iter().chain(before).chain(now).chain(d_now);
        all.map(Buffer::bytes).sum()
    }

    /// Number of elements of the state of a column.
    #[must_use]
    pub fn state_len(&self) -> usize {
        if self.kind == CellKind::Lstm { 2 * self.size } else { self.size }
    }

    /// Returns `n` samples of a gate from sample `first` on, (n, size).
    ///
    /// Before a step the sum of inputs, which the caller writes; after [`MemoryKernels::step_back`] the gradient of that sum.
    pub fn gate_mut(&mut self, gate: usize, first: usize, n: usize) -> ViewMut<'_, f32> {
        let place = self.place(gate, first, n);
        self.gates.view_mut().into_slice(place)
    }

    /// Returns the place of `n` rows of a gate, from row `first` on.
    fn place(&self, gate: usize, first: usize, n: usize) -> Range<usize> {
        let at = (gate * self.n_samples + first) * self.size;
        at..at + n * self.size
    }

    /// Returns the gradient of a gate's sum of the inputs, (n, size).
    #[must_use]
    pub fn gate(&self, gate: usize, first: usize, n: usize) -> View<'_, f32> {
        self.gates.view().slice(self.place(gate, first, n))
    }

    /// Returns the gradient of a gate's sum of h, (n, size).
    ///
    /// After [`MemoryKernels::step_back`] only.
    #[must_use]
    pub fn hidden_gate(&self, gate: usize, first: usize, n: usize) -> View<'_, f32> {
        if self.kind == CellKind::Gru && gate == 2 {
            return self.inner.view().slice(self.place(0, first, n));
        }
        self.gate(gate, first, n)
    }

    /// Returns the states h before the steps of some samples, (n, size).
    #[must_use]
    pub fn before(&self, first: usize, n: usize) -> View<'_, f32> {
        self.before[0].view().slice(self.place(0, first, n))
    }

    /// Returns the outputs of some samples, (n, size).
    #[must_use]
    pub fn outputs(&self, first: usize, n: usize) -> View<'_, f32> {
        self.h.view().slice(self.place(0, first, n))
    }

    /// Returns outputs of some samples, and their gradients, (n, size) each.
    pub fn outputs_and_gradients(&mut self, first: usize, n: usize) -> (View<'_, f32>, ViewMut<'_, f32>) {
        let place = self.place(0, first, n);
        (self.h.view().slice(place.clone()), self.dh.view_mut().into_slice(place))
    }

    /// Returns the states h before the next step, and a gate's sums of them.
    ///
    /// Both are (n, size), for `n` columns; the caller may write the sums.
    pub fn step_operands(&mut self, gate: usize, n: usize) -> (View<'_, f32>, ViewMut<'_, f32>) {
        let (states, sums) = (self.place(0, 0, n), self.place(gate, 0, n));
        let now = if self.is_next { &self.next } else { &self.now[0] };
        (now.view().slice(states), self.sums.view_mut().into_slice(sums))
    }

    /// Returns the gradients of a gate's sum of h in the latest step back, and of h.
    ///
    /// Both are (n, size), for `n` columns. That of h is of the state before the step; the caller adds to it.
    pub fn step_back_operands(&mut self, gate: usize, n: usize) -> (View<'_, f32>, ViewMut<'_, f32>) {
        let (states, sums) = (self.place(0, 0, n), self.place(gate, 0, n));
        (self.sums.view().slice(sums), self.d_now[0].view_mut().into_slice(states))
    }

    /// Returns the kernels' `Cell`, of samples from `first` on.
    ///
    /// With `apart`, the states h after a step are in another buffer than those before it.
    fn words(&self, first: usize, apart: bool) -> [u32; 30] {
        let Self { gates, sums, inner, before, h, now, next, is_next, dh, d_now, .. } = self;
        let both = if *is_next { [next, &now[0]] } else { [&now[0], next] };
        let [h_now, h_next] = [both[0], both[usize::from(apart)]];
        let from = |buffer: &Buffer<f32>| {
            let at = if buffer.is_empty() { 0 } else { first * self.size };
            buffer.view().address() + 4 * at as u64
        };
        let whole = |buffer: &Buffer<f32>| buffer.view().address();
        let stride = (self.n_samples * self.size) as u64;
        let longs = [
            from(gates),
            whole(sums),
            from(inner),
            from(&before[0]),
            from(&before[1]),
            from(h),
            whole(h_now),
            whole(h_next),
            whole(&now[1]),
            from(dh),
            whole(&d_now[0]),
            whole(&d_now[1]),
            stride,
            stride,
        ];
        let mut words = [0; 30];
        words[..28].copy_from_slice(longs.map(long).as_flattened());
        words[28..].copy_from_slice(&[self.size as u32, u32::from(self.kind == CellKind::Lstm)]);
        words
    }
}

/// Columns of a rollout, all of whose steps are samples.
#[derive(Clone, Copy, Debug)]
pub struct SequenceColumns<'a> {
    /// Rows of the samples, (n), in slices of whole columns.
    pub rows: View<'a, u32>,
    /// Flags of steps that end an episode, (T N) each.
    pub ends: [View<'a, u8>; 2],
    /// States before the first step, (N, S).
    pub first_states: View<'a, f32>,
    /// Number N of environments.
    pub n_envs: usize,
    /// Steps that a gradient goes back over; 0: all.
    pub horizon: usize,
}

/// Slices of columns that pass a cell together.
#[derive(Clone, Copy, Debug)]
pub struct SequencePart<'a> {
    /// All columns.
    pub of: SequenceColumns<'a>,
    /// Slices with the columns that pass.
    pub slices: &'a MinibatchSlices,
    /// Their first sample among the rows.
    pub first: usize,
    /// Their first sample among those of the cell.
    pub held: usize,
}

impl SequencePart<'_> {
    /// Number of samples.
    #[must_use]
    pub fn n_samples(&self) -> usize {
        self.slices.n
    }

    /// Number of columns.
    #[must_use]
    pub fn n_columns(&self) -> usize {
        self.slices.n / self.slices.n_steps()
    }

    /// Checks that a cell has the samples, and the columns a step.
    fn check(&self, step: usize, cell: &CellBuffers) -> Result<(), Error> {
        let end = self.held.saturating_add(self.n_samples());
        length("samples", end, cell.n_samples.min(end))?;
        length("steps", step.saturating_add(1), self.slices.n_steps().min(step.saturating_add(1)))
    }

    /// Returns the kernels' `Sequences`.
    fn words(&self) -> Result<[u32; 12], Error> {
        let Self { of: SequenceColumns { rows, ends, n_envs, horizon, .. }, slices, first, .. } = *self;
        let end = first.saturating_add(slices.n);
        length("samples", slices.n, slices.n.min(MAX_NUMBERS))?;
        length("rows", end, rows.len().min(end))?;
        length("environments", n_envs.max(1), n_envs)?;
        for ends in &ends {
            length("ends", slices.n_steps().saturating_mul(n_envs), ends.len().min(MAX_NUMBERS))?;
        }
        let mut words = [0; 12];
        words[..4].copy_from_slice(&slices.cut());
        let places = [rows.address() + 4 * first as u64, ends[0].address(), ends[1].address()];
        words[4..10].copy_from_slice(places.map(long).as_flattened());
        words[10..].copy_from_slice(&[n_envs as u32, horizon as u32]);
        Ok(words)
    }
}

/// Returns the kernels' `Sequences` of one step of `n` columns.
fn one_step(n: usize) -> [u32; 12] {
    let mut words = [0; 12];
    words[..4].copy_from_slice(&[n as u32, 1, 1, n as u32]);
    words
}

/// Largest number of outputs of a cell whose sums of h a step computes itself.
///
/// Dense layers add up as many terms in one part, too, so the bits are the same.
pub const MAX_FUSED: usize = 96;

/// Part of the states (n, S) of a policy that belongs to a cell.
#[derive(Clone, Copy, Debug)]
pub struct CellState {
    /// First element.
    pub offset: usize,
    /// Number of elements S.
    pub len: usize,
}

/// Loaded kernels of cells.
#[derive(Debug)]
pub struct MemoryKernels {
    rows: Kernel,
    take: Kernel,
    put: Kernel,
    forget: Kernel,
    step: Kernel,
    step_back: Kernel,
}

#[allow(unsafe_code)]
impl MemoryKernels {
    /// Loads the kernels.
    ///
    /// # Errors
    /// [`Error::Module`], or [`Error::Emulation`].
    pub fn new(device: &Device) -> Result<Self, Error> {
        let kernel = |name: &str| device.kernel("memory", format!("memory_{name}"));
        Ok(Self {
            rows: kernel("rows")?,
            take: kernel("take")?,
            put: kernel("put")?,
            forget: kernel("forget")?,
            step: kernel("step")?,
            step_back: kernel("step_back")?,
        })
    }

    /// Writes the rows of all steps of some columns, in the order of `slices`.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn rows(
        &self,
        stream: &Stream,
        columns: &View<'_, u32>,
        slices: &MinibatchSlices,
        n_envs: usize,
        rows: &ViewMut<'_, u32>,
    ) -> Result<(), Error> {
        length("columns", slices.n / slices.n_steps(), columns.len())?;
        length("rows", slices.n, rows.len().min(MAX_NUMBERS))?;
        let mut words = one_step(0);
        words[..4].copy_from_slice(&slices.cut());
        words[10] = n_envs as u32;
        let args = args![columns, rows, words];
        // SAFETY: the parameters are those of `memory_rows`; lengths were checked above.
        unsafe { self.rows.launch(stream, slices.n as u64, BLOCK, args) }
    }

    /// Takes the states (n, S) that the next step of `n` columns starts from.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn take(
        &self,
        stream: &Stream,
        states: &View<'_, f32>,
        part: CellState,
        n: usize,
        cell: &mut CellBuffers,
    ) -> Result<(), Error> {
        length("states", n.saturating_mul(part.len), states.len())?;
        self.take_from(stream, states, one_step(n), part, n, cell)
    }

    /// Takes the states before the first step of some columns.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn take_first(
        &self,
        stream: &Stream,
        columns: &SequencePart<'_>,
        part: CellState,
        cell: &mut CellBuffers,
    ) -> Result<(), Error> {
        let SequenceColumns { first_states, n_envs, .. } = columns.of;
        length("first_states", n_envs.saturating_mul(part.len), first_states.len())?;
        self.take_from(stream, &first_states, columns.words()?, part, columns.n_columns(), cell)
    }

    fn take_from(
        &self,
        stream: &Stream,
        states: &View<'_, f32>,
        sequences: [u32; 12],
        part: CellState,
        n: usize,
        cell: &mut CellBuffers,
    ) -> Result<(), Error> {
        length("state", part.len, part.len.max(part.offset.saturating_add(cell.state_len())))?;
        length("columns", n, n.min(cell.n_samples))?;
        cell.is_next = false;
        let args = args![states, cell.words(0, false), sequences, part.offset as u32, part.len as u32];
        // SAFETY: the parameters are those of `memory_take`; lengths were checked here and above, and the kernel bounds the rows.
        unsafe { self.take.launch(stream, (n * cell.size) as u64, BLOCK, args) }
    }

    /// Writes the states (n, S) after the latest step.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn put(
        &self,
        stream: &Stream,
        cell: &CellBuffers,
        part: CellState,
        n: usize,
        states: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        length("states", n.saturating_mul(part.len), states.len())?;
        length("state", part.len, part.len.max(part.offset.saturating_add(cell.state_len())))?;
        length("columns", n, n.min(cell.n_samples))?;
        let args = args![states, cell.words(0, false), n as u32, part.offset as u32, part.len as u32];
        // SAFETY: the parameters are those of `memory_put`; lengths were checked above.
        unsafe { self.put.launch(stream, (n * cell.size) as u64, BLOCK, args) }
    }

    /// Sets the states (n, S) of environments whose episodes ended to zeros.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn forget(
        &self,
        stream: &Stream,
        [terminated, truncated]: [&View<'_, u8>; 2],
        states: &ViewMut<'_, f32>,
    ) -> Result<(), Error> {
        let n = terminated.len();
        let len = states.len() / n.max(1);
        length("truncated", n, truncated.len())?;
        length("states", n * len, states.len().min(1 << 31))?;
        let args = args![states, terminated, truncated, n as u32, len as u32];
        // SAFETY: the parameters are those of `memory_forget`; lengths were checked above.
        unsafe { self.forget.launch(stream, states.len() as u64, BLOCK, args) }
    }

    /// Takes a step of `n` columns on their own, a sample for each.
    ///
    /// Each gate holds its sum of inputs. `hidden` as in [`MemoryKernels::step_of`]. Captured steps begin with
    /// [`MemoryKernels::take`].
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn step(&self, stream: &Stream, n: usize, hidden: Option<&View<'_, f32>>, cell: &mut CellBuffers) -> Result<(), Error> {
        length("columns", n, n.min(cell.n_samples))?;
        self.launch_forth(stream, one_step(n), n, 0, 0, hidden, cell)
    }

    /// Takes step `step` of some columns.
    ///
    /// `hidden` are the layers of h, gate after gate: weights (size, size), then biases, for a cell of at most
    /// [`MAX_FUSED`] outputs. Without, each gate's sum of h is given. Captured steps begin with [`MemoryKernels::take_first`].
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn step_of(
        &self,
        stream: &Stream,
        columns: &SequencePart<'_>,
        step: usize,
        hidden: Option<&View<'_, f32>>,
        cell: &mut CellBuffers,
    ) -> Result<(), Error> {
        columns.check(step, cell)?;
        self.launch_forth(stream, columns.words()?, columns.n_columns(), columns.held, step, hidden, cell)
    }

    #[expect(clippy::too_many_arguments, reason = "those of a launch")]
    fn launch_forth(
        &self,
        stream: &Stream,
        sequences: [u32; 12],
        n: usize,
        held: usize,
        step: usize,
        hidden: Option<&View<'_, f32>>,
        cell: &mut CellBuffers,
    ) -> Result<(), Error> {
        if let Some(hidden) = hidden {
            length("outputs of a cell", cell.size, cell.size.min(MAX_FUSED))?;
            length("hidden", cell.kind.n_gates() * (cell.size + 1) * cell.size, hidden.len())?;
        }
        let args = args![cell.words(held, hidden.is_some()), sequences, step as u32, hidden];
        // SAFETY: the parameters are those of `memory_step`; lengths were checked here and by the callers.
        unsafe { self.step.launch(stream, (n * cell.size) as u64, BLOCK, args)? };
        cell.is_next ^= hidden.is_some();
        Ok(())
    }

    /// Takes a step of some columns back.
    ///
    /// The gradients of the outputs are written. Each gate's sums get theirs.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn step_back(
        &self,
        stream: &Stream,
        columns: &SequencePart<'_>,
        step: usize,
        cell: &mut CellBuffers,
    ) -> Result<(), Error> {
        columns.check(step, cell)?;
        length("gradients", cell.h.len(), cell.dh.len())?;
        let args = args![cell.words(columns.held, false), columns.words()?, step as u32];
        // SAFETY: the parameters are those of `memory_step_back`; lengths were checked above.
        unsafe { self.step_back.launch(stream, (columns.n_columns() * cell.size) as u64, BLOCK, args) }
    }
}
