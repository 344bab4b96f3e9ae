// Host, device and managed variables in one session, re-protected after a
// reallocation. The second run recovers what the first has written.
//   device FOLDER write|read
#include "fermata.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

static fermata_error *error = nullptr;

static void fine(bool ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "%s: %s\n", what, fermata_error_message(error));
        exit(1);
    }
}
#define FINE(call) fine((call) == FERMATA_OK, #call)
#define CUDA(call) fine((call) == cudaSuccess, #call)

__global__ void fill(int *a, int n, int seed) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        a[i] = i * 2654435761u + seed;
    }
}

int main(int argc, char **argv) {
    if (argc != 3) {
        return 2;
    }
    const int n = 700001;
    bool write = strcmp(argv[2], "write") == 0;
    std::string config = "name = \"cuda\"\nblock_bytes = 65536\n[local]\nfolders = [\"" +
                         std::string(argv[1]) + "\"]\n";
    fermata *s = nullptr;
    FINE(fermata_init_text(config.c_str(), nullptr, &s, &error));
    std::vector<int> host(n);
    int *device, *managed, *wide;
    CUDA(cudaMalloc(&device, n * sizeof(int)));
    CUDA(cudaMalloc(&wide, 2 * n * sizeof(int)));
    CUDA(cudaMallocManaged(&managed, n * sizeof(int)));
    FINE(fermata_protect(s, 1, host.data(), n, FERMATA_INT(4), &error));
    FINE(fermata_protect(s, 2, device, n, FERMATA_INT(4), &error));
    FINE(fermata_protect(s, 3, managed, n, FERMATA_INT(4), &error));
    if (write) {
        cudaStream_t stream;
        CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        for (int i = 0; i < n; i++) {
            host[i] = i ^ 0x55;
        }
        fill<<<(n + 255) / 256, 256, 0, stream>>>(device, n, 1);
        fill<<<(n + 255) / 256, 256, 0, stream>>>(managed, n, 2);
        // No synchronisation here: the checkpoint waits for the stream.
        FINE(fermata_checkpoint(s, 1, FERMATA_LOCAL, &error));
        // The program may go on at once, and the memory may move.
        fill<<<(2 * n + 255) / 256, 256, 0, stream>>>(wide, 2 * n, 3);
        CUDA(cudaFree(device));
        FINE(fermata_protect(s, 2, wide, 2 * n, FERMATA_INT(4), &error));
        FINE(fermata_checkpoint(s, 2, FERMATA_LOCAL, &error));
        FINE(fermata_finalize(s, 0, &error));
        puts("fine");
        return 0;
    }
    uint64_t bytes = 0;
    FINE(fermata_stored_bytes(s, 2, &bytes, &error));
    fine(bytes == 2 * n * sizeof(int), "stored bytes of the wide array");
    fine(fermata_recover(s, nullptr, nullptr) == FERMATA_MISMATCH, "the old size is refused");
    FINE(fermata_protect(s, 2, wide, 2 * n, FERMATA_INT(4), &error));
    int64_t id = 0;
    FINE(fermata_recover(s, &id, &error));
    fine(id == 2, "the newest checkpoint");
    std::vector<int> back(2 * n);
    CUDA(cudaMemcpy(back.data(), wide, 2 * n * sizeof(int), cudaMemcpyDeviceToHost));
    for (int i = 0; i < 2 * n; i++) {
        fine(back[i] == (int)(i * 2654435761u + 3), "device data");
        fine(i >= n || host[i] == (i ^ 0x55), "host data");
        fine(i >= n || managed[i] == (int)(i * 2654435761u + 2), "managed data");
    }
    FINE(fermata_finalize(s, 1, &error));
    puts("fine");
    return 0;
}
