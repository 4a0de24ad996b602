// Elements of observations replaced by 0: the twin of `Hide` in rl-envs/src/batch/wrappers.rs.

#include "numbers.cuh"

// Replaces elements of observations (rows, D), and of as many final ones. One thread per row and element.
extern "C" __global__ void hide_elements(f32* obs, f32* final_obs, const u32* elements, u32 n_elements, u32 d, u64 rows) {
    u64 i = thread_number();
    if (i >= rows * n_elements) return;
    u64 at = i / n_elements * d + elements[i % n_elements];
    obs[at] = 0.0f;
    if (final_obs) {
        final_obs[at] = 0.0f;
    }
}
HOST_KERNEL(hide_elements)
