// LU decomposition without pivoting, in place, one column a step: three small
// kernels that depend on each other through memory.
#include "common.h"

__global__ void scale_column(double *a, int n, int k) {
    int row = k + 1 + blockIdx.x * blockDim.x + threadIdx.x;
    if (row < n) {
        a[row * n + k] /= a[k * n + k];
    }
}

__global__ void update_rest(double *a, int n, int k) {
    int col = k + 1 + blockIdx.x * blockDim.x + threadIdx.x;
    int row = k + 1 + blockIdx.y * blockDim.y + threadIdx.y;
    if (row < n && col < n) {
        a[row * n + col] -= a[row * n + k] * a[k * n + col];
    }
}

static void check_product(const std::vector<double> &lu, const std::vector<double> &a, int n) {
    for (int row = 0; row < n; row += 17) {
        for (int col = 0; col < n; col += 13) {
            double sum = 0.0;
            for (int k = 0; k <= (row < col ? row : col); k++) {
                sum += (k == row ? 1.0 : lu[row * n + k]) * lu[k * n + col];
            }
            double error = sum - a[row * n + col];
            require(error < 1e-6 && error > -1e-6, "L times U is not the matrix");
        }
    }
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 192, 3);
    int n = (int)o.size;
    Digest d;
    for (long k = 1; k <= o.steps; k++) {
        std::vector<double> a((size_t)n * n);
        for (size_t i = 0; i < a.size(); i++) {
            a[i] = noise(i + k) % 1000 / 250.0 + (i % (n + 1) == 0 ? 4.0 * n : 0.0);
        }
        double *da = to_device(a);
        for (int col = 0; col < n - 1; col++) {
            int rest = n - col - 1;
            scale_column<<<blocks_for(rest, 64), 64>>>(da, n, col);
            update_rest<<<dim3(blocks_for(rest, 32), blocks_for(rest, 8)), dim3(32, 8)>>>(da, n,
                                                                                         col);
        }
        CHECK_LAUNCH();
        std::vector<double> lu = from_device(da, a.size());
        check_product(lu, a, n);
        d.all(lu);
        CHECK(cudaFree(da));
        step(o, k, o.steps);
    }
    return finish("lu", d);
}
