// BLAKE3 of many pieces of device memory at once, each piece giving the digest that the CPU (and
// `b3sum`) gives for the same bytes.
//
// A piece is cut into leaves of 1 KiB; 128 neighbouring leaves are a tile, which one block of 128
// threads hashes: a leaf a thread, message blocks staged through shared memory so that global loads
// are wide, the next ones under way while the present ones are hashed; then the first levels of the
// tile's own tree, in which most threads have work. The groups of 8 leaves that come of it are joined
// by the second kernel, where the threads left idle by the upper levels are few beside all pieces'
// leaves. (BLAKE3 specification, sections 2.1 to 2.5: leaf chaining values, parent nodes, the
// left-complete tree, which pairing level by level with the odd node promoted also gives.)
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
constexpr int LEVELS = 3;             // of the tree that a tile does itself
constexpr uint32_t GROUP = 1024u << LEVELS;     // bytes of what a tile leaves to be joined
constexpr int GROUPS = LEAVES >> LEVELS;        // of them in a tile, at most
constexpr int BLOCKS = 16;            // of 64 bytes in a leaf, staged one at a time
constexpr int PARTS = 4;              // of 16 bytes in a block
constexpr int ROW = PARTS + 1;        // padded so that 16-byte reads of 8 neighbours hit all banks

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

// Joins `n` chaining values by `levels` levels, in place, pairing neighbours; how many are left.
// `root` says whether the last pairing is the root of the whole piece.
__device__ uint32_t reduce(uint32_t (*cv)[8], uint32_t n, int levels, bool root, uint32_t one) {
    for (; n > 1 && levels > 0; levels--) {
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
    return n;
}

// What lies where of a tile: its 16 bytes by leaf, block and part.
struct Tile {
    const uint8_t *data;
    uint32_t bytes;
    uint32_t leaf;      // the first of this thread's, the others 8 further on each: all are of its warp
    uint32_t part;

    // This thread's share of every leaf's block number `block`; zeros beyond the tile's end.
    __device__ __forceinline__ void fetch(uint4 words[PARTS], uint32_t block) const {
        if (bytes == LEAVES * 1024u) {
            const uint4 *from = reinterpret_cast<const uint4 *>(data + leaf * 1024u + block * 64 + part * 16);
#pragma unroll
            for (int p = 0; p < PARTS; p++) words[p] = from[p * (8 * 1024 / 16)];
            return;
        }
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            uint32_t at = (p * 8 + leaf) * 1024u + block * 64 + part * 16;
            uint4 word = make_uint4(0, 0, 0, 0);
            if (at < bytes) {
                word = *reinterpret_cast<const uint4 *>(data + at);
                uint32_t left = bytes - at;
                if (left < 16) word = first_bytes(word, left);
            }
            words[p] = word;
        }
    }

    __device__ __forceinline__ void put(uint4 *stage, const uint4 words[PARTS]) const {
#pragma unroll
        for (int p = 0; p < PARTS; p++) stage[(p * 8 + leaf) * ROW + part] = words[p];
    }
};
} // namespace

// Grid: one block of 128 threads per tile. Writes the chaining values of the groups of tile t to
// groups[128t..]; for a piece of one group that is its digest.
extern "C" __global__ void __launch_bounds__(LEAVES)
fermata_blake3_tiles(const Job *jobs, uint32_t job_count, uint32_t *groups, uint32_t one) {
    __shared__ uint4 stage[2][LEAVES * ROW];
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
    const uint32_t first = lane & ~31u, within = lane & 31u;
    const Tile source = {reinterpret_cast<const uint8_t *>(job.address) + tile_start, in_tile, first + within / PARTS,
                         within % PARTS};
    const bool single_leaf = job.bytes <= 1024;

    const uint32_t mine = lane < leaves ? min(in_tile - lane * 1024u, 1024u) : 0;
    const uint32_t blocks = mine == 0 ? 1 : (mine + 63) / 64;
    const uint32_t counter = tile_in_job * LEAVES + lane;
    uint32_t cv[8];
#pragma unroll
    for (int i = 0; i < 8; i++) cv[i] = IV[i];

    uint4 words[PARTS];
    source.fetch(words, 0);
    source.put(stage[0], words);
    __syncwarp();
    // Not unrolled: one round of it is as much code as the instruction caches hold.
#pragma unroll 1
    for (uint32_t block = 0; block < BLOCKS; block++) {
        if (block + 1 < BLOCKS) source.fetch(words, block + 1);
        const uint4 *row = stage[block & 1] + lane * ROW;
        uint32_t m[16];
#pragma unroll
        for (int k = 0; k < PARTS; k++) {
            uint4 w = row[k];
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
        // The other half was last read before the last barrier.
        if (block + 1 < BLOCKS) source.put(stage[(block + 1) & 1], words);
        __syncwarp();
    }
#pragma unroll
    for (int k = 0; k < 8; k++) cvs[lane][k] = cv[k];
    __syncthreads();
    const uint32_t left = reduce(cvs, leaves, LEVELS, job.bytes <= GROUP, one);
    for (uint32_t i = lane; i < left * 8; i += LEAVES) groups[size_t(tile) * (GROUPS * 8) + i] = cvs[i / 8][i % 8];
}

// Grid: one block of 128 threads per job. Joins a piece's groups (at most 2^19) into its digest:
// digests[8i..8i+8]. Works in place on the groups' own memory.
extern "C" __global__ void __launch_bounds__(LEAVES)
fermata_blake3_roots(const Job *jobs, uint32_t job_count, uint32_t *groups, uint32_t *digests,
                     uint32_t one) {
    const Job job = jobs[blockIdx.x];
    const uint32_t count = job.bytes == 0 ? 1 : (job.bytes - 1) / GROUP + 1;
    uint32_t(*cv)[8] = reinterpret_cast<uint32_t(*)[8]>(groups + size_t(job.first_tile) * (GROUPS * 8));
    reduce(cv, count, 32, true, one);
    if (threadIdx.x < 8) digests[size_t(blockIdx.x) * 8 + threadIdx.x] = cv[0][threadIdx.x];
}
