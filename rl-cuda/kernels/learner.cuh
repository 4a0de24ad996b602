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

__device__ inline bool is_finite(f32 x) {
    return x - x == 0.0f;
}
