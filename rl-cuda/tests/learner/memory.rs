//! Kernels of memory.

use rl_cuda::learner::{CellBuffers, CellKind, CellState, MemoryKernels, MinibatchSlices, SequenceColumns, SequencePart};
use rl_cuda::{Buffer, Device};

use super::source;
use crate::{Bits, upload};

/// Takes steps of columns forth and back, with any sums of inputs and of states.
pub(crate) fn memory(device: &Device, bits: &mut Bits<'_>) {
    let (stream, kernels, mut source) = (device.stream().unwrap(), MemoryKernels::new(device).unwrap(), source(12));
    // Kind, size, columns, steps, columns of a block, slices, horizon.
    for (kind, size, n_columns, t, block, count, horizon) in [
        (CellKind::Gru, 5, 9, 4, 2, 2, 0),
        (CellKind::Lstm, 3, 13, 5, 32, 4, 2),
        (CellKind::Gru, 1, 1, 1, 32, 1, 1),
        (CellKind::Lstm, 33, 7, 3, 3, 1, 0),
        (CellKind::Gru, 2, 45, 4, 32, 2, 3),
    ] {
        let slices = MinibatchSlices::of_columns(n_columns, t, block, count, 1, 1);
        let (n, n_envs, held) = (n_columns * t, n_columns + 2, 3);
        let mut cell = CellBuffers::new(device, kind, size, held + n, true).unwrap();
        let part = CellState { offset: 1, len: cell.state_len() + 3 };
        let order: Vec<u32> = (0..n_columns).map(|i| ((5 * i + 2) % n_envs) as u32).collect();
        let (order, mut rows) = (upload(device, &order), Buffer::zeros(device, n).unwrap());
        kernels.rows(&stream, &order.view(), &slices, n_envs, &rows.view_mut()).unwrap();
        stream.synchronize().unwrap();
        bits.words(&rows.view());
        let ends = [(); 2].map(|()| upload(device, &source.flags(t * n_envs)));
        let first_states = upload(device, &source.floats(n_envs * part.len));
        for round in 0..2 {
            let past = upload(device, &vec![u32::MAX; n]);
            let rows = if round == 0 { rows.view() } else { past.view() };
            let ends = ends.each_ref().map(|ends| ends.view());
            let of = SequenceColumns { rows, ends, first_states: first_states.view(), n_envs, horizon };
            let columns = SequencePart { of, slices: &slices, first: 0, held };
            let hidden = upload(device, &source.floats(kind.n_gates() * (size + 1) * size));
            let mut states = upload(device, &source.floats(n_columns * part.len));
            kernels.take(&stream, &states.view(), part, n_columns, &mut cell).unwrap();
            for gate in 0..kind.n_gates() {
                let a = upload(device, &source.floats(n * size));
                stream.copy(&cell.gate_mut(gate, held, n), &a.view()).unwrap();
            }
            let dh = upload(device, &source.floats(n * size));
            stream.copy(&cell.outputs_and_gradients(held, n).1, &dh.view()).unwrap();
            if round == 0 {
                kernels.take_first(&stream, &columns, part, &mut cell).unwrap();
            }
            for step in (0..t).chain((t..2 * t).rev()) {
                for gate in 0..kind.n_gates() {
                    let sums = upload(device, &source.floats(n_columns * size));
                    stream.copy(&cell.step_operands(gate, n_columns).1, &sums.view()).unwrap();
                }
                if step < t {
                    // Sums of h that are given, or those of a step itself.
                    let hidden = (step % 2 == 0).then(|| hidden.view());
                    kernels.step_of(&stream, &columns, step, hidden.as_ref(), &mut cell).unwrap();
                } else {
                    kernels.step_back(&stream, &columns, step - t, &mut cell).unwrap();
                }
                kernels.put(&stream, &cell, part, n_columns, &states.view_mut()).unwrap();
                stream.synchronize().unwrap();
                bits.floats(&states.view());
                for gate in 0..kind.n_gates() {
                    bits.floats(&cell.step_back_operands(gate, n_columns).0);
                    bits.floats(&cell.hidden_gate(gate, held, n));
                    bits.floats(&cell.gate(gate, held, n));
                }
                bits.floats(&cell.step_back_operands(0, n_columns).1.into_view());
                bits.floats(&cell.before(held, n));
                bits.floats(&cell.outputs(held, n));
            }
            kernels.take(&stream, &states.view(), part, n_columns, &mut cell).unwrap();
            kernels.step(&stream, n_columns, Some(&hidden.view()), &mut cell).unwrap();
            let flags = [(); 2].map(|()| upload(device, &source.flags(n_columns)));
            kernels.forget(&stream, [&flags[0].view(), &flags[1].view()], &states.view_mut()).unwrap();
            stream.synchronize().unwrap();
            bits.floats(&states.view());
            bits.floats(&cell.outputs(0, n_columns));
        }
    }
}
