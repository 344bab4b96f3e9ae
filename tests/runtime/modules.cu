// Modules that come and go, all with variables whose addresses the program keeps on the host and in device memory:
// modules STEPS window|big. `window` has two of them at a time and never loads one where nothing is loaded after it;
// `big` unloads one of 64 MiB that lay before others. The digest does not depend on where anything lies.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <dlfcn.h>
#include <unistd.h>
#include <cuda_runtime.h>
#include "../../programs/hold.h"
#include <cuda.h>

#define CHECK(call) do { int r_ = (call); if (r_) { printf("%s: %d\n", #call, r_); exit(1); } } while (0)
#define DRIVER(name) static decltype(&::name) p_##name
DRIVER(cuModuleLoadData); DRIVER(cuModuleUnload); DRIVER(cuModuleGetFunction); DRIVER(cuModuleGetGlobal); DRIVER(cuLaunchKernel);

// Adds to the first of its words, and folds that into what `out` points at.
static const char *HEAD = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .global .align 8 .u32 words[";
static const char *TAIL = "];\n.visible .entry step(.param .u64 out, .param .u32 by)\n{\n.reg .b32 %r<6>;\n.reg .b64 %d<4>;\n"
    "ld.param.u64 %d1, [out];\ncvta.to.global.u64 %d1, %d1;\nld.param.u32 %r1, [by];\nmov.u64 %d2, words;\nld.global.u32 %r2, [%d2];\n"
    "add.s32 %r2, %r2, %r1;\nst.global.u32 [%d2], %r2;\nld.global.u32 %r3, [%d1];\nmad.lo.s32 %r3, %r3, 31, %r2;\nst.global.u32 [%d1], %r3;\nret;\n}\n";

struct Loaded { CUmodule module; CUfunction step; CUdeviceptr words; };
__device__ unsigned base[100];
__global__ void touch(unsigned **table, unsigned by) { for (int i = 0; i < 3; i++) if (table[i]) atomicAdd(table[i] + 1, by); }

static Loaded load(unsigned words, const char *more = "") {
    Loaded l; size_t bytes; std::string text = HEAD + std::to_string(words) + TAIL + more;
    CHECK(p_cuModuleLoadData(&l.module, text.c_str())); CHECK(p_cuModuleGetFunction(&l.step, l.module, "step")); CHECK(p_cuModuleGetGlobal(&l.words, &bytes, l.module, "words"));
    return l;
}

int main(int argc, char **argv) {
    setvbuf(stdout, nullptr, _IONBF, 0);
    int steps = atoi(argv[1]); bool big = !strcmp(argv[2], "big"); void *driver = dlopen("libcuda.so.1", RTLD_NOW);
#define FIND(name, symbol) p_##name = (decltype(p_##name))dlsym(driver, symbol)
    FIND(cuModuleLoadData, "cuModuleLoadData"); FIND(cuModuleUnload, "cuModuleUnload"); FIND(cuModuleGetFunction, "cuModuleGetFunction"); FIND(cuModuleGetGlobal, "cuModuleGetGlobal_v2"); FIND(cuLaunchKernel, "cuLaunchKernel");
    unsigned *out, **table, *symbol, end[2]; CHECK(cudaMalloc(&out, 4)); CHECK(cudaMemset(out, 0, 4)); CHECK(cudaMalloc(&table, 24)); CHECK(cudaMemset(table, 0, 24));
    CHECK(cudaGetSymbolAddress((void **)&symbol, base)); CHECK(cudaMemcpy(table + 2, &symbol, 8, cudaMemcpyHostToDevice));
    Loaded gone = {}, window[2] = {}, late; if (big) gone = load(7, ".visible .global .align 4 .b8 room[67108864];\n");
    window[1] = load(16); late = load(24); if (big) CHECK(p_cuModuleUnload(gone.module));
    for (int k = 1; k <= steps; k++) {
        Loaded &next = window[k % 2];
        if (!big || k < 3) { Loaded before = next; next = load(16 << k % 3); if (before.module) CHECK(p_cuModuleUnload(before.module)); CHECK(cudaMemcpy(table + k % 2, &next.words, 8, cudaMemcpyHostToDevice)); }
        for (Loaded *l : {&window[0], &window[1], &late}) {
            if (!l->module) continue;
            unsigned by = k; void *args[] = {&out, &by}; CHECK(p_cuLaunchKernel(l->step, 1, 1, 1, 1, 1, 1, 0, nullptr, args, nullptr));
        }
        touch<<<1, 1>>>(table, k); CHECK(cudaDeviceSynchronize()); printf("step %d\n", k); hold(k);
    }
    CHECK(cudaMemcpy(end, (void *)late.words, 8, cudaMemcpyDeviceToHost)); unsigned sum = end[0] + end[1];
    CHECK(cudaMemcpy(end, (void *)window[0].words, 8, cudaMemcpyDeviceToHost)); sum = sum * 31 + end[0] * 7 + end[1];
    CHECK(cudaMemcpyFromSymbol(end, base, 8)); sum = sum * 31 + end[1]; CHECK(cudaMemcpy(end, out, 4, cudaMemcpyDeviceToHost));
    printf("sum %08x %08x\n", sum, end[0]);
    return 0;
}
