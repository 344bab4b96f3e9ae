// Jacobi iterations on a banded system in device memory, with checkpoints of its
// own. The iteration count and the residual live on the host, the vectors on the
// device; the matrix is computed again at a restart. With `--ranks N` as many
// processes share the GPU and the vector; the result is the same.
#include "saver.h"

#include <algorithm>
#include <cmath>

constexpr int BAND = 3; // neighbours to either side that an element depends on

// `x` has BAND elements of the neighbours before and behind its own `n`.
__global__ void sweep(const double *x, double *next, const double *b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    double sum = b[i];
    for (int d = 1; d <= BAND; d++) {
        sum += x[BAND + i - d] + x[BAND + i + d];
    }
    // Barely a contraction, so that what was lost would still show at the end.
    next[BAND + i] = sum / 6.001;
}

// Gives our elements at one edge to the neighbour there and takes his; both by the
// host. Beyond the ends of the system everything is zero.
static void edge(const Ranks &ranks, double *x, int n, bool upper) {
    int other = ranks.rank() + (upper ? 1 : -1);
    if (other < 0 || other >= ranks.size()) {
        return;
    }
    double mine[BAND], theirs[BAND];
    const double *own = upper ? x + n : x + BAND;
    CHECK(cudaMemcpy(mine, own, sizeof(mine), cudaMemcpyDeviceToHost));
    if (ranks.rank() % 2 == 0) {
        ranks.send(mine, sizeof(mine), other);
        ranks.receive(theirs, sizeof(theirs), other);
    } else {
        ranks.receive(theirs, sizeof(theirs), other);
        ranks.send(mine, sizeof(mine), other);
    }
    double *halo = upper ? x + BAND + n : x;
    CHECK(cudaMemcpy(halo, theirs, sizeof(theirs), cudaMemcpyHostToDevice));
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 1 << 16, 200);
    Ranks ranks(argc, argv);
    // The first ranks have one element more where they do not divide.
    int all = (int)o.size, size = ranks.size(), rank = ranks.rank();
    int n = all / size + (rank < all % size), first = all / size * rank + std::min(rank, all % size);
    require(n >= BAND, "too many ranks for this size");
    std::vector<double> right(n);
    for (int i = 0; i < n; i++) {
        right[i] = (double)(noise(first + i) % 1000) / 1000.0;
    }
    double *b = to_device(right);
    std::vector<double> zeros(n + 2 * BAND, 0.0);
    double *x = to_device(zeros), *next = to_device(zeros);

    struct {
        int64_t iterations;
        double change;
    } host = {0, 0.0};
    Saver saver(argc, argv, &ranks);
    saver.keep(0, &host, 1, FERMATA_BYTES(sizeof(host)));
    saver.keep(1, x, zeros.size(), FERMATA_FLOAT(8));
    if (saver.resume() && rank == 0) {
        printf("resumed at %lld\n", (long long)host.iterations);
    }

    // The rank that has the element in the middle watches it.
    int middle = all / 2 - first, watcher = 0;
    for (int r = 0, at = 0; r < size; r++) {
        at += all / size + (r < all % size);
        watcher += at <= all / 2;
    }
    while (host.iterations < o.steps) {
        edge(ranks, x, n, rank % 2 == 0);
        edge(ranks, x, n, rank % 2 != 0);
        sweep<<<blocks_for(n, 256), 256>>>(x, next, b, n);
        CHECK_LAUNCH();
        if (rank == watcher) {
            double probes[2];
            CHECK(cudaMemcpy(&probes[0], x + BAND + middle, sizeof(double), cudaMemcpyDeviceToHost));
            CHECK(cudaMemcpy(&probes[1], next + BAND + middle, sizeof(double), cudaMemcpyDeviceToHost));
            host.change = std::fabs(probes[1] - probes[0]);
        }
        ranks.broadcast(&host.change, sizeof(host.change), watcher);
        std::swap(x, next);
        host.iterations++;
        saver.keep(1, x, zeros.size(), FERMATA_FLOAT(8));
        saver.step_done(host.iterations);
        if (rank == 0 && (host.iterations % 20 == 0 || host.iterations == o.steps)) {
            step(o, host.iterations, o.steps);
        }
    }

    saver.done();
    // All elements at rank 0, whose parts are equally long but for the last element.
    size_t longest = (size_t)all / size + 1;
    std::vector<double> own = from_device(x + BAND, n), every(rank == 0 ? longest * size : 0);
    own.resize(longest);
    ranks.gather(own.data(), longest * sizeof(double), every.data(), 0);
    CHECK(cudaFree(b));
    CHECK(cudaFree(x));
    CHECK(cudaFree(next));
    ranks.join();
    std::vector<double> result;
    for (int r = 0; r < size; r++) {
        auto part = every.begin() + (long)(longest * r);
        result.insert(result.end(), part, part + all / size + (r < all % size));
    }
    Digest d;
    d.all(result);
    d.bytes(&host, sizeof(host));
    return finish("app/jacobi", d);
}
