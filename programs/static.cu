// The smallest program with NVIDIA's static runtime, which is nvcc's default.
#include "common.h"

__global__ void fill(unsigned *v) {
    v[threadIdx.x] = threadIdx.x * 3u;
}

int main(int argc, char **argv) {
    begin(argc, argv, 64, 1);
    unsigned *v = device_array<unsigned>(64);
    fill<<<1, 64>>>(v);
    CHECK_LAUNCH();
    Digest d;
    d.all(from_device(v, 64));
    return finish("static", d);
}
