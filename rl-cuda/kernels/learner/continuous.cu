// Actors of continuous actions and their critics: the twin of `squash` and `write_gradient` in rl-agents/src/policy/squashed.rs, of `choose`
// and `write_gradient` in deterministic.rs, of `gradient` in twin_q.rs, of `CriticLoss`, `join` and `draw_noise` in
// rl-agents/src/algorithms/critics.rs, and of `set_targets` and `learn_alpha` in sac.rs and td3.rs.
//
// Matrices (n, A) have a row for each transition. Actions are between -1 and 1, unless they come from the replay memory. One thread per
// transition or number, with sums in the order of the dimensions: bitwise deterministic. A second critic may be missing.

#include "learner.cuh"
#include "philox.cuh"

// Rows (n, D + A) that critics read: observations (n, D), then actions (n, A). With `bounds`, (A, 2), the middle and half of each
// dimension's range, actions are scaled to -1 to 1.
extern "C" __global__ void continuous_rows(
    const f32* obs, const f32* actions, const f32* bounds, f32* rows, u32 n, u32 d, u32 a) {
    u64 i = thread_number();
    u32 width = d + a;
    if (i >= (u64)n * width) return;
    u64 row = i / width;
    u32 j = (u32)(i % width);
    if (j < d) {
        rows[i] = obs[row * d + j];
        return;
    }
    f32 action = actions[row * a + (j - d)];
    if (bounds) {
        const f32* of = bounds + 2 * (j - d);
        action = math::clamp((action - of[0]) / of[1], -1.0f, 1.0f);
    }
    rows[i] = action;
}
HOST_KERNEL(continuous_rows)

// Stream of normal numbers (n, A) of an update: that of row i is `first` + i.
struct Noise {
    u64 seed;
    const u64* update; // number of the update
    u32 first;

    __device__ Block words(u64 i, u32 j) const {
        return block(seed, first + (u32)i, *update, PURPOSE_REPLAY, j >> 2);
    }
};

const f32 LOG_STD_MIN = -20.0f, LOG_STD_MAX = 2.0f;
const f32 EPSILON = 1e-6f;

// One dimension of a squashed action.
struct Squashed {
    f32 y, std, log_prob;
    bool is_free;

    __device__ Squashed(f32 mean, f32 log_std, f32 noise) {
        const f32 HALF_LN_2_PI = 0.9189385f;
        is_free = log_std >= LOG_STD_MIN && log_std <= LOG_STD_MAX;
        log_std = math::clamp(log_std, LOG_STD_MIN, LOG_STD_MAX);
        std = math::exp(log_std);
        y = math::tanh(mean + std * noise);
        log_prob = -0.5f * (noise * noise) - log_std - HALF_LN_2_PI - math::ln(1.0f - y * y + EPSILON);
    }
};

// Draws actions (n, A) of a squashed Gaussian policy, with the noise (n, A) that made them and their log-probabilities (n).
extern "C" __global__ void continuous_squash(
    const f32* means, const f32* log_stds, f32* noise, f32* actions, f32* log_probs, Noise stream, u32 n, u32 a) {
    u64 i = thread_number();
    if (i >= n) return;
    f32 log_prob = 0.0f;
    Block words = {0, 0, 0, 0};
    for (u32 j = 0; j < a; ++j) {
        if ((j & 3) == 0) {
            words = stream.words(i, j);
        }
        u64 at = i * a + j;
        f32 drawn = normal(words, j);
        Squashed squashed(means[at], log_stds[at], drawn);
        noise[at] = drawn;
        actions[at] = squashed.y;
        log_prob += squashed.log_prob;
    }
    log_probs[i] = log_prob;
}
HOST_KERNEL(continuous_squash)

// Gradient of `mean alpha log_prob - Q` with respect to means and logarithms of deviations, (n, A) each. That of Q with respect to the
// actions is in the last columns of `d_rows`, (n, D + A).
extern "C" __global__ void continuous_squash_gradient(const f32* means, const f32* log_stds, const f32* noise, const f32* d_rows,
    const f32* temperature, f32* d_means, f32* d_log_stds, u32 n, u32 d, u32 a) {
    u64 at = thread_number();
    if (at >= (u64)n * a) return;
    f32 drawn = noise[at], alpha = *temperature, share = 1.0f / (f32)n;
    Squashed squashed(means[at], log_stds[at], drawn);
    f32 slope = 1.0f - squashed.y * squashed.y;
    f32 d_action = d_rows[at / a * (d + a) + d + at % a];
    f32 d_sum = slope * (alpha * 2.0f * squashed.y / (slope + EPSILON) - d_action) * share;
    d_means[at] = d_sum;
    d_log_stds[at] = squashed.is_free ? d_sum * squashed.std * drawn - alpha * share : 0.0f;
}
HOST_KERNEL(continuous_squash_gradient)

// Actions (n, A) of a deterministic policy from its outputs (n, A), with clipped noise unless `std` is negative.
extern "C" __global__ void continuous_choose(
    const f32* outputs, f32* actions, Noise stream, f32 std, f32 clip, u32 n, u32 a) {
    u64 at = thread_number();
    if (at >= (u64)n * a) return;
    f32 action = math::tanh(outputs[at]);
    if (std >= 0.0f) {
        u32 j = (u32)(at % a);
        f32 added = math::clamp(std * normal(stream.words(at / a, j), j), -clip, clip);
        action = math::clamp(action + added, -1.0f, 1.0f);
    }
    actions[at] = action;
}
HOST_KERNEL(continuous_choose)

// Gradient of `-mean Q` with respect to the outputs (n, A) of a deterministic policy.
extern "C" __global__ void continuous_choose_gradient(
    const f32* outputs, const f32* d_rows, f32* d_outputs, u32 n, u32 d, u32 a) {
    u64 at = thread_number();
    if (at >= (u64)n * a) return;
    f32 y = math::tanh(outputs[at]);
    d_outputs[at] = -(1.0f - y * y) * d_rows[at / a * (d + a) + d + at % a] * (1.0f / (f32)n);
}
HOST_KERNEL(continuous_choose_gradient)

// The smaller of two numbers, or the one that is a number.
__device__ inline f32 least(f32 x, f32 y) {
    return y < x || x != x ? y : x;
}

// Targets (n): reward + discount (least Q - alpha log_prob). Without log-probabilities alpha is 0; it is exp(log_alpha) if it is learnt,
// else `temperature`.
extern "C" __global__ void continuous_targets(const f32* q1, const f32* q2, const f32* log_probs, const f32* log_alpha,
    const f32* temperature, const f32* rewards, const f32* discounts, f32* targets, u32 n) {
    u64 i = thread_number();
    if (i >= n) return;
    f32 q = q2 ? least(q1[i], q2[i]) : q1[i];
    if (log_probs) {
        q -= (log_alpha ? math::exp(*log_alpha) : *temperature) * log_probs[i];
    }
    targets[i] = rewards[i] + discounts[i] * q;
}
HOST_KERNEL(continuous_targets)

// Squared errors of critics: the gradients of their values (n), the mean distance from the targets (n), and two terms (2, n): the weighted
// loss, and Q of the first critic.
extern "C" __global__ void continuous_loss(const f32* q1, const f32* q2, const f32* targets, const f32* weights, f32 scale, f32* d_q1,
    f32* d_q2, f32* errors, f32* terms, u32 n) {
    u64 i = thread_number();
    if (i >= n) return;
    f32 share = 1.0f / (f32)n, slope = 2.0f * scale, weight = weights[i];
    f32 error = q1[i] - targets[i];
    f32 squares = error * error, distances = math::abs(error);
    d_q1[i] = slope * error * weight * share;
    if (q2) {
        error = q2[i] - targets[i];
        squares += error * error;
        distances += math::abs(error);
        d_q2[i] = slope * error * weight * share;
    }
    errors[i] = distances / (q2 ? 2.0f : 1.0f);
    terms[i] = scale * weight * squares;
    terms[n + i] = q1[i];
}
HOST_KERNEL(continuous_loss)

// Chooses the value that an actor raises, of the first critic or of the lesser: its gradient with respect to the critics' values (n), and
// two terms (2, n): the loss `alpha log_prob - Q`, and Q. Without log-probabilities alpha is 0.
extern "C" __global__ void continuous_value(const f32* q1, const f32* q2, const f32* log_probs, const f32* temperature, u32 first,
    f32* d_q1, f32* d_q2, f32* terms, u32 n) {
    u64 i = thread_number();
    if (i >= n) return;
    bool is_first = first || !q2 || q1[i] <= q2[i];
    f32 q = is_first ? q1[i] : q2[i];
    d_q1[i] = is_first ? 1.0f : 0.0f;
    if (q2) {
        d_q2[i] = is_first ? 0.0f : 1.0f;
    }
    terms[i] = log_probs ? *temperature * log_probs[i] - q : -q;
    terms[n + i] = q;
}
HOST_KERNEL(continuous_value)

// Takes the temperature exp(log_alpha) of this update, unless learning stopped, and computes the gradient with respect to log_alpha (1), its
// square and the loss, from the log-probabilities (n), which are added in order. Decides whether the optimizer steps.
extern "C" __global__ void continuous_temperature(const f32* log_probs, const f32* log_alpha, f32* temperature, f32 target_entropy,
    f32* gradient, f64* square, const Counters* critics, const Counters* actor, Totals* totals, u32 n) {
    if (thread_number() > 0) return;
    f64 sum = sum_in_order(log_probs, n);
    f32 excess = (f32)(sum / (f64)n) + target_entropy;
    f32 alpha = math::exp(*log_alpha);
    *gradient = -excess;
    *square = (f64)excess * (f64)excess;
    totals->go = 0.0f;
    if (critics->stop != STOP_NOT || actor->stop != STOP_NOT) return;
    *temperature = alpha;
    totals->loss = 0.0f;
    totals->minibatches += 1.0f;
    totals->policy += -*log_alpha * excess;
    totals->value += alpha;
    totals->go = 1.0f;
}
HOST_KERNEL(continuous_temperature)
