// BLAKE3 of many pieces of device memory at once, each piece giving the digest that the CPU (and
// `b3sum`) gives for the same bytes.
//
// A piece is cut into leaves of 1 KiB; 128 neighbouring leaves are a tile, which one block of 128
// threads hashes: a leaf a thread, message blocks staged through shared memory so that global loads
// are wide and coalesced, then the tile's own tree in shared memory. Pieces of more than one tile
// are finished by the second kernel. (BLAKE3 specification, sections 2.1 to 2.5: leaf chaining
// values, parent nodes, the left-complete tree, which pairing level by level with the odd node
// promoted also gives.)
//
// Every kernel's last parameter is 1.
//
// jobs[i] = { address, bytes, first tile }; bytes <= 2^32 - 1; addresses are multiples of 16 and
// readable up to the next multiple of 16 after the end.
#include "tail.cuh"

struct Job {
    uint64_t address;
    uint32_t bytes;
    uint32_t first_tile;
};

namespace {
constexpr uint32_t CHUNK_START = 1, CHUNK_END = 2, PARENT = 4, ROOT = 8;
constexpr int LEAVES = 128;           // per tile
constexpr int STEP = 128;             // bytes of each leaf staged at a time
constexpr int ROW = STEP + 16;        // padded so that 16-byte reads of 8 neighbours hit all banks

__device__ __constant__ const uint32_t IV[8] = {0x6A09E667u, 0xBB67AE85u, 0x3C6EF372u, 0xA54FF53Au,
                                                0x510E527Fu, 0x9B05688Cu, 0x1F83D9ABu, 0x5BE0CD19u};

__device__ __forceinline__ uint32_t rot(uint32_t x, int n) { return __funnelshift_r(x, x, n); }

// Rotations and xors keep the integer pipe busy; sums written as products with a `one` that the
// compiler does not know go through the multiply-add pipe beside it.
__device__ __forceinline__ void g(uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d, uint32_t x, uint32_t y,
                                  uint32_t one) {
    a = b * one + (x * one + a);
    d = __byte_perm(d ^ a, 0, 0x1032);
    c = d * one + c;
    b = rot(b ^ c, 12);
    a = b * one + (y * one + a);
    d = __byte_perm(d ^ a, 0, 0x0321);
    c = d * one + c;
    b = rot(b ^ c, 7);
}

// One compression: `cv` becomes the next chaining value (or the first 32 digest bytes at the root).
__device__ __forceinline__ void compress(uint32_t cv[8], const uint32_t m[16], uint32_t counter, uint32_t len,
                                         uint32_t flags, uint32_t one) {
    uint32_t v0 = cv[0], v1 = cv[1], v2 = cv[2], v3 = cv[3], v4 = cv[4], v5 = cv[5], v6 = cv[6], v7 = cv[7];
    uint32_t v8 = 0x6A09E667u, v9 = 0xBB67AE85u, v10 = 0x3C6EF372u, v11 = 0xA54FF53Au;
    uint32_t v12 = counter, v13 = 0, v14 = len, v15 = flags;
#define ROUND(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15) \
    g(v0, v4, v8, v12, m[a0], m[a1], one);                                              \
    g(v1, v5, v9, v13, m[a2], m[a3], one);                                              \
    g(v2, v6, v10, v14, m[a4], m[a5], one);                                             \
    g(v3, v7, v11, v15, m[a6], m[a7], one);                                             \
    g(v0, v5, v10, v15, m[a8], m[a9], one);                                             \
    g(v1, v6, v11, v12, m[a10], m[a11], one);                                           \
    g(v2, v7, v8, v13, m[a12], m[a13], one);                                            \
    g(v3, v4, v9, v14, m[a14], m[a15], one);
    // Each row is the one before sent through the message permutation of the specification.
    ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
    ROUND(2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
    ROUND(3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1)
    ROUND(10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6)
    ROUND(12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4)
    ROUND(9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7)
    ROUND(11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13)
#undef ROUND
    cv[0] = v0 ^ v8;
    cv[1] = v1 ^ v9;
    cv[2] = v2 ^ v10;
    cv[3] = v3 ^ v11;
    cv[4] = v4 ^ v12;
    cv[5] = v5 ^ v13;
    cv[6] = v6 ^ v14;
    cv[7] = v7 ^ v15;
}

__device__ __forceinline__ void parent(uint32_t out[8], const uint32_t *left, const uint32_t *right, uint32_t flags,
                                       uint32_t one) {
    uint32_t m[16];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        m[i] = left[i];
        m[8 + i] = right[i];
        out[i] = IV[i];
    }
    compress(out, m, 0, 64, PARENT | flags, one);
}

// Reduces `n` chaining values in shared memory to one, in place, pairing neighbours level by level.
// `root` says whether the last pairing is the root of the whole piece.
__device__ void reduce(uint32_t (*cv)[8], uint32_t n, bool root, uint32_t one) {
    while (n > 1) {
        uint32_t pairs = n / 2;
        uint32_t flags = root && n == 2 ? ROOT : 0;
        for (uint32_t base = 0; base < pairs; base += blockDim.x) {
            uint32_t i = base + threadIdx.x;
            uint32_t next[8];
            if (i < pairs) parent(next, cv[2 * i], cv[2 * i + 1], flags, one);
            __syncthreads();
            if (i < pairs)
                for (int k = 0; k < 8; k++) cv[i][k] = next[k];
            __syncthreads();
        }
        if ((n & 1) && threadIdx.x < 8) cv[pairs][threadIdx.x] = cv[n - 1][threadIdx.x];
        __syncthreads();
        n = pairs + (n & 1);
    }
}
} // namespace

// Grid: one block of 128 threads per tile. Writes the chaining value of tile t to tiles[8t..8t+8];
// for a piece of one tile that is its digest.
extern "C" __global__ void __launch_bounds__(LEAVES)
fermata_blake3_tiles(const Job *jobs, uint32_t job_count, uint32_t *tiles, uint32_t one) {
    __shared__ alignas(16) uint8_t stage[LEAVES * ROW];
    __shared__ uint32_t cvs[LEAVES][8];
    const uint32_t tile = blockIdx.x, lane = threadIdx.x;

    uint32_t low = 0, high = job_count; // last job whose first tile is not after this one
    while (high - low > 1) {
        uint32_t mid = (low + high) / 2;
        if (jobs[mid].first_tile <= tile) low = mid;
        else high = mid;
    }
    const Job job = jobs[low];
    const uint32_t tile_in_job = tile - job.first_tile;
    const uint32_t tile_start = tile_in_job * (LEAVES * 1024u);
    const uint32_t in_tile = min(job.bytes - tile_start, LEAVES * 1024u);
    const uint32_t leaves = in_tile == 0 ? 1 : (in_tile + 1023) / 1024;
    const uint8_t *data = reinterpret_cast<const uint8_t *>(job.address) + tile_start;
    const bool single_leaf = job.bytes <= 1024;
    const bool root = job.bytes <= LEAVES * 1024u;

    const uint32_t mine = lane < leaves ? min(in_tile - lane * 1024u, 1024u) : 0;
    const uint32_t blocks = mine == 0 ? 1 : (mine + 63) / 64;
    const uint32_t counter = tile_in_job * LEAVES + lane;
    uint32_t cv[8];
#pragma unroll
    for (int i = 0; i < 8; i++) cv[i] = IV[i];

    for (uint32_t step = 0; step < 1024; step += STEP) {
        // Eight threads fetch the 128 bytes of one leaf; sixteen leaves a pass.
#pragma unroll
        for (uint32_t pass = 0; pass < LEAVES / 16; pass++) {
            uint32_t leaf = pass * 16 + lane / 8, part = (lane % 8) * 16;
            uint32_t at = leaf * 1024u + step + part;
            uint4 word = make_uint4(0, 0, 0, 0);
            if (at < in_tile) {
                word = *reinterpret_cast<const uint4 *>(data + at);
                uint32_t left = in_tile - at;
                if (left < 16) word = first_bytes(word, left);
            }
            *reinterpret_cast<uint4 *>(stage + leaf * ROW + part) = word;
        }
        __syncthreads();
#pragma unroll
        for (uint32_t half = 0; half < STEP; half += 64) {
            uint32_t block = (step + half) / 64;
            uint32_t m[16];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                uint4 w = *reinterpret_cast<const uint4 *>(stage + lane * ROW + half + 16 * k);
                m[4 * k] = w.x;
                m[4 * k + 1] = w.y;
                m[4 * k + 2] = w.z;
                m[4 * k + 3] = w.w;
            }
            if (lane < leaves && block < blocks) {
                bool last = block + 1 == blocks;
                uint32_t len = last ? mine - block * 64 : 64;
                uint32_t flags = (block == 0 ? CHUNK_START : 0) | (last ? CHUNK_END : 0) |
                                 (last && single_leaf ? ROOT : 0);
                compress(cv, m, counter, len, flags, one);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int k = 0; k < 8; k++) cvs[lane][k] = cv[k];
    __syncthreads();
    reduce(cvs, leaves, root, one);
    if (lane < 8) tiles[size_t(tile) * 8 + lane] = cvs[0][lane];
}

// Grid: one block of 128 threads per job. Joins a piece's tiles (at most 2^15) into its digest:
// digests[8i..8i+8]. Works in place on the tiles' own memory.
extern "C" __global__ void __launch_bounds__(LEAVES)
fermata_blake3_roots(const Job *jobs, uint32_t job_count, uint32_t *tiles, uint32_t *digests,
                     uint32_t one) {
    const Job job = jobs[blockIdx.x];
    const uint32_t count = job.bytes == 0 ? 1 : (job.bytes + LEAVES * 1024u - 1) / (LEAVES * 1024u);
    uint32_t(*cv)[8] = reinterpret_cast<uint32_t(*)[8]>(tiles + size_t(job.first_tile) * 8);
    if (count > 1) reduce(cv, count, true, one);
    __syncthreads();
    if (threadIdx.x < 8) digests[size_t(blockIdx.x) * 8 + threadIdx.x] = cv[0][threadIdx.x];
}
