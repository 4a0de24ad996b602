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

/* FUSES(chosen) is 1 where multiply-adds are an instruction. On x86-64, a processor may have it or not: the network is compiled for both,
   with `chosen` 1 and 0. Not by GCC for Windows, which leaves the stack of such functions misaligned (its bug 54412). */
#if defined(__GNUC__) && \
    (defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__) || defined(__FP_FAST_FMAF))
#define FUSES(chosen) (1 || (chosen))
#elif defined(__GNUC__) && defined(__x86_64__) && defined(__OPTIMIZE__) && __STDC_HOSTED__ && \
    (defined(__clang__) || !defined(_WIN32))
#define FUSES(chosen) (chosen)
#define CHOOSES
#else
#define FUSES(chosen) (0 && (chosen))
#endif

/* Functions of the network, whose `chosen` is a constant in each of its two compilations. */
#ifdef CHOOSES
#define NETWORK static inline __attribute__((always_inline))
#else
#define NETWORK static inline
#endif

/* Outputs that are summed together: in double, more find a doubtful sum among them more often. */
#define BLOCK(chosen) (FUSES(chosen) ? 64 : 16)

typedef union {
    double number;
    uint64_t bits;
} double_bits;

/* True if rounding to double may have produced a midpoint between two floats, or the sum is subnormal. */
static inline int is_doubtful(double_bits sum) {
    return (((uint32_t)sum.bits & 0x1fffffffu) == 0x10000000u) | (((uint32_t)(sum.bits >> 32) & 0x7fffffffu) < 0x38100000u);
}

/* a * b + c, rounded once. The product is exact; a doubtful sum is rounded to odd, so that rounding it to float is like rounding once. */
static float fused_in_double(float a, float b, float c) {
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

/* a * b + c, rounded once. */
#ifdef __GNUC__
#define fused(chosen, a, b, c) (FUSES(chosen) ? __builtin_fmaf(a, b, c) : fused_in_double(a, b, c))
#else
#define fused(chosen, a, b, c) ((void)(chosen), fused_in_double(a, b, c))
#endif

/* Adds x times a row of m <= BLOCK weights to sums; in double, with one test for doubtful sums. */
NETWORK void add_row(int chosen, float *to, float x, const float *row, uint32_t m) {
    double_bits sum[16];
    uint32_t j;
    int doubtful = 0;
    if (FUSES(chosen)) {
        for (j = 0; j < m; j++) to[j] = fused(chosen, x, row[j], to[j]);
        return;
    }
    for (j = 0; j < m; j++) sum[j].number = (double)x * row[j] + to[j];
    for (j = 0; j < m; j++) doubtful |= is_doubtful(sum[j]);
    if (doubtful)
        for (j = 0; j < m; j++) to[j] = fused(chosen, x, row[j], to[j]);
    else
        for (j = 0; j < m; j++) to[j] = (float)sum[j].number;
}
