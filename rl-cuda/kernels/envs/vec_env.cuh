// N environments that step together, each restarted in the step in which its episode ends: the twin of SyncVecEnv in
// rl-envs/src/batch/vec_env.rs.
//
// One thread per environment. A launch reads its state once, keeps it in registers for k steps and writes it once. States are
// columns of 32-bit words, (W, N), so that neighbouring threads read neighbouring words. Outputs have the layout of the caller's
// batches: obs and final_obs (k, N, D), rewards, terminated and truncated (k, N), masks and final_masks (k, N, A). Threads share
// nothing, so every output is bitwise deterministic.

#pragma once

#include "philox.cuh"
#include "numbers.cuh"

// Counters of the random numbers, in device memory, so that a replayed graph continues where the last replay stopped.
struct Clock {
    u64 seed;
    u64 steps; // lifetime steps at the beginning of a launch or of a graph
};

// A batch of environments.
struct Envs {
    u32* words; // (W, N)
    const Clock* clock;
    u32* fault; // lowest index of an environment whose action was out of range; all ones if there is none
    u32 n_envs;
    u32 first_env; // index of the first environment in its random numbers; 0 unless this is a slice of a larger batch
};

// Outputs of a batch's steps. Rows of observations are aligned to 16 bytes if their size is a multiple of 16.
struct StepBatch {
    void* obs;       // (k, N, D)
    f32* rewards;    // (k, N)
    u8* terminated;  // (k, N)
    u8* truncated;   // (k, N)
    void* final_obs; // (k, N, D), written only where either flag is set
    u8* masks;       // (k, N, A), or null without masks
    u8* final_masks; // (k, N, A), or null without masks
};

struct Step {
    f32 reward;
    bool terminated, truncated;
};

// Resets the environments and writes first observations.
template <class World>
__device__ inline void reset_envs(const typename World::Params& params, const Envs& envs, typename World::Obs* obs, u8* masks) {
    u64 i = thread_number();
    if (i >= envs.n_envs) return;
    World world(params, envs, i);
    Rng rng(envs.clock->seed, envs.first_env + (u32)i, 0, PURPOSE_RESET);
    world.reset(rng);
    world.observe(obs + i * world.obs_len());
    world.mask(masks, i);
    world.store(envs, i);
}

// Steps `t` to `t + k` after the clock. Row j of the arrays is at offset `j * stride` batches; with a stride of 0, each step
// overwrites the step before. With RANDOM, actions are drawn as in rl-envs/src/batch/random_actions.rs with the clock's seed, and
// written; otherwise they are read. An action out of range is recorded, and action 0 is taken instead.
template <class World, bool RANDOM>
__device__ inline void step_envs(const typename World::Params& params, const Envs& envs, typename World::Action* actions,
    const StepBatch& out, u64 t, u32 k, u32 stride) {
    u64 i = thread_number();
    if (i >= envs.n_envs) return;
    World world(params, envs, i);
    world.load(envs, i);
    u32 index = envs.first_env + (u32)i;
    u64 seed = envs.clock->seed, steps = envs.clock->steps + t, d = world.obs_len();
    Block words = {0, 0, 0, 0};
    for (u32 j = 0; j < k; ++j, ++steps) {
        u64 at = (u64)j * stride * envs.n_envs + i;
        typename World::Action action;
        if (RANDOM) {
            if (j == 0 || (steps & 3) == 0) {
                words = block(seed, index, steps >> 2, PURPOSE_RANDOM_ACTION, 0);
            }
            action = world.draw_action(words.word((u32)steps & 3));
            actions[at] = action;
        } else {
            action = actions[at];
            if (!world.allows(action)) {
                atomicMin(envs.fault, (u32)i);
                action = 0;
            }
        }
        Rng rng(seed, index, steps + 1, PURPOSE_STEP);
        Step outcome = world.step(action, rng);
        out.rewards[at] = outcome.reward;
        out.terminated[at] = outcome.terminated;
        out.truncated[at] = outcome.truncated;
        if (outcome.terminated | outcome.truncated) {
            world.observe((typename World::Obs*)out.final_obs + at * d);
            world.mask(out.final_masks, at);
            Rng restart(seed, index, steps + 1, PURPOSE_RESET);
            world.reset(restart);
        }
        world.observe((typename World::Obs*)out.obs + at * d);
        world.mask(out.masks, at);
    }
    world.store(envs, i);
}

// Kernels of an environment: NAME_reset, NAME_step with given actions, NAME_step_random with random actions.
#define ENV_KERNELS(NAME, World)                                                                                                  \
    extern "C" __global__ void NAME##_reset(World::Params params, Envs envs, World::Obs* obs, u8* masks) {                        \
        reset_envs<World>(params, envs, obs, masks);                                                                              \
    }                                                                                                                             \
    HOST_KERNEL(NAME##_reset)                                                                                                     \
    extern "C" __global__ void NAME##_step(                                                                                       \
        World::Params params, Envs envs, World::Action* actions, StepBatch out, u64 t, u32 k, u32 stride) {                       \
        step_envs<World, false>(params, envs, actions, out, t, k, stride);                                                        \
    }                                                                                                                             \
    HOST_KERNEL(NAME##_step)                                                                                                      \
    extern "C" __global__ void NAME##_step_random(                                                                                \
        World::Params params, Envs envs, World::Action* actions, StepBatch out, u64 t, u32 k, u32 stride) {                       \
        step_envs<World, true>(params, envs, actions, out, t, k, stride);                                                         \
    }                                                                                                                             \
    HOST_KERNEL(NAME##_step_random)
