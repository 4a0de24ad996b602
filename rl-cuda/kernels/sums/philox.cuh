// Counter-based random numbers: the twin of rl-envs/src/numerics/rng.rs, which has the layout of the counter. Integers only, so the bits are
// the same as in Rust.

#pragma once

#include "math.cuh"
#include "numbers.cuh"

enum Purpose : u32 {
    PURPOSE_RESET = 0,
    PURPOSE_STEP = 1,
    PURPOSE_RANDOM_ACTION = 2,
    PURPOSE_POLICY = 3,
    PURPOSE_SHUFFLE = 5,
    PURPOSE_REPLAY = 6,
};

// Four words of output.
struct Block {
    u32 a, b, c, d;

    // Returns word i, 0 to 3, without an array, which would need local memory.
    __device__ u32 word(u32 i) const {
        u32 low = i & 1 ? b : a, high = i & 1 ? d : c;
        return i & 2 ? high : low;
    }
};

__device__ inline Block philox4x32(Block counter, u32 key0, u32 key1) {
#pragma unroll
    for (u32 round = 0; round < 10; ++round) {
        if (round > 0) {
            key0 += 0x9E3779B9u;
            key1 += 0xBB67AE85u;
        }
        u64 p0 = (u64)counter.a * 0xD2511F53u;
        u64 p1 = (u64)counter.c * 0xCD9E8D57u;
        counter = {(u32)(p1 >> 32) ^ counter.b ^ key0, (u32)p1, (u32)(p0 >> 32) ^ counter.d ^ key1, (u32)p0};
    }
    return counter;
}

__device__ inline Block block(u64 seed, u32 index, u64 step, u32 purpose, u32 number) {
    return philox4x32({index, (u32)step, (u32)(step >> 32), purpose << 24 | number}, (u32)seed, (u32)(seed >> 32));
}

__device__ inline u32 word(u64 seed, u32 index, u64 step, u32 purpose) {
    return block(seed, index, step >> 2, purpose, 0).word((u32)step & 3);
}

__device__ inline f32 uniform(u32 word) {
    return (f32)(word >> 8) * (1.0f / 16777216.0f);
}

// Normal number j & 3 of a block.
__device__ inline f32 normal(const Block& words, u32 j) {
    const f32 TAU = 6.2831855f;
    f32 radius = sqrtf(-2.0f * math::ln(1.0f - uniform(words.word(j & 2))));
    math::SinCos angle = math::sin_cos(TAU * uniform(words.word((j & 2) + 1)));
    return radius * (j & 1 ? angle.cos : angle.sin);
}

__device__ inline u32 below(u32 word, u32 n) {
    return (u32)(((u64)word * n) >> 32);
}

// Maps a word to a number between two bounds, as rl-envs/src/batch/random_actions.rs draws continuous actions; rounding never exceeds the
// upper bound.
__device__ inline f32 between(u32 word, f32 low, f32 high) {
    f32 x = low + (high - low) * uniform(word);
    return math::select(x < high, x, high);
}

// Random stream of one environment, step and purpose.
struct Rng {
    u64 seed, step;
    u32 index, purpose, next;
    Block words;

    __device__ Rng(u64 seed, u32 index, u64 step, u32 purpose)
        : seed(seed), step(step), index(index), purpose(purpose), next(0), words{0, 0, 0, 0} {}

    __device__ u32 next_u32() {
        if ((next & 3) == 0) {
            words = block(seed, index, step, purpose, (next >> 2) & 0x00FFFFFFu);
        }
        return words.word(next++ & 3);
    }

    __device__ f32 uniform() {
        return ::uniform(next_u32());
    }

    __device__ f32 uniform_in(f32 low, f32 high) {
        return low + (high - low) * uniform();
    }

    __device__ u32 below(u32 n) {
        return ::below(next_u32(), n);
    }
};
