/* Block of a step's random words: Philox4x32-10. */
static void random_words(uint64_t seed, uint32_t env, uint64_t step, uint32_t block, uint32_t words[4]) {
    uint32_t key[2], round;
    words[0] = env, words[1] = (uint32_t)step, words[2] = (uint32_t)(step >> 32), words[3] = (uint32_t)3 << 24 | block;
    key[0] = (uint32_t)seed, key[1] = (uint32_t)(seed >> 32);
    for (round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)words[0] * 0xd2511f53u, b = (uint64_t)words[2] * 0xcd9e8d57u;
        if (round) key[0] += 0x9e3779b9u, key[1] += 0xbb67ae85u;
        words[0] = (uint32_t)(b >> 32) ^ words[1] ^ key[0], words[1] = (uint32_t)b;
        words[2] = (uint32_t)(a >> 32) ^ words[3] ^ key[1], words[3] = (uint32_t)a;
    }
}

/* A number from 0 to less than 1. */
static float uniform(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }
