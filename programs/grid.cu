// Cooperative launches: the blocks of a grid wait for each other within a kernel, by themselves and in a replayed graph. Each launch
// makes several sweeps over two buffers, with a barrier of the whole grid between them, so a block reads what others have just written.
#include "common.h"

#include <cooperative_groups.h>

const unsigned SWEEPS = 3, THREADS = 128, BLOCKS = 8;

__global__ void sweeps(unsigned *one, unsigned *other, unsigned n, unsigned step) {
    auto grid = cooperative_groups::this_grid();
    unsigned *from = one, *to = other;
    for (unsigned s = 0; s < SWEEPS; s++) {
        for (unsigned i = (unsigned)grid.thread_rank(); i < n; i += (unsigned)grid.size()) {
            to[i] = from[i] * 3 + from[(i * 5 + step + s) % n] + s;
        }
        grid.sync();
        unsigned *read = from;
        from = to;
        to = read;
    }
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 20000, 200);
    unsigned n = (unsigned)o.size;
    int device = 0, cooperative = 0, fit = 0;
    CHECK(cudaGetDevice(&device));
    CHECK(cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device));
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, sweeps, THREADS, 0));
    if (!cooperative || fit < 1) {
        fprintf(stderr, "no cooperative launches\n");
        return 1;
    }
    std::vector<unsigned> first(n);
    for (unsigned i = 0; i < n; i++) {
        first[i] = noise(i);
    }
    unsigned *one = to_device(first), *other = device_array<unsigned>(n);
    unsigned step_of_graph = 7, step_now = 0;
    void *arguments[] = {&one, &other, &n, &step_now}, *captured[] = {&other, &one, &n, &step_of_graph};

    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    cudaGraph_t graph;
    cudaGraphExec_t replayed;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaLaunchCooperativeKernel((const void *)sweeps, dim3(BLOCKS), dim3(THREADS), captured, 0, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&replayed, graph, 0));

    for (long k = 1; k <= o.steps; k++) {
        // Three sweeps leave the result in the other buffer; the graph brings it back.
        step_now = (unsigned)k;
        CHECK(cudaLaunchCooperativeKernel((const void *)sweeps, dim3(BLOCKS), dim3(THREADS), arguments, 0, stream));
        CHECK(cudaGraphLaunch(replayed, stream));
        if (k % 5 == 0) {
            CHECK(cudaStreamSynchronize(stream));
            step(o, k, o.steps);
        }
    }
    CHECK(cudaStreamSynchronize(stream));

    Digest d;
    d.all(from_device(one, n));
    d.all(from_device(other, n));
    return finish("grid", d);
}
