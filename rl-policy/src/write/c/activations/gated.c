/* x times 1 / (1 + exp(-gate)). */
NETWORK float gated(int chosen, float x, float gate) {
    float scale, p, e, larger;
    p = power(chosen, gate > 0 ? -gate : gate, -86, &scale);
    e = fused(chosen, scale, p, scale);
    larger = 1 / (1 + e);
    return x * (gate > 0 ? larger : e * larger);
}
