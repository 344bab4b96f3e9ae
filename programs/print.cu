// Kernels that print: one thread at a time, so that the order is fixed.
#include "common.h"

__global__ void speak(unsigned *v, int k) {
    *v = *v * 22695477u + k;
    printf("kernel %d says %u, %5.2f, %s and %c\n", k, *v, k / 4.0, "words", 'a' + k % 26);
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 1, 40);
    std::vector<unsigned> start(1, 7u);
    unsigned *v = to_device(start);
    for (long k = 1; k <= o.steps; k++) {
        speak<<<1, 1>>>(v, (int)k);
        CHECK_LAUNCH();
        if (k % 4 == 0) {
            CHECK(cudaDeviceSynchronize());
            step(o, k, o.steps);
        }
    }
    Digest d;
    d.all(from_device(v, 1));
    return finish("print", d);
}
