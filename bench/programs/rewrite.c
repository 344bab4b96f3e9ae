// Holds memory of its own and rewrites it at a rate, page after page; for `bench/hoststate.py`.
//
//   rewrite MIB MB_PER_SECOND [huge]
//
// Prints `ready`, then, ten times a second: seconds since the start, the longest pause between two writes since the last
// line in milliseconds, the share of the time that the writes have taken.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define STEP (64 << 10)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    size_t bytes = (size_t)atol(argv[1]) << 20;
    double rate = atof(argv[2]) * 1e6;
    char *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    madvise(memory, bytes, argc > 3 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    uint64_t x = 88172645463325252ull;
    for (size_t i = 0; i < bytes; i += 8) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        memcpy(memory + i, &x, 8);
    }
    puts("ready");
    fflush(stdout);
    double begun = now(), last = begun, told = begun, pause = 0, busy = 0;
    size_t at = 0, done = 0;
    for (;;) {
        double begin = now();
        if (begin - last > pause) pause = begin - last;
        last = begin;
        if (begin - told >= 0.1) {
            printf("%.3f %.3f %.5f\n", begin - begun, pause * 1e3, busy / (begin - told));
            fflush(stdout);
            told = begin, pause = busy = 0;
        }
        if (done > (begin - begun) * rate) {
            usleep(100);
            continue;
        }
        for (size_t i = 0; i < STEP; i += 8) *(uint64_t *)(memory + at + i) += i;
        at = (at + STEP) % bytes;
        done += STEP;
        busy += now() - begin;
    }
}
