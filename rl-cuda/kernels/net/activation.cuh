// Activations: the twin of rl-agents/src/network/activation.rs, fused multiply-adds included.

#pragma once

#include "math.cuh"

enum Activation : u32 {
    ACTIVATION_NONE = 0,
    ACTIVATION_TANH = 1,
    ACTIVATION_RELU = 2,
    ACTIVATION_ELU = 3,
};

// The quotient a / b, correctly rounded, of numbers and a quotient far from overflow and underflow: the operations of the compiler's
// division but for the branch to what such numbers do not need, around which no two divisions overlap.
__device__ inline f32 quotient(f32 a, f32 b) {
#ifdef HOST_ENTRY
    return a / b;
#else
    f32 inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(b));
    inverse = fmaf(fmaf(-b, inverse, 1.0f), inverse, inverse);
    f32 q = a * inverse;
    q = fmaf(fmaf(-b, q, a), inverse, q);
    return fmaf(fmaf(-b, q, a), inverse, q);
#endif
}

// exp(z) = scale (1 + p), for z of at most 0; below low that of low.
struct Exponential {
    f32 scale, p;
};

__device__ inline Exponential exponential(f32 z, f32 low = -20.0f) {
    const f32 LOG2_E = 1.44269504088896340736f;
    const f32 LN_2_A = 0.6933594f;
    const f32 LN_2_B = -2.1219444e-4f;
    z = math::select(z < low, low, z);
    f32 shifted = fmaf(z, LOG2_E, math::ROUND);
    f32 k = shifted - math::ROUND;
    f32 r = fmaf(-k, LN_2_B, fmaf(-k, LN_2_A, z));
    f32 p = fmaf(1.9875691e-4f, r, 1.3981999e-3f);
    p = fmaf(p, r, 8.333452e-3f);
    p = fmaf(p, r, 4.1665796e-2f);
    p = fmaf(p, r, 1.6666665e-1f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r * r, r);
    return {math::power_of_two((i32)(math::to_bits(shifted) & 0x007FFFFFu) - 0x00400000), p};
}

// x above 0, else exp(x) - 1.
__device__ inline f32 fused_elu(f32 x) {
    Exponential of_x = exponential(math::select(x > 0.0f, 0.0f, x));
    f32 below = fmaf(of_x.scale, of_x.p, of_x.scale - 1.0f);
    return math::select(x > 0.0f, x, below);
}

// The hyperbolic tangent of networks; environments have another one, without fused operations.
__device__ inline f32 fused_tanh(f32 x) {
    f32 z = -2.0f * math::abs(x);
    Exponential of_z = exponential(z);
    f32 e = fmaf(of_z.scale, of_z.p, of_z.scale - 1.0f);
    f32 t = fmaf(of_z.scale, of_z.p, of_z.scale);
    bool far = z < -1.1f;
    f32 q = quotient(math::select(far, 2.0f * t, -e), math::select(far, 1.0f + t, 2.0f + e));
    f32 y = math::select(far, 1.0f - q, q);
    y = math::select(z > -1e-9f, math::abs(x), y); // the quotient, too, which may be too small for its operations
    return math::from_bits((math::to_bits(y) & 0x7FFFFFFFu) | (math::to_bits(x) & 0x80000000u));
}

__device__ inline f32 activate(u32 activation, f32 x) {
    if (activation == ACTIVATION_NONE) return x;
    if (activation == ACTIVATION_TANH) return fused_tanh(x);
    if (activation == ACTIVATION_ELU) return fused_elu(x);
    return math::select(x > 0.0f, x, 0.0f);
}

// Activates several numbers.
template <u32 N>
__device__ __forceinline__ void activate_all(u32 activation, f32 (&x)[N]) {
    if (activation == ACTIVATION_TANH) {
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            x[i] = fused_tanh(x[i]);
        }
    } else if (activation == ACTIVATION_RELU) {
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            x[i] = math::select(x[i] > 0.0f, x[i], 0.0f);
        }
    } else if (activation == ACTIVATION_ELU) {
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            x[i] = fused_elu(x[i]);
        }
    }
}

// dx times the derivative of an activation, computed from its value y.
__device__ inline f32 derive(u32 activation, f32 y, f32 dx) {
    if (activation == ACTIVATION_TANH) return dx * fmaf(-y, y, 1.0f);
    if (activation == ACTIVATION_ELU) return dx * math::select(y > 0.0f, 1.0f, y + 1.0f);
    return math::select(y > 0.0f, dx, 0.0f);
}
