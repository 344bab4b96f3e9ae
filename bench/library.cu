// What the application library costs on a GPU, as one JSON object:
//   library FOLDER GIB [BLOCK_BYTES]
// Device memory is checkpointed in full, unchanged, and with 5, 20, 50 and 80 % of
// its blocks changed; then recovered from the differential and from a full one; and
// written as a plain file. What was recovered is compared with what was there.
#include "data.cuh"
#include "fermata.h"

#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

static fermata_error *error = nullptr;

static void fine(bool ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "%s: %s\n", what, fermata_error_message(error));
        exit(1);
    }
}
#define FINE(call) fine((call) == FERMATA_OK, #call)
#define CUDA(call) fine((call) == cudaSuccess, #call)

// Changes one word in `percent` of the blocks.
__global__ void touch(uint64_t *a, size_t blocks, size_t words, int percent, uint64_t seed) {
    size_t b = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (b < blocks && (b * 37 + seed) % 100 < (size_t)percent) {
        a[b * words + (b * 101) % words] += seed + 1;
    }
}

static uint64_t digest(const uint64_t *a, size_t n) {
    unsigned long long *out, value = 0;
    CUDA(cudaMalloc(&out, 8));
    CUDA(cudaMemset(out, 0, 8));
    sum<<<1024, 256>>>(a, n, out);
    CUDA(cudaMemcpy(&value, out, 8, cudaMemcpyDeviceToHost));
    CUDA(cudaFree(out));
    return value;
}

static fermata *open(const std::string &folder, const char *name, const char *more) {
    std::string text = "name = \"" + std::string(name) + "\"\n" + more +
                       "\n[local]\nfolders = [\"" + folder + "\"]\n";
    fermata *s = nullptr;
    FINE(fermata_init_text(text.c_str(), nullptr, &s, &error));
    return s;
}

static fermata_info info(fermata *s) {
    fermata_info i = {};
    i.size_of_this = sizeof(i);
    FINE(fermata_get_info(s, &i, &error));
    return i;
}

static void save(fermata *s, int64_t id, const char *what) {
    FINE(fermata_checkpoint(s, id, FERMATA_LOCAL, &error));
    FINE(fermata_wait(s, 600, &error));
    fermata_info i = info(s);
    printf("{\"what\":\"%s\",\"bytes\":%llu,\"written\":%llu,\"blocked_s\":%.4f,\"total_s\":%.4f},\n",
           what, (unsigned long long)i.last_bytes, (unsigned long long)i.last_written,
           i.last_blocked, i.last_total);
    fflush(stdout);
}

static void load(fermata *s, uint64_t *a, size_t n, uint64_t want, const char *what) {
    CUDA(cudaMemset(a, 0, n * 8));
    FINE(fermata_protect(s, 0, a, n, FERMATA_UINT(8), &error));
    FINE(fermata_recover(s, nullptr, &error));
    fine(digest(a, n) == want, "the recovered data");
    fermata_info i = info(s);
    printf("{\"what\":\"%s\",\"bytes\":%llu,\"integrity_s\":%.4f,\"data_s\":%.4f},\n", what,
           (unsigned long long)i.recovery_bytes, i.recovery_integrity, i.recovery_data);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: library FOLDER GIB [BLOCK_BYTES]\n");
        return 2;
    }
    std::string folder = argv[1], block = argc > 3 ? argv[3] : "1048576";
    size_t bytes = (size_t)(atof(argv[2]) * (1 << 30)), n = bytes / 8;
    size_t words = (size_t)atol(block.c_str()) / 8, blocks = n / words;
    std::string more = "block_bytes = " + block;
    uint64_t *a;
    CUDA(cudaMalloc(&a, bytes));
    fill<<<1024, 256>>>(a, n, 1);
    CUDA(cudaDeviceSynchronize());

    printf("{\"block_bytes\":%s,\"steps\":[\n", block.c_str());
    fermata *s = open(folder, "diff", (more + "\nbackground = false").c_str());
    FINE(fermata_protect(s, 0, a, n, FERMATA_UINT(8), &error));
    save(s, 1, "full, first");
    save(s, 2, "unchanged");
    int64_t id = 3;
    const int percents[] = {5, 20, 50, 80};
    for (int percent : percents) {
        touch<<<(unsigned)((blocks + 255) / 256), 256>>>(a, blocks, words, percent, (uint64_t)id);
        std::string what = std::to_string(percent) + " % changed";
        save(s, id++, what.c_str());
    }
    FINE(fermata_finalize(s, 0, &error));
    s = open(folder, "diff", (more + "\nstaging_bytes = 2147483648").c_str());
    FINE(fermata_protect(s, 0, a, n, FERMATA_UINT(8), &error));
    for (int round = 0; round < 2; round++) {
        touch<<<(unsigned)((blocks + 255) / 256), 256>>>(a, blocks, words, 20, (uint64_t)id);
        save(s, id++, round ? "20 % changed, behind the program" : "the same, buffers made");
    }
    uint64_t want = digest(a, n);
    FINE(fermata_finalize(s, 0, &error));

    s = open(folder, "full", more.c_str());
    FINE(fermata_protect(s, 0, a, n, FERMATA_UINT(8), &error));
    save(s, 1, "full, again");
    FINE(fermata_finalize(s, 0, &error));
    s = open(folder, "full", more.c_str());
    load(s, a, n, want, "recovery from a full one");
    FINE(fermata_finalize(s, 1, &error));
    s = open(folder, "diff", more.c_str());
    load(s, a, n, want, "recovery from a differential one");
    FINE(fermata_finalize(s, 1, &error));

    double start = now();
    std::vector<char> host(bytes);
    CUDA(cudaMemcpy(host.data(), a, bytes, cudaMemcpyDeviceToHost));
    double copied = now();
    std::string path = folder + "/plain";
    FILE *f = fopen(path.c_str(), "wb");
    fine(f && fwrite(host.data(), 1, bytes, f) == bytes && fflush(f) == 0 &&
             fsync(fileno(f)) == 0 && fclose(f) == 0,
         "the plain file");
    printf("{\"what\":\"plain file: copy, then write\",\"bytes\":%zu,\"copy_s\":%.4f,\"total_s\":%.4f}\n]}\n",
           bytes, copied - start, now() - start);
    unlink(path.c_str());
    return 0;
}
