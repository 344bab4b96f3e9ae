// Cost of single CUDA calls as the calling thread sees it. Prints one JSON object.
//
// The same binary runs natively and under Fermata, so that the two outputs can be divided by each
// other. Every figure is the median over `rounds` of a batch's mean, in microseconds, except copies
// (GB/s of the best of `rounds`, and the median).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <cuda_runtime.h>

#define CHECK(call)                                                                          \
    do {                                                                                     \
        cudaError_t status_ = (call);                                                        \
        if (status_ != cudaSuccess) {                                                        \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status_));            \
            std::exit(1);                                                                    \
        }                                                                                    \
    } while (0)

__global__ void empty(int *p, int v) {
    if (v < 0) *p = v;
}

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

int main(int argc, char **argv) {
    int rounds = 15;
    size_t copy_bytes = size_t(1) << 30;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!std::strcmp(argv[i], "--rounds")) rounds = std::atoi(argv[i + 1]);
        if (!std::strcmp(argv[i], "--copy-mib")) copy_bytes = size_t(std::atoll(argv[i + 1])) << 20;
    }
    int *d;
    CHECK(cudaMalloc(&d, 1 << 20));
    CHECK(cudaMemset(d, 0, 1 << 20));
    empty<<<1, 32>>>(d, 1);
    CHECK(cudaDeviceSynchronize());

    // Issue cost: few enough launches that no queue fills; the wait is outside the timed part.
    std::vector<double> issue, through, sync, small;
    for (int r = 0; r < rounds; r++) {
        const int n = 200;
        double t = now();
        for (int i = 0; i < n; i++) empty<<<1, 32>>>(d, 1);
        double issued = now();
        CHECK(cudaDeviceSynchronize());
        double done = now();
        issue.push_back((issued - t) / n * 1e6);
        through.push_back((done - t) / n * 1e6);
    }
    for (int r = 0; r < rounds; r++) {
        const int n = 300;
        double t = now();
        for (int i = 0; i < n; i++) {
            empty<<<1, 32>>>(d, 1);
            CHECK(cudaDeviceSynchronize());
        }
        sync.push_back((now() - t) / n * 1e6);
    }
    int host = 0;
    for (int r = 0; r < rounds; r++) {
        const int n = 300;
        double t = now();
        for (int i = 0; i < n; i++) CHECK(cudaMemcpy(&host, d, 4, cudaMemcpyDeviceToHost));
        small.push_back((now() - t) / n * 1e6);
    }
    std::vector<double> stream_sync;
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    for (int r = 0; r < rounds; r++) {
        const int n = 300;
        double t = now();
        for (int i = 0; i < n; i++) {
            empty<<<1, 32, 0, s>>>(d, 1);
            CHECK(cudaStreamSynchronize(s));
        }
        stream_sync.push_back((now() - t) / n * 1e6);
    }

    // A step as XLA makes it: other parameters for ten kernels and five graphs inside, then a launch of the whole.
    const int kernels = 10, children = 5;
    cudaGraph_t graph, inner[2];
    cudaGraphExec_t exec;
    cudaGraphNode_t nodes[kernels], inside[children], before = nullptr;
    CHECK(cudaGraphCreate(&graph, 0));
    int *where[2] = {d, d + 1024}, value[2] = {1, 2};
    cudaKernelNodeParams params[2];
    for (int k = 0; k < 2; k++) {
        static void *arguments[2][2];
        arguments[k][0] = &where[k], arguments[k][1] = &value[k];
        params[k] = {};
        params[k].func = (void *)empty, params[k].gridDim = 1, params[k].blockDim = 32, params[k].kernelParams = arguments[k];
        CHECK(cudaGraphCreate(&inner[k], 0));
        cudaGraphNode_t only;
        CHECK(cudaGraphAddKernelNode(&only, inner[k], nullptr, 0, &params[k]));
    }
    for (int i = 0; i < kernels + children; i++) {
        cudaGraphNode_t *node = i < kernels ? &nodes[i] : &inside[i - kernels];
        size_t after = before != nullptr;
        if (i < kernels) CHECK(cudaGraphAddKernelNode(node, graph, &before, after, &params[0]));
        else CHECK(cudaGraphAddChildGraphNode(node, graph, &before, after, inner[0]));
        before = *node;
    }
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<double> kernel_set, child_set, graph_step;
    for (int r = 0; r < rounds; r++) {
        const int n = 100;
        double first = 0, second = 0, begun = now();
        for (int i = 0; i < n; i++) {
            double t = now();
            for (auto &node : nodes) CHECK(cudaGraphExecKernelNodeSetParams(exec, node, &params[i % 2]));
            double m = now();
            for (auto &node : inside) CHECK(cudaGraphExecChildGraphNodeSetParams(exec, node, inner[i % 2]));
            double e = now();
            first += m - t, second += e - m;
            CHECK(cudaGraphLaunch(exec, s));
            CHECK(cudaStreamSynchronize(s));
        }
        kernel_set.push_back(first / n / kernels * 1e6);
        child_set.push_back(second / n / children * 1e6);
        graph_step.push_back((now() - begun) / n * 1e6);
    }

    char *pinned, *device;
    CHECK(cudaMallocHost(&pinned, copy_bytes));
    CHECK(cudaMalloc(&device, copy_bytes));
    std::memset(pinned, 1, copy_bytes);
    std::vector<double> up, down;
    for (int r = 0; r < std::max(3, rounds / 3); r++) {
        double t = now();
        CHECK(cudaMemcpy(device, pinned, copy_bytes, cudaMemcpyHostToDevice));
        double m = now();
        CHECK(cudaMemcpy(pinned, device, copy_bytes, cudaMemcpyDeviceToHost));
        double e = now();
        up.push_back(copy_bytes / (m - t) / 1e9);
        down.push_back(copy_bytes / (e - m) / 1e9);
    }
    std::vector<double> allocs;
    for (int r = 0; r < rounds; r++) {
        const int n = 50;
        double t = now();
        for (int i = 0; i < n; i++) {
            void *p;
            CHECK(cudaMalloc(&p, 1 << 20));
            CHECK(cudaFree(p));
        }
        allocs.push_back((now() - t) / n * 1e6);
    }
    std::printf("{\"launch_us\":%.4f,\"launch_throughput_us\":%.4f,\"launch_sync_us\":%.4f,"
                "\"launch_stream_sync_us\":%.4f,\"copy4_us\":%.4f,\"malloc_free_us\":%.4f,"
                "\"graph_kernel_set_us\":%.4f,\"graph_child_set_us\":%.4f,\"graph_step_us\":%.4f,"
                "\"h2d_gbs\":%.3f,\"d2h_gbs\":%.3f,\"copy_bytes\":%zu}\n",
                median(issue), median(through), median(sync), median(stream_sync), median(small), median(allocs),
                median(kernel_set), median(child_set), median(graph_step), median(up), median(down), copy_bytes);
    return 0;
}
