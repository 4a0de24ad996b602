// CartPole: the twin of rl-envs/src/envs/cartpole.rs, which has the task, the units and the source.

#include "lanes.cuh"

struct Params {
    f32 gravity, cart_mass, pole_mass, half_length, force, tau, x_limit, theta_limit;
    u32 max_steps;

    struct State {
        f32 x, x_dot, theta, theta_dot;
        u32 elapsed;
    };

    typedef u32 Action;
    static const u32 W = 5, D = 4;

    __device__ bool allows(u32 action) const {
        return action < 2;
    }

    __device__ u32 draw_action(u32 word) const {
        return below(word, 2);
    }

    __device__ State start(Rng& rng) const {
        f32 x = rng.uniform_in(-0.05f, 0.05f);
        f32 x_dot = rng.uniform_in(-0.05f, 0.05f);
        f32 theta = rng.uniform_in(-0.05f, 0.05f);
        f32 theta_dot = rng.uniform_in(-0.05f, 0.05f);
        return {x, x_dot, theta, theta_dot, 0};
    }

    __device__ Step advance(State& state, u32 action) const {
        State s = state;
        f32 push = action == 1 ? force : -force;
        f32 total_mass = cart_mass + pole_mass;
        f32 pole_moment = pole_mass * half_length;
        math::SinCos angle = math::sin_cos(s.theta);
        f32 sin = angle.sin, cos = angle.cos;
        f32 temp = (push + pole_moment * (s.theta_dot * s.theta_dot) * sin) / total_mass;
        f32 theta_acc = (gravity * sin - cos * temp) / (half_length * (4.0f / 3.0f - pole_mass * (cos * cos) / total_mass));
        f32 x_acc = temp - pole_moment * theta_acc * cos / total_mass;
        state.x = s.x + tau * s.x_dot;
        state.x_dot = s.x_dot + tau * x_acc;
        state.theta = s.theta + tau * s.theta_dot;
        state.theta_dot = s.theta_dot + tau * theta_acc;
        state.elapsed = s.elapsed + 1;
        bool terminated = (math::abs(state.x) > x_limit) | (math::abs(state.theta) > theta_limit);
        return {1.0f, terminated, state.elapsed >= max_steps};
    }

    __device__ void observe(const State& state, f32 (&obs)[D]) const {
        obs[0] = state.x;
        obs[1] = state.x_dot;
        obs[2] = state.theta;
        obs[3] = state.theta_dot;
    }

    __device__ static void pack(const State& state, u32 (&words)[W]) {
        words[0] = math::to_bits(state.x);
        words[1] = math::to_bits(state.x_dot);
        words[2] = math::to_bits(state.theta);
        words[3] = math::to_bits(state.theta_dot);
        words[4] = state.elapsed;
    }

    __device__ static State unpack(const u32 (&words)[W]) {
        return {math::from_bits(words[0]), math::from_bits(words[1]), math::from_bits(words[2]), math::from_bits(words[3]), words[4]};
    }
};

ENV_KERNELS(cartpole, Lane<Params>)
