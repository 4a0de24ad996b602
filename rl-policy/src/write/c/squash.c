/* Hyperbolic tangent of an action. */
static float squash(float x) {
    float_bits w;
    float x2 = x * x, p;
    uint32_t sign;
    w.number = x;
    sign = w.bits & 0x80000000u;
    w.bits ^= sign;
    if (w.number < 0.625f) {
        p = times(-5.7049887e-3f, x2) + 2.063909e-2f;
        p = times(p, x2) - 5.3739716e-2f;
        p = times(p, x2) + 1.3331442e-1f;
        p = times(p, x2) - 3.333328e-1f;
        return x + times(x * x2, p);
    }
    w.number = 1 - 2 / (exponential(2 * w.number) + 1);
    w.bits = (w.bits & 0x7fffffffu) | sign;
    return w.number;
}
