// CUDA graphs: one captured across two streams, one built node by node; both
// are replayed, and changed between replays in place and by whole-graph update.
#include "common.h"

__global__ void affine(unsigned *v, unsigned factor, unsigned addend, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        v[i] = v[i] * factor + addend;
    }
}

__global__ void join(unsigned *v, const unsigned *w, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        v[i] ^= w[n - 1 - i];
    }
}

struct Work {
    unsigned *a, *b;
    int n;
    cudaStream_t main, side;
    cudaEvent_t fork, joined;
};

static cudaGraph_t capture(const Work &w, unsigned addend) {
    unsigned blocks = blocks_for(w.n, 128);
    CHECK(cudaStreamBeginCapture(w.main, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaEventRecord(w.fork, w.main));
    CHECK(cudaStreamWaitEvent(w.side, w.fork, 0));
    affine<<<blocks, 128, 0, w.main>>>(w.a, 3u, addend, w.n);
    affine<<<blocks, 128, 0, w.side>>>(w.b, 5u, addend + 1, w.n);
    CHECK(cudaEventRecord(w.joined, w.side));
    CHECK(cudaStreamWaitEvent(w.main, w.joined, 0));
    join<<<blocks, 128, 0, w.main>>>(w.a, w.b, w.n);
    CHECK(cudaMemcpyAsync(w.b, w.a, w.n / 2 * sizeof(unsigned), cudaMemcpyDeviceToDevice, w.main));
    cudaGraph_t graph;
    CHECK(cudaStreamEndCapture(w.main, &graph));
    return graph;
}

// A graph of three nodes, with the kernel node that is changed later.
struct Built {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t kernel;
};

static void set_kernel(cudaKernelNodeParams &p, void **args, int n) {
    p = {};
    p.func = (void *)affine;
    p.gridDim = dim3(blocks_for(n, 128));
    p.blockDim = dim3(128);
    p.kernelParams = args;
}

static Built build(const Work &w, unsigned *scratch) {
    Built g;
    unsigned factor = 7, addend = 11;
    int n = w.n;
    void *args[] = {&scratch, &factor, &addend, &n};
    cudaKernelNodeParams params;
    set_kernel(params, args, n);
    cudaMemsetParams fill = {};
    fill.dst = scratch;
    fill.value = 0x01010101;
    fill.elementSize = 4;
    fill.width = (size_t)n;
    fill.height = 1;

    cudaGraphNode_t memset_node, copy_node;
    CHECK(cudaGraphCreate(&g.graph, 0));
    CHECK(cudaGraphAddMemsetNode(&memset_node, g.graph, nullptr, 0, &fill));
    CHECK(cudaGraphAddKernelNode(&g.kernel, g.graph, &memset_node, 1, &params));
    CHECK(cudaGraphAddMemcpyNode1D(&copy_node, g.graph, &g.kernel, 1, w.b + n / 2, scratch,
                                   n / 2 * sizeof(unsigned), cudaMemcpyDeviceToDevice));
    CHECK(cudaGraphInstantiate(&g.exec, g.graph, 0));
    return g;
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 8192, 60);
    int n = (int)o.size;
    Work w = {};
    w.n = n;
    w.a = device_array<unsigned>(n);
    w.b = device_array<unsigned>(n);
    unsigned *scratch = device_array<unsigned>(n);
    CHECK(cudaMemset(w.a, 1, n * sizeof(unsigned)));
    CHECK(cudaMemset(w.b, 2, n * sizeof(unsigned)));
    CHECK(cudaStreamCreateWithFlags(&w.main, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&w.side, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&w.fork, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&w.joined, cudaEventDisableTiming));
    CHECK(cudaDeviceSynchronize());

    cudaGraph_t captured = capture(w, 1);
    cudaGraphExec_t replay;
    CHECK(cudaGraphInstantiate(&replay, captured, 0));
    CHECK(cudaGraphDestroy(captured));
    Built built = build(w, scratch);

    for (long k = 1; k <= o.steps; k++) {
        if (k % 10 == 0) {
            cudaGraph_t changed = capture(w, (unsigned)k);
            cudaGraphExecUpdateResultInfo info;
            CHECK(cudaGraphExecUpdate(replay, changed, &info));
            CHECK(cudaGraphDestroy(changed));
        }
        if (k % 6 == 0) {
            unsigned factor = 7, addend = (unsigned)(11 * k);
            void *args[] = {&scratch, &factor, &addend, &n};
            cudaKernelNodeParams params;
            set_kernel(params, args, n);
            CHECK(cudaGraphExecKernelNodeSetParams(built.exec, built.kernel, &params));
        }
        CHECK(cudaGraphLaunch(replay, w.main));
        CHECK(cudaGraphLaunch(built.exec, w.main));
        if (k % 3 == 0) {
            CHECK(cudaStreamSynchronize(w.main));
            step(o, k, o.steps);
        }
    }
    CHECK(cudaStreamSynchronize(w.main));

    Digest d;
    d.all(from_device(w.a, n));
    d.all(from_device(w.b, n));
    CHECK(cudaGraphExecDestroy(replay));
    CHECK(cudaGraphExecDestroy(built.exec));
    CHECK(cudaGraphDestroy(built.graph));
    return finish("graphs", d);
}
