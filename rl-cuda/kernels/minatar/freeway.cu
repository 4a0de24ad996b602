// Freeway: the twin of rl-envs/src/envs/minatar/freeway.rs, which has the task, the planes of an observation and the source.
//
// Numbers of the eight lanes are four bits each in a word, from row 1 on.

#include "minatar.cuh"

struct Freeway {
    static const u32 WORDS = 5, PLANES = 7, N_ACTIONS = 3;
    static const u32 LANES = 8, COLUMN = 4, BOTTOM = 9, COOL_DOWN = 3, SLOWEST = 5;
    // Bits of a speed: steps that a car waits between two moves, and whether it moves to the right.
    static const u32 WAITS = 7, RIGHT = 8;

    u32 pos, move_timer;
    u32 car_x, car_timer, car_speed;

    __device__ Freeway(const Envs&, u64) {}

    template <class Visit>
    __device__ void each_word(Visit& visit) {
        visit(pos, move_timer, car_x, car_timer, car_speed);
    }

    __device__ void draw_velocities(Rng& rng) {
        car_timer = car_speed = 0;
#pragma unroll 1
        for (u32 lane = 0; lane < LANES; ++lane) {
            u32 velocity = rng.below(2 * SLOWEST);
            bool right = velocity >= SLOWEST;
            u32 waits = right ? velocity - SLOWEST + 1 : SLOWEST - velocity;
            car_timer |= waits << 4 * lane;
            car_speed |= (waits | (right ? RIGHT : 0)) << 4 * lane;
        }
    }

    __device__ void start(Rng& rng) {
        pos = BOTTOM;
        move_timer = COOL_DOWN;
        car_x = 0;
        draw_velocities(rng);
    }

    // Column next to `x`, around the board.
    __device__ static u32 beside(u32 x, bool right) {
        return right ? (x == SIZE - 1 ? 0 : x + 1) : (x == 0 ? SIZE - 1 : x - 1);
    }

    __device__ Step advance(u32 action, Rng& rng) {
        Step outcome = {0.0f, false, false};
        if (action != 0 && move_timer == 0) {
            move_timer = COOL_DOWN;
            pos = action == 1 ? (pos > 0 ? pos - 1 : 0) : least(pos + 1, BOTTOM);
        }
        if (pos == 0) {
            outcome.reward = 1.0f;
            pos = BOTTOM;
            draw_velocities(rng);
        }
        u32 columns = 0, timers = 0;
#pragma unroll
        for (u32 lane = 0; lane < LANES; ++lane) {
            u32 x = car_x >> 4 * lane & 15, timer = car_timer >> 4 * lane & 15, speed = car_speed >> 4 * lane & 15;
            bool is_here = pos == lane + 1, is_hit = is_here && x == COLUMN;
            if (timer == 0) {
                timer = speed & WAITS;
                x = beside(x, (speed & RIGHT) != 0);
                is_hit |= is_here && x == COLUMN;
            } else {
                timer -= 1;
            }
            columns |= x << 4 * lane;
            timers |= timer << 4 * lane;
            if (is_hit) pos = BOTTOM;
        }
        car_x = columns;
        car_timer = timers;
        move_timer -= move_timer > 0 ? 1 : 0;
        return outcome;
    }

    __device__ void observe(u8* obs) const {
        clear_planes<PLANES>(obs);
        set_cell(obs, 0, COLUMN, pos);
#pragma unroll
        for (u32 lane = 0; lane < LANES; ++lane) {
            u32 x = car_x >> 4 * lane & 15, speed = car_speed >> 4 * lane & 15;
            set_cell(obs, 1, x, lane + 1);
            set_cell(obs, 1 + (speed & WAITS), beside(x, (speed & RIGHT) == 0), lane + 1);
        }
    }
};

ENV_KERNELS(freeway, MinAtar<Freeway>)
