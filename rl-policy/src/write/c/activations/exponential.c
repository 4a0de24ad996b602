/* The exponential of z, at most 0, is scale * (1 + p); returns p. Below `low` it is that of `low`.

   Inline, so that loops of it are vectorised. */
NETWORK float power(int chosen, float z, float low, float *scale) {
    float_bits shifted, at;
    float k, r, p;
    z = z < low ? low : z;
    shifted.number = fused(chosen, z, 1.442695f, 12582912.0f);
    k = shifted.number - 12582912.0f;
    r = fused(chosen, -k, -2.1219444e-4f, fused(chosen, -k, 0.6933594f, z));
    p = 1.9875691e-4f;
    p = fused(chosen, p, r, 1.3981999e-3f);
    p = fused(chosen, p, r, 8.333452e-3f);
    p = fused(chosen, p, r, 4.1665796e-2f);
    p = fused(chosen, p, r, 1.6666665e-1f);
    p = fused(chosen, p, r, 0.5f);
    at.bits = (shifted.bits << 23) + ((uint32_t)127 << 23);
    *scale = at.number;
    return fused(chosen, p, r * r, r);
}
