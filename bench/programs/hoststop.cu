// Rewrites host memory at a rate and notes the longest time in which none of its threads ran; for `bench/hoststop.py`.
//
//   hoststop --mib N --rate MB_PER_SECOND [--threads N] [--mappings N] [--libraries FOLDER] [--huge 1] [--burst MIB] [--churn MIB]
//            [--feed MIB]
//
// A rate of 0 is as fast as it can. `--threads` sleep, `--mappings` are small and have content, and all files of `--libraries` are
// loaded. With `--burst` it also maps so much new memory at once, fills it, and frees it a second later, again and again; with
// `--churn` it holds so much in pieces of 32 MiB, the oldest of which it replaces all the time; with `--feed` it copies so much of its
// memory to the device, again and again. One thread launches a kernel every 10 ms, another one reads the clock without a pause.
// Prints `ready`, then, ten times a second: seconds since the start, the longest gap between two readings of the clock since the
// last line in milliseconds, MB written since then.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>
#include <deque>
#include <dlfcn.h>
#include <filesystem>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include "fill.cuh"

constexpr size_t STEP = 64 << 10, PIECE = 32 << 20, DEVICE_WORDS = (16 << 20) / 8;

static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static char *map(size_t bytes, bool huge) {
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::exit(1);
    madvise(memory, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    uint64_t x = 88172645463325252ull;
    for (size_t i = 0; i < bytes; i += 8) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        std::memcpy(static_cast<char *>(memory) + i, &x, 8);
    }
    return static_cast<char *>(memory);
}

int main(int argc, char **argv) {
    size_t mib = 1024, threads = 0, mappings = 0;
    double rate = 200;
    bool huge = false;
    const char *libraries = "";
    size_t burst = 0, churn = 0, feed = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!std::strcmp(argv[i], "--mib")) mib = std::atol(argv[i + 1]);
        if (!std::strcmp(argv[i], "--rate")) rate = std::atof(argv[i + 1]);
        if (!std::strcmp(argv[i], "--threads")) threads = std::atol(argv[i + 1]);
        if (!std::strcmp(argv[i], "--mappings")) mappings = std::atol(argv[i + 1]);
        if (!std::strcmp(argv[i], "--libraries")) libraries = argv[i + 1];
        if (!std::strcmp(argv[i], "--huge")) huge = std::atol(argv[i + 1]);
        if (!std::strcmp(argv[i], "--churn")) churn = std::atol(argv[i + 1]) << 20;
        if (!std::strcmp(argv[i], "--feed")) feed = std::atol(argv[i + 1]) << 20;
        if (!std::strcmp(argv[i], "--burst")) burst = std::atol(argv[i + 1]) << 20;
    }
    if (*libraries)
        for (const auto &file : std::filesystem::directory_iterator(libraries))
            if (!dlopen(file.path().c_str(), RTLD_NOW | RTLD_LOCAL)) std::exit(1);
    uint64_t *data;
    CHECK(cudaMalloc(&data, DEVICE_WORDS * 8));
    size_t bytes = mib << 20;
    char *memory = map(bytes, huge);
    if (mappings) {
        // Neighbours with different rights are mappings of their own.
        char *small = map(mappings * STEP, false);
        for (size_t i = 0; i < mappings; i += 2) mprotect(small + i * STEP, STEP, PROT_READ);
    }
    for (size_t i = 0; i < threads; i++) std::thread([] { for (;;) usleep(50000); }).detach();

    std::atomic<double> gap{0};
    std::atomic<size_t> written{0};
    double begun = now();
    std::thread([&] {
        for (double last = now();;) {
            double at = now();
            if (at - last > gap) gap = at - last;
            last = at;
        }
    }).detach();
    std::thread([&] {
        for (size_t at = 0, done = 0;; at = (at + STEP) % bytes, done += STEP) {
            while (rate > 0 && done > (now() - begun) * rate * 1e6) usleep(100);
            for (size_t i = 0; i < STEP; i += 8) *reinterpret_cast<uint64_t *>(memory + at + i) += i;
            written += STEP;
        }
    }).detach();

    if (churn) std::thread([&] {
        std::deque<void *> kept;
        for (int fill = 1;; fill++) {
            void *made = mmap(nullptr, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (made == MAP_FAILED) std::abort();
            std::memset(made, fill, PIECE);
            kept.push_back(made);
            if (kept.size() * PIECE <= churn) continue;
            munmap(kept.front(), PIECE);
            kept.pop_front();
        }
    }).detach();

    if (burst) std::thread([&] {
        for (;; usleep(200000)) {
            char *filled = map(burst, huge);
            usleep(1000000);
            munmap(filled, burst);
        }
    }).detach();

    if (feed) std::thread([=] {
        char *fed;
        CHECK(cudaMalloc(&fed, feed));
        for (;;) CHECK(cudaMemcpy(fed, memory, std::min(feed, bytes), cudaMemcpyHostToDevice));
    }).detach();

    std::printf("ready\n");
    std::fflush(stdout);
    for (uint64_t step = 1;; step++) {
        fill<<<16, 256>>>(data, DEVICE_WORDS / 64, step);
        CHECK(cudaDeviceSynchronize());
        usleep(10000);
        if (step % 10) continue;
        std::printf("%.3f %.3f %.1f\n", now() - begun, gap.exchange(0) * 1e3, written.exchange(0) * 1e-6);
        std::fflush(stdout);
    }
}
