// A keyed 128-bit hash of every 64 KiB block of many pieces of device memory, at memory speed, to
// find what has changed between two moments of one checkpoint. Not a name for content: for that
// there is BLAKE3.
//
// Toeplitz NH (Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC, section 3): with 32-bit words m and
// key words k, pass p gives sum over pairs of (m[2i] + k[2i + 4p]) * (m[2i+1] + k[2i+1 + 4p]) modulo
// 2^64. Two different blocks of equal length agree in both passes with probability at most 2^-64
// over the key, which is drawn afresh for every checkpoint.
//
// jobs[i] = { address, bytes, first block }; a block's missing end counts as zeros. Addresses are
// multiples of 16 and readable up to the next multiple of 16 after the end.
#include "tail.cuh"

struct Job {
    uint64_t address;
    uint64_t bytes;
    uint64_t first_block;
};

namespace {
constexpr uint32_t BLOCK = 65536;
constexpr uint32_t THREADS = 256;
constexpr uint32_t LOADS = BLOCK / 16 / THREADS;

__device__ __forceinline__ void mix(uint64_t &sum, const uint4 &m, const uint4 &k) {
    sum += uint64_t(m.x + k.x) * uint64_t(m.y + k.y);
    sum += uint64_t(m.z + k.z) * uint64_t(m.w + k.w);
}
} // namespace

// Grid: any number of blocks of 256 threads (two per multiprocessor is best), with 65552 bytes of
// dynamic shared memory. `key` is 65552 bytes. hashes[2b], hashes[2b+1] are block b's 128 bits.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
fermata_change_hash(const Job *jobs, uint32_t job_count, uint64_t blocks, const uint4 *key, uint64_t *hashes) {
    extern __shared__ uint4 keys[];
    __shared__ uint64_t sums[2][THREADS / 32];
    const uint32_t t = threadIdx.x;
    for (uint32_t i = t; i < BLOCK / 16 + 1; i += THREADS) keys[i] = key[i];
    __syncthreads();

    uint32_t at = 0;
    for (uint64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
        // Blocks of a grid step on, so the search goes on from the last job found.
        uint32_t low = at, high = job_count;
        while (high - low > 1) {
            uint32_t mid = (low + high) / 2;
            if (jobs[mid].first_block <= b) low = mid;
            else high = mid;
        }
        at = low;
        const uint64_t offset = (b - jobs[at].first_block) * BLOCK;
        const uint64_t left = jobs[at].bytes - offset;
        const uint4 *data = reinterpret_cast<const uint4 *>(jobs[at].address + offset);
        uint4 m[LOADS];
        if (left >= BLOCK) {
#pragma unroll
            for (uint32_t i = 0; i < LOADS; i++) m[i] = __ldcs(data + i * THREADS + t);
        } else {
#pragma unroll
            for (uint32_t i = 0; i < LOADS; i++) {
                const uint32_t from = (i * THREADS + t) * 16;
                m[i] = make_uint4(0, 0, 0, 0);
                if (from < left) {
                    m[i] = __ldcs(data + i * THREADS + t);
                    const uint64_t here = left - from;
                    if (here < 16) m[i] = first_bytes(m[i], here);
                }
            }
        }
        uint64_t first = 0, second = 0;
#pragma unroll
        for (uint32_t i = 0; i < LOADS; i++) {
            mix(first, m[i], keys[i * THREADS + t]);
            mix(second, m[i], keys[i * THREADS + t + 1]);
        }
#pragma unroll
        for (int lane = 16; lane > 0; lane /= 2) {
            first += __shfl_down_sync(0xFFFFFFFFu, first, lane);
            second += __shfl_down_sync(0xFFFFFFFFu, second, lane);
        }
        if (t % 32 == 0) {
            sums[0][t / 32] = first;
            sums[1][t / 32] = second;
        }
        __syncthreads();
        if (t < 2) {
            uint64_t sum = 0;
#pragma unroll
            for (uint32_t w = 0; w < THREADS / 32; w++) sum += sums[t][w];
            hashes[2 * b + t] = sum;
        }
        __syncthreads();
    }
}
