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
    u64 sample;  // first of the next minibatch in the order
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

// Slices of a minibatch, and its tiles, in numbers per slice; the last tiles of a slice may be empty.
struct Minibatch {
    u32 n, slices, tiles_of_slice;
};

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
