// A program that keeps a part of its memory hot: the object of the benches of checkpoints behind a
// running program.
//
// `--gib N` in `--buffers M` buffers. Every `--period MS` it rewrites `--hot PERCENT` of the buffers,
// spread evenly, reads one of the others in turn, and waits for the device; with `--transfer MIB` it
// also moves that much down to pinned memory and up again, with `--reads N` it first reads all others N
// times: a step then begins with a long part that writes nothing. Prints "ready" when filled; ends when the
// file `--until PATH` exists, and then prints "digest hot <hex> steps <n>". `--log PATH` gets a line
// for each step: its start and its end, both in microseconds since 1970.
#include <chrono>
#include <cstring>
#include <thread>
#include <unistd.h>
#include <vector>
#include "fill.cuh"

__global__ void rewrite(uint64_t *p, size_t n, uint64_t step) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
        p[i] = p[i] * 6364136223846793005ull + step;
}
__global__ void read(const uint64_t *p, size_t n, unsigned long long *out) {
    unsigned long long sum = 0;
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
        sum += p[i] * (2 * i + 1);
    atomicAdd(out, sum);
}

static double now_us() {
    using namespace std::chrono;
    return duration<double, std::micro>(system_clock::now().time_since_epoch()).count();
}

int main(int argc, char **argv) {
    double gib = 1, period = 10, hot = 10, transfer = 0;
    int buffers = 16, reads = 0;
    const char *until = nullptr, *path = nullptr;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (!std::strcmp(name, "--gib")) gib = std::atof(value);
        if (!std::strcmp(name, "--buffers")) buffers = std::atoi(value);
        if (!std::strcmp(name, "--hot")) hot = std::atof(value);
        if (!std::strcmp(name, "--period")) period = std::atof(value);
        if (!std::strcmp(name, "--reads")) reads = std::atoi(value);
        if (!std::strcmp(name, "--transfer")) transfer = std::atof(value);
        if (!std::strcmp(name, "--until")) until = value;
        if (!std::strcmp(name, "--log")) path = value;
    }
    size_t words = size_t(gib * (1 << 30)) / 8 / buffers;
    size_t moved = size_t(transfer * (1 << 20));
    std::vector<int> written, others;
    for (int b = 0; b < buffers; b++)
        (int((b + 1) * hot / 100) > int(b * hot / 100) ? written : others).push_back(b);
    std::vector<uint64_t *> data(buffers);
    unsigned long long *out, sum;
    CHECK(cudaMalloc(&out, sizeof sum));
    CHECK(cudaMemset(out, 0, sizeof sum));
    for (int b = 0; b < buffers; b++) {
        CHECK(cudaMalloc(&data[b], words * 8));
        fill<<<1024, 256>>>(data[b], words, uint64_t(b) * words);
    }
    char *pinned = nullptr, *mirror = nullptr;
    if (moved) {
        CHECK(cudaMallocHost(&pinned, moved));
        CHECK(cudaMalloc(&mirror, moved));
        CHECK(cudaMemset(mirror, 1, moved));
    }
    CHECK(cudaDeviceSynchronize());
    FILE *log = path ? std::fopen(path, "w") : nullptr;
    std::printf("ready\n");
    std::fflush(stdout);
    uint64_t step = 0;
    double next = now_us();
    while (!until || access(until, F_OK) != 0) {
        double begun = now_us();
        for (int pass = 0; pass < reads; pass++) {
            for (int b : others) read<<<1024, 256>>>(data[b], words, out);
            CHECK(cudaDeviceSynchronize());
        }
        for (int b : written) rewrite<<<1024, 256>>>(data[b], words, step);
        if (!others.empty()) read<<<1024, 256>>>(data[others[step % others.size()]], words, out);
        if (moved) {
            CHECK(cudaMemcpyAsync(pinned, mirror, moved, cudaMemcpyDeviceToHost));
            CHECK(cudaMemcpyAsync(mirror, pinned, moved, cudaMemcpyHostToDevice));
        }
        CHECK(cudaDeviceSynchronize());
        double end = now_us();
        if (log) {
            std::fprintf(log, "%.0f %.0f\n", begun, end);
            std::fflush(log);
        }
        step++;
        next = next + period * 1000 > end ? next + period * 1000 : end;
        if (next > end) std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(next - end));
    }
    for (int b = 0; b < buffers; b++) read<<<1024, 256>>>(data[b], words, out);
    CHECK(cudaMemcpy(&sum, out, sizeof sum, cudaMemcpyDeviceToHost));
    std::printf("digest hot %016llx steps %llu\n", sum, (unsigned long long)step);
    std::fflush(stdout);
    return 0;
}
