// Pendulum: the twin of rl-envs/src/envs/pendulum.rs, which has the task, the units and the source.

#include "lanes.cuh"

struct Params {
    f32 gravity, mass, length, tau, max_speed, max_torque;
    u32 max_steps;

    struct State {
        f32 theta, theta_dot;
        u32 elapsed;
    };

    typedef f32 Action;
    static const u32 W = 3, D = 3;

    __device__ bool allows(f32 action) const {
        return (-max_torque <= action) & (action <= max_torque);
    }

    __device__ f32 draw_action(u32 word) const {
        return between(word, -max_torque, max_torque);
    }

    __device__ State start(Rng& rng) const {
        f32 theta = rng.uniform_in(-math::PI, math::PI);
        return {theta, rng.uniform_in(-1.0f, 1.0f), 0};
    }

    __device__ Step advance(State& state, f32 torque) const {
        f32 theta = state.theta, theta_dot = state.theta_dot;
        f32 angle = math::wrap_angle(theta);
        f32 reward = -(angle * angle + 0.1f * (theta_dot * theta_dot) + 0.001f * (torque * torque));
        f32 weight = 3.0f * gravity / (2.0f * length);
        f32 inertia = 3.0f / (mass * length * length);
        theta_dot = theta_dot + (weight * math::sin_cos(theta).sin + inertia * torque) * tau;
        theta_dot = math::clamp(theta_dot, -max_speed, max_speed);
        state = {theta + theta_dot * tau, theta_dot, state.elapsed + 1};
        return {reward, false, state.elapsed >= max_steps};
    }

    __device__ void observe(const State& state, f32 (&obs)[D]) const {
        math::SinCos angle = math::sin_cos(state.theta);
        obs[0] = math::clamp(angle.cos, -1.0f, 1.0f);
        obs[1] = math::clamp(angle.sin, -1.0f, 1.0f);
        obs[2] = state.theta_dot;
    }

    __device__ static void pack(const State& state, u32 (&words)[W]) {
        words[0] = math::to_bits(state.theta);
        words[1] = math::to_bits(state.theta_dot);
        words[2] = state.elapsed;
    }

    __device__ static State unpack(const u32 (&words)[W]) {
        return {math::from_bits(words[0]), math::from_bits(words[1]), words[2]};
    }
};

ENV_KERNELS(pendulum, Lane<Params>)
