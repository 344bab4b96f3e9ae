// A kernel that leaves its argument's buffer: it gets one pointer and distances
// from it, and writes buffers that no argument names.
#include "common.h"

const int BUFFERS = 6;

struct Distances {
    long long elements[BUFFERS];
};

__global__ void spread(unsigned *base, Distances to, unsigned n, unsigned k) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        unsigned value = base[i];
        for (int b = 0; b < BUFFERS; b++) {
            unsigned *out = base + to.elements[b];
            out[i] = out[i] * 2 + (value >> b) + k;
        }
        base[i] = value * 3 + k;
    }
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 1 << 15, 300);
    unsigned n = (unsigned)o.size;
    std::vector<unsigned> first(n);
    for (unsigned i = 0; i < n; i++) {
        first[i] = noise(i);
    }
    unsigned *base = to_device(first);
    std::vector<unsigned *> others;
    for (int b = 0; b < BUFFERS; b++) {
        others.push_back(device_array<unsigned>(n));
        CHECK(cudaMemset(others[b], b, n * sizeof(unsigned)));
    }
    Distances to;
    for (int b = 0; b < BUFFERS; b++) {
        to.elements[b] = ((long long)(uintptr_t)others[b] - (long long)(uintptr_t)base) / 4;
    }

    for (long k = 1; k <= o.steps; k++) {
        spread<<<blocks_for(n, 256), 256>>>(base, to, n, (unsigned)k);
        CHECK_LAUNCH();
        if (k % 10 == 0) {
            CHECK(cudaDeviceSynchronize());
            step(o, k, o.steps);
        }
    }

    Digest d;
    d.all(from_device(base, n));
    for (unsigned *other : others) {
        d.all(from_device(other, n));
    }
    return finish("overrun", d);
}
