// Elementary functions in f32: the twin of rl-envs/src/numerics/math.rs, operation by operation, which has error bounds and reasons.
//
// The bits are the same as in Rust if nothing is contracted (`--fmad=false`) and division and square root round correctly (NVRTC's
// default). NaN stays NaN, but its bits may differ.

#pragma once

#include "numbers.cuh"

namespace math {

const f32 SIN_COS_MAX = 8192.0f;
const f32 ROUND = 12582912.0f;
const f32 PI = 3.14159265358979323846f;
const f32 TAU = 6.28318530717958647692f;

__device__ inline u32 to_bits(f32 x) {
    return __float_as_uint(x);
}

__device__ inline f32 from_bits(u32 bits) {
    return __uint_as_float(bits);
}

__device__ inline f32 select(bool condition, f32 yes, f32 no) {
    return condition ? yes : no;
}

__device__ inline f32 abs(f32 x) {
    return from_bits(to_bits(x) & 0x7FFFFFFFu);
}

struct SinCos {
    f32 sin, cos;
};

__device__ inline SinCos sin_cos(f32 x) {
    const f32 FRAC_2_PI = 0.636619772367581343076f;
    const f32 PI_2_A = 1.5703125f;
    const f32 PI_2_B = 4.837513e-4f;
    const f32 PI_2_C = 7.54979e-8f;
    x = select(abs(x) <= SIN_COS_MAX, x, x * 0.0f);
    f32 shifted = x * FRAC_2_PI + ROUND;
    u32 quadrant = to_bits(shifted);
    f32 k = shifted - ROUND;
    f32 r = ((x - k * PI_2_A) - k * PI_2_B) - k * PI_2_C;
    f32 r2 = r * r;
    f32 sin = r + r * r2 * ((-1.9515296e-4f * r2 + 8.332161e-3f) * r2 - 1.6666655e-1f);
    f32 cos = (1.0f - 0.5f * r2) + r2 * r2 * ((2.4433157e-5f * r2 - 1.3887316e-3f) * r2 + 4.1666646e-2f);
    bool swap = (quadrant & 1) != 0;
    f32 s = select(swap, cos, sin), c = select(swap, sin, cos);
    u32 sin_sign = (quadrant & 2) << 30;
    u32 cos_sign = ((quadrant + 1) & 2) << 30;
    return {from_bits(to_bits(s) ^ sin_sign), from_bits(to_bits(c) ^ cos_sign)};
}

__device__ inline f32 wrap_angle(f32 x) {
    const f32 FRAC_1_PI = 0.318309886183790671538f;
    const f32 TAU_A = 6.28125f;
    const f32 TAU_B = 1.9350052e-3f;
    const f32 TAU_C = 3.019916e-7f;
    f32 k = (x * (0.5f * FRAC_1_PI) + ROUND) - ROUND;
    return ((x - k * TAU_A) - k * TAU_B) - k * TAU_C;
}

__device__ inline f32 clamp(f32 x, f32 low, f32 high) {
    x = select(x < low, low, x);
    return select(x > high, high, x);
}

__device__ inline u8 round_to_byte(f32 x) {
    const f32 INTEGERS = 8388608.0f;
    x = x + 0.5f;
    f32 shifted = x + INTEGERS;
    return (u8)(to_bits(shifted) - (shifted - INTEGERS > x ? 1u : 0u));
}

__device__ inline f32 power_of_two(i32 e) {
    return from_bits((u32)(e + 127) << 23);
}

__device__ inline f32 exp(f32 x) {
    const f32 LOG2_E = 1.44269504088896340736f;
    const f32 LN_2_A = 0.6933594f;
    const f32 LN_2_B = -2.1219444e-4f;
    f32 bounded = select(x > 89.0f, 89.0f, x);
    bounded = select(bounded < -104.0f, -104.0f, bounded);
    f32 shifted = bounded * LOG2_E + ROUND;
    f32 k = shifted - ROUND;
    f32 r = (bounded - k * LN_2_A) - k * LN_2_B;
    f32 p = ((((1.9875691e-4f * r + 1.3981999e-3f) * r + 8.333452e-3f) * r + 4.1665796e-2f) * r + 1.6666665e-1f) * r + 0.5f;
    f32 y = (p * (r * r) + r) + 1.0f;
    i32 e = (i32)(to_bits(shifted) & 0x007FFFFFu) - 0x00400000;
    i32 half = e >> 1;
    return select(x != x, x, y * power_of_two(half) * power_of_two(e - half));
}

__device__ inline f32 ln(f32 x) {
    const u32 SQRT_1_2_BITS = 0x3F3504F3u;
    const f32 INFINITE = from_bits(0x7F800000u);
    bool subnormal = x < from_bits(0x00800000u);
    f32 scaled = select(subnormal, x * 8388608.0f, x);
    u32 shifted = to_bits(scaled) - SQRT_1_2_BITS;
    f32 m = from_bits((shifted & 0x007FFFFFu) + SQRT_1_2_BITS);
    f32 e = (f32)((i32)shifted >> 23) - select(subnormal, 23.0f, 0.0f);
    f32 f = m - 1.0f;
    f32 f2 = f * f;
    f32 p = ((((((((7.0376836e-2f * f - 1.151461e-1f) * f + 1.1676999e-1f) * f - 1.2420141e-1f) * f + 1.4249323e-1f) * f
        - 1.6668058e-1f) * f + 2.0000715e-1f) * f - 2.4999994e-1f) * f + 3.333333e-1f) * f * f2;
    f32 y = ((p + e * -2.1219444e-4f) - 0.5f * f2 + f) + e * 0.6933594f;
    y = select(x == INFINITE, x, y);
    y = select(x == 0.0f, -INFINITE, y);
    return select(x >= 0.0f, y, from_bits(0x7FC00000u));
}

__device__ inline f32 tanh(f32 x) {
    f32 magnitude = abs(x);
    f32 x2 = x * x;
    f32 p = (((-5.7049887e-3f * x2 + 2.063909e-2f) * x2 - 5.3739716e-2f) * x2 + 1.3331442e-1f) * x2 - 3.333328e-1f;
    f32 near = x + x * x2 * p;
    f32 far = 1.0f - 2.0f / (exp(2.0f * magnitude) + 1.0f);
    far = from_bits((to_bits(far) & 0x7FFFFFFFu) | (to_bits(x) & 0x80000000u));
    return select(magnitude < 0.625f, near, far);
}

}
