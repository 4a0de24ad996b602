/* Hyperbolic tangents of the outputs of a layer. */
static void activate_tanh(float *x, uint32_t n) {
    uint32_t i;
    for (i = 0; i < n; i++) {
        float_bits at, shifted, scale, top, bottom, large, small;
        float z, k, r, p, magnitude;
        uint32_t sign, is_large;
        at.number = x[i];
        sign = at.bits & 0x80000000u;
        at.bits ^= sign;
        magnitude = at.number;
        z = -2 * magnitude;
        z = z < -20 ? -20 : z;
        shifted.number = fused(z, 1.442695f, 12582912.0f);
        k = shifted.number - 12582912.0f;
        r = fused(-k, -2.1219444e-4f, fused(-k, 0.6933594f, z));
        p = 1.9875691e-4f;
        p = fused(p, r, 1.3981999e-3f);
        p = fused(p, r, 8.333452e-3f);
        p = fused(p, r, 4.1665796e-2f);
        p = fused(p, r, 1.6666665e-1f);
        p = fused(p, r, 0.5f);
        p = fused(p, r * r, r);
        scale.bits = (shifted.bits << 23) + ((uint32_t)127 << 23);
        is_large = magnitude > 0.55f ? 0xffffffffu : 0;
        large.number = fused(scale.number, p, scale.number);
        small.number = fused(scale.number, p, scale.number - 1);
        z = 1 + large.number;
        k = 2 + small.number;
        large.number *= -2;
        small.number = -small.number;
        top.bits = (large.bits & is_large) | (small.bits & ~is_large);
        large.number = z, small.number = k;
        bottom.bits = (large.bits & is_large) | (small.bits & ~is_large);
        at.number = (is_large ? 1.0f : 0.0f) + top.number / bottom.number;
        at.bits = (at.bits & 0x7fffffffu) | sign;
        x[i] = at.number;
    }
}
