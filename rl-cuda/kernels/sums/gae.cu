// Generalized advantage estimation: delta_t = r_t + gamma V(s_t+1) - V(s_t), A_t = delta_t + gamma lambda A_t+1.
//
// The twin of `gae` in rl-buffer/src/rollout/returns.rs, which has the paper and the meaning of the two flags. All arrays are (T, N). One
// thread per column, from the last step to the first, so that neighbouring threads read neighbouring numbers. Threads share
// nothing, so the result is bitwise deterministic.

#include "numbers.cuh"

extern "C" __global__ void gae(const f32* rewards, const u8* terminated, const u8* truncated, const f32* next_values,
    const f32* values, f32* advantages, u32 n_steps, u32 n_envs, f32 gamma, f32 lambda) {
    u64 n = thread_number();
    if (n >= n_envs) return;
    f32 next = 0.0f;
    // A running index: for t * n_envs, NVRTC 12.0 generates code that varies from run to run.
    u64 at = (u64)n_steps * n_envs + n;
    for (u32 t = n_steps; t-- > 0;) {
        at -= n_envs;
        bool has_future = terminated[at] == 0;
        bool goes_on = (terminated[at] | truncated[at]) == 0;
        f32 next_value = next_values[at]; // loaded unconditionally, so that no load waits for another
        f32 bootstrap = has_future ? next_value : 0.0f;
        f32 delta = rewards[at] + gamma * bootstrap - values[at];
        next = delta + (goes_on ? gamma * lambda * next : 0.0f);
        advantages[at] = next;
    }
}
HOST_KERNEL(gae)
