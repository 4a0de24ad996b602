/* Adds terms, from `first` to before `end`, to m sums y: x[i] times row i, or rows[i], of the weights w, (terms, n).

   The terms of a part are summed before they are added. */
NETWORK void add_terms(int chosen, const float *x, const uint32_t *rows, uint32_t first, uint32_t end, const float *w, uint32_t n,
                       uint32_t m, int is_part, float *y) {
    float sum[BLOCK(1)];
    uint32_t i, j;
    for (j = 0; j < m; j++) sum[j] = is_part ? 0 : y[j];
    for (i = first; i < end; i++) add_row(chosen, sum, x[i], w + (rows ? rows[i] : i) * n, m);
    for (j = 0; j < m; j++) y[j] = is_part ? y[j] + sum[j] : sum[j];
}

/* Sums of n outputs that read the same terms: biases b, then terms in order.

   A sum of more than 96 terms is made of sums of 32. Where those begin, the padding counts that the trainer has between runs of terms: each
   run of `real` terms takes up `padded` places. */
NETWORK void dense(int chosen, const float *x, const uint32_t *rows, uint32_t terms, uint32_t places, uint32_t real,
                   uint32_t padded, const float *w, const float *b, uint32_t n, float *y) {
    const uint32_t block = BLOCK(chosen);
    uint32_t first, end, part = 0, j;
    for (j = 0; j < n; j++) y[j] = b[j];
    for (first = 0; first < terms; first = end) {
        for (end = places > 96 ? first : terms; end < terms; end++) {
            uint32_t of = (rows ? rows[end] : end / real * padded + end % real) / 32;
            if (end == first) part = of;
            if (of != part) break;
        }
        for (j = 0; j + block <= n; j += block) add_terms(chosen, x, rows, first, end, w + j, n, block, part > 0, y + j);
        if (j < n) add_terms(chosen, x, rows, first, end, w + j, n, n - j, part > 0, y + j);
    }
}
