/* Hyperbolic tangents of the outputs of a layer. */
static void activate_tanh(float *x, uint32_t n) {
    uint32_t i;
    for (i = 0; i < n; i++) {
        word at, shifted, scale, top, bottom, yes, no;
        float z, k, r, p, magnitude;
        uint32_t sign, far;
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
        scale.bits = (shifted.bits << 23) + (127u << 23);
        far = magnitude > 0.55f ? 0xffffffffu : 0;
        yes.number = fused(scale.number, p, scale.number);
        no.number = fused(scale.number, p, scale.number - 1);
        z = 1 + yes.number;
        k = 2 + no.number;
        yes.number *= -2;
        no.number = -no.number;
        top.bits = (yes.bits & far) | (no.bits & ~far);
        yes.number = z, no.number = k;
        bottom.bits = (yes.bits & far) | (no.bits & ~far);
        at.number = (far ? 1.0f : 0.0f) + top.number / bottom.number;
        at.bits = (at.bits & 0x7fffffffu) | sign;
        x[i] = at.number;
    }
}
