// What a language model does when it starts and answers: it loads its weights from a file, layer by layer in the order of
// their names, and uses all of them once for each token, in the order of the layers.
//
//   model --millions M --make FILE                                  makes the file of weights and ends
//   model --millions M --weights FILE --until PATH [--log PATH] [--tokens N]
//
// A model of about M million parameters, 2 bytes each: in each layer twelve square matrices, each in a buffer of its own.
// When the weights are on the device and the kernels have run once it prints "ready" and waits for PATH. Then it makes N
// tokens (1). The log gets a line for each: begin and end, in microseconds since 1970. At the end it prints
// "digest model HEX": all arithmetic is on integers that wrap, so it is the same on each device.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <string>
#include <unistd.h>
#include <vector>
#include "fill.cuh"

static const int MATRICES = 12;
static const size_t PIECE = 64 << 20;

struct Shape {
    int layers, width;
    size_t bytes() const { return size_t(width) * width * 2; }
};

static Shape shape(double millions) {
    int layers = millions < 10 ? 4 : millions < 300 ? 12 : millions < 1500 ? 24 : millions < 6000 ? 32 : 40;
    int width = int(std::lround(std::sqrt(millions * 1e6 / MATRICES / layers) / 32)) * 32;
    return {layers, std::max(width, 32)};
}

__global__ void product(const short4 *weights, const unsigned *in, unsigned *out, int width) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= width) return;
    unsigned sum = 0;
    for (int at = lane; at < width / 4; at += 32) {
        short4 w = weights[size_t(row) * (width / 4) + at];
        const unsigned *x = in + 4 * at;
        sum += unsigned(w.x) * x[0] + unsigned(w.y) * x[1] + unsigned(w.z) * x[2] + unsigned(w.w) * x[3];
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
    if (lane == 0) out[row] = sum ^ (sum >> 15);
}

__global__ void embed(unsigned *x, int width, unsigned token) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < width) x[at] = (token + 1) * 2654435761u + unsigned(at) * 40503u;
}

static double now() {
    timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return double(time.tv_sec) * 1e6 + 1e-3 * double(time.tv_nsec);
}

[[noreturn]] static void fail(const char *what, const char *path) {
    std::fprintf(stderr, "cannot %s `%s`: %s\n", what, path, std::strerror(errno));
    std::exit(1);
}

static void make(const char *path, size_t bytes) {
    int file = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    if (file < 0) fail("make", path);
    uint64_t *piece;
    char *host;
    CHECK(cudaMalloc(&piece, PIECE));
    CHECK(cudaMallocHost(&host, PIECE));
    for (size_t at = 0; at < bytes; at += PIECE) {
        size_t length = std::min(PIECE, bytes - at);
        fill<<<1024, 256>>>(piece, length / 8, at / 8);
        CHECK(cudaMemcpy(host, piece, length, cudaMemcpyDeviceToHost));
        for (size_t done = 0; done < length;) {
            ssize_t wrote = write(file, host + done, length - done);
            if (wrote <= 0) fail("write", path);
            done += size_t(wrote);
        }
    }
    close(file);
}

// Layers in the order in which files of weights have them: by name, 1 before 10 before 2.
static std::vector<int> stored(int layers) {
    std::vector<int> order(layers);
    for (int layer = 0; layer < layers; layer++) order[layer] = layer;
    std::sort(order.begin(), order.end(), [](int a, int b) { return std::to_string(a) < std::to_string(b); });
    return order;
}

// Reads one piece while the last one is on its way to the device.
static void load(const char *path, const std::vector<char *> &buffers, size_t bytes) {
    int file = open(path, O_RDONLY);
    if (file < 0) fail("open", path);
    char *pieces[2];
    cudaEvent_t sent[2];
    for (int it = 0; it < 2; it++) {
        CHECK(cudaMallocHost(&pieces[it], PIECE));
        CHECK(cudaEventCreate(&sent[it]));
    }
    int turn = 0;
    for (char *buffer : buffers) {
        for (size_t at = 0; at < bytes; at += PIECE, turn ^= 1) {
            size_t length = std::min(PIECE, bytes - at);
            CHECK(cudaEventSynchronize(sent[turn]));
            for (size_t done = 0; done < length;) {
                ssize_t got = read(file, pieces[turn] + done, length - done);
                if (got <= 0) fail("read", path);
                done += size_t(got);
            }
            CHECK(cudaMemcpyAsync(buffer + at, pieces[turn], length, cudaMemcpyHostToDevice));
            CHECK(cudaEventRecord(sent[turn]));
        }
    }
    CHECK(cudaDeviceSynchronize());
    for (int it = 0; it < 2; it++) {
        CHECK(cudaEventDestroy(sent[it]));
        CHECK(cudaFreeHost(pieces[it]));
    }
    close(file);
}

int main(int argc, char **argv) {
    double millions = 1;
    int tokens = 1;
    const char *weights = nullptr, *makes = nullptr, *until = nullptr, *path = nullptr;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!std::strcmp(argv[i], "--millions")) millions = std::atof(argv[i + 1]);
        if (!std::strcmp(argv[i], "--tokens")) tokens = std::atoi(argv[i + 1]);
        if (!std::strcmp(argv[i], "--weights")) weights = argv[i + 1];
        if (!std::strcmp(argv[i], "--make")) makes = argv[i + 1];
        if (!std::strcmp(argv[i], "--until")) until = argv[i + 1];
        if (!std::strcmp(argv[i], "--log")) path = argv[i + 1];
    }
    Shape model = shape(millions);
    if (makes) {
        make(makes, model.bytes() * MATRICES * model.layers);
        return 0;
    }
    if (!weights) {
        std::fprintf(stderr, "model --millions M --weights FILE, or --make FILE\n");
        return 1;
    }
    std::vector<char *> loaded;
    std::vector<std::vector<char *>> layers(model.layers);
    for (int layer : stored(model.layers)) {
        for (int matrix = 0; matrix < MATRICES; matrix++) {
            char *buffer;
            CHECK(cudaMalloc(&buffer, model.bytes()));
            loaded.push_back(buffer);
            layers[layer].push_back(buffer);
        }
    }
    load(weights, loaded, model.bytes());
    unsigned *x[2];
    for (unsigned *&vector : x) CHECK(cudaMalloc(&vector, model.width * 4));
    std::vector<unsigned> out(model.width);
    int width = model.width, blocks = (width + 7) / 8;
    auto apply = [&](const char *matrix, int turn) {
        product<<<blocks, 256>>>(reinterpret_cast<const short4 *>(matrix), x[turn], x[turn ^ 1], width);
    };
    embed<<<(width + 255) / 256, 256>>>(x[0], width, 0);
    apply(loaded[0], 0);
    CHECK(cudaMemcpy(out.data(), x[1], width * 4, cudaMemcpyDeviceToHost));
    std::printf("ready\n");
    std::fflush(stdout);
    while (until && access(until, F_OK) != 0) usleep(500);
    uint64_t digest = 0xcbf29ce484222325ull;
    unsigned token = 1;
    for (int number = 0; number < tokens; number++) {
        double begun = now();
        embed<<<(width + 255) / 256, 256>>>(x[0], width, token);
        int turn = 0;
        for (const std::vector<char *> &layer : layers)
            for (const char *matrix : layer) {
                apply(matrix, turn);
                turn ^= 1;
            }
        CHECK(cudaMemcpy(out.data(), x[turn], width * 4, cudaMemcpyDeviceToHost));
        for (unsigned value : out) digest = (digest ^ value) * 0x100000001b3ull;
        token = unsigned(digest >> 32);
        double end = now();
        if (FILE *log = path ? std::fopen(path, "a") : nullptr) {
            std::fprintf(log, "%.0f %.0f\n", begun, end);
            std::fclose(log);
        }
    }
    std::printf("digest model %016llx\n", static_cast<unsigned long long>(digest));
    std::fflush(stdout);
    return 0;
}
