// Speed of kernels on a device against the same loops in C on one core. Prints
// one JSON object: for each kernel the seconds of both and their ratio.
//
// Meant for the software GPU, pinned to one core (bench/loops.py does it): the
// ratio then says what translated PTX costs against compiled C. Seconds are
// processor time of the whole process, the device's threads included, so that
// other work on the machine counts little. Both results are compared, so that
// neither side can skip the work.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <vector>
#include <cuda_runtime.h>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t status = (call);                                                               \
        if (status != cudaSuccess) {                                                               \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorName(status));                     \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (0)

constexpr int HEAT = 512, MATRIX = 192, VALUES = 1 << 20, BINS = 256, BODIES = 768;
// A reduction adds so many numbers per thread, then among the lanes of a warp. With few of them the
// shuffles weigh most, which have no counterpart in C: they are told apart.
constexpr int PER_THREAD = 1024, FEW_PER_THREAD = 64, BLOCKS = 64, THREADS = 256;

// Each loop is written once and compiled for both sides.
__host__ __device__ inline void heat_cell(const float *from, float *to, int x, int y) {
    int i = y * HEAT + x;
    to[i] = from[i] + 0.2f * (from[i - 1] + from[i + 1] + from[i - HEAT] + from[i + HEAT] - 4.0f * from[i]);
}

__host__ __device__ inline float product_cell(const float *a, const float *b, int row, int col) {
    float sum = 0.0f;
    for (int k = 0; k < MATRIX; k++) {
        sum += a[row * MATRIX + k] * b[k * MATRIX + col];
    }
    return sum;
}

__host__ __device__ inline float pull_on(const float4 *body, int i) {
    float4 me = body[i];
    float sum = 0.0f;
    for (int j = 0; j < BODIES; j++) {
        float dx = body[j].x - me.x, dy = body[j].y - me.y, dz = body[j].z - me.z;
        float r2 = dx * dx + dy * dy + dz * dz + 0.01f;
        sum += body[j].w / (r2 * sqrtf(r2)) * dx;
    }
    return sum;
}

__global__ void heat(const float *from, float *to) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x > 0 && y > 0 && x < HEAT - 1 && y < HEAT - 1) {
        heat_cell(from, to, x, y);
    }
}

__global__ void product(const float *a, const float *b, float *c) {
    int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < MATRIX && col < MATRIX) {
        c[row * MATRIX + col] = product_cell(a, b, row, col);
    }
}

__global__ void reduction(const uint32_t *v, int n, unsigned long long *sum) {
    unsigned long long mine = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        mine += v[i];
    }
    for (int d = 16; d > 0; d /= 2) {
        mine += __shfl_down_sync(~0u, mine, d);
    }
    if (threadIdx.x % 32 == 0) {
        atomicAdd(sum, mine);
    }
}

__global__ void histogram(const uint32_t *v, unsigned *bins) {
    __shared__ unsigned local[BINS];
    local[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < VALUES; i += gridDim.x * blockDim.x) {
        atomicAdd(&local[v[i] % BINS], 1u);
    }
    __syncthreads();
    atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
}

__global__ void nbody(const float4 *body, float *force) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < BODIES) {
        force[i] = pull_on(body, i);
    }
}

// Processor time of this process, in seconds.
static double processor_time() {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// Best of nine; the first run, which translates the kernel, is left out.
static double best(const std::function<void()> &work) {
    work();
    double least = 1e30;
    for (int round = 0; round < 9; round++) {
        double begun = processor_time();
        work();
        double took = processor_time() - begun;
        least = took < least ? took : least;
    }
    return least;
}

template <class T> static T *on_device(const std::vector<T> &v) {
    void *p = nullptr;
    CHECK(cudaMalloc(&p, v.size() * sizeof(T)));
    CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return (T *)p;
}

// Times both sides and compares what they left in `host` and `device`.
template <class T>
static void compare(const char *name, std::vector<T> &host, T *device, bool last,
                    const std::function<void()> &in_c, const std::function<void()> &kernel) {
    double c = best(in_c), d = best([&] {
        kernel();
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
    });
    std::vector<T> result(host.size());
    CHECK(cudaMemcpy(result.data(), device, host.size() * sizeof(T), cudaMemcpyDeviceToHost));
    if (std::memcmp(result.data(), host.data(), host.size() * sizeof(T)) != 0) {
        std::fprintf(stderr, "%s: the device's result differs from C's\n", name);
        std::exit(1);
    }
    std::printf("  \"%s\": {\"c_s\": %.6f, \"device_s\": %.6f, \"ratio\": %.2f}%s\n", name, c, d, d / c,
                last ? "" : ",");
}

static void bench_heat() {
    std::vector<float> from((size_t)HEAT * HEAT), to(from.size(), 0.0f);
    for (size_t i = 0; i < from.size(); i++) {
        from[i] = (float)(i * 7919 % 1000);
    }
    float *df = on_device(from), *dt = on_device(to);
    compare<float>(
        "heat", to, dt, false,
        [&] {
            for (int y = 1; y < HEAT - 1; y++) {
                for (int x = 1; x < HEAT - 1; x++) {
                    heat_cell(from.data(), to.data(), x, y);
                }
            }
        },
        [&] { heat<<<dim3(HEAT / 32, HEAT / 8), dim3(32, 8)>>>(df, dt); });
}

static void bench_product() {
    std::vector<float> a(MATRIX * MATRIX), b(a.size()), c(a.size());
    for (size_t i = 0; i < a.size(); i++) {
        a[i] = (float)(i % 17);
        b[i] = (float)(i % 23);
    }
    float *da = on_device(a), *db = on_device(b), *dc = on_device(c);
    compare<float>(
        "matrix_product", c, dc, false,
        [&] {
            for (int row = 0; row < MATRIX; row++) {
                for (int col = 0; col < MATRIX; col++) {
                    c[row * MATRIX + col] = product_cell(a.data(), b.data(), row, col);
                }
            }
        },
        [&] { product<<<dim3(MATRIX / 32, MATRIX / 8), dim3(32, 8)>>>(da, db, dc); });
}

static std::vector<uint32_t> scattered(int n) {
    std::vector<uint32_t> v(n);
    for (int i = 0; i < n; i++) {
        v[i] = (uint32_t)i * 2654435761u;
    }
    return v;
}

static void bench_reduction(const char *name, int per_thread) {
    int n = BLOCKS * THREADS * per_thread;
    std::vector<uint32_t> v = scattered(n);
    uint32_t *dv = on_device(v);
    std::vector<unsigned long long> sum(1);
    auto *dsum = on_device(sum);
    compare<unsigned long long>(
        name, sum, dsum, false,
        [&] {
            unsigned long long total = 0;
            for (int i = 0; i < n; i++) {
                total += v[i];
            }
            sum[0] = total;
        },
        [&] {
            CHECK(cudaMemset(dsum, 0, sizeof *dsum));
            reduction<<<BLOCKS, THREADS>>>(dv, n, dsum);
        });
}

static void bench_histogram() {
    std::vector<uint32_t> v = scattered(VALUES);
    uint32_t *dv = on_device(v);
    std::vector<unsigned> bins(BINS);
    unsigned *dbins = on_device(bins);
    compare<unsigned>(
        "histogram", bins, dbins, false,
        [&] {
            std::fill(bins.begin(), bins.end(), 0u);
            for (int i = 0; i < VALUES; i++) {
                bins[v[i] % BINS]++;
            }
        },
        [&] {
            CHECK(cudaMemset(dbins, 0, BINS * sizeof *dbins));
            histogram<<<BLOCKS, BINS>>>(dv, dbins);
        });
}

static void bench_nbody() {
    std::vector<float4> body(BODIES);
    for (int i = 0; i < BODIES; i++) {
        body[i] = make_float4((float)(i % 31), (float)(i % 37), (float)(i % 41), 1.0f);
    }
    std::vector<float> force(BODIES);
    float4 *db = on_device(body);
    float *df = on_device(force);
    compare<float>(
        "nbody", force, df, true,
        [&] {
            for (int i = 0; i < BODIES; i++) {
                force[i] = pull_on(body.data(), i);
            }
        },
        [&] { nbody<<<BODIES / 128, 128>>>(db, df); });
}

int main() {
    std::printf("{\n");
    bench_heat();
    bench_product();
    bench_reduction("reduction", PER_THREAD);
    bench_reduction("short_reduction", FEW_PER_THREAD);
    bench_histogram();
    bench_nbody();
    std::printf("}\n");
    return 0;
}
