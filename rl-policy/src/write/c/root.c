/* Square root of a normal positive number, rounded to nearest; 0, infinity and NaN stay. */
static float root(float x) {
    float_bits w;
    uint64_t square, r = 0, with;
    int32_t exponent, bit;
    w.number = x;
    if (x == 0 || (w.bits & 0x7f800000u) == 0x7f800000u) return x;
    exponent = (int32_t)(w.bits >> 23) - 127;
    square = (uint64_t)((w.bits & 0x007fffffu) | 0x00800000u) << (23 + (exponent & 1));
    for (bit = 23; bit >= 0; bit--) {
        with = r | (uint64_t)1 << bit;
        r = with * with <= square ? with : r;
    }
    exponent = (exponent - (exponent & 1)) / 2 + 127;
    w.bits = ((uint32_t)exponent << 23 | ((uint32_t)r & 0x007fffffu)) + (square - r * r > r);
    return w.number;
}
