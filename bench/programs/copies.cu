// How long small copies of a program wait behind another stream's large ones, by how those are issued:
// `copies [SECONDS [BYTES [apart]]]`.
//
// One thread is the program: in each step it launches kernels, copies so many bytes (4) the same way as the other thread does, and
// waits. The other copies 4 MiB at a time between a device and pinned memory, as a checkpoint or a restore does; with `apart` it
// is a process of its own, as another session's is. Prints a line of JSON for each way to issue them: GB/s, and the steps' times
// beside those without such copies. Nothing of Fermata is in it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>
#include "fill.cuh"

const size_t PIECE = 4 << 20, RING = 256ull << 20;
// A step may wait for as long as the other side copies.
const double LONGEST = 2;

// Keeps a block busy; as many blocks as fit keep every multiprocessor busy.
__global__ void spin(long long ns) {
    long long begun, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begun));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - begun < ns);
}

__global__ void nothing() {}

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Way {
    const char *name;
    size_t piece;    // bytes of a copy
    int flying;      // copies under way at once
    bool batch;      // all of them end before others begin
    int between;     // what is between two copies of a stream: 0 nothing, 1 a kernel, 2 an event of another stream
    bool low;        // a stream of the lowest priority
};

const Way WAYS[] = {
    {"eight at once", PIECE, 8, false, 0, false},
    {"eight at once, lowest priority", PIECE, 8, false, 0, true},
    {"one at once", PIECE, 1, false, 0, false},
    {"two at once", PIECE, 2, false, 0, false},
    {"batches of 2", PIECE, 2, true, 0, false},
    {"batches of 4", PIECE, 4, true, 0, false},
    {"batches of 8", PIECE, 8, true, 0, false},
    {"batches of 4, 1 MiB each", 1 << 20, 4, true, 0, false},
    {"a kernel between copies", PIECE, 8, false, 1, false},
    {"a kernel between copies, lowest priority", PIECE, 8, false, 1, true},
    {"a kernel between copies, 1 MiB each", 1 << 20, 8, false, 1, false},
    {"two streams in turn", PIECE, 8, false, 2, false},
    {"two streams in turn, 1 MiB each", 1 << 20, 8, false, 2, false},
};

struct Memory {
    char *device, *host;

    Memory() {
        CHECK(cudaMalloc(&device, RING));
        CHECK(cudaHostAlloc(&host, RING, cudaHostAllocDefault));
        std::memset(host, 1, RING);
    }
};

struct Bulk {
    bool to_host;
    char *device, *host;

    // Copies until told to stop, or for the longest time; gives bytes per second.
    double run(const Way &way, std::atomic<bool> &stop) {
        int least, most;
        CHECK(cudaDeviceGetStreamPriorityRange(&least, &most));
        cudaStream_t streams[2];
        for (auto &stream : streams) CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, way.low ? least : 0));
        std::deque<cudaEvent_t> flying;
        std::vector<cudaEvent_t> spare;
        auto land = [&] {
            while (cudaEventQuery(flying.front()) == cudaErrorNotReady) {}
            spare.push_back(flying.front());
            flying.pop_front();
        };
        size_t bytes = 0, at = 0, count = 0;
        double begun = now();
        while (!stop && now() - begun < LONGEST) {
            if (flying.size() >= size_t(way.flying)) {
                land();
                while (way.batch && !flying.empty()) land();
            }
            cudaStream_t stream = streams[way.between == 2 ? count % 2 : 0];
            if (way.between == 2 && !flying.empty()) CHECK(cudaStreamWaitEvent(stream, flying.back(), 0));
            if (way.between == 1) nothing<<<1, 1, 0, stream>>>();
            char *to = to_host ? host + at : device + at, *from = to_host ? device + at : host + at;
            CHECK(cudaMemcpyAsync(to, from, way.piece, cudaMemcpyDefault, stream));
            cudaEvent_t event;
            if (spare.empty()) CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
            else event = spare.back(), spare.pop_back();
            CHECK(cudaEventRecord(event, stream));
            flying.push_back(event);
            at = (at + way.piece) % RING, bytes += way.piece, count++;
        }
        while (!flying.empty()) land();
        double rate = bytes / (now() - begun);
        for (auto event : spare) CHECK(cudaEventDestroy(event));
        for (auto stream : streams) CHECK(cudaStreamDestroy(stream));
        return rate;
    }
};

struct Program {
    bool to_host;
    size_t bytes;
    int blocks;
    char *device, *host;

    // Steps for so long; gives the time of each.
    std::vector<double> run(double seconds) {
        cudaStream_t stream;
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        std::vector<double> times;
        double until = now() + seconds;
        while (now() < until) {
            double begun = now();
            // 4 ms of kernels that last 0.2 ms each.
            for (int n = 0; n < 20; n++) spin<<<blocks, 1024, 0, stream>>>(200000);
            CHECK(cudaGetLastError());
            CHECK(cudaMemcpyAsync(to_host ? host : device, to_host ? device : host, bytes, cudaMemcpyDefault, stream));
            CHECK(cudaStreamSynchronize(stream));
            times.push_back(now() - begun);
        }
        CHECK(cudaStreamDestroy(stream));
        return times;
    }
};

struct Steps {
    double mean = 0, longest = 0;
    size_t count;

    explicit Steps(std::vector<double> times) : count(times.size()) {
        for (double time : times) mean += time / count, longest = std::max(longest, time);
    }
};

// What the two sides tell each other. The numbers count the ways that have been asked for, and that are done.
struct Shared {
    std::atomic<int> asked, done;
    std::atomic<bool> stop;
    bool to_host;
    const Way *way;
    double rate;
};

// The side that copies much: for every way that is asked for.
static void serve(Shared &shared) {
    Memory memory;
    for (int served = 0;; served++) {
        shared.done = served;
        while (shared.asked == served) usleep(100);
        if (!shared.way) return;
        shared.rate = Bulk{shared.to_host, memory.device, memory.host}.run(*shared.way, shared.stop);
    }
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? std::atof(argv[1]) : 0.5;
    size_t bytes = argc > 2 ? std::min(size_t(std::atol(argv[2])), RING) : 4;
    bool apart = argc > 3 && !std::strcmp(argv[3], "apart");
    void *page = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    Shared &shared = *new (page) Shared{};
    shared.done = -1;
    pid_t child = apart ? fork() : 0;
    if (apart && child == 0) {
        serve(shared);
        return 0;
    }
    std::thread thread;
    if (!apart) thread = std::thread([&] { serve(shared); });
    auto settled = [&] {
        while (shared.done != shared.asked) {
            if (apart && waitpid(child, nullptr, WNOHANG) == child) std::exit(1);
            usleep(100);
        }
    };
    Memory memory;
    int processors;
    CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    for (bool to_host : {true, false}) {
        for (int blocks : {1, 2 * processors}) {
            Program program{to_host, bytes, blocks, memory.device, memory.host};
            settled();
            program.run(0.2);
            Steps alone(program.run(seconds));
            for (const Way &way : WAYS) {
                shared.stop = false, shared.to_host = to_host, shared.way = &way;
                shared.asked++;
                usleep(20000);
                Steps steps(program.run(seconds));
                shared.stop = true;
                settled();
                std::printf("{\"to\": \"%s\", \"bytes\": %zu, \"apart\": %s, \"kernels\": \"%s\", \"way\": \"%s\", \"gb_per_s\": %.1f, \"steps\": %zu, "
                            "\"steps_alone\": %zu, \"mean_ms\": %.3f, \"mean_ms_alone\": %.3f, \"longest_ms\": %.3f, "
                            "\"longest_ms_alone\": %.3f}\n",
                            to_host ? "host" : "device", bytes, apart ? "true" : "false", blocks == 1 ? "one block" : "whole device", way.name, shared.rate / 1e9,
                            steps.count, alone.count, steps.mean * 1e3, alone.mean * 1e3, steps.longest * 1e3, alone.longest * 1e3);
                std::fflush(stdout);
            }
        }
    }
    shared.way = nullptr;
    shared.asked++;
    apart ? (void)waitpid(child, nullptr, 0) : thread.join();
    return 0;
}
