// The kernels of the software GPU's own cuBLAS (crates/softblas): matrix products, and sums of scaled vectors.
//
// Each thread makes a tile of 4 by 3 elements from global memory, without shared memory or a barrier: the software
// GPU runs the threads of a block one after another, where both would only cost. An element is summed over k in
// order, with fused multiplications, so a result does not depend on how blocks and threads are run.
#include <cuda_fp16.h>
#include <stdint.h>

// One product for each of `batch` matrices: d = act(alpha * a * b + beta * c + bias).
// Element (i, j) of a matrix lies `i * row + j * col` elements behind its begin; a is m by k, b is k by n.
struct Product {
    // Matrices, or with `arrays` device arrays of pointers to them.
    const void *a, *b, *c;
    void *d;
    // m elements of d's type, or null.
    const void *bias;
    // Where alpha and beta lie in device memory, or null: then they are those below.
    const void *alpha_at, *beta_at;
    double alpha, beta;
    int64_t a_row, a_col, a_batch;
    int64_t b_row, b_col, b_batch;
    int64_t c_row, c_col, c_batch;
    int64_t d_row, d_col, d_batch;
    int64_t bias_batch;
    uint32_t m, n, k, batch;
    uint32_t arrays;
    uint32_t activation;
};

// y = alpha * x + beta * y, for `count` elements.
struct Scaled {
    const void *x;
    void *y;
    const void *alpha_at, *beta_at;
    double alpha, beta;
    int64_t x_step, y_step;
    uint64_t count;
};

namespace {
constexpr uint32_t ROWS = 4, COLS = 3;
constexpr uint32_t RELU = 1, GELU = 2;

// bfloat16, without the instructions of compute capability 8.0.
struct Brain {
    uint16_t bits;
};

__device__ __forceinline__ float wide(float x) { return x; }
__device__ __forceinline__ double wide(double x) { return x; }
__device__ __forceinline__ float wide(__half x) { return __half2float(x); }
__device__ __forceinline__ float wide(Brain x) { return __uint_as_float(uint32_t(x.bits) << 16); }

__device__ __forceinline__ void narrow(float &to, float x) { to = x; }
__device__ __forceinline__ void narrow(double &to, double x) { to = x; }
__device__ __forceinline__ void narrow(__half &to, float x) { to = __float2half_rn(x); }
__device__ __forceinline__ void narrow(Brain &to, float x) {
    uint32_t bits = __float_as_uint(x);
    // To the nearest, halves to even; a NaN stays one.
    bits += x != x ? 0 : 0x7fff + ((bits >> 16) & 1);
    to.bits = uint16_t(x != x ? 0x7fff : bits >> 16);
}

__device__ __noinline__ float activated(float x, uint32_t activation) {
    if (activation == RELU) return x > 0 || x != x ? x : 0;
    if (activation == GELU) return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
    return x;
}
__device__ __noinline__ double activated(double x, uint32_t activation) {
    if (activation == RELU) return x > 0 || x != x ? x : 0;
    if (activation == GELU) return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    return x;
}

template <typename T>
__device__ __forceinline__ T *matrix(T *base, uint32_t arrays, uint32_t at, int64_t step) {
    return arrays ? reinterpret_cast<T *const *>(base)[at] : base + at * step;
}

template <typename In, typename Out, typename Sum>
__device__ __forceinline__ void tile(const Product &p, uint32_t at, uint32_t row, uint32_t col, Sum alpha, Sum beta) {
    const In *a = matrix(static_cast<const In *>(p.a), p.arrays, at, p.a_batch);
    const In *b = matrix(static_cast<const In *>(p.b), p.arrays, at, p.b_batch);
    const In *lines[ROWS];
    const In *posts[COLS];
    // Elements beyond the edge repeat the last one, and are not stored.
    for (uint32_t i = 0; i < ROWS; i++) lines[i] = a + min(row + i, p.m - 1) * p.a_row;
    for (uint32_t j = 0; j < COLS; j++) posts[j] = b + min(col + j, p.n - 1) * p.b_col;
    Sum sums[ROWS][COLS] = {};
#pragma unroll 1
    for (uint32_t l = 0; l < p.k; l++) {
        Sum x[ROWS], y[COLS];
#pragma unroll
        for (uint32_t i = 0; i < ROWS; i++) x[i] = wide(lines[i][l * p.a_col]);
#pragma unroll
        for (uint32_t j = 0; j < COLS; j++) y[j] = wide(posts[j][l * p.b_row]);
#pragma unroll
        for (uint32_t i = 0; i < ROWS; i++)
#pragma unroll
            for (uint32_t j = 0; j < COLS; j++) sums[i][j] += x[i] * y[j];
    }
    const Out *c = beta == 0 ? nullptr : matrix(static_cast<const Out *>(p.c), p.arrays, at, p.c_batch);
    Out *d = matrix(static_cast<Out *>(p.d), p.arrays, at, p.d_batch);
    const Out *bias = p.bias ? static_cast<const Out *>(p.bias) + at * p.bias_batch : nullptr;
#pragma unroll
    for (uint32_t i = 0; i < ROWS; i++)
#pragma unroll
        for (uint32_t j = 0; j < COLS; j++) {
            const uint32_t r = row + i, s = col + j;
            if (r >= p.m || s >= p.n) continue;
            Sum value = alpha * sums[i][j];
            if (c) value += beta * wide(c[r * p.c_row + s * p.c_col]);
            if (bias) value += wide(bias[r]);
            narrow(d[r * p.d_row + s * p.d_col], p.activation ? activated(value, p.activation) : value);
        }
}

// Grid: any number of blocks of any number of threads in x.
template <typename In, typename Out, typename Sum> __device__ __forceinline__ void product(const Product &p) {
    const Sum alpha = p.alpha_at ? *static_cast<const Sum *>(p.alpha_at) : Sum(p.alpha);
    const Sum beta = p.beta_at ? *static_cast<const Sum *>(p.beta_at) : Sum(p.beta);
    const uint64_t down = (p.m + ROWS - 1) / ROWS, across = (p.n + COLS - 1) / COLS;
    const uint64_t step = uint64_t(gridDim.x) * blockDim.x;
    for (uint64_t t = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; t < down * across * p.batch; t += step) {
        const uint32_t row = t % down * ROWS, col = t / down % across * COLS;
        tile<In, Out, Sum>(p, uint32_t(t / down / across), row, col, alpha, beta);
    }
}

template <typename T> __device__ __forceinline__ void scaled(const Scaled &s) {
    const T alpha = s.alpha_at ? *static_cast<const T *>(s.alpha_at) : T(s.alpha);
    const T beta = s.beta_at ? *static_cast<const T *>(s.beta_at) : T(s.beta);
    const T *x = static_cast<const T *>(s.x);
    T *y = static_cast<T *>(s.y);
    const uint64_t step = uint64_t(gridDim.x) * blockDim.x;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < s.count; i += step) {
        T value = alpha == 0 ? 0 : alpha * x[int64_t(i) * s.x_step];
        if (beta != 0) value += beta * y[int64_t(i) * s.y_step];
        y[int64_t(i) * s.y_step] = value;
    }
}
} // namespace

#define PRODUCT(name, In, Out, Sum)                                                                                  \
    extern "C" __global__ void fermata_blas_product_##name(Product p) { product<In, Out, Sum>(p); }
PRODUCT(f32_f32, float, float, float)
PRODUCT(f64_f64, double, double, double)
PRODUCT(f16_f16, __half, __half, float)
PRODUCT(f16_f32, __half, float, float)
PRODUCT(bf16_bf16, Brain, Brain, float)
PRODUCT(bf16_f32, Brain, float, float)

extern "C" __global__ void fermata_blas_scaled_f32(Scaled s) { scaled<float>(s); }
extern "C" __global__ void fermata_blas_scaled_f64(Scaled s) { scaled<double>(s); }
