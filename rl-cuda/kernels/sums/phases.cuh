// Kernels of blocks whose threads share memory, written in phases.
//
// A phase is work of every thread that ends with a barrier. On the host a phase is a loop over the threads, so the kernels run there
// too; a barrier is never in divergent code. What a thread keeps from one phase to the next is its `Own`.

#pragma once

#include "numbers.cuh"

// Hides a thread's index from the compiler, so that it keeps no addresses in registers from phase to phase.
__device__ inline void renew(u32& t) {
#ifndef HOST_ENTRY
    asm volatile("" : "+r"(t));
#endif
}

template <class Own, u32 THREADS>
struct Threads {
#ifdef HOST_ENTRY
    Own own[THREADS];

    template <class Work>
    void each(Work work) {
        for (u32 t = 0; t < THREADS; ++t) {
            work(t, own[t]);
        }
    }

    template <class Work>
    void phase(Work work) {
        each(work);
    }
#else
    Own own;

    // Work without a barrier, which reads nothing that other threads write.
    template <class Work>
    __device__ __forceinline__ void each(Work work) {
        work(threadIdx.x, own);
    }

    template <class Work>
    __device__ __forceinline__ void phase(Work work) {
        work(threadIdx.x, own);
        __syncthreads();
    }
#endif
};
