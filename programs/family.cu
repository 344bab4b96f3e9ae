// Several processes that use CUDA: the first forks the others before its first CUDA call, as launchers of ranks and
// data loaders do. Each has a device array of its own. After every step each sends a word of its array to the next
// through a pipe, and takes that of the one before into its own; a counter in shared memory says how many steps all of
// them have done. `--ranks N` (3).
#include "common.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

__global__ void mix(unsigned *v, unsigned word) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    v[i] = (v[i] ^ word) * 1103515245u + i;
}

struct Pipe {
    int from;
    int to;
};

struct Result {
    uint64_t rank;
    uint64_t digest;
};

static Pipe make_pipe() {
    int ends[2];
    if (pipe(ends) != 0) {
        fail("pipe", "cannot be made");
    }
    return {ends[0], ends[1]};
}

template <class T> static void put(const Pipe &p, T word) {
    if (write(p.to, &word, sizeof word) != sizeof word) {
        fail("pipe", "cannot be written");
    }
}

template <class T> static T take(const Pipe &p) {
    T word;
    ssize_t got;
    size_t at = 0;
    while (at < sizeof word) {
        got = read(p.from, (char *)&word + at, sizeof word - at);
        if (got <= 0) {
            fail("pipe", "has ended");
        }
        at += (size_t)got;
    }
    return word;
}

static uint64_t work(const Options &o, long rank, const Pipe &before, const Pipe &next, std::atomic<long> *done) {
    unsigned blocks = blocks_for(o.size, 128);
    size_t n = blocks * 128;
    std::vector<unsigned> seed(n);
    for (size_t i = 0; i < n; i++) {
        seed[i] = noise(i + 1000 * (size_t)rank);
    }
    unsigned *v = to_device(seed);
    unsigned word = (unsigned)rank;
    for (long k = 1; k <= o.steps; k++) {
        mix<<<blocks, 128>>>(v, word);
        CHECK_LAUNCH();
        CHECK(cudaMemcpy(&word, v + k % n, sizeof word, cudaMemcpyDeviceToHost));
        put(next, word);
        word = take<unsigned>(before);
        done->fetch_add(1);
        if (rank == 0) {
            step(o, k, o.steps);
        }
    }
    Digest d;
    d.all(from_device(v, n));
    return d.state;
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 4096, 60);
    long ranks = option(argc, argv, "--ranks", 3);
    void *shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        fail("mmap", "no shared memory");
    }
    auto *done = new (shared) std::atomic<long>(0);
    // Pipe r leads from rank r to the next.
    std::vector<Pipe> ring;
    for (long r = 0; r < ranks; r++) {
        ring.push_back(make_pipe());
    }
    Pipe results = make_pipe();
    fflush(stdout);
    std::vector<pid_t> children;
    for (long r = 1; r < ranks; r++) {
        pid_t child = fork();
        if (child == 0) {
            uint64_t digest = work(o, r, ring[r - 1], ring[r], done);
            // In one write: those of several ranks do not mix.
            put(results, Result{(uint64_t)r, digest});
            _exit(0);
        }
        children.push_back(child);
    }
    std::vector<uint64_t> digests(ranks);
    digests[0] = work(o, 0, ring[ranks - 1], ring[0], done);
    for (long r = 1; r < ranks; r++) {
        Result result = take<Result>(results);
        digests[result.rank] = result.digest;
    }
    for (pid_t child : children) {
        int status = 0;
        require(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, "a rank's status");
    }
    require(done->load() == ranks * o.steps, "steps of all ranks");
    Digest d;
    d.all(digests);
    return finish("family", d);
}
