// k-means on integer points. Sums are gathered with integer atomics, which give
// the same result in any order; the host divides and sends new centres. In each step
// the points move, each cluster its own way: so the centres never settle, and what a
// step has computed stays in the points.
#include "common.h"

constexpr int DIM = 4;
constexpr int CLUSTERS = 16;

__constant__ int centres[CLUSTERS * DIM];

__global__ void assign(int *points, int *owner, unsigned long long *sums,
                       unsigned long long *counts, int n, long k) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    long long nearest = LLONG_MAX;
    int best = 0;
    for (int c = 0; c < CLUSTERS; c++) {
        long long distance = 0;
        for (int d = 0; d < DIM; d++) {
            long long delta = points[i * DIM + d] - centres[c * DIM + d];
            distance += delta * delta;
        }
        if (distance < nearest) {
            nearest = distance;
            best = c;
        }
    }
    owner[i] = best;
    atomicAdd(&counts[best], 1ull);
    for (int d = 0; d < DIM; d++) {
        atomicAdd(&sums[best * DIM + d], (unsigned long long)points[i * DIM + d]);
        points[i * DIM + d] += (int)(noise((k * CLUSTERS + best) * DIM + d) % 41) - 20;
    }
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 20000, 20);
    int n = (int)o.size;
    std::vector<int> points((size_t)n * DIM);
    for (size_t i = 0; i < points.size(); i++) {
        points[i] = (int)(noise(i) % 10000 + noise(i / DIM % 7) % 50000);
    }
    std::vector<int> means(points.begin(), points.begin() + CLUSTERS * DIM);

    int *dpoints = to_device(points), *downer = device_array<int>(n);
    auto *dsums = device_array<unsigned long long>(CLUSTERS * DIM);
    auto *dcounts = device_array<unsigned long long>(CLUSTERS);
    for (long k = 1; k <= o.steps; k++) {
        CHECK(cudaMemcpyToSymbol(centres, means.data(), means.size() * sizeof(int)));
        CHECK(cudaMemset(dsums, 0, CLUSTERS * DIM * sizeof(*dsums)));
        CHECK(cudaMemset(dcounts, 0, CLUSTERS * sizeof(*dcounts)));
        assign<<<blocks_for(n, 128), 128>>>(dpoints, downer, dsums, dcounts, n, k);
        CHECK_LAUNCH();
        auto sums = from_device(dsums, CLUSTERS * DIM);
        auto counts = from_device(dcounts, CLUSTERS);
        unsigned long long total = 0;
        for (int c = 0; c < CLUSTERS; c++) {
            total += counts[c];
            for (int d = 0; d < DIM && counts[c] > 0; d++) {
                means[c * DIM + d] = (int)((long long)sums[c * DIM + d] / (long long)counts[c]);
            }
        }
        require(total == (unsigned long long)n, "a point was lost");
        step(o, k, o.steps);
    }

    Digest d;
    d.all(means);
    d.all(from_device(downer, n));
    d.all(from_device(dpoints, points.size()));
    return finish("kmeans", d);
}
