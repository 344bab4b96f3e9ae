// Heat in a square plate in managed memory, with checkpoints of its own: killed at
// any moment and started again, it goes on from the newest one.
#include "saver.h"

__global__ void spread(const float *from, float *to, int n) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= n || y >= n) {
        return;
    }
    int i = y * n + x;
    float centre = from[i];
    bool border = x == 0 || y == 0 || x == n - 1 || y == n - 1;
    to[i] = border ? centre
                   : centre + 0.2f * (from[i - 1] + from[i + 1] + from[i - n] + from[i + n] -
                                      4.0f * centre);
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 256, 400);
    int n = (int)o.size;
    size_t cells = (size_t)n * n;
    float *from, *to;
    CHECK(cudaMallocManaged(&from, cells * sizeof(float)));
    CHECK(cudaMallocManaged(&to, cells * sizeof(float)));
    for (size_t i = 0; i < cells; i++) {
        from[i] = i < (size_t)n ? 100.0f : i % n == 0 ? (float)(noise(i / n) % 80) : 20.0f;
    }

    int64_t k = 0;
    Saver saver(argc, argv);
    saver.keep(0, &k, 1, FERMATA_INT(8));
    saver.keep(1, from, cells, FERMATA_FLOAT(4));
    if (saver.resume()) {
        printf("resumed at %lld\n", (long long)k);
    }

    dim3 threads(32, 8), blocks(blocks_for(n, 32), blocks_for(n, 8));
    while (k < o.steps) {
        spread<<<blocks, threads>>>(from, to, n);
        CHECK_LAUNCH();
        CHECK(cudaDeviceSynchronize());
        std::swap(from, to);
        k++;
        saver.keep(1, from, cells, FERMATA_FLOAT(4));
        saver.step_done(k);
        if (k % 20 == 0 || k == o.steps) {
            step(o, k, o.steps);
        }
    }

    saver.done();
    Digest d;
    d.bytes(from, cells * sizeof(float));
    CHECK(cudaFree(from));
    CHECK(cudaFree(to));
    return finish("app/heat2d", d);
}
