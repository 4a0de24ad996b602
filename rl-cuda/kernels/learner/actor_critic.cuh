// Loss of policy and value function, sample by sample: the twin of `ActorCriticLoss` in rl-agents/src/learner/batch.rs.
//
// The algorithm's `derivatives` turns a sample's numbers into its loss and the derivatives by log-probability and value. Here they
// become gradients of the networks' outputs. One thread per sample; bitwise deterministic.

#pragma once

#include "learner.cuh"
#include "math.cuh"

// Columns of the rollout, (T N), and the samples of the minibatch among them; a row past the end counts as the last one.
struct Columns {
    const u32* rows;      // (n)
    const void* actions;  // (T N) u32, or (T N, A) f32
    const u8* masks;      // (T N, A), or null
    const f32* log_probs; // of the acting policy
    const f32* advantages;
    const f32* values;
    const f32* returns;
    u64 len;
};

// Sums over the minibatch's advantages, from which they are normalized, or nulls.
struct Moments {
    const f64* sum;
    const f64* squares; // of the distances from the mean
};

// Outputs of the networks for the minibatch, and their gradients.
struct Heads {
    const f32* outputs; // (n, A): logits or means
    const f32* values;  // (n)
    f32* d_outputs;     // (n, A)
    f32* d_values;      // (n)
    f32* terms;         // (5, n): policy loss, value loss, entropy, KL divergence, clipped
};

struct Sample {
    f32 log_prob, old_log_prob, advantage, value, old_value, wanted;
};

struct Derivatives {
    f32 log_prob, value, policy_loss, value_loss, kl, clipped;
};

__device__ inline f32 normalized(f32 advantage, const Moments& moments, u32 n) {
    if (!moments.sum) return advantage;
    f64 mean = *moments.sum / (f64)n, variance = *moments.squares / ((f64)n - 1.0);
    return (advantage - (f32)mean) * (f32)(1.0 / (sqrt(variance) + 1e-8));
}

// Writes a sample's value gradient and the parts of its loss.
__device__ inline void store(const Heads& heads, const Derivatives& out, f32 weight, f32 entropy, u64 i, u64 n) {
    heads.d_values[i] = out.value * weight;
    heads.terms[i] = out.policy_loss;
    heads.terms[n + i] = out.value_loss;
    heads.terms[2 * n + i] = entropy;
    heads.terms[3 * n + i] = out.kl;
    heads.terms[4 * n + i] = out.clipped;
}

template <class Loss>
__device__ inline void categorical_loss(
    const Loss& loss, const Columns& columns, const Moments& moments, const Heads& heads, const Settings& settings, u32 n, u32 a) {
    const f32 MASKED = -1e30f;
    u64 i = thread_number();
    if (i >= n) return;
    u64 row = columns.rows[i] < columns.len ? columns.rows[i] : columns.len - 1;
    const f32* logits = heads.outputs + i * a;
    const u8* mask = columns.masks ? columns.masks + row * a : 0;
    f32* d = heads.d_outputs + i * a;
    f32 max = math::from_bits(0xFF800000u);
    for (u32 j = 0; j < a; ++j) {
        f32 logit = mask && mask[j] == 0 ? MASKED : logits[j];
        max = math::select(logit > max, logit, max);
    }
    f32 sum = 0.0f;
    for (u32 j = 0; j < a; ++j) {
        f32 logit = mask && mask[j] == 0 ? MASKED : logits[j];
        sum += math::exp(logit - max);
    }
    f32 log_sum = math::ln(sum);
    u32 action = ((const u32*)columns.actions)[row];
    f32 log_prob = 0.0f, entropy = 0.0f;
    for (u32 j = 0; j < a; ++j) {
        f32 logit = mask && mask[j] == 0 ? MASKED : logits[j];
        f32 of_action = logit - max - log_sum;
        d[j] = of_action;
        log_prob = math::select(j == action, of_action, log_prob);
        entropy -= math::exp(of_action) * of_action;
    }
    f32 advantage = normalized(columns.advantages[row], moments, n);
    Sample sample = {log_prob, columns.log_probs[row], advantage, heads.values[i], columns.values[row], columns.returns[row]};
    Derivatives out = loss.derivatives(sample, settings);
    f32 weight = 1.0f / (f32)n;
    for (u32 j = 0; j < a; ++j) {
        f32 of_action = d[j], p = math::exp(of_action);
        f32 d_output = weight * (settings.ent_coef * p * (of_action + entropy) - out.log_prob * p);
        d[j] = j == action ? d_output + weight * out.log_prob : d_output;
    }
    store(heads, out, weight, entropy, i, n);
}

// Sizes of independent categorical heads, (count).
//
// An action is a number in mixed radix whose last head is the fastest.
struct HeadSizes {
    const u32* sizes;
    u32 count;
};

template <class Loss>
__device__ inline void heads_loss(const Loss& loss, const Columns& columns, const Moments& moments, const Heads& heads,
    const HeadSizes& of_heads, const Settings& settings, u32 n, u32 a) {
    u64 i = thread_number();
    if (i >= n) return;
    u64 row = columns.rows[i] < columns.len ? columns.rows[i] : columns.len - 1;
    const f32* logits = heads.outputs + i * a;
    f32* d = heads.d_outputs + i * a;
    u32 action = ((const u32*)columns.actions)[row], all = 1;
    for (u32 h = 0; h < of_heads.count; ++h) all *= of_heads.sizes[h];
    f32 log_prob = 0.0f, entropy = 0.0f;
    u32 radix = all, first = 0;
    for (u32 h = 0; h < of_heads.count; ++h) {
        u32 size = of_heads.sizes[h], end = first + size;
        radix /= size;
        u32 chosen = first + action / radix % size;
        f32 max = math::from_bits(0xFF800000u);
        for (u32 j = first; j < end; ++j) max = math::select(logits[j] > max, logits[j], max);
        f32 sum = 0.0f;
        for (u32 j = first; j < end; ++j) sum += math::exp(logits[j] - max);
        f32 log_sum = math::ln(sum);
        f32 of_head = 0.0f;
        for (u32 j = first; j < end; ++j) {
            f32 of_action = logits[j] - max - log_sum;
            d[j] = of_action;
            of_head -= math::exp(of_action) * of_action;
        }
        log_prob += d[chosen];
        entropy += of_head;
        first = end;
    }
    f32 advantage = normalized(columns.advantages[row], moments, n);
    Sample sample = {log_prob, columns.log_probs[row], advantage, heads.values[i], columns.values[row], columns.returns[row]};
    Derivatives out = loss.derivatives(sample, settings);
    f32 weight = 1.0f / (f32)n;
    radix = all, first = 0;
    for (u32 h = 0; h < of_heads.count; ++h) {
        u32 size = of_heads.sizes[h], end = first + size;
        radix /= size;
        u32 chosen = first + action / radix % size;
        f32 of_head = 0.0f;
        for (u32 j = first; j < end; ++j) of_head -= math::exp(d[j]) * d[j];
        for (u32 j = first; j < end; ++j) {
            f32 of_action = d[j], p = math::exp(of_action);
            f32 d_output = weight * (settings.ent_coef * p * (of_action + of_head) - out.log_prob * p);
            d[j] = j == chosen ? d_output + weight * out.log_prob : d_output;
        }
        first = end;
    }
    store(heads, out, weight, entropy, i, n);
}

// Standard deviations of a Gaussian policy, (A), and one number per sample for their gradient.
struct Deviations {
    const f32* log_std;
    f32* terms; // (A, n)
};

template <class Loss>
__device__ inline void gaussian_loss(const Loss& loss, const Columns& columns, const Moments& moments, const Heads& heads,
    const Deviations& deviations, const Settings& settings, u32 n, u32 a) {
    const f32 HALF_LN_2_PI = 0.9189385f;
    u64 i = thread_number();
    if (i >= n) return;
    u64 row = columns.rows[i] < columns.len ? columns.rows[i] : columns.len - 1;
    const f32* means = heads.outputs + i * a;
    const f32* actions = (const f32*)columns.actions + row * a;
    f32* d = heads.d_outputs + i * a;
    f32 log_prob = 0.0f, entropy = 0.0f;
    for (u32 j = 0; j < a; ++j) {
        f32 log_std = deviations.log_std[j];
        f32 z = (actions[j] - means[j]) * math::exp(-log_std);
        d[j] = z;
        log_prob -= 0.5f * (z * z) + (log_std + HALF_LN_2_PI);
        entropy += log_std + (HALF_LN_2_PI + 0.5f);
    }
    f32 advantage = normalized(columns.advantages[row], moments, n);
    Sample sample = {log_prob, columns.log_probs[row], advantage, heads.values[i], columns.values[row], columns.returns[row]};
    Derivatives out = loss.derivatives(sample, settings);
    f32 weight = 1.0f / (f32)n;
    for (u32 j = 0; j < a; ++j) {
        f32 z = d[j];
        d[j] = weight * out.log_prob * z * math::exp(-deviations.log_std[j]);
        deviations.terms[(u64)j * n + i] = weight * (out.log_prob * (z * z - 1.0f) - settings.ent_coef);
    }
    store(heads, out, weight, entropy, i, n);
}
