/* A step of an LSTM: a are its gates' sums of inputs (i, f, g, o), u is room for those of h; the state is h, then c. */
NETWORK void lstm(int chosen, float *a, float *u, float *h, const float *w, const float *b, uint32_t n, float *y) {
    float *c = h + n;
    uint32_t i;
    dense(chosen, h, 0, n, n, n, n, w, b, 4 * n, u);
    for (i = 0; i < 4 * n; i++) a[i] += u[i];
    activate_sigmoid(chosen, a, 2 * n);
    activate_tanh(chosen, a + 2 * n, n);
    activate_sigmoid(chosen, a + 3 * n, n);
    for (i = 0; i < n; i++) u[i] = c[i] = fused(chosen, a[n + i], c[i], a[i] * a[2 * n + i]);
    activate_tanh(chosen, u, n);
    for (i = 0; i < n; i++) y[i] = h[i] = a[3 * n + i] * u[i];
}
