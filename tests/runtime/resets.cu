// A program that resets its device again and again, and at last, with `fault`, after a fault: resets STEPS plain|fault.
// What it holds at a reset, it does not free: memory of every kind, streams, events, modules.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#include <cuda_runtime.h>
#include "../../programs/hold.h"

#define CHECK(call) do { int r_ = (call); if (r_) { printf("%s: %d\n", #call, r_); exit(1); } } while (0)
__device__ unsigned total = 5;
__global__ void fold(unsigned *to, const unsigned *from, unsigned by) { total += by; *to = *to * 31 + total + *from; }

int main(int argc, char **argv) {
    setvbuf(stdout, nullptr, _IONBF, 0);
    int steps = atoi(argv[1]); bool fault = !strcmp(argv[2], "fault"); unsigned sum = 1, *d = nullptr, *h, *late; cudaStream_t s; cudaEvent_t e; size_t free_, all, most = 0;
    for (int k = 0; k < steps; k++) {
        if (k % 4 == 0) {
            if (d) { CHECK(cudaMemcpy(&sum, d, 4, cudaMemcpyDeviceToHost)); CHECK(cudaDeviceReset()); }
            CHECK(cudaMalloc(&d, 1 << 20)); CHECK(cudaMallocHost(&h, 1 << 20)); CHECK(cudaStreamCreate(&s)); CHECK(cudaEventCreate(&e)); CHECK(cudaMallocAsync(&late, 4096, s));
            CHECK(cudaMemcpy(d, &sum, 4, cudaMemcpyHostToDevice)); CHECK(cudaMemGetInfo(&free_, &all)); if (!most) most = free_;
            if (free_ < most) { printf("%zu bytes are lost after %d steps\n", most - free_, k); return 1; }
        }
        *h = k; CHECK(cudaMemcpyAsync(late, h, 4, cudaMemcpyHostToDevice, s)); fold<<<1, 1, 0, s>>>(d, late, k); CHECK(cudaEventRecord(e, s)); CHECK(cudaEventSynchronize(e));
        printf("step %d\n", k); hold(k);
    }
    if (fault) {
        fold<<<1, 1, 0, s>>>((unsigned *)0x10, late, 1); int told = cudaDeviceSynchronize(), reset = cudaDeviceReset(), then = cudaMalloc(&d, 4);
        printf("fault %d, reset %d, then %d\n", told, reset, then); hold(steps); return 0;
    }
    CHECK(cudaMemcpy(&sum, d, 4, cudaMemcpyDeviceToHost)); printf("sum %08x\n", sum);
    return 0;
}
