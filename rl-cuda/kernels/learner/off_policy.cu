// Corrections for a rollout of an older policy: the twin of `Targets::off_policy` in rl-agents/src/learner/targets.rs, which has the papers.
//
// Columns are (T, N). One thread per sample, or per column in `off_policy_vtrace`; bitwise deterministic.

#include "math.cuh"
#include "numbers.cuh"

// Samples whose actions are judged, by the networks' outputs for them.
struct Judged {
    const f32* outputs; // (n, A): logits or means
    const u32* rows;    // (n) rows of the samples among the columns, or null: the first n; a row past the end counts as the last one
    u64 len;
};

// Log-probabilities at the start of an update, (T N), or null, and what is written.
struct Judgement {
    const f32* start;
    f32* to; // (n): log-probabilities; from those at the start, samples of the KL divergence
};

__device__ inline u64 row_of(const Judged& judged, u64 i) {
    u64 row = judged.rows ? judged.rows[i] : i;
    return row < judged.len ? row : judged.len - 1;
}

// Schulman's estimator of the divergence: r - 1 - ln r.
__device__ inline void write(const Judgement& judgement, u64 i, u64 row, f32 log_prob) {
    f32 log_ratio = judgement.start ? log_prob - judgement.start[row] : 0.0f;
    judgement.to[i] = judgement.start ? (math::exp(log_ratio) - 1.0f) - log_ratio : log_prob;
}

extern "C" __global__ void off_policy_categorical(
    Judged judged, Judgement judgement, const u32* actions, const u8* masks, u32 n, u32 a) {
    const f32 MASKED = -1e30f;
    u64 i = thread_number();
    if (i >= n) return;
    u64 row = row_of(judged, i);
    const f32* logits = judged.outputs + i * a;
    const u8* mask = masks ? masks + row * a : 0;
    u32 action = actions[row];
    f32 max = math::from_bits(0xFF800000u), chosen = 0.0f;
    for (u32 j = 0; j < a; ++j) {
        f32 logit = mask && mask[j] == 0 ? MASKED : logits[j];
        max = math::select(logit > max, logit, max);
        chosen = math::select(j == action, logit, chosen);
    }
    f32 sum = 0.0f;
    for (u32 j = 0; j < a; ++j) sum += math::exp((mask && mask[j] == 0 ? MASKED : logits[j]) - max);
    write(judgement, i, row, chosen - max - math::ln(sum));
}
HOST_KERNEL(off_policy_categorical)

// Sizes of independent categorical heads, (count); an action is a number in mixed radix whose last head is the fastest.
extern "C" __global__ void off_policy_heads(
    Judged judged, Judgement judgement, const u32* actions, const u32* sizes, u32 count, u32 n, u32 a) {
    u64 i = thread_number();
    if (i >= n) return;
    u64 row = row_of(judged, i);
    const f32* logits = judged.outputs + i * a;
    u32 radix = 1, first = 0;
    for (u32 h = 0; h < count; ++h) radix *= sizes[h];
    f32 log_prob = 0.0f;
    for (u32 h = 0; h < count; ++h) {
        u32 size = sizes[h], end = first + size;
        radix /= size;
        u32 chosen = first + actions[row] / radix % size;
        f32 max = math::from_bits(0xFF800000u);
        for (u32 j = first; j < end; ++j) max = math::select(logits[j] > max, logits[j], max);
        f32 sum = 0.0f;
        for (u32 j = first; j < end; ++j) sum += math::exp(logits[j] - max);
        log_prob += logits[chosen] - max - math::ln(sum);
        first = end;
    }
    write(judgement, i, row, log_prob);
}
HOST_KERNEL(off_policy_heads)

extern "C" __global__ void off_policy_gaussian(
    Judged judged, Judgement judgement, const f32* actions, const f32* log_std, u32 n, u32 a) {
    const f32 HALF_LN_2_PI = 0.9189385f;
    u64 i = thread_number();
    if (i >= n) return;
    u64 row = row_of(judged, i);
    f32 log_prob = 0.0f;
    for (u32 j = 0; j < a; ++j) {
        f32 z = (actions[row * a + j] - judged.outputs[i * a + j]) * math::exp(-log_std[j]);
        log_prob -= 0.5f * (z * z) + (log_std[j] + HALF_LN_2_PI);
    }
    write(judgement, i, row, log_prob);
}
HOST_KERNEL(off_policy_gaussian)

// Steps of a rollout, (T, N) each, and its policies' log-probabilities of the actions.
struct Judgements {
    const f32* rewards;
    const u8* terminated;
    const u8* truncated;
    const f32* next_values;
    const f32* values;
    const f32* log_probs;     // of the learning policy
    const f32* old_log_probs; // of the acting policy
};

// V-trace: the twin of `vtrace` in rl-buffer/src/rollout/returns.rs. `weights` are the clipped importance ratios.
extern "C" __global__ void off_policy_vtrace(
    Judgements steps, f32* advantages, f32* returns, f32* weights, u32 n_steps, u32 n_envs, f32 gamma, f32 lambda) {
    u64 n = thread_number();
    if (n >= n_envs) return;
    f32 next = 0.0f;
    u64 at = (u64)n_steps * n_envs + n; // a running index, as in `gae`
    for (u32 t = n_steps; t-- > 0;) {
        at -= n_envs;
        f32 ratio = math::exp(steps.log_probs[at] - steps.old_log_probs[at]);
        f32 weight = math::select(ratio < 1.0f, ratio, 1.0f);
        bool has_future = steps.terminated[at] == 0;
        bool goes_on = (steps.terminated[at] | steps.truncated[at]) == 0;
        f32 next_value = steps.next_values[at], value = steps.values[at];
        f32 bootstrap = has_future ? next_value : 0.0f;
        f32 delta = steps.rewards[at] + gamma * bootstrap - value;
        f32 advantage = delta + (goes_on ? gamma * lambda * next : 0.0f);
        next = weight * advantage;
        advantages[at] = advantage;
        returns[at] = value + next;
        weights[at] = weight;
    }
}
HOST_KERNEL(off_policy_vtrace)

// Advantages of the samples at `rows`, normalized by the sums of the minibatch unless these are null, then weighted: in
// `weighted`, (T N), at the samples' rows. A row past the end is skipped.
extern "C" __global__ void off_policy_weigh(const u32* rows, const f32* advantages, const f64* sum, const f64* squares,
    const f32* weights, f32* weighted, u32 n, u64 len) {
    u64 i = thread_number();
    if (i >= n || rows[i] >= len) return;
    u32 row = rows[i];
    f32 advantage = advantages[row];
    if (sum) {
        f64 mean = *sum / (f64)n, variance = *squares / ((f64)n - 1.0);
        advantage = (advantage - (f32)mean) * (f32)(1.0 / (sqrt(variance) + 1e-8));
    }
    weighted[row] = advantage * weights[row];
}
HOST_KERNEL(off_policy_weigh)
