// Ranks of an MPI job that share a field and trade its edges, as `frameworks.py` measures its programs: `halo STEPS staged|direct`.
//
// A rank has ROWS rows of WIDTH words, 256 MiB, and one row of each neighbour, 8 MiB. In a step it trades its outer rows, works on
// its block, and all agree on a sum. `staged` messages go through pinned host memory; `direct` ones are handed to MPI where they
// lie on the device, which needs a CUDA-aware MPI. The first rank prints as `launches` does; its digest has the blocks of all.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>
#include "../fill.cuh"

const size_t WIDTH = 1 << 20, ROWS = 32;
const int SWEEPS = 8;

// The rows above and below the block are the neighbours'.
__global__ void sweep(uint64_t *to, const uint64_t *from, uint64_t k) {
    size_t x = blockIdx.x * size_t(blockDim.x) + threadIdx.x, at = (blockIdx.y + 1) * WIDTH + x;
    to[at] = from[at] * 6364136223846793005ull + (from[at - WIDTH] >> 7) + (from[at + WIDTH] >> 9) + k;
}

__global__ void add(unsigned long long *to, const uint64_t *from, size_t n) {
    unsigned long long sum = 0;
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
        sum += from[i] * (2 * i + 1);
    atomicAdd(to, sum);
}

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Rank {
    int me, all;
    bool direct;
    uint64_t *now, *then, *staged;
    unsigned long long *sums;

    uint64_t *row(size_t y) const { return now + y * WIDTH; }

    // Sends a row each way, and takes one from each side.
    void trade(const uint64_t *first, const uint64_t *last, uint64_t *above, uint64_t *below) const {
        int up = (me + all - 1) % all, down = (me + 1) % all, count = int(WIDTH);
        MPI_Request requests[4];
        MPI_Irecv(above, count, MPI_UINT64_T, up, 1, MPI_COMM_WORLD, &requests[0]);
        MPI_Irecv(below, count, MPI_UINT64_T, down, 2, MPI_COMM_WORLD, &requests[1]);
        MPI_Isend(last, count, MPI_UINT64_T, down, 1, MPI_COMM_WORLD, &requests[2]);
        MPI_Isend(first, count, MPI_UINT64_T, up, 2, MPI_COMM_WORLD, &requests[3]);
        MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    }

    void exchange() const {
        if (direct) {
            CHECK(cudaDeviceSynchronize());
            trade(row(1), row(ROWS), row(0), row(ROWS + 1));
            return;
        }
        size_t bytes = WIDTH * sizeof(uint64_t);
        uint64_t *first = staged, *last = first + WIDTH, *above = last + WIDTH, *below = above + WIDTH;
        CHECK(cudaMemcpyAsync(first, row(1), bytes, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpyAsync(last, row(ROWS), bytes, cudaMemcpyDeviceToHost));
        CHECK(cudaDeviceSynchronize());
        trade(first, last, above, below);
        CHECK(cudaMemcpyAsync(row(0), above, bytes, cudaMemcpyHostToDevice));
        CHECK(cudaMemcpyAsync(row(ROWS + 1), below, bytes, cudaMemcpyHostToDevice));
    }

    // The sum of all blocks.
    uint64_t sum() const {
        uint64_t own = 0, total = 0;
        CHECK(cudaMemsetAsync(sums, 0, sizeof *sums));
        add<<<256, 256>>>(sums, row(1), ROWS * WIDTH);
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
        if (direct) {
            MPI_Allreduce(sums, sums + 1, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
            CHECK(cudaMemcpy(&total, sums + 1, sizeof total, cudaMemcpyDeviceToHost));
            return total;
        }
        CHECK(cudaMemcpy(&own, sums, sizeof own, cudaMemcpyDeviceToHost));
        MPI_Allreduce(&own, &total, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
        return total;
    }
};

// A CUDA-aware MPI uses the device that is current as it starts; the launcher tells the rank before that.
static void take_device() {
    const char *rank = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    if (rank == nullptr) rank = std::getenv("MPI_LOCALRANKID");
    int devices = 0;
    CHECK(cudaGetDeviceCount(&devices));
    CHECK(cudaSetDevice(rank == nullptr ? 0 : std::atoi(rank) % devices));
    CHECK(cudaFree(nullptr));
}

int main(int argc, char **argv) {
    double start = now();
    long steps = argc > 1 ? std::atol(argv[1]) : 100, every = std::max(1L, steps / 200);
    take_device();
    MPI_Init(&argc, &argv);
    Rank rank = {};
    MPI_Comm_rank(MPI_COMM_WORLD, &rank.me);
    MPI_Comm_size(MPI_COMM_WORLD, &rank.all);
    rank.direct = argc > 2 && std::strcmp(argv[2], "direct") == 0;
    std::setvbuf(stdout, nullptr, _IOLBF, 1 << 12);
    size_t words = (ROWS + 2) * WIDTH;
    for (uint64_t **field : {&rank.now, &rank.then}) {
        CHECK(cudaMalloc(field, words * sizeof(uint64_t)));
        fill<<<256, 256>>>(*field, words, rank.me * words);
    }
    CHECK(cudaMallocHost(&rank.staged, 4 * WIDTH * sizeof(uint64_t)));
    CHECK(cudaMalloc(&rank.sums, 2 * sizeof *rank.sums));
    CHECK(cudaDeviceSynchronize());

    std::vector<double> times;
    uint64_t digest = 0xcbf29ce484222325ull;
    for (long step = 0; step < steps; step++) {
        double begun = now();
        rank.exchange();
        for (int n = 0; n < SWEEPS; n++) {
            sweep<<<dim3(WIDTH / 256, ROWS), 256>>>(rank.then, rank.now, step * SWEEPS + n);
            std::swap(rank.now, rank.then);
        }
        digest = (digest ^ rank.sum()) * 0x9E3779B97F4A7C15ull, digest ^= digest >> 29;
        times.push_back(now() - begun);
        if (rank.me > 0) continue;
        if (step == 0) std::printf("first %.3f\n", now() - start);
        if (step % every == every - 1) std::printf("step %ld %.3f\n", step + 1, now() - start);
    }
    if (rank.me == 0) {
        std::vector<double> late(times.begin() + times.size() / 3, times.end());
        std::sort(late.begin(), late.end());
        std::printf("median %.6f\n", late.empty() ? 0.0 : late[late.size() / 2]);
        std::printf("digest %016llx\n", (unsigned long long)digest);
    }
    MPI_Finalize();
    return 0;
}
