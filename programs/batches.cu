// Tables of pointers that the host copies to the device before each launch, as batched libraries have them: a launch
// names the tables only, and the kernel writes what their entries point to. The copies come from pageable and from pinned
// memory in turn, and every fourth one is copied on within the device.
#include "common.h"

const unsigned BATCH = 8, BUFFERS = 24;

__global__ void batched(unsigned *const *outs, const unsigned *const *ins, unsigned n, unsigned k) {
    unsigned *out = outs[blockIdx.y];
    const unsigned *in = ins[blockIdx.y];
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        out[i] = out[i] + in[(i * 7 + k) % n] * (blockIdx.y + 1);
    }
}

// The first BATCH entries of the table are what step `k` writes, the others what it reads: no buffer is both.
static void choose(unsigned **table, const std::vector<unsigned *> &buffers, long k) {
    for (unsigned b = 0; b < 2 * BATCH; b++) {
        table[b] = buffers[(b + noise(k)) % BUFFERS];
    }
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 16384, 300);
    const unsigned n = (unsigned)o.size;
    std::vector<unsigned *> buffers;
    for (unsigned b = 0; b < BUFFERS; b++) {
        std::vector<unsigned> first(n);
        for (unsigned i = 0; i < n; i++) {
            first[i] = noise((uint64_t)b * n + i);
        }
        buffers.push_back(to_device(first));
    }
    const size_t bytes = 2 * BATCH * sizeof(unsigned *);
    unsigned **table = device_array<unsigned *>(2 * BATCH), **other = device_array<unsigned *>(2 * BATCH), **pinned;
    CHECK(cudaMallocHost(&pinned, bytes));

    dim3 grid(blocks_for(n, 256), BATCH);
    for (long k = 1; k <= o.steps; k++) {
        unsigned *pageable[2 * BATCH], **from = k % 2 ? pinned : pageable, **used = table;
        choose(from, buffers, k);
        CHECK(cudaMemcpyAsync(table, from, bytes, cudaMemcpyHostToDevice));
        if (k % 4 == 0) {
            used = other;
            CHECK(cudaMemcpyAsync(other, table, bytes, cudaMemcpyDeviceToDevice));
        }
        batched<<<grid, 256>>>(used, used + BATCH, n, (unsigned)k);
        CHECK_LAUNCH();
        // The pinned table must not change before it has been copied.
        CHECK(cudaDeviceSynchronize());
        if (k % 10 == 0) {
            step(o, k, o.steps);
        }
    }

    Digest d;
    for (unsigned *buffer : buffers) {
        d.all(from_device(buffer, n));
    }
    return finish("batches", d);
}
