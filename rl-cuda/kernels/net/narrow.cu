// Narrow networks: all layers of a chain in one launch, for layers of at most 64 inputs and outputs. The sums are those of dense.cu, in the
// same order: a sum over so few terms has one part.
//
// A chain is a sequence of layers that starts at the inputs. A block takes some samples through all layers of one chain; what one layer
// leaves for the next stays in shared memory. Matrices lie there row by row, PITCH numbers apart, so that the threads of a warp meet in no
// bank, whether they read neighbouring groups of four columns or the same group of neighbouring rows.

#include "product.cuh"

const u32 WIDTH = SIDE; // largest number of inputs or outputs of a layer
const u32 LAYERS = 4; // of a chain at most
const u32 FEW = 4; // columns, of which every thread has one or two numbers
const u32 SHORT = 8; // rows, of which every thread has four
const u32 HALF = TILE / 2; // samples that are multiplied at the same time
const u32 GROUPS = THREADS / 16; // of sixteen threads

// A layer. Offsets count numbers: of its weights among the parameters, of its outputs, and of the gradient of its sums.
struct Layer {
    u32 n_in, n_out, activation, params, outputs, deltas;
};

struct Chain {
    u32 n_layers;
    Layer layers[LAYERS];
};

// Ways of a matrix of neighbouring rows to shared memory: if it has FEW columns; if its rows are aligned groups of four; else.
enum Way { WAY_FEW, WAY_FOURS, WAY_ONES };

// Numbers of a thread on their way to shared memory, loads before stores. They are of a matrix of MOST rows; where it has fewer, or fewer
// than 64 columns, its last ones are repeated. A matrix of FEW columns takes the place of four.
struct Ahead {
    f32 x[WIDTH / 2];

    template <Way WAY, u32 MOST>
    __device__ __forceinline__ void fetch_by(u32 t, const f32* from, u32 rows, u32 columns) {
        if (WAY == WAY_FEW) {
            from += least(t % 4, columns - 1);
#pragma unroll
            for (u32 i = 0; i < (MOST + 31) / 32; ++i) {
                x[i] = from[least(t / 4 + 32 * i, rows - 1) * columns];
            }
        } else if (WAY == WAY_FOURS) {
            from += least(t % 16 * 4, columns - 4);
#pragma unroll
            for (u32 i = 0; i < MOST / GROUPS; ++i) {
                float4 numbers = *(const float4*)&from[least(t / 16 + GROUPS * i, rows - 1) * columns];
                x[4 * i] = numbers.x;
                x[4 * i + 1] = numbers.y;
                x[4 * i + 2] = numbers.z;
                x[4 * i + 3] = numbers.w;
            }
        } else {
            from += least(t % WIDTH, columns - 1);
#pragma unroll
            for (u32 i = 0; i < MOST / 2; ++i) {
                x[i] = from[least(t / WIDTH + 2 * i, rows - 1) * columns];
            }
        }
    }

    // Stores what was fetched. BY_FOUR puts row 4 i + j of 64 rows at 16 j + i.
    template <Way WAY, u32 MOST, bool BY_FOUR>
    __device__ __forceinline__ void put_by(u32 t, f32* to) {
        u32 row = WAY == WAY_FEW ? t / 4 : WAY == WAY_FOURS ? t / 16 : t / WIDTH;
        to += (BY_FOUR ? row % 4 * 16 + row / 4 : row) * PITCH;
        if (WAY == WAY_FEW) {
#pragma unroll
            for (u32 i = 0; i < (MOST + 31) / 32; ++i) {
                if (MOST % 32 == 0 || row + 32 * i < MOST) {
                    to[(BY_FOUR ? 8 : 32) * i * PITCH + t % 4] = x[i];
                }
            }
        } else if (WAY == WAY_FOURS) {
#pragma unroll
            for (u32 i = 0; i < MOST / GROUPS; ++i) {
                float4 numbers = {x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]};
                *(float4*)&to[(BY_FOUR ? 2 : GROUPS) * i * PITCH + t % 16 * 4] = numbers;
            }
        } else {
#pragma unroll
            for (u32 i = 0; i < MOST / 2; ++i) {
                to[(BY_FOUR ? i % 2 * 32 + i / 2 : 2 * i) * PITCH + t % WIDTH] = x[i];
            }
        }
    }

    template <u32 MOST>
    __device__ __forceinline__ void fetch(u32 t, const f32* from, u32 rows, u32 columns) {
        if (columns <= FEW) return fetch_by<WAY_FEW, MOST>(t, from, rows, columns);
        if (has_fours(from, columns)) return fetch_by<WAY_FOURS, MOST>(t, from, rows, columns);
        fetch_by<WAY_ONES, MOST>(t, from, rows, columns);
    }

    // Stores what was fetched from there.
    template <u32 MOST>
    __device__ __forceinline__ void put(u32 t, f32* to, const f32* from, u32 columns) {
        if (columns <= FEW) return put_by<WAY_FEW, MOST, false>(t, to);
        if (has_fours(from, columns)) return put_by<WAY_FOURS, MOST, false>(t, to);
        put_by<WAY_ONES, MOST, false>(t, to);
    }

    template <Way WAY, u32 MOST, bool BY_FOUR>
    __device__ static __forceinline__ void copy_by(u32 t, f32* to, const f32* from, u32 rows, u32 columns) {
        Ahead ahead;
        ahead.fetch_by<WAY, MOST>(t, from, rows, columns);
        ahead.put_by<WAY, MOST, BY_FOUR>(t, to);
    }
};

// Copies a matrix to shared memory.
template <u32 MOST, bool BY_FOUR = false>
__device__ __forceinline__ void copy_rows(u32 t, f32* to, const f32* from, u32 rows, u32 columns) {
    if (columns <= FEW) return Ahead::copy_by<WAY_FEW, MOST, BY_FOUR>(t, to, from, rows, columns);
    if (has_fours(from, columns)) return Ahead::copy_by<WAY_FOURS, MOST, BY_FOUR>(t, to, from, rows, columns);
    Ahead::copy_by<WAY_ONES, MOST, BY_FOUR>(t, to, from, rows, columns);
}

// Adds four terms to four columns of a row: x of the row, y[q] of term q.
__device__ __forceinline__ void add_four(f32 (&sums)[4], float4 x, const float4 (&y)[4]) {
    const f32 terms[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (u32 q = 0; q < 4; ++q) {
        add_term(sums, terms[q], y[q]);
    }
}

// Sums of a thread in a layer's outputs: of some rows, in four columns.
template <u32 N>
struct Outputs {
    f32 sums[N][4];
    Ahead weights; // of the next layer
};

template <u32 SAMPLES>
__device__ __forceinline__ void forward(const Chain* chains, const f32* params, const f32* inputs, f32* outputs, const u8* needed,
                                        const u8* or_needed, u32 m, u32 first, u32 first_chain, u32 n_chains, u32 keeps) {
    const u32 N = SAMPLES / GROUPS, APART = THREADS / SAMPLES; // rows of a thread; distance of its numbers in few columns
    __shared__ float4 of_x[SAMPLES * PITCH / 4], of_weights[WIDTH * PITCH / 4];
    f32 *x = (f32*)of_x, *weights = (f32*)of_weights;
    Threads<Outputs<N>, THREADS> threads;
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
    threads.phase([&](u32 t, Outputs<N>&) {
        u32 n_in = chain.layers[0].n_in;
        copy_rows<SAMPLES>(t, x, inputs + (u64)begin * n_in, rows, n_in);
        const f32* from = params + chain.layers[0].params;
        if (n_in <= SHORT) {
            copy_rows<SHORT>(t, weights, from, n_in, chain.layers[0].n_out);
        } else {
            copy_rows<WIDTH>(t, weights, from, n_in, chain.layers[0].n_out);
        }
    });
#pragma unroll 1
    for (u32 l = 0; l < n_layers; ++l) {
        const Layer layer = chain.layers[l];
        const f32* bias = params + layer.params + layer.n_in * layer.n_out;
        bool is_last = l + 1 == n_layers;
        const Layer& next = chain.layers[is_last ? l : l + 1];
        threads.phase([&](u32 t, Outputs<N>& own) {
            if (!is_last) {
                own.weights.template fetch<WIDTH>(t, params + next.params, next.n_in, next.n_out);
            }
            u32 k = 0;
            if (layer.n_out <= FEW) {
                u32 row = t % SAMPLES, column = t / SAMPLES;
                if (column >= layer.n_out) return;
#pragma unroll
                for (u32 j = 0; j < FEW / APART; ++j) {
                    own.sums[0][j] = bias[least(column + j * APART, layer.n_out - 1)];
                }
                const f32 *of_row = x + row * PITCH, *of_column = weights + column;
#pragma unroll 4
                for (; k + 4 <= layer.n_in; k += 4) {
                    float4 a = four(of_row + k);
                    const f32 terms[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
                    for (u32 q = 0; q < 4; ++q) {
#pragma unroll
                        for (u32 j = 0; j < FEW / APART; ++j) {
                            own.sums[0][j] = fmaf(terms[q], of_column[q * PITCH + j * APART], own.sums[0][j]);
                        }
                    }
                    of_column += 4 * PITCH;
                }
#pragma unroll 1
                for (; k < layer.n_in; ++k) {
#pragma unroll
                    for (u32 j = 0; j < FEW / APART; ++j) {
                        own.sums[0][j] = fmaf(of_row[k], of_column[j * APART], own.sums[0][j]);
                    }
                    of_column += PITCH;
                }
                return;
            }
            u32 column = group_of(t) * 4;
            if (column >= layer.n_out) return;
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                f32 start = bias[least(column + j, layer.n_out - 1)];
#pragma unroll
                for (u32 i = 0; i < N; ++i) {
                    own.sums[i][j] = start;
                }
            }
            const f32 *of_rows = x + row_of(t) * PITCH, *of_columns = weights + column;
#pragma unroll 1
            for (; k + 4 <= layer.n_in; k += 4) {
                const float4 b[4] = {four(of_columns), four(of_columns + PITCH), four(of_columns + 2 * PITCH),
                                     four(of_columns + 3 * PITCH)};
#pragma unroll
                for (u32 i = 0; i < N; ++i) {
                    add_four(own.sums[i], four(of_rows + GROUPS * i * PITCH), b);
                }
                of_rows += 4;
                of_columns += 4 * PITCH;
            }
#pragma unroll 1
            for (; k < layer.n_in; ++k, ++of_rows, of_columns += PITCH) {
                float4 b = four(of_columns);
#pragma unroll
                for (u32 i = 0; i < N; ++i) {
                    add_term(own.sums[i], of_rows[GROUPS * i * PITCH], b);
                }
            }
        });
        threads.phase([&](u32 t, Outputs<N>& own) {
            f32* y = outputs + layer.outputs + (u64)(begin + (is_last ? first : 0)) * layer.n_out;
            u32 kept = is_last || keeps != 0 ? rows : 0;
            if (layer.n_out <= FEW) {
                u32 row = t % SAMPLES;
#pragma unroll
                for (u32 j = 0; j < FEW / APART; ++j) {
                    u32 column = t / SAMPLES + j * APART;
                    if (column >= layer.n_out) continue;
                    f32 number = activate(layer.activation, own.sums[0][j]);
                    x[row * PITCH + column] = number;
                    if (row < kept) {
                        y[(u64)row * layer.n_out + column] = number;
                    }
                }
            } else if (group_of(t) * 4 < layer.n_out) {
                u32 column = group_of(t) * 4;
                bool is_whole = layer.n_out % 4 == 0;
                f32* of_rows = x + row_of(t) * PITCH + column;
#pragma unroll
                for (u32 i = 0; i < N; i += 4) {
                    f32 all[16];
#pragma unroll
                    for (u32 at = 0; at < 16; ++at) {
                        all[at] = own.sums[i + at / 4][at % 4];
                    }
                    activate_all(layer.activation, all);
#pragma unroll
                    for (u32 at = 0; at < 4; ++at) {
                        u32 row = row_of(t) + GROUPS * (i + at);
                        float4 numbers = {all[4 * at], all[4 * at + 1], all[4 * at + 2], all[4 * at + 3]};
                        *(float4*)&of_rows[GROUPS * (i + at) * PITCH] = numbers;
                        if (row >= kept) continue;
                        f32* to = y + (u64)row * layer.n_out + column;
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
            }
            if (!is_last) {
                own.weights.template put<WIDTH>(t, weights, params + next.params, next.n_out);
            }
        });
    }
}

// Outputs of `n_chains` chains from `first_chain` on, for m samples: inputs (m, K) of each chain's first layer. The last layer's outputs
// begin at row `first`; those of the other layers are written if the call `keeps` them. With flags (m) of what is needed, a block none of
// whose samples is needed leaves their outputs.
extern "C" __global__ void __launch_bounds__(THREADS)
narrow_forward(const Chain* chains, const f32* params, const f32* inputs, f32* outputs, const u8* needed, const u8* or_needed, u32 m,
               u32 first, u32 first_chain, u32 n_chains, u32 keeps) {
    forward<32>(chains, params, inputs, outputs, needed, or_needed, m, first, first_chain, n_chains, keeps);
}
HOST_PHASES(narrow_forward)

// The same in blocks of twice as many samples, which read less from shared memory.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
narrow_forward_many(const Chain* chains, const f32* params, const f32* inputs, f32* outputs, const u8* needed, const u8* or_needed, u32 m,
                    u32 first, u32 first_chain, u32 n_chains, u32 keeps) {
    forward<64>(chains, params, inputs, outputs, needed, or_needed, m, first, first_chain, n_chains, keeps);
}
HOST_PHASES(narrow_forward_many)

// Sums of a thread in the gradients of a layer: a part of its weights and of its biases, and the gradient of some inputs.
struct Gradients {
    f32 part[ROWS][COLUMNS];
    f32 bias;
    f32 dx[TILE / GROUPS][4];
    Ahead inputs; // of the next samples
};

// Place of a thread's part in the gradient of a layer's weights: eight rows and four columns, or four rows and a column if the layer has
// few inputs or outputs.
struct Corner {
    bool is_thin;
    u32 row, column;

    __device__ Corner(u32 t, const Layer& layer) {
        bool is_few = layer.n_out <= FEW;
        is_thin = is_few || layer.n_in <= SHORT;
        row = is_few ? t % 16 * 4 : is_thin ? t / WIDTH * 4 : row_of(t) * ROWS;
        column = is_few ? t / 16 : is_thin ? t % WIDTH : group_of(t) * COLUMNS;
    }
};

// Adds the products of some samples' four rows and a column.
__device__ __forceinline__ void add_rows(f32 (&part)[4], const f32* rows_of, const f32* column_of, u32 samples) {
#pragma unroll 8
    for (u32 s = 0; s < samples; ++s, rows_of += PITCH, column_of += PITCH) {
        add_term(part, *column_of, four(rows_of));
    }
}

// Samples of a group, of slices without columns: fewer registers than `Group`.
__device__ inline Samples group_of_samples(const Slices& slices, u32 index) {
    u32 slice = index / slices.groups;
    u64 start = (u64)slice * slices.cut.n / slices.cut.slices, stop = (u64)(slice + 1) * slices.cut.n / slices.cut.slices;
    u64 len = (u64)slices.tiles_of_group * TILE;
    u64 begin = start + index % slices.groups * len;
    return {(u32)(begin < stop ? begin : stop), (u32)(begin + len < stop ? begin + len : stop)};
}

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
    // Inputs and weights of a layer share memory.
    __shared__ float4 of_dz[TILE * PITCH / 4], of_both[WIDTH * PITCH / 4];
    f32 *dz = (f32*)of_dz, *x = (f32*)of_both, *weights = (f32*)of_both;
    Threads<Gradients, THREADS> threads;
    const Chain& chain = chains[blockIdx.x % n_chains];
    u32 index = blockIdx.x / n_chains;
    Samples group = group_of_samples(slices, index);
    f32* to = partial + index * slices.stride;
    if (group.begin >= group.end) { // an empty group adds nothing
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
    for (u32 begin = group.begin; begin < group.end; begin += TILE) {
        u32 n = part_end(begin, TILE, group.end) - begin;
        bool is_first = begin == group.begin;
        threads.each([&](u32 t, Gradients&) {
            renew(t);
            const Layer& last = chain.layers[chain.n_layers - 1];
#pragma unroll 1
            for (u32 sample = 0; sample < TILE; sample += HALF) {
                u32 at = least(sample, n - 1);
                const f32* of = deltas + last.deltas + (u64)(first + begin + at) * last.n_out;
                copy_rows<HALF>(t, dz + sample * PITCH, of, least(n - at, HALF), last.n_out);
            }
        });
#pragma unroll 1
        for (u32 after = chain.n_layers; after > 0; --after) {
            u32 l = after - 1;
            const Layer& layer = chain.layers[l];
            const Layer& before = chain.layers[l == 0 ? 0 : l - 1];
            const f32* from = (l == 0 ? inputs : outputs + before.outputs) + (u64)(held + begin) * layer.n_in;
            threads.each([&](u32, Gradients& own) {
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
            for (u32 sample = 0; sample < n; sample += HALF) {
                u32 rows = least(n - sample, HALF);
                bool has_more = sample + HALF < n;
                const f32* more = from + (u64)HALF * layer.n_in;
                threads.phase([&](u32 t, Gradients& own) {
                    renew(t);
                    if (sample == 0) {
                        copy_rows<HALF>(t, x, from, rows, layer.n_in);
                    } else {
                        own.inputs.put<HALF>(t, x, more, layer.n_in);
                    }
                });
                threads.phase([&](u32 t, Gradients& own) {
                    renew(t);
                    if (has_more) {
                        own.inputs.fetch<HALF>(t, more, n - HALF, layer.n_in);
                    }
                    const f32* of = dz + sample * PITCH;
                    if (t >= WIDTH && t - WIDTH < layer.n_out) {
                        const f32* b = of + (t - WIDTH);
#pragma unroll 8
                        for (u32 s = 0; s < rows; ++s, b += PITCH) {
                            own.bias += *b;
                        }
                    }
                    Corner at(t, layer);
                    if (at.row >= layer.n_in || at.column >= layer.n_out) return;
                    const f32 *rows_of = x + at.row, *columns_of = of + at.column;
                    if (at.is_thin) {
                        add_rows(own.part[0], rows_of, columns_of, rows);
                        return;
                    }
#pragma unroll 4
                    for (u32 s = 0; s < rows; ++s, rows_of += PITCH, columns_of += PITCH) {
                        add_term(own.part, rows_of, columns_of);
                    }
                });
            }
            threads.phase([&](u32 t, Gradients& own) {
                renew(t);
                f32* of_weights = to + layer.params;
                if (l > 0) {
                    copy_rows<WIDTH, true>(t, weights, params + layer.params, layer.n_in, layer.n_out);
                }
                if (t >= WIDTH && t - WIDTH < layer.n_out) {
                    add_part(of_weights + layer.n_in * layer.n_out + t - WIDTH, own.bias, is_first);
                }
                Corner at(t, layer);
                of_weights += at.row * layer.n_out + at.column;
                if (at.is_thin) {
#pragma unroll
                    for (u32 j = 0; j < 4; ++j) {
                        if (at.row + j < layer.n_in && at.column < layer.n_out) {
                            add_part(of_weights + j * layer.n_out, own.part[0][j], is_first);
                        }
                    }
                    return;
                }
                bool is_inside = at.row + ROWS <= layer.n_in && at.column + COLUMNS <= layer.n_out;
                if (is_inside && is_first) {
#pragma unroll
                    for (u32 i = 0; i < ROWS; ++i, of_weights += layer.n_out) {
#pragma unroll
                        for (u32 j = 0; j < COLUMNS; ++j) {
                            add_part(of_weights + j, own.part[i][j], true);
                        }
                    }
                    return;
                }
#pragma unroll
                for (u32 i = 0; i < ROWS; ++i, of_weights += layer.n_out) {
#pragma unroll
                    for (u32 j = 0; j < COLUMNS; ++j) {
                        if (at.row + i < layer.n_in && at.column + j < layer.n_out) {
                            add_part(of_weights + j, own.part[i][j], is_first);
                        }
                    }
                }
            });
            if (l == 0) continue;
            threads.phase([&](u32 t, Gradients& own) { // every eighth row, and four columns
                renew(t);
#pragma unroll
                for (u32 i = 0; i < TILE / GROUPS; ++i) {
#pragma unroll
                    for (u32 j = 0; j < 4; ++j) {
                        own.dx[i][j] = 0.0f;
                    }
                }
                if (group_of(t) * 4 >= layer.n_in) return;
                u32 k = 0;
                const f32 *rows_of = dz + row_of(t) * PITCH, *columns_of = weights + group_of(t) * PITCH;
#pragma unroll 1
                for (; k + 4 <= layer.n_out; k += 4) {
                    const float4 of_column[4] = {four(columns_of + k), four(columns_of + 16 * PITCH + k),
                                                 four(columns_of + 32 * PITCH + k), four(columns_of + 48 * PITCH + k)};
                    const float4 b[4] = {
                        {of_column[0].x, of_column[1].x, of_column[2].x, of_column[3].x},
                        {of_column[0].y, of_column[1].y, of_column[2].y, of_column[3].y},
                        {of_column[0].z, of_column[1].z, of_column[2].z, of_column[3].z},
                        {of_column[0].w, of_column[1].w, of_column[2].w, of_column[3].w},
                    };
#pragma unroll
                    for (u32 i = 0; i < TILE / GROUPS; ++i) {
                        add_four(own.dx[i], four(rows_of + GROUPS * i * PITCH + k), b);
                    }
                }
#pragma unroll 1
                for (; k < layer.n_out; ++k) {
#pragma unroll
                    for (u32 i = 0; i < TILE / GROUPS; ++i) {
                        f32 a = rows_of[GROUPS * i * PITCH + k];
#pragma unroll
                        for (u32 j = 0; j < 4; ++j) {
                            own.dx[i][j] = fmaf(a, columns_of[16 * j * PITCH + k], own.dx[i][j]);
                        }
                    }
                }
            });
            // The gradients of this layer's sums have served.
            threads.each([&](u32 t, Gradients& own) {
                renew(t);
                u32 column = group_of(t) * 4;
                if (column >= layer.n_in) return;
                f32* to = dz + row_of(t) * PITCH + column;
                bool is_whole = has_fours(from, layer.n_in);
#pragma unroll
                for (u32 i = 0; i < TILE / GROUPS; ++i) {
                    const f32* y = from + (u64)least(row_of(t) + GROUPS * i, n - 1) * layer.n_in;
                    float4 numbers;
                    if (is_whole) {
                        numbers = *(const float4*)(y + column);
                    } else {
                        u32 end = layer.n_in - 1;
                        numbers = {y[column], y[least(column + 1, end)], y[least(column + 2, end)], y[least(column + 3, end)]};
                    }
                    const u32 activation = before.activation;
                    float4 dz_of = {derive(activation, numbers.x, own.dx[i][0]), derive(activation, numbers.y, own.dx[i][1]),
                                    derive(activation, numbers.z, own.dx[i][2]), derive(activation, numbers.w, own.dx[i][3])};
                    *(float4*)&to[GROUPS * i * PITCH] = dz_of;
                }
            });
        }
    }
}
HOST_PHASES(narrow_gradient)
