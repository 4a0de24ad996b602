// Acrobot: the twin of rl-envs/src/envs/acrobot.rs, which has the task, the units and the source.

#include "lanes.cuh"

struct Params {
    f32 gravity, length, mass, center, moment, torque, tau, max_speed1, max_speed2;
    u32 max_steps;

    struct State {
        f32 theta1, theta2, theta1_dot, theta2_dot;
        u32 elapsed;
    };

    // Angles and velocities, or their derivatives.
    struct Vector {
        f32 theta1, theta2, theta1_dot, theta2_dot;
    };

    typedef u32 Action;
    static const u32 W = 5, D = 6;

    __device__ bool allows(u32 action) const {
        return action < 3;
    }

    __device__ u32 draw_action(u32 word) const {
        return below(word, 3);
    }

    __device__ State start(Rng& rng) const {
        f32 theta1 = rng.uniform_in(-0.1f, 0.1f);
        f32 theta2 = rng.uniform_in(-0.1f, 0.1f);
        f32 theta1_dot = rng.uniform_in(-0.1f, 0.1f);
        f32 theta2_dot = rng.uniform_in(-0.1f, 0.1f);
        return {theta1, theta2, theta1_dot, theta2_dot, 0};
    }

    __device__ Vector derivative(const Vector& y, f32 torque) const {
        f32 theta1 = y.theta1, theta2 = y.theta2, theta1_dot = y.theta1_dot, theta2_dot = y.theta2_dot;
        math::SinCos second = math::sin_cos(theta2);
        f32 sin2 = second.sin, cos2 = second.cos;
        f32 coupling = mass * length * center;
        f32 centered = mass * center * center + moment;
        f32 d1 = 2.0f * centered + mass * length * length + 2.0f * coupling * cos2;
        f32 d2 = centered + coupling * cos2;
        f32 phi2 = mass * center * gravity * math::sin_cos(theta1 + theta2).sin;
        f32 phi1 = -coupling * (theta2_dot * theta2_dot) * sin2 - 2.0f * coupling * theta2_dot * theta1_dot * sin2
            + (mass * center + mass * length) * gravity * math::sin_cos(theta1).sin
            + phi2;
        f32 theta2_acc = (torque + d2 / d1 * phi1 - coupling * (theta1_dot * theta1_dot) * sin2 - phi2) / (centered - d2 * d2 / d1);
        f32 theta1_acc = -(d2 * theta2_acc + phi1) / d1;
        return {theta1_dot, theta2_dot, theta1_acc, theta2_acc};
    }

    // y + h k
    __device__ static Vector ahead(const Vector& y, f32 h, const Vector& k) {
        return {y.theta1 + h * k.theta1, y.theta2 + h * k.theta2, y.theta1_dot + h * k.theta1_dot, y.theta2_dot + h * k.theta2_dot};
    }

    __device__ static f32 slope(f32 k1, f32 k2, f32 k3, f32 k4) {
        return k1 + 2.0f * k2 + 2.0f * k3 + k4;
    }

    __device__ Step advance(State& state, u32 action) const {
        Vector y = {state.theta1, state.theta2, state.theta1_dot, state.theta2_dot};
        f32 applied = ((f32)action - 1.0f) * torque;
        Vector k1 = derivative(y, applied);
        Vector k2 = derivative(ahead(y, tau / 2.0f, k1), applied);
        Vector k3 = derivative(ahead(y, tau / 2.0f, k2), applied);
        Vector k4 = derivative(ahead(y, tau, k3), applied);
        Vector k = {
            slope(k1.theta1, k2.theta1, k3.theta1, k4.theta1),
            slope(k1.theta2, k2.theta2, k3.theta2, k4.theta2),
            slope(k1.theta1_dot, k2.theta1_dot, k3.theta1_dot, k4.theta1_dot),
            slope(k1.theta2_dot, k2.theta2_dot, k3.theta2_dot, k4.theta2_dot),
        };
        Vector next = ahead(y, tau / 6.0f, k);
        state.theta1 = math::wrap_angle(next.theta1);
        state.theta2 = math::wrap_angle(next.theta2);
        state.theta1_dot = math::clamp(next.theta1_dot, -max_speed1, max_speed1);
        state.theta2_dot = math::clamp(next.theta2_dot, -max_speed2, max_speed2);
        state.elapsed += 1;
        f32 height = -math::sin_cos(state.theta1).cos - math::sin_cos(state.theta2 + state.theta1).cos;
        bool terminated = height > 1.0f;
        return {terminated ? 0.0f : -1.0f, terminated, state.elapsed >= max_steps};
    }

    __device__ void observe(const State& state, f32 (&obs)[D]) const {
        math::SinCos first = math::sin_cos(state.theta1), second = math::sin_cos(state.theta2);
        obs[0] = math::clamp(first.cos, -1.0f, 1.0f);
        obs[1] = math::clamp(first.sin, -1.0f, 1.0f);
        obs[2] = math::clamp(second.cos, -1.0f, 1.0f);
        obs[3] = math::clamp(second.sin, -1.0f, 1.0f);
        obs[4] = state.theta1_dot;
        obs[5] = state.theta2_dot;
    }

    __device__ static void pack(const State& state, u32 (&words)[W]) {
        words[0] = math::to_bits(state.theta1);
        words[1] = math::to_bits(state.theta2);
        words[2] = math::to_bits(state.theta1_dot);
        words[3] = math::to_bits(state.theta2_dot);
        words[4] = state.elapsed;
    }

    __device__ static State unpack(const u32 (&words)[W]) {
        return {math::from_bits(words[0]), math::from_bits(words[1]), math::from_bits(words[2]), math::from_bits(words[3]), words[4]};
    }
};

ENV_KERNELS(acrobot, Lane<Params>)
