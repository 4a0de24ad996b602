/* Adds the second half of 32 partial sums to the first, until one is left. */
static float sum_of_lanes(float *lanes) {
    uint32_t half, j;
    for (half = 16; half > 0; half /= 2)
        for (j = 0; j < half; j++) lanes[j] += lanes[j + half];
    return lanes[0];
}

/* Numbers less their mean, over their standard deviation, times gains w, plus offsets b. */
NETWORK void layer_norm(int chosen, const float *x, const float *w, const float *b, uint32_t n, float *y) {
    float lanes[32], share = 1 / (float)n, mean, inverse;
    uint32_t j;
    for (j = 0; j < 32; j++) lanes[j] = 0;
    for (j = 0; j < n; j++) lanes[j % 32] += x[j];
    mean = times(sum_of_lanes(lanes), share);
    for (j = 0; j < 32; j++) lanes[j] = 0;
    for (j = 0; j < n; j++) {
        y[j] = x[j] - mean;
        lanes[j % 32] = fused(chosen, y[j], y[j], lanes[j % 32]);
    }
    inverse = 1 / root(fused(chosen, sum_of_lanes(lanes), share, 1e-5f));
    for (j = 0; j < n; j++) y[j] = fused(chosen, times(y[j], inverse), w[j], b[j]);
}
