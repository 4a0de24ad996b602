// Advances the clock of a batch, as the last launch of a captured graph, so that the next replay draws new random numbers.

#include "vec_env.cuh"

extern "C" __global__ void clock_advance(Clock* clock, u64 steps) {
    if (thread_number() == 0) {
        clock->steps += steps;
    }
}
HOST_KERNEL(clock_advance)
