// A pointer in a device variable: the launch names no buffer that the kernel
// writes. The host turns the pointer to another buffer every few steps. With
// `--graph 1` the launches are replays of a graph whose kernel node is changed.
#include "common.h"

const int BUFFERS = 8;

__device__ unsigned *current;
__device__ unsigned *const *sources;

__global__ void advance(unsigned n, unsigned k) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        unsigned from = sources[k % BUFFERS][(i + k) % n];
        current[i] = current[i] * 3 + (from >> 5) + k;
    }
}

// A graph of one launch of `advance`.
struct Replay {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t kernel;
};

static cudaKernelNodeParams launch_of(unsigned n, void **args) {
    cudaKernelNodeParams p = {};
    p.func = (void *)advance;
    p.gridDim = dim3(blocks_for(n, 256));
    p.blockDim = dim3(256);
    p.kernelParams = args;
    return p;
}

static Replay build(unsigned n) {
    Replay r;
    unsigned k = 0;
    void *args[] = {&n, &k};
    cudaKernelNodeParams params = launch_of(n, args);
    CHECK(cudaGraphCreate(&r.graph, 0));
    CHECK(cudaGraphAddKernelNode(&r.kernel, r.graph, nullptr, 0, &params));
    CHECK(cudaGraphInstantiate(&r.exec, r.graph, 0));
    return r;
}

static void replay(const Replay &r, unsigned n, unsigned k) {
    void *args[] = {&n, &k};
    cudaKernelNodeParams params = launch_of(n, args);
    CHECK(cudaGraphExecKernelNodeSetParams(r.exec, r.kernel, &params));
    CHECK(cudaGraphLaunch(r.exec, nullptr));
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 1 << 16, 400);
    bool graph = option(argc, argv, "--graph", 0) != 0;
    unsigned n = (unsigned)o.size;
    std::vector<unsigned *> buffers;
    for (int b = 0; b < BUFFERS; b++) {
        std::vector<unsigned> first(n);
        for (unsigned i = 0; i < n; i++) {
            first[i] = noise((uint64_t)b * n + i);
        }
        buffers.push_back(to_device(first));
    }
    unsigned **table = to_device(buffers);
    CHECK(cudaMemcpyToSymbol(sources, &table, sizeof table));
    Replay replayed = {};
    if (graph) {
        replayed = build(n);
    }

    for (long k = 1; k <= o.steps; k++) {
        unsigned *target = buffers[noise(k / 4) % BUFFERS];
        CHECK(cudaMemcpyToSymbol(current, &target, sizeof target));
        // A step reads from another buffer than it writes.
        unsigned from = (unsigned)k;
        while (buffers[from % BUFFERS] == target) {
            from++;
        }
        if (graph) {
            replay(replayed, n, from);
        } else {
            advance<<<blocks_for(n, 256), 256>>>(n, from);
            CHECK_LAUNCH();
        }
        if (k % 10 == 0) {
            CHECK(cudaDeviceSynchronize());
            step(o, k, o.steps);
        }
    }

    Digest d;
    for (unsigned *buffer : buffers) {
        d.all(from_device(buffer, n));
    }
    return finish("hidden", d);
}
