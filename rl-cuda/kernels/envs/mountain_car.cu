// MountainCar: the twin of rl-envs/src/envs/mountain_car.rs, which has the task, the units and the source.

#include "mountain_car.cuh"

struct Params : Car {
    typedef u32 Action;

    __device__ bool allows(u32 action) const {
        return action < 3;
    }

    __device__ u32 draw_action(u32 word) const {
        return below(word, 3);
    }

    __device__ Step advance(State& state, u32 action) const {
        bool at_goal = drive(state, ((f32)action - 1.0f) * force);
        return {-1.0f, at_goal, state.elapsed >= max_steps};
    }
};

ENV_KERNELS(mountain_car, Lane<Params>)
