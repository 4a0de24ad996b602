// Dense layers of many samples, inputs and outputs: the sums of dense.cu, in larger blocks.
//
// Inputs and outputs are multiples of 4 in number, and x, y, dz and dx are aligned to 16 bytes. A block of 128 threads has 128 rows by 64
// columns, each thread 8 by 8 of them in registers. 16 terms of both operands lie in each half of shared memory: those of one half are
// multiplied while the next ones travel to the other. A round is 32 terms, whose places in shared memory are constants.

#include "product.cuh"

const u32 HEIGHT = 128, WIDTH = 64; // rows and columns of a block
const u32 EACH = 8;                 // rows, and columns, of a thread: four side by side, and four half a block further
const u32 STEP = 16;                // terms in half of the shared memory
const u32 ROUND = 2 * STEP;

struct Tile {
    f32 total[EACH][EACH];
    f32 part[EACH][EACH];
    f32 start[EACH];                 // of the next part, by column
    f32 a[HEIGHT * STEP / THREADS];  // of the next terms
    f32 b[WIDTH * STEP / THREADS];
    f32 bias_total, bias_part;       // sums of a column of b
};

struct alignas(16) Halves {
    f32 a[2][HEIGHT * STEP];
    f32 b[2][WIDTH * STEP];
};

typedef Threads<Tile, THREADS> Block;

// First of four neighbouring rows of a thread, and first of four neighbouring columns.
__device__ inline u32 first_row(u32 t) {
    return (t / 32 * 4 + t / 16 % 2 * 2 + t % 2) * 4;
}

__device__ inline u32 first_column(u32 t) {
    return t / 2 % 8 * 4;
}

// Row or column i of a thread, counted from its first, in a block of `side`.
__device__ inline u32 further(u32 i, u32 side) {
    return i / 4 * (side / 2) + i % 4;
}

// Four numbers from `from` on, which are aligned if `fours`.
__device__ __forceinline__ void fetch_four(f32* to, const f32* from, bool fours) {
    if (fours) {
        to_four(to, four(from));
        return;
    }
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        to[i] = from[i];
    }
}

// An operand fetches `n` of its terms, then puts them into shared memory; `four` if its rows are aligned groups of four. Rows and terms
// past the last ones repeat it: what is computed from them is not stored.

// Rows of `terms` numbers that lie side by side, from row `first` on. Groups of four terms change places with others, so that the threads
// of a warp meet in no bank.
template <u32 SIDE>
struct Across {
    static const u32 FETCHED = SIDE * STEP / THREADS;
    const f32* x;
    u32 first, rows, terms;
    bool fours;

    __device__ static u32 place(u32 row, u32 term) {
        return term * SIDE + (row ^ (term / 4 * 8));
    }

    __device__ __forceinline__ void fetch(u32 t, f32 (&to)[FETCHED], u32 begin, u32 n) const {
#pragma unroll
        for (u32 i = 0; i < FETCHED / 4; ++i) {
            const f32* row = x + (u64)least(first + t / 4 + i * (THREADS / 4), rows - 1) * terms + begin + least(t % 4 * 4, n - 4);
            fetch_four(to + 4 * i, row, fours);
        }
    }

    __device__ __forceinline__ void put(u32 t, f32* to, const f32 (&from)[FETCHED]) const {
#pragma unroll
        for (u32 i = 0; i < FETCHED; ++i) {
            to[place(t / 4 + i / 4 * (THREADS / 4), t % 4 * 4) + i % 4 * SIDE] = from[i];
        }
    }
};

// Terms of `rows` numbers that lie side by side, from row `first` on.
template <u32 SIDE>
struct Along {
    static const u32 FETCHED = SIDE * STEP / THREADS, GROUPS = SIDE / 4;
    const f32* x;
    u32 first, rows;
    bool fours;

    __device__ static u32 place(u32 row, u32 term) {
        return term * SIDE + row;
    }

    __device__ __forceinline__ void fetch(u32 t, f32 (&to)[FETCHED], u32 begin, u32 n) const {
        const f32* from = x + (u64)begin * rows + least(first + t % GROUPS * 4, rows - 4);
#pragma unroll
        for (u32 i = 0; i < FETCHED / 4; ++i) {
            const f32* term = from + (u64)least(t / GROUPS + i * (THREADS / GROUPS), n - 1) * rows;
            fetch_four(to + 4 * i, term, fours);
        }
    }

    __device__ __forceinline__ void put(u32 t, f32* to, const f32 (&from)[FETCHED]) const {
#pragma unroll
        for (u32 i = 0; i < FETCHED / 4; ++i) {
            float4 numbers = {from[4 * i], from[4 * i + 1], from[4 * i + 2], from[4 * i + 3]};
            *(float4*)&to[place(t % GROUPS * 4, t / GROUPS + i * (THREADS / GROUPS))] = numbers;
        }
    }
};

// Rows and columns of a term.
template <class A, class B>
struct Term {
    f32 x[EACH], y[EACH];

    __device__ __forceinline__ Term(u32 t, const f32* a, const f32* b, u32 term) {
        const f32 *rows = a + A::place(first_row(t), term), *columns = b + B::place(first_column(t), term);
        to_four(x, four(rows));
        to_four(x + 4, four(rows + HEIGHT / 2));
        to_four(y, four(columns));
        to_four(y + 4, four(columns + WIDTH / 2));
    }

    __device__ __forceinline__ void add_to(Tile& own) const {
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
#pragma unroll
            for (u32 j = 0; j < EACH; ++j) {
                own.part[i][j] = fmaf(x[i], y[j], own.part[i][j]);
            }
        }
    }

    // The first term of a part.
    template <bool STARTS>
    __device__ __forceinline__ void begin(Tile& own) const {
#pragma unroll
        for (u32 j = 0; j < EACH; ++j) {
#pragma unroll
            for (u32 i = 0; i < EACH; ++i) {
                own.part[i][j] = fmaf(x[i], y[j], STARTS ? own.start[j] : 0.0f);
            }
            own.start[j] = 0.0f;
        }
    }
};

__device__ __forceinline__ void end_part(Tile& own) {
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
#pragma unroll
        for (u32 j = 0; j < EACH; ++j) {
            own.total[i][j] += own.part[i][j];
        }
    }
    own.bias_total += own.bias_part;
    own.bias_part = 0.0f;
}

// Adds terms `first` to `end` to the totals, in parts of `len` terms, a multiple of a round, or all of them. With STARTS, the first part
// begins at `start`. With `sums_b`, the first threads sum a column of b each.
template <bool STARTS, class A, class B>
__device__ __forceinline__ void add_terms(Block& threads, Halves& halves, u32 first, u32 end, u32 len, const A& a, const B& b,
                                          bool sums_b) {
    u32 begin = first, whole = first + (end - first) / ROUND * ROUND, of_part = 0;
    auto fetch = [&](u32 t, Tile& own, u32 from, u32 n) {
        a.fetch(t, own.a, from, n);
        b.fetch(t, own.b, from, n);
    };
    auto put = [&](u32 t, Tile& own, u32 half) {
        a.put(t, halves.a[half], own.a);
        b.put(t, halves.b[half], own.b);
    };
    auto sum_b = [&](u32 t, Tile& own, u32 half, u32 n) {
        if (!sums_b || t >= WIDTH) return;
#pragma unroll 4
        for (u32 term = 0; term < n; ++term) {
            own.bias_part += halves.b[half][B::place(t, term)];
        }
    };
    if (begin < whole) {
        threads.phase([&](u32 t, Tile& own) {
            fetch(t, own, begin, STEP);
            put(t, own, 0);
        });
    }
#pragma unroll 1
    for (; begin < whole; begin += ROUND) {
        bool begins = of_part == 0, more = begin + ROUND < whole;
        of_part += ROUND;
        bool ends = of_part == len || begin + ROUND == end;
        threads.phase([&](u32 t, Tile& own) {
            fetch(t, own, begin + STEP, STEP);
            Term<A, B> term(t, halves.a[0], halves.b[0], 0);
            if (begins) {
                term.template begin<STARTS>(own);
            } else {
                term.add_to(own);
            }
#pragma unroll
            for (u32 i = 1; i < STEP; ++i) {
                Term<A, B>(t, halves.a[0], halves.b[0], i).add_to(own);
            }
            sum_b(t, own, 0, STEP);
            put(t, own, 1);
        });
        threads.phase([&](u32 t, Tile& own) {
            if (more) {
                fetch(t, own, begin + ROUND, STEP);
            }
#pragma unroll
            for (u32 i = 0; i < STEP; ++i) {
                Term<A, B>(t, halves.a[1], halves.b[1], i).add_to(own);
            }
            sum_b(t, own, 1, STEP);
            if (ends) {
                end_part(own);
            }
            if (more) {
                put(t, own, 0);
            }
        });
        of_part = ends ? 0 : of_part;
    }
    // The last terms, less than a round.
#pragma unroll 1
    for (; begin < end; begin += STEP) {
        u32 n = least(end - begin, STEP);
        bool begins = of_part == 0, ends = begin + n == end;
        threads.phase([&](u32 t, Tile& own) {
            fetch(t, own, begin, n);
            put(t, own, 0);
        });
        threads.phase([&](u32 t, Tile& own) {
            Term<A, B> term(t, halves.a[0], halves.b[0], 0);
            if (begins) {
                term.template begin<STARTS>(own);
            } else {
                term.add_to(own);
            }
#pragma unroll 1
            for (u32 i = 1; i < n; ++i) {
                Term<A, B>(t, halves.a[0], halves.b[0], i).add_to(own);
            }
            sum_b(t, own, 0, n);
            if (ends) {
                end_part(own);
            }
        });
        of_part += n;
    }
}

// Calls work(row, column, numbers) for every four neighbouring totals of a thread within `rows` and `columns`.
template <class Work>
__device__ __forceinline__ void each_four(u32 t, Tile& own, const Place& place, u32 rows, u32 columns, Work work) {
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
#pragma unroll
        for (u32 j = 0; j < EACH; j += 4) {
            u32 row = place.row + first_row(t) + further(i, HEIGHT), column = place.column + first_column(t) + further(j, WIDTH);
            if (row < rows && column < columns) {
                work(row, column, &own.total[i][j]);
            }
        }
    }
}

__device__ inline float4 of_four(const f32* numbers) {
    return {numbers[0], numbers[1], numbers[2], numbers[3]};
}

// A total of this many is the first part that is added to it.
__device__ inline f32 nothing() {
    return -0.0f;
}

template <class Number>
__device__ __forceinline__ void begin_totals(Tile& own, Number number) {
    own.bias_total = own.bias_part = 0.0f;
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
#pragma unroll
        for (u32 j = 0; j < EACH; ++j) {
            own.total[i][j] = number(i, j);
        }
        own.start[i] = 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
wide_forward(const f32* weight, const f32* bias, const f32* x, f32* y, Size size) {
    __shared__ Halves halves;
    Block threads;
    Place place(blockIdx.x, size.n_out, HEIGHT, WIDTH);
    threads.each([&](u32 t, Tile& own) {
        begin_totals(own, [&](u32, u32) { return nothing(); });
#pragma unroll
        for (u32 j = 0; j < EACH; ++j) {
            own.start[j] = bias[least(place.column + first_column(t) + further(j, WIDTH), size.n_out - 1)];
        }
    });
    Across<HEIGHT> a = {x, place.row, size.m, size.n_in, true};
    Along<WIDTH> b = {weight, place.column, size.n_out, has_fours(weight, size.n_out)};
    add_terms<true>(threads, halves, 0, size.n_in, part_len(size.n_in), a, b, false);
    threads.each([&](u32 t, Tile& own) {
        each_four(t, own, place, size.m, size.n_out, [&](u32 row, u32 column, const f32* totals) {
            f32 outputs[4];
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                outputs[i] = activate(size.activation, totals[i]);
            }
            *(float4*)&y[(u64)row * size.n_out + column] = of_four(outputs);
        });
    });
}
HOST_PHASES(wide_forward)

// As dense_input_gradient.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
wide_input_gradient(const f32* weight, const f32* dz, const f32* y, f32* dx, Size size, u32 add) {
    __shared__ Halves halves;
    Block threads;
    Place place(blockIdx.x, size.n_in, HEIGHT, WIDTH);
    threads.each([&](u32 t, Tile& own) {
        begin_totals(own, [&](u32 i, u32 j) {
            u32 row = place.row + first_row(t) + further(i, HEIGHT), column = place.column + first_column(t) + further(j, WIDTH);
            return add && row < size.m && column < size.n_in ? dx[(u64)row * size.n_in + column] : nothing();
        });
    });
    Across<HEIGHT> a = {dz, place.row, size.m, size.n_out, true};
    Across<WIDTH> b = {weight, place.column, size.n_in, size.n_out, has_fours(weight, size.n_out)};
    add_terms<false>(threads, halves, 0, size.n_out, part_len(size.n_out), a, b, false);
    threads.each([&](u32 t, Tile& own) {
        each_four(t, own, place, size.m, size.n_in, [&](u32 row, u32 column, const f32* totals) {
            u64 at = (u64)row * size.n_in + column;
            if (size.activation == ACTIVATION_NONE) {
                *(float4*)&dx[at] = of_four(totals);
                return;
            }
            f32 outputs[4], gradient[4];
            to_four(outputs, four(y + at));
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                gradient[i] = derive(size.activation, outputs[i], totals[i]);
            }
            *(float4*)&dx[at] = of_four(gradient);
        });
    });
}
HOST_PHASES(wide_input_gradient)

// Partial gradients, (K + 1, N) each: of the weights, then of the biases.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
wide_weight_gradient(const f32* x, const f32* dz, f32* partial, Size size, Slices slices) {
    __shared__ Halves halves;
    Block threads;
    u32 blocks = (size.n_in + HEIGHT - 1) / HEIGHT * ((size.n_out + WIDTH - 1) / WIDTH);
    u32 index = blockIdx.x / blocks;
    Place place(blockIdx.x % blocks, size.n_out, HEIGHT, WIDTH);
    Group group(slices, index);
    threads.each([&](u32 t, Tile& own) { begin_totals(own, [&](u32, u32) { return 0.0f; }); });
    Along<HEIGHT> a = {x, place.row, size.n_in, true};
    Along<WIDTH> b = {dz, place.column, size.n_out, true};
    group.each_block([&](u32 begin, u32 end) { add_terms<false>(threads, halves, begin, end, TILE, a, b, place.row == 0); });
    f32* to = partial + index * slices.stride;
    threads.each([&](u32 t, Tile& own) {
        each_four(t, own, place, size.n_in, size.n_out, [&](u32 row, u32 column, const f32* totals) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                to[(u64)row * size.n_out + column + i] = totals[i];
            }
        });
        if (place.row == 0 && t < WIDTH && place.column + t < size.n_out) {
            to[(u64)size.n_in * size.n_out + place.column + t] = own.bias_total;
        }
    });
}
HOST_PHASES(wide_weight_gradient)
