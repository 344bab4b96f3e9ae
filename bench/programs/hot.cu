// A program that keeps a part of its memory hot: the object of the benches of checkpoints behind a
// running program.
//
// `--gib N` in `--buffers M` buffers. Every `--period MS` it rewrites `--hot PERCENT` of the buffers,
// spread evenly, reads one of the others in turn, and waits for the device; with `--transfer MIB` it
// also moves that much down to pinned memory and up again, with `--reads N` it first reads all others N
// times: a step then begins with a long part that writes nothing. Prints "ready" when filled; ends when the
// file `--until PATH` exists, and then prints "digest hot <hex> steps <n>". `--log PATH` gets a line
// for each step: its start and its end, both in microseconds since 1970, then how long it took to issue the
// work and how long the device took for it, in microseconds.
//
// `--beside GIB` has another thread copy that much of the buffers to pinned memory in pieces of 4 MiB once 200
// steps are done, `--burn THREADS` has so many threads read memory meanwhile: what copying beside a program
// costs on this machine, without Fermata. Prints "beside <start> <end> gb/s <rate>".
#include <algorithm>
#include <atomic>
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

// Copies `bytes` of the buffers to pinned memory, eight pieces under way, while `threads` others read memory.
static void copy_beside(const std::vector<uint64_t *> &data, size_t each, size_t bytes, int threads) {
    const size_t piece = 4 << 20, slots = 8;
    char *ring;
    cudaStream_t stream;
    cudaEvent_t done[slots];
    CHECK(cudaMallocHost(&ring, piece * slots));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (auto &event : done) CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    std::atomic<bool> over{false};
    std::atomic<uint64_t> sink{0};
    std::vector<std::thread> burning;
    for (int t = 0; t < threads; t++)
        burning.emplace_back([&] {
            std::vector<uint64_t> own(8 << 20, 1);
            while (!over) {
                uint64_t sum = 0;
                for (uint64_t word : own) sum += word;
                sink += sum;
            }
        });
    double from = now_us();
    size_t moved = 0;
    for (size_t n = 0; moved < bytes; n++) {
        size_t at = n * piece, len = std::min(piece, each - at % each);
        if (n >= slots) CHECK(cudaEventSynchronize(done[n % slots]));
        const char *buffer = reinterpret_cast<const char *>(data[at / each % data.size()]);
        CHECK(cudaMemcpyAsync(ring + n % slots * piece, buffer + at % each, len, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaEventRecord(done[n % slots], stream));
        moved += piece;
    }
    CHECK(cudaStreamSynchronize(stream));
    double to = now_us();
    over = true;
    for (auto &thread : burning) thread.join();
    std::printf("beside %.0f %.0f gb/s %.1f\n", from, to, moved / (to - from) / 1e3);
    std::fflush(stdout);
}

int main(int argc, char **argv) {
    double gib = 1, period = 10, hot = 10, transfer = 0, beside = 0;
    int buffers = 16, reads = 0, burn = 0;
    const char *until = nullptr, *path = nullptr;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (!std::strcmp(name, "--gib")) gib = std::atof(value);
        if (!std::strcmp(name, "--buffers")) buffers = std::atoi(value);
        if (!std::strcmp(name, "--hot")) hot = std::atof(value);
        if (!std::strcmp(name, "--period")) period = std::atof(value);
        if (!std::strcmp(name, "--reads")) reads = std::atoi(value);
        if (!std::strcmp(name, "--transfer")) transfer = std::atof(value);
        if (!std::strcmp(name, "--beside")) beside = std::atof(value);
        if (!std::strcmp(name, "--burn")) burn = std::atoi(value);
        if (!std::strcmp(name, "--until")) until = value;
        if (!std::strcmp(name, "--log")) path = value;
    }
    size_t words = size_t(gib * (1 << 30)) / 8 / buffers;
    // A thread for each word, as long as it is worth a grid of its own.
    unsigned blocks = unsigned(std::clamp<size_t>((words + 255) / 256, 1, 1024));
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
        fill<<<blocks, 256>>>(data[b], words, uint64_t(b) * words);
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
    cudaEvent_t first, last;
    CHECK(cudaEventCreate(&first));
    CHECK(cudaEventCreate(&last));
    std::thread copying;
    uint64_t step = 0;
    double next = now_us();
    while (!until || access(until, F_OK) != 0) {
        if (beside > 0 && step == 200)
            copying = std::thread(copy_beside, std::cref(data), words * 8, size_t(beside * (1 << 30)), burn);
        double begun = now_us();
        for (int pass = 0; pass < reads; pass++) {
            for (int b : others) read<<<blocks, 256>>>(data[b], words, out);
            CHECK(cudaDeviceSynchronize());
        }
        CHECK(cudaEventRecord(first));
        for (int b : written) rewrite<<<blocks, 256>>>(data[b], words, step);
        if (!others.empty()) read<<<blocks, 256>>>(data[others[step % others.size()]], words, out);
        if (moved) {
            CHECK(cudaMemcpyAsync(pinned, mirror, moved, cudaMemcpyDeviceToHost));
            CHECK(cudaMemcpyAsync(mirror, pinned, moved, cudaMemcpyHostToDevice));
        }
        CHECK(cudaEventRecord(last));
        double issued = now_us();
        CHECK(cudaDeviceSynchronize());
        double end = now_us();
        if (log) {
            float ms;
            CHECK(cudaEventElapsedTime(&ms, first, last));
            std::fprintf(log, "%.0f %.0f %.0f %.0f\n", begun, end, issued - begun, ms * 1e3);
            std::fflush(log);
        }
        step++;
        next = next + period * 1000 > end ? next + period * 1000 : end;
        if (next > end) std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(next - end));
    }
    if (copying.joinable()) copying.join();
    for (int b = 0; b < buffers; b++) read<<<blocks, 256>>>(data[b], words, out);
    CHECK(cudaMemcpy(&sum, out, sizeof sum, cudaMemcpyDeviceToHost));
    std::printf("digest hot %016llx steps %llu\n", sum, (unsigned long long)step);
    std::fflush(stdout);
    return 0;
}
