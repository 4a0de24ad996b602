/* A first layer with categories: each category of an element selects a row of the weights. */
NETWORK void gather(int chosen, float *x, const uint32_t *categories, uint32_t n_elements, uint32_t n_in, uint32_t *rows,
                    const float *w, const float *b, uint32_t n, float *y) {
    uint32_t i, first = 0, terms = 0;
    for (i = 0; i < n_elements; i++) {
        uint32_t size = categories[i];
        if (size == 0) {
            x[terms] = x[i], rows[terms++] = first;
        } else if (x[i] >= 0 && x[i] < (float)size && (float)(uint32_t)x[i] == x[i]) {
            rows[terms] = first + (uint32_t)x[i], x[terms++] = 1;
        }
        first += size ? size : 1;
    }
    dense(chosen, x, rows, terms, n_in, 1, 1, w, b, n, y);
}
