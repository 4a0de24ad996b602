// Activations that are products, of which slopes are kept: the twin of `gated` in rl-agents/src/network/activation.rs.

#include "activation.cuh"

enum Gate : u32 {
    GATE_SILU = 0,
    GATE_GELU = 1,
};

// x = x / (1 + exp(-w)), in place. Derivatives go to slopes, unless it is null. One thread per number.
extern "C" __global__ void gated_forward(f32* x, f32* slopes, u64 len, u32 gate) {
    u64 i = thread_number();
    if (i >= len) return;
    f32 w = x[i], dw = 1.0f;
    if (gate == GATE_GELU) {
        const f32 A = 1.5957692f, B = 0.071354814f;
        w = math::clamp(w, -10.0f, 10.0f);
        f32 square = w * w;
        dw = fmaf(3.0f * B, square, A);
        w = w * fmaf(B, square, A);
    }
    Exponential of_w = exponential(-math::abs(w), -86.0f);
    f32 power = fmaf(of_w.scale, of_w.p, of_w.scale);
    f32 larger = quotient(1.0f, 1.0f + power);
    f32 smaller = power * larger;
    f32 share = math::select(w > 0.0f, larger, smaller);
    f32 rest = math::select(w > 0.0f, smaller, larger);
    f32 y = x[i] * share;
    x[i] = y;
    if (slopes) slopes[i] = fmaf(y * dw, rest, share);
}
HOST_KERNEL(gated_forward)

// dx = dx times the slopes, in place. One thread per number.
extern "C" __global__ void gated_backward(f32* dx, const f32* slopes, u64 len) {
    u64 i = thread_number();
    if (i >= len) return;
    dx[i] = dx[i] * slopes[i];
}
HOST_KERNEL(gated_backward)
