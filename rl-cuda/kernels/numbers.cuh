// The numbers that kernels share with Rust, by their names there. NVRTC has no standard headers, so nothing here includes any.

#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

static_assert(sizeof(u32) == 4 && sizeof(u64) == 8, "the sizes that Rust has");

// Where the C++ compiler of the host stands in for CUDA's, this makes a kernel callable from Rust; for CUDA it is nothing.
#ifndef HOST_KERNEL
#define HOST_KERNEL(name)
#endif

// The number of this thread in the grid. Those beyond the work do nothing.
__device__ inline u64 thread_number() {
    return (u64)blockIdx.x * blockDim.x + threadIdx.x;
}
