// Allocates and frees thousands of blocks of many sizes; at any moment a few
// dozen live, and only those belong in an image. Every third block is ordered
// in a stream (cudaMallocAsync).
#include "common.h"

constexpr int LIVE = 32;

__global__ void stamp(unsigned *v, unsigned words, unsigned salt) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < words) {
        v[i] = i * 2246822519u + salt;
    }
}

struct Block {
    unsigned *data = nullptr;
    unsigned words = 0, salt = 0;
    bool ordered = false;
};

static void allocate(Block &b, uint64_t k, long largest, cudaStream_t stream) {
    b.words = 1 + noise(k) % (unsigned)largest;
    b.salt = (unsigned)k;
    b.ordered = k % 3 == 0;
    if (b.ordered) {
        CHECK(cudaMallocAsync((void **)&b.data, b.words * sizeof(unsigned), stream));
    } else {
        b.data = device_array<unsigned>(b.words);
    }
    stamp<<<blocks_for(b.words, 256), 256, 0, stream>>>(b.data, b.words, b.salt);
    CHECK_LAUNCH();
}

// Checks one word of the block and gives the block back.
static unsigned release(Block &b, cudaStream_t stream) {
    unsigned at = b.salt % b.words, word = 0;
    CHECK(cudaMemcpyAsync(&word, b.data + at, sizeof word, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    require(word == at * 2246822519u + b.salt, "a block lost its contents");
    if (b.ordered) {
        CHECK(cudaFreeAsync(b.data, stream));
    } else {
        CHECK(cudaFree(b.data));
    }
    b.data = nullptr;
    return word;
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 4096, 10000);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    std::vector<Block> live(LIVE);
    Digest d;
    for (long k = 1; k <= o.steps; k++) {
        Block &b = live[noise(k * 7) % LIVE];
        if (b.data) {
            d.word(release(b, stream));
        }
        allocate(b, k, o.size, stream);
        if (k % 200 == 0) {
            step(o, k, o.steps);
        }
    }
    for (Block &b : live) {
        if (b.data) {
            d.word(release(b, stream));
        }
    }
    return finish("churn", d);
}
