// Dense layers and their gradients: the twin of rl-agents/src/dense.rs and of the products in gemm.rs.
//
// y = f(x W + b); dx = dz W^T f'(x); dW = x^T dz, db = sum of dz. Matrices are row-major: x (m, K), W (K, N), b (N), y and dz (m, N).
//
// Order of summation (ARCHITECTURE.md): a sum is made of parts, each a chain of fused multiply-adds over ascending terms, added in
// order. Sums over K or N terms have one part up to 96 terms, and parts of 32 beyond; the bias starts the first part. Gradients of
// weights have a part for each tile of 96 samples.
//
// A block of 128 threads computes 64 rows by 64 columns, each thread 8 by 4 of them in registers. Operands pass through shared memory,
// 32 terms at a time. Every number has one owner, so the results are bitwise deterministic, and equal the CPU's on machines with
// fused multiply-add.

#include "activation.cuh"
#include "learner.cuh"
#include "phases.cuh"

const u32 THREADS = 128;
const u32 SIDE = 64; // rows and columns of a block
const u32 ROWS = 8, COLUMNS = 4; // of a thread
const u32 TERMS = 32; // in shared memory at a time
const u32 PITCH = SIDE + 4; // numbers from a term to the next
const u32 LONG = 96; // terms above which a sum has parts of TERMS

struct Sums {
    f32 total[ROWS][COLUMNS];
    f32 part[ROWS][COLUMNS];
};

// Operands of TERMS terms: a[term][row] and b[term][column].
struct alignas(16) Operands {
    f32 a[TERMS * PITCH];
    f32 b[TERMS * PITCH];
};

typedef Threads<Sums, THREADS> Block;

struct Size {
    u32 m, n_in, n_out, activation;
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
template <class Work>
__device__ __forceinline__ void each_number(u32 t, Sums& sums, const Place& place, Work work) {
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
template <class Work>
__device__ __forceinline__ void each_inside(u32 t, Sums& sums, const Place& place, u32 rows, u32 columns, Work work) {
    each_number(t, sums, place, [&](u32 row, u32 column, f32 total, f32) {
        if (row < rows && column < columns) {
            work(row, column, total);
        }
    });
}

// Adds terms `first` to `end` to the parts. a(row, term) and b(term, column) read the operands, 0 outside of the matrices; neighbouring
// threads read neighbouring terms if ALONG, otherwise neighbouring rows or columns.
template <bool A_ALONG, bool B_ALONG, class A, class B>
__device__ __forceinline__ void add_terms(Block& threads, Operands& operands, u32 first, u32 end, A a, B b) {
    for (u32 begin = first; begin < end; begin += TERMS) {
        u32 terms = end - begin < TERMS ? end - begin : TERMS;
        threads.phase([&](u32 t, Sums&) {
#pragma unroll 4
            for (u32 step = 0; step < SIDE * TERMS / THREADS; ++step) {
                u32 i = t + step * THREADS;
                u32 row = A_ALONG ? i / TERMS : i % SIDE, term = A_ALONG ? i % TERMS : i / SIDE;
                if (term < terms) {
                    operands.a[term * PITCH + row] = a(row, begin + term);
                }
            }
#pragma unroll 4
            for (u32 step = 0; step < SIDE * TERMS / THREADS; ++step) {
                u32 i = t + step * THREADS;
                u32 column = B_ALONG ? i / TERMS : i % SIDE, term = B_ALONG ? i % TERMS : i / SIDE;
                if (term < terms) {
                    operands.b[term * PITCH + column] = b(begin + term, column);
                }
            }
        });
        threads.phase([&](u32 t, Sums& sums) {
            u32 row = t / 16 * ROWS, column = t % 16 * COLUMNS;
            for (u32 term = 0; term < terms; ++term) {
                float4 low = *(const float4*)&operands.a[term * PITCH + row];
                float4 high = *(const float4*)&operands.a[term * PITCH + row + 4];
                float4 y = *(const float4*)&operands.b[term * PITCH + column];
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
__device__ __forceinline__ void end_part(Block& threads, bool is_first) {
    threads.each([&](u32, Sums& sums) {
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

extern "C" __global__ void __launch_bounds__(THREADS)
dense_forward(const f32* weight, const f32* bias, const f32* x, f32* y, Size size) {
    __shared__ Operands operands;
    Block threads;
    Place place(blockIdx.x, size.n_out);
    threads.each([&](u32 t, Sums& sums) {
#pragma unroll
        for (u32 j = 0; j < COLUMNS; ++j) {
            u32 column = place.column + t % 16 * COLUMNS + j;
            f32 start = column < size.n_out ? bias[column] : 0.0f;
#pragma unroll
            for (u32 i = 0; i < ROWS; ++i) {
                sums.part[i][j] = start;
            }
        }
    });
    auto a = [&](u32 row, u32 term) {
        return place.row + row < size.m ? x[(u64)(place.row + row) * size.n_in + term] : 0.0f;
    };
    auto b = [&](u32 term, u32 column) {
        return place.column + column < size.n_out ? weight[(u64)term * size.n_out + place.column + column] : 0.0f;
    };
    u32 len = part_len(size.n_in);
    for (u32 first = 0; first < size.n_in; first += len) {
        add_terms<true, false>(threads, operands, first, part_end(first, len, size.n_in), a, b);
        end_part(threads, first == 0);
    }
    threads.each([&](u32 t, Sums& sums) {
        each_inside(t, sums, place, size.m, size.n_out, [&](u32 row, u32 column, f32 total) {
            y[(u64)row * size.n_out + column] = activate(size.activation, total);
        });
    });
}
HOST_PHASES(dense_forward)

// Gradient dx (m, K) of a layer's inputs y, from the gradient dz (m, N) of its sums. With `add` the product is added to dx. The
// derivative of the activation that made y is applied last; the activation is none where another product will be added.
extern "C" __global__ void __launch_bounds__(THREADS)
dense_input_gradient(const f32* weight, const f32* dz, const f32* y, f32* dx, Size size, u32 add) {
    __shared__ Operands operands;
    Block threads;
    Place place(blockIdx.x, size.n_in);
    threads.each([&](u32 t, Sums& sums) {
        each_number(t, sums, place, [&](u32 row, u32 column, f32& total, f32& part) {
            total = add && row < size.m && column < size.n_in ? dx[(u64)row * size.n_in + column] : 0.0f;
            part = 0.0f;
        });
    });
    auto a = [&](u32 row, u32 term) {
        return place.row + row < size.m ? dz[(u64)(place.row + row) * size.n_out + term] : 0.0f;
    };
    auto b = [&](u32 term, u32 column) {
        return place.column + column < size.n_in ? weight[(u64)(place.column + column) * size.n_out + term] : 0.0f;
    };
    u32 len = part_len(size.n_out);
    for (u32 first = 0; first < size.n_out; first += len) {
        add_terms<true, true>(threads, operands, first, part_end(first, len, size.n_out), a, b);
        end_part(threads, first == 0 && !add);
    }
    threads.each([&](u32 t, Sums& sums) {
        each_inside(t, sums, place, size.m, size.n_in, [&](u32 row, u32 column, f32 total) {
            u64 at = (u64)row * size.n_in + column;
            dx[at] = size.activation == ACTIVATION_NONE ? total : derive(size.activation, y[at], total);
        });
    });
}
HOST_PHASES(dense_input_gradient)

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

// Partial gradients of the weights, (K, N) each.
extern "C" __global__ void __launch_bounds__(THREADS)
dense_weight_gradient(const f32* x, const f32* dz, f32* partial, Size size, Slices slices) {
    __shared__ Operands operands;
    Block threads;
    u32 blocks = (size.n_in + SIDE - 1) / SIDE * ((size.n_out + SIDE - 1) / SIDE);
    u32 index = blockIdx.x / blocks;
    Place place(blockIdx.x % blocks, size.n_out);
    Group group(slices, index);
    threads.each([&](u32 t, Sums& sums) {
        each_number(t, sums, place, [&](u32, u32, f32& total, f32& part) { total = part = 0.0f; });
    });
    auto a = [&](u32 row, u32 term) {
        return place.row + row < size.n_in ? x[(u64)term * size.n_in + place.row + row] : 0.0f;
    };
    auto b = [&](u32 term, u32 column) {
        return place.column + column < size.n_out ? dz[(u64)term * size.n_out + place.column + column] : 0.0f;
    };
    for (u32 first = group.first; first < group.end; first += TILE) {
        add_terms<false, false>(threads, operands, first, part_end(first, TILE, group.end), a, b);
        end_part(threads, false);
    }
    f32* to = partial + index * slices.stride;
    threads.each([&](u32 t, Sums& sums) {
        each_inside(t, sums, place, size.n_in, size.n_out, [&](u32 row, u32 column, f32 total) {
            to[(u64)row * size.n_out + column] = total;
        });
    });
}
HOST_PHASES(dense_weight_gradient)

// Partial gradients of the biases, (N) each. One thread per number, samples ascending, tiles in order.
extern "C" __global__ void dense_bias_gradient(const f32* dz, f32* partial, Size size, Slices slices) {
    u64 i = thread_number();
    if (i >= (u64)slices.count * slices.groups * size.n_out) return;
    u32 index = (u32)(i / size.n_out), column = (u32)(i % size.n_out);
    Group group(slices, index);
    f32 total = 0.0f;
    for (u32 first = group.first; first < group.end; first += TILE) {
        u32 end = part_end(first, TILE, group.end);
        f32 part = 0.0f;
        for (u32 sample = first; sample < end; ++sample) {
            part += dz[(u64)sample * size.n_out + column];
        }
        total += part;
    }
    partial[index * slices.stride + column] = total;
}
HOST_KERNEL(dense_bias_gradient)

// Gradient (P) from partial gradients: the groups of a slice in order, then neighbouring slices, then neighbouring sums, until one is
// left; the number of slices is a power of two up to 16. One thread per parameter.
extern "C" __global__ void dense_sum_gradients(const f32* partial, f32* gradient, Slices slices, u64 len) {
    u64 i = thread_number();
    if (i >= len) return;
    Tree<f32> tree;
    for (u32 slice = 0; slice < slices.count; ++slice) {
        f32 sum = 0.0f;
        for (u32 group = 0; group < slices.groups; ++group) {
            sum += partial[(u64)(slice * slices.groups + group) * slices.stride + i];
        }
        tree.add(slice, sum);
    }
    gradient[i] = tree.sum;
}
HOST_KERNEL(dense_sum_gradients)
