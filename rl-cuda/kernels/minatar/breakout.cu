// Breakout: the twin of rl-envs/src/envs/minatar/breakout.rs, which has the task, the planes of an observation and the source.
//
// The bricks are the lowest 30 bits of a word, row by row.

#include "minatar.cuh"

struct Breakout {
    static const u32 WORDS = 8, PLANES = 4, N_ACTIONS = 3;
    static const u32 BRICKS = (1u << 3 * SIZE) - 1;

    i32 ball_x, ball_y, pos, last_x, last_y;
    u32 ball_dir, bricks, strike;

    __device__ Breakout(const Envs&, u64) {}

    template <class Visit>
    __device__ void each_word(Visit& visit) {
        visit(ball_x, ball_y, ball_dir, pos, bricks, strike, last_x, last_y);
    }

    __device__ void start(Rng& rng) {
        bool left = rng.below(2) == 0;
        ball_x = left ? 0 : 9;
        ball_dir = left ? 2 : 3;
        ball_y = 3;
        last_x = ball_x;
        last_y = 3;
        pos = 4;
        bricks = BRICKS;
        strike = 0;
    }

    // Direction after a bounce: off a side wall (1 0 3 2), off a flat surface (3 2 1 0), off both (2 3 0 1).
    __device__ Step advance(u32 action, Rng&) {
        Step outcome = {0.0f, false, false};
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
        return outcome;
    }

    __device__ void observe(u8* obs) const {
        clear_planes<PLANES>(obs);
        set_cell(obs, 0, pos, SIZE - 1);
        set_cell(obs, 1, ball_x, ball_y);
        set_cell(obs, 2, last_x, last_y);
        // Four cells begin two cells before the first row of bricks.
        u32* four = (u32*)(obs + 3 * CELLS + SIZE - 2);
#pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            four[j] = four_cells(bricks << 2 >> 4 * j);
        }
    }
};

ENV_KERNELS(breakout, MinAtar<Breakout>)
