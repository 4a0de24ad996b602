static float clamp(float x, float low, float high) {
    x = x < low ? low : x;
    return x > high ? high : x;
}
