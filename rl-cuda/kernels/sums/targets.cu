// Inputs and outputs of generalized advantage estimation: the twin of `Targets::new` in rl-agents/src/learner/targets.rs. Columns are (T, N).

#include "learner.cuh"
#include "math.cuh"
#include "phases.cuh"

// Values of the next observations, as if no episode ended: those of the next row, and after the last one `last_values` (N).
extern "C" __global__ void targets_next_values(const f32* values, const f32* last_values, f32* next_values, u64 len, u32 n_envs) {
    u64 i = thread_number();
    if (i >= len) return;
    next_values[i] = i + n_envs < len ? values[i + n_envs] : last_values[i + n_envs - len];
}
HOST_KERNEL(targets_next_values)

// Values of the final observations at the steps that ended an episode: to[at[i]] = values[i]. A step past the
// end is skipped.
extern "C" __global__ void targets_scatter(const f32* values, const u32* at, f32* to, u32 n, u64 len) {
    u64 i = thread_number();
    if (i >= n || at[i] >= len) return;
    to[at[i]] = values[i];
}
HOST_KERNEL(targets_scatter)

// Values of final observations (N), at a step of N environments where it ended an episode.
extern "C" __global__ void targets_ended(
    const f32* final_values, const u8* terminated, const u8* truncated, f32* next_values, u32 n) {
    u64 i = thread_number();
    if (i >= n || (terminated[i] | truncated[i]) == 0) return;
    next_values[i] = final_values[i];
}
HOST_KERNEL(targets_ended)

// Values of the next observations as in `targets_next_values`, except where a step ended an episode.
extern "C" __global__ void targets_continued(const f32* values, const f32* last_values, const u8* terminated, const u8* truncated,
    f32* next_values, u64 len, u32 n_envs) {
    u64 i = thread_number();
    if (i >= len || (terminated[i] | truncated[i]) != 0) return;
    next_values[i] = i + n_envs < len ? values[i + n_envs] : last_values[i + n_envs - len];
}
HOST_KERNEL(targets_continued)

extern "C" __global__ void targets_returns(const f32* advantages, const f32* values, f32* returns, u64 len) {
    u64 i = thread_number();
    if (i >= len) return;
    returns[i] = advantages[i] + values[i];
}
HOST_KERNEL(targets_returns)

const u32 THREADS = 256;
const u32 OF_THREAD = 64; // terms of a thread in a part
const u32 IN_FLIGHT = 16; // loads of a thread before the first is waited for
const u32 PART = THREADS * OF_THREAD;

struct Nothing {};

// Sums over parts of the returns: of them, of their squares, of what the values leave of them, and of its squares, (parts, 4). A block
// adds up a part in interleaved sums, of which it adds the second half to the first until one is left.
extern "C" __global__ void __launch_bounds__(THREADS)
targets_variance_parts(const f32* returns, const f32* values, u64 len, f64* parts) {
    __shared__ f64 sums[4][THREADS];
    Threads<Nothing, THREADS> threads;
    threads.phase([&](u32 t, Nothing&) {
        f64 sum = 0.0, squares = 0.0, rest = 0.0, rest_squares = 0.0;
#pragma unroll 1
        for (u32 first = 0; first < OF_THREAD; first += IN_FLIGHT) {
            f32 of_return[IN_FLIGHT], of_value[IN_FLIGHT];
#pragma unroll
            for (u32 step = 0; step < IN_FLIGHT; ++step) {
                u64 i = (u64)blockIdx.x * PART + (first + step) * THREADS + t;
                bool is_one = i < len;
                of_return[step] = is_one ? returns[i] : 0.0f; // adds nothing
                of_value[step] = is_one ? values[i] : 0.0f;
            }
#pragma unroll
            for (u32 step = 0; step < IN_FLIGHT; ++step) {
                f64 x = of_return[step], y = x - (f64)of_value[step];
                sum += x;
                squares += x * x;
                rest += y;
                rest_squares += y * y;
            }
        }
        sums[0][t] = sum;
        sums[1][t] = squares;
        sums[2][t] = rest;
        sums[3][t] = rest_squares;
    });
#pragma unroll 1
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        threads.phase([&](u32 t, Nothing&) {
            if (t >= half) return;
            sums[0][t] += sums[0][t + half];
            sums[1][t] += sums[1][t + half];
            sums[2][t] += sums[2][t + half];
            sums[3][t] += sums[3][t + half];
        });
    }
    threads.each([&](u32 t, Nothing&) {
        if (t < 4) {
            parts[(u64)blockIdx.x * 4 + t] = sums[t][0];
        }
    });
}
HOST_PHASES(targets_variance_parts)

// Share of the returns' variance that the values explain, from the sums of their parts.
extern "C" __global__ void targets_explained_variance(const f64* parts, u64 len, Totals* totals) {
    if (thread_number() > 0) return;
    f64 sums[4] = {};
#pragma unroll 1
    for (u64 part = 0; part * PART < len; ++part) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            sums[i] += parts[part * 4 + i];
        }
    }
    f64 n = (f64)len, mean = sums[0] / n, rest_mean = sums[2] / n;
    f64 all = sums[1] / n - mean * mean, rest = sums[3] / n - rest_mean * rest_mean;
    totals->explained_variance = all > 0.0 ? (f32)(1.0 - rest / all) : math::from_bits(0x7FC00000u);
}
HOST_KERNEL(targets_explained_variance)
