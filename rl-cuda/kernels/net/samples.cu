// Samples of a batch, copied from stored observations: the twin of rl-agents/src/kernel/samples.rs.
//
// x (n, D) = observations (n_rows, D) at `rows`, or the first n; bytes are multiplied by `scale`. A row past the end counts as the last
// one. One thread per number.

#include "numbers.cuh"

template <class T>
__device__ inline void copy(const T* obs, const u32* rows, f32 scale, f32* x, u32 n, u32 d, u64 n_rows) {
    u64 i = thread_number();
    if (i >= (u64)n * d) return;
    u64 sample = i / d, row = rows ? rows[sample] : sample;
    row = row < n_rows ? row : n_rows - 1;
    f32 number = (f32)obs[row * d + i % d];
    x[i] = sizeof(T) == 1 ? number * scale : number;
}

extern "C" __global__ void samples_f32(const f32* obs, const u32* rows, f32 scale, f32* x, u32 n, u32 d, u64 n_rows) {
    copy(obs, rows, scale, x, n, d, n_rows);
}
HOST_KERNEL(samples_f32)

extern "C" __global__ void samples_u8(const u8* obs, const u32* rows, f32 scale, f32* x, u32 n, u32 d, u64 n_rows) {
    copy(obs, rows, scale, x, n, d, n_rows);
}
HOST_KERNEL(samples_u8)

// x (n, I) = inputs of observations (n_rows, D) with categories, at `rows` or the first n: one input for each number, and a one-hot vector
// for each category. `inputs` (I, 2) has the element that each input reads, and its category, or 2^32 - 1 for a number. One thread per
// input.
extern "C" __global__ void samples_one_hot(const f32* obs, const u32* rows, const u32* inputs, f32* x, u32 n, u32 n_inputs, u32 d, u64 n_rows) {
    u64 i = thread_number();
    if (i >= (u64)n * n_inputs) return;
    u64 sample = i / n_inputs, row = rows ? rows[sample] : sample, input = i % n_inputs;
    row = row < n_rows ? row : n_rows - 1;
    f32 number = obs[row * d + inputs[2 * input]];
    u32 category = inputs[2 * input + 1];
    x[i] = category == 0xFFFFFFFFu ? number : number == (f32)category ? 1.0f : 0.0f;
}
HOST_KERNEL(samples_one_hot)
