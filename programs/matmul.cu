// Matrix product with tiles in shared memory; each product feeds the next.
#include "common.h"

constexpr int TILE = 16;

__global__ void multiply(const float *a, const float *b, float *c, int n) {
    __shared__ float as[TILE][TILE], bs[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int base = 0; base < n; base += TILE) {
        int ac = base + threadIdx.x, br = base + threadIdx.y;
        as[threadIdx.y][threadIdx.x] = row < n && ac < n ? a[row * n + ac] : 0.0f;
        bs[threadIdx.y][threadIdx.x] = br < n && col < n ? b[br * n + col] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TILE; k++) {
            sum += as[threadIdx.y][k] * bs[k][threadIdx.x];
        }
        __syncthreads();
    }
    if (row < n && col < n) {
        c[row * n + col] = sum / n;
    }
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 200, 16);
    int n = (int)o.size;
    std::vector<float> a((size_t)n * n), b(a.size());
    for (size_t i = 0; i < a.size(); i++) {
        a[i] = (float)(noise(i) % 200) / 100.0f;
        b[i] = (float)(noise(i + a.size()) % 200) / 100.0f;
    }
    float *da = to_device(a), *db = to_device(b), *dc = device_array<float>(a.size());

    dim3 grid(blocks_for(n, TILE), blocks_for(n, TILE)), threads(TILE, TILE);
    for (long k = 1; k <= o.steps; k++) {
        multiply<<<grid, threads>>>(da, db, dc, n);
        CHECK_LAUNCH();
        if (k == 1) {
            std::vector<float> c = from_device(dc, a.size());
            for (int i = 0; i < n; i++) {
                float sum = 0.0f;
                for (int j = 0; j < n; j++) {
                    sum += a[(size_t)i * n + j] * b[(size_t)j * n + i];
                }
                require(c[(size_t)i * n + i] == sum / n, "an element differs from the host's");
            }
        }
        CHECK(cudaMemcpy(da, dc, a.size() * sizeof(float), cudaMemcpyDeviceToDevice));
        CHECK(cudaDeviceSynchronize());
        step(o, k, o.steps);
    }
    Digest d;
    d.all(from_device(da, a.size()));
    return finish("matmul", d);
}
