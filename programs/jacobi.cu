// Jacobi iteration on a diagonally dominant system in double precision. The
// host reads the residual every few steps and stops by it.
#include "common.h"

__global__ void iterate(const double *a, const double *b, const double *x, double *next, int n) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n) {
        return;
    }
    double sum = 0.0;
    for (int col = 0; col < n; col++) {
        if (col != row) {
            sum += a[(size_t)col * n + row] * x[col];
        }
    }
    next[row] = (b[row] - sum) / a[(size_t)row * n + row];
}

// Largest change of one step; one block, a tree in shared memory.
__global__ void largest_change(const double *x, const double *y, double *out, int n) {
    __shared__ double best[256];
    double mine = 0.0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        mine = fmax(mine, fabs(x[i] - y[i]));
    }
    best[threadIdx.x] = mine;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            best[threadIdx.x] = fmax(best[threadIdx.x], best[threadIdx.x + half]);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        *out = best[0];
    }
}

static double entry(int row, int col, int n) {
    if (row == col) {
        return 0.55 * n;
    }
    return (noise((uint64_t)row * n + col) % 1000) / 1000.0;
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 384, 240);
    int n = (int)o.size;
    std::vector<double> a((size_t)n * n), b(n), zero(n, 0.0);
    for (int col = 0; col < n; col++) {
        b[col] = noise(col + 7) % 100;
        for (int row = 0; row < n; row++) {
            a[(size_t)col * n + row] = entry(row, col, n);
        }
    }
    double *da = to_device(a), *db = to_device(b), *x = to_device(zero), *y = to_device(zero);
    double *dchange = device_array<double>(1);

    double change = 1e300;
    for (long k = 1; k <= o.steps && change > 1e-13; k++) {
        iterate<<<blocks_for(n, 128), 128>>>(da, db, x, y, n);
        std::swap(x, y);
        if (k % 10 == 0) {
            largest_change<<<1, 256>>>(x, y, dchange, n);
            CHECK_LAUNCH();
            CHECK(cudaMemcpy(&change, dchange, sizeof change, cudaMemcpyDeviceToHost));
            step(o, k, o.steps);
        }
    }

    std::vector<double> result = from_device(x, n);
    for (int row = 0; row < n; row += 37) {
        double sum = 0.0;
        for (int col = 0; col < n; col++) {
            sum += a[(size_t)col * n + row] * result[col];
        }
        require(o.steps < 200 || (sum - b[row] < 1e-6 && b[row] - sum < 1e-6),
                "the solution does not satisfy a row");
    }
    Digest d;
    d.all(result);
    return finish("jacobi", d);
}
