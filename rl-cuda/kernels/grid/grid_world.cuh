// Grid worlds: the twin of rl-envs/src/envs/grid_world.rs, which has the tasks, the planes of an observation and the source.
//
// A level is a struct with `SIZE`, `SEES_ALL` and `build`, as in Rust; its limit of steps is in `Params`. Cells are in memory behind
// the words, u16, as columns (SIZE * SIZE, N): registers cannot be indexed. The cells in view are in registers, where all loops over
// them are unrolled.

#pragma once

#include "vec_env.cuh"

static const u32 VIEW = 7, SEEN = VIEW * VIEW, PLANES = 4;

static const u32 EMPTY = 1, WALL = 2 | 5 << 4, DOOR = 4, KEY = 5, GOAL = 8 | 1 << 4;
static const u32 YELLOW = 4 << 4, CLOSED = 1 << 8, LOCKED = 2 << 8, N_COLORS = 6;

// Columns `left` to `right` and rows `top` to `bottom`, ends excluded.
struct Area {
    u32 left, right, top, bottom;
};

// Cells, and the agent among them.
struct Grid {
    u16* cells; // of this environment: cell c is cells[c * n_envs]
    u32 n_envs, size;
    u32 x, y, direction;

    __device__ u16& at(u32 column, u32 row) const {
        return cells[(u64)(row * size + column) * n_envs];
    }

    __device__ void wall_in(Area area) const {
#pragma unroll 1
        for (u32 column = area.left; column < area.right; ++column) {
            at(column, area.top) = WALL;
            at(column, area.bottom - 1) = WALL;
        }
#pragma unroll 1
        for (u32 row = area.top; row < area.bottom; ++row) {
            at(area.left, row) = WALL;
            at(area.right - 1, row) = WALL;
        }
    }

    // Counts the free cells of an area: empty, and not the agent's. Writes the place of the one with index `nth`, if there is one.
    __device__ u32 count_free(Area area, u32 nth, u32& column, u32& row) const {
        u32 seen = 0;
#pragma unroll 1
        for (u32 r = area.top; r < area.bottom; ++r) {
#pragma unroll 1
            for (u32 c = area.left; c < area.right; ++c) {
                if (at(c, r) == EMPTY && !(c == x && r == y)) {
                    if (seen == nth) {
                        column = c;
                        row = r;
                    }
                    seen += 1;
                }
            }
        }
        return seen;
    }

    __device__ void draw_free(Area area, Rng& rng, u32& column, u32& row) const {
        u32 n = count_free(area, ~0u, column, row);
        count_free(area, rng.below(n), column, row);
    }

    __device__ void place_agent(Area area, Rng& rng) {
        x = y = ~0u;
        u32 column = 0, row = 0;
        draw_free(area, rng, column, row);
        x = column;
        y = row;
        direction = rng.below(4);
    }
};

// True if the agent sees what is behind this cell. It may enter such a cell, too, unless a key is there.
__device__ inline bool is_transparent(u32 cell) {
    return cell != WALL && cell < CLOSED;
}

// Returns the visible cells of a row, a bit for each column, and replaces `lit` by the cells lit in the next row.
__device__ inline u32 see_row(u32& lit, u32 transparent) {
    const u32 ALL = (1 << VIEW) - 1;
    // To the right, light passes transparent cells and ends in the first other cell, as a carry does in a sum.
    u32 right = (lit | ((transparent + (lit & transparent)) ^ transparent)) & ALL;
    u32 left = right, path = transparent >> 1;
#pragma unroll
    for (u32 shift = 1; shift <= 4; shift *= 2) {
        left |= path & left >> shift;
        path &= path >> shift;
    }
    u32 from = left & transparent;
    lit = from | from >> 1 | from << 1;
    return left;
}

template <class Level>
struct GridWorld {
    struct Params {
        u32 max_steps;
    };

    typedef u8 Obs;
    typedef u32 Action;
    static const u32 W = 5, N_ACTIONS = 7;

    const Params& params;
    Grid grid;
    u32 carrying, elapsed;

    __device__ GridWorld(const Params& params, const Envs& envs, u64 i)
        : params(params), grid{(u16*)(envs.words + (u64)W * envs.n_envs) + i, envs.n_envs, Level::SIZE, 0, 0, 0} {}

    __device__ u64 obs_len() const {
        return PLANES * SEEN;
    }

    __device__ void load(const Envs& envs, u64 i) {
        const u32* words = envs.words + i;
        u64 n = envs.n_envs;
        grid.x = words[0];
        grid.y = words[n];
        grid.direction = words[2 * n];
        carrying = words[3 * n];
        elapsed = words[4 * n];
    }

    __device__ void store(const Envs& envs, u64 i) const {
        u32* words = envs.words + i;
        u64 n = envs.n_envs;
        words[0] = grid.x;
        words[n] = grid.y;
        words[2 * n] = grid.direction;
        words[3 * n] = carrying;
        words[4 * n] = elapsed;
    }

    __device__ bool allows(u32 action) const {
        return action < N_ACTIONS;
    }

    __device__ u32 draw_action(u32 word) const {
        return below(word, N_ACTIONS);
    }

    __device__ i32 dx() const {
        return grid.direction == 0 ? 1 : grid.direction == 2 ? -1 : 0;
    }

    __device__ i32 dy() const {
        return grid.direction == 1 ? 1 : grid.direction == 3 ? -1 : 0;
    }

    __device__ void reset(Rng& rng) {
#pragma unroll 1
        for (u32 row = 0; row < Level::SIZE; ++row) {
#pragma unroll 1
            for (u32 column = 0; column < Level::SIZE; ++column) {
                grid.at(column, row) = EMPTY;
            }
        }
        Level::build(grid, rng);
        carrying = elapsed = 0;
    }

    __device__ Step step(u32 action, Rng&) {
        Step outcome = {0.0f, false, false};
        elapsed += 1;
        u32 x = grid.x + (u32)dx(), y = grid.y + (u32)dy();
        bool is_inside = (x < Level::SIZE) & (y < Level::SIZE);
        u32 cell = is_inside ? grid.at(x, y) : WALL, before = cell;
        u32 object = cell & 15;
        if (action == 0) {
            grid.direction = (grid.direction + 3) & 3;
        } else if (action == 1) {
            grid.direction = (grid.direction + 1) & 3;
        } else if (action == 2) {
            if (is_transparent(cell) && object != KEY) {
                outcome.terminated = cell == GOAL;
                grid.x = x;
                grid.y = y;
            }
        } else if (action == 3) {
            if (object == KEY && carrying == 0) {
                carrying = cell;
                cell = EMPTY;
            }
        } else if (action == 4) {
            if (cell == EMPTY && carrying != 0) {
                cell = carrying;
                carrying = 0;
            }
        } else if (action == 5 && object == DOOR) {
            u32 color = cell & 0xf0;
            if (cell < CLOSED) {
                cell |= CLOSED;
            } else if (cell < LOCKED || carrying == (KEY | color)) {
                cell = DOOR | color;
            }
        }
        if (cell != before) grid.at(x, y) = (u16)cell;
        outcome.reward = outcome.terminated ? 1.0f - 0.9f * ((f32)elapsed / (f32)params.max_steps) : 0.0f;
        outcome.truncated = elapsed >= params.max_steps;
        return outcome;
    }

    // Offset of a column or row, by the distance between two cells. Outside the grid it is that of the nearest cell: a wall, or a cell
    // that a room's walls hide.
    __device__ u64 within(i32 at, u32 distance) const {
        const i32 LIMIT = Level::SIZE - 1;
        return (u64)(u32)(at < 0 ? 0 : at > LIMIT ? LIMIT : at) * distance;
    }

    // Rows of an observation have a multiple of 4 bytes, so that they are written in words.
    __device__ void observe(u8* obs) const {
        u64 depths[VIEW], sides[VIEW];
        bool along_columns = (grid.direction & 1) == 0;
        i32 forward = grid.direction < 2 ? 1 : -1, right = along_columns ? forward : -forward;
        u32 next_column = grid.n_envs, next_row = Level::SIZE * grid.n_envs;
#pragma unroll
        for (i32 j = 0; j < (i32)VIEW; ++j) {
            i32 depth = forward * ((i32)VIEW - 1 - j), side = right * (j - (i32)VIEW / 2);
            depths[j] = along_columns ? within((i32)grid.x + depth, next_column) : within((i32)grid.y + depth, next_row);
            sides[j] = along_columns ? within((i32)grid.y + side, next_row) : within((i32)grid.x + side, next_column);
        }
        u32 seen[SEEN];
        u32 lit = 1 << VIEW / 2;
#pragma unroll
        for (i32 row = VIEW - 1; row >= 0; --row) {
            u32 transparent = 0;
#pragma unroll
            for (i32 column = 0; column < (i32)VIEW; ++column) {
                u32 cell = grid.cells[depths[row] + sides[column]];
                seen[row * VIEW + column] = cell;
                transparent |= is_transparent(cell) ? 1u << column : 0;
            }
            if (row == VIEW - 1) seen[row * VIEW + VIEW / 2] = carrying == 0 ? EMPTY : carrying;
            u32 visible = Level::SEES_ALL ? ~0u : see_row(lit, transparent);
#pragma unroll
            for (u32 column = 0; column < VIEW; ++column) {
                seen[row * VIEW + column] = visible >> column & 1 ? seen[row * VIEW + column] : 0;
            }
        }
        u32* words = (u32*)obs;
#pragma unroll
        for (u32 j = 0; j < PLANES * SEEN / 4; ++j) {
            u32 word = 0;
#pragma unroll
            for (u32 k = 0; k < 4; ++k) {
                u32 plane = (4 * j + k) / SEEN, at = (4 * j + k) % SEEN;
                u32 byte = plane == 3 ? grid.direction : seen[at] >> 4 * plane & 15;
                word |= byte << 8 * k;
            }
            words[j] = word;
        }
    }

    __device__ void mask(u8*, u64) const {}
};
