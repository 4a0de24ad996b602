// Dense layers of up to eight inputs or outputs: the sums of dense.cu, without blocks that such matrices would leave empty.

#include "product.cuh"

const u32 FEW = 8;      // inputs or outputs
const u32 AT_ONCE = 32; // inputs of a sample that a thread loads

// Outputs of a layer with few of them, a thread for each sample.
extern "C" __global__ void few_forward(const f32* weight, const f32* bias, const f32* x, f32* y, Size size) {
    u64 sample = thread_number();
    if (sample >= size.m) return;
    const f32* inputs = x + sample * size.n_in;
    f32 total[FEW], part[FEW];
#pragma unroll
    for (u32 j = 0; j < FEW; ++j) {
        total[j] = 0.0f;
        part[j] = bias[least(j, size.n_out - 1)];
    }
    auto add = [&](u32 term, f32 input) {
        const f32* weights = weight + (u64)term * size.n_out;
#pragma unroll
        for (u32 j = 0; j < FEW; ++j) {
            if (j < size.n_out) {
                part[j] = fmaf(input, weights[j], part[j]);
            }
        }
    };
    u32 len = part_len(size.n_in);
    bool fours = has_fours(x, size.n_in);
#pragma unroll 1
    for (u32 first = 0; first < size.n_in; first += len) {
        u32 end = part_end(first, len, size.n_in), term = first;
#pragma unroll 1
        for (; fours && term + AT_ONCE <= end; term += AT_ONCE) {
            float4 numbers[AT_ONCE / 4];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE / 4; ++i) {
                numbers[i] = four(inputs + term + 4 * i);
            }
#pragma unroll
            for (u32 i = 0; i < AT_ONCE / 4; ++i) {
                add(term + 4 * i, numbers[i].x);
                add(term + 4 * i + 1, numbers[i].y);
                add(term + 4 * i + 2, numbers[i].z);
                add(term + 4 * i + 3, numbers[i].w);
            }
        }
#pragma unroll 1
        for (; term < end; ++term) {
            add(term, inputs[term]);
        }
#pragma unroll
        for (u32 j = 0; j < FEW; ++j) {
            total[j] = first == 0 ? part[j] : total[j] + part[j];
            part[j] = 0.0f;
        }
    }
#pragma unroll
    for (u32 j = 0; j < FEW; ++j) {
        if (j < size.n_out) {
            y[sample * size.n_out + j] = activate(size.activation, total[j]);
        }
    }
}
HOST_KERNEL(few_forward)

const u32 GRADIENT_ROWS = 8; // of a thread

// As dense_input_gradient, of a layer with few outputs. A block has 128 columns of eight rows.
extern "C" __global__ void __launch_bounds__(THREADS)
few_input_gradient(const f32* weight, const f32* dz, const f32* y, f32* dx, Size size, u32 add) {
    u32 across = (size.n_in + THREADS - 1) / THREADS, column = blockIdx.x % across * THREADS + threadIdx.x;
    if (column >= size.n_in) return;
    f32 weights[FEW];
#pragma unroll
    for (u32 j = 0; j < FEW; ++j) {
        weights[j] = weight[(u64)column * size.n_out + least(j, size.n_out - 1)];
    }
#pragma unroll
    for (u32 i = 0; i < GRADIENT_ROWS; ++i) {
        u32 row = blockIdx.x / across * GRADIENT_ROWS + i;
        if (row >= size.m) return;
        const f32* gradients = dz + (u64)row * size.n_out;
        u64 at = (u64)row * size.n_in + column;
        f32 sum = 0.0f;
#pragma unroll
        for (u32 j = 0; j < FEW; ++j) {
            if (j < size.n_out) {
                sum = fmaf(gradients[j], weights[j], sum);
            }
        }
        sum = add ? dx[at] + sum : sum;
        dx[at] = size.activation == ACTIVATION_NONE ? sum : derive(size.activation, y[at], sum);
    }
}
HOST_KERNEL(few_input_gradient)

const u32 FEW_COLUMNS = 32, FEW_TILES = 8; // of a block
const u32 FEW_THREADS = FEW_COLUMNS * FEW_TILES;
const u32 SUMS = FEW + 1; // of a column: the biases count as weights of an input of 1

struct Column {
    f32 totals[SUMS];
};

// Columns of a matrix, and one more of ones.
struct Columns {
    const f32* numbers;
    u32 count;

    __device__ f32 at(u32 sample, u32 column) const {
        return column < count ? numbers[(u64)sample * count + column] : 1.0f;
    }
};

// Writes sums of a column times each of the few, at most N of them; the last one may be written several times.
template <u32 N>
__device__ __forceinline__ void add_samples(const Columns& many, const Columns& few, u32 column, u32 sums, u32 begin, u32 end,
                                            f32 (&parts)[SUMS][FEW_THREADS], u32 t) {
    f32 part[N];
#pragma unroll
    for (u32 j = 0; j < N; ++j) {
        part[j] = 0.0f;
    }
#pragma unroll 8
    for (u32 sample = begin; sample < end; ++sample) {
        f32 number = many.at(sample, column);
#pragma unroll
        for (u32 j = 0; j < N; ++j) {
            part[j] = fmaf(number, few.at(sample, least(j, sums - 1)), part[j]);
        }
    }
#pragma unroll
    for (u32 j = 0; j < N; ++j) {
        parts[least(j, sums - 1)][t] = part[j];
    }
}

// Partial gradients, (K + 1, N) each: of the weights, then of the biases. A block has 32 columns of the larger matrix, x or dz, and a
// thread for each of them and each of eight tiles at a time.
extern "C" __global__ void __launch_bounds__(FEW_THREADS)
few_weight_gradient(const f32* x, const f32* dz, f32* partial, Size size, Slices slices) {
    __shared__ f32 parts[SUMS][FEW_THREADS];
    Threads<Column, FEW_THREADS> threads;
    bool few_outputs = size.n_out <= FEW;
    Columns inputs = {x, size.n_in}, outputs = {dz, size.n_out};
    Columns many = few_outputs ? inputs : outputs, few = few_outputs ? outputs : inputs;
    u32 columns = few_outputs ? size.n_in + 1 : size.n_out, sums = few_outputs ? size.n_out : size.n_in + 1;
    u32 across = (columns + FEW_COLUMNS - 1) / FEW_COLUMNS, index = blockIdx.x / across, first = blockIdx.x % across * FEW_COLUMNS;
    Group group(slices, index);
    threads.each([&](u32, Column& own) {
#pragma unroll
        for (u32 j = 0; j < SUMS; ++j) {
            own.totals[j] = 0.0f;
        }
    });
    group.each_block([&](u32 of_block, u32 end_of_block) {
#pragma unroll 1
        for (u32 tiles = of_block; tiles < end_of_block; tiles += FEW_TILES * TILE) {
            threads.phase([&](u32 t, Column&) {
                u32 column = first + t % FEW_COLUMNS, begin = tiles + t / FEW_COLUMNS * TILE;
                if (column >= columns || begin >= end_of_block) return;
                u32 end = part_end(begin, TILE, end_of_block);
                if (sums <= 2) {
                    add_samples<2>(many, few, column, sums, begin, end, parts, t);
                } else if (sums <= 5) {
                    add_samples<5>(many, few, column, sums, begin, end, parts, t);
                } else {
                    add_samples<SUMS>(many, few, column, sums, begin, end, parts, t);
                }
            });
            threads.phase([&](u32 t, Column& own) {
                if (t >= FEW_COLUMNS || first + t >= columns) return;
                for (u32 tile = 0; tile < FEW_TILES && tiles + tile * TILE < end_of_block; ++tile) {
#pragma unroll
                    for (u32 j = 0; j < SUMS; ++j) {
                        own.totals[j] += parts[least(j, sums - 1)][tile * FEW_COLUMNS + t];
                    }
                }
            });
        }
    });
    f32* to = partial + index * slices.stride;
    threads.each([&](u32 t, Column& own) {
        u32 column = first + t;
        if (t >= FEW_COLUMNS || column >= columns) return;
#pragma unroll
        for (u32 j = 0; j < SUMS; ++j) {
            if (j < sums) {
                to[few_outputs ? (u64)column * size.n_out + j : (u64)j * size.n_out + column] = own.totals[j];
            }
        }
    });
}
HOST_PHASES(few_weight_gradient)
