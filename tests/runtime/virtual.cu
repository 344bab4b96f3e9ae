// Device functions called through what memory holds: virtual functions of objects, and pointers. It says where a
// table of them lies, and what came of the calls: virtual STEPS
#include <cstdio>
#include <cstdlib>
#include <new>
#include <unistd.h>
#include <cuda_runtime.h>
#include "../../programs/hold.h"

struct Shape { __device__ virtual int corners(int) const { return 1; } };
struct Square : Shape { int more; __device__ int corners(int n) const override { return 4 * n + more; } };
typedef int (*Function)(int);
__device__ __noinline__ int twice(int n) { return 2 * n; }
__device__ __noinline__ int thrice(int n) { return 3 * n; }
__device__ Function table[2] = {twice, thrice};

struct State { Shape *shape; Function function; unsigned value; };
__global__ void make(State *state, void *room) {
    Square *square = new (room) Square;
    square->more = 5; state->shape = square; state->function = thrice; state->value = 0;
}
__global__ void call(State *state, int k) {
    state->value = state->value * 31 + state->shape->corners(k) + state->function(k) + table[k & 1](k);
}

int main(int argc, char **argv) {
    setvbuf(stdout, nullptr, _IONBF, 0);
    int steps = argc > 1 ? atoi(argv[1]) : 30; State *state, end; void *room; unsigned expected = 0;
    cudaMalloc(&state, sizeof *state); cudaMalloc(&room, 64); make<<<1, 1>>>(state, room);
    for (int k = 1; k <= steps; k++) {
        call<<<1, 1>>>(state, k);
        expected = expected * 31 + (4 * k + 5) + 3 * k + (k & 1 ? 3 * k : 2 * k);
        if (int status = cudaDeviceSynchronize()) { printf("step %d: error %d\n", k, status); return 1; }
        printf("step %d\n", k); hold(k);
    }
    cudaMemcpy(&end, state, sizeof end, cudaMemcpyDeviceToHost);
    puts(end.value == expected ? "right" : "wrong");
    return end.value != expected;
}
