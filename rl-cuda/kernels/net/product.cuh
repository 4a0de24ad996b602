// Matrix products in blocks, and the parts of their sums: the twin of rl-agents/src/kernel/gemm.rs. Shared by dense layers and convolutions.
//
// Order of summation (docs/design/numerics.md): a sum is made of parts, each a chain of fused multiply-adds over ascending terms, added in
// order. A sum over up to 96 terms has one part, a longer one parts of 32.
//
// A block of 128 threads computes 64 rows by 64 columns, each thread 8 by 4 of them in registers. Operands pass through shared memory,
// 32 terms at a time; those of the next terms are loaded while these are multiplied. Every number has one owner, so the results are
// bitwise deterministic, and equal the CPU's on machines with fused multiply-add.

#pragma once

#include "activation.cuh"
#include "learner.cuh"
#include "phases.cuh"

const u32 THREADS = 128;
const u32 SIDE = 64; // rows and columns of a block
const u32 ROWS = 8, COLUMNS = 4; // of a thread
const u32 TERMS = 32; // in shared memory at a time
const u32 LONG = 96; // terms above which a sum has parts of TERMS
const u32 PITCH = SIDE + 4; // numbers from term to term in shared memory: the threads of a warp meet in no bank
const u32 FETCHED = SIDE * TERMS / THREADS; // numbers of an operand that a thread loads

// Places of a thread among eight groups of rows and sixteen groups of columns. Threads 2 i and 2 i + 1 share their columns, threads i and
// i + 2 of sixteen their rows.
__device__ inline u32 row_of(u32 t) {
    return t / 64 * 4 + t / 16 % 2 * 2 + t % 2;
}

__device__ inline u32 group_of(u32 t) {
    return t / 32 % 2 * 8 + t / 2 % 8;
}

__device__ inline float4 four(const f32* numbers) {
    return *(const float4*)numbers;
}

__device__ inline void to_four(f32* to, float4 numbers) {
    to[0] = numbers.x;
    to[1] = numbers.y;
    to[2] = numbers.z;
    to[3] = numbers.w;
}

// True if the rows of a matrix are aligned groups of four numbers.
__device__ inline bool has_fours(const f32* matrix, u32 columns) {
    return columns % 4 == 0 && (u64)matrix % 16 == 0;
}

// Adds a term to four columns of a row.
__device__ __forceinline__ void add_term(f32 (&sums)[COLUMNS], f32 x, float4 y) {
    sums[0] = fmaf(x, y.x, sums[0]);
    sums[1] = fmaf(x, y.y, sums[1]);
    sums[2] = fmaf(x, y.z, sums[2]);
    sums[3] = fmaf(x, y.w, sums[3]);
}

// Adds a term to the rows and columns of a thread, whose numbers lie side by side.
__device__ __forceinline__ void add_term(f32 (&sums)[ROWS][COLUMNS], const f32* rows, const f32* columns) {
    float4 low = four(rows), high = four(rows + 4), y = four(columns);
    const f32 x[ROWS] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (u32 i = 0; i < ROWS; ++i) {
        add_term(sums[i], x[i], y);
    }
}

struct Sums {
    f32 total[ROWS][COLUMNS];
    f32 part[ROWS][COLUMNS];
    f32 a[FETCHED], b[FETCHED]; // of the next terms
};

// Operands of TERMS terms: numbers of 64 rows and of 64 columns for each.
struct alignas(16) Operands {
    f32 a[TERMS * PITCH];
    f32 b[TERMS * PITCH];
};

// An operand loads its numbers of some terms, then stores them. Rows outside of the matrix repeat the last one, and so do terms past the
// last one: what is computed from them is not stored.

// Row and term of number i of an operand, where neighbouring numbers have four rows of eight terms, whose terms lie side by side.
__device__ inline u32 row_along(u32 i) {
    return i % 4 + i / 32 % (SIDE / 4) * 4;
}

__device__ inline u32 term_along(u32 i) {
    return i / 4 % 8 + i / (32 * (SIDE / 4)) * 8;
}

// Rows of `terms` numbers that lie side by side, from row `first` on.
struct ByRows {
    const f32* x;
    u32 first, rows, terms;

    __device__ __forceinline__ void fetch(u32 t, f32 (&to)[FETCHED], u32 begin, u32 n) const {
        if (has_fours(x, terms)) {
            const f32* from = x + (u64)least(first + t % SIDE, rows - 1) * terms + begin;
#pragma unroll
            for (u32 i = 0; i < FETCHED / 4; ++i) {
                to_four(to + 4 * i, four(from + least((t / SIDE + 2 * i) * 4, n - 4)));
            }
            return;
        }
#pragma unroll
        for (u32 i = 0; i < FETCHED; ++i) {
            u32 row = row_along(t + i * THREADS), term = term_along(t + i * THREADS);
            to[i] = x[(u64)least(first + row, rows - 1) * terms + begin + least(term, n - 1)];
        }
    }

    __device__ __forceinline__ void put(u32 t, f32* to, const f32 (&from)[FETCHED]) const {
        if (has_fours(x, terms)) {
            to += t / SIDE * 4 * PITCH + t % SIDE;
#pragma unroll
            for (u32 i = 0; i < FETCHED; ++i) {
                to[(i / 4 * 8 + i % 4) * PITCH] = from[i];
            }
            return;
        }
#pragma unroll
        for (u32 i = 0; i < FETCHED; ++i) {
            to[term_along(t + i * THREADS) * PITCH + row_along(t + i * THREADS)] = from[i];
        }
    }
};

// Terms of `rows` numbers that lie side by side, from row `first` on.
struct ByTerms {
    const f32* x;
    u32 first, rows;

    __device__ __forceinline__ void fetch(u32 t, f32 (&to)[FETCHED], u32 begin, u32 n) const {
        if (has_fours(x, rows)) {
            const f32* from = x + (u64)begin * rows + least(first + t % 16 * 4, rows - 4);
#pragma unroll
            for (u32 i = 0; i < FETCHED / 4; ++i) {
                to_four(to + 4 * i, four(from + (u64)least(t / 16 + 8 * i, n - 1) * rows));
            }
            return;
        }
        const f32* from = x + (u64)begin * rows + least(first + t % SIDE, rows - 1);
#pragma unroll
        for (u32 i = 0; i < FETCHED; ++i) {
            to[i] = from[(u64)least(t / SIDE + 2 * i, n - 1) * rows];
        }
    }

    __device__ __forceinline__ void put(u32 t, f32* to, const f32 (&from)[FETCHED]) const {
        if (has_fours(x, rows)) {
#pragma unroll
            for (u32 i = 0; i < FETCHED / 4; ++i) {
                float4 numbers = {from[4 * i], from[4 * i + 1], from[4 * i + 2], from[4 * i + 3]};
                *(float4*)&to[(t / 16 + 8 * i) * PITCH + t % 16 * 4] = numbers;
            }
            return;
        }
        to += t / SIDE * PITCH + t % SIDE;
#pragma unroll
        for (u32 i = 0; i < FETCHED; ++i) {
            to[2 * i * PITCH] = from[i];
        }
    }
};

// Numbers that number(row, term) returns. Neighbouring threads have four rows of eight terms if ALONG, else neighbouring rows.
template <bool ALONG, class Number>
struct Each {
    Number number;

    __device__ static u32 row_at(u32 i) {
        return ALONG ? row_along(i) : i % SIDE;
    }

    __device__ static u32 term_at(u32 i) {
        return ALONG ? term_along(i) : i / SIDE;
    }

    __device__ __forceinline__ void fetch(u32 t, f32 (&to)[FETCHED], u32 begin, u32 n) const {
#pragma unroll
        for (u32 i = 0; i < FETCHED; ++i) {
            to[i] = number(row_at(t + i * THREADS), begin + least(term_at(t + i * THREADS), n - 1));
        }
    }

    __device__ __forceinline__ void put(u32 t, f32* to, const f32 (&from)[FETCHED]) const {
#pragma unroll
        for (u32 i = 0; i < FETCHED; ++i) {
            to[term_at(t + i * THREADS) * PITCH + row_at(t + i * THREADS)] = from[i];
        }
    }
};

template <bool ALONG, class Number>
__device__ inline Each<ALONG, Number> each(Number number) {
    return {number};
}

// First row and column of this block, of `height` by `width`, in a matrix of as many columns.
struct Place {
    u32 row, column;

    __device__ Place(u32 block, u32 columns, u32 height = SIDE, u32 width = SIDE) {
        u32 across = (columns + width - 1) / width;
        row = block / across * height;
        column = block % across * width;
    }
};

// Samples, inputs, outputs and activation of a dense layer.
struct Size {
    u32 m, n_in, n_out, activation;
};

// Calls work(row, column, total, part) for every number of a thread.
template <class Own, class Work>
__device__ __forceinline__ void each_number(u32 t, Own& sums, const Place& place, Work work) {
#pragma unroll
    for (u32 i = 0; i < ROWS; ++i) {
#pragma unroll
        for (u32 j = 0; j < COLUMNS; ++j) {
            u32 row = place.row + row_of(t) * ROWS + i, column = place.column + group_of(t) * COLUMNS + j;
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

// Adds terms `first` to `end` to the totals, in parts of `len` terms; the first part replaces the totals unless they count. AT_ONCE terms
// are a round of the loop: fewer where a kernel needs registers for more.
template <u32 AT_ONCE = 4, class Own, class A, class B>
__device__ __forceinline__ void add_terms(Threads<Own, THREADS>& threads, Operands& operands, u32 first, u32 end, u32 len, const A& a,
                                          const B& b, bool totals_count) {
    if (first >= end) return;
    u32 begin = first, stop = part_end(first, len, end), n = least(stop - begin, TERMS);
    bool is_first = !totals_count;
    threads.each([&](u32 t, Own& own) {
        a.fetch(t, own.a, begin, n);
        b.fetch(t, own.b, begin, n);
    });
#pragma unroll 1
    while (begin < end) {
        u32 next = begin + n, next_stop = next == stop ? part_end(next, len, end) : stop, next_n = least(next_stop - next, TERMS);
        threads.phase([&](u32 t, Own& own) {
            renew(t);
            a.put(t, operands.a, own.a);
            b.put(t, operands.b, own.b);
        });
        threads.phase([&](u32 t, Own& own) {
            renew(t);
            if (next < end) {
                a.fetch(t, own.a, next, next_n);
                b.fetch(t, own.b, next, next_n);
            }
            const f32 *rows = operands.a + row_of(t) * ROWS, *columns = operands.b + group_of(t) * COLUMNS;
#pragma unroll AT_ONCE
            for (u32 term = 0; term < n; ++term, rows += PITCH, columns += PITCH) {
                add_term(own.part, rows, columns);
            }
        });
        if (next == stop) {
            end_part(threads, is_first);
            is_first = false;
        }
        begin = next;
        stop = next_stop;
        n = next_n;
    }
}

// Begins the parts at the biases of their columns.
template <class Own>
__device__ __forceinline__ void begin_at_bias(Threads<Own, THREADS>& threads, const Place& place, const f32* bias, u32 columns) {
    threads.each([&](u32 t, Own& sums) {
#pragma unroll
        for (u32 j = 0; j < COLUMNS; ++j) {
            u32 column = place.column + group_of(t) * COLUMNS + j;
            f32 start = column < columns ? bias[column] : 0.0f;
#pragma unroll
            for (u32 i = 0; i < ROWS; ++i) {
                sums.part[i][j] = start;
            }
        }
    });
}

// Slices of a minibatch, and groups of neighbouring tiles of a slice whose gradients are added up in one row of partial gradients, which
// are `stride` numbers apart. A slice has one group, or a group for each tile; the last ones may be empty.
struct Slices {
    u64 stride;
    Cut cut;
    u32 groups, tiles_of_group;
};

// Samples of a group, whose tiles are those of each `block` of them.
struct Group {
    u32 first, end, block;

    __device__ Group(const Slices& slices, u32 index) {
        u32 slice = index / slices.groups;
        Samples samples = {slices.cut.first(slice), slices.cut.first(slice + 1)};
        if (slices.tiles_of_group == 1) {
            samples = slices.cut.tile(slice, index % slices.groups);
        }
        first = samples.begin;
        end = samples.end;
        block = slices.cut.block;
    }

    // Calls work(begin, end) for the samples of every block, in order.
    template <class Work>
    __device__ __forceinline__ void each_block(Work work) const {
#pragma unroll 1
        for (u32 begin = first, stop; begin < end; begin = stop) {
            stop = part_end(begin, block, end);
            work(begin, stop);
        }
    }
};
