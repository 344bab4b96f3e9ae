// A program of two parts. PART is the second one, whose kernel is compiled to machine code only.
#include <cstdio>

#ifdef PART
__global__ void other(int *to) { *to = 2; }

void launch_other(int *to) { other<<<1, 1>>>(to); }
#else
void launch_other(int *to);

__global__ void own(int *to) { *to += 1; }

int main() {
    int *at, told = 0;
    if (cudaMalloc(&at, sizeof *at) || cudaMemset(at, 0, sizeof *at)) return 1;
    for (int turn = 0; turn < 2; turn++) {
        own<<<1, 1>>>(at);
        printf("own %d\n", cudaGetLastError());
        launch_other(at);
        printf("other %d\n", cudaGetLastError());
    }
    printf("copy %d\n", cudaMemcpy(&told, at, sizeof told, cudaMemcpyDeviceToHost));
    printf("told %d\n", told);
}
#endif
