// Device variables and constants: read, written and addressed from the host,
// changed by kernels, one of them holding a pointer to another.
#include "common.h"

struct Settings {
    unsigned factor, addend;
    unsigned *target;
};

__device__ unsigned counters[256];
__device__ unsigned long long total = 40;
__device__ double weights[4] = {0.5, 0.25, 0.125, 0.0625};
__constant__ Settings settings;
__constant__ unsigned table[16] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53};

__global__ void advance() {
    unsigned i = threadIdx.x;
    unsigned *slot = settings.target + i;
    *slot = *slot * settings.factor + settings.addend + table[i % 16];
    atomicAdd(&total, (unsigned long long)(*slot % 1000));
    if (i < 4) {
        weights[i] = weights[i] * 1.5 + 1.0;
    }
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 1, 200);
    Settings s = {};
    CHECK(cudaGetSymbolAddress((void **)&s.target, counters));
    size_t bytes = 0;
    CHECK(cudaGetSymbolSize(&bytes, counters));
    require(bytes == sizeof(unsigned) * 256, "size of a device variable");

    unsigned long long sum = 0;
    for (long k = 1; k <= o.steps; k++) {
        s.factor = 2 * (unsigned)k + 1;
        s.addend = (unsigned)k;
        CHECK(cudaMemcpyToSymbol(settings, &s, sizeof s));
        advance<<<1, 256>>>();
        CHECK_LAUNCH();
        unsigned prime = noise(k) | 1;
        CHECK(cudaMemcpyToSymbolAsync(table, &prime, sizeof prime, (k % 16) * sizeof prime,
                                      cudaMemcpyHostToDevice));
        if (k % 10 == 0) {
            CHECK(cudaMemcpyFromSymbol(&sum, total, sizeof sum));
            step(o, k, o.steps);
        }
    }

    std::vector<unsigned> end(256);
    double w[4];
    CHECK(cudaMemcpyFromSymbol(end.data(), counters, bytes));
    CHECK(cudaMemcpyFromSymbol(w, weights, sizeof w));
    CHECK(cudaMemcpyFromSymbol(&sum, total, sizeof sum));
    Digest d;
    d.all(end);
    d.bytes(w, sizeof w);
    d.word(sum);
    return finish("symbols", d);
}
