// Replaces CUDA's built-ins where the host's C++ compiler compiles the kernels, so that they can be compared with Rust on a machine
// without a GPU. Threads run one after the other: blocks, and threads in a block, are loops. A kernel whose threads share memory is
// written in phases (phases.cuh): it runs once for each block, and a phase is the loop over the threads.

#pragma once

#include <cstddef>
#include <cstring>
#include <utility>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
// One block runs at a time, and blocks begin with what the last one left.
#define __shared__ static thread_local
#define fmaf __builtin_fmaf
#define sqrtf __builtin_sqrtf
#define sqrt __builtin_sqrt

struct Index {
    unsigned int x;
};

static thread_local Index blockIdx, blockDim, threadIdx;

struct alignas(8) float2 {
    float x, y;
};

struct alignas(16) float4 {
    float x, y, z, w;
};

struct alignas(8) uint2 {
    unsigned int x, y;
};

struct alignas(16) uint4 {
    unsigned int x, y, z, w;
};

static inline unsigned int __float_as_uint(float x) {
    unsigned int bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

static inline float __uint_as_float(unsigned int bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

static inline unsigned int atomicMin(unsigned int* at, unsigned int value) {
    unsigned int old = *at;
    *at = value < old ? value : old;
    return old;
}

// Runs a kernel once for each thread or, if it is written in phases, once for each block.
template <class... Args, std::size_t... I>
static void run_kernel(bool phases, void (*kernel)(Args...), unsigned int grid, unsigned int block, void** args, std::index_sequence<I...>) {
    blockDim.x = block;
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
        for (threadIdx.x = 0; threadIdx.x < (phases ? 1 : block); ++threadIdx.x) {
            kernel(*(Args*)args[I]...);
        }
    }
}

template <class... Args>
static void run_kernel(bool phases, void (*kernel)(Args...), unsigned int grid, unsigned int block, void** args) {
    run_kernel(phases, kernel, grid, block, args, std::index_sequence_for<Args...>());
}

// Exports a kernel to Rust, with the arguments of cuLaunchKernel.
#define HOST_ENTRY(name, phases)                                                                                              \
    extern "C" __attribute__((visibility("default"))) void host_##name(unsigned int grid, unsigned int block, void** args) {  \
        run_kernel(phases, name, grid, block, args);                                                                          \
    }
#define HOST_KERNEL(name) HOST_ENTRY(name, false)
#define HOST_PHASES(name) HOST_ENTRY(name, true)
