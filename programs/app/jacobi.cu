// Jacobi iterations on a banded system in device memory, with checkpoints of its
// own. The iteration count and the residual live on the host, the vectors on the
// device; the matrix is computed again at a restart.
#include "saver.h"

#include <cmath>

__global__ void sweep(const double *x, double *next, const double *b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    double sum = b[i];
    for (int d = 1; d <= 3; d++) {
        sum += (i >= d ? x[i - d] : 0.0) + (i + d < n ? x[i + d] : 0.0);
    }
    // Barely a contraction, so that what was lost would still show at the end.
    next[i] = sum / 6.001;
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 1 << 16, 200);
    int n = (int)o.size;
    std::vector<double> right(n);
    for (int i = 0; i < n; i++) {
        right[i] = (double)(noise(i) % 1000) / 1000.0;
    }
    double *b = to_device(right);
    double *x = to_device(std::vector<double>(n, 0.0)), *next = device_array<double>(n);

    struct {
        int64_t iterations;
        double change;
    } host = {0, 0.0};
    Saver saver(argc, argv);
    saver.keep(0, &host, 1, FERMATA_BYTES(sizeof(host)));
    saver.keep(1, x, n, FERMATA_FLOAT(8));
    if (saver.resume()) {
        printf("resumed at %lld\n", (long long)host.iterations);
    }

    double probes[2];
    while (host.iterations < o.steps) {
        sweep<<<blocks_for(n, 256), 256>>>(x, next, b, n);
        CHECK_LAUNCH();
        CHECK(cudaMemcpy(&probes[0], x + n / 2, sizeof(double), cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(&probes[1], next + n / 2, sizeof(double), cudaMemcpyDeviceToHost));
        std::swap(x, next);
        host.change = std::fabs(probes[1] - probes[0]);
        host.iterations++;
        saver.keep(1, x, n, FERMATA_FLOAT(8));
        saver.step_done(host.iterations);
        if (host.iterations % 20 == 0 || host.iterations == o.steps) {
            step(o, host.iterations, o.steps);
        }
    }

    saver.done();
    Digest d;
    d.all(from_device(x, n));
    d.bytes(&host, sizeof(host));
    CHECK(cudaFree(b));
    CHECK(cudaFree(x));
    CHECK(cudaFree(next));
    return finish("app/jacobi", d);
}
