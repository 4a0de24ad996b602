// Base of MinAtar's games: the twin of rl-envs/src/envs/minatar/mod.rs.
//
// A game is a struct that holds the state of an episode, with `start`, `advance` and `observe`, as in Rust. `each_word` passes its
// words to a visitor, in order; the last action and the steps of the episode follow them.

#pragma once

#include "vec_env.cuh"

static const i32 SIZE = 10;
static const u32 CELLS = SIZE * SIZE;

// Sets the cell of a plane.
__device__ inline void set_cell(u8* obs, u32 plane, i32 x, i32 y) {
    obs[plane * CELLS + y * SIZE + x] = 1;
}

// Four cells from the lowest four bits, a byte each: each factor moves one bit to the lowest bit of its byte.
__device__ inline u32 four_cells(u32 bits) {
    return ((bits & 15) * 0x00204081) & 0x01010101;
}

// Clears all planes, 16 bytes at a time: rows whose length is no multiple of that begin and end with up to three words.
template <u32 PLANES>
__device__ inline void clear_planes(u8* obs) {
    const u32 n = PLANES * CELLS / 4;
    u32* words = (u32*)obs;
    u32 j = 0;
    if constexpr (n % 4 != 0) {
#pragma unroll 1
        for (; ((u64)(words + j) & 15) != 0; ++j) {
            words[j] = 0;
        }
    }
    for (; j + 4 <= n; j += 4) {
        *(uint4*)(words + j) = {0, 0, 0, 0};
    }
    if constexpr (n % 4 != 0) {
#pragma unroll 1
        for (; j < n; ++j) {
            words[j] = 0;
        }
    }
}

// Visitor that loads or stores an environment's words.
template <bool STORES>
struct Words {
    u32* words;
    u64 n_envs;
    u64 visited;

    template <class... Xs>
    __device__ void operator()(Xs&... xs) {
        (word(xs), ...);
    }

    template <class X>
    __device__ void word(X& x) {
        u32& own = words[visited++ * n_envs];
        if constexpr (STORES) {
            own = (u32)x;
        } else {
            x = (X)own;
        }
    }

    template <u32 N>
    __device__ void word(u32 (&xs)[N]) {
#pragma unroll
        for (u32 j = 0; j < N; ++j) {
            word(xs[j]);
        }
    }
};

template <class G>
struct MinAtar {
    struct Params {
        f32 sticky;
        u32 max_steps;
    };

    typedef u8 Obs;
    typedef u32 Action;
    static const u32 W = G::WORDS + 2;

    const Params& params;
    G game;
    u32 last_action, elapsed;

    __device__ MinAtar(const Params& params, const Envs& envs, u64 i) : params(params), game(envs, i) {}

    __device__ u64 obs_len() const {
        return G::PLANES * CELLS;
    }

    template <bool STORES>
    __device__ void each_word(const Envs& envs, u64 i) {
        Words<STORES> visit = {envs.words + i, envs.n_envs, 0};
        game.each_word(visit);
        visit(last_action, elapsed);
    }

    __device__ void load(const Envs& envs, u64 i) {
        each_word<false>(envs, i);
    }

    __device__ void store(const Envs& envs, u64 i) {
        each_word<true>(envs, i);
    }

    __device__ bool allows(u32 action) const {
        return action < G::N_ACTIONS;
    }

    __device__ u32 draw_action(u32 word) const {
        return below(word, G::N_ACTIONS);
    }

    __device__ void reset(Rng& rng) {
        game.start(rng);
        last_action = elapsed = 0;
    }

    __device__ Step step(u32 action, Rng& rng) {
        bool sticks = params.sticky > 0.0f && rng.uniform() < params.sticky;
        last_action = sticks ? last_action : action;
        elapsed += 1;
        Step outcome = game.advance(last_action, rng);
        outcome.truncated = elapsed >= params.max_steps;
        return outcome;
    }

    __device__ void observe(u8* obs) const {
        game.observe(obs);
    }

    __device__ void mask(u8*, u64) const {}
};
