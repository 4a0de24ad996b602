// Columns of matrices, between parts of an observation and their features: the twin of `EncoderStage` in
// rl-agents/src/kernel/encoder/parts.rs.

#include "activation.cuh"

// len columns of each of n rows. One thread per number.
extern "C" __global__ void columns_copy(
    const f32* from, u32 from_width, u32 from_first, f32* to, u32 to_width, u32 to_first, u32 n, u32 len) {
    u64 i = thread_number();
    if (i >= (u64)n * len) return;
    u64 row = i / len, column = i % len;
    to[row * to_width + to_first + column] = from[row * from_width + from_first + column];
}
HOST_KERNEL(columns_copy)

// dz (n, len) = len columns of n rows, times the derivatives of the activation whose values are y (n, len). One thread per number.
extern "C" __global__ void columns_derive(
    const f32* from, u32 from_width, u32 from_first, const f32* y, f32* dz, u32 n, u32 len, u32 activation) {
    u64 i = thread_number();
    if (i >= (u64)n * len) return;
    f32 dy = from[i / len * from_width + from_first + i % len];
    dz[i] = activation == ACTIVATION_NONE ? dy : derive(activation, y[i], dy);
}
HOST_KERNEL(columns_derive)
