// Ranks of an MPI job in a ring, each with a block of a field on a GPU: no CUDA-aware MPI, all messages are staged in host memory.
// In a step each rank gives its first and last row to its neighbours (large messages, from pinned memory), works, and all agree on
// the sum (`MPI_Allreduce`). Every few steps a vector goes round the ring, a part at a time, until all have its sum. `--size` is
// the number of words in a row, `--rows` that of rows in a block. Rank 0 prints the lines; the digest depends on the number
// of ranks.
#include "../common.h"

#include <mpi.h>

static void message(int status, const char *what) {
    if (status != MPI_SUCCESS) {
        fail(what, "MPI has failed");
    }
}
#define MPI(call) message((call), #call)

// One row above and one below the block are the neighbours'.
__global__ void work(unsigned *to, const unsigned *from, unsigned rows, unsigned width, unsigned word) {
    unsigned x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y + 1;
    if (x < width && y <= rows) {
        const unsigned *row = from + (size_t)y * width;
        unsigned near = row[(x + 1) % width] + row[(x + width - 1) % width];
        to[(size_t)y * width + x] = (row[x] ^ word) * 1103515245u + near + (row + width)[x] - (row - width)[x];
    }
}

__global__ void add(unsigned *to, const unsigned *what, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        to[i] += what[i];
    }
}

__global__ void sum(unsigned long long *to, const unsigned *from, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        atomicAdd(to, (unsigned long long)from[i] * (i % 127 + 1));
    }
}

struct Ring {
    int rank, ranks;

    int next() const { return (rank + 1) % ranks; }
    int before() const { return (rank + ranks - 1) % ranks; }
};

struct Field {
    unsigned rows, width;
    unsigned *now, *then;
    unsigned *staged; // rows to send, and rows that come: two of each
    unsigned long long *total;

    size_t words() const { return (size_t)rows * width; }
    unsigned *row(unsigned y) const { return now + (size_t)y * width; }
};

static Field make(const Ring &ring, unsigned rows, unsigned width) {
    Field f = {rows, width, nullptr, nullptr, nullptr, nullptr};
    std::vector<unsigned> start((size_t)(rows + 2) * width);
    for (size_t i = 0; i < start.size(); i++) {
        start[i] = noise(i + (size_t)ring.rank * start.size());
    }
    f.now = to_device(start);
    f.then = to_device(start);
    CHECK(cudaMallocHost((void **)&f.staged, 4 * width * sizeof(unsigned)));
    f.total = device_array<unsigned long long>(1);
    return f;
}

// The neighbours' rows, as they are before this step.
static void exchange(const Ring &ring, const Field &f) {
    size_t bytes = f.width * sizeof(unsigned);
    unsigned *first = f.staged, *last = first + f.width, *above = last + f.width, *below = above + f.width;
    CHECK(cudaMemcpy(first, f.row(1), bytes, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(last, f.row(f.rows), bytes, cudaMemcpyDeviceToHost));
    MPI_Request all[4];
    int count = (int)f.width;
    MPI(MPI_Irecv(above, count, MPI_UNSIGNED, ring.before(), 1, MPI_COMM_WORLD, &all[0]));
    MPI(MPI_Irecv(below, count, MPI_UNSIGNED, ring.next(), 2, MPI_COMM_WORLD, &all[1]));
    MPI(MPI_Isend(last, count, MPI_UNSIGNED, ring.next(), 1, MPI_COMM_WORLD, &all[2]));
    MPI(MPI_Isend(first, count, MPI_UNSIGNED, ring.before(), 2, MPI_COMM_WORLD, &all[3]));
    MPI(MPI_Waitall(4, all, MPI_STATUSES_IGNORE));
    CHECK(cudaMemcpy(f.row(0), above, bytes, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(f.row(f.rows + 1), below, bytes, cudaMemcpyHostToDevice));
}

// The sum of this rank's block.
static uint64_t sum_of(const Field &f) {
    unsigned long long total = 0;
    CHECK(cudaMemset(f.total, 0, sizeof total));
    sum<<<blocks_for(f.words(), 256), 256>>>(f.total, f.row(1), f.words());
    CHECK_LAUNCH();
    CHECK(cudaMemcpy(&total, f.total, sizeof total, cudaMemcpyDeviceToHost));
    return total;
}

// Adds the blocks of all ranks to that of each: every rank hands on what it has got, and adds it on its device.
static void all_reduce(const Ring &ring, const Field &f, unsigned *incoming) {
    std::vector<unsigned> out(f.words()), in(f.words());
    size_t bytes = f.words() * sizeof(unsigned);
    CHECK(cudaMemcpy(out.data(), f.row(1), bytes, cudaMemcpyDeviceToHost));
    for (int turn = 1; turn < ring.ranks; turn++) {
        int count = (int)f.words();
        MPI(MPI_Sendrecv(out.data(), count, MPI_UNSIGNED, ring.next(), 3, in.data(), count, MPI_UNSIGNED, ring.before(), 3,
                         MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        CHECK(cudaMemcpy(incoming, in.data(), bytes, cudaMemcpyHostToDevice));
        add<<<blocks_for(f.words(), 256), 256>>>(f.row(1), incoming, f.words());
        CHECK_LAUNCH();
        out.swap(in);
    }
}

int main(int argc, char **argv) {
    MPI(MPI_Init(&argc, &argv));
    Ring ring;
    MPI(MPI_Comm_rank(MPI_COMM_WORLD, &ring.rank));
    MPI(MPI_Comm_size(MPI_COMM_WORLD, &ring.ranks));
    // The others print nothing.
    Options o = {option(argc, argv, "--size", 16384), option(argc, argv, "--steps", 60), 0};
    if (ring.rank == 0) {
        o = begin(argc, argv, o.size, o.steps);
    }
    int devices = 0;
    CHECK(cudaGetDeviceCount(&devices));
    CHECK(cudaSetDevice(ring.rank % devices));
    Field f = make(ring, (unsigned)option(argc, argv, "--rows", 8), (unsigned)o.size);
    unsigned *incoming = device_array<unsigned>(f.words());
    Digest d;
    for (long k = 1; k <= o.steps; k++) {
        exchange(ring, f);
        work<<<dim3(blocks_for(f.width, 256), f.rows), 256>>>(f.then, f.now, f.rows, f.width, (unsigned)(k + ring.rank));
        CHECK_LAUNCH();
        std::swap(f.now, f.then);
        if (k % 5 == 0) {
            all_reduce(ring, f, incoming);
        }
        uint64_t own = sum_of(f), all = 0, least = 0;
        MPI(MPI_Allreduce(&own, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD));
        d.word(all);
        MPI(MPI_Allreduce(&d.state, &least, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD));
        require(least == d.state, "the ranks' digests");
        if (ring.rank == 0) {
            step(o, k, o.steps);
        } else {
            hold(k);
        }
    }
    std::vector<unsigned> block(f.words());
    CHECK(cudaMemcpy(block.data(), f.row(1), f.words() * sizeof(unsigned), cudaMemcpyDeviceToHost));
    Digest own;
    own.all(block);
    std::vector<uint64_t> digests((size_t)ring.ranks);
    MPI(MPI_Gather(&own.state, 1, MPI_UINT64_T, digests.data(), 1, MPI_UINT64_T, 0, MPI_COMM_WORLD));
    if (ring.rank == 0) {
        d.all(digests);
        finish("ring", d);
    }
    MPI(MPI_Finalize());
    return 0;
}
