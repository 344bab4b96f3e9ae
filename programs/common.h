// What every program here shares: options, error checks, progress, digest.
//
// A program prints, on stdout and line by line:
//   run NONCE          first; NONCE is drawn once and kept in memory
//   step K of N        after each unit of work, in order, once
//   done NONCE         last but one; the same NONCE proves that the process
//                      which ends is the one that began
//   digest NAME HEX    last; depends on the options and on nothing else
// It exits with 0, or with 1 and one line on stderr.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#include <vector>

#include "hold.h"

struct Options {
    long size;
    long steps;
    long pause_ms;
};

inline uint64_t &nonce() {
    static uint64_t value;
    return value;
}

[[noreturn]] inline void fail(const char *what, const char *why) {
    fprintf(stderr, "error: %s: %s\n", what, why);
    exit(1);
}

// Reads the value of option `name` ("--size"), or returns `fallback`.
inline long option(int argc, char **argv, const char *name, long fallback) {
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], name) == 0) {
            return strtol(argv[i + 1], nullptr, 10);
        }
    }
    return fallback;
}

inline const char *option_text(int argc, char **argv, const char *name) {
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], name) == 0) {
            return argv[i + 1];
        }
    }
    return nullptr;
}

// Parses --size, --steps and --pause-ms, and prints the first line.
inline Options begin(int argc, char **argv, long size, long steps) {
    setvbuf(stdout, nullptr, _IOLBF, 1 << 12);
    FILE *random = fopen("/dev/urandom", "rb");
    if (!random || fread(&nonce(), sizeof(uint64_t), 1, random) != 1) {
        fail("/dev/urandom", "cannot be read");
    }
    fclose(random);
    printf("run %016llx\n", (unsigned long long)nonce());
    return {option(argc, argv, "--size", size), option(argc, argv, "--steps", steps),
            option(argc, argv, "--pause-ms", 0)};
}

// Reports that unit `k` of `n` (from 1) is finished, then waits if asked to, by an option or as hold.h says.
inline void step(const Options &o, long k, long n) {
    printf("step %ld of %ld\n", k, n);
    hold(k);
    if (o.pause_ms > 0 && told_to_go() < k) {
        usleep((useconds_t)o.pause_ms * 1000);
    }
}

// A running 64-bit digest; words are mixed in order.
struct Digest {
    uint64_t state = 0xcbf29ce484222325ull;

    void word(uint64_t w) {
        state = (state ^ w) * 0x9e3779b97f4a7c15ull;
        state ^= state >> 29;
    }

    void bytes(const void *data, size_t len) {
        const unsigned char *p = (const unsigned char *)data;
        for (; len >= 8; p += 8, len -= 8) {
            uint64_t w;
            memcpy(&w, p, 8);
            word(w);
        }
        uint64_t tail = len;
        for (size_t i = 0; i < len; i++) {
            tail = (tail << 8) | p[i];
        }
        word(tail);
    }

    template <class T> void all(const std::vector<T> &v) {
        bytes(v.data(), v.size() * sizeof(T));
    }
};

// Prints the closing lines; returns the exit status.
inline int finish(const char *name, const Digest &d) {
    printf("done %016llx\n", (unsigned long long)nonce());
    printf("digest %s %016llx\n", name, (unsigned long long)d.state);
    return 0;
}

inline void require(bool ok, const char *what) {
    if (!ok) {
        fail("wrong result", what);
    }
}

// The i-th number of a sequence that looks random and is the same everywhere.
#ifdef __CUDACC__
__host__ __device__
#endif
inline uint32_t noise(uint64_t i) {
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (uint32_t)((z ^ (z >> 31)) >> 16);
}

#ifdef __CUDACC__
#include <cuda_runtime.h>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t status = (call);                                                               \
        if (status != cudaSuccess) {                                                               \
            fail(#call, cudaGetErrorName(status));                                                 \
        }                                                                                          \
    } while (0)

// Launches are checked like calls: CHECK_LAUNCH(); after <<<...>>>.
#define CHECK_LAUNCH() CHECK(cudaGetLastError())

// A device array of n elements.
template <class T> T *device_array(size_t n) {
    void *p = nullptr;
    CHECK(cudaMalloc(&p, n * sizeof(T)));
    return (T *)p;
}

template <class T> T *to_device(const std::vector<T> &v) {
    T *p = device_array<T>(v.size());
    CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

template <class T> std::vector<T> from_device(const T *p, size_t n) {
    std::vector<T> v(n);
    CHECK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
}

inline unsigned blocks_for(size_t n, unsigned threads) {
    return (unsigned)((n + threads - 1) / threads);
}
#endif
