// Narrow networks: all layers of a chain in one launch, for layers of at most 64 inputs and outputs. The sums are those of dense.cu, in the
// same order: a sum over so few terms has one part.
//
// A chain is a sequence of layers that starts at the inputs. A block takes some samples through all layers of one chain; what one layer
// leaves for the next stays in shared memory. Matrices lie there row by row, in groups of four columns (`spot`).

#include "product.cuh"

const u32 WIDTH = 64; // largest number of inputs or outputs of a layer
const u32 LAYERS = 4; // of a chain at most
const u32 SAMPLES = 32; // that pass a layer at the same time
const u32 FEW = 4; // columns, of which every thread has one
const u32 SHORT = 8; // rows, of which every thread has four

// A layer. Offsets count numbers: of its weights among the parameters, of its outputs, and of the gradient of its sums.
struct Layer {
    u32 n_in, n_out, activation, params, outputs, deltas;
};

struct Chain {
    u32 n_layers;
    Layer layers[LAYERS];
};

// Place of a number. Groups of four columns are swapped from row to row, so that the threads of a warp meet in no bank, whether they
// read neighbouring groups of a row or the same group of neighbouring rows.
__device__ inline u32 spot(u32 row, u32 column) {
    return row * WIDTH + ((column / 4 ^ row % 16) * 4 + column % 4);
}

__device__ inline float4 four(const f32* matrix, u32 row, u32 column) {
    return *(const float4*)&matrix[spot(row, column)];
}

// Copies a matrix of neighbouring rows to shared memory, loads before stores. What the matrix lacks of MOST rows and of columns repeats
// its last ones. A thread loads AT_ONCE numbers before it stores the first.
template <u32 MOST, u32 AT_ONCE>
__device__ __forceinline__ void copy_rows(u32 t, f32* to, const f32* from, u32 rows, u32 columns) {
    u32 row = t / WIDTH, column = t % WIDTH;
    from += least(column, columns - 1);
#pragma unroll 1
    for (u32 first = row; first < MOST; first += 2 * AT_ONCE) {
        f32 x[AT_ONCE];
#pragma unroll
        for (u32 step = 0; step < AT_ONCE; ++step) {
            x[step] = from[least(first + 2 * step, rows - 1) * columns];
        }
#pragma unroll
        for (u32 step = 0; step < AT_ONCE; ++step) {
            to[spot(first + 2 * step, column)] = x[step];
        }
    }
}

// Sums of four rows by four columns.
struct Square {
    f32 sums[4][4];
};

// Adds four terms: x[i] of row i, y[q] of term q in four columns.
__device__ __forceinline__ void add_four(Square& square, const float4 (&x)[4], const float4 (&y)[4]) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        const f32 terms[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
        for (u32 q = 0; q < 4; ++q) {
            square.sums[i][0] = fmaf(terms[q], y[q].x, square.sums[i][0]);
            square.sums[i][1] = fmaf(terms[q], y[q].y, square.sums[i][1]);
            square.sums[i][2] = fmaf(terms[q], y[q].z, square.sums[i][2]);
            square.sums[i][3] = fmaf(terms[q], y[q].w, square.sums[i][3]);
        }
    }
}

// Outputs of `n_chains` chains from `first_chain` on, for m samples: inputs (m, K) of each chain's first layer. The last layer's outputs
// begin at row `first`. With flags (m) of what is needed, a block none of whose samples is needed leaves their outputs.
extern "C" __global__ void __launch_bounds__(THREADS)
narrow_forward(const Chain* chains, const f32* params, const f32* inputs, f32* outputs, const u8* needed, const u8* or_needed, u32 m,
               u32 first, u32 first_chain, u32 n_chains) {
    __shared__ float4 of_x[SAMPLES * WIDTH / 4], of_weights[WIDTH * WIDTH / 4];
    f32 *x = (f32*)of_x, *weights = (f32*)of_weights;
    Threads<Square, THREADS> threads;
    const Chain& chain = chains[first_chain + blockIdx.x % n_chains];
    u32 begin = blockIdx.x / n_chains * SAMPLES, rows = least(m - begin, SAMPLES), n_layers = chain.n_layers;
    if (needed != nullptr) {
        u32 any = 0;
#pragma unroll 8
        for (u32 i = begin; i < begin + rows; ++i) {
            any |= needed[i] | or_needed[i];
        }
        if (any == 0) return;
    }
    threads.phase([&](u32 t, Square&) {
        u32 n_in = chain.layers[0].n_in;
        copy_rows<SAMPLES, 16>(t, x, inputs + (u64)begin * n_in, rows, n_in);
        copy_rows<WIDTH, 16>(t, weights, params + chain.layers[0].params, n_in, chain.layers[0].n_out);
    });
#pragma unroll 1
    for (u32 l = 0; l < n_layers; ++l) {
        const Layer layer = chain.layers[l];
        const f32* bias = params + layer.params + layer.n_in * layer.n_out;
        bool is_last = l + 1 == n_layers;
        threads.phase([&](u32 t, Square& square) {
            if (layer.n_out <= FEW) {
                u32 row = t % SAMPLES, column = t / SAMPLES;
                if (column >= layer.n_out) return;
                f32 sum = bias[column];
#pragma unroll 8
                for (u32 k = 0; k < layer.n_in; ++k) {
                    sum = fmaf(x[spot(row, k)], weights[spot(k, column)], sum);
                }
                square.sums[0][0] = sum;
                return;
            }
            u32 row = t / 16 * 4, column = t % 16 * 4;
            if (column >= layer.n_out) return;
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                f32 start = bias[least(column + j, layer.n_out - 1)];
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    square.sums[i][j] = start;
                }
            }
            u32 k = 0;
#pragma unroll 2
            for (; k + 4 <= layer.n_in; k += 4) {
                const float4 a[4] = {four(x, row, k), four(x, row + 1, k), four(x, row + 2, k), four(x, row + 3, k)};
                const float4 b[4] = {four(weights, k, column), four(weights, k + 1, column), four(weights, k + 2, column),
                                     four(weights, k + 3, column)};
                add_four(square, a, b);
            }
#pragma unroll 1
            for (; k < layer.n_in; ++k) {
                float4 b = four(weights, k, column);
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    f32 a = x[spot(row + i, k)];
                    square.sums[i][0] = fmaf(a, b.x, square.sums[i][0]);
                    square.sums[i][1] = fmaf(a, b.y, square.sums[i][1]);
                    square.sums[i][2] = fmaf(a, b.z, square.sums[i][2]);
                    square.sums[i][3] = fmaf(a, b.w, square.sums[i][3]);
                }
            }
        });
        threads.phase([&](u32 t, Square& square) {
            f32* y = outputs + layer.outputs + (u64)(begin + (is_last ? first : 0)) * layer.n_out;
            if (layer.n_out <= FEW) {
                u32 row = t % SAMPLES, column = t / SAMPLES;
                if (column < layer.n_out) {
                    f32 number = activate(layer.activation, square.sums[0][0]);
                    x[spot(row, column)] = number;
                    if (row < rows) {
                        y[(u64)row * layer.n_out + column] = number;
                    }
                }
            } else if (t % 16 * 4 < layer.n_out) {
                u32 row = t / 16 * 4, column = t % 16 * 4;
                bool is_whole = layer.n_out % 4 == 0;
                f32 all[16];
#pragma unroll
                for (u32 i = 0; i < 16; ++i) {
                    all[i] = square.sums[i / 4][i % 4];
                }
                activate_all(layer.activation, all);
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    float4 numbers = {all[4 * i], all[4 * i + 1], all[4 * i + 2], all[4 * i + 3]};
                    *(float4*)&x[spot(row + i, column)] = numbers;
                    if (row + i >= rows) continue;
                    f32* to = y + (u64)(row + i) * layer.n_out + column;
                    if (is_whole) {
                        *(float4*)to = numbers;
                        continue;
                    }
                    to[0] = numbers.x;
                    if (column + 1 < layer.n_out) to[1] = numbers.y;
                    if (column + 2 < layer.n_out) to[2] = numbers.z;
                    if (column + 3 < layer.n_out) to[3] = numbers.w;
                }
            }
            if (!is_last) {
                const Layer& next = chain.layers[l + 1];
                copy_rows<WIDTH, 16>(t, weights, params + next.params, next.n_in, next.n_out);
            }
        });
    }
}
HOST_PHASES(narrow_forward)

// Sums of a thread in the gradients of a layer: a part of its weights and of its biases, and the gradient of some inputs.
struct Gradients {
    f32 part[ROWS][COLUMNS];
    f32 bias;
    Square dx;
};

// Writes a tile's part to the sum of a group's tiles.
__device__ inline void add_part(f32* to, f32 part, bool is_first) {
    *to = (is_first ? 0.0f : *to) + part;
}

// Partial gradients of all chains, from the gradient of their last layers' sums. The samples are those of `slices`; they begin at row
// `held` of the inputs and of all outputs but the last layers', and at row `first` of the last layers' gradients.
//
// A block takes the tiles of a group through the layers of one chain, the last one first.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
narrow_gradient(const Chain* chains, const f32* params, const f32* inputs, const f32* outputs, const f32* deltas, f32* partial,
                Slices slices, u32 held, u32 first, u32 n_chains) {
    __shared__ float4 of_dz[TILE * WIDTH / 4], of_x[SAMPLES * WIDTH / 4], of_weights[WIDTH * WIDTH / 4];
    f32 *dz = (f32*)of_dz, *x = (f32*)of_x, *weights = (f32*)of_weights;
    Threads<Gradients, THREADS> threads;
    const Chain& chain = chains[blockIdx.x % n_chains];
    u32 index = blockIdx.x / n_chains;
    Group group(slices, index);
    f32* to = partial + index * slices.stride;
    if (group.first >= group.end) { // an empty group adds nothing
        threads.each([&](u32 t, Gradients&) {
            for (u32 l = 0; l < chain.n_layers; ++l) {
                const Layer& layer = chain.layers[l];
                for (u32 i = t; i < (layer.n_in + 1) * layer.n_out; i += THREADS) {
                    to[layer.params + i] = 0.0f;
                }
            }
        });
        return;
    }
#pragma unroll 1
    for (u32 begin = group.first; begin < group.end; begin += TILE) {
        u32 n = part_end(begin, TILE, group.end) - begin;
        bool is_first = begin == group.first;
        threads.each([&](u32 t, Gradients&) {
            const Layer& last = chain.layers[chain.n_layers - 1];
            copy_rows<TILE, 8>(t, dz, deltas + last.deltas + (u64)(first + begin) * last.n_out, n, last.n_out);
        });
#pragma unroll 1
        for (u32 after = chain.n_layers; after > 0; --after) {
            u32 l = after - 1;
            const Layer layer = chain.layers[l];
            const Layer before = chain.layers[l == 0 ? 0 : l - 1];
            const f32* from = l == 0 ? inputs : outputs + before.outputs;
            threads.each([&](u32 t, Gradients& own) {
                own.bias = 0.0f;
#pragma unroll
                for (u32 i = 0; i < ROWS; ++i) {
#pragma unroll
                    for (u32 j = 0; j < COLUMNS; ++j) {
                        own.part[i][j] = 0.0f;
                    }
                }
            });
#pragma unroll 1
            for (u32 sample = 0; sample < n; sample += SAMPLES) {
                u32 rows = least(n - sample, SAMPLES);
                threads.phase([&](u32 t, Gradients&) {
                    renew(t);
                    if (l > 0 && sample == 0) {
                        copy_rows<WIDTH, 8>(t, weights, params + layer.params, layer.n_in, layer.n_out);
                    }
                    copy_rows<SAMPLES, 8>(t, x, from + (u64)(held + begin + sample) * layer.n_in, rows, layer.n_in);
                });
                threads.phase([&](u32 t, Gradients& own) {
                    renew(t);
                    if (t < layer.n_out) {
#pragma unroll 4
                        for (u32 s = 0; s < rows; ++s) {
                            own.bias += dz[spot(sample + s, t)];
                        }
                    }
                    if (layer.n_out <= FEW) { // a row, and one or two columns
                        u32 row = t % WIDTH, column = t / WIDTH;
                        if (row < layer.n_in && column < layer.n_out) {
#pragma unroll 4
                            for (u32 s = 0; s < rows; ++s) {
                                f32 a = x[spot(s, row)];
                                own.part[0][0] = fmaf(a, dz[spot(sample + s, column)], own.part[0][0]);
                                own.part[0][1] = fmaf(a, dz[spot(sample + s, column + 2)], own.part[0][1]);
                            }
                        }
                    } else if (layer.n_in <= SHORT) { // four rows, and a column
                        u32 row = t / WIDTH * 4, column = t % WIDTH;
                        if (row < layer.n_in && column < layer.n_out) {
#pragma unroll 4
                            for (u32 s = 0; s < rows; ++s) {
                                f32 b = dz[spot(sample + s, column)];
                                float4 a = four(x, s, row);
                                own.part[0][0] = fmaf(a.x, b, own.part[0][0]);
                                own.part[0][1] = fmaf(a.y, b, own.part[0][1]);
                                own.part[0][2] = fmaf(a.z, b, own.part[0][2]);
                                own.part[0][3] = fmaf(a.w, b, own.part[0][3]);
                            }
                        }
                    } else if (t / 16 * ROWS < layer.n_in && t % 16 * COLUMNS < layer.n_out) {
                        u32 row = t / 16 * ROWS, column = t % 16 * COLUMNS;
#pragma unroll 2
                        for (u32 s = 0; s < rows; ++s) {
                            float4 low = four(x, s, row), high = four(x, s, row + 4), b = four(dz, sample + s, column);
                            const f32 a[ROWS] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
                            for (u32 i = 0; i < ROWS; ++i) {
                                own.part[i][0] = fmaf(a[i], b.x, own.part[i][0]);
                                own.part[i][1] = fmaf(a[i], b.y, own.part[i][1]);
                                own.part[i][2] = fmaf(a[i], b.z, own.part[i][2]);
                                own.part[i][3] = fmaf(a[i], b.w, own.part[i][3]);
                            }
                        }
                    }
                });
                if (l == 0) continue;
                threads.phase([&](u32 t, Gradients& own) { // four rows, and every sixteenth column
                    renew(t);
                    u32 row = sample + t / 16 * 4, column = t % 16;
#pragma unroll
                    for (u32 i = 0; i < 4; ++i) {
#pragma unroll
                        for (u32 j = 0; j < 4; ++j) {
                            own.dx.sums[i][j] = 0.0f;
                        }
                    }
                    u32 k = 0;
#pragma unroll 1
                    for (; k + 4 <= layer.n_out; k += 4) {
                        const float4 a[4] = {four(dz, row, k), four(dz, row + 1, k), four(dz, row + 2, k), four(dz, row + 3, k)};
                        const float4 of_column[4] = {four(weights, column, k), four(weights, column + 16, k),
                                                     four(weights, column + 32, k), four(weights, column + 48, k)};
                        const float4 b[4] = {
                            {of_column[0].x, of_column[1].x, of_column[2].x, of_column[3].x},
                            {of_column[0].y, of_column[1].y, of_column[2].y, of_column[3].y},
                            {of_column[0].z, of_column[1].z, of_column[2].z, of_column[3].z},
                            {of_column[0].w, of_column[1].w, of_column[2].w, of_column[3].w},
                        };
                        add_four(own.dx, a, b);
                    }
#pragma unroll 1
                    for (; k < layer.n_out; ++k) {
#pragma unroll
                        for (u32 i = 0; i < 4; ++i) {
                            f32 a = dz[spot(row + i, k)];
#pragma unroll
                            for (u32 j = 0; j < 4; ++j) {
                                own.dx.sums[i][j] = fmaf(a, weights[spot(column + 16 * j, k)], own.dx.sums[i][j]);
                            }
                        }
                    }
                });
                // These samples' gradients of the sums have served.
                threads.phase([&](u32 t, Gradients& own) {
                    renew(t);
                    u32 row = t / 16 * 4, column = t % 16;
#pragma unroll
                    for (u32 i = 0; i < 4; ++i) {
#pragma unroll
                        for (u32 j = 0; j < 4; ++j) {
                            u32 at = spot(row + i, column + 16 * j);
                            dz[sample * WIDTH + at] = derive(before.activation, x[at], own.dx.sums[i][j]);
                        }
                    }
                });
            }
            f32* of_weights = to + layer.params;
            threads.each([&](u32 t, Gradients& own) {
                if (t < layer.n_out) {
                    add_part(of_weights + layer.n_in * layer.n_out + t, own.bias, is_first);
                }
                if (layer.n_out <= FEW) {
                    u32 row = t % WIDTH, column = t / WIDTH;
                    for (u32 j = 0; j < 2; ++j) {
                        if (row < layer.n_in && column + 2 * j < layer.n_out) {
                            add_part(of_weights + row * layer.n_out + column + 2 * j, own.part[0][j], is_first);
                        }
                    }
                    return;
                }
                if (layer.n_in <= SHORT) {
                    u32 row = t / WIDTH * 4, column = t % WIDTH;
                    for (u32 j = 0; j < 4; ++j) {
                        if (row + j < layer.n_in && column < layer.n_out) {
                            add_part(of_weights + (row + j) * layer.n_out + column, own.part[0][j], is_first);
                        }
                    }
                    return;
                }
#pragma unroll
                for (u32 i = 0; i < ROWS; ++i) {
#pragma unroll
                    for (u32 j = 0; j < COLUMNS; ++j) {
                        u32 row = t / 16 * ROWS + i, column = t % 16 * COLUMNS + j;
                        if (row < layer.n_in && column < layer.n_out) {
                            add_part(of_weights + row * layer.n_out + column, own.part[i][j], is_first);
                        }
                    }
                }
            });
        }
    }
}
HOST_PHASES(narrow_gradient)
