/* Hyperbolic tangents of the outputs of a layer. */
NETWORK void activate_tanh(int chosen, float *x, uint32_t n) {
    uint32_t i;
    for (i = 0; i < n; i++) {
        float_bits at, top, bottom, large, small;
        float z, k, p, scale, magnitude;
        uint32_t sign, is_large;
        at.number = x[i];
        sign = at.bits & 0x80000000u;
        at.bits ^= sign;
        magnitude = at.number;
        p = power(chosen, -2 * magnitude, -20, &scale);
        is_large = magnitude > 0.55f ? 0xffffffffu : 0;
        large.number = fused(chosen, scale, p, scale);
        small.number = fused(chosen, scale, p, scale - 1);
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
