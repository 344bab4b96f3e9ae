// Ranks of an MPI job in a ring, each with a block of a field on a GPU. Messages are staged in host memory, or with `--direct 1`
// handed to MPI where they lie on the device, which needs a CUDA-aware MPI; the results are the same.
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
    unsigned long long *total; // of this rank's block, and of all
    bool direct; // messages lie on the device

    size_t words() const { return (size_t)rows * width; }
    unsigned *row(unsigned y) const { return now + (size_t)y * width; }
};

static Field make(const Ring &ring, unsigned rows, unsigned width, bool direct) {
    Field f = {rows, width, nullptr, nullptr, nullptr, nullptr, direct};
    std::vector<unsigned> start((size_t)(rows + 2) * width);
    for (size_t i = 0; i < start.size(); i++) {
        start[i] = noise(i + (size_t)ring.rank * start.size());
    }
    f.now = to_device(start);
    f.then = to_device(start);
    CHECK(cudaMallocHost((void **)&f.staged, 4 * width * sizeof(unsigned)));
    f.total = device_array<unsigned long long>(2);
    return f;
}

// Gives a row to each neighbour, and takes one from each.
static void trade(const Ring &ring, const Field &f, const unsigned *first, const unsigned *last, unsigned *above, unsigned *below) {
    MPI_Request all[4];
    int count = (int)f.width;
    MPI(MPI_Irecv(above, count, MPI_UNSIGNED, ring.before(), 1, MPI_COMM_WORLD, &all[0]));
    MPI(MPI_Irecv(below, count, MPI_UNSIGNED, ring.next(), 2, MPI_COMM_WORLD, &all[1]));
    MPI(MPI_Isend(last, count, MPI_UNSIGNED, ring.next(), 1, MPI_COMM_WORLD, &all[2]));
    MPI(MPI_Isend(first, count, MPI_UNSIGNED, ring.before(), 2, MPI_COMM_WORLD, &all[3]));
    MPI(MPI_Waitall(4, all, MPI_STATUSES_IGNORE));
}

// The neighbours' rows, as they are before this step.
static void exchange(const Ring &ring, const Field &f) {
    if (f.direct) {
        // MPI reads the rows in streams of its own.
        CHECK(cudaDeviceSynchronize());
        trade(ring, f, f.row(1), f.row(f.rows), f.row(0), f.row(f.rows + 1));
        return;
    }
    size_t bytes = f.width * sizeof(unsigned);
    unsigned *first = f.staged, *last = first + f.width, *above = last + f.width, *below = above + f.width;
    CHECK(cudaMemcpy(first, f.row(1), bytes, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(last, f.row(f.rows), bytes, cudaMemcpyDeviceToHost));
    trade(ring, f, first, last, above, below);
    CHECK(cudaMemcpy(f.row(0), above, bytes, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(f.row(f.rows + 1), below, bytes, cudaMemcpyHostToDevice));
}

// The sum of all ranks' blocks.
static uint64_t sum_of_all(const Field &f) {
    uint64_t own = 0, all = 0;
    CHECK(cudaMemset(f.total, 0, sizeof own));
    sum<<<blocks_for(f.words(), 256), 256>>>(f.total, f.row(1), f.words());
    CHECK_LAUNCH();
    if (f.direct) {
        CHECK(cudaDeviceSynchronize());
        MPI(MPI_Allreduce(f.total, f.total + 1, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD));
        CHECK(cudaMemcpy(&all, f.total + 1, sizeof all, cudaMemcpyDeviceToHost));
        return all;
    }
    CHECK(cudaMemcpy(&own, f.total, sizeof own, cudaMemcpyDeviceToHost));
    MPI(MPI_Allreduce(&own, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD));
    return all;
}

// Sends what the rank before has sent, and takes what comes from it.
static void pass_on(const Ring &ring, size_t words, const unsigned *out, unsigned *in) {
    MPI(MPI_Sendrecv(out, (int)words, MPI_UNSIGNED, ring.next(), 3, in, (int)words, MPI_UNSIGNED, ring.before(), 3, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE));
}

// Adds the blocks of all ranks to that of each: every rank hands on what it has got, and adds it on its device. `spare` has two
// blocks.
static void all_reduce(const Ring &ring, const Field &f, unsigned *spare) {
    size_t bytes = f.words() * sizeof(unsigned);
    std::vector<unsigned> staged(f.direct ? 0 : 2 * f.words());
    unsigned *out = f.direct ? spare : staged.data(), *in = out + f.words();
    CHECK(cudaMemcpy(out, f.row(1), bytes, cudaMemcpyDefault));
    for (int turn = 1; turn < ring.ranks; turn++) {
        CHECK(cudaDeviceSynchronize());
        pass_on(ring, f.words(), out, in);
        const unsigned *incoming = in;
        if (!f.direct) {
            CHECK(cudaMemcpy(spare, in, bytes, cudaMemcpyHostToDevice));
            incoming = spare;
        }
        add<<<blocks_for(f.words(), 256), 256>>>(f.row(1), incoming, f.words());
        CHECK_LAUNCH();
        std::swap(out, in);
    }
}

// Takes the device of this rank, the number of which the launcher has put into the environment. A CUDA-aware MPI uses the device
// that is current as it starts.
static void take_device() {
    const char *rank = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    if (rank == nullptr) {
        rank = getenv("MPI_LOCALRANKID");
    }
    int devices = 0;
    CHECK(cudaGetDeviceCount(&devices));
    CHECK(cudaSetDevice(rank == nullptr ? 0 : atoi(rank) % devices));
    CHECK(cudaFree(nullptr));
}

int main(int argc, char **argv) {
    take_device();
    MPI(MPI_Init(&argc, &argv));
    Ring ring;
    MPI(MPI_Comm_rank(MPI_COMM_WORLD, &ring.rank));
    MPI(MPI_Comm_size(MPI_COMM_WORLD, &ring.ranks));
    // The others print nothing.
    Options o = {option(argc, argv, "--size", 16384), option(argc, argv, "--steps", 60), 0};
    if (ring.rank == 0) {
        o = begin(argc, argv, o.size, o.steps);
    }
    Field f = make(ring, (unsigned)option(argc, argv, "--rows", 8), (unsigned)o.size,
                   option(argc, argv, "--direct", 0) != 0);
    unsigned *spare = device_array<unsigned>(2 * f.words());
    Digest d;
    for (long k = 1; k <= o.steps; k++) {
        exchange(ring, f);
        work<<<dim3(blocks_for(f.width, 256), f.rows), 256>>>(f.then, f.now, f.rows, f.width, (unsigned)(k + ring.rank));
        CHECK_LAUNCH();
        std::swap(f.now, f.then);
        if (k % 5 == 0) {
            all_reduce(ring, f, spare);
        }
        uint64_t least = 0;
        d.word(sum_of_all(f));
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
