// Calls of cuBLAS and cuBLASLt, compared with loops on the host. Matrices hold small integers, so that every order of
// summing gives the same. Prints `ok NAME` for each comparison that holds, and ends with 1 if one does not.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <string>
#include <vector>

static int wrong;

static void expect(bool holds, const std::string &name) {
    printf("%s %s\n", holds ? "ok" : "WRONG", name.c_str());
    wrong += !holds;
}

// Calls a function of the library by its name; arguments must have the types of its header.
template <typename... T> static int call(const char *name, T... arguments) {
    static void *library = dlopen("libcublasLt.so.12", RTLD_NOW);
    auto function = reinterpret_cast<int (*)(T...)>(library ? dlsym(library, name) : nullptr);
    if (!function) {
        printf("WRONG no `%s`\n", name);
        exit(1);
    }
    return function(arguments...);
}

template <typename T> struct Device {
    T *at = nullptr;
    size_t count;
    explicit Device(const std::vector<T> &from) : count(from.size()) {
        cudaMalloc(&at, count * sizeof(T));
        cudaMemcpy(at, from.data(), count * sizeof(T), cudaMemcpyHostToDevice);
    }
    std::vector<T> get() const {
        std::vector<T> to(count);
        cudaMemcpy(to.data(), at, count * sizeof(T), cudaMemcpyDeviceToHost);
        return to;
    }
};

template <typename T> static std::vector<T> numbers(size_t count, unsigned seed) {
    std::vector<T> all;
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525 + 1013904223;
        all.push_back(T(float(int(seed >> 24) % 7 - 3)));
    }
    return all;
}

// c = 2ab - c for column-major matrices with gaps, all after their operations, for each of `batch`.
template <typename In, typename Out>
static std::vector<Out> product(const std::vector<In> &a, const std::vector<In> &b, std::vector<Out> c, bool ta, bool tb,
                                int m, int n, int k, int lda, int ldb, int ldc, int batch, int sa, int sb, int sc) {
    for (int at = 0; at < batch; at++)
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) {
                double sum = 0;
                for (int l = 0; l < k; l++)
                    sum += double(a[at * sa + (ta ? i * lda + l : l * lda + i)]) *
                           double(b[at * sb + (tb ? l * ldb + j : j * ldb + l)]);
                Out &to = c[at * sc + j * ldc + i];
                to = Out(float(2 * sum - double(to)));
            }
    return c;
}

template <typename T> static bool same(const std::vector<T> &a, const std::vector<T> &b) {
    return memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// The product of one pair of types, in all operations, through every function that takes a type.
template <typename In, typename Out, typename Scale>
static void products(void *handle, const char *name, int in, int out, int compute) {
    const int m = 21, n = 10, k = 17, batch = 3, gap = 2;
    const Scale two = 2, less = -1;
    for (int ta = 0; ta < 2; ta++)
        for (int tb = 0; tb < 2; tb++) {
            const int lda = (ta ? k : m) + gap, ldb = (tb ? n : k) + gap, ldc = m + gap;
            const int sa = lda * (ta ? m : k) + 1, sb = ldb * (tb ? k : n) + 1, sc = ldc * n + 1;
            const auto a = numbers<In>(sa * batch, 1), b = numbers<In>(sb * batch, 2);
            const auto c = numbers<Out>(sc * batch, 3);
            const auto one = product(a, b, c, ta, tb, m, n, k, lda, ldb, ldc, 1, sa, sb, sc);
            const auto all = product(a, b, c, ta, tb, m, n, k, lda, ldb, ldc, batch, sa, sb, sc);
            const std::string what = std::string(name) + " " + "NT"[ta] + "NT"[tb];
            Device<In> x(a), y(b);
            Device<Out> z(c), more(c), listed(c);
            int done = call("cublasGemmEx", handle, ta, tb, m, n, k, (const void *)&two, (const void *)x.at, in, lda,
                            (const void *)y.at, in, ldb, (const void *)&less, (void *)z.at, out, ldc, compute, -1);
            expect(done == 0 && same(z.get(), one), what);
            done = call("cublasGemmStridedBatchedEx", handle, ta, tb, m, n, k, (const void *)&two, (const void *)x.at,
                        in, lda, (long long)sa, (const void *)y.at, in, ldb, (long long)sb, (const void *)&less,
                        (void *)more.at, out, ldc, (long long)sc, batch, compute, -1);
            expect(done == 0 && same(more.get(), all), what + " strided");
            std::vector<const void *> as, bs;
            std::vector<void *> cs;
            for (int at = 0; at < batch; at++) {
                as.push_back(x.at + at * sa);
                bs.push_back(y.at + at * sb);
                cs.push_back(listed.at + at * sc);
            }
            Device<const void *> la(as), lb(bs);
            Device<void *> lc(cs);
            done = call("cublasGemmBatchedEx", handle, ta, tb, m, n, k, (const void *)&two, (const void *)la.at, in, lda,
                        (const void *)lb.at, in, ldb, (const void *)&less, (void *)lc.at, out, ldc, batch, compute, -1);
            expect(done == 0 && same(listed.get(), all), what + " arrays");
        }
}

static void vectors(void *handle) {
    const int m = 9, n = 6;
    const auto a = numbers<float>(m * n, 4), x = numbers<float>(2 * n, 5), y = numbers<float>(m, 6);
    auto wanted = y;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) wanted[m - 1 - i] += 3 * a[j * m + i] * x[2 * j];
    Device<float> da(a), dx(x), dy(y);
    const float three = 3, one = 1;
    int done = call("cublasSgemv_v2", handle, 0, m, n, &three, (const float *)da.at, m, (const float *)dx.at, 2, &one,
                    dy.at, -1);
    expect(done == 0 && same(dy.get(), wanted), "gemv with a negative step");

    float sum = 0, told = -1;
    for (int j = 0; j < n; j++) sum += x[2 * j] * y[j];
    Device<float> plain(y), result(std::vector<float>{-1});
    done = call("cublasSdot_v2", handle, n, (const float *)dx.at, 2, (const float *)plain.at, 1, &told);
    expect(done == 0 && told == sum, "dot to the host");
    call("cublasSetPointerMode_v2", handle, 1);
    done = call("cublasSdot_v2", handle, n, (const float *)dx.at, 2, (const float *)plain.at, 1, result.at);
    expect(done == 0 && result.get()[0] == sum, "dot to the device");
    // With factors in device memory too: c = sum * a b + sum * c.
    Device<float> factor(std::vector<float>{2}), c(y);
    done = call("cublasSaxpy_v2", handle, m, (const float *)factor.at, (const float *)da.at, 1, c.at, 1);
    call("cublasSetPointerMode_v2", handle, 0);
    wanted = y;
    for (int i = 0; i < m; i++) wanted[i] += 2 * a[i];
    expect(done == 0 && same(c.get(), wanted), "axpy with a factor on the device");
    done = call("cublasSscal_v2", handle, m, &three, c.at, 1);
    for (float &it : wanted) it *= 3;
    expect(done == 0 && same(c.get(), wanted), "scal");
}

static void copies() {
    const int m = 5, n = 4;
    const auto a = numbers<float>(7 * n, 4);
    Device<float> there(std::vector<float>(6 * n, 0.f));
    std::vector<float> back(8 * n, 1.f), wanted(8 * n, 1.f), steps(3 * m, 2.f), row(3 * m, 2.f);
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m; i++) wanted[8 * j + i] = a[7 * j + i];
    int done = call("cublasSetMatrix", m, n, 4, (const void *)a.data(), 7, (void *)there.at, 6);
    done |= call("cublasGetMatrix", m, n, 4, (const void *)there.at, 6, (void *)back.data(), 8);
    expect(done == 0 && same(back, wanted), "matrices to the device and back");
    for (int i = 0; i < m; i++) row[3 * i] = a[2 * i];
    done = call("cublasSetVectorAsync", m, 4, (const void *)a.data(), 2, (void *)there.at, 1, (void *)nullptr);
    done |= call("cublasGetVectorAsync", m, 4, (const void *)there.at, 1, (void *)steps.data(), 3, (void *)nullptr);
    cudaDeviceSynchronize();
    expect(done == 0 && same(steps, row), "vectors to the device and back");
    done = call("cublasSetMatrix", m, n, 4, (const void *)a.data(), m - 1, (void *)there.at, 6);
    expect(done == 7, "columns that overlap are refused");
}

static void described(void *handle) {
    const int m = 8, n = 5, k = 12;
    const auto a = numbers<float>(m * k, 7), b = numbers<float>(k * n, 8), bias = numbers<float>(m, 9);
    std::vector<float> plain(m * n), relu(m * n), gelu(m * n);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float sum = bias[i];
            for (int l = 0; l < k; l++) sum += a[i * k + l] * b[j * k + l];
            relu[j * m + i] = sum > 0 ? sum : 0;
            gelu[j * m + i] = 0.5 * sum * (1 + std::tanh(0.7978845608 * (sum + 0.044715 * sum * sum * sum)));
        }
    Device<float> da(a), db(b), dbias(bias), dd(plain);
    void *product, *la, *lb, *ld, *preference;
    call("cublasLtMatmulDescCreate", &product, 68, 0);
    call("cublasLtMatrixLayoutCreate", &la, 0, uint64_t(k), uint64_t(m), int64_t(k));
    call("cublasLtMatrixLayoutCreate", &lb, 0, uint64_t(k), uint64_t(n), int64_t(k));
    call("cublasLtMatrixLayoutCreate", &ld, 0, uint64_t(m), uint64_t(n), int64_t(m));
    call("cublasLtMatmulPreferenceCreate", &preference);
    const auto set = [&](int attribute, const auto &value) {
        return call("cublasLtMatmulDescSetAttribute", product, attribute, (const void *)&value, sizeof value);
    };
    const int32_t turned = 1;
    expect(set(3, turned) == 0 && set(8, dbias.at) == 0, "attributes");
    struct {
        uint64_t algorithm[8];
        size_t workspace;
        int state;
        float waves;
        int reserved[4];
    } found;
    const auto run = [&](int32_t epilogue) {
        int count = -1;
        set(7, epilogue);
        int done = call("cublasLtMatmulAlgoGetHeuristic", handle, product, la, lb, ld, ld, preference, 1, (void *)&found,
                        &count);
        if (done || count != 1) return done ? done : -1;
        const float one = 1, zero = 0;
        return call("cublasLtMatmul", handle, product, (const void *)&one, (const void *)da.at, la, (const void *)db.at,
                    lb, (const void *)&zero, (const void *)nullptr, ld, (void *)dd.at, ld, (const void *)&found,
                    (void *)nullptr, size_t(0), (void *)nullptr);
    };
    expect(run(6) == 0 && same(dd.get(), relu), "product with bias and ReLU");
    bool near = run(36) == 0;
    const auto got = dd.get();
    for (int i = 0; i < m * n; i++) near &= std::fabs(got[i] - gelu[i]) <= 1e-5f * (1 + std::fabs(gelu[i]));
    expect(near, "product with bias and GELU");
    expect(run(192) == 15, "an epilogue that is not computed is refused");
    expect(call("cublasLtMatrixLayoutDestroy", lb) == 0 && run(6) == 7, "a destroyed layout is an error");
}

// A captured product is made each time its graph is launched: c = ab + c.
static void captured(void *handle) {
    const int n = 6;
    const auto a = numbers<float>(n * n, 10), b = numbers<float>(n * n, 11);
    std::vector<float> wanted(n * n);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            for (int l = 0; l < n; l++) wanted[j * n + i] += 3 * a[l * n + i] * b[j * n + l];
    Device<float> da(a), db(b), dc(std::vector<float>(n * n));
    const float one = 1;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    bool good = cudaStreamCreate(&stream) == 0;
    good &= call("cublasSetStream_v2", handle, stream) == 0;
    good &= cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == 0;
    good &= call("cublasSgemm_v2", handle, 0, 0, n, n, n, &one, (const float *)da.at, n, (const float *)db.at, n, &one,
                 dc.at, n) == 0;
    good &= cudaStreamEndCapture(stream, &graph) == 0 && cudaGraphInstantiate(&ready, graph, 0) == 0;
    for (int turn = 0; turn < 3; turn++) good &= cudaGraphLaunch(ready, stream) == 0;
    good &= cudaStreamSynchronize(stream) == 0;
    expect(good && same(dc.get(), wanted), "a captured product");
    call("cublasSetStream_v2", handle, (cudaStream_t) nullptr);
}

int main() {
    void *handle = nullptr;
    const int made = call("cublasCreate_v2", &handle);
    if (made) {
        printf("created %d\n", made);
        return 2;
    }
    products<float, float, float>(handle, "f32", 0, 0, 68);
    products<double, double, double>(handle, "f64", 1, 1, 70);
    products<__half, __half, float>(handle, "f16", 2, 2, 68);
    products<__half, float, float>(handle, "f16 to f32", 2, 0, 68);
    products<__nv_bfloat16, __nv_bfloat16, float>(handle, "bf16", 14, 14, 68);
    products<__nv_bfloat16, float, float>(handle, "bf16 to f32", 14, 0, 68);
    vectors(handle);
    copies();
    described(handle);
    captured(handle);
    Device<float> some(std::vector<float>(16));
    const float one = 1;
    const auto gemm = [&](void *with, int lda) {
        return call("cublasSgemm_v2", with, 0, 0, 4, 4, 1, &one, (const float *)some.at, lda, (const float *)some.at, 1,
                    &one, some.at, 4);
    };
    expect(gemm(handle, 3) == 7, "a leading dimension that is too small is an error");
    expect(gemm(nullptr, 4) == 1, "no handle is an error");
    expect(call("cublasCgemm_v2") == 15, "complex numbers are refused");
    expect(call("cublasDestroy_v2", handle) == 0 && gemm(handle, 4) == 1, "a destroyed handle is an error");
    return wrong != 0;
}
