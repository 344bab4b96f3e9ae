// Fills GPU memory with known bytes, says so, waits for a file to appear, proves the bytes.
//
// The object of the checkpoint benches: `--gib N` of pseudo-random data (nothing compresses or
// repeats) in `--buffers M` buffers; prints "ready" when filled; when the file `--until PATH` exists
// it checks every word on the GPU and prints "digest hold <hex> bad <count>". When a file `--again PATH` exists it fills the first
// `--rewrite M` buffers with other data and removes that file.
#include <cstring>
#include <unistd.h>
#include <vector>
#include "fill.cuh"

int main(int argc, char **argv) {
    double gib = 1;
    int buffers = 16, rewrite = 0;
    const char *until = nullptr, *again = nullptr;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!std::strcmp(argv[i], "--gib")) gib = std::atof(argv[i + 1]);
        if (!std::strcmp(argv[i], "--buffers")) buffers = std::atoi(argv[i + 1]);
        if (!std::strcmp(argv[i], "--until")) until = argv[i + 1];
        if (!std::strcmp(argv[i], "--again")) again = argv[i + 1];
        if (!std::strcmp(argv[i], "--rewrite")) rewrite = std::atoi(argv[i + 1]);
    }
    size_t words = size_t(gib * (1 << 30)) / 8 / buffers;
    std::vector<uint64_t *> data(buffers);
    std::vector<uint64_t> first(buffers);
    unsigned long long *out, host[2];
    CHECK(cudaMalloc(&out, sizeof host));
    CHECK(cudaMemset(out, 0, sizeof host));
    for (int b = 0; b < buffers; b++) {
        CHECK(cudaMalloc(&data[b], words * 8));
        first[b] = uint64_t(b) * words;
        fill<<<1024, 256>>>(data[b], words, first[b]);
    }
    CHECK(cudaDeviceSynchronize());
    std::printf("ready\n");
    std::fflush(stdout);
    while (until && access(until, F_OK) != 0) {
        usleep(1000);
        if (!again || access(again, F_OK) != 0) continue;
        for (int b = 0; b < buffers && b < rewrite; b++) {
            first[b] += uint64_t(buffers) * words;
            fill<<<1024, 256>>>(data[b], words, first[b]);
        }
        CHECK(cudaDeviceSynchronize());
        unlink(again);
    }
    for (int b = 0; b < buffers; b++) check<<<1024, 256>>>(data[b], words, first[b], out);
    CHECK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
    std::printf("digest hold %016llx bad %llu\n", host[0], host[1]);
    std::fflush(stdout);
    return host[1] ? 2 : 0;
}
