// Snake: the twin of rl-envs/src/envs/snake.rs, which has the task, the planes of an observation and the source.
//
// A thread keeps the head, the lengths and the clock in registers. Registers cannot be indexed, so the board is in memory behind
// these words: for each cell the time at which the body leaves it, u16, as columns (rows * columns, N). Threads that look at every
// cell therefore read neighbouring numbers. rows * columns is a multiple of 4: cells are visited and observations written four at a
// time.

#include "vec_env.cuh"

struct Snake {
    struct Params {
        u32 rows, columns, max_steps;
    };

    typedef u8 Obs;
    typedef u32 Action;
    static const u32 W = 7;

    const Params& params;
    u16* vacated; // of this environment: cell c is vacated[c * n_envs]
    u32 n_envs, cells;
    u32 clock, length, row, column, fruit, elapsed, legal;

    __device__ Snake(const Params& params, const Envs& envs, u64 i)
        : params(params), vacated((u16*)(envs.words + (u64)W * envs.n_envs) + i), n_envs(envs.n_envs),
          cells(params.rows * params.columns) {}

    __device__ u64 obs_len() const {
        return 5 * cells;
    }

    __device__ void load(const Envs& envs, u64 i) {
        const u32* words = envs.words + i;
        u64 n = n_envs;
        clock = words[0];
        length = words[n];
        row = words[2 * n];
        column = words[3 * n];
        fruit = words[4 * n];
        elapsed = words[5 * n];
        legal = words[6 * n];
    }

    __device__ void store(const Envs& envs, u64 i) const {
        u32* words = envs.words + i;
        u64 n = n_envs;
        words[0] = clock;
        words[n] = length;
        words[2 * n] = row;
        words[3 * n] = column;
        words[4 * n] = fruit;
        words[5 * n] = elapsed;
        words[6 * n] = legal;
    }

    __device__ u16& leaves(u32 cell) const {
        return vacated[(u64)cell * n_envs];
    }

    __device__ bool allows(u32 action) const {
        return action < 4;
    }

    __device__ u32 draw_action(u32 word) const {
        return below(word, 4);
    }

    // Row and column of the next head; off the board, they wrap around to numbers that no board has.
    __device__ u32 row_ahead(u32 action) const {
        return row + (action == 2 ? 1u : action == 0 ? ~0u : 0u);
    }

    __device__ u32 column_ahead(u32 action) const {
        return column + (action == 1 ? 1u : action == 3 ? ~0u : 0u);
    }

    // Computes which neighbouring cells the head may enter, a bit per action.
    __device__ void look() {
        legal = 0;
#pragma unroll
        for (u32 action = 0; action < 4; ++action) {
            u32 r = row_ahead(action), c = column_ahead(action);
            if ((r < params.rows) & (c < params.columns)) {
                legal |= leaves(r * params.columns + c) <= clock + 1 ? 1u << action : 0u;
            }
        }
    }

    // Draws a free cell uniformly, by its rank among the free cells.
    __device__ u32 free_cell(Rng& rng) const {
        u32 rank = rng.below(cells - length);
        u32 seen = 0, cell = 0;
#pragma unroll 1
        for (u32 four = 0; four < cells / 4; ++four) {
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                seen += leaves(4 * four + j) <= clock ? 1 : 0;
                cell += seen <= rank ? 1 : 0;
            }
        }
        return cell;
    }

    __device__ void reset(Rng& rng) {
        u32 head = rng.below(cells);
#pragma unroll 1
        for (u32 four = 0; four < cells / 4; ++four) {
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                leaves(4 * four + j) = 0;
            }
        }
        leaves(head) = 1;
        clock = 0;
        length = 1;
        row = head / params.columns;
        column = head % params.columns;
        look();
        elapsed = 0;
        fruit = free_cell(rng);
    }

    __device__ Step step(u32 action, Rng& rng) {
        Step outcome = {0.0f, true, false};
        if (legal >> action & 1) {
            u32 r = row_ahead(action), c = column_ahead(action);
            row = r;
            column = c;
            u32 head = r * params.columns + c;
            bool ate = head == fruit;
            clock += ate ? 0 : 1;
            length += ate ? 1 : 0;
            leaves(head) = (u16)(clock + length);
            bool full = length == cells;
            if (ate & !full) {
                fruit = free_cell(rng);
            }
            look();
            outcome.reward = ate ? 1.0f : 0.0f;
            outcome.terminated = full | (legal == 0);
        }
        elapsed += 1;
        outcome.truncated = elapsed >= params.max_steps;
        return outcome;
    }

    __device__ void observe(u8* obs) const {
        f32 scale = 255.0f / (f32)length;
        u32* body = (u32*)obs;
        u32* head = (u32*)(obs + cells);
        u32* tail = (u32*)(obs + 2 * cells);
        u32* fruits = (u32*)(obs + 3 * cells);
        u32* order = (u32*)(obs + 4 * cells);
        u32 head_cell = row * params.columns + column;
#pragma unroll 1
        for (u32 four = 0; four < cells / 4; ++four) {
            u32 bodies = 0, tails = 0, orders = 0;
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                u32 until = leaves(4 * four + j);
                u32 ticks = until > clock ? until - clock : 0;
                bodies |= (ticks > 0 ? 255u : 0u) << (8 * j);
                tails |= (ticks == 1 ? 255u : 0u) << (8 * j);
                orders |= (u32)math::round_to_byte((f32)ticks * scale) << (8 * j);
            }
            body[four] = bodies;
            tail[four] = tails;
            order[four] = orders;
            head[four] = head_cell / 4 == four ? 255u << (8 * (head_cell & 3)) : 0;
            fruits[four] = fruit / 4 == four ? 255u << (8 * (fruit & 3)) : 0;
        }
    }

    __device__ void mask(u8* masks, u64 at) const {
        ((u32*)masks)[at] = (legal & 1) | (legal & 2) << 7 | (legal & 4) << 14 | (legal & 8) << 21;
    }
};

ENV_KERNELS(snake, Snake)
