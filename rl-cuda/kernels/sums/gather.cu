// Gathers replayed transitions into a batch: the twin of `gather` in rl-buffer/src/replay/mod.rs, which has the layout of a row.
//
// A row of words is obs (D), next_obs (D), action, reward, discount, next mask (A bytes, four per word). D is 0 for byte
// observations, which have rows of their own: obs (D), next_obs (D). Observations that are stacks of k frames are the indices of
// the frames, which are rows of bytes. One thread per word of a row, so that neighbouring threads read and write neighbouring
// words. An index past the end counts as the last row. Only copies, so bitwise deterministic.

#include "numbers.cuh"

// Words per part of a row, and bytes per mask.
struct Row {
    u32 obs, action, mask_len;
};

// Columns of the batch.
struct Batch {
    u32* obs;        // (B, D)
    u32* next_obs;   // (B, D)
    u32* actions;    // (B), or (B, A) for continuous actions
    u32* rewards;    // (B)
    u32* discounts;  // (B)
    u8* next_masks;  // (B, A)
};

__device__ inline u64 row_of(u32 index, u32 n_rows) {
    return index < n_rows ? index : n_rows - 1;
}

extern "C" __global__ void gather_words(const u32* words, u32 n_rows, const u32* indices, Row row, Batch batch, u32 n) {
    u32 len = 2 * row.obs + row.action + 2 + (row.mask_len + 3) / 4;
    u64 i = thread_number();
    if (i >= (u64)n * len) return;
    u64 b = i / len;
    u32 j = (u32)(i % len);
    u32 word = words[row_of(indices[b], n_rows) * len + j];
    if (j < row.obs) {
        batch.obs[b * row.obs + j] = word;
        return;
    }
    j -= row.obs;
    if (j < row.obs) {
        batch.next_obs[b * row.obs + j] = word;
        return;
    }
    j -= row.obs;
    if (j < row.action) {
        batch.actions[b * row.action + j] = word;
        return;
    }
    j -= row.action;
    if (j == 0) {
        batch.rewards[b] = word;
    } else if (j == 1) {
        batch.discounts[b] = word;
    } else {
        for (u32 m = 4 * (j - 2); m < 4 * (j - 1) && m < row.mask_len; ++m) {
            batch.next_masks[b * row.mask_len + m] = (u8)(word >> (8 * (m & 3)));
        }
    }
}
HOST_KERNEL(gather_words)

// Part of a row of bytes.
struct Part {
    u32 stride, first, len;
};

// Copies a part of rows of bytes (C, stride) to a column (B, len). One thread per byte.
extern "C" __global__ void gather_bytes(const u8* bytes, u32 n_rows, const u32* indices, Part part, u8* to, u32 n) {
    u64 i = thread_number();
    if (i >= (u64)n * part.len) return;
    u64 row = row_of(indices[i / part.len], n_rows);
    to[i] = bytes[row * part.stride + part.first + i % part.len];
}
HOST_KERNEL(gather_bytes)
