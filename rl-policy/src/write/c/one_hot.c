/* Writes n elements: numbers as they are, a vector with one 1 for each category. */
static void one_hot(const float *x, const uint32_t *categories, uint32_t n, float *y) {
    uint32_t i, j;
    for (i = 0; i < n; i++) {
        if (categories[i] == 0) *y++ = x[i];
        for (j = 0; j < categories[i]; j++) *y++ = x[i] == (float)j ? 1.0f : 0.0f;
    }
}
