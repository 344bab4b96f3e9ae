// Steps of many short kernels on two streams, as `frameworks.py` measures its programs: `launches [STEPS]`.
//
// A step is 200 launches and ends with a synchronisation. Prints "first SECONDS" (from its start to the end of the first
// step), "step N SECONDS" as it goes, and at its end "median SECONDS" of a step and "digest HEX" of its memory.
#include <algorithm>
#include <chrono>
#include <vector>
#include "fill.cuh"

const size_t WORDS = 1 << 16;
const int LAUNCHES = 200;

__global__ void mix(uint64_t *to, const uint64_t *from, size_t n, uint64_t k) {
    size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    if (i < n) to[i] = to[i] * 6364136223846793005ull + (from[(i * 5 + k) % n] >> 7) + k;
}

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int main(int argc, char **argv) {
    double start = now();
    long steps = argc > 1 ? std::atol(argv[1]) : 1000, every = std::max(1L, steps / 200);
    std::setvbuf(stdout, nullptr, _IOLBF, 1 << 12);
    uint64_t *buffers[4];
    for (int b = 0; b < 4; b++) {
        CHECK(cudaMalloc(&buffers[b], WORDS * sizeof(uint64_t)));
        fill<<<64, 256>>>(buffers[b], WORDS, b * WORDS);
    }
    cudaStream_t streams[2];
    for (auto &stream : streams) CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaDeviceSynchronize());

    std::vector<double> times;
    for (long step = 0; step < steps; step++) {
        double begun = now();
        for (int n = 0; n < LAUNCHES; n++) {
            // Each stream has two buffers of its own.
            int side = n % 2, which = n / 2 % 2;
            mix<<<WORDS / 256, 256, 0, streams[side]>>>(buffers[2 * side + which], buffers[2 * side + 1 - which], WORDS, step + n);
        }
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
        times.push_back(now() - begun);
        if (step == 0) std::printf("first %.3f\n", now() - start);
        if (step % every == every - 1) std::printf("step %ld %.3f\n", step + 1, now() - start);
    }

    std::vector<double> late(times.begin() + times.size() / 3, times.end());
    std::sort(late.begin(), late.end());
    uint64_t digest = 0xcbf29ce484222325ull;
    std::vector<uint64_t> words(WORDS);
    for (uint64_t *buffer : buffers) {
        CHECK(cudaMemcpy(words.data(), buffer, WORDS * sizeof(uint64_t), cudaMemcpyDeviceToHost));
        for (uint64_t word : words) digest = (digest ^ word) * 0x9E3779B97F4A7C15ull, digest ^= digest >> 29;
    }
    std::printf("median %.6f\n", late.empty() ? 0.0 : late[late.size() / 2]);
    std::printf("digest %016llx\n", (unsigned long long)digest);
    return 0;
}
