// Targets and loss of Q-learning: the twin of `targets` and `TdLoss` in rl-agents/src/algorithms/dqn.rs, and of `read` and `write_gradient` of
// dueling networks in q_network.rs.
//
// Matrices (n, A) have a row for each transition. One thread per transition, with sums in the order of the actions: bitwise
// deterministic.

#include "learner.cuh"
#include "math.cuh"
#include "phases.cuh"

// Q (n, A) of a dueling network, V + A - mean A, from its advantages (n, A) and values (n).
extern "C" __global__ void q_learning_dueling(const f32* advantages, const f32* values, f32* q, u32 n, u32 a) {
    u64 i = thread_number();
    if (i >= n) return;
    const f32* row = advantages + i * a;
    f32 sum = 0.0f;
    for (u32 j = 0; j < a; ++j) {
        sum += row[j];
    }
    f32 offset = values[i] - sum * (1.0f / (f32)a);
    for (u32 j = 0; j < a; ++j) {
        q[i * a + j] = row[j] + offset;
    }
}
HOST_KERNEL(q_learning_dueling)

// Gradients of a dueling network's outputs from the gradient of Q (n, A).
extern "C" __global__ void q_learning_dueling_gradient(const f32* d_q, f32* d_advantages, f32* d_values, u32 n, u32 a) {
    u64 i = thread_number();
    if (i >= n) return;
    const f32* row = d_q + i * a;
    f32 total = 0.0f;
    for (u32 j = 0; j < a; ++j) {
        total += row[j];
    }
    d_values[i] = total;
    for (u32 j = 0; j < a; ++j) {
        d_advantages[i * a + j] = row[j] - total * (1.0f / (f32)a);
    }
}
HOST_KERNEL(q_learning_dueling_gradient)

// Targets (n): reward + discount Q(s', a'), where a' is the first legal action at which `by` (n, A) is greatest; without one, action 0.
extern "C" __global__ void q_learning_targets(const f32* next_q, const f32* by, const u8* masks, const f32* rewards,
    const f32* discounts, f32* targets, u32 n, u32 a) {
    u64 i = thread_number();
    if (i >= n) return;
    u32 action = a;
    f32 greatest = 0.0f;
    for (u32 j = 0; j < a; ++j) {
        bool legal = !masks || masks[i * a + j] == 1;
        if (legal && (by[i * a + j] > greatest || action == a)) {
            action = j;
            greatest = by[i * a + j];
        }
    }
    targets[i] = rewards[i] + discounts[i] * next_q[i * a + (action == a ? 0 : action)];
}
HOST_KERNEL(q_learning_targets)

// The Huber loss of width 1: errors (n), the gradient of Q (n, A), and two terms (2, n): the weighted loss, and Q of the action. An action
// past the end counts as the last one.
extern "C" __global__ void q_learning_loss(const f32* q, const u32* actions, const f32* targets, const f32* weights, f32* d_q,
    f32* errors, f32* terms, u32 n, u32 a) {
    u64 i = thread_number();
    if (i >= n) return;
    u32 action = actions[i] < a ? actions[i] : a - 1;
    f32 of_action = q[i * a + action], weight = weights[i];
    f32 error = of_action - targets[i], size = math::abs(error);
    f32 near = math::select(size < 1.0f, size, 1.0f);
    f32 gradient = math::clamp(error, -1.0f, 1.0f) * weight * (1.0f / (f32)n);
    for (u32 j = 0; j < a; ++j) {
        d_q[i * a + j] = j == action ? gradient : 0.0f;
    }
    errors[i] = error;
    terms[i] = (0.5f * near * near + (size - near)) * weight;
    terms[n + i] = of_action;
}
HOST_KERNEL(q_learning_loss)

const u32 MAX_SLICES = 16;
const u32 THREADS = 2 * MAX_SLICES;
struct Nothing {};

// Mean loss and mean Q from their terms (2, n), summed in f64 by slices, in order. Decides whether the optimizer steps: not after learning
// stopped, here or at `other`, if there is another optimizer.
extern "C" __global__ void __launch_bounds__(THREADS)
q_learning_totals(const f32* terms, Minibatch minibatch, const Counters* counters, const Counters* other, Totals* totals) {
    __shared__ f64 sums[THREADS];
    Threads<Nothing, THREADS> threads;
    const Cut& cut = minibatch.cut;
    u32 slices = cut.slices;
    threads.phase([&](u32 t, Nothing&) {
        u32 slice = t % MAX_SLICES;
        if (slice >= slices) return;
        const f32* of_part = terms + (u64)(t / MAX_SLICES) * cut.n;
        u32 first = cut.first(slice);
        sums[t] = sum_in_order(of_part + first, cut.first(slice + 1) - first);
    });
    threads.each([&](u32 t, Nothing&) {
        if (t > 0) return;
        f64 loss = 0.0, q = 0.0;
        for (u32 slice = 0; slice < slices; ++slice) {
            loss += sums[slice];
            q += sums[MAX_SLICES + slice];
        }
        totals->last_policy = (f32)(loss / (f64)cut.n);
        totals->last_value = (f32)(q / (f64)cut.n);
        totals->go = 0.0f;
        if (counters->stop != STOP_NOT || (other && other->stop != STOP_NOT)) return;
        totals->loss = totals->last_policy;
        totals->minibatches += 1.0f;
        totals->policy += totals->last_policy;
        totals->value += totals->last_value;
        totals->go = 1.0f;
    });
}
HOST_PHASES(q_learning_totals)

// Step of the target network towards the online one, or a copy if `tau` is 1; none after learning stopped, here or at `other`. One thread
// per parameter.
extern "C" __global__ void q_learning_follow(
    const f32* online, f32* target, f32 tau, const Counters* counters, const Counters* other, u64 len) {
    u64 i = thread_number();
    if (i >= len || counters->stop != STOP_NOT || (other && other->stop != STOP_NOT)) return;
    target[i] = tau == 1.0f ? online[i] : target[i] + tau * (online[i] - target[i]);
}
HOST_KERNEL(q_learning_follow)
