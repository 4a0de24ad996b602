// Keyed permutations: the twin of rl-envs/src/numerics/permutation.rs, without its tables. Integers only.

#include "learner.cuh"
#include "philox.cuh"

const u32 SORTED = 64;

struct Rectangle {
    u32 n, rows, columns;
};

// The remainder of a number below 2 n.
__device__ inline u32 wrapped(u32 x, u32 n) {
    return x < n ? x : x - n;
}

__device__ inline u32 distance(u64 seed, u64 step, u32 index, u32 number, u32 round, u32 n) {
    return below(block(seed, index, step, PURPOSE_SHUFFLE, number).word(round), n);
}

// Moves a number of the rectangle.
__device__ inline u32 moved(u64 seed, u64 step, const Rectangle& rectangle, u32 number) {
    u32 row = number / rectangle.columns, column = number % rectangle.columns;
    for (u32 round = 0; round < 4; ++round) {
        row = wrapped(row + distance(seed, step, column, 0, round, rectangle.rows), rectangle.rows);
        column = wrapped(column + distance(seed, step, row, 1, round, rectangle.columns), rectangle.columns);
    }
    return row * rectangle.columns + column;
}

// Rows of the next minibatch, (n): the numbers from `counters->sample` on in the order of this epoch. One thread per row; rows past the
// end of the order are not written.
extern "C" __global__ void permutation_rows(const Counters* counters, u32* rows, Rectangle rectangle, u32 n) {
    u64 i = thread_number(), index = counters->sample + i;
    if (i >= n || index >= rectangle.n) return;
    u32 number = (u32)index;
    if (rectangle.rows == 0) { // no permutation
        rows[i] = number;
        return;
    }
    u64 seed = counters->seed, step = counters->epochs - 1;
    if (rectangle.n <= SORTED) {
        u32 word = block(seed, number, step, PURPOSE_SHUFFLE, 2).word(0), rank = 0;
        for (u32 j = 0; j < rectangle.n; ++j) {
            u32 other = block(seed, j, step, PURPOSE_SHUFFLE, 2).word(0);
            rank += other < word || (other == word && j < number) ? 1 : 0;
        }
        rows[i] = rank;
        return;
    }
    do {
        number = moved(seed, step, rectangle, number);
    } while (number >= rectangle.n);
    rows[i] = number;
}
HOST_KERNEL(permutation_rows)
