// Breakout: the twin of rl-envs/src/envs/breakout.rs, which has the task, the planes of an observation and the source.
//
// The bricks are the lowest 30 bits of a word, row by row.

#include "vec_env.cuh"

struct Breakout {
    struct Params {
        f32 sticky;
        u32 max_steps;
    };

    typedef u8 Obs;
    typedef u32 Action;
    static const u32 W = 10;
    static const i32 SIZE = 10;
    static const u32 CELLS = SIZE * SIZE, BRICKS = (1u << 3 * SIZE) - 1;

    const Params& params;
    i32 ball_x, ball_y, pos, last_x, last_y;
    u32 ball_dir, bricks, strike, last_action, elapsed;

    __device__ Breakout(const Params& params, const Envs&, u64) : params(params) {}

    __device__ u64 obs_len() const {
        return 4 * CELLS;
    }

    __device__ void load(const Envs& envs, u64 i) {
        const u32* words = envs.words + i;
        u64 n = envs.n_envs;
        ball_x = (i32)words[0];
        ball_y = (i32)words[n];
        ball_dir = words[2 * n];
        pos = (i32)words[3 * n];
        bricks = words[4 * n];
        strike = words[5 * n];
        last_x = (i32)words[6 * n];
        last_y = (i32)words[7 * n];
        last_action = words[8 * n];
        elapsed = words[9 * n];
    }

    __device__ void store(const Envs& envs, u64 i) const {
        u32* words = envs.words + i;
        u64 n = envs.n_envs;
        words[0] = (u32)ball_x;
        words[n] = (u32)ball_y;
        words[2 * n] = ball_dir;
        words[3 * n] = (u32)pos;
        words[4 * n] = bricks;
        words[5 * n] = strike;
        words[6 * n] = (u32)last_x;
        words[7 * n] = (u32)last_y;
        words[8 * n] = last_action;
        words[9 * n] = elapsed;
    }

    __device__ bool allows(u32 action) const {
        return action < 3;
    }

    __device__ u32 draw_action(u32 word) const {
        return below(word, 3);
    }

    __device__ void reset(Rng& rng) {
        bool left = rng.below(2) == 0;
        ball_x = left ? 0 : 9;
        ball_dir = left ? 2 : 3;
        ball_y = 3;
        last_x = ball_x;
        last_y = 3;
        pos = 4;
        bricks = BRICKS;
        strike = last_action = elapsed = 0;
    }

    // Direction after a bounce: off a side wall (1 0 3 2), off a flat surface (3 2 1 0), off both (2 3 0 1).
    __device__ Step advance(u32 action) {
        Step outcome = {0.0f, false, false};
        last_action = action;
        elapsed += 1;
        if (action == 1) {
            pos = pos > 0 ? pos - 1 : 0;
        } else if (action == 2) {
            pos = pos < SIZE - 1 ? pos + 1 : SIZE - 1;
        }
        last_x = ball_x;
        last_y = ball_y;
        bool right = (ball_dir == 1) | (ball_dir == 2);
        bool down = ball_dir >= 2;
        i32 x = ball_x + (right ? 1 : -1);
        i32 y = ball_y + (down ? 1 : -1);
        if (x < 0 || x >= SIZE) {
            x = x < 0 ? 0 : SIZE - 1;
            ball_dir ^= 1;
        }
        bool hit = false;
        u32 brick = (y >= 1 && y < 4) ? 1u << ((y - 1) * SIZE + x) : 0;
        if (y < 0) {
            y = 0;
            ball_dir ^= 3;
        } else if (bricks & brick) {
            hit = true;
            if (!strike) {
                outcome.reward = 1.0f;
                bricks ^= brick;
                y = last_y;
                ball_dir ^= 3;
            }
        } else if (y == SIZE - 1) {
            if (bricks == 0) {
                bricks = BRICKS;
            }
            if (ball_x == pos) {
                y = last_y;
                ball_dir ^= 3;
            } else if (x == pos) {
                y = last_y;
                ball_dir ^= 2;
            } else {
                outcome.terminated = true;
            }
        }
        strike = hit;
        ball_x = x;
        ball_y = y;
        outcome.truncated = elapsed >= params.max_steps;
        return outcome;
    }

    __device__ Step step(u32 action, Rng& rng) {
        bool sticks = params.sticky > 0.0f && rng.uniform() < params.sticky;
        return advance(sticks ? last_action : action);
    }

    __device__ void observe(u8* obs) const {
        uint4* sixteen = (uint4*)obs;
        for (u32 j = 0; j < 4 * CELLS / 16; ++j) {
            sixteen[j] = {0, 0, 0, 0};
        }
        obs[9 * SIZE + pos] = 1;
        obs[CELLS + ball_y * SIZE + ball_x] = 1;
        obs[2 * CELLS + last_y * SIZE + last_x] = 1;
        for (u32 j = 0; j < 3 * SIZE; ++j) {
            obs[3 * CELLS + SIZE + j] = bricks >> j & 1;
        }
    }

    __device__ void mask(u8*, u64) const {}
};

ENV_KERNELS(breakout, Breakout)
