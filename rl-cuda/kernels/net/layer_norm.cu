// Layer normalization: the twin of rl-agents/src/network/layer_norm.rs.
//
// A row of a matrix (m, n) has 32 threads, and a block four rows. Lane j % 32 adds number j; the second half of the lanes is added to
// the first, until one is left.

#include "activation.cuh"
#include "phases.cuh"

const u32 LANES = 32;
const u32 THREADS = 4 * LANES;
const f32 EPSILON = 1e-5f;

// A thread's share of its row's sums; after `fold` the sum.
struct Share {
    f32 sum, product;
};

// Sums of each row's lanes.
__device__ __forceinline__ void fold(Threads<Share, THREADS>& threads, f32* lanes, f32 Share::*of) {
    threads.phase([&](u32 t, Share& share) { lanes[t] = share.*of; });
#pragma unroll 1
    for (u32 half = LANES / 2; half > 0; half /= 2) {
        threads.phase([&](u32 t, Share&) {
            if (t % LANES < half) {
                lanes[t] += lanes[t + half];
            }
        });
    }
    threads.phase([&](u32 t, Share& share) { share.*of = lanes[t / LANES * LANES]; });
}

// Numbers of a thread, some of which are loaded together: row, index within it, and within the matrix.
template <u32 TOGETHER, class Work>
__device__ __forceinline__ void each_number(u32 t, u32 m, u32 n, Work work) {
    u64 row = (u64)blockIdx.x * (THREADS / LANES) + t / LANES;
    if (row >= m) return;
#pragma unroll TOGETHER
    for (u32 j = t % LANES; j < n; j += LANES) {
        work(row, j, row * n + j);
    }
}

// z (m, n) becomes activation((z - mean) / sqrt(variance + EPSILON) gains + offsets), in place. The normalized numbers go to `normed` (m, n)
// and the inverse standard deviations to `inv_stds` (m), unless they are null. `share` is 1 / n.
extern "C" __global__ void __launch_bounds__(THREADS) layer_norm_forward(
    f32* z, const f32* gains, const f32* offsets, f32* normed, f32* inv_stds, u32 m, u32 n, f32 share, u32 activation) {
    __shared__ f32 lanes[THREADS];
    Threads<Share, THREADS> threads;
    threads.each([&](u32 t, Share& own) {
        own.sum = own.product = 0.0f;
        each_number<4>(t, m, n, [&](u64, u32, u64 i) { own.sum += z[i]; });
    });
    fold(threads, lanes, &Share::sum);
    threads.each([&](u32 t, Share& own) {
        f32 mean = own.sum * share;
        each_number<4>(t, m, n, [&](u64, u32, u64 i) {
            f32 distance = z[i] - mean;
            own.product = fmaf(distance, distance, own.product);
        });
    });
    fold(threads, lanes, &Share::product);
    threads.each([&](u32 t, Share& own) {
        f32 mean = own.sum * share, inverse = 1.0f / sqrtf(fmaf(own.product, share, EPSILON));
        each_number<1>(t, m, n, [&](u64 row, u32 j, u64 i) {
            f32 x = (z[i] - mean) * inverse;
            if (normed) {
                normed[i] = x;
                if (j == 0) {
                    inv_stds[row] = inverse;
                }
            }
            z[i] = activate(activation, fmaf(x, gains[j], offsets[j]));
        });
    });
}
HOST_PHASES(layer_norm_forward)

// Gradients dy (m, n) of the numbers after gains and offsets become those of the sums z, in place; `normed` becomes dy normed, the terms of
// the gradient of the gains.
extern "C" __global__ void __launch_bounds__(THREADS)
layer_norm_backward(f32* dy, const f32* gains, f32* normed, const f32* inv_stds, u32 m, u32 n, f32 share) {
    __shared__ f32 lanes[THREADS];
    Threads<Share, THREADS> threads;
    threads.each([&](u32 t, Share& own) {
        own.sum = own.product = 0.0f;
        each_number<4>(t, m, n, [&](u64, u32 j, u64 i) {
            f32 dx = dy[i] * gains[j];
            own.sum += dx;
            own.product = fmaf(dx, normed[i], own.product);
        });
    });
    fold(threads, lanes, &Share::sum);
    fold(threads, lanes, &Share::product);
    threads.each([&](u32 t, Share& own) {
        f32 mean = own.sum * share, of_normed = own.product * share;
        each_number<4>(t, m, n, [&](u64 row, u32 j, u64 i) {
            f32 x = normed[i], term = dy[i] * x;
            dy[i] = inv_stds[row] * fmaf(-x, of_normed, dy[i] * gains[j] - mean);
            normed[i] = term;
        });
    });
}
HOST_PHASES(layer_norm_backward)
