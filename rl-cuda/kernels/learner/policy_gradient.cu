// The policy gradient loss of A2C: the twin of `A2cLoss` in rl-agents/src/algorithms/a2c.rs, which has the paper.

#include "actor_critic.cuh"

struct A2cLoss {
    __device__ Derivatives derivatives(const Sample& sample, const Settings& settings) const {
        f32 error = sample.value - sample.wanted;
        Derivatives out;
        out.policy_loss = -sample.log_prob * sample.advantage;
        out.log_prob = -sample.advantage;
        out.value_loss = error * error;
        out.value = 2.0f * settings.vf_coef * error;
        out.kl = 0.0f;
        out.clipped = 0.0f;
        return out;
    }
};

extern "C" __global__ void policy_gradient_categorical(
    Columns columns, Moments moments, Heads heads, const Settings* settings, u32 n, u32 a) {
    categorical_loss(A2cLoss{}, columns, moments, heads, *settings, n, a);
}
HOST_KERNEL(policy_gradient_categorical)

extern "C" __global__ void policy_gradient_gaussian(
    Columns columns, Moments moments, Heads heads, Deviations deviations, const Settings* settings, u32 n, u32 a) {
    gaussian_loss(A2cLoss{}, columns, moments, heads, deviations, *settings, n, a);
}
HOST_KERNEL(policy_gradient_gaussian)

extern "C" __global__ void policy_gradient_heads(
    Columns columns, Moments moments, Heads heads, HeadSizes of_heads, const Settings* settings, u32 n, u32 a) {
    heads_loss(A2cLoss{}, columns, moments, heads, of_heads, *settings, n, a);
}
HOST_KERNEL(policy_gradient_heads)
