/* Each output of a layer times its logistic function. */
NETWORK void activate_silu(int chosen, float *x, uint32_t n) {
    uint32_t i;
    for (i = 0; i < n; i++) x[i] = gated(chosen, x[i], x[i]);
}
