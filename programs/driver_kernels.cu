// Kernels of driver.cpp, compiled to a PTX file that it loads by name.
extern "C" {

__device__ unsigned seed = 1;
__constant__ unsigned factor;

__global__ void fill(unsigned *v, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        v[i] = i * seed;
    }
}

__global__ void rotate(const unsigned *from, unsigned *to, unsigned n, unsigned by) {
    extern __shared__ unsigned tile[];
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < n ? from[(i + by) % n] : 0;
    __syncthreads();
    if (i < n) {
        to[i] = tile[threadIdx.x] * factor + by;
    }
}
}
