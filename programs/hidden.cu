// A pointer in a device variable: the launch names no buffer that the kernel
// writes. The host turns the pointer to another buffer every few steps.
#include "common.h"

const int BUFFERS = 8;

__device__ unsigned *current;
__device__ unsigned *const *sources;

__global__ void advance(unsigned n, unsigned k) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        unsigned from = sources[k % BUFFERS][(i + k) % n];
        current[i] = current[i] * 3 + (from >> 5) + k;
    }
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 1 << 16, 400);
    unsigned n = (unsigned)o.size;
    std::vector<unsigned *> buffers;
    for (int b = 0; b < BUFFERS; b++) {
        std::vector<unsigned> first(n);
        for (unsigned i = 0; i < n; i++) {
            first[i] = noise((uint64_t)b * n + i);
        }
        buffers.push_back(to_device(first));
    }
    unsigned **table = to_device(buffers);
    CHECK(cudaMemcpyToSymbol(sources, &table, sizeof table));

    for (long k = 1; k <= o.steps; k++) {
        unsigned *target = buffers[noise(k / 4) % BUFFERS];
        CHECK(cudaMemcpyToSymbol(current, &target, sizeof target));
        // A step reads from another buffer than it writes.
        unsigned from = (unsigned)k;
        while (buffers[from % BUFFERS] == target) {
            from++;
        }
        advance<<<blocks_for(n, 256), 256>>>(n, from);
        CHECK_LAUNCH();
        if (k % 10 == 0) {
            CHECK(cudaDeviceSynchronize());
            step(o, k, o.steps);
        }
    }

    Digest d;
    for (unsigned *buffer : buffers) {
        d.all(from_device(buffer, n));
    }
    return finish("hidden", d);
}
