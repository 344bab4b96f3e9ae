// Heat in a square plate: an explicit five-point scheme with fixed borders.
// The buffer pair is swapped every step, so both hold live data at any moment.
#include "common.h"

__global__ void spread(const float *from, float *to, int n) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < 1 || y < 1 || x >= n - 1 || y >= n - 1) {
        return;
    }
    int i = y * n + x;
    float centre = from[i];
    to[i] = centre + 0.2f * (from[i - 1] + from[i + 1] + from[i - n] + from[i + n] - 4.0f * centre);
}

static std::vector<float> plate(int n) {
    std::vector<float> t((size_t)n * n, 20.0f);
    for (int i = 0; i < n; i++) {
        t[i] = 100.0f;
        t[(size_t)n * i] = (float)(noise(i) % 80);
    }
    return t;
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 256, 400);
    int n = (int)o.size;
    std::vector<float> start = plate(n);
    float *from = to_device(start), *to = to_device(start);

    dim3 threads(32, 8), blocks(blocks_for(n, 32), blocks_for(n, 8));
    for (long k = 1; k <= o.steps; k++) {
        spread<<<blocks, threads>>>(from, to, n);
        CHECK_LAUNCH();
        std::swap(from, to);
        if (k % 20 == 0 || k == o.steps) {
            CHECK(cudaDeviceSynchronize());
            step(o, k, o.steps);
        }
    }

    std::vector<float> end = from_device(from, start.size());
    float low = end[0], high = end[0];
    for (float t : end) {
        low = t < low ? t : low;
        high = t > high ? t : high;
    }
    require(low >= 0.0f && high <= 100.0f, "a temperature left the range of the borders");
    Digest d;
    d.all(end);
    CHECK(cudaFree(from));
    CHECK(cudaFree(to));
    return finish("heat2d", d);
}
