// 128 streams in a ring: each step of a stream waits, by an event, for the step
// before it of its left neighbour. Priorities and timing events are used too.
#include "common.h"

constexpr int STREAMS = 128;

__global__ void mix(unsigned *mine, const unsigned *left, int n, unsigned salt) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        mine[i] = mine[i] * 1664525u + left[i] + salt;
    }
}

struct Lane {
    cudaStream_t stream;
    cudaEvent_t done[2];
    unsigned *data[2];
};

static Lane make_lane(int index, int n) {
    Lane l;
    int least, greatest;
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CHECK(cudaStreamCreateWithPriority(&l.stream, cudaStreamNonBlocking,
                                       index % 2 ? least : greatest));
    for (int half = 0; half < 2; half++) {
        CHECK(cudaEventCreateWithFlags(&l.done[half], cudaEventDisableTiming));
        l.data[half] = device_array<unsigned>(n);
        CHECK(cudaMemsetAsync(l.data[half], index + 1, n * sizeof(unsigned), l.stream));
    }
    CHECK(cudaEventRecord(l.done[0], l.stream));
    return l;
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 512, 24);
    int n = (int)o.size;
    std::vector<Lane> lanes;
    for (int i = 0; i < STREAMS; i++) {
        lanes.push_back(make_lane(i, n));
    }
    cudaEvent_t first, last;
    CHECK(cudaEventCreate(&first));
    CHECK(cudaEventCreate(&last));
    CHECK(cudaEventRecord(first, lanes[0].stream));

    // Half h of the data belongs to steps of parity h, so that a neighbour may
    // read step k while step k+1 is written.
    for (long k = 1; k <= o.steps; k++) {
        int now = k % 2, before = 1 - now;
        for (int i = 0; i < STREAMS; i++) {
            Lane &me = lanes[i], &left = lanes[(i + STREAMS - 1) % STREAMS];
            Lane &right = lanes[(i + 1) % STREAMS];
            CHECK(cudaStreamWaitEvent(me.stream, left.done[before], 0));
            CHECK(cudaStreamWaitEvent(me.stream, right.done[before], 0));
            CHECK(cudaMemcpyAsync(me.data[now], me.data[before], n * sizeof(unsigned),
                                  cudaMemcpyDeviceToDevice, me.stream));
            mix<<<blocks_for(n, 128), 128, 0, me.stream>>>(me.data[now], left.data[before], n,
                                                           (unsigned)k);
        }
        for (Lane &l : lanes) {
            CHECK(cudaEventRecord(l.done[now], l.stream));
        }
        CHECK_LAUNCH();
        if (k % 2 == 0) {
            CHECK(cudaEventSynchronize(lanes[k % STREAMS].done[now]));
            step(o, k, o.steps);
        }
    }
    CHECK(cudaEventRecord(last, lanes[0].stream));
    CHECK(cudaDeviceSynchronize());
    float ms = -1.0f;
    CHECK(cudaEventElapsedTime(&ms, first, last));
    require(ms >= 0.0f, "time between events is negative");

    Digest d;
    for (Lane &l : lanes) {
        CHECK(cudaStreamQuery(l.stream));
        d.all(from_device(l.data[o.steps % 2], n));
        for (int half = 0; half < 2; half++) {
            CHECK(cudaEventDestroy(l.done[half]));
            CHECK(cudaFree(l.data[half]));
        }
        CHECK(cudaStreamDestroy(l.stream));
    }
    return finish("streams", d);
}
