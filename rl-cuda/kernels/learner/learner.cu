// Decisions and steps of a learner: the twin of `Descent::step` in rl-agents/src/learner/descent.rs and `Optimizer::step_with` in optim.rs,
// and of the sums of an update's metrics.
//
// Deterministic: every number has one owner.

#include "math.cuh"
#include "learner.cuh"
#include "phases.cuh"

// Begins an update.
extern "C" __global__ void learner_begin(Counters* counters, Totals* totals) {
    if (thread_number() > 0) return;
    counters->stop = STOP_NOT;
    *totals = Totals{};
}
HOST_KERNEL(learner_begin)

// Begins an epoch.
extern "C" __global__ void learner_epoch(Counters* counters, Totals* totals) {
    if (thread_number() > 0) return;
    counters->sample = 0;
    if (counters->stop != STOP_NOT) return;
    counters->epochs += 1;
    totals->kl = 0.0f;
    totals->of_epoch = 0.0f;
}
HOST_KERNEL(learner_epoch)

const u32 PARTS = 5; // policy loss, value loss, entropy, KL divergence, clipped
const u32 LOSS_THREADS = 128;
struct Nothing {};

const u32 LANES = 8; // of a tile

// Numbers of a tile, one per sample.
struct Tile {
    const f32* x;
    u32 len;

    __device__ Tile(const f32* numbers, const Minibatch& minibatch, u32 index) {
        Samples samples = minibatch.cut.tile(index / minibatch.tiles_of_slice, index % minibatch.tiles_of_slice);
        len = samples.end - samples.begin;
        x = numbers + samples.begin;
    }
};

// Sums of the tiles of a minibatch, (parts, slices, tiles of a slice), from one number per sample: terms (parts, n). The twin of `total` in
// rl-agents/src/learner/batch.rs: a tile is summed in f32 in eight interleaved parts, then the parts in order, then what is left of the
// tile. Eight threads per tile.
extern "C" __global__ void __launch_bounds__(LOSS_THREADS)
learner_tiles(const f32* terms, f64* tiles, Minibatch minibatch, u32 parts) {
    __shared__ f32 sums[LOSS_THREADS];
    Threads<Nothing, LOSS_THREADS> threads;
    u32 all = minibatch.cut.slices * minibatch.tiles_of_slice, first = blockIdx.x * (LOSS_THREADS / LANES);
    auto tile_of = [&](u32 i) { return Tile(terms + (u64)(i / all) * minibatch.cut.n, minibatch, i % all); };
    threads.phase([&](u32 t, Nothing&) {
        if (first + t / LANES >= parts * all) return;
        Tile tile = tile_of(first + t / LANES);
        f32 sum = 0.0f;
#pragma unroll
        for (u32 at = 0; at < TILE; at += LANES) {
            if (at + LANES <= tile.len) {
                sum += tile.x[at + t % LANES];
            }
        }
        sums[t] = sum;
    });
    threads.each([&](u32 t, Nothing&) {
        if (t % LANES > 0 || first + t / LANES >= parts * all) return;
        Tile tile = tile_of(first + t / LANES);
        f32 sum = sums[t], rest = 0.0f;
        for (u32 lane = 1; lane < LANES; ++lane) {
            sum += sums[t + lane];
        }
        for (u32 at = tile.len / LANES * LANES; at < tile.len; ++at) {
            rest += tile.x[at];
        }
        tiles[first + t / LANES] = (f64)(sum + rest);
    });
}
HOST_PHASES(learner_tiles)

const u32 SLICES = 16; // at most

// Parts of the loss as means over a minibatch, from the sums of its tiles, (5, slices, tiles of a slice), which are added in order.
// Ends the update where the KL divergence is beyond `target_kl`.
extern "C" __global__ void __launch_bounds__(LOSS_THREADS)
learner_loss(const f64* tiles, Minibatch minibatch, const Settings* settings, Counters* counters, Totals* totals) {
    __shared__ f64 of_slices[PARTS * SLICES];
    __shared__ f32 parts[PARTS];
    Threads<Nothing, LOSS_THREADS> threads;
    threads.phase([&](u32 t, Nothing&) {
        if (t < PARTS * minibatch.cut.slices) {
            of_slices[t] = sum_in_order(tiles + (u64)t * minibatch.tiles_of_slice, minibatch.tiles_of_slice);
        }
    });
    threads.phase([&](u32 t, Nothing&) {
        if (t >= PARTS) return;
        f64 sum = 0.0;
        for (u32 slice = 0; slice < minibatch.cut.slices; ++slice) {
            sum += of_slices[t * minibatch.cut.slices + slice];
        }
        parts[t] = (f32)(sum / (f64)minibatch.cut.n);
    });
    threads.each([&](u32 t, Nothing&) {
        if (t > 0) return;
        totals->go = 0.0f;
        counters->sample += minibatch.cut.n / minibatch.cut.unit;
        if (counters->stop != STOP_NOT) return;
        f32 policy = parts[0], value = parts[1], entropy = -parts[2], kl = parts[3];
        totals->minibatches += 1.0f;
        totals->of_epoch += 1.0f;
        totals->policy += policy;
        totals->value += value;
        totals->entropy += entropy;
        totals->clip_fraction += parts[4];
        totals->kl += kl;
        totals->approx_kl = totals->kl / totals->of_epoch;
        totals->last_policy = policy;
        totals->last_value = value;
        totals->last_entropy = entropy;
        totals->loss = policy + settings->ent_coef * entropy + settings->vf_coef * value;
        if (settings->target_kl > 0.0f && kl > 1.5f * settings->target_kl) {
            counters->stop = STOP_KL;
            return;
        }
        totals->go = 1.0f;
    });
}
HOST_PHASES(learner_loss)

// Gradient of the logarithms of the standard deviations, (A), from the sums of tiles, (A, slices, tiles of a slice). Slices are added by
// a tree. One block per dimension.
extern "C" __global__ void __launch_bounds__(LOSS_THREADS)
learner_log_std(const f64* tiles, Minibatch minibatch, f32* gradient) {
    __shared__ f64 of_slices[SLICES];
    Threads<Nothing, LOSS_THREADS> threads;
    threads.phase([&](u32 t, Nothing&) {
        if (t < minibatch.cut.slices) {
            u64 first = ((u64)blockIdx.x * minibatch.cut.slices + t) * minibatch.tiles_of_slice;
            of_slices[t] = sum_in_order(tiles + first, minibatch.tiles_of_slice);
        }
    });
    threads.each([&](u32 t, Nothing&) {
        if (t > 0) return;
        Tree<f64> tree;
        for (u32 slice = 0; slice < minibatch.cut.slices; ++slice) {
            tree.add(slice, of_slices[slice]);
        }
        gradient[blockIdx.x] = (f32)tree.sum;
    });
}
HOST_PHASES(learner_log_std)

// x to the power n >= 0, multiplied as Rust's `powi` does.
__device__ inline f64 power(f64 x, u32 n) {
    f64 y = 1.0;
    while (true) {
        if (n & 1) {
            y *= x;
        }
        n >>= 1;
        if (n == 0) return y;
        x *= x;
    }
}

// Skips an optimizer step whose loss or gradient, with this sum of squares, is not finite; computes Adam's factors.
extern "C" __global__ void learner_step(const f64* squares, const Settings* settings, Counters* counters, Totals* totals) {
    if (thread_number() > 0 || totals->go == 0.0f) return;
    f32 norm = (f32)sqrt(*squares);
    bool finite_loss = is_finite(totals->loss);
    counters->changes += finite_loss ? 1 : 0;
    if (!finite_loss || !is_finite(norm)) {
        totals->go = 0.0f;
        totals->skipped += 1.0f;
        counters->skipped += 1;
        if (counters->skipped >= 3) {
            counters->stop = STOP_DIVERGED;
        }
        return;
    }
    counters->skipped = 0;
    counters->taken += 1;
    totals->norm += norm;
    totals->taken += 1.0f;
    totals->scale = norm > settings->max_norm ? settings->max_norm / (norm + 1e-6f) : 1.0f;
    u32 n = counters->taken < 0x7FFFFFFF ? (u32)counters->taken : 0x7FFFFFFF;
    f64 correction1 = 1.0 - power((f64)settings->beta1, n);
    f64 correction2 = 1.0 - power((f64)settings->beta2, n);
    totals->rate = (f32)((f64)settings->learning_rate / correction1);
    totals->root_scale = (f32)(1.0 / sqrt(correction2));
}
HOST_KERNEL(learner_step)

// A moment, or 0 if it is below 2^-100: subnormal numbers are slow on some of the processors with which this keeps equal bits.
__device__ inline f32 settled(f32 moment) {
    return math::select(math::abs(moment) < 7.888609e-31f, 0.0f, moment);
}

// Adam (Kingma and Ba, 2015), unless the step is skipped. One thread per parameter.
extern "C" __global__ void learner_adam(
    const f32* gradient, f32* params, f32* m, f32* v, const Settings* settings, const Totals* totals, u64 len) {
    u64 i = thread_number();
    if (i >= len || totals->go == 0.0f) return;
    f32 g = gradient[i] * totals->scale;
    f32 first = settled(settings->beta1 * m[i] + (1.0f - settings->beta1) * g);
    f32 second = settled(settings->beta2 * v[i] + (1.0f - settings->beta2) * (g * g));
    m[i] = first;
    v[i] = second;
    params[i] -= totals->rate * first / (sqrtf(second) * totals->root_scale + settings->epsilon);
}
HOST_KERNEL(learner_adam)

// RMSprop (Tieleman and Hinton, 2012), not centred, unless the step is skipped; beta2 is the decay. One thread per parameter.
extern "C" __global__ void learner_rms_prop(
    const f32* gradient, f32* params, f32* v, const Settings* settings, const Totals* totals, u64 len) {
    u64 i = thread_number();
    if (i >= len || totals->go == 0.0f) return;
    f32 g = gradient[i] * totals->scale;
    f32 second = settled(settings->beta2 * v[i] + (1.0f - settings->beta2) * (g * g));
    v[i] = second;
    params[i] -= settings->learning_rate * g / (sqrtf(second) + settings->epsilon);
}
HOST_KERNEL(learner_rms_prop)
