// Prefix sums and reductions by warp shuffles, votes and matches.
#include "common.h"

constexpr unsigned FULL = 0xffffffffu;

__device__ unsigned warp_scan(unsigned v) {
    unsigned lane = threadIdx.x % 32;
    for (unsigned d = 1; d < 32; d *= 2) {
        unsigned other = __shfl_up_sync(FULL, v, d);
        if (lane >= d) {
            v += other;
        }
    }
    return v;
}

// Inclusive sums inside each block of 256, and the block's total.
__global__ void scan_blocks(unsigned *v, unsigned *totals, int n) {
    __shared__ unsigned warps[8];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned sum = warp_scan(i < n ? v[i] : 0);
    if (threadIdx.x % 32 == 31) {
        warps[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    for (unsigned w = 0; w < threadIdx.x / 32; w++) {
        sum += warps[w];
    }
    if (i < n) {
        v[i] = sum;
    }
    if (threadIdx.x == 255) {
        totals[blockIdx.x] = sum;
    }
}

__global__ void add_offsets(unsigned *v, const unsigned *totals, int n) {
    unsigned offset = 0;
    for (unsigned b = 0; b < blockIdx.x; b++) {
        offset += totals[b];
    }
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        v[i] += offset;
    }
}

struct Totals {
    unsigned long long sum, odd, groups;
};

__global__ void reduce(const unsigned *v, Totals *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned mine = i < n ? v[i] : 0;
    unsigned long long sum = mine;
    for (int d = 16; d > 0; d /= 2) {
        sum += __shfl_down_sync(FULL, sum, d);
    }
    unsigned odd = __popc(__ballot_sync(FULL, mine & 1));
    unsigned same = __match_any_sync(FULL, mine & 7);
    bool leader = (threadIdx.x % 32) == __ffs(same) - 1;
    unsigned groups = __popc(__ballot_sync(FULL, leader));
    if (threadIdx.x % 32 == 0) {
        atomicAdd(&out->sum, sum);
        atomicAdd(&out->odd, (unsigned long long)odd);
        atomicAdd(&out->groups, (unsigned long long)groups);
    }
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 1 << 16, 20);
    int n = (int)o.size;
    unsigned blocks = blocks_for(n, 256);
    std::vector<unsigned> v(n);
    unsigned *dv = device_array<unsigned>(n), *dtotals = device_array<unsigned>(blocks);
    Totals *dout = device_array<Totals>(1);

    Digest d;
    for (long k = 1; k <= o.steps; k++) {
        for (int i = 0; i < n; i++) {
            v[i] = noise((uint64_t)i * k) % 1000;
        }
        CHECK(cudaMemcpy(dv, v.data(), n * sizeof(unsigned), cudaMemcpyHostToDevice));
        CHECK(cudaMemset(dout, 0, sizeof(Totals)));
        reduce<<<blocks, 256>>>(dv, dout, n);
        scan_blocks<<<blocks, 256>>>(dv, dtotals, n);
        add_offsets<<<blocks, 256>>>(dv, dtotals, n);
        CHECK_LAUNCH();
        std::vector<unsigned> sums = from_device(dv, n);
        unsigned running = 0;
        for (int i = 0; i < n; i++) {
            running += v[i];
            require(sums[i] == running, "a prefix sum is off");
        }
        Totals totals = from_device(dout, 1)[0];
        require(totals.sum == running, "the reduction is off");
        d.all(sums);
        d.bytes(&totals, sizeof totals);
        step(o, k, o.steps);
    }
    return finish("scan", d);
}
