// A launch and the wait for it, and a wait alone, as the calling thread sees them: `roundtrip ROUNDS`. Prints one JSON object:
// medians of the later rounds, in microseconds. A round has 1000 of each. The first ones are left out, so that threads can be
// given their cores meanwhile (`roundtrip.py`).
#include <algorithm>
#include <chrono>
#include <vector>
#include "fill.cuh"

__global__ void empty(int *p, int v) {
    if (v < 0) *p = v;
}

static double now() {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Act>
static double median(int rounds, int left_out, Act act) {
    std::vector<double> times;
    for (int r = 0; r < rounds + left_out; r++) {
        double begun = now();
        for (int i = 0; i < 1000; i++) act();
        if (r >= left_out) times.push_back((now() - begun) / 1000);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? std::atoi(argv[1]) : 100;
    int *d;
    cudaStream_t s;
    CHECK(cudaMalloc(&d, 4096));
    CHECK(cudaStreamCreate(&s));
    auto launch = [&](cudaStream_t stream) {
        empty<<<1, 32, 0, stream>>>(d, 1);
        CHECK(cudaGetLastError());
    };
    double of_stream = median(rounds, rounds, [&] { launch(s); CHECK(cudaStreamSynchronize(s)); });
    double of_device = median(rounds, 0, [&] { launch(nullptr); CHECK(cudaDeviceSynchronize()); });
    double alone = median(rounds, 0, [&] { CHECK(cudaStreamSynchronize(s)); });
    std::printf("{\"launch_stream_sync_us\": %.3f, \"launch_sync_us\": %.3f, \"sync_us\": %.3f}\n", of_stream, of_device, alone);
    return 0;
}
