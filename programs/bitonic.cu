// Bitonic sort: wide steps in global memory, narrow ones in shared memory.
#include "common.h"

constexpr unsigned SPAN = 512;

__device__ void order(uint32_t &a, uint32_t &b, bool up) {
    if ((a > b) == up) {
        uint32_t t = a;
        a = b;
        b = t;
    }
}

__global__ void wide(uint32_t *keys, unsigned distance, unsigned run) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned low = 2 * i - (i & (distance - 1));
    order(keys[low], keys[low + distance], (low & run) == 0);
}

__global__ void narrow(uint32_t *keys, unsigned distance, unsigned run) {
    __shared__ uint32_t part[SPAN];
    unsigned base = blockIdx.x * SPAN, t = threadIdx.x;
    part[t] = keys[base + t];
    part[t + SPAN / 2] = keys[base + t + SPAN / 2];
    for (; distance > 0; distance /= 2) {
        __syncthreads();
        unsigned low = 2 * t - (t & (distance - 1));
        order(part[low], part[low + distance], ((base + low) & run) == 0);
    }
    __syncthreads();
    keys[base + t] = part[t];
    keys[base + t + SPAN / 2] = part[t + SPAN / 2];
}

static void sort(uint32_t *keys, unsigned n) {
    for (unsigned run = 2; run <= n; run *= 2) {
        unsigned distance = run / 2;
        for (; distance >= SPAN; distance /= 2) {
            wide<<<n / SPAN, SPAN / 2>>>(keys, distance, run);
        }
        narrow<<<n / SPAN, SPAN / 2>>>(keys, distance, run);
    }
    CHECK_LAUNCH();
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 1 << 15, 8);
    unsigned n = SPAN;
    while (n < (unsigned)o.size) {
        n *= 2;
    }
    Digest d;
    for (long k = 1; k <= o.steps; k++) {
        std::vector<uint32_t> keys(n);
        uint64_t sum = 0;
        for (unsigned i = 0; i < n; i++) {
            keys[i] = noise(i * k);
            sum += keys[i];
        }
        uint32_t *device = to_device(keys);
        sort(device, n);
        keys = from_device(device, n);
        CHECK(cudaFree(device));
        for (unsigned i = 0; i < n; i++) {
            require(i == 0 || keys[i - 1] <= keys[i], "the keys are not in order");
            sum -= keys[i];
        }
        require(sum == 0, "a key was lost");
        d.all(keys);
        step(o, k, o.steps);
    }
    return finish("bitonic", d);
}
