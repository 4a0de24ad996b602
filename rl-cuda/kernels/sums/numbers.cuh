// Number types under their Rust names. NVRTC has no standard headers, so this file includes none.

#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

static_assert(sizeof(u32) == 4 && sizeof(u64) == 8, "the sizes that Rust has");

// Exports a kernel to Rust where the host's C++ compiler replaces CUDA; expands to nothing in CUDA. HOST_PHASES is for kernels written
// in phases (phases.cuh).
#ifndef HOST_KERNEL
#define HOST_KERNEL(name)
#define HOST_PHASES(name)
#endif

__device__ inline u32 least(u32 a, u32 b) {
    return a < b ? a : b;
}

// Index of this thread in the grid. Threads past the end of the work return at once.
__device__ inline u64 thread_number() {
    return (u64)blockIdx.x * blockDim.x + threadIdx.x;
}
