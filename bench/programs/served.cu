// Weights that requests only read: what several instances of one image are measured with.
//
//   served --gib N --buffers M --until PATH --end PATH
//
// Fills M buffers of N GiB in all, prints "ready", and waits for the first file. Then it reads all buffers, one after another,
// again and again, and adds to a small buffer of its own. Prints "first" and "all" with the time, in seconds since 1970, when the
// first kernel and the first pass were done. When the second file is there it prints "digest served HEX bad COUNT" of a last
// pass.
#include <cstring>
#include <ctime>
#include <unistd.h>
#include <vector>
#include "fill.cuh"

static void tell(const char *what) {
    timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    std::printf("%s %.6f\n", what, double(time.tv_sec) + 1e-9 * double(time.tv_nsec));
    std::fflush(stdout);
}

int main(int argc, char **argv) {
    double gib = 1;
    int buffers = 16;
    const char *until = "/", *end = "/";
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!std::strcmp(argv[i], "--gib")) gib = std::atof(argv[i + 1]);
        if (!std::strcmp(argv[i], "--buffers")) buffers = std::atoi(argv[i + 1]);
        if (!std::strcmp(argv[i], "--until")) until = argv[i + 1];
        if (!std::strcmp(argv[i], "--end")) end = argv[i + 1];
    }
    size_t words = size_t(gib * (1 << 30)) / 8 / buffers;
    std::vector<uint64_t *> data(buffers);
    unsigned long long *out, host[2];
    CHECK(cudaMalloc(&out, sizeof host));
    for (int b = 0; b < buffers; b++) {
        CHECK(cudaMalloc(&data[b], words * 8));
        fill<<<1024, 256>>>(data[b], words, uint64_t(b) * words);
    }
    check<<<1024, 256>>>(data[0], 1, 0, out);
    CHECK(cudaDeviceSynchronize());
    std::printf("ready\n");
    std::fflush(stdout);
    while (access(until, F_OK) != 0) usleep(500);
    for (bool first = true, over = false; !over; first = false) {
        over = access(end, F_OK) == 0;
        CHECK(cudaMemset(out, 0, sizeof host));
        for (int b = 0; b < buffers; b++) {
            check<<<1024, 256>>>(data[b], words, uint64_t(b) * words, out);
            if (first && b == 0) {
                CHECK(cudaDeviceSynchronize());
                tell("first");
            }
        }
        CHECK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
        if (first) tell("all");
        usleep(20000);
    }
    std::printf("digest served %016llx bad %llu\n", host[0], host[1]);
    std::fflush(stdout);
    return host[1] ? 2 : 0;
}
