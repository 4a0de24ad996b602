// Normalization of observations and its running statistics: the twin of `Normalizer::apply` and `Moments::push` in
// rl-agents/src/network/normalize.rs.

#include "math.cuh"

// x = clamp((x - mean) precision, -10, 10), in place; obs is (N, D). One thread per number; bitwise deterministic, and the same
// bits as in Rust.
extern "C" __global__ void normalize_apply(f32* obs, const f32* mean, const f32* precision, u64 len, u32 d) {
    u64 i = thread_number();
    if (i >= len) return;
    u32 j = (u32)(i % d);
    obs[i] = math::clamp((obs[i] - mean[j]) * precision[j], -10.0f, 10.0f);
}
HOST_KERNEL(normalize_apply)

// Mean and sum of squared deviations (Welford, 1962), in f64, of the observations (T, N, D) of each slice of environments. Slice s
// is columns starts[s] to starts[s + 1]; the results are (S, D). One thread per slice and dimension, in the order of steps and
// environments, so that the bits are the same as in Rust. Numbers and divisions of some environments come before the chain of sums,
// which waits for neither.
extern "C" __global__ void normalize_moments(
    const f32* obs, const u32* starts, u32 n_slices, u32 n_steps, u32 n_envs, u32 d, f64* means, f64* m2s) {
    u64 i = thread_number();
    if (i >= (u64)n_slices * d) return;
    u64 s = i / d, j = i % d;
    const u32 AHEAD = 8;
    f64 mean = 0.0, m2 = 0.0;
    u64 count = 0;
    u32 end = starts[s + 1];
    for (u32 t = 0; t < n_steps; ++t) {
        for (u32 n = starts[s]; n < end; n += AHEAD) {
            f64 x[AHEAD], share[AHEAD];
            u32 len = least(AHEAD, end - n);
#pragma unroll
            for (u32 k = 0; k < AHEAD; ++k) {
                x[k] = (f64)obs[((u64)t * n_envs + least(n + k, end - 1)) * d + j];
                share[k] = 1.0 / (f64)(count + k + 1);
            }
#pragma unroll
            for (u32 k = 0; k < AHEAD; ++k) {
                if (k < len) {
                    f64 distance = x[k] - mean;
                    mean += distance * share[k];
                    m2 += distance * (x[k] - mean);
                }
            }
            count += len;
        }
    }
    means[i] = mean;
    m2s[i] = m2;
}
HOST_KERNEL(normalize_moments)
