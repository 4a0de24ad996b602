/* Each output of a layer above 0, else its exponential less 1. */
NETWORK void activate_elu(int chosen, float *x, uint32_t n) {
    uint32_t i;
    for (i = 0; i < n; i++) {
        float scale, p;
        p = power(chosen, x[i] > 0 ? 0 : x[i], -20, &scale);
        p = fused(chosen, scale, p, scale - 1);
        x[i] = x[i] > 0 ? x[i] : p;
    }
}
