// Uses many buffers one after another, in an order that is not that of their addresses: what a restore that
// brings data while the program runs is measured with.
//
//   passes --gib N --buffers M --passes P --until PATH [--log PATH]
//
// Fills M buffers of N GiB in all, prints "ready", waits for the file, then reads every buffer P times, one
// buffer after another, and waits for each. Prints when the first and the last kernel were done, in seconds
// since 1970, and "digest passes HEX bad COUNT". The log gets a line for each buffer: begin and end, in
// microseconds since 1970.
#include <cstring>
#include <ctime>
#include <unistd.h>
#include <vector>
#include "fill.cuh"

static double now() {
    timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

int main(int argc, char **argv) {
    double gib = 1;
    int buffers = 16, passes = 1;
    const char *until = nullptr, *path = nullptr;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!std::strcmp(argv[i], "--gib")) gib = std::atof(argv[i + 1]);
        if (!std::strcmp(argv[i], "--buffers")) buffers = std::atoi(argv[i + 1]);
        if (!std::strcmp(argv[i], "--passes")) passes = std::atoi(argv[i + 1]);
        if (!std::strcmp(argv[i], "--until")) until = argv[i + 1];
        if (!std::strcmp(argv[i], "--log")) path = argv[i + 1];
    }
    size_t words = size_t(gib * (1 << 30)) / 8 / buffers;
    std::vector<uint64_t *> data(buffers);
    unsigned long long *out, host[2];
    CHECK(cudaMalloc(&out, sizeof host));
    CHECK(cudaMemset(out, 0, sizeof host));
    std::vector<int> order(buffers);
    for (int b = 0; b < buffers; b++) {
        CHECK(cudaMalloc(&data[b], words * 8));
        fill<<<1024, 256>>>(data[b], words, uint64_t(b) * words);
        order[b] = b;
    }
    uint64_t state = 1;
    for (int b = buffers - 1; b > 0; b--) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        std::swap(order[b], order[(state >> 33) % (b + 1)]);
    }
    check<<<1024, 256>>>(data[0], 1, 0, out);
    CHECK(cudaMemset(out, 0, sizeof host));
    CHECK(cudaDeviceSynchronize());
    std::printf("ready\n");
    std::fflush(stdout);
    while (until && access(until, F_OK) != 0) usleep(500);
    double first = 0;
    FILE *log = path ? std::fopen(path, "a") : nullptr;
    for (int b : order) {
        double begun = now();
        for (int pass = 0; pass < passes; pass++)
            check<<<1024, 256>>>(data[b], words, uint64_t(b) * words, out);
        CHECK(cudaDeviceSynchronize());
        double end = now();
        if (first == 0) first = end;
        if (log) {
            std::fprintf(log, "%.0f %.0f\n", begun * 1e6, end * 1e6);
            std::fflush(log);
        }
    }
    double last = now();
    CHECK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
    std::printf("first %.6f\nlast %.6f\ndigest passes %016llx bad %llu\n", first, last, host[0], host[1]);
    std::fflush(stdout);
    return host[1] ? 2 : 0;
}
