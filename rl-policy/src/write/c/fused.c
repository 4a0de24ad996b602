#if FLT_MANT_DIG != 24 || DBL_MANT_DIG != 53
#error "float and double must be those of IEEE 754"
#endif
#if FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16 && FLT_EVAL_METHOD != 32
#error "float must be computed as float: compile with -msse2 -mfpmath=sse"
#endif
#if defined(__FAST_MATH__) || defined(_M_FP_FAST)
#error "fast mathematics reorders sums: compile without -ffast-math, /fp:fast"
#endif
#if !defined(__GNUC__) || defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

typedef union {
    float number;
    uint32_t bits;
} float_bits;

#if defined(__GNUC__) && \
    (defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__) || defined(__FP_FAST_FMAF))

/* Outputs that are summed together, in registers. */
enum { BLOCK = 64 };

/* a * b + c, rounded once. */
#define fused(a, b, c) __builtin_fmaf(a, b, c)

/* Adds x times a row of m weights to sums. */
static inline void add_row(float *to, float x, const float *row, uint32_t m) {
    uint32_t j;
    for (j = 0; j < m; j++) to[j] = fused(x, row[j], to[j]);
}

#else

typedef union {
    double number;
    uint64_t bits;
} double_bits;

/* Outputs that are summed together: more find a doubtful sum among them more often. */
enum { BLOCK = 16 };

/* True if rounding to double may have produced a midpoint between two floats, or the sum is subnormal. */
static inline int is_doubtful(double_bits sum) {
    return (((uint32_t)sum.bits & 0x1fffffffu) == 0x10000000u) | (((uint32_t)(sum.bits >> 32) & 0x7fffffffu) < 0x38100000u);
}

/* a * b + c, rounded once. The product is exact; a doubtful sum is rounded to odd, so that rounding it to float is like rounding once. */
static float fused(float a, float b, float c) {
    double product = (double)a * b, back, error;
    double_bits sum;
    sum.number = product + c;
    if (is_doubtful(sum)) {
        back = sum.number - product;
        error = (product - (sum.number - back)) + (c - back);
        if (error != 0 && !(sum.bits & 1)) sum.bits += (error > 0) == (sum.number > 0) ? 1 : -1;
    }
    return (float)sum.number;
}

/* Adds x times a row of m <= BLOCK weights to sums, with one test for doubtful sums. */
static inline void add_row(float *to, float x, const float *row, uint32_t m) {
    double_bits sum[BLOCK];
    uint32_t j;
    int doubtful = 0;
    for (j = 0; j < m; j++) sum[j].number = (double)x * row[j] + to[j];
    for (j = 0; j < m; j++) doubtful |= is_doubtful(sum[j]);
    if (doubtful)
        for (j = 0; j < m; j++) to[j] = fused(x, row[j], to[j]);
    else
        for (j = 0; j < m; j++) to[j] = (float)sum[j].number;
}

#endif
