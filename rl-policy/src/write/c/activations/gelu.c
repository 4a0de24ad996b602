/* Each output of a layer times the normal distribution function, approximated with tanh. */
NETWORK void activate_gelu(int chosen, float *x, uint32_t n) {
    uint32_t i;
    for (i = 0; i < n; i++) {
        float bounded = x[i] > 10 ? 10 : x[i] < -10 ? -10 : x[i];
        x[i] = gated(chosen, x[i], bounded * fused(chosen, 0.071354814f, bounded * bounded, 1.5957692f));
    }
}
