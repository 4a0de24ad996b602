// Space Invaders: the twin of rl-envs/src/envs/minatar/space_invaders.rs, which has the task, the planes of an observation and the source.
//
// A map is five words of two rows each, the upper one in bits 0 to 9, the lower one in bits 10 to 19.

#include "minatar.cuh"

struct SpaceInvaders {
    static const u32 PAIRS = 5;
    static const u32 WORDS = 3 * PAIRS + 6, PLANES = 6, N_ACTIONS = 4;
    static const u32 COOL_DOWN = 5, MOVE = 12, FASTEST = 6, SHOT = 10;
    static const u32 ROW = (1u << SIZE) - 1, BOTH = (1u << 2 * SIZE) - 1;
    // Aliens of a new block in two rows.
    static const u32 BLOCK = 0xFC | 0xFC << SIZE;

    u32 aliens[PAIRS], bullets[PAIRS], alien_bullets[PAIRS];
    u32 pos, moves_right, enemy_move_interval, alien_move_timer, alien_shot_timer, shot_timer;

    __device__ SpaceInvaders(const Envs&, u64) {}

    template <class Visit>
    __device__ void each_word(Visit& visit) {
        visit(aliens, bullets, alien_bullets, pos, moves_right, enemy_move_interval, alien_move_timer, alien_shot_timer, shot_timer);
    }

    __device__ void new_block() {
#pragma unroll
        for (u32 p = 0; p < PAIRS; ++p) {
            aliens[p] = p < 2 ? BLOCK : 0;
        }
    }

    __device__ void start(Rng&) {
        new_block();
#pragma unroll
        for (u32 p = 0; p < PAIRS; ++p) {
            bullets[p] = alien_bullets[p] = 0;
        }
        pos = 5;
        moves_right = 0;
        enemy_move_interval = alien_move_timer = MOVE;
        alien_shot_timer = SHOT;
        shot_timer = 0;
    }

    // Moves a map down by a row; `top` is its new first row.
    __device__ static void move_down(u32 (&map)[PAIRS], u32 top) {
#pragma unroll
        for (u32 p = PAIRS; p-- > 0;) {
            u32 above = p > 0 ? map[p - 1] >> SIZE : top;
            map[p] = (map[p] << SIZE & BOTH) | above;
        }
    }

    __device__ static void move_up(u32 (&map)[PAIRS]) {
#pragma unroll
        for (u32 p = 0; p < PAIRS; ++p) {
            u32 beneath = p + 1 < PAIRS ? map[p + 1] << SIZE & BOTH : 0;
            map[p] = map[p] >> SIZE | beneath;
        }
    }

    // True if the cannon is in one of these cells.
    __device__ bool is_at_cannon(const u32 (&map)[PAIRS]) const {
        return map[PAIRS - 1] >> (SIZE + pos) & 1;
    }

    // All columns in which there are aliens.
    __device__ u32 columns() const {
        u32 both = 0;
#pragma unroll
        for (u32 p = 0; p < PAIRS; ++p) {
            both |= aliens[p];
        }
        return (both | both >> SIZE) & ROW;
    }

    __device__ static u32 count_ones(u32 x) {
        x -= x >> 1 & 0x55555555;
        x = (x & 0x33333333) + (x >> 2 & 0x33333333);
        return ((x + (x >> 4)) & 0x0F0F0F0F) * 0x01010101 >> 24;
    }

    // Moves the aliens; returns true if that ends the game.
    __device__ bool move_aliens() {
        u32 wall = moves_right ? 1u << (SIZE - 1) : 1;
        if ((columns() & wall) == 0) {
#pragma unroll
            for (u32 p = 0; p < PAIRS; ++p) {
                aliens[p] = moves_right ? aliens[p] << 1 : aliens[p] >> 1;
            }
            return false;
        }
        moves_right ^= 1;
        u32 bottom = aliens[PAIRS - 1] >> SIZE;
        move_down(aliens, bottom);
        return bottom != 0;
    }

    // Lets the lowest alien of the nearest column fire, of two as near that of the left one.
    __device__ void alien_fires() {
        u32 all = columns(), column = 0;
#pragma unroll 1
        for (u32 d = 0; d < SIZE && column == 0; ++d) {
            u32 left = d <= pos ? 1u << (pos - d) : 0, right = 1u << (pos + d);
            column = all & left ? left : all & right;
        }
#pragma unroll
        for (u32 p = PAIRS; p-- > 0;) {
            u32 cells = aliens[p] & (column | column << SIZE);
            u32 lower = cells & ~ROW;
            u32 fires = lower ? lower : cells;
            alien_bullets[p] |= fires;
            column = fires ? 0 : column;
        }
    }

    __device__ Step advance(u32 action, Rng&) {
        Step outcome = {0.0f, false, false};
        if (action == 1) {
            pos = pos > 0 ? pos - 1 : 0;
        } else if (action == 2) {
            pos = least(pos + 1, SIZE - 1);
        } else if (action == 3 && shot_timer == 0) {
            bullets[PAIRS - 1] |= 1u << (SIZE + pos);
            shot_timer = COOL_DOWN;
        }
        move_up(bullets);
        move_down(alien_bullets, 0);
        outcome.terminated = is_at_cannon(alien_bullets) | is_at_cannon(aliens);
        if (alien_move_timer == 0) {
            u32 n_aliens = 0;
#pragma unroll
            for (u32 p = 0; p < PAIRS; ++p) {
                n_aliens += count_ones(aliens[p]);
            }
            alien_move_timer = least(enemy_move_interval, n_aliens);
            outcome.terminated |= move_aliens();
            outcome.terminated |= is_at_cannon(aliens);
        }
        if (alien_shot_timer == 0) {
            alien_shot_timer = SHOT;
            alien_fires();
        }
        u32 hits = 0, left = 0;
#pragma unroll
        for (u32 p = 0; p < PAIRS; ++p) {
            u32 hit = aliens[p] & bullets[p];
            hits += count_ones(hit);
            aliens[p] ^= hit;
            bullets[p] ^= hit;
            left |= aliens[p];
        }
        outcome.reward = (f32)hits;
        shot_timer -= shot_timer > 0 ? 1 : 0;
        alien_move_timer -= 1;
        alien_shot_timer -= 1;
        if (left == 0) {
            enemy_move_interval = enemy_move_interval > FASTEST ? enemy_move_interval - 1 : FASTEST;
            new_block();
        }
        return outcome;
    }

    // Four cells of a plane.
    __device__ u32 cells(u32 plane, u32 four) const {
        u32 p = four / 5, cannon = p == PAIRS - 1 ? 1u << (SIZE + pos) : 0;
        u32 pair = plane == 0 ? cannon : plane == 4 ? bullets[p] : plane == 5 ? alien_bullets[p] : aliens[p];
        bool is_empty = plane == (moves_right ? 2 : 3);
        return is_empty ? 0 : four_cells(pair >> 4 * (four % 5));
    }

    __device__ void observe(u8* obs) const {
        const u32 fours = CELLS / 4;
#pragma unroll
        for (u32 j = 0; j < PLANES * fours; j += 2) {
            ((uint2*)obs)[j / 2] = {cells(j / fours, j % fours), cells((j + 1) / fours, (j + 1) % fours)};
        }
    }
};

ENV_KERNELS(space_invaders, MinAtar<SpaceInvaders>)
