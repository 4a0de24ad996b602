/* a * b, rounded: volatile prevents contraction with a sum. */
static float times(float a, float b) {
    volatile float product = a * b;
    return product;
}
