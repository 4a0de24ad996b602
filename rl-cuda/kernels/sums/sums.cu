// Sums in f64 over blocks of 256 numbers: the twin of rl-agents/src/kernel/sums.rs.
//
// A block, filled up with zeros, is folded: its second half is added to its first until one number is left. The blocks' sums are
// numbers to sum likewise, by further launches. A block of 128 threads folds 256 numbers in shared memory.

#include "phases.cuh"

const u32 NUMBERS = 256;
const u32 THREADS = NUMBERS / 2;

struct Nothing {};

template <class Term>
__device__ __forceinline__ void fold(f64* sums, Term term, f64* to) {
    Threads<Nothing, THREADS> threads;
    threads.phase([&](u32 t, Nothing&) { sums[t] = term(t) + term(t + THREADS); });
#pragma unroll 1
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        threads.phase([&](u32 t, Nothing&) {
            if (t < half) {
                sums[t] += sums[t + half];
            }
        });
    }
    threads.each([&](u32 t, Nothing&) {
        if (t == 0) {
            to[blockIdx.x] = sums[0];
        }
    });
}

// Sums of blocks of x, (n), or of x, (len), at n `rows`; a row past the end counts as the last one. With `sum`, of the squared distances from the mean sum / n; with `squared`
// alone, of the squares.
extern "C" __global__ void __launch_bounds__(THREADS)
sums_of(const f32* x, const u32* rows, u64 n, u64 len, const f64* sum, u32 squared, f64* to) {
    __shared__ f64 sums[THREADS];
    f64 from = sum ? *sum / (f64)n : 0.0;
    fold(sums, [&](u32 i) {
        u64 at = (u64)blockIdx.x * NUMBERS + i;
        if (at >= n) return 0.0;
        u64 row = rows ? rows[at] : at;
        f64 distance = (f64)x[row < len ? row : len - 1] - from;
        return squared ? distance * distance : distance;
    }, to);
}
HOST_PHASES(sums_of)

// Sums of blocks of sums.
extern "C" __global__ void __launch_bounds__(THREADS) sums_fold(const f64* x, u64 n, f64* to) {
    __shared__ f64 sums[THREADS];
    fold(sums, [&](u32 i) {
        u64 at = (u64)blockIdx.x * NUMBERS + i;
        return at < n ? x[at] : 0.0;
    }, to);
}
HOST_PHASES(sums_fold)
