// State of a learner in device memory. An update enqueued once, or captured as a graph, reads everything that changes from here.

#pragma once

#include "numbers.cuh"

// Counters that outlive an update.
struct Counters {
    u64 seed;
    u64 epochs;  // orders of samples so far
    u64 taken;   // optimizer steps
    u64 skipped; // consecutive optimizer steps skipped last
    u64 changes; // of the parameters
    u64 stop;    // why the rest of the update is skipped
    u64 sample;  // first of the next minibatch in the order; with memory, its first column
};

enum Stop : u64 {
    STOP_NOT = 0,
    STOP_KL = 1,
    STOP_DIVERGED = 2,
};

// Settings of an update.
struct Settings {
    f32 learning_rate, max_norm, ent_coef, vf_coef;
    f32 target_kl; // 0: off
    f32 clip;      // range of the probability ratio around 1
    f32 reach;     // range of values around the old ones
    f32 beta1, beta2, epsilon; // of Adam
};

// Sums over the minibatches of an update, and the current optimizer step.
struct Totals {
    f32 policy, value, entropy, kl, clip_fraction; // sums of means over minibatches; kl over those of the latest epoch
    f32 minibatches, of_epoch;
    f32 approx_kl, loss;
    f32 last_policy, last_value, last_entropy; // parts of `loss`
    f32 norm, taken, skipped; // sum of the norms, number of steps
    f32 go;    // 1 if the current step is to be taken
    f32 scale; // of the gradient
    f32 rate, root_scale;
    f32 explained_variance;
};

const u32 TILE = 96; // samples

// Neighbouring samples.
struct Samples {
    u32 begin, end;
};

// Slices of a minibatch of n samples. `unit`: samples of a column, which a slice does not cut; 1 without memory. `block`: samples of a block
// of columns, which a tile does not leave; without memory the largest slice, rounded up to tiles.
struct Cut {
    u32 n, slices, unit, block;

    // First sample of a slice.
    __device__ u32 first(u32 slice) const {
        return (u32)((u64)slice * (n / unit) / slices) * unit;
    }

    // Samples of a tile of a slice. The last tiles may be empty.
    __device__ Samples tile(u32 slice, u32 index) const {
        u32 tiles = (block + TILE - 1) / TILE, stop = first(slice + 1);
        u64 at = first(slice) + (u64)(index / tiles) * block;
        u32 begin = (u32)(at < stop ? at : stop), end = stop - begin < block ? stop : begin + block;
        u32 past = index % tiles * TILE;
        begin = end - begin < past ? end : begin + past;
        return {begin, end - begin < TILE ? end : begin + TILE};
    }
};

// A minibatch and its tiles, in numbers per slice.
struct Minibatch {
    Cut cut;
    u32 tiles_of_slice;
};

// Sum of numbers, in order. Some are loaded before the first is added.
template <class T>
__device__ inline f64 sum_in_order(const T* numbers, u32 n) {
    constexpr u32 AT_ONCE = 16;
    f64 sum = 0.0;
    u32 i = 0;
#pragma unroll 1
    for (; i + AT_ONCE <= n; i += AT_ONCE) {
        T x[AT_ONCE];
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; ++k) {
            x[k] = numbers[i + k];
        }
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; ++k) {
            sum += (f64)x[k];
        }
    }
#pragma unroll 8
    for (; i < n; ++i) {
        sum += (f64)numbers[i];
    }
    return sum;
}

// Sums by a tree: neighbours, then neighbouring sums, until one is left; of a power of two up to 16.
template <class T>
struct Tree {
    T one, two, four, eight; // sums of as many, which wait for their neighbours
    T sum;

    __device__ Tree() : one(0), two(0), four(0), eight(0), sum(0) {}

    // Adds number `i`; after the last one, `sum` is the sum.
    __device__ void add(u32 i, T x) {
        sum = x;
        if ((i & 1) == 0) {
            one = sum;
            return;
        }
        sum = one + sum;
        if ((i & 2) == 0) {
            two = sum;
            return;
        }
        sum = two + sum;
        if ((i & 4) == 0) {
            four = sum;
            return;
        }
        sum = four + sum;
        if ((i & 8) == 0) {
            eight = sum;
            return;
        }
        sum = eight + sum;
    }
};

__device__ inline bool is_finite(f32 x) {
    return x - x == 0.0f;
}
