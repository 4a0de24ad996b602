/* Standard normal sample `index` of a step (Box-Muller: even indices are sines, odd ones cosines). */
static float normal(uint64_t seed, uint32_t env, uint64_t step, uint32_t index) {
    uint32_t words[4], quadrant, pair = index & 2;
    float radius, angle, k, r, r2, sine, cosine;
    float_bits shifted, result;
    random_words(seed, env, step, index >> 2, words);
    radius = root(-2 * logarithm(1 - uniform(words[pair])));
    angle = times(6.2831855f, uniform(words[pair + 1]));
    shifted.number = times(angle, 0.63661975f) + 12582912.0f;
    quadrant = shifted.bits;
    k = shifted.number - 12582912.0f;
    r = ((angle - times(k, 1.5703125f)) - times(k, 4.837513e-4f)) - times(k, 7.54979e-8f);
    r2 = r * r;
    sine = times(-1.9515296e-4f, r2) + 8.332161e-3f;
    sine = times(sine, r2) - 1.6666655e-1f;
    sine = r + times(r * r2, sine);
    cosine = times(2.4433157e-5f, r2) - 1.3887316e-3f;
    cosine = times(cosine, r2) + 4.1666646e-2f;
    cosine = (1 - times(0.5f, r2)) + times(r2 * r2, cosine);
    quadrant += index & 1;
    result.number = quadrant & 1 ? cosine : sine;
    result.bits ^= (quadrant & 2) << 30;
    return radius * result.number;
}
