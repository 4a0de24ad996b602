/* A product that no compiler fuses with a sum. */
static float times(float a, float b) {
    volatile float product = a * b;
    return product;
}
