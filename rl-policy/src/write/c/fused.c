#if FLT_EVAL_METHOD == 1 || FLT_EVAL_METHOD == 2
#error "float must be computed as float: compile with -msse2 -mfpmath=sse"
#endif
#ifdef __FAST_MATH__
#error "-ffast-math changes the order of sums: compile without it"
#endif

typedef union {
    float number;
    uint32_t bits;
} word;

/* a * b + c, rounded once. */
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__) || defined(__FP_FAST_FMAF)
#define fused(a, b, c) __builtin_fmaf(a, b, c)
#else
static float fused(float a, float b, float c) {
    /* The product is exact. The sum is rounded to odd, so that rounding it to float is like rounding once. */
    double product = (double)a * b, sum = product + c, back = sum - product;
    double error = (product - (sum - back)) + (c - back);
    union {
        double number;
        uint64_t bits;
    } odd;
    odd.number = sum;
    if (error != 0 && sum - sum == 0 && !(odd.bits & 1)) odd.bits += (error > 0) == (sum > 0) ? 1 : -1;
    return (float)odd.number;
}
#endif
