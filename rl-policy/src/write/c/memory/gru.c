/* A step of a GRU: a are its gates' sums of inputs (r, z, n), u is room for those of the state h. */
NETWORK void gru(int chosen, float *a, float *u, float *h, const float *w, const float *b, uint32_t n, float *y) {
    uint32_t i;
    dense(chosen, h, 0, n, n, n, n, w, b, 3 * n, u);
    for (i = 0; i < 2 * n; i++) a[i] += u[i];
    activate_sigmoid(chosen, a, 2 * n);
    for (i = 2 * n; i < 3 * n; i++) a[i] = fused(chosen, a[i - 2 * n], u[i], a[i]);
    activate_tanh(chosen, a + 2 * n, n);
    for (i = 0; i < n; i++) y[i] = h[i] = fused(chosen, a[n + i], h[i] - a[2 * n + i], a[2 * n + i]);
}
