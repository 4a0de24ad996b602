/* Outputs that are summed together, in registers. */
enum { BLOCK = 16 };

/* Sums of m outputs: biases b, then terms in order, x[i] times row i, or rows[i], of the weights w, (terms, n).

   A sum of more than 96 terms is made of sums of 32. Where those begin, the padding counts that the trainer has between runs of terms: each
   run of `real` terms takes up `padded` places. */
static inline void sums(const float *x, const uint32_t *rows, uint32_t terms, uint32_t places, uint32_t real, uint32_t padded,
                        const float *w, const float *b, uint32_t n, uint32_t m, float *y) {
    float total[BLOCK], part[BLOCK];
    uint32_t i, j, run = 0, at = 0, latest = 0;
    for (j = 0; j < m; j++) total[j] = b[j], part[j] = 0;
    if (places <= 96) {
        for (i = 0; i < terms; i++) {
            add_row(total, x[i], w + (rows ? rows[i] : i) * n, m);
        }
    } else {
        for (i = 0; i < terms; i++) {
            uint32_t place = rows ? rows[i] : run + at;
            if (!rows && ++at == real) at = 0, run += padded;
            if (place / 32 != latest) {
                if (latest)
                    for (j = 0; j < m; j++) total[j] += part[j];
                for (j = 0; j < m; j++) part[j] = 0;
                latest = place / 32;
            }
            add_row(latest ? part : total, x[i], w + (rows ? rows[i] : i) * n, m);
        }
        if (latest)
            for (j = 0; j < m; j++) total[j] += part[j];
    }
    for (j = 0; j < m; j++) y[j] = total[j];
}

/* Sums of n outputs that read the same terms. */
static void dense(const float *x, const uint32_t *rows, uint32_t terms, uint32_t places, uint32_t real, uint32_t padded,
                  const float *w, const float *b, uint32_t n, float *y) {
    uint32_t j = 0;
    for (; j + BLOCK <= n; j += BLOCK) sums(x, rows, terms, places, real, padded, w + j, b + j, n, BLOCK, y + j);
    if (j < n) sums(x, rows, terms, places, real, padded, w + j, b + j, n, n - j, y + j);
}
