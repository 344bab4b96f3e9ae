// Double buffering through pinned memory: while one half is on its way, the
// host fills the other. Host callbacks in the stream count what came back.
#include "common.h"

#include <atomic>

__global__ void transform(const unsigned *in, unsigned *out, int n, unsigned salt) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        out[i] = (in[i] ^ salt) * 2654435761u + i;
    }
}

struct Half {
    unsigned *in, *out, *din, *dout;
    cudaStream_t stream;
    std::atomic<long> finished{0};
    uint64_t sum = 0;
    int n = 0;
};

// Runs on a thread of the driver when the copy back has ended.
static void CUDART_CB collect(void *arg) {
    Half &h = *(Half *)arg;
    for (int i = 0; i < h.n; i++) {
        h.sum = h.sum * 31 + h.out[i];
    }
    h.finished++;
}

static void make_half(Half &h, int n) {
    h.n = n;
    size_t bytes = n * sizeof(unsigned);
    CHECK(cudaHostAlloc(&h.in, bytes, cudaHostAllocDefault));
    CHECK(cudaMallocHost(&h.out, bytes));
    h.din = device_array<unsigned>(n);
    h.dout = device_array<unsigned>(n);
    CHECK(cudaStreamCreateWithFlags(&h.stream, cudaStreamNonBlocking));
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 1 << 16, 40);
    int n = (int)o.size;
    size_t bytes = n * sizeof(unsigned);
    Half halves[2];
    make_half(halves[0], n);
    make_half(halves[1], n);
    // A third buffer is ordinary memory that is pinned afterwards.
    std::vector<unsigned> last(n + 2048);
    unsigned *aligned = (unsigned *)(((uintptr_t)last.data() + 4095) & ~(uintptr_t)4095);
    CHECK(cudaHostRegister(aligned, bytes, cudaHostRegisterDefault));

    for (long k = 1; k <= o.steps; k++) {
        Half &h = halves[k % 2];
        CHECK(cudaStreamSynchronize(h.stream));
        for (int i = 0; i < n; i++) {
            h.in[i] = noise((uint64_t)k * n + i);
        }
        CHECK(cudaMemcpyAsync(h.din, h.in, bytes, cudaMemcpyHostToDevice, h.stream));
        transform<<<blocks_for(n, 256), 256, 0, h.stream>>>(h.din, h.dout, n, (unsigned)k);
        CHECK_LAUNCH();
        CHECK(cudaMemcpyAsync(h.out, h.dout, bytes, cudaMemcpyDeviceToHost, h.stream));
        CHECK(cudaLaunchHostFunc(h.stream, collect, &h));
        step(o, k, o.steps);
    }

    Digest d;
    for (Half &h : halves) {
        CHECK(cudaMemcpyAsync(aligned, h.dout, bytes, cudaMemcpyDeviceToHost, h.stream));
        CHECK(cudaStreamSynchronize(h.stream));
        require(o.steps < 2 || memcmp(aligned, h.out, bytes) == 0, "registered memory differs");
        d.word(h.sum);
        d.word((uint64_t)h.finished.load());
    }
    require(halves[0].finished + halves[1].finished == o.steps, "a callback is missing");
    CHECK(cudaHostUnregister(aligned));
    for (Half &h : halves) {
        CHECK(cudaFreeHost(h.in));
        CHECK(cudaFreeHost(h.out));
    }
    return finish("pinned", d);
}
