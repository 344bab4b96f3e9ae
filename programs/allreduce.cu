// Ranks, each a process, that add up what all of them have, again and again, by kernels that wait for each other in memory of the
// first rank: each writes its part and a flag there, and waits for the flags of all. As in data-parallel training, a rank computes
// on one stream and reduces on another, and the host runs ahead of both. A rank that is not let launch its kernel leaves
// those of all others running. `--ranks N` (2), `--plain 1`: the kernel has a name that tells nothing; otherwise one that
// begins as NCCL's do. `--child FD` is how the others are started. Rank r uses GPU r, modulo how many there are.
#include "pair.h"

#include <sys/wait.h>

const unsigned MOST = 16;
// What a rank launches ahead of the device, in steps.
const long AHEAD = 8;

struct Given {
    unsigned rank, ranks, words, plain;
    long steps;
    cudaIpcMemHandle_t meeting;
};

// Where ranks meet: flags, then two parts of each rank, of even and of odd steps.
struct Meeting {
    unsigned *flags;
    unsigned *parts;
};

// One block. When a rank is at step k + 2, all have passed the meeting of k + 1, and so read what they need of k.
__device__ void reduce(unsigned *sum, const unsigned *own, Meeting at, unsigned rank, unsigned ranks, unsigned n, unsigned k) {
    unsigned *parts = at.parts + (size_t)(k % 2) * ranks * n;
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) {
        parts[(size_t)rank * n + i] = own[i];
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicExch_system(at.flags + rank, k);
        for (unsigned r = 0; r < ranks; r++) {
            while (atomicAdd_system(at.flags + r, 0) < k) {
            }
        }
        __threadfence_system();
    }
    __syncthreads();
    const volatile unsigned *all = parts;
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) {
        unsigned s = 0;
        for (unsigned r = 0; r < ranks; r++) {
            s += all[(size_t)r * n + i] * (2 * r + 1);
        }
        sum[i] = s;
    }
}

extern "C" __global__ void ncclLikeReduce(unsigned *sum, const unsigned *own, Meeting at, unsigned rank, unsigned ranks,
                                          unsigned n, unsigned k) {
    reduce(sum, own, at, rank, ranks, n, k);
}

extern "C" __global__ void meet(unsigned *sum, const unsigned *own, Meeting at, unsigned rank, unsigned ranks, unsigned n,
                                unsigned k) {
    reduce(sum, own, at, rank, ranks, n, k);
}

static cudaStream_t make_stream() {
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static cudaEvent_t make_event() {
    cudaEvent_t event;
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
}

static size_t meeting_words(const Given &given) {
    return MOST + (size_t)2 * given.ranks * given.words;
}

// What a rank has at the end.
static uint64_t work(const Given &given, unsigned *meeting, const Options *first) {
    unsigned n = given.words, blocks = blocks_for(n, 256);
    Meeting at = {meeting, meeting + MOST};
    unsigned *state = to_device(seed(n, 1000 * given.rank)), *part = device_array<unsigned>(n);
    unsigned *sum = to_device(seed(n, 5));
    cudaStream_t compute = make_stream(), comm = make_stream();
    std::vector<cudaEvent_t> ready, summed;
    for (long i = 0; i < AHEAD; i++) {
        ready.push_back(make_event());
        summed.push_back(make_event());
    }
    for (long k = 1; k <= given.steps; k++) {
        cudaEvent_t mine = ready[k % AHEAD], done = summed[k % AHEAD];
        // Of AHEAD steps ago.
        CHECK(cudaEventSynchronize(done));
        for (unsigned i = 0; i < 3; i++) {
            turn<<<blocks, 256, 0, compute>>>(state, sum, n, (unsigned)k + i * given.rank);
        }
        CHECK(cudaMemcpyAsync(part, state, n * sizeof(unsigned), cudaMemcpyDeviceToDevice, compute));
        CHECK(cudaEventRecord(mine, compute));
        CHECK(cudaStreamWaitEvent(comm, mine, 0));
        if (given.plain) {
            meet<<<1, 256, 0, comm>>>(sum, part, at, given.rank, given.ranks, n, (unsigned)k);
        } else {
            ncclLikeReduce<<<1, 256, 0, comm>>>(sum, part, at, given.rank, given.ranks, n, (unsigned)k);
        }
        CHECK_LAUNCH();
        CHECK(cudaEventRecord(done, comm));
        // The next step needs the sum, as a layer needs the weights.
        CHECK(cudaStreamWaitEvent(compute, done, 0));
        if (first) {
            step(*first, k, given.steps);
        }
    }
    CHECK(cudaDeviceSynchronize());
    Digest d;
    d.all(from_device(state, n));
    d.all(from_device(sum, n));
    return d.state;
}

static void choose_device(unsigned rank) {
    int count;
    CHECK(cudaGetDeviceCount(&count));
    CHECK(cudaSetDevice((int)rank % count));
}

static int child(int fd) {
    Given given;
    hear(fd, &given, sizeof given);
    choose_device(given.rank);
    void *meeting = nullptr;
    CHECK(cudaIpcOpenMemHandle(&meeting, given.meeting, cudaIpcMemLazyEnablePeerAccess));
    uint64_t digest = work(given, (unsigned *)meeting, nullptr);
    CHECK(cudaIpcCloseMemHandle(meeting));
    say(fd, &digest, sizeof digest);
    return 0;
}

int main(int argc, char **argv) {
    long fd = option(argc, argv, "--child", -1);
    if (fd >= 0) {
        return child((int)fd);
    }
    Options o = begin(argc, argv, 1 << 12, 400);
    Given given = {};
    given.ranks = (unsigned)option(argc, argv, "--ranks", 2);
    given.words = (unsigned)o.size;
    given.plain = option(argc, argv, "--plain", 0) != 0;
    given.steps = o.steps;
    require(given.ranks >= 1 && given.ranks <= MOST, "--ranks");
    std::vector<int> ends(given.ranks);
    std::vector<pid_t> others(given.ranks);
    for (unsigned r = 1; r < given.ranks; r++) {
        others[r] = start_child("allreduce", o, &ends[r]);
    }
    choose_device(0);
    unsigned *meeting = device_array<unsigned>(meeting_words(given));
    CHECK(cudaMemset(meeting, 0, meeting_words(given) * sizeof(unsigned)));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaIpcGetMemHandle(&given.meeting, meeting));
    for (unsigned r = 1; r < given.ranks; r++) {
        Given theirs = given;
        theirs.rank = r;
        say(ends[r], &theirs, sizeof theirs);
    }
    Digest d;
    d.word(work(given, meeting, &o));
    for (unsigned r = 1; r < given.ranks; r++) {
        uint64_t digest;
        hear(ends[r], &digest, sizeof digest);
        await_child(others[r]);
        d.word(digest);
    }
    CHECK(cudaFree(meeting));
    return finish("allreduce", d);
}
