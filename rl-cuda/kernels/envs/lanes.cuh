// Environments that are arithmetic on a few numbers: the twin of `Lane` in rl-envs/src/batch/lanes.rs.
//
// The rules are a struct of constants with `start`, `advance`, `observe`, `pack` and `unpack`, as in Rust.

#pragma once

#include "vec_env.cuh"

// Writes a row of observations with the widest stores that its length allows.
template <u32 D>
__device__ inline void store_row(f32* row, const f32 (&obs)[D]) {
    if constexpr (D % 4 == 0) {
#pragma unroll
        for (u32 j = 0; j < D / 4; ++j) {
            ((float4*)row)[j] = {obs[4 * j], obs[4 * j + 1], obs[4 * j + 2], obs[4 * j + 3]};
        }
    } else if constexpr (D % 2 == 0) {
#pragma unroll
        for (u32 j = 0; j < D / 2; ++j) {
            ((float2*)row)[j] = {obs[2 * j], obs[2 * j + 1]};
        }
    } else {
#pragma unroll
        for (u32 j = 0; j < D; ++j) {
            row[j] = obs[j];
        }
    }
}

template <class P>
struct Lane {
    typedef P Params;
    typedef f32 Obs;
    typedef typename P::Action Action;

    const P& params;
    typename P::State state;

    __device__ Lane(const P& params, const Envs&, u64) : params(params) {}

    __device__ u64 obs_len() const {
        return P::D;
    }

    __device__ void load(const Envs& envs, u64 i) {
        u32 words[P::W];
#pragma unroll
        for (u32 w = 0; w < P::W; ++w) {
            words[w] = envs.words[(u64)w * envs.n_envs + i];
        }
        state = P::unpack(words);
    }

    __device__ void store(const Envs& envs, u64 i) const {
        u32 words[P::W];
        P::pack(state, words);
#pragma unroll
        for (u32 w = 0; w < P::W; ++w) {
            envs.words[(u64)w * envs.n_envs + i] = words[w];
        }
    }

    __device__ bool allows(Action action) const {
        return params.allows(action);
    }

    __device__ Action draw_action(u32 word) const {
        return params.draw_action(word);
    }

    __device__ void reset(Rng& rng) {
        state = params.start(rng);
    }

    __device__ Step step(Action action, Rng&) {
        return params.advance(state, action);
    }

    __device__ void observe(f32* row) const {
        f32 obs[P::D];
        params.observe(state, obs);
        store_row<P::D>(row, obs);
    }

    __device__ void mask(u8*, u64) const {}
};
