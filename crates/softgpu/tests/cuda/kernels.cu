// Ordinary device code of many kinds. The host side, cuda.rs, computes what each must give.
#include <assert.h>
#include <stdio.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void heat(const float *in, float *out, int n) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= n || y >= n) return;
    if (x == 0 || y == 0 || x == n - 1 || y == n - 1) {
        out[y * n + x] = in[y * n + x];
        return;
    }
    float c = in[y * n + x];
    out[y * n + x] = c + 0.1f * (in[(y - 1) * n + x] + in[(y + 1) * n + x] + in[y * n + x - 1] + in[y * n + x + 1] - 4.0f * c);
}

extern "C" __global__ void matmul(const float *a, const float *b, float *c, int n) {
    __shared__ float as[16][16], bs[16][16];
    int x = threadIdx.x, y = threadIdx.y, col = blockIdx.x * 16 + x, row = blockIdx.y * 16 + y;
    float sum = 0;
    for (int t = 0; t < n; t += 16) {
        as[y][x] = a[row * n + t + x];
        bs[y][x] = b[(t + y) * n + col];
        __syncthreads();
        for (int k = 0; k < 16; k++) sum += as[y][k] * bs[k][x];
        __syncthreads();
    }
    c[row * n + col] = sum;
}

extern "C" __global__ void reduce(const int *in, int *out, int n) {
    __shared__ int partial[32];
    int sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += in[i];
    for (int d = 16; d; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
        for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
        if (threadIdx.x == 0) atomicAdd(out, sum);
    }
}

extern "C" __global__ void histogram(const unsigned char *in, unsigned *out, int n) {
    extern __shared__ unsigned bins[];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) bins[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&bins[in[i]], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&out[i], bins[i]);
}

extern "C" __global__ void nbody(const float4 *body, float4 *force, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 me = body[i];
    float fx = 0, fy = 0, fz = 0;
    for (int j = 0; j < n; j++) {
        float4 o = body[j];
        float dx = o.x - me.x, dy = o.y - me.y, dz = o.z - me.z;
        float inv = rsqrtf(dx * dx + dy * dy + dz * dz + 1e-3f);
        float s = o.w * inv * inv * inv;
        fx += dx * s;
        fy += dy * s;
        fz += dz * s;
    }
    force[i] = make_float4(fx, fy, fz, 0);
}

// A scan over the whole grid in one pass: each block waits for the sum of the one before it.
extern "C" __global__ void scan(const int *in, int *out, volatile int *sums, volatile int *ready, int n) {
    __shared__ int warp[32];
    __shared__ int before;
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31, w = threadIdx.x / 32;
    int v = i < n ? in[i] : 0;
    for (int d = 1; d < 32; d *= 2) {
        int o = __shfl_up_sync(~0u, v, d);
        if (lane >= d) v += o;
    }
    if (lane == 31) warp[w] = v;
    __syncthreads();
    if (w == 0) {
        int s = lane < blockDim.x / 32 ? warp[lane] : 0;
        for (int d = 1; d < 32; d *= 2) {
            int o = __shfl_up_sync(~0u, s, d);
            if (lane >= d) s += o;
        }
        warp[lane] = s;
    }
    __syncthreads();
    if (w > 0) v += warp[w - 1];
    if (threadIdx.x == blockDim.x - 1) {
        int b = 0;
        if (blockIdx.x > 0) {
            while (!ready[blockIdx.x - 1]) {}
            b = sums[blockIdx.x - 1];
        }
        sums[blockIdx.x] = b + v;
        __threadfence();
        ready[blockIdx.x] = 1;
        before = b;
    }
    __syncthreads();
    if (i < n) out[i] = v + before;
}

extern "C" __global__ void math(const double *in, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double x = in[i];
    float f = (float)x;
    double *o = out + i * 48;
    int k = 0;
    o[k++] = sin(x); o[k++] = cos(x); o[k++] = tan(x); o[k++] = exp(x); o[k++] = log(fabs(x) + 1e-9);
    o[k++] = pow(fabs(x), 1.7); o[k++] = atan2(x, 2.0); o[k++] = sinh(x / 8); o[k++] = tanh(x); o[k++] = erf(x);
    o[k++] = lgamma(fabs(x) + 0.5); o[k++] = cbrt(x); o[k++] = fmod(x, 1.3); o[k++] = hypot(x, 3.0); o[k++] = asin(x / 1e6);
    o[k++] = sqrt(fabs(x)); o[k++] = floor(x); o[k++] = rint(x); o[k++] = exp2(x / 4); o[k++] = log10(fabs(x) + 1);
    o[k++] = sinf(f); o[k++] = cosf(f); o[k++] = tanf(f); o[k++] = expf(f); o[k++] = logf(fabsf(f) + 1e-9f);
    o[k++] = powf(fabsf(f), 1.7f); o[k++] = atan2f(f, 2.0f); o[k++] = sinhf(f / 8); o[k++] = tanhf(f); o[k++] = erff(f);
    o[k++] = lgammaf(fabsf(f) + 0.5f); o[k++] = cbrtf(f); o[k++] = fmodf(f, 1.3f); o[k++] = hypotf(f, 3.0f); o[k++] = asinf(f / 1e6f);
    o[k++] = sqrtf(fabsf(f)); o[k++] = floorf(f); o[k++] = rintf(f); o[k++] = exp2f(f / 4); o[k++] = log10f(fabsf(f) + 1);
    o[k++] = 1.0 / x; o[k++] = x / 3.0; o[k++] = 1.0f / f; o[k++] = f / 3.0f; o[k++] = (double)(long long)x;
    o[k++] = (double)(int)f; o[k++] = rsqrtf(fabsf(f)); o[k++] = ldexp(x, 5);
}

extern "C" __global__ void halves(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __half a = __float2half(in[i]), b = __float2half(in[(i + 1) % n]);
    __nv_bfloat16 c = __float2bfloat16(in[i]), d = __float2bfloat16(in[(i + 1) % n]);
    float *o = out + i * 12;
    o[0] = __half2float(__hadd(a, b));
    o[1] = __half2float(__hmul(a, b));
    o[2] = __half2float(__hfma(a, b, a));
    o[3] = __half2float(__hdiv(a, __float2half(3.0f)));
    o[4] = __bfloat162float(__hadd(c, d));
    o[5] = __bfloat162float(__hmul(c, d));
#if __CUDA_ARCH__ >= 800
    o[6] = __bfloat162float(__hfma(c, d, c));
#else
    o[6] = __bfloat162float(__float2bfloat16(fmaf(__bfloat162float(c), __bfloat162float(d), __bfloat162float(c))));
#endif
    __half2 p = __halves2half2(a, b), q = __hadd2(p, p);
    o[7] = __low2float(q);
    o[8] = __high2float(__hmul2(p, q));
    o[9] = __hlt(a, b) ? 1 : 0;
    o[10] = __half2float(__hmax(a, b));
    o[11] = (float)__half2int_rn(a);
}

__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

extern "C" __global__ void recursion(int *out) { out[threadIdx.x] = fibonacci(threadIdx.x); }

__device__ __noinline__ int twice(int x) { return 2 * x; }
__device__ __noinline__ int square(int x) { return x * x; }
__device__ int (*table[2])(int) = {twice, square};
struct Shape {
    int size;
    __device__ Shape(int s) : size(s) {}
    __device__ virtual int area() const { return size; }
};
struct Square : Shape {
    __device__ Square(int s) : Shape(s) {}
    __device__ int area() const override { return size * size; }
};
struct Big { int v[10]; };
__device__ __noinline__ Big fill(Big b, int k) {
    for (int i = 0; i < 10; i++) b.v[i] = b.v[(i + k) % 10] + i;
    return b;
}

extern "C" __global__ void pointers(int *out, int which) {
    int i = threadIdx.x;
    Square sq(i);
    Shape sh(i);
    Shape *s = (i & 1) ? &sq : &sh;
    Big b;
    for (int k = 0; k < 10; k++) b.v[k] = k * i;
    b = fill(b, i);
    out[i] = table[(i + which) & 1](i) + s->area() + b.v[i % 10];
}

extern "C" __global__ void print(int n) {
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        printf("%d|%5.2f|%s|%c|%llu|%-4d|%x\n", n, 1.5, "text", 'z', 1ull << 40, 7, 255);
        printf("plain\n");
    }
}

extern "C" __global__ void check(int n) { assert(n < 5); }

// Threads of one block take a spin lock in turn.
extern "C" __global__ void spin(int *lock, int *count) {
    bool done = false;
    while (!done) {
        if (atomicCAS(lock, 0, 1) == 0) {
            *(volatile int *)count += 1;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
    }
}

struct Pair { double a; int b; };
__constant__ float weights[4] = {0.5f, 1.5f, 2.5f, 3.5f};
__constant__ Pair pairs[2] = {{1.25, 3}, {2.5, 4}};
__device__ int counter = 5;

extern "C" __global__ void mixed(Pair p, unsigned long long *out, const long long *in) {
    int i = threadIdx.x;
    unsigned long long r = 0;
    long long v = in[i];
    r += __popcll(v) + __clzll(v) * 3 + __ffsll(v) * 7 + __brevll(v);
    r ^= __umul64hi(v, v + 12345) + (unsigned long long)__mul64hi(v, v - 1);
    r += v / (i + 3) + v % (i + 7) + (unsigned)v / (i + 1u) + (unsigned short)v % (i + 2);
    r ^= (unsigned long long)__float_as_int(weights[i & 3]) << 20;
    r += (unsigned long long)(pairs[i & 1].a * pairs[i & 1].b * p.a) + p.b;
    r += __byte_perm((unsigned)v, i, 0x3715) + __funnelshift_l((unsigned)v, i, i) + __sad((int)v, i, 3);
    unsigned mask = __ballot_sync(~0u, v & 1);
    r += mask + __popc(__match_any_sync(~0u, (int)(v & 3))) * 1000;
    int old = atomicAdd(&counter, 1);
    (void)old;
    if (i & 1) {
        unsigned active = __activemask();
        r += __popc(active);
    }
    r += __syncthreads_count(v > 0) * 100;
    out[i] = r;
}
