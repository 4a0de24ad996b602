// Episodes that end in a rollout: the twin of the statistics in rl-agents/src/collect/lockstep.rs. Columns are (T, N).
//
// A return is summed in f64 from an episode's first step to its last. Deterministic: every number has one owner.

#include "phases.cuh"

// Columns of a rollout, len = T N < 2^31.
struct Rollout {
    const f32* rewards;
    const u8* terminated;
    const u8* truncated;
    u32 len, n_envs;
};

// Episodes that go on, (N).
struct Running {
    f64* returns;
    u32* lengths;
};

// The last episodes to end, at most `keep`, in the order of their ends.
struct Latest {
    f64* returns;
    u32* lengths;
    u32* places; // scratch
    u32* count;  // of all that ended
    u32* ends;   // scratch, in each chunk of steps
    u32 keep;
};

__device__ inline bool ended(const Rollout& rollout, u32 at) {
    return (rollout.terminated[at] | rollout.truncated[at]) != 0;
}

const u32 CHUNK = 64; // steps

// Counts the ends in each chunk of steps. One thread per chunk.
extern "C" __global__ void episodes_ends(Rollout rollout, u32* ends) {
    u64 i = thread_number(), begin = i * CHUNK;
    if (begin >= rollout.len) return;
    u32 end = rollout.len - begin < CHUNK ? rollout.len : (u32)begin + CHUNK, n = 0;
#pragma unroll 8
    for (u32 at = (u32)begin; at < end; ++at) {
        n += ended(rollout, at) ? 1 : 0;
    }
    ends[i] = n;
}
HOST_KERNEL(episodes_ends)

const u32 THREADS = 256;
struct Nothing {};

// One block. A thread adds up the ends in its chunks, then knows the rank of each.
extern "C" __global__ void __launch_bounds__(THREADS) episodes_latest(Rollout rollout, Running running, Latest latest) {
    __shared__ u32 ends[THREADS + 1]; // in a thread's part, then before it
    Threads<Nothing, THREADS> threads;
    u32 len = rollout.len, n_envs = rollout.n_envs, chunks = (len + CHUNK - 1) / CHUNK, part = (chunks + THREADS - 1) / THREADS;
    threads.phase([&](u32 t, Nothing&) {
        u32 n = 0;
#pragma unroll 8
        for (u32 chunk = t * part; chunk < least((t + 1) * part, chunks); ++chunk) {
            n += latest.ends[chunk];
        }
        ends[t] = n;
    });
    threads.phase([&](u32 t, Nothing&) {
        if (t > 0) return;
        u32 sum = 0;
#pragma unroll 1
        for (u32 i = 0; i < THREADS; ++i) {
            u32 n = ends[i];
            ends[i] = sum;
            sum += n;
        }
        ends[THREADS] = sum;
        *latest.count = sum;
    });
    threads.phase([&](u32 t, Nothing&) {
        u32 all = ends[THREADS], first = all < latest.keep ? 0 : all - latest.keep, rank = ends[t];
        for (u32 chunk = t * part; chunk < least((t + 1) * part, chunks); ++chunk) {
            if (rank + latest.ends[chunk] <= first) { // none of the last ones
                rank += latest.ends[chunk];
                continue;
            }
            for (u32 at = chunk * CHUNK; at < least((chunk + 1) * CHUNK, len); ++at) {
                if (!ended(rollout, at)) continue;
                if (rank >= first) {
                    latest.places[rank - first] = at;
                }
                rank += 1;
            }
        }
    });
    threads.each([&](u32 t, Nothing&) {
        u32 all = ends[THREADS], kept = all < latest.keep ? all : latest.keep;
        for (u32 i = t; i < kept; i += THREADS) {
            u32 end = latest.places[i], at = end;
            while (at >= n_envs && !ended(rollout, at - n_envs)) {
                at -= n_envs;
            }
            f64 sum = at < n_envs ? running.returns[at] : 0.0;
            u32 length = at < n_envs ? running.lengths[at] : 0;
            for (; at <= end; at += n_envs) {
                sum += (f64)rollout.rewards[at];
                length += 1;
            }
            latest.returns[i] = sum;
            latest.lengths[i] = length;
        }
    });
}
HOST_PHASES(episodes_latest)

// Adds a rollout's steps to the episodes that go on. One thread per environment.
extern "C" __global__ void episodes_running(Rollout rollout, Running running) {
    u64 n = thread_number();
    if (n >= rollout.n_envs) return;
    f64 sum = running.returns[n];
    u32 length = running.lengths[n];
    for (u32 at = (u32)n; at < rollout.len; at += rollout.n_envs) {
        sum += (f64)rollout.rewards[at];
        length += 1;
        if (ended(rollout, at)) {
            sum = 0.0;
            length = 0;
        }
    }
    running.returns[n] = sum;
    running.lengths[n] = length;
}
HOST_KERNEL(episodes_running)
