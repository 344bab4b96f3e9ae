// Managed memory: the host writes one half of every page while a kernel writes
// the other, and two streams write disjoint words of one page.
#include "common.h"

constexpr int PAGE_WORDS = 1024;

__managed__ unsigned rounds;

// Writes the odd words of each page half; `which` picks the half.
__global__ void touch_half(unsigned *v, int pages, unsigned which, unsigned salt) {
    int page = blockIdx.x;
    unsigned *half = v + page * PAGE_WORDS + which * (PAGE_WORDS / 2);
    for (int i = threadIdx.x; i < PAGE_WORDS / 2; i += blockDim.x) {
        half[i] = half[i] * 3u + salt + page;
    }
    if (page == 0 && threadIdx.x == 0) {
        rounds++;
    }
}

__global__ void touch_words(unsigned *page, unsigned parity, unsigned salt) {
    for (int i = threadIdx.x; i < PAGE_WORDS / 2; i += blockDim.x) {
        page[2 * i + parity] += salt * (i + 1);
    }
}

static void host_half(unsigned *v, int pages, unsigned salt) {
    for (int page = 0; page < pages; page++) {
        for (int i = 0; i < PAGE_WORDS / 2; i++) {
            unsigned &w = v[page * PAGE_WORDS + i];
            w = w * 5u + salt;
        }
    }
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 64, 40);
    int pages = (int)o.size, device = 0, concurrent = 0;
    CHECK(cudaGetDevice(&device));
    CHECK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, device));
    unsigned *v;
    size_t bytes = (size_t)pages * PAGE_WORDS * sizeof(unsigned);
    CHECK(cudaMallocManaged(&v, bytes));
    for (size_t i = 0; i < bytes / sizeof(unsigned); i++) {
        v[i] = noise(i);
    }
    rounds = 0;
    cudaMemLocation here = {cudaMemLocationTypeDevice, device};
    if (concurrent) {
        CHECK(cudaMemAdvise(v, bytes, cudaMemAdviseSetPreferredLocation, here));
        CHECK(cudaMemPrefetchAsync(v, bytes, here, 0, 0));
    }
    cudaStream_t one, two;
    CHECK(cudaStreamCreate(&one));
    CHECK(cudaStreamCreate(&two));

    for (long k = 1; k <= o.steps; k++) {
        touch_half<<<pages, 128, 0, one>>>(v, pages, 1, (unsigned)k);
        CHECK_LAUNCH();
        if (!concurrent) {
            CHECK(cudaStreamSynchronize(one));
        }
        host_half(v, pages, (unsigned)k);
        CHECK(cudaDeviceSynchronize());

        touch_words<<<1, 128, 0, one>>>(v, 0, (unsigned)k);
        touch_words<<<1, 128, 0, two>>>(v, 1, (unsigned)(k + 1));
        CHECK_LAUNCH();
        CHECK(cudaDeviceSynchronize());
        require(rounds == (unsigned)k, "the managed counter is off");
        step(o, k, o.steps);
    }

    Digest d;
    d.bytes(v, bytes);
    CHECK(cudaFree(v));
    return finish("managed", d);
}
