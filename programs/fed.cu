// A batch of ordinary memory is copied to the device in each step, behind the kernel of the step before, and overwritten as soon as the
// call returns; every fourth step copies part of it back. So most of the time megabytes are on their way in either direction.
#include "common.h"

__global__ void mix(unsigned *sums, const unsigned *batch, unsigned n, unsigned rows, unsigned k) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows) {
        return;
    }
    unsigned sum = sums[i] * 1664525u + k;
    for (unsigned j = i; j < n; j += rows) {
        sum = (sum ^ batch[j]) * 2654435761u;
    }
    sums[i] = sum;
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 5000003, 120);
    const unsigned n = (unsigned)o.size, rows = 4096, part = n / 3;
    std::vector<unsigned> batch(n), back(part);
    for (unsigned i = 0; i < n; i++) {
        batch[i] = noise(i);
    }
    unsigned *sums = to_device(std::vector<unsigned>(rows, 1)), *batches[2];
    for (unsigned *&it : batches) {
        it = device_array<unsigned>(n);
    }

    Digest d;
    for (long k = 1; k <= o.steps; k++) {
        unsigned *to = batches[k % 2];
        CHECK(cudaMemcpyAsync(to, batch.data(), n * sizeof(unsigned), cudaMemcpyHostToDevice));
        for (unsigned i = (unsigned)k % 16; i < n; i += 16) {
            batch[i] = batch[i] * 48271u + (unsigned)k;
        }
        mix<<<blocks_for(rows, 128), 128>>>(sums, to, n, rows, (unsigned)k);
        CHECK_LAUNCH();
        if (k % 4 == 0) {
            CHECK(cudaMemcpy(back.data(), to + part, part * sizeof(unsigned), cudaMemcpyDeviceToHost));
            d.all(back);
        }
        step(o, k, o.steps);
    }
    d.all(from_device(sums, rows));
    return finish("fed", d);
}
