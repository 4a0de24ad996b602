// Convolutions and their gradients: the twin of rl-agents/src/kernel/conv.rs.
//
// Inputs of the first layer are planes, (channels, rows, columns); inputs of others, and outputs, are (rows, columns, channels). A
// position is an output's row and column; a term is an input under the kernel. Input (position p, term t) of a sample is at
// positions[p] + terms[t], ascending; order[t] is the term's place in a row of the weights, (out, in, kernel, kernel). A product's row
// is a position of a sample: y = f(patches W^T + b), without any patch in memory.
//
// Samples of a tile pass the gradients in groups of `together`. A group's gradient has parts as any product (product.cuh), is added to
// its tile's, and that to the slice's.

#include "product.cuh"

typedef Threads<Sums, THREADS> Block;

struct Shape {
    u32 m, in_len, n_in, n_out, kernel, stride, in_rows, in_columns, out_rows, out_columns, activation, together;

    __device__ u32 n_positions() const {
        return out_rows * out_columns;
    }

    __device__ u32 n_terms() const {
        return n_in * kernel * kernel;
    }
};

// Inputs of the samples, and the places of their terms.
struct Patches {
    const f32* x;
    const u32* positions;
    const u32* terms;
    u32 n_positions, in_len;

    __device__ f32 at(u32 row, u32 term) const {
        return x[(u64)(row / n_positions) * in_len + positions[row % n_positions] + terms[term]];
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 2)
conv_forward(const f32* weight, const f32* bias, const f32* x, f32* y, const u32* positions, const u32* terms, const u32* order,
             Shape shape) {
    __shared__ Operands operands;
    Block threads;
    Place place(blockIdx.x, shape.n_out);
    Patches patches = {x, positions, terms, shape.n_positions(), shape.in_len};
    u32 rows = shape.m * shape.n_positions(), n_terms = shape.n_terms();
    begin_at_bias(threads, place, bias, shape.n_out);
    auto a = each<true>([&](u32 row, u32 term) { return patches.at(least(place.row + row, rows - 1), term); });
    auto b = each<true>([&](u32 column, u32 term) {
        return weight[(u64)least(place.column + column, shape.n_out - 1) * n_terms + order[term]];
    });
    add_terms(threads, operands, 0, n_terms, part_len(n_terms), a, b, false);
    threads.each([&](u32 t, Sums& sums) {
        each_inside(t, sums, place, rows, shape.n_out, [&](u32 row, u32 column, f32 total) {
            y[(u64)row * shape.n_out + column] = activate(shape.activation, total);
        });
    });
}
HOST_PHASES(conv_forward)

// Partial gradients of the weights, from the gradient dz (m, positions, N) of the sums.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
conv_weight_gradient(const f32* x, const f32* dz, f32* partial, const u32* positions, const u32* terms, const u32* order, Shape shape,
                     Slices slices) {
    __shared__ Operands operands;
    __shared__ f32 whole[ROWS][COLUMNS][THREADS]; // sums of all tiles; registers are too few
    Block threads;
    u32 n_terms = shape.n_terms(), n_positions = shape.n_positions();
    u32 blocks = (n_terms + SIDE - 1) / SIDE * ((shape.n_out + SIDE - 1) / SIDE);
    u32 index = blockIdx.x / blocks;
    Place place(blockIdx.x % blocks, shape.n_out);
    Group group(slices, index);
    Patches patches = {x, positions, terms, n_positions, shape.in_len};
    threads.each([&](u32 t, Sums& sums) {
#pragma unroll
        for (u32 i = 0; i < ROWS; ++i) {
#pragma unroll
            for (u32 j = 0; j < COLUMNS; ++j) {
                whole[i][j][t] = sums.total[i][j] = sums.part[i][j] = 0.0f;
            }
        }
    });
    auto a = each<false>([&](u32 row, u32 term) { return patches.at(term, least(place.row + row, n_terms - 1)); });
    ByTerms b = {dz, place.column, shape.n_out};
    group.each_block([&](u32 of_block, u32 end_of_block) {
        for (u32 tile = of_block; tile < end_of_block; tile += TILE) {
            u32 tile_end = part_end(tile, TILE, end_of_block);
            for (u32 sample = tile; sample < tile_end; sample += shape.together) {
                u32 first = sample * n_positions, end = part_end(sample, shape.together, tile_end) * n_positions;
                add_terms(threads, operands, first, end, part_len(end - first), a, b, true);
            }
            threads.each([&](u32 t, Sums& sums) {
#pragma unroll
                for (u32 i = 0; i < ROWS; ++i) {
#pragma unroll
                    for (u32 j = 0; j < COLUMNS; ++j) {
                        whole[i][j][t] += sums.total[i][j];
                        sums.total[i][j] = 0.0f;
                    }
                }
            });
        }
    });
    f32* to = partial + index * slices.stride;
    threads.each([&](u32 t, Sums&) {
#pragma unroll
        for (u32 i = 0; i < ROWS; ++i) {
            for (u32 j = 0; j < COLUMNS; ++j) {
                u32 row = place.row + row_of(t) * ROWS + i, column = place.column + group_of(t) * COLUMNS + j;
                if (row < n_terms && column < shape.n_out) {
                    to[(u64)column * n_terms + order[row]] = whole[i][j][t];
                }
            }
        }
    });
}
HOST_PHASES(conv_weight_gradient)

const u32 BIAS_COLUMNS = 32, BIAS_SAMPLES = 8; // of a block
const u32 BIAS_THREADS = BIAS_COLUMNS * BIAS_SAMPLES;

struct Bias {
    f32 total, whole;
};

// Partial gradients of the biases, (N) each: positions of a sample, samples of a tile, tiles, each in order. A block has 32 columns, and a
// thread for each of them and of 8 samples.
extern "C" __global__ void __launch_bounds__(BIAS_THREADS)
conv_bias_gradient(const f32* dz, f32* partial, Shape shape, Slices slices) {
    __shared__ f32 parts[BIAS_THREADS];
    Threads<Bias, BIAS_THREADS> threads;
    u32 across = (shape.n_out + BIAS_COLUMNS - 1) / BIAS_COLUMNS, index = blockIdx.x / across;
    u32 first = blockIdx.x % across * BIAS_COLUMNS, n_positions = shape.n_positions();
    Group group(slices, index);
    threads.each([&](u32, Bias& bias) { bias.whole = 0.0f; });
    group.each_block([&](u32 of_block, u32 end_of_block) {
        for (u32 tile = of_block; tile < end_of_block; tile += TILE) {
            u32 end = part_end(tile, TILE, end_of_block);
            threads.each([&](u32, Bias& bias) { bias.total = 0.0f; });
#pragma unroll 1
            for (u32 samples = tile; samples < end; samples += BIAS_SAMPLES) {
                threads.phase([&](u32 t, Bias&) {
                    u32 column = first + t % BIAS_COLUMNS, sample = samples + t / BIAS_COLUMNS;
                    if (column >= shape.n_out || sample >= end) return;
                    f32 part = 0.0f;
#pragma unroll 4
                    for (u32 position = 0; position < n_positions; ++position) {
                        part += dz[((u64)sample * n_positions + position) * shape.n_out + column];
                    }
                    parts[t] = part;
                });
                threads.phase([&](u32 t, Bias& bias) {
                    if (t >= BIAS_COLUMNS || first + t >= shape.n_out) return;
                    for (u32 sample = 0; sample < BIAS_SAMPLES && samples + sample < end; ++sample) {
                        bias.total += parts[sample * BIAS_COLUMNS + t];
                    }
                });
            }
            threads.each([&](u32, Bias& bias) { bias.whole += bias.total; });
        }
    });
    threads.each([&](u32 t, Bias& bias) {
        if (t < BIAS_COLUMNS && first + t < shape.n_out) partial[index * slices.stride + first + t] = bias.whole;
    });
}
HOST_PHASES(conv_bias_gradient)

// Gradient dx (m, rows, columns, channels) of the sums of the layer before, whose outputs are y. One thread per number.
//
// Each row of the kernel, and each column of it, adds the sum over the outputs of the position that it covers; a long sum has parts.
extern "C" __global__ void conv_input_gradient(const f32* weight, const f32* dz, const f32* y, f32* dx, Shape shape) {
    u64 i = thread_number();
    if (i >= (u64)shape.m * shape.in_len) return;
    u64 sample = i / shape.in_len;
    u32 at = (u32)(i % shape.in_len);
    u32 channel = at % shape.n_in, column = at / shape.n_in % shape.in_columns, row = at / shape.n_in / shape.in_columns;
    u32 n_terms = shape.n_terms(), len = part_len(shape.n_out);
    f32 total = 0.0f;
    for (u32 kernel_row = 0; kernel_row < shape.kernel && kernel_row <= row; ++kernel_row) {
        u32 above = (row - kernel_row) / shape.stride;
        if ((row - kernel_row) % shape.stride != 0 || above >= shape.out_rows) continue;
        for (u32 kernel_column = 0; kernel_column < shape.kernel && kernel_column <= column; ++kernel_column) {
            u32 left = (column - kernel_column) / shape.stride;
            if ((column - kernel_column) % shape.stride != 0 || left >= shape.out_columns) continue;
            const f32* gradient = dz + ((sample * shape.out_rows + above) * shape.out_columns + left) * shape.n_out;
            const f32* weights = weight + ((u64)channel * shape.kernel + kernel_row) * shape.kernel + kernel_column;
            for (u32 first = 0; first < shape.n_out; first += len) {
                u32 end = part_end(first, len, shape.n_out);
                f32 part = 0.0f;
                for (u32 out = first; out < end; ++out) {
                    part = fmaf(gradient[out], weights[(u64)out * n_terms], part);
                }
                total += part;
            }
        }
    }
    dx[i] = shape.activation == ACTIVATION_NONE ? total : derive(shape.activation, y[i], total);
}
HOST_KERNEL(conv_input_gradient)
