/* 2 to the power of e, from -126 to 127. */
static float power_of_2(int32_t e) {
    float_bits power;
    power.bits = (uint32_t)(e + 127) << 23;
    return power.number;
}

/* e to the power of x. */
static float exponential(float x) {
    float_bits shifted;
    float bounded = clamp(x, -104, 89), k, r, p;
    int32_t e;
    shifted.number = times(bounded, 1.442695f) + 12582912.0f;
    k = shifted.number - 12582912.0f;
    r = (bounded - times(k, 0.6933594f)) - times(k, -2.1219444e-4f);
    p = times(1.9875691e-4f, r) + 1.3981999e-3f;
    p = times(p, r) + 8.333452e-3f;
    p = times(p, r) + 4.1665796e-2f;
    p = times(p, r) + 1.6666665e-1f;
    p = times(p, r) + 0.5f;
    p = (times(p, r * r) + r) + 1;
    e = (int32_t)(shifted.bits & 0x007fffffu) - 0x00400000;
    k = power_of_2((e - (e & 1)) / 2);
    return x != x ? x : times(p * k, power_of_2(e - (e - (e & 1)) / 2));
}
