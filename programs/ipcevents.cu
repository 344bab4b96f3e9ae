// Events and a memory pool of two processes: the second, which the first has started by fork and exec, imports a pool of the first
// (`cudaMemPoolExportToShareableHandle`), and each opens the other's event (`cudaIpcGetEventHandle`). They change memory of the
// pool in turns, ordered by the events alone: each records its own behind its kernels, and has its stream wait for the other's.
// Now and then the first passes a piece of the pool on that lives for one turn, or makes its event anew, and waits for the
// second's on the host. `--child FD` is how the second is started.
#include "pair.h"

const cudaMemAllocationHandleType KIND = cudaMemHandleTypePosixFileDescriptor;

// What is told of a turn; the last has number 0.
struct Turn {
    unsigned k;
    // Whether `event` is another one than before.
    unsigned fresh;
    // Whether there is a piece.
    unsigned lent;
    cudaIpcEventHandle_t event;
    cudaMemPoolPtrExportData piece;
};

struct Given {
    uint64_t words;
    cudaMemPoolPtrExportData state;
};

static cudaEvent_t make_event(cudaIpcEventHandle_t *handle) {
    cudaEvent_t event;
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
    CHECK(cudaIpcGetEventHandle(handle, event));
    return event;
}

static cudaEvent_t open_event(const cudaIpcEventHandle_t &handle) {
    cudaEvent_t event;
    CHECK(cudaIpcOpenEventHandle(&event, handle));
    return event;
}

static unsigned *allocate(cudaMemPool_t pool, size_t bytes, cudaStream_t stream, cudaMemPoolPtrExportData *data) {
    void *at = nullptr;
    CHECK(cudaMallocFromPoolAsync(&at, bytes, pool, stream));
    CHECK(cudaMemPoolExportPointer(data, at));
    return (unsigned *)at;
}

static unsigned *import(cudaMemPool_t pool, cudaMemPoolPtrExportData data) {
    void *at = nullptr;
    CHECK(cudaMemPoolImportPointer(&at, pool, &data));
    return (unsigned *)at;
}

// What a process does in its turn: its own memory and what is shared change each other.
static void work(unsigned *state, unsigned *piece, unsigned *own, unsigned n, unsigned k, cudaStream_t stream) {
    unsigned blocks = blocks_for(n, 256);
    turn<<<blocks, 256, 0, stream>>>(own, state, n, k);
    turn<<<blocks, 256, 0, stream>>>(state, own, n, k + 7);
    if (piece) {
        turn<<<blocks, 256, 0, stream>>>(piece, state, n, k + 13);
        turn<<<blocks, 256, 0, stream>>>(state, piece, n, k + 17);
    }
    CHECK_LAUNCH();
}

static cudaStream_t make_stream() {
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static int child(int fd, const Options &o) {
    unsigned *own = to_device(seed((size_t)o.size, 77));
    cudaStream_t stream = make_stream();
    int descriptor = get(fd);
    cudaMemPool_t pool;
    CHECK(cudaMemPoolImportFromShareableHandle(&pool, (void *)(uintptr_t)descriptor, KIND, 0));
    close(descriptor);
    void *none = nullptr;
    require(cudaMallocFromPoolAsync(&none, 4096, pool, stream) != cudaSuccess, "an allocation from another's pool");
    (void)cudaGetLastError();
    Given given;
    hear(fd, &given, sizeof given);
    unsigned n = (unsigned)given.words;
    unsigned *state = import(pool, given.state);
    cudaIpcEventHandle_t handle;
    cudaEvent_t done = make_event(&handle), other = nullptr;
    say(fd, &handle, sizeof handle);
    Turn t;
    for (hear(fd, &t, sizeof t); t.k != 0; hear(fd, &t, sizeof t)) {
        if (t.fresh) {
            if (other) {
                CHECK(cudaEventDestroy(other));
            }
            other = open_event(t.event);
        }
        CHECK(cudaStreamWaitEvent(stream, other, 0));
        unsigned *piece = t.lent ? import(pool, t.piece) : nullptr;
        work(state, piece, own, n, 2 * t.k + 1, stream);
        if (piece) {
            CHECK(cudaFreeAsync(piece, stream));
        }
        CHECK(cudaEventRecord(done, stream));
        say(fd, &t.k, sizeof t.k);
    }
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaFree(state));
    Digest d;
    d.all(from_device(own, n));
    say(fd, &d.state, sizeof d.state);
    // The first ends only then: it has what is open here.
    CHECK(cudaEventDestroy(other));
    CHECK(cudaEventDestroy(done));
    CHECK(cudaMemPoolDestroy(pool));
    return 0;
}

int main(int argc, char **argv) {
    long fd = option(argc, argv, "--child", -1);
    if (fd >= 0) {
        Options o = {option(argc, argv, "--size", 0), 0, 0};
        return child((int)fd, o);
    }
    Options o = begin(argc, argv, 1 << 18, 200);
    int to;
    pid_t other = start_child("ipcevents", o, &to);
    unsigned n = (unsigned)o.size;
    size_t bytes = n * sizeof(unsigned);
    unsigned *own = to_device(seed(n, 1));
    cudaStream_t stream = make_stream();
    cudaMemPoolProps wish = {};
    wish.allocType = cudaMemAllocationTypePinned;
    wish.handleTypes = KIND;
    wish.location.type = cudaMemLocationTypeDevice;
    cudaMemPool_t pool;
    CHECK(cudaMemPoolCreate(&pool, &wish));
    // Memory of a pool can be shared once the pool is.
    int descriptor = -1;
    CHECK(cudaMemPoolExportToShareableHandle(&descriptor, pool, KIND, 0));
    Given given = {};
    given.words = n;
    unsigned *state = allocate(pool, bytes, stream, &given.state);
    std::vector<unsigned> first = seed(n, 2);
    CHECK(cudaMemcpyAsync(state, first.data(), bytes, cudaMemcpyHostToDevice, stream));
    CHECK(cudaStreamSynchronize(stream));
    pass(to, descriptor);
    close(descriptor);
    say(to, &given, sizeof given);
    cudaIpcEventHandle_t handle;
    hear(to, &handle, sizeof handle);
    cudaEvent_t done = nullptr, others = open_event(handle);
    for (long k = 1; k <= o.steps; k++) {
        Turn t = {};
        t.k = (unsigned)k;
        t.fresh = k % 16 == 1;
        t.lent = k % 5 == 0;
        if (t.fresh) {
            if (done) {
                // The second's stream has passed what it waited for.
                CHECK(cudaEventSynchronize(others));
                CHECK(cudaEventDestroy(done));
            }
            done = make_event(&t.event);
        }
        unsigned *piece = nullptr;
        if (t.lent) {
            piece = allocate(pool, bytes, stream, &t.piece);
            CHECK(cudaMemsetAsync(piece, (int)(k % 256), bytes, stream));
        }
        work(state, piece, own, n, 2 * t.k, stream);
        CHECK(cudaEventRecord(done, stream));
        say(to, &t, sizeof t);
        unsigned answer;
        hear(to, &answer, sizeof answer);
        require(answer == t.k, "the answer to a turn");
        CHECK(cudaStreamWaitEvent(stream, others, 0));
        if (piece) {
            turn<<<blocks_for(n, 256), 256, 0, stream>>>(state, piece, n, t.k + 23);
            CHECK_LAUNCH();
            CHECK(cudaFreeAsync(piece, stream));
        }
        if (k % 7 == 0) {
            CHECK(cudaEventSynchronize(others));
            CHECK(cudaEventQuery(others));
        }
        step(o, k, o.steps);
    }
    CHECK(cudaStreamSynchronize(stream));
    Digest d;
    d.all(from_device(state, n));
    Turn end = {};
    say(to, &end, sizeof end);
    uint64_t digest;
    hear(to, &digest, sizeof digest);
    await_child(other);
    d.word(digest);
    d.all(from_device(own, n));
    CHECK(cudaFreeAsync(state, stream));
    CHECK(cudaStreamSynchronize(stream));
    return finish("ipcevents", d);
}
