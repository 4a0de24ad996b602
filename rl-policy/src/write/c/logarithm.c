/* The natural logarithm of a normal positive number. */
static float logarithm(float x) {
    static const float c[] = {7.0376836e-2f,  -1.151461e-1f, 1.1676999e-1f,  -1.2420141e-1f, 1.4249323e-1f,
                              -1.6668058e-1f, 2.0000715e-1f, -2.4999994e-1f, 3.333333e-1f};
    float_bits shifted, m;
    float e, f, f2, p = c[0];
    int i;
    shifted.number = x;
    shifted.bits -= 0x3f3504f3u;
    e = (float)((int32_t)(shifted.bits & 0xff800000u) / 0x00800000);
    m.bits = (shifted.bits & 0x007fffffu) + 0x3f3504f3u;
    f = m.number - 1;
    f2 = f * f;
    for (i = 1; i < 9; i++) p = times(p, f) + c[i];
    p = times(p * f, f2);
    return ((times(e, -2.1219444e-4f) + p) - times(0.5f, f2) + f) + times(e, 0.6933594f);
}
