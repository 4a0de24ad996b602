// Asterix: the twin of rl-envs/src/envs/minatar/asterix.rs, which has the task, the planes of an observation and the source.
//
// What is in the rows 1 to 8 is a byte for each in two words, which shifts reach without an array.

#include "minatar.cuh"

struct Asterix {
    static const u32 WORDS = 10, PLANES = 4, N_ACTIONS = 5;
    static const u32 ROWS = 8, SPAWN = 10, MOVE = 5;
    static const i32 RAMP = 100;
    // A byte: the column, and what is there; 0 for an empty row.
    static const u32 COLUMN = 0x0F, RIGHT = 0x10, GOLD = 0x20, TAKEN = 0x80;

    u32 player_x, player_y;
    u32 upper, lower; // four rows each
    u32 spawn_speed, spawn_timer, move_speed, move_timer;
    i32 ramp_timer;
    u32 ramp_index;

    __device__ Asterix(const Envs&, u64) {}

    template <class Visit>
    __device__ void each_word(Visit& visit) {
        visit(player_x, player_y, upper, lower, spawn_speed, spawn_timer, move_speed, move_timer, ramp_timer, ramp_index);
    }

    __device__ void start(Rng&) {
        player_x = player_y = 5;
        upper = lower = 0;
        spawn_speed = spawn_timer = SPAWN;
        move_speed = move_timer = MOVE;
        ramp_timer = RAMP;
        ramp_index = 0;
    }

    __device__ u32 entity(u32 row) const {
        return (row < 4 ? upper : lower) >> 8 * (row & 3) & 0xFF;
    }

    // Changes the bits of a row's byte.
    __device__ void flip(u32 row, u32 bits) {
        bits <<= 8 * (row & 3);
        upper ^= row < 4 ? bits : 0;
        lower ^= row < 4 ? 0 : bits;
    }

    // Places an enemy or gold in a free row.
    __device__ void spawn(Rng& rng) {
        bool right = rng.below(2) == 0;
        bool gold = rng.below(3) == 0;
        u32 n_free = 0;
#pragma unroll
        for (u32 row = 0; row < ROWS; ++row) {
            n_free += entity(row) == 0 ? 1 : 0;
        }
        u32 nth = rng.below(n_free);
        u32 byte = TAKEN | (gold ? GOLD : 0) | (right ? RIGHT : SIZE - 1);
#pragma unroll
        for (u32 row = 0; row < ROWS; ++row) {
            bool free = entity(row) == 0;
            flip(row, free && nth == 0 ? byte : 0);
            nth -= free ? 1 : 0;
        }
    }

    // Lets the player meet what is in its cell.
    __device__ void meet(Step& outcome) {
        u32 row = player_y - 1, met = entity(row);
        if ((met & (TAKEN | COLUMN)) == (TAKEN | player_x)) {
            if (met & GOLD) {
                flip(row, met);
                outcome.reward += 1.0f;
            } else {
                outcome.terminated = true;
            }
        }
    }

    __device__ void move_entities() {
#pragma unroll
        for (u32 row = 0; row < ROWS; ++row) {
            u32 byte = entity(row), x = ((byte & COLUMN) + (byte & RIGHT ? 1 : COLUMN)) & COLUMN;
            u32 moved = x < SIZE ? (byte & ~COLUMN) | x : 0;
            flip(row, byte != 0 ? byte ^ moved : 0);
        }
    }

    // Makes the game harder where its time has come.
    __device__ void ramp() {
        if (spawn_speed == 1 && move_speed == 1) return;
        if (ramp_timer >= 0) {
            ramp_timer -= 1;
            return;
        }
        if (move_speed > 1 && (ramp_index & 1) == 1) {
            move_speed -= 1;
        }
        spawn_speed = spawn_speed > 1 ? spawn_speed - 1 : 1;
        ramp_index += 1;
        ramp_timer = RAMP;
    }

    __device__ Step advance(u32 action, Rng& rng) {
        Step outcome = {0.0f, false, false};
        if (spawn_timer == 0) {
            spawn(rng);
            spawn_timer = spawn_speed;
        }
        if (action == 1) {
            player_x = player_x > 0 ? player_x - 1 : 0;
        } else if (action == 2) {
            player_y = player_y > 1 ? player_y - 1 : 1;
        } else if (action == 3) {
            player_x = least(player_x + 1, SIZE - 1);
        } else if (action == 4) {
            player_y = least(player_y + 1, ROWS);
        }
        meet(outcome);
        if (move_timer == 0) {
            move_timer = move_speed;
            move_entities();
            meet(outcome);
        }
        spawn_timer -= 1;
        move_timer -= 1;
        ramp();
        return outcome;
    }

    __device__ void observe(u8* obs) const {
        clear_planes<PLANES>(obs);
        set_cell(obs, 0, player_x, player_y);
#pragma unroll
        for (u32 row = 0; row < ROWS; ++row) {
            u32 byte = entity(row);
            if (byte != 0) {
                i32 x = byte & COLUMN, back = byte & RIGHT ? x - 1 : x + 1;
                set_cell(obs, byte & GOLD ? 3 : 1, x, row + 1);
                if (back >= 0 && back < SIZE) {
                    set_cell(obs, 2, back, row + 1);
                }
            }
        }
    }
};

ENV_KERNELS(asterix, MinAtar<Asterix>)
