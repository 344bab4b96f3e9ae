// Eight host threads with a stream each; they meet at a barrier every few
// steps, and the last one to arrive swaps data between them.
#include "common.h"

// POSIX waits, not those of the C++ library: what GCC 12 makes of `wait` does not start where that
// library is older.
#include <pthread.h>
#include <thread>

constexpr int THREADS = 8;

__global__ void stir(unsigned *v, int n, unsigned salt) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        unsigned x = v[i];
        for (int k = 0; k < 32; k++) {
            x = x * 1664525u + 1013904223u + salt;
        }
        v[i] = x;
    }
}

struct Shared {
    Options o;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t woken = PTHREAD_COND_INITIALIZER;
    int waiting = 0;
    long round = 0;
    unsigned *data[THREADS];
    std::vector<unsigned> results[THREADS];
};

// The last thread rotates the buffers while all others wait.
static void meet(Shared &s, long k) {
    pthread_mutex_lock(&s.lock);
    if (++s.waiting < THREADS) {
        long round = s.round;
        while (s.round == round) {
            pthread_cond_wait(&s.woken, &s.lock);
        }
        pthread_mutex_unlock(&s.lock);
        return;
    }
    s.waiting = 0;
    s.round++;
    unsigned *first = s.data[0];
    for (int t = 0; t + 1 < THREADS; t++) {
        s.data[t] = s.data[t + 1];
    }
    s.data[THREADS - 1] = first;
    step(s.o, k, s.o.steps);
    pthread_cond_broadcast(&s.woken);
    pthread_mutex_unlock(&s.lock);
}

static void work(Shared &s, int me) {
    int n = (int)s.o.size;
    cudaStream_t stream;
    CHECK(cudaSetDevice(0));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (long k = 1; k <= s.o.steps; k++) {
        stir<<<blocks_for(n, 128), 128, 0, stream>>>(s.data[me], n, (unsigned)(k * THREADS + me));
        CHECK_LAUNCH();
        if (k % 10 == 0) {
            CHECK(cudaStreamSynchronize(stream));
            meet(s, k);
        }
    }
    s.results[me].resize(n);
    CHECK(cudaMemcpyAsync(s.results[me].data(), s.data[me], n * sizeof(unsigned),
                          cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaStreamDestroy(stream));
}

int main(int argc, char **argv) {
    Shared s;
    s.o = begin(argc, argv, 4096, 200);
    for (int t = 0; t < THREADS; t++) {
        s.data[t] = device_array<unsigned>(s.o.size);
        CHECK(cudaMemset(s.data[t], t, s.o.size * sizeof(unsigned)));
    }
    CHECK(cudaDeviceSynchronize());
    std::vector<std::thread> threads;
    for (int t = 0; t < THREADS; t++) {
        threads.emplace_back(work, std::ref(s), t);
    }
    for (std::thread &t : threads) {
        t.join();
    }
    Digest d;
    for (auto &r : s.results) {
        d.all(r);
    }
    return finish("threads", d);
}
