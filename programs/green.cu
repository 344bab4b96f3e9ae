// Green contexts: parts of the device's multiprocessors, made by splits, one of them by a split of another's rest. Streams and default
// streams of these work on shared memory in turn, ordered by events of streams and of contexts, and a graph that was captured in one
// part is launched in another. Kernels record on which multiprocessors they ran. From time to time a part is made anew from the
// description that the program has kept since its begin.
#include "common.h"

#include <cuda.h>
#include <string>

const unsigned THREADS = 64, PLACES = 1024;

#define DRIVER(name) static decltype(&::name) name##_
DRIVER(cuDeviceGetDevResource);
DRIVER(cuDevSmResourceSplitByCount);
DRIVER(cuDevResourceGenerateDesc);
DRIVER(cuGreenCtxCreate);
DRIVER(cuGreenCtxDestroy);
DRIVER(cuGreenCtxGetDevResource);
DRIVER(cuCtxFromGreenCtx);
DRIVER(cuCtxGetDevResource);
DRIVER(cuGreenCtxStreamCreate);
DRIVER(cuGreenCtxRecordEvent);
DRIVER(cuGreenCtxWaitEvent);
DRIVER(cuGreenCtxGetId);
DRIVER(cuStreamGetGreenCtx);
DRIVER(cuCtxPushCurrent);
DRIVER(cuCtxPopCurrent);

template <class F> static void find(const char *name, F *function) {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion(name, &found, CUDA_VERSION, cudaEnableDefault, &result));
    require(result == cudaDriverEntryPointSuccess && found, name);
    *function = (F)found;
}

#define FIND(name) find(#name, &name##_)
#define DO(call)                                                                                   \
    do {                                                                                           \
        CUresult result = (call);                                                                  \
        if (result != CUDA_SUCCESS) {                                                              \
            fail(#call, std::to_string(result).c_str());                                           \
        }                                                                                          \
    } while (0)

// Each thread's word depends on words of the other array; `places` gets a 1 for each multiprocessor that runs a block.
__global__ void mix(unsigned *to, const unsigned *from, unsigned n, unsigned k, unsigned *places) {
    unsigned place;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(place));
    places[place % PLACES] = 1;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        to[i] = to[i] * 3 + from[(i * 5 + k) % n] + k;
    }
}

struct Part {
    CUdevResource resource;
    CUgreenCtx green;
    CUcontext context;
    cudaStream_t stream;
    unsigned count;
};

static CUgreenCtx green_of(CUdevResource resource) {
    CUdevResourceDesc descriptor;
    CUgreenCtx green;
    DO(cuDevResourceGenerateDesc_(&descriptor, &resource, 1));
    DO(cuGreenCtxCreate_(&green, descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    return green;
}

static Part part_of(CUdevResource resource) {
    Part part = {resource, green_of(resource)};
    CUdevResource own, of_context;
    CUgreenCtx of_stream;
    DO(cuCtxFromGreenCtx_(&part.context, part.green));
    DO(cuGreenCtxStreamCreate_(&part.stream, part.green, CU_STREAM_NON_BLOCKING, 0));
    DO(cuGreenCtxGetDevResource_(part.green, &own, CU_DEV_RESOURCE_TYPE_SM));
    DO(cuCtxGetDevResource_(part.context, &of_context, CU_DEV_RESOURCE_TYPE_SM));
    DO(cuStreamGetGreenCtx_(part.stream, &of_stream));
    part.count = own.sm.smCount;
    require(part.count >= 8 && part.count == resource.sm.smCount, "a green context has other multiprocessors");
    require(of_context.sm.smCount == part.count, "its context has other multiprocessors");
    require(of_stream == part.green, "a stream is in another green context");
    return part;
}

static void end(Part &part) {
    CHECK(cudaStreamDestroy(part.stream));
    DO(cuGreenCtxDestroy_(part.green));
}

static void launch(const Part &part, cudaStream_t stream, unsigned *to, const unsigned *from, unsigned n, unsigned k,
                   unsigned *places) {
    CHECK(cudaMemsetAsync(places, 0, PLACES * sizeof(unsigned), stream));
    mix<<<part.count * 2, THREADS, 0, stream>>>(to, from, n, k, places);
    CHECK_LAUNCH();
}

// How many multiprocessors the one kernel used that has written `places`.
static unsigned used(const unsigned *places) {
    unsigned count = 0;
    for (unsigned place : from_device(places, PLACES)) {
        count += place;
    }
    return count;
}

static std::vector<unsigned> words(unsigned n, unsigned from) {
    std::vector<unsigned> v(n);
    for (unsigned i = 0; i < n; i++) {
        v[i] = noise(from + i);
    }
    return v;
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 4000, 100);
    unsigned n = (unsigned)o.size;
    CHECK(cudaSetDevice(0));
    FIND(cuDeviceGetDevResource);
    FIND(cuDevSmResourceSplitByCount);
    FIND(cuDevResourceGenerateDesc);
    FIND(cuGreenCtxCreate);
    FIND(cuGreenCtxDestroy);
    FIND(cuGreenCtxGetDevResource);
    FIND(cuCtxFromGreenCtx);
    FIND(cuCtxGetDevResource);
    FIND(cuGreenCtxStreamCreate);
    FIND(cuGreenCtxRecordEvent);
    FIND(cuGreenCtxWaitEvent);
    FIND(cuGreenCtxGetId);
    FIND(cuStreamGetGreenCtx);
    FIND(cuCtxPushCurrent);
    FIND(cuCtxPopCurrent);

    // All multiprocessors; a group of at least 8 and the rest; and a group of what the rest's green context has.
    CUdevResource all, group, rest, of_rest, inner;
    unsigned most = 0, one = 1;
    DO(cuDeviceGetDevResource_(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    DO(cuDevSmResourceSplitByCount_(nullptr, &most, &all, nullptr, 0, 8));
    require(most >= 2, "there are too few multiprocessors");
    DO(cuDevSmResourceSplitByCount_(&group, &one, &all, &rest, 0, 8));
    require(one == 1 && group.sm.smCount + rest.sm.smCount == all.sm.smCount, "multiprocessors are lost");
    Part a = part_of(group), b = part_of(rest);
    DO(cuGreenCtxGetDevResource_(b.green, &of_rest, CU_DEV_RESOURCE_TYPE_SM));
    DO(cuDevSmResourceSplitByCount_(&inner, &one, &of_rest, nullptr, 0, 8));
    Part c = part_of(inner);
    unsigned long long id = 0;
    DO(cuGreenCtxGetId_(c.green, &id));

    unsigned *x = to_device(words(n, 0)), *places[5];
    // Memory belongs to the device's primary context, whichever of its parts is current.
    DO(cuCtxPushCurrent_(a.context));
    unsigned *y = to_device(words(n, n));
    for (unsigned *&it : places) {
        it = device_array<unsigned>(PLACES);
    }
    DO(cuCtxPopCurrent_(nullptr));
    cudaEvent_t first, second;
    CHECK(cudaEventCreateWithFlags(&first, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&second, cudaEventDisableTiming));
    cudaGraph_t graph;
    cudaGraphExec_t replayed;
    CHECK(cudaStreamBeginCapture(a.stream, cudaStreamCaptureModeGlobal));
    launch(a, a.stream, x, y, n, 77, places[3]);
    CHECK(cudaStreamEndCapture(a.stream, &graph));
    CHECK(cudaGraphInstantiate(&replayed, graph, 0));

    for (long k = 1; k <= o.steps; k++) {
        launch(a, a.stream, x, y, n, (unsigned)k, places[0]);
        CHECK(cudaEventRecord(first, a.stream));
        CHECK(cudaStreamWaitEvent(b.stream, first, 0));
        launch(b, b.stream, y, x, n, (unsigned)k, places[1]);
        CHECK(cudaGraphLaunch(replayed, b.stream));
        // The default stream of the third part goes on behind all that the second has been given.
        DO(cuGreenCtxRecordEvent_(b.green, second));
        DO(cuGreenCtxWaitEvent_(c.green, second));
        DO(cuCtxPushCurrent_(c.context));
        launch(c, nullptr, x, y, n, (unsigned)k, places[2]);
        CHECK(cudaEventRecord(first, nullptr));
        unsigned long long current = 0;
        DO(cuGreenCtxGetId_(nullptr, &current));
        require(current == id, "the current green context has another number");
        if (k % 5 == 0) {
            CHECK(cudaDeviceSynchronize());
        }
        DO(cuCtxPopCurrent_(nullptr));
        CHECK(cudaStreamWaitEvent(a.stream, first, 0));
        if (k % 5 != 0) {
            continue;
        }
        // Each list was written by one kernel, so that a restore is never between two.
        require(used(places[0]) <= a.count && used(places[3]) <= a.count, "the first part is larger than it may be");
        require(used(places[1]) <= b.count, "the second part is larger than it may be");
        require(used(places[2]) <= c.count, "the third part is larger than it may be");
        if (k % 20 == 0) {
            Part again = part_of(group);
            CHECK(cudaStreamWaitEvent(again.stream, first, 0));
            launch(again, again.stream, y, x, n, (unsigned)k, places[4]);
            CHECK(cudaStreamSynchronize(again.stream));
            require(used(places[4]) <= a.count, "a part that was made again is larger than it may be");
            end(again);
        }
        step(o, k, o.steps);
    }
    CHECK(cudaDeviceSynchronize());

    Digest d;
    d.all(from_device(x, n));
    d.all(from_device(y, n));
    CHECK(cudaGraphExecDestroy(replayed));
    CHECK(cudaGraphDestroy(graph));
    for (Part *part : {&c, &b, &a}) {
        end(*part);
    }
    return finish("green", d);
}
