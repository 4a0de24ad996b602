// GRU (Cho et al., 2014) and LSTM (Hochreiter and Schmidhuber, 1997), a step at a time: the twin of
// rl-agents/src/kernel/encoder/memory.rs. With a = x W + b of the inputs and u = h W + b of the state:
//
// GRU: r = sigmoid(a_r + u_r), z = sigmoid(a_z + u_z), n = tanh(a_n + r u_n), h' = n + z (h - n).
// LSTM: i, f, o = sigmoid(a + u), g = tanh(a_g + u_g), c' = f c + i g, h' = o tanh(c').
//
// The products are dense layers. In the forward pass of cells with at most 96 outputs, memory_step computes those with h itself. Every
// number has one owner, so the results are bitwise deterministic.
//
// A step takes one row of each of several columns, of which a thread has one number. Matrices of a step are (columns, size), those of all
// samples (samples, size). A matrix has fewer than 2^32 numbers.

#include "activation.cuh"
#include "learner.cuh"

const u32 GATES = 4; // at most

// Numbers of a cell.
struct Cell {
    f32* gates;    // of each gate (samples, size): its sum of inputs, then its value, then the gradient of its sum
    f32* sums;     // of each gate (columns, size): its sum of h; on the way back the gradient of that
    f32* inner;    // GRU: u_n, then its gradient; LSTM: tanh(c')
    f32* h_before; // states before each step
    f32* c_before;
    f32* h;       // outputs
    f32* h_now;   // states (columns, size) before the step
    f32* h_next;  // those after it, in the same place if the sums of h are given
    f32* c_now;
    const f32* dh; // gradient of the outputs
    f32* dh_now;   // gradients of the states after the step (columns, size), on the way back before it
    f32* dc_now;
    u64 samples;  // numbers from gate to gate of `gates`
    u64 columns;  // likewise of `sums`
    u32 size, is_lstm;
};

// Columns of a rollout, of which the samples are all steps. Without rows they are one step, a sample for each column.
struct Sequences {
    Cut cut; // `unit` is the number of steps
    const u32* rows; // of the samples in the rollout, (T, N)
    const u8* terminated;
    const u8* truncated;
    u32 n_envs;
    u32 horizon; // steps that a gradient goes back over; 0: all

    __device__ u32 n_columns() const {
        return cut.n / cut.unit;
    }

    // First column of a slice.
    __device__ u32 first(u32 slice) const {
        return slice * n_columns() / cut.slices;
    }

    // Sample of a column at a step: blocks of columns in the order of time, the columns of a step side by side.
    __device__ u32 sample(u32 step, u32 column) const {
        u32 slice = ((column + 1) * cut.slices - 1) / n_columns(), width = cut.block / cut.unit;
        u32 end = first(slice + 1), begin = first(slice) + (column - first(slice)) / width * width;
        return begin * cut.unit + step * least(width, end - begin) + (column - begin);
    }

    // True if an episode begins at a step, which is not the first. A row past the end counts as the last one.
    __device__ bool begins(u32 step, u32 column) const {
        u32 before = least(rows[sample(step, column)] - n_envs, n_envs * cut.unit - 1);
        return (terminated[before] | truncated[before]) != 0;
    }

    // True if no gradient goes back to a step from the one after it.
    __device__ bool is_last(u32 step, u32 column) const {
        u32 next = step + 1;
        return next == cut.unit || (horizon > 0 && next % horizon == 0) || begins(next, column);
    }
};

// Calls work(gate) for every gate of a cell.
template <class Work>
__device__ __forceinline__ void each_gate(const Cell& cell, Work work) {
#pragma unroll
    for (u32 gate = 0; gate < GATES; ++gate) {
        if (gate < 3 || cell.is_lstm) {
            work(gate);
        }
    }
}

// The logistic function.
__device__ inline f32 sigmoid(f32 x) {
    return fmaf(fused_tanh(x * 0.5f), 0.5f, 0.5f);
}

// Rows of the samples in the rollout, whose columns are given. One thread per sample.
extern "C" __global__ void memory_rows(const u32* columns, u32* rows, Sequences sequences) {
    u32 i = (u32)thread_number();
    if (i >= sequences.cut.n) return;
    u32 column = i % sequences.n_columns(), step = i / sequences.n_columns();
    rows[sequences.sample(step, column)] = step * sequences.n_envs + columns[column];
}
HOST_KERNEL(memory_rows)

// Takes the states of a cell, `offset` numbers from the start of the columns' states, of `len` numbers each. With rows, they are those of the
// environments of the columns. One thread per number.
extern "C" __global__ void memory_take(const f32* states, Cell cell, Sequences sequences, u32 offset, u32 len) {
    u32 i = (u32)thread_number();
    if (i >= sequences.n_columns() * cell.size) return;
    u32 column = i / cell.size, j = i % cell.size;
    u32 row = sequences.rows == 0 ? column : least(sequences.rows[sequences.sample(0, column)], sequences.n_envs - 1);
    const f32* from = states + (u64)row * len + offset;
    cell.h_now[i] = from[j];
    if (cell.is_lstm) {
        cell.c_now[i] = from[cell.size + j];
    }
}
HOST_KERNEL(memory_take)

// Puts the states of a cell back. One thread per number.
extern "C" __global__ void memory_put(f32* states, Cell cell, u32 n_columns, u32 offset, u32 len) {
    u32 i = (u32)thread_number();
    if (i >= n_columns * cell.size) return;
    u32 column = i / cell.size, j = i % cell.size;
    f32* to = states + (u64)column * len + offset;
    to[j] = cell.h_now[i];
    if (cell.is_lstm) {
        to[cell.size + j] = cell.c_now[i];
    }
}
HOST_KERNEL(memory_put)

// Forgets the states (n, len) of environments whose episodes ended. One thread per number.
extern "C" __global__ void memory_forget(f32* states, const u8* terminated, const u8* truncated, u32 n, u32 len) {
    u32 i = (u32)thread_number();
    if (i >= n * len || (terminated[i / len] | truncated[i / len]) == 0) return;
    states[i] = 0.0f;
}
HOST_KERNEL(memory_forget)

// Takes a step. The states after it are zeros where another episode begins. `hidden` are the layers of h, gate after gate: weights (size,
// size), then biases; if there are none, the sums of h are given. One thread per number.
extern "C" __global__ void memory_step(Cell cell, Sequences sequences, u32 step, const f32* hidden) {
    u32 i = (u32)thread_number();
    if (i >= sequences.n_columns() * cell.size) return;
    u32 column = i / cell.size;
    u64 at = (u64)sequences.sample(step, column) * cell.size + i % cell.size;
    f32 before = cell.h_now[i], h, c = 0.0f, a[GATES], u[GATES];
    cell.h_before[at] = before;
    each_gate(cell, [&](u32 gate) { a[gate] = cell.gates[gate * cell.samples + at]; });
    if (hidden) {
        const f32 *h_now = cell.h_now + column * cell.size, *weights = hidden + i % cell.size;
        u32 of_gate = cell.size * cell.size, stride = of_gate + cell.size;
        each_gate(cell, [&](u32 gate) { u[gate] = weights[gate * stride + of_gate]; });
#pragma unroll 4
        for (u32 k = 0; k < cell.size; ++k, weights += cell.size) {
            f32 x = h_now[k];
            each_gate(cell, [&](u32 gate) { u[gate] = fmaf(x, weights[gate * stride], u[gate]); });
        }
    } else {
        each_gate(cell, [&](u32 gate) { u[gate] = cell.sums[gate * cell.columns + i]; });
    }
    if (cell.is_lstm) {
        f32 c_before = cell.c_now[i];
        cell.c_before[at] = c_before;
        a[0] = sigmoid(a[0] + u[0]);
        a[1] = sigmoid(a[1] + u[1]);
        a[2] = fused_tanh(a[2] + u[2]);
        a[3] = sigmoid(a[3] + u[3]);
        c = fmaf(a[1], c_before, a[0] * a[2]);
        f32 inner = fused_tanh(c);
        cell.inner[at] = inner;
        h = a[3] * inner;
    } else {
        a[0] = sigmoid(a[0] + u[0]);
        a[1] = sigmoid(a[1] + u[1]);
        a[2] = fused_tanh(fmaf(a[0], u[2], a[2]));
        cell.inner[at] = u[2];
        h = fmaf(a[1], before - a[2], a[2]);
    }
    each_gate(cell, [&](u32 gate) { cell.gates[gate * cell.samples + at] = a[gate]; });
    cell.h[at] = h;
    bool forgets = step + 1 < sequences.cut.unit && sequences.begins(step + 1, column);
    cell.h_next[i] = forgets ? 0.0f : h;
    if (cell.is_lstm) {
        cell.c_now[i] = forgets ? 0.0f : c;
    }
}
HOST_KERNEL(memory_step)

// Takes a step back: from the gradients of outputs and later state to those of sums, and of what passes to the earlier state directly. One
// thread per number.
extern "C" __global__ void memory_step_back(Cell cell, Sequences sequences, u32 step) {
    u32 i = (u32)thread_number();
    if (i >= sequences.n_columns() * cell.size) return;
    u32 column = i / cell.size;
    u64 at = (u64)sequences.sample(step, column) * cell.size + i % cell.size;
    bool is_last = sequences.is_last(step, column);
    f32 dh = cell.dh[at] + (is_last ? 0.0f : cell.dh_now[i]), gates[GATES], sums[GATES];
    each_gate(cell, [&](u32 gate) { gates[gate] = cell.gates[gate * cell.samples + at]; });
    if (cell.is_lstm) {
        f32 in = gates[0], forget = gates[1], g = gates[2], out = gates[3], c = cell.inner[at];
        f32 dc = fmaf(dh * out, fmaf(-c, c, 1.0f), is_last ? 0.0f : cell.dc_now[i]);
        cell.dh_now[i] = 0.0f;
        cell.dc_now[i] = dc * forget;
        sums[0] = dc * g * (in * (1.0f - in));
        sums[1] = dc * cell.c_before[at] * (forget * (1.0f - forget));
        sums[2] = dc * in * fmaf(-g, g, 1.0f);
        sums[3] = dh * c * (out * (1.0f - out));
    } else {
        f32 r = gates[0], z = gates[1], n = gates[2];
        cell.dh_now[i] = dh * z;
        f32 d_n = dh * (1.0f - z) * fmaf(-n, n, 1.0f);
        sums[0] = d_n * cell.inner[at] * (r * (1.0f - r));
        sums[1] = dh * (cell.h_before[at] - n) * (z * (1.0f - z));
        sums[2] = d_n * r;
        cell.inner[at] = sums[2];
        gates[2] = d_n;
    }
    each_gate(cell, [&](u32 gate) {
        cell.sums[gate * cell.columns + i] = sums[gate];
        cell.gates[gate * cell.samples + at] = gate == 2 && !cell.is_lstm ? gates[gate] : sums[gate];
    });
}
HOST_KERNEL(memory_step_back)
