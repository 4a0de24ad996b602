// Car and valley of mountain_car.cu and mountain_car_continuous.cu: the twin of `drive` and of the state in
// rl-envs/src/envs/mountain_car.rs.

#pragma once

#include "lanes.cuh"

struct Car {
    f32 min_position, max_position, max_speed, goal_position, goal_velocity, force, gravity;
    u32 max_steps;

    struct State {
        f32 position, velocity;
        u32 elapsed;
    };

    static const u32 W = 3, D = 2;

    __device__ State start(Rng& rng) const {
        return {rng.uniform_in(-0.6f, -0.4f), 0.0f, 0};
    }

    // Takes one step with this engine acceleration; returns true at the goal.
    __device__ bool drive(State& state, f32 push) const {
        f32 velocity = state.velocity + (push - gravity * math::sin_cos(3.0f * state.position).cos);
        velocity = math::clamp(velocity, -max_speed, max_speed);
        f32 position = math::clamp(state.position + velocity, min_position, max_position);
        bool stopped = (position == min_position) & (velocity < 0.0f);
        state = {position, stopped ? 0.0f : velocity, state.elapsed + 1};
        return (state.position >= goal_position) & (state.velocity >= goal_velocity);
    }

    __device__ void observe(const State& state, f32 (&obs)[D]) const {
        obs[0] = state.position;
        obs[1] = state.velocity;
    }

    __device__ static void pack(const State& state, u32 (&words)[W]) {
        words[0] = math::to_bits(state.position);
        words[1] = math::to_bits(state.velocity);
        words[2] = state.elapsed;
    }

    __device__ static State unpack(const u32 (&words)[W]) {
        return {math::from_bits(words[0]), math::from_bits(words[1]), words[2]};
    }
};
