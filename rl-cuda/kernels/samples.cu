// Samples of a batch, copied from stored observations: the twin of rl-agents/src/samples.rs.
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
