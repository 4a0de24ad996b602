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

// A thread's numbers of its row: index in the row, and what `load` returns for it. Some are loaded before they are used.
template <u32 TOGETHER, class Load, class Use>
__device__ __forceinline__ void each_number(u32 t, u32 n, Load load, Use use) {
#pragma unroll 1
    for (u32 first = t % LANES; first < n; first += TOGETHER * LANES) {
        decltype(load(first)) x[TOGETHER];
#pragma unroll
        for (u32 k = 0; k < TOGETHER; ++k) {
            u32 j = first + k * LANES;
            x[k] = load(j < n ? j : first);
        }
#pragma unroll
        for (u32 k = 0; k < TOGETHER; ++k) {
            if (first + k * LANES < n) {
                use(first + k * LANES, x[k]);
            }
        }
    }
}

// Row of a thread, and the length of its numbers: 0 behind the last row.
struct Row {
    u64 at;
    u32 row, len;

    __device__ Row(u32 t, u32 m, u32 n) {
        row = blockIdx.x * (THREADS / LANES) + t / LANES;
        at = (u64)row * n;
        len = row < m ? n : 0;
    }
};

// z (m, n) becomes activation((z - mean) / sqrt(variance + EPSILON) gains + offsets), in place. The normalized numbers go to `normed` (m, n)
// and the inverse standard deviations to `inv_stds` (m), unless they are null. `share` is 1 / n.
extern "C" __global__ void __launch_bounds__(THREADS) layer_norm_forward(
    f32* z, const f32* gains, const f32* offsets, f32* normed, f32* inv_stds, u32 m, u32 n, f32 share, u32 activation) {
    __shared__ f32 lanes[THREADS];
    Threads<Share, THREADS> threads;
    threads.each([&](u32 t, Share& own) {
        Row of(t, m, n);
        own.sum = own.product = 0.0f;
        each_number<4>(t, of.len, [&](u32 j) { return z[of.at + j]; }, [&](u32, f32 x) { own.sum += x; });
    });
    fold(threads, lanes, &Share::sum);
    threads.each([&](u32 t, Share& own) {
        Row of(t, m, n);
        f32 mean = own.sum * share;
        each_number<4>(t, of.len, [&](u32 j) { return z[of.at + j]; }, [&](u32, f32 x) {
            own.product = fmaf(x - mean, x - mean, own.product);
        });
    });
    fold(threads, lanes, &Share::product);
    threads.each([&](u32 t, Share& own) {
        Row of(t, m, n);
        f32 mean = own.sum * share, inverse = 1.0f / sqrtf(fmaf(own.product, share, EPSILON));
        each_number<1>(t, of.len, [&](u32 j) { return z[of.at + j]; }, [&](u32 j, f32 x) {
            x = (x - mean) * inverse;
            if (normed) {
                normed[of.at + j] = x;
                if (j == 0) {
                    inv_stds[of.row] = inverse;
                }
            }
            z[of.at + j] = activate(activation, fmaf(x, gains[j], offsets[j]));
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
        Row of(t, m, n);
        own.sum = own.product = 0.0f;
        each_number<4>(t, of.len, [&](u32 j) { return float2{dy[of.at + j] * gains[j], normed[of.at + j]}; }, [&](u32, float2 dx) {
            own.sum += dx.x;
            own.product = fmaf(dx.x, dx.y, own.product);
        });
    });
    fold(threads, lanes, &Share::sum);
    fold(threads, lanes, &Share::product);
    threads.each([&](u32 t, Share& own) {
        Row of(t, m, n);
        if (of.len == 0) return;
        f32 mean = own.sum * share, of_normed = own.product * share, inverse = inv_stds[of.row];
        each_number<4>(t, of.len, [&](u32 j) { return float2{dy[of.at + j], normed[of.at + j]}; }, [&](u32 j, float2 x) {
            dy[of.at + j] = inverse * fmaf(-x.y, of_normed, x.x * gains[j] - mean);
            normed[of.at + j] = x.x * x.y;
        });
    });
}
HOST_PHASES(layer_norm_backward)
