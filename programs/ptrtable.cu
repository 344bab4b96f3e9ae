// A table of pointers in a buffer that kernels fill and change: a launch names
// the table, and the kernel writes what its entries point to. No copy tells
// what is in the table; `batches` has tables that copies fill.
#include "common.h"

__global__ void batched(unsigned *const *outs, const unsigned *const *ins, unsigned n, unsigned k) {
    unsigned *out = outs[blockIdx.y];
    const unsigned *in = ins[blockIdx.y];
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        out[i] = out[i] + in[(i * 7 + k) % n] * (blockIdx.y + 1);
    }
}

__global__ void put(unsigned **table, unsigned at, unsigned *pointer) {
    table[at] = pointer;
}

// A table of these pointers.
static unsigned **table_of(const std::vector<unsigned *> &pointers) {
    unsigned **table = device_array<unsigned *>(pointers.size());
    for (unsigned at = 0; at < pointers.size(); at++) {
        put<<<1, 1>>>(table, at, pointers[at]);
        CHECK_LAUNCH();
    }
    return table;
}

// Exchanges two entries of a table.
__global__ void turn(unsigned **table, unsigned a, unsigned b) {
    unsigned *kept = table[a];
    table[a] = table[b];
    table[b] = kept;
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 16384, 300);
    const unsigned batch = 16, n = (unsigned)o.size;
    std::vector<unsigned *> outs, ins;
    for (unsigned b = 0; b < 2 * batch; b++) {
        std::vector<unsigned> first(n);
        for (unsigned i = 0; i < n; i++) {
            first[i] = noise((uint64_t)b * n + i);
        }
        (b < batch ? outs : ins).push_back(to_device(first));
    }
    unsigned **out_table = table_of(outs), **in_table = table_of(ins);

    dim3 grid(blocks_for(n, 256), batch);
    for (long k = 1; k <= o.steps; k++) {
        batched<<<grid, 256>>>(out_table, in_table, n, (unsigned)k);
        CHECK_LAUNCH();
        turn<<<1, 1>>>(out_table, noise(k) % batch, noise(k + 1) % batch);
        CHECK_LAUNCH();
        if (k % 10 == 0) {
            CHECK(cudaDeviceSynchronize());
            step(o, k, o.steps);
        }
    }

    Digest d;
    for (unsigned *out : from_device(out_table, batch)) {
        d.all(from_device(out, n));
    }
    return finish("ptrtable", d);
}
