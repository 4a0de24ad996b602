// Draws actions: the twin of `log_softmax` and `sample`, and of `add_noise` and `standardize_columns`, in
// rl-agents/src/policy/distributions.rs.
//
// Categorical: log p_j = (logit_j - max) - ln(sum of exp(logit - max)), where masked logits count as -1e30. The action is the first whose
// cumulative probability exceeds a uniform number from the environment's policy stream at this step. One thread per row of logits
// (N, A), with sums in the order of the actions: bitwise deterministic, and the same bits as in Rust. Row i is environment
// `first_env` + i.

#include "vec_env.cuh"

extern "C" __global__ void sample_categorical(const f32* logits, const u8* masks, const Clock* clock, u64 t, u32* actions,
    f32* log_probs, u32 n, u32 a, u32 first_env) {
    const f32 MASKED = -1e30f;
    u64 i = thread_number();
    if (i >= n) return;
    const f32* row = logits + i * a;
    const u8* mask = masks ? masks + i * a : 0;
    f32 max = math::from_bits(0xFF800000u);
    for (u32 j = 0; j < a; ++j) {
        f32 logit = mask && mask[j] == 0 ? MASKED : row[j];
        max = math::select(logit > max, logit, max);
    }
    f32 sum = 0.0f;
    for (u32 j = 0; j < a; ++j) {
        f32 logit = mask && mask[j] == 0 ? MASKED : row[j];
        sum += math::exp(logit - max);
    }
    f32 log_sum = math::ln(sum);
    f32 drawn = uniform(word(clock->seed, first_env + (u32)i, clock->steps + t, PURPOSE_POLICY));
    f32 cumulative = 0.0f, last_log_prob = 0.0f;
    u32 last = 0;
    for (u32 j = 0; j < a; ++j) {
        f32 logit = mask && mask[j] == 0 ? MASKED : row[j];
        f32 log_prob = logit - max - log_sum;
        if (j == 0) {
            last_log_prob = log_prob;
        }
        f32 probability = math::exp(log_prob);
        if (probability > 0.0f) {
            last = j;
            last_log_prob = log_prob;
            cumulative += probability;
            if (cumulative > drawn) break;
        }
    }
    actions[i] = last;
    log_probs[i] = last_log_prob;
}
HOST_KERNEL(sample_categorical)

// Gaussian: action = mean + std normal, where number j & 3 of block j >> 2 of the environment's policy stream at this step is the
// normal. Environments take the action clipped to `bounds`, (2, A). One thread per row of means (N, A).
extern "C" __global__ void sample_gaussian(const f32* means, const f32* log_stds, const f32* bounds, const Clock* clock, u64 t,
    f32* actions, f32* clipped, f32* log_probs, u32 n, u32 a, u32 first_env) {
    const f32 HALF_LN_2_PI = 0.9189385f;
    u64 i = thread_number();
    if (i >= n) return;
    u64 step = clock->steps + t;
    f32 log_prob = 0.0f;
    Block words = {0, 0, 0, 0};
    for (u32 j = 0; j < a; ++j) {
        if ((j & 3) == 0) {
            words = block(clock->seed, first_env + (u32)i, step, PURPOSE_POLICY, j >> 2);
        }
        f32 drawn = normal(words, j);
        f32 mean = means[i * a + j], log_std = log_stds[j];
        f32 action = mean + math::exp(log_std) * drawn;
        f32 z = (action - mean) * math::exp(-log_std);
        log_prob -= 0.5f * (z * z) + (log_std + HALF_LN_2_PI);
        actions[i * a + j] = action;
        clipped[i * a + j] = math::clamp(action, bounds[j], bounds[a + j]);
    }
    log_probs[i] = log_prob;
}
HOST_KERNEL(sample_gaussian)
