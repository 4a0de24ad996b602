// The clipped surrogate loss of PPO: the twin of `PpoLoss` in rl-agents/src/algorithms/ppo.rs, which has the paper and the meaning of the settings.

#include "actor_critic.cuh"

struct PpoLoss {
    __device__ Derivatives derivatives(const Sample& sample, const Settings& settings) const {
        Derivatives out;
        f32 low = 1.0f - settings.clip, high = 1.0f + settings.clip;
        f32 log_ratio = sample.log_prob - sample.old_log_prob;
        f32 ratio = math::exp(log_ratio);
        f32 unclipped = ratio * sample.advantage;
        f32 clipped = math::clamp(ratio, low, high) * sample.advantage;
        bool free = unclipped <= clipped;
        out.policy_loss = -math::select(free, unclipped, clipped);
        out.log_prob = math::select(free, -unclipped, 0.0f);
        out.kl = (ratio - 1.0f) - log_ratio;
        out.clipped = math::select(math::abs(ratio - 1.0f) > settings.clip, 1.0f, 0.0f);

        f32 moved = sample.value - sample.old_value;
        f32 kept = math::clamp(moved, -settings.reach, settings.reach);
        f32 error = math::select(moved == kept, sample.value, sample.old_value + kept) - sample.wanted;
        out.value_loss = error * error;
        out.value = math::select(moved == kept, 2.0f * settings.vf_coef * error, 0.0f);
        return out;
    }
};

extern "C" __global__ void surrogate_categorical(
    Columns columns, Moments moments, Heads heads, const Settings* settings, u32 n, u32 a) {
    categorical_loss(PpoLoss{}, columns, moments, heads, *settings, n, a);
}
HOST_KERNEL(surrogate_categorical)

extern "C" __global__ void surrogate_gaussian(
    Columns columns, Moments moments, Heads heads, Deviations deviations, const Settings* settings, u32 n, u32 a) {
    gaussian_loss(PpoLoss{}, columns, moments, heads, deviations, *settings, n, a);
}
HOST_KERNEL(surrogate_gaussian)

extern "C" __global__ void surrogate_heads(
    Columns columns, Moments moments, Heads heads, HeadSizes of_heads, const Settings* settings, u32 n, u32 a) {
    heads_loss(PpoLoss{}, columns, moments, heads, of_heads, *settings, n, a);
}
HOST_KERNEL(surrogate_heads)
