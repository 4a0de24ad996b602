// Corridor: the twin of src/corridor.rs, which has the task.

#include "lanes.cuh"

struct Params {
    f32 length, stride, slope;
    u32 max_steps;

    struct State {
        f32 x;
        u32 elapsed;
    };

    typedef u32 Action;
    static const u32 W = 2, D = 1;

    __device__ bool allows(u32 action) const {
        return action < 2;
    }

    __device__ u32 draw_action(u32 word) const {
        return below(word, 2);
    }

    __device__ State start(Rng& rng) const {
        return {rng.uniform_in(0.0f, 1.0f), 0};
    }

    __device__ Step advance(State& state, u32 action) const {
        f32 pace = action == 1 ? stride : -stride;
        state.x = math::clamp(state.x + (pace - slope * state.x), 0.0f, length);
        state.elapsed += 1;
        bool arrived = state.x >= length;
        return {arrived ? 1.0f : 0.0f, arrived, state.elapsed >= max_steps};
    }

    __device__ void observe(const State& state, f32 (&obs)[D]) const {
        obs[0] = state.x;
    }

    __device__ static void pack(const State& state, u32 (&words)[W]) {
        words[0] = math::to_bits(state.x);
        words[1] = state.elapsed;
    }

    __device__ static State unpack(const u32 (&words)[W]) {
        return {math::from_bits(words[0]), words[1]};
    }
};

ENV_KERNELS(corridor, Lane<Params>)
