// A few kernels that run for a long time each, so that a checkpoint falls into
// the middle of one. --size is the number of rounds of a thread.
#include "common.h"

__global__ void grind(unsigned *v, long rounds) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, x = v[i];
    for (long k = 0; k < rounds; k++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
    }
    v[i] = x;
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 400000, 3);
    constexpr int N = 256;
    std::vector<unsigned> seeds(N);
    for (int i = 0; i < N; i++) {
        seeds[i] = noise(i) | 1;
    }
    unsigned *v = to_device(seeds);
    for (long k = 1; k <= o.steps; k++) {
        grind<<<N / 64, 64>>>(v, o.size);
        CHECK_LAUNCH();
        CHECK(cudaDeviceSynchronize());
        step(o, k, o.steps);
    }
    std::vector<unsigned> end = from_device(v, N);
    unsigned x = seeds[5];
    for (long k = 0; k < o.size * o.steps; k++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
    }
    require(end[5] == x, "a thread differs from the host");
    Digest d;
    d.all(end);
    return finish("longkernel", d);
}
