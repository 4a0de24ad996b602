// RepeatFirst: the twin of rl-envs/src/envs/repeat_first.rs, which has the task and the source.

#include "vec_env.cuh"

const u32 SUITS = 4;

struct RepeatFirst {
    struct Params {
        u32 cards_per_suit;
    };

    typedef f32 Obs;
    typedef u32 Action;

    const Params& params;
    u32 first, card;
    u32 left[SUITS]; // cards of each suit still to be dealt

    __device__ RepeatFirst(const Params& params, const Envs&, u64) : params(params) {}

    __device__ u64 obs_len() const {
        return 1;
    }

    __device__ void load(const Envs& envs, u64 i) {
        const u32* words = envs.words + i;
        first = words[0];
        card = words[envs.n_envs];
#pragma unroll
        for (u32 suit = 0; suit < SUITS; ++suit) {
            left[suit] = words[(2 + suit) * (u64)envs.n_envs];
        }
    }

    __device__ void store(const Envs& envs, u64 i) const {
        u32* words = envs.words + i;
        words[0] = first;
        words[envs.n_envs] = card;
#pragma unroll
        for (u32 suit = 0; suit < SUITS; ++suit) {
            words[(2 + suit) * (u64)envs.n_envs] = left[suit];
        }
    }

    __device__ bool allows(u32 action) const {
        return action < SUITS;
    }

    __device__ u32 draw_action(u32 word) const {
        return below(word, SUITS);
    }

    __device__ u32 n_left() const {
        return left[0] + left[1] + left[2] + left[3];
    }

    __device__ void deal(Rng& rng) {
        u32 rank = rng.below(n_left());
        bool found = false;
#pragma unroll
        for (u32 suit = 0; suit < SUITS; ++suit) {
            bool is_it = !found && (suit + 1 == SUITS || rank < left[suit]);
            if (!found && !is_it) {
                rank -= left[suit];
            }
            if (is_it) {
                card = suit;
                left[suit] -= 1;
            }
            found |= is_it;
        }
    }

    __device__ void reset(Rng& rng) {
#pragma unroll
        for (u32 suit = 0; suit < SUITS; ++suit) {
            left[suit] = params.cards_per_suit;
        }
        deal(rng);
        first = card;
    }

    __device__ Step step(u32 action, Rng& rng) {
        f32 reward = 1.0f / (4.0f * (f32)params.cards_per_suit - 1.0f);
        bool right = action == first;
        deal(rng);
        return {right ? reward : -reward, n_left() == 0, false};
    }

    __device__ void observe(f32* obs) const {
        *obs = (f32)card;
    }

    __device__ void mask(u8*, u64) const {}
};

ENV_KERNELS(repeat_first, RepeatFirst)
