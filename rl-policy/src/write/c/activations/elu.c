/* Each output of a layer above 0, else its exponential less 1. */
static void activate_elu(float *x, uint32_t n) {
    uint32_t i;
    for (i = 0; i < n; i++) {
        float_bits shifted, scale;
        float z, k, r, p;
        z = x[i] > 0 ? 0 : x[i];
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
        z = fused(scale.number, p, scale.number - 1);
        x[i] = x[i] > 0 ? x[i] : z;
    }
}
