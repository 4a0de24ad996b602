// Functions of math.cuh and philox.cuh, number by number, for comparison with rl-envs/src/numerics/math.rs and rng.rs.

#include "philox.cuh"

// y[i] = f(x[i]), (N) each. The functions are numbered as `Function` in rl-cuda/src/elementary.rs.
extern "C" __global__ void math_apply(u32 function, const f32* x, f32* y, u32 n) {
    u64 i = thread_number();
    if (i >= n) return;
    f32 in = x[i];
    switch (function) {
        case 0: y[i] = math::sin_cos(in).sin; break;
        case 1: y[i] = math::sin_cos(in).cos; break;
        case 2: y[i] = math::wrap_angle(in); break;
        case 3: y[i] = math::exp(in); break;
        case 4: y[i] = math::ln(in); break;
        case 5: y[i] = math::tanh(in); break;
        case 6: y[i] = math::round_to_byte(in); break;
    }
}
HOST_KERNEL(math_apply)

// Word j of the stream (seed, index i, step, purpose), (count, N).
extern "C" __global__ void math_random(u64 seed, u64 step, u32 purpose, u32 count, u32* words, u32 n) {
    u64 i = thread_number();
    if (i >= n) return;
    Rng rng(seed, (u32)i, step, purpose);
    for (u32 j = 0; j < count; ++j) {
        words[(u64)j * n + i] = rng.next_u32();
    }
}
HOST_KERNEL(math_random)
