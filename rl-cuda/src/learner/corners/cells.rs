//! Cells of memory.

use super::*;
use crate::{Device, Error, View};

impl KernelBench<'_, MemoryKernels> {
    fn floats_of(&mut self, n: usize, wild: bool) -> Buffer<f32> {
        let number =
            |_| if wild { self.corners.float(&[0.0, 0.5, 1.0, 20.0, 89.0]) } else { self.corners.0.uniform_in(-2.0, 2.0) };
        let numbers: Vec<f32> = (0..n).map(number).collect();
        self.upload(&numbers)
    }

    /// Adds a copy of numbers.
    fn add_view(&mut self, from: &View<'_, f32>) {
        let mut copy = self.zeros(from.len());
        self.stream.copy(&copy.view_mut(), from).unwrap();
        self.digest.floats(&self.stream, &copy);
    }

    /// Takes steps of some columns forth and back, from and to any numbers.
    fn pass(&mut self, kind: CellKind, slices: &MinibatchSlices, wild: bool) {
        let (size, extra, held) = (self.corners.pick(&[1, 3, 16, 20]), 5, 4);
        let (n, t) = (slices.samples(0..slices.count()).len(), slices.n_steps());
        let (n_columns, n_envs) = (n / t, n / t + 3);
        let mut cell = CellBuffers::new(self.device, kind, size, held + n, true).unwrap();
        let part = CellState { offset: 2, len: cell.state_len() + extra };
        let columns: Vec<u32> = (0..n_columns as u32).map(|i| (7 * i + 1) % n_envs as u32).collect();
        let (columns, mut rows) = (self.upload(&columns), self.upload(&vec![u32::MAX; n]));
        self.kernels.rows(&self.stream, &columns.view(), slices, n_envs, &rows.view_mut()).unwrap();
        self.digest.add(&self.stream, &rows, |row| row);
        if wild {
            rows = self.upload(&vec![u32::MAX; n]); // rows past the end
        }
        let ends = [(); 2].map(|()| {
            let flags: Vec<u8> = (0..t * n_envs).map(|_| self.corners.pick(&[0, 0, 0, 1, 128])).collect();
            self.upload(&flags)
        });
        let first_states = self.floats_of(n_envs * part.len, wild);
        let horizon = self.corners.pick(&[0, 1, 2, 3]);
        let ends = ends.each_ref().map(|ends| ends.view());
        let of = SequenceColumns { rows: rows.view(), ends, first_states: first_states.view(), n_envs, horizon };
        for gate in 0..kind.n_gates() {
            let a = self.floats_of(n * size, wild);
            self.stream.copy(&cell.gate_mut(gate, held, n), &a.view()).unwrap();
        }
        let dh = self.floats_of(n * size, wild);
        self.stream.copy(&cell.outputs_and_gradients(held, n).1, &dh.view()).unwrap();
        let all = SequencePart { of, slices, first: 0, held };
        let hidden = self.floats_of(kind.n_gates() * (size + 1) * size, wild);
        self.kernels.take_first(&self.stream, &all, part, &mut cell).unwrap();
        for step in (0..t).chain((0..t).rev().map(|step| t + step)) {
            for gate in 0..kind.n_gates() {
                let sums = self.floats_of(n_columns * size, wild);
                self.stream.copy(&cell.step_operands(gate, n_columns).1, &sums.view()).unwrap();
            }
            if step < t {
                // Sums of h that are given, or those of a step itself.
                let hidden = (step % 2 == 0).then(|| hidden.view());
                self.kernels.step_of(&self.stream, &all, step, hidden.as_ref(), &mut cell).unwrap();
            } else {
                self.kernels.step_back(&self.stream, &all, step - t, &mut cell).unwrap();
            }
            let mut states = self.zeros(n_columns * part.len);
            self.kernels.put(&self.stream, &cell, part, n_columns, &states.view_mut()).unwrap();
            self.digest.floats(&self.stream, &states);
            for gate in 0..kind.n_gates() {
                self.add_view(&cell.step_back_operands(gate, n_columns).0);
                self.add_view(&cell.hidden_gate(gate, held, n));
                self.add_view(&cell.gate(gate, held, n));
            }
            self.add_view(&cell.step_back_operands(0, n_columns).1.into_view());
            self.add_view(&cell.before(held, n));
            self.add_view(&cell.outputs(held, n));
        }
    }

    /// Takes a step of columns on their own, and forgets some states.
    fn one_step(&mut self, kind: CellKind, wild: bool) {
        let (size, n) = (self.corners.pick(&[1, 5, 16]), self.corners.pick(&[1, 2, 33, 130]));
        let mut cell = CellBuffers::new(self.device, kind, size, n, false).unwrap();
        let part = CellState { offset: 1, len: cell.state_len() + 2 };
        let mut states = self.floats_of(n * part.len, wild);
        self.kernels.take(&self.stream, &states.view(), part, n, &mut cell).unwrap();
        for gate in 0..kind.n_gates() {
            let (a, sums) = (self.floats_of(n * size, wild), self.floats_of(n * size, wild));
            self.stream.copy(&cell.gate_mut(gate, 0, n), &a.view()).unwrap();
            self.stream.copy(&cell.step_operands(gate, n).1, &sums.view()).unwrap();
        }
        let hidden = self.floats_of(kind.n_gates() * (size + 1) * size, wild);
        self.kernels.step(&self.stream, n, Some(&hidden.view()), &mut cell).unwrap();
        self.kernels.put(&self.stream, &cell, part, n, &states.view_mut()).unwrap();
        self.add_view(&cell.outputs(0, n));
        let flags = [(); 2].map(|()| {
            let flags: Vec<u8> = (0..n).map(|_| self.corners.pick(&[0, 0, 1, 128])).collect();
            self.upload(&flags)
        });
        self.kernels.forget(&self.stream, [&flags[0].view(), &flags[1].view()], &states.view_mut()).unwrap();
        self.digest.floats(&self.stream, &states);
    }
}

#[test]
fn cells_agree_on_any_numbers() {
    agree("cells", |device| {
        let mut bench = KernelBench::new(device, MemoryKernels::new, 31);
        for round in 0..rounds(4) {
            let wild = round % 4 == 3;
            for kind in [CellKind::Gru, CellKind::Lstm] {
                // Columns, steps, columns of a block, slices.
                for (n, t, block, count) in [(1, 1, 32, 1), (5, 3, 2, 2), (7, 4, 32, 4), (13, 2, 3, 2)] {
                    bench.pass(kind, &MinibatchSlices::of_columns(n, t, block, count, 1, 1), wild);
                }
                bench.one_step(kind, wild);
            }
        }
        bench.digest
    });
}

#[test]
fn steps_and_columns_that_do_not_exist_are_refused() {
    for device in &Device::for_tests() {
        let (stream, kernels) = (device.stream().unwrap(), MemoryKernels::new(device).unwrap());
        let mut cell = CellBuffers::new(device, CellKind::Gru, 2, 6, true).unwrap();
        let (rows, ends, states) = (Buffer::<u32>::zeros(device, 6), Buffer::<u8>::zeros(device, 6), Buffer::zeros(device, 4));
        let (rows, ends, states) = (rows.unwrap(), ends.unwrap(), states.unwrap());
        let slices = MinibatchSlices::of_columns(2, 3, 32, 1, 1, 1);
        let ends = [ends.view(), ends.view()];
        let of = SequenceColumns { rows: rows.view(), ends, first_states: states.view(), n_envs: 2, horizon: 0 };
        let part = SequencePart { of, slices: &slices, first: 0, held: 0 };
        let refused = |result| assert!(matches!(result, Err(Error::Length { .. })), "{device}: {result:?}");
        refused(kernels.step_of(&stream, &part, 3, None, &mut cell));
        refused(kernels.step_back(&stream, &part, usize::MAX, &mut cell));
        refused(kernels.step_of(&stream, &SequencePart { held: 1, ..part }, 0, None, &mut cell));
        refused(kernels.step_of(&stream, &SequencePart { first: usize::MAX, ..part }, 0, None, &mut cell));
        let none = SequencePart { of: SequenceColumns { n_envs: 0, ends: [ends[0].slice(0..0); 2], ..of }, ..part };
        refused(kernels.step_of(&stream, &none, 0, None, &mut cell));
        refused(kernels.take(&stream, &states.view(), CellState { offset: 0, len: usize::MAX }, 2, &mut cell));
        refused(CellBuffers::new(device, CellKind::Gru, usize::MAX, 2, false).map(|_| ()));
        kernels.step_of(&stream, &part, 2, None, &mut cell).unwrap();
    }
}
