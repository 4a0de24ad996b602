/* A walk on a line, in a worker: cc -O2 -o walk walk.c && rl train exec:./walk
   Start near the middle, step left or right, win 1 at the right end. docs/worker-protocol.md describes the messages. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEP, STEP_ONE, RESTART, BEGIN, RENDER, CLOSE, MAX = 4096 };

static int place[MAX], t[MAX]; /* k walks */
static char text[1 << 20];

static void get(void *data, size_t n) {
    for (ssize_t got; n; data = (char *)data + got, n -= got)
        if ((got = read(0, data, n)) <= 0) exit(0); /* the program has ended */
}

static void put(const void *data, size_t n) {
    for (ssize_t sent; n; data = (const char *)data + sent, n -= sent)
        if ((sent = write(0, data, n)) <= 0) exit(0);
}

static void get_text(void) {
    uint32_t n;
    get(&n, 4);
    if (n >= sizeof text) exit(1);
    get(text, n);
    text[n] = 0;
}

static void start(int i, int at) { place[i] = at, t[i] = 0; }

int main(void) {
    const char *hello = "{\"protocol\": 1, \"worker\": \"a walk in C\", \"action\": {\"kind\": \"discrete\", \"n\": 2},"
                        "\"observation\": {\"dtype\": \"f32\", \"shape\": [1], \"low\": [-5], \"high\": [5]}}";
    uint32_t head[] = {0xA0000000, (uint32_t)strlen(hello)}, k = 0;
    get_text();
    put(head, sizeof head);
    put(hello, head[1]);
    for (;;) {
        static uint32_t what, actions[MAX];
        static struct { uint32_t tag; float rewards[MAX]; } out;
        static uint8_t flags[2 * MAX + 8];
        static float obs[MAX], final[MAX];
        get(&what, 4);
        get(actions, 4 * k);
        uint32_t kind = what & 0xFF, i = what >> 8, ended = 0;
        if (kind == CLOSE) return 0;
        if (kind == RENDER) { put((uint32_t[]){0, 0, 0}, 12); continue; } /* no picture */
        if (kind == BEGIN) { /* {"seeds": [1, 2, ..]} */
            get_text();
            k = 0;
            for (char *at = strchr(text, '['); at && *at != ']' && at[1] != ']' && k < MAX; at = strpbrk(at + 1, ",]"))
                start(k++, (int)(strtoul(at + 1, NULL, 10) % 3) - 1);
        }
        if (kind == RESTART) start(i, 0);
        memset(out.rewards, 0, sizeof out.rewards);
        memset(flags, 0, sizeof flags);
        for (uint32_t j = kind == STEP_ONE ? i : 0; j < (kind == STEP ? k : kind == STEP_ONE ? i + 1 : 0); j++) {
            place[j] += actions[j] ? 1 : -1;
            out.rewards[j] = place[j] == 5;
            flags[j] = abs(place[j]) == 5;
            flags[k + j] = ++t[j] == 50 && !flags[j];
            if (flags[j] | flags[k + j]) final[ended++] = place[j], start(j, 0);
        }
        for (uint32_t j = 0; j < k; j++) obs[j] = place[j];
        put(&out, 4 + 4 * k);
        put(flags, 2 * k + (8 - (4 + 6 * k) % 8) % 8); /* up to a multiple of 8 bytes */
        put(obs, 4 * k);
        put(final, 4 * ended);
    }
}
