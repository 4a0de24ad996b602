/* The greater of 0 and each output of a layer. */
static void activate_relu(float *x, uint32_t n) {
    uint32_t i;
    for (i = 0; i < n; i++) x[i] = x[i] > 0 ? x[i] : 0;
}
