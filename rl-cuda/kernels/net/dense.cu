// Dense layers and their gradients: the twin of rl-agents/src/kernel/dense.rs and of the products in gemm.rs.
//
// y = f(x W + b); dx = dz W^T f'(x); dW = x^T dz, db = sum of dz. Matrices are row-major: x (m, K), W (K, N), b (N), y and dz (m, N).
//
// The bias starts the first part of a sum over K terms (product.cuh). Gradients of weights have a part for each tile of 96 samples.

#include "product.cuh"

typedef Threads<Sums, THREADS> Block;

extern "C" __global__ void __launch_bounds__(THREADS, 3)
dense_forward(const f32* weight, const f32* bias, const f32* x, f32* y, Size size) {
    __shared__ Operands operands;
    Block threads;
    Place place(blockIdx.x, size.n_out);
    begin_at_bias(threads, place, bias, size.n_out);
    ByRows a = {x, place.row, size.m, size.n_in};
    ByTerms b = {weight, place.column, size.n_out};
    add_terms(threads, operands, 0, size.n_in, part_len(size.n_in), a, b, false);
    threads.each([&](u32 t, Sums& sums) {
        each_inside(t, sums, place, size.m, size.n_out, [&](u32 row, u32 column, f32 total) {
            y[(u64)row * size.n_out + column] = activate(size.activation, total);
        });
    });
}
HOST_PHASES(dense_forward)

// Gradient dx (m, K) of a layer's inputs y, from the gradient dz (m, N) of its sums. With `add` the product is added to dx. The
// derivative of the activation that made y is applied last; the activation is none where another product will be added.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
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
    ByRows a = {dz, place.row, size.m, size.n_out}, b = {weight, place.column, size.n_in, size.n_out};
    add_terms<2>(threads, operands, 0, size.n_out, part_len(size.n_out), a, b, add != 0);
    threads.each([&](u32 t, Sums& sums) {
        each_inside(t, sums, place, size.m, size.n_in, [&](u32 row, u32 column, f32 total) {
            u64 at = (u64)row * size.n_in + column;
            dx[at] = size.activation == ACTIVATION_NONE ? total : derive(size.activation, y[at], total);
        });
    });
}
HOST_PHASES(dense_input_gradient)

// Partial gradients of the weights, (K, N) each.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
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
    ByTerms a = {x, place.row, size.n_in}, b = {dz, place.column, size.n_out};
    group.each_block([&](u32 begin, u32 end) { add_terms(threads, operands, begin, end, TILE, a, b, true); });
    f32* to = partial + index * slices.stride;
    threads.each([&](u32 t, Sums& sums) {
        each_inside(t, sums, place, size.n_in, size.n_out, [&](u32 row, u32 column, f32 total) {
            to[(u64)row * size.n_out + column] = total;
        });
    });
}
HOST_PHASES(dense_weight_gradient)

const u32 BIAS_COLUMNS = 32, BIAS_TILES = 8; // of a block
const u32 BIAS_THREADS = BIAS_COLUMNS * BIAS_TILES;

struct Bias {
    f32 total;
};

// Partial gradients of the biases, (N) each: samples ascending, tiles in order. A block has 32 columns of a group, and a thread for each of
// them and each of eight tiles at a time.
extern "C" __global__ void __launch_bounds__(BIAS_THREADS)
dense_bias_gradient(const f32* dz, f32* partial, Size size, Slices slices) {
    __shared__ f32 parts[BIAS_THREADS];
    Threads<Bias, BIAS_THREADS> threads;
    u32 across = (size.n_out + BIAS_COLUMNS - 1) / BIAS_COLUMNS, index = blockIdx.x / across;
    u32 first = blockIdx.x % across * BIAS_COLUMNS;
    Group group(slices, index);
    threads.each([&](u32, Bias& bias) { bias.total = 0.0f; });
    group.each_block([&](u32 of_block, u32 end_of_block) {
#pragma unroll 1
        for (u32 tiles = of_block; tiles < end_of_block; tiles += BIAS_TILES * TILE) {
            threads.phase([&](u32 t, Bias&) {
                u32 column = first + t % BIAS_COLUMNS, begin = tiles + t / BIAS_COLUMNS * TILE;
                if (column >= size.n_out || begin >= end_of_block) return;
                u32 end = part_end(begin, TILE, end_of_block);
                f32 part = 0.0f;
#pragma unroll 16
                for (u32 sample = begin; sample < end; ++sample) {
                    part += dz[(u64)sample * size.n_out + column];
                }
                parts[t] = part;
            });
            threads.phase([&](u32 t, Bias& bias) {
                if (t >= BIAS_COLUMNS || first + t >= size.n_out) return;
                for (u32 tile = 0; tile < BIAS_TILES && tiles + tile * TILE < end_of_block; ++tile) {
                    bias.total += parts[tile * BIAS_COLUMNS + t];
                }
            });
        }
    });
    threads.each([&](u32 t, Bias& bias) {
        if (t < BIAS_COLUMNS && first + t < size.n_out) {
            partial[index * slices.stride + first + t] = bias.total;
        }
    });
}
HOST_PHASES(dense_bias_gradient)

const u32 SUM_PARAMS = 32; // of a block
const u32 SUM_THREADS = SUM_PARAMS * 16;

struct Nothing {};

// Gradient (P) from partial gradients: the groups of a slice in order, then neighbouring slices, then neighbouring sums, until one is
// left; the number of slices is a power of two up to 16. A block has 32 parameters, and a thread for each of their slices.
extern "C" __global__ void __launch_bounds__(SUM_THREADS)
dense_sum_gradients(const f32* partial, f32* gradient, Slices slices, u64 len) {
    __shared__ f32 of_slices[SUM_THREADS];
    Threads<Nothing, SUM_THREADS> threads;
    u64 first = (u64)blockIdx.x * SUM_PARAMS;
    threads.phase([&](u32 t, Nothing&) {
        u64 i = first + t % SUM_PARAMS;
        u32 slice = t / SUM_PARAMS;
        if (i >= len || slice >= slices.cut.slices) return;
        const f32* of_slice = partial + (u64)slice * slices.groups * slices.stride + i;
        f32 sum = 0.0f;
#pragma unroll 8
        for (u32 group = 0; group < slices.groups; ++group) {
            sum += of_slice[group * slices.stride];
        }
        of_slices[t] = sum;
    });
    threads.each([&](u32 t, Nothing&) {
        if (t >= SUM_PARAMS || first + t >= len) return;
        Tree<f32> tree;
        for (u32 slice = 0; slice < slices.cut.slices; ++slice) {
            tree.add(slice, of_slices[slice * SUM_PARAMS + t]);
        }
        gradient[first + t] = tree.sum;
    });
}
HOST_PHASES(dense_sum_gradients)
