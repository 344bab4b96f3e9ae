// What the bench programs that fill memory share: checked calls, and words that neither compress nor repeat.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define CHECK(call)                                                                          \
    do {                                                                                     \
        cudaError_t status_ = (call);                                                        \
        if (status_ != cudaSuccess) {                                                        \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status_));            \
            std::exit(1);                                                                    \
        }                                                                                    \
    } while (0)

__device__ uint64_t word(uint64_t i) {
    uint64_t x = i * 0x9E3779B97F4A7C15ull + 0xD1B54A32D192ED03ull;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9ull;
    return x ^ (x >> 32);
}
__global__ void fill(uint64_t *p, size_t n, uint64_t base) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
        p[i] = word(base + i);
}
// Adds to `out` a sum that depends on each word and its place, and how many words are not what `fill` wrote.
__global__ void check(const uint64_t *p, size_t n, uint64_t base, unsigned long long *out) {
    unsigned long long sum = 0, bad = 0;
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) {
        sum += p[i] * (2 * (base + i) + 1);
        bad += p[i] != word(base + i);
    }
    atomicAdd(&out[0], sum);
    atomicAdd(&out[1], bad);
}
