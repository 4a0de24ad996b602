// Matrix products in blocks, and the parts of their sums: the twin of rl-agents/src/kernel/gemm.rs. Shared by dense layers and convolutions.
//
// Order of summation (docs/design/numerics.md): a sum is made of parts, each a chain of fused multiply-adds over ascending terms, added in
// order. A sum over up to 96 terms has one part, a longer one parts of 32.
//
// A block of 128 threads computes 64 rows by 64 columns, each thread 8 by 4 of them in registers. Operands pass through shared memory,
// 32 terms at a time. Every number has one owner, so the results are bitwise deterministic, and equal the CPU's on machines with
// fused multiply-add.

#pragma once

#include "activation.cuh"
#include "learner.cuh"
#include "phases.cuh"

const u32 THREADS = 128;
const u32 SIDE = 64; // rows and columns of a block
const u32 ROWS = 8, COLUMNS = 4; // of a thread
const u32 TERMS = 32; // in shared memory at a time
const u32 IN_FLIGHT = 8; // loads of a thread before the first is waited for
const u32 LONG = 96; // terms above which a sum has parts of TERMS

struct Sums {
    f32 total[ROWS][COLUMNS];
    f32 part[ROWS][COLUMNS];
};

// Operands of TERMS terms: a(term, row) and b(term, column), at `place_of`.
struct alignas(16) Operands {
    f32 a[TERMS * SIDE];
    f32 b[TERMS * SIDE];
};

// Place of an operand. Groups of four rows are swapped from term to term, so that the threads of a warp meet in no bank, whether they
// store neighbouring rows, or four rows of eight terms each.
__device__ inline u32 place_of(u32 term, u32 row) {
    return term * SIDE + ((row / 4 ^ term % 8) * 4 + row % 4);
}

// A number of a matrix that a thread loads: four rows of eight terms for neighbouring threads if ALONG, whose terms lie side by side in
// memory, else neighbouring rows.
template <bool ALONG>
struct Loaded {
    u32 term, row;

    __device__ Loaded(u32 i)
        : term(ALONG ? i / 4 % 8 + i / (32 * (SIDE / 4)) * 8 : i / SIDE), row(ALONG ? i % 4 + i / 32 % (SIDE / 4) * 4 : i % SIDE) {}
};

// First row and column of this block in a matrix of as many columns.
struct Place {
    u32 row, column;

    __device__ Place(u32 block, u32 columns) {
        u32 across = (columns + SIDE - 1) / SIDE;
        row = block / across * SIDE;
        column = block % across * SIDE;
    }
};

// Calls work(row, column, total, part) for every number of a thread.
template <class Own, class Work>
__device__ __forceinline__ void each_number(u32 t, Own& sums, const Place& place, Work work) {
#pragma unroll
    for (u32 i = 0; i < ROWS; ++i) {
#pragma unroll
        for (u32 j = 0; j < COLUMNS; ++j) {
            u32 row = place.row + t / 16 * ROWS + i, column = place.column + t % 16 * COLUMNS + j;
            work(row, column, sums.total[i][j], sums.part[i][j]);
        }
    }
}

// Calls work(row, column, total) for every number of a thread within `rows` and `columns`.
template <class Own, class Work>
__device__ __forceinline__ void each_inside(u32 t, Own& sums, const Place& place, u32 rows, u32 columns, Work work) {
    each_number(t, sums, place, [&](u32 row, u32 column, f32 total, f32) {
        if (row < rows && column < columns) {
            work(row, column, total);
        }
    });
}

// Copies a thread's numbers of an operand to shared memory, loads before stores.
template <bool ALONG, class Number>
__device__ __forceinline__ void load(u32 t, f32* operand, Number number) {
#pragma unroll
    for (u32 first = t; first < SIDE * TERMS; first += IN_FLIGHT * THREADS) {
        f32 x[IN_FLIGHT];
#pragma unroll
        for (u32 step = 0; step < IN_FLIGHT; ++step) {
            Loaded<ALONG> of(first + step * THREADS);
            x[step] = number(of.row, of.term);
        }
#pragma unroll
        for (u32 step = 0; step < IN_FLIGHT; ++step) {
            Loaded<ALONG> of(first + step * THREADS);
            operand[place_of(of.term, of.row)] = x[step];
        }
    }
}

// Adds terms `first` to `end` to the parts. a(row, term) and b(term, column) read the operands, of rows and columns outside of the
// matrices any; neighbouring threads read neighbouring terms if ALONG, otherwise neighbouring rows or columns.
template <bool A_ALONG, bool B_ALONG, class Own, class A, class B>
__device__ __forceinline__ void add_terms(Threads<Own, THREADS>& threads, Operands& operands, u32 first, u32 end, A a, B b) {
    for (u32 begin = first; begin < end; begin += TERMS) {
        u32 terms = end - begin < TERMS ? end - begin : TERMS;
        threads.phase([&](u32 t, Own&) {
            // From addresses that are always valid; what is loaded past the last term is not read.
            load<A_ALONG>(t, operands.a, [&](u32 row, u32 term) { return a(row, begin + least(term, terms - 1)); });
            load<B_ALONG>(t, operands.b, [&](u32 column, u32 term) { return b(begin + least(term, terms - 1), column); });
        });
        threads.phase([&](u32 t, Own& sums) {
            u32 row = t / 16 * ROWS, column = t % 16 * COLUMNS;
            for (u32 term = 0; term < terms; ++term) {
                float4 low = *(const float4*)&operands.a[place_of(term, row)];
                float4 high = *(const float4*)&operands.a[place_of(term, row + 4)];
                float4 y = *(const float4*)&operands.b[place_of(term, column)];
                const f32 x[ROWS] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
                for (u32 i = 0; i < ROWS; ++i) {
                    sums.part[i][0] = fmaf(x[i], y.x, sums.part[i][0]);
                    sums.part[i][1] = fmaf(x[i], y.y, sums.part[i][1]);
                    sums.part[i][2] = fmaf(x[i], y.z, sums.part[i][2]);
                    sums.part[i][3] = fmaf(x[i], y.w, sums.part[i][3]);
                }
            }
        });
    }
}

// Moves the parts into the totals, and begins new parts at 0.
template <class Own>
__device__ __forceinline__ void end_part(Threads<Own, THREADS>& threads, bool is_first) {
    threads.each([&](u32, Own& sums) {
#pragma unroll
        for (u32 i = 0; i < ROWS; ++i) {
#pragma unroll
            for (u32 j = 0; j < COLUMNS; ++j) {
                sums.total[i][j] = is_first ? sums.part[i][j] : sums.total[i][j] + sums.part[i][j];
                sums.part[i][j] = 0.0f;
            }
        }
    });
}

__device__ inline u32 part_len(u32 terms) {
    return terms > LONG ? TERMS : terms;
}

__device__ inline u32 part_end(u32 first, u32 len, u32 terms) {
    return terms - first < len ? terms : first + len;
}

// Begins the parts at the biases of their columns.
template <class Own>
__device__ __forceinline__ void begin_at_bias(Threads<Own, THREADS>& threads, const Place& place, const f32* bias, u32 columns) {
    threads.each([&](u32 t, Own& sums) {
#pragma unroll
        for (u32 j = 0; j < COLUMNS; ++j) {
            u32 column = place.column + t % 16 * COLUMNS + j;
            f32 start = column < columns ? bias[column] : 0.0f;
#pragma unroll
            for (u32 i = 0; i < ROWS; ++i) {
                sums.part[i][j] = start;
            }
        }
    });
}

// Slices of a minibatch of n samples, and groups of neighbouring tiles of a slice whose gradients are added up in one row of partial
// gradients, which are `stride` numbers apart. A slice has `groups` groups; the last ones may be empty.
struct Slices {
    u64 stride;
    u32 n, count, groups, tiles_of_group;
};

// Samples of a group.
struct Group {
    u32 first, end;

    __device__ Group(const Slices& slices, u32 index) {
        u32 slice = index / slices.groups;
        u64 start = (u64)slice * slices.n / slices.count, stop = (u64)(slice + 1) * slices.n / slices.count;
        u64 len = (u64)slices.tiles_of_group * TILE;
        u64 begin = start + index % slices.groups * len;
        first = (u32)(begin < stop ? begin : stop);
        end = (u32)(begin + len < stop ? begin + len : stop);
    }
};
