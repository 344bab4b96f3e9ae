// Histogram with atomics: one per block in dynamic shared memory, added to the
// whole with global atomics; also the atomics that compilers rarely emit. A
// profiler is told where the work begins and ends, as CUDA's samples do.
#include "common.h"
#include <cuda_profiler_api.h>

constexpr int BINS = 256;

struct Extremes {
    unsigned low, high, all_bits, some_bits, parity, wrapped;
};

__global__ void count(const unsigned *data, unsigned *bins, Extremes *extremes, int n) {
    extern __shared__ unsigned local[];
    for (int b = threadIdx.x; b < BINS; b += blockDim.x) {
        local[b] = 0;
    }
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        unsigned v = data[i];
        atomicAdd(&local[v % BINS], 1u);
        atomicMin(&extremes->low, v);
        atomicMax(&extremes->high, v);
        atomicAnd(&extremes->all_bits, v | 0xff00ff00u);
        atomicOr(&extremes->some_bits, v & 0x00ff00ffu);
        atomicXor(&extremes->parity, v);
        atomicInc(&extremes->wrapped, 1000u);
    }
    __syncthreads();
    for (int b = threadIdx.x; b < BINS; b += blockDim.x) {
        atomicAdd(&bins[b], local[b]);
    }
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 40000, 20);
    int n = (int)o.size;
    std::vector<unsigned> data(n);
    unsigned *ddata = device_array<unsigned>(n), *dbins = device_array<unsigned>(BINS);
    Extremes *dextremes = device_array<Extremes>(1);
    CHECK(cudaMemset(dbins, 0, BINS * sizeof(unsigned)));
    Extremes start = {~0u, 0, ~0u, 0, 0, 0};
    CHECK(cudaMemcpy(dextremes, &start, sizeof start, cudaMemcpyHostToDevice));

    std::vector<unsigned> expected(BINS, 0);
    CHECK(cudaProfilerStart());
    for (long k = 1; k <= o.steps; k++) {
        for (int i = 0; i < n; i++) {
            data[i] = noise((uint64_t)k * n + i);
            expected[data[i] % BINS]++;
        }
        CHECK(cudaMemcpy(ddata, data.data(), n * sizeof(unsigned), cudaMemcpyHostToDevice));
        count<<<16, 256, BINS * sizeof(unsigned)>>>(ddata, dbins, dextremes, n);
        CHECK_LAUNCH();
        CHECK(cudaDeviceSynchronize());
        step(o, k, o.steps);
    }

    CHECK(cudaProfilerStop());
    std::vector<unsigned> bins = from_device(dbins, BINS);
    require(bins == expected, "the bins differ from the host's");
    Extremes end = from_device(dextremes, 1)[0];
    require(end.wrapped == (unsigned long)n * o.steps % 1001, "the wrapping counter is off");
    Digest d;
    d.all(bins);
    d.bytes(&end, sizeof end);
    return finish("histogram", d);
}
