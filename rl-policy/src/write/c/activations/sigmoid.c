/* 1 / (1 + exp(-x)) of n numbers x, as (tanh(x / 2) + 1) / 2. */
NETWORK void activate_sigmoid(int chosen, float *x, uint32_t n) {
    uint32_t i;
    for (i = 0; i < n; i++) x[i] *= 0.5f;
    activate_tanh(chosen, x, n);
    for (i = 0; i < n; i++) x[i] = fused(chosen, x[i], 0.5f, 0.5f);
}
