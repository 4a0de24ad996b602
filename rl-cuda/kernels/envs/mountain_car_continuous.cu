// MountainCarContinuous: the twin of rl-envs/src/envs/mountain_car_continuous.rs, which has the task, the units and the source.

#include "mountain_car.cuh"

struct Params : Car {
    typedef f32 Action;

    __device__ bool allows(f32 action) const {
        return (-1.0f <= action) & (action <= 1.0f);
    }

    __device__ f32 draw_action(u32 word) const {
        return between(word, -1.0f, 1.0f);
    }

    __device__ Step advance(State& state, f32 action) const {
        bool at_goal = drive(state, action * force);
        f32 reward = (at_goal ? 100.0f : 0.0f) - 0.1f * (action * action);
        return {reward, at_goal, state.elapsed >= max_steps};
    }
};

ENV_KERNELS(mountain_car_continuous, Lane<Params>)
