// Draws actions from logits: the twin of `log_softmax` and `sample` in rl-agents/src/distributions.rs.
//
// log p_j = (logit_j - max) - ln(sum of exp(logit - max)), where masked logits count as -1e30. The action is the first whose
// cumulative probability exceeds a uniform number from the environment's policy stream at this step. One thread per row of logits
// (N, A), with sums in the order of the actions: bitwise deterministic, and the same bits as in Rust.

#include "vec_env.cuh"

extern "C" __global__ void sample_categorical(const f32* logits, const u8* masks, const Clock* clock, u64 t, u32* actions,
    f32* log_probs, u32 n, u32 a) {
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
    f32 drawn = uniform(word(clock->seed, (u32)i, clock->steps + t, PURPOSE_POLICY));
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
