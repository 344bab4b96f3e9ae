// Issues all its work at once: long chains of launches on two streams that wait for
// each other by events, with graph launches, host functions and memory that is
// freed in stream order among them, and waits only at the end. A checkpoint finds
// most of it in the queue. --size is the number of rounds of a thread in a launch;
// --wait names a file that the device waits for, in a host function, before all else,
// --wait-again another one, which it waits for before the step in the middle;
// --calls adds so many host functions to each step, on both streams in turn;
// --together is the number of steps that are issued before the program waits for them.
#include "common.h"

constexpr int N = 256;
constexpr int LAUNCHES = 6;

// Each launch depends on the order of all before it.
__global__ void turn(unsigned *v, long rounds, unsigned salt) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, x = v[i];
    for (long k = 0; k < rounds; k++) {
        x = x * 1664525u + (x >> 16) + salt;
    }
    v[i] = x;
}

__global__ void join(unsigned *to, const unsigned *from, unsigned salt) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    to[i] = to[i] * 22695477u + from[i] + salt;
}

// What the host functions have done, in order.
struct Told {
    long calls;
    unsigned state;
};

static void CUDART_CB tell(void *data) {
    Told *told = (Told *)data;
    told->calls++;
    told->state = told->state * 1664525u + (unsigned)told->calls;
}

// One of the calls of --calls, and which it is of those on its stream.
struct Call {
    Told *told;
    long number;
};

static void CUDART_CB tell_number(void *data) {
    const Call *call = (const Call *)data;
    call->told->calls++;
    require(call->told->calls == call->number, "a host function ran twice, too early, or not at all");
    call->told->state = call->told->state * 22695477u + (unsigned)call->number;
}

static void CUDART_CB wait_for(void *file) {
    while (access((const char *)file, F_OK) != 0) {
        usleep(1000);
    }
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 10000, 30);
    cudaStream_t left, right;
    CHECK(cudaStreamCreateWithFlags(&left, cudaStreamNonBlocking));
    CHECK(cudaStreamCreate(&right));
    cudaEvent_t here, there, copied;
    CHECK(cudaEventCreateWithFlags(&here, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&there, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
    std::vector<unsigned> seeds(N);
    for (int i = 0; i < N; i++) {
        seeds[i] = noise(i);
    }
    unsigned *a = to_device(seeds), *b = to_device(seeds);

    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(left, cudaStreamCaptureModeThreadLocal));
    turn<<<N / 64, 64, 0, left>>>(a, o.size, 77);
    join<<<N / 64, 64, 0, left>>>(a, a, 5);
    CHECK(cudaStreamEndCapture(left, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphDestroy(graph));

    auto both_wait_for = [&](const char *file) {
        CHECK(cudaLaunchHostFunc(left, wait_for, (void *)file));
        CHECK(cudaEventRecord(there, left));
        CHECK(cudaStreamWaitEvent(right, there, 0));
    };
    const char *file = option_text(argc, argv, "--wait"), *again = option_text(argc, argv, "--wait-again");
    if (file) {
        both_wait_for(file);
    }
    Told told = {0, 1}, of_streams[2] = {{0, 2}, {0, 3}};
    long more = option(argc, argv, "--calls", 0), together = option(argc, argv, "--together", o.steps);
    std::vector<Call> calls(more * o.steps);
    long issued[2] = {0, 0};
    for (long k = 1; k <= o.steps; k++) {
        unsigned salt = (unsigned)k;
        if (again && k == o.steps / 2) {
            both_wait_for(again);
        }
        for (int n = 0; n < LAUNCHES; n++) {
            turn<<<N / 64, 64, 0, n % 2 ? right : left>>>(n % 2 ? b : a, o.size, salt + n);
        }
        // The left stream goes on from what the right one has, and the other way round.
        CHECK(cudaEventRecord(here, right));
        CHECK(cudaStreamWaitEvent(left, here, 0));
        join<<<N / 64, 64, 0, left>>>(a, b, salt);
        CHECK(cudaGraphLaunch(exec, left));
        CHECK(cudaEventRecord(there, left));
        CHECK(cudaStreamWaitEvent(right, there, 0));
        unsigned *between;
        CHECK(cudaMallocAsync((void **)&between, N * sizeof(unsigned), right));
        CHECK(cudaMemcpyAsync(between, a, N * sizeof(unsigned), cudaMemcpyDeviceToDevice, right));
        CHECK(cudaEventRecord(copied, right));
        CHECK(cudaStreamWaitEvent(left, copied, 0));
        join<<<N / 64, 64, 0, right>>>(b, between, salt);
        CHECK(cudaFreeAsync(between, right));
        CHECK(cudaLaunchHostFunc(right, tell, &told));
        for (long n = 0; n < more; n++) {
            Call *call = &calls[(k - 1) * more + n];
            *call = {&of_streams[n % 2], ++issued[n % 2]};
            CHECK(cudaLaunchHostFunc(n % 2 ? right : left, tell_number, call));
        }
        CHECK_LAUNCH();
        if (k % together == 0 && k < o.steps) {
            CHECK(cudaStreamSynchronize(left));
            CHECK(cudaStreamSynchronize(right));
            require(told.calls == k, "a host function has not run before what waits for it");
        }
        step(o, k, o.steps);
    }
    CHECK(cudaStreamSynchronize(right));
    CHECK(cudaDeviceSynchronize());
    require(told.calls == o.steps, "a host function ran twice, or not at all");
    for (int n = 0; n < 2; n++) {
        require(of_streams[n].calls == issued[n], "a host function of a stream ran twice, or not at all");
    }

    Digest d;
    d.all(from_device(a, N));
    d.all(from_device(b, N));
    d.word(told.state);
    for (const Told &of_stream : of_streams) {
        if (more > 0) {
            d.word(of_stream.state);
        }
    }
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaFree(a));
    CHECK(cudaFree(b));
    return finish("queued", d);
}
