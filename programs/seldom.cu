// A table that one kernel reads in every step and writes only in some: what it is given does not say which.
//   ... --every N     the table is written in every N-th step; 0, as if nothing is said: never
//   ... --again 1     every step writes all that is there already, and changes nothing
#include "common.h"

enum How { READS, WRITES, REPEATS };

__global__ void turn(unsigned *table, unsigned *sums, unsigned n, unsigned k, How how) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    // Where the table is written, each thread reads its own element alone.
    unsigned value = table[how == READS ? (i * 7 + k) % n : i];
    if (how == REPEATS) {
        sums[i] = value * 3;
        table[i] = value;
        return;
    }
    sums[i] = sums[i] * 3 + value;
    if (how == WRITES) {
        table[i] = table[i] + sums[i];
    }
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 1 << 18, 200);
    long every = option(argc, argv, "--every", 0);
    bool again = option(argc, argv, "--again", 0);
    unsigned n = (unsigned)o.size;
    std::vector<unsigned> first(n), zero(n, 0);
    for (unsigned i = 0; i < n; i++) {
        first[i] = noise(i);
    }
    unsigned *table = to_device(first), *sums = to_device(zero);

    for (long k = 1; k <= o.steps; k++) {
        How how = again ? REPEATS : every > 0 && k % every == 0 ? WRITES : READS;
        turn<<<blocks_for(n, 256), 256>>>(table, sums, n, (unsigned)k, how);
        CHECK_LAUNCH();
        if (k % 10 == 0) {
            CHECK(cudaDeviceSynchronize());
            step(o, k, o.steps);
        }
    }

    Digest d;
    d.all(from_device(table, n));
    d.all(from_device(sums, n));
    return finish("seldom", d);
}
