/* Logits to log-probabilities. */
static void log_softmax(float *logits, uint32_t n) {
    float max = logits[0], sum = 0;
    uint32_t i;
    for (i = 1; i < n; i++) max = logits[i] > max ? logits[i] : max;
    for (i = 0; i < n; i++) sum += exponential(logits[i] - max);
    sum = logarithm(sum);
    for (i = 0; i < n; i++) logits[i] = logits[i] - max - sum;
}

/* Index of the greatest number, the first on ties. */
static uint32_t greatest(const float *x, uint32_t n) {
    uint32_t i, best = 0;
    for (i = 1; i < n; i++) best = x[i] > x[best] ? i : best;
    return best;
}

/* Index drawn from log-probabilities with a uniform number. */
static uint32_t draw(const float *log_probs, uint32_t n, float uniform) {
    float cumulative = 0;
    uint32_t i, last = 0;
    for (i = 0; i < n; i++) {
        float probability = exponential(log_probs[i]);
        if (probability > 0) {
            last = i;
            cumulative += probability;
            if (cumulative > uniform) break;
        }
    }
    return last;
}
