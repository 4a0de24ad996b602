/* A convolution with a square kernel; outputs are (rows, columns, channels). */
NETWORK void convolve(int chosen, const float *x, uint32_t channels, uint32_t height, uint32_t width, uint32_t kernel,
                      uint32_t stride, int planes, float *patch, const float *w, const float *b, uint32_t n, float *y) {
    uint32_t row, column, c, i, j;
    for (row = 0; row + kernel <= height; row += stride) {
        for (column = 0; column + kernel <= width; column += stride, y += n) {
            float *to = patch;
            if (planes) {
                for (c = 0; c < channels; c++)
                    for (i = 0; i < kernel; i++)
                        for (j = 0; j < kernel; j++) *to++ = x[(c * height + row + i) * width + column + j];
            } else {
                for (i = 0; i < kernel; i++)
                    for (j = 0; j < kernel * channels; j++) *to++ = x[((row + i) * width + column) * channels + j];
            }
            dense(chosen, patch, 0, (uint32_t)(to - patch), (uint32_t)(to - patch), 1, 1, w, b, n, y);
        }
    }
}
