// The clock of a batch moved on: what a captured graph of steps ends with, so that its next replay draws the next random numbers.

#include "vec_env.cuh"

extern "C" __global__ void clock_advance(Clock* clock, u64 steps) {
    if (thread_number() == 0) {
        clock->steps += steps;
    }
}
HOST_KERNEL(clock_advance)
