// A CUDA program that executes another one, itself again: family parent STEPS; family once; family again.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>
#include <cuda_runtime.h>
#include "../../programs/hold.h"

__global__ void add(int *to) { ++*to; }

static int count(int steps) {
    int *p, value = 0;
    if (int status = cudaMalloc(&p, 4)) return -status;
    cudaMemset(p, 0, 4);
    for (int k = 1; k <= steps; k++) {
        add<<<1, 1>>>(p);
        cudaDeviceSynchronize();
        if (steps > 1) { printf("step %d\n", k); hold(k); }
    }
    cudaMemcpy(&value, p, 4, cudaMemcpyDeviceToHost);
    return value;
}

int main(int, char **argv) {
    setvbuf(stdout, nullptr, _IONBF, 0);
    const char *mode = argv[1];
    if (!strcmp(mode, "child")) { printf("child %d\n", count(1)); hold(100); printf("child %d\n", count(1)); return 7; }
    if (!strcmp(mode, "once")) { printf("once %d\n", count(1)); return 0; }
    if (!strcmp(mode, "again")) { printf("first %d\n", count(1)); execl(argv[0], argv[0], "once", nullptr); return 1; }
    int *p, status; cudaMalloc(&p, 4);
    pid_t child = fork();
    if (child == 0) { execl(argv[0], argv[0], "child", nullptr); _exit(1); }
    int value = count(atoi(argv[2]));
    if (waitpid(child, &status, 0) != child) status = -1;
    printf("value %d, child's status %d\n", value, WEXITSTATUS(status));
    return 0;
}
