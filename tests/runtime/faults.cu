// What the runtime answers when things go wrong, one fault per run: faults MODE. Two runtimes over one
// driver must print the same.
#include <cassert>
#include <cstdio>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>
#include <cuda_runtime.h>

#define SHOW(call) do { int r_ = (call); printf("%s: %d, peek %d, last %d, last %d\n", #call, r_, (int)cudaPeekAtLastError(), (int)cudaGetLastError(), (int)cudaGetLastError()); } while (0)

__device__ int number = 3;
__global__ void store(int *to) { *to = number; }
__global__ void fail() { assert(threadIdx.x > 5); }
__global__ void trap() { asm("trap;"); }

static void look() {
    void *p; int n = -1; cudaStream_t s; size_t a, b;
    SHOW(cudaMalloc(&p, 16)); SHOW(cudaGetDevice(&n)); SHOW(cudaGetDeviceCount(&n)); SHOW(cudaStreamCreate(&s)); SHOW(cudaMemGetInfo(&a, &b));
    SHOW(cudaStreamSynchronize(0)); SHOW(cudaDeviceSynchronize()); SHOW(cudaMemcpyFromSymbol(&n, number, 4)); store<<<1, 1>>>((int *)p); SHOW(cudaGetLastError());
    SHOW(cudaRuntimeGetVersion(&n)); SHOW(cudaSetDevice(0)); SHOW(cudaFree(nullptr)); SHOW(cudaGetSymbolAddress(&p, number));
}

int main(int, char **argv) {
    setvbuf(stdout, nullptr, _IONBF, 0);
    const char *mode = argv[1]; int *p = nullptr;
    if (!strcmp(mode, "illegal")) { SHOW(cudaMalloc(&p, 4)); store<<<1, 1>>>((int *)0x10); SHOW(cudaGetLastError()); SHOW(cudaDeviceSynchronize()); look(); }
    if (!strcmp(mode, "assert")) { fail<<<1, 1>>>(); SHOW(cudaDeviceSynchronize()); look(); }
    if (!strcmp(mode, "trap")) { trap<<<1, 1>>>(); SHOW(cudaStreamSynchronize(0)); look(); }
    if (!strcmp(mode, "peek")) { cudaSetDevice(-3); printf("%d %d %d\n", cudaPeekAtLastError(), cudaGetLastError(), cudaGetLastError()); cudaFree(0); cudaSetDevice(-3); cudaFree(0); printf("%d\n", cudaGetLastError());
        cudaEvent_t e; cudaEventCreate(&e); cudaStream_t s; cudaStreamCreate(&s); store<<<1, 1, 0, s>>>(p = nullptr); printf("%d\n", cudaGetLastError()); }
    if (!strcmp(mode, "nothing")) look();
    if (!strcmp(mode, "reset")) { int v = 0; SHOW(cudaMalloc(&p, 4)); store<<<1, 1>>>(p); SHOW(cudaMemcpy(&v, p, 4, cudaMemcpyDeviceToHost)); SHOW(cudaDeviceReset()); SHOW(cudaMemcpy(&v, p, 4, cudaMemcpyDeviceToHost)); SHOW(cudaMalloc(&p, 4)); store<<<1, 1>>>(p); SHOW(cudaMemcpy(&v, p, 4, cudaMemcpyDeviceToHost)); printf("%d\n", v); }
    if (!strcmp(mode, "fork")) { SHOW(cudaMalloc(&p, 4)); if (fork() == 0) { look(); _exit(7); } int s; wait(&s); printf("%d\n", s); SHOW(cudaFree(p)); if (fork() == 0) { execl(argv[0], argv[0], "nothing", nullptr); } wait(&s); }
    return 0;
}
