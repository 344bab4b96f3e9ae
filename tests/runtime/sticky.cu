// What each kind of call answers once a fault has ended the context: sticky. One line per call; two runtimes
// over two drivers must print the same. sticky.expected is what the vendor's print on an H200.
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <cuda_runtime.h>
#include <cuda.h>

#define SHOW(call) do { int r_ = (call); printf("%s: %d\n", #call, r_); cudaGetLastError(); } while (0)
#define DRIVER(name, ...) do { auto f_ = (CUresult (*)(...))dlsym(driver, #name); printf("%s: %d\n", #name, f_ ? (int)f_(__VA_ARGS__) : -1); } while (0)

__device__ int number = 3;
__global__ void store(int *to) { if (to) *to = number; }
static void CUDART_CB nothing(void *) {}

int main() {
    setvbuf(stdout, nullptr, _IONBF, 0);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int *a, *m, *h, *late, v = 0; void *p; float f; size_t bytes, more; unsigned flags; int low; static int room[8192]; int *page = (int *)(((unsigned long long)room + 4095) & ~4095ull);
    cudaStream_t s, t; cudaEvent_t e, e2, made; cudaGraph_t g, g2; cudaGraphExec_t x, x2; cudaGraphNode_t node; cudaArray_t array, other; cudaMemPool_t pool, pool2;
    cudaFuncAttributes about; cudaPointerAttributes where; cudaDeviceProp device; cudaGraphExecUpdateResultInfo result; cudaStreamCaptureStatus capturing;
    SHOW(cudaMalloc(&a, 4096)); SHOW(cudaMallocManaged(&m, 4096)); SHOW(cudaMallocHost(&h, 4096)); SHOW(cudaHostRegister(page, 4096, 0));
    SHOW(cudaStreamCreate(&s)); SHOW(cudaEventCreate(&e)); SHOW(cudaEventCreate(&e2)); SHOW(cudaDeviceGetDefaultMemPool(&pool, 0)); SHOW(cudaMallocAsync(&late, 4096, s));
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>(); SHOW(cudaMallocArray(&array, &format, 16, 16));
    SHOW(cudaEventRecord(e, s)); SHOW(cudaEventRecord(e2, s));
    SHOW(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal)); store<<<1, 1, 0, s>>>(a); SHOW(cudaStreamEndCapture(s, &g)); SHOW(cudaGraphInstantiate(&x, g, 0)); SHOW(cudaGraphLaunch(x, s));
    SHOW(cudaDeviceSynchronize());
    store<<<1, 1>>>((int *)0x10); SHOW(cudaDeviceSynchronize());
    puts("-- streams and events");
    SHOW(cudaStreamCreate(&t)); SHOW(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking)); SHOW(cudaStreamCreateWithPriority(&t, 0, -1));
    SHOW(cudaEventCreate(&made)); SHOW(cudaEventCreateWithFlags(&made, cudaEventDisableTiming)); SHOW(cudaEventRecord(e, s)); SHOW(cudaEventRecord(e, 0)); SHOW(cudaEventQuery(e)); SHOW(cudaEventSynchronize(e)); SHOW(cudaEventElapsedTime(&f, e, e2));
    SHOW(cudaStreamWaitEvent(s, e, 0)); SHOW(cudaStreamQuery(s)); SHOW(cudaStreamQuery(0)); SHOW(cudaStreamSynchronize(s)); SHOW(cudaStreamGetFlags(s, &flags)); SHOW(cudaStreamGetPriority(s, &low)); SHOW(cudaLaunchHostFunc(s, nothing, nullptr));
    SHOW(cudaDeviceGetStreamPriorityRange(&low, &v));
    puts("-- memory");
    SHOW(cudaMalloc(&p, 16)); SHOW(cudaMallocPitch(&p, &bytes, 16, 16)); SHOW(cudaMallocArray(&other, &format, 16, 16)); SHOW(cudaMallocManaged(&p, 16)); SHOW(cudaMallocHost(&p, 16)); SHOW(cudaHostAlloc(&p, 16, cudaHostAllocMapped)); SHOW(cudaMallocAsync(&p, 16, s));
    SHOW(cudaHostRegister(page + 1024, 4096, 0)); SHOW(cudaHostGetDevicePointer(&p, h, 0)); SHOW(cudaHostGetFlags(&flags, h)); SHOW(cudaPointerGetAttributes(&where, a)); SHOW(cudaPointerGetAttributes(&where, page + 1500)); SHOW(cudaMemGetInfo(&bytes, &more));
    SHOW(cudaMemcpy(&v, a, 4, cudaMemcpyDeviceToHost)); SHOW(cudaMemcpy(a, &v, 4, cudaMemcpyHostToDevice)); SHOW(cudaMemcpy(a, a + 16, 4, cudaMemcpyDeviceToDevice)); SHOW(cudaMemcpy(h, &v, 4, cudaMemcpyHostToHost));
    SHOW(cudaMemcpyAsync(h, a, 4, cudaMemcpyDeviceToHost, s)); SHOW(cudaMemcpyAsync(a, h, 4, cudaMemcpyHostToDevice, s)); SHOW(cudaMemcpyAsync(a, a + 16, 4, cudaMemcpyDeviceToDevice, s)); SHOW(cudaMemcpyAsync(a, h, 0, cudaMemcpyHostToDevice, s));
    SHOW(cudaMemcpy2D(a, 64, page, 64, 16, 4, cudaMemcpyHostToDevice)); SHOW(cudaMemcpy2DAsync(a, 64, h, 64, 16, 4, cudaMemcpyHostToDevice, s)); SHOW(cudaMemset(a, 0, 16)); SHOW(cudaMemsetAsync(a, 0, 16, s)); SHOW(cudaMemset2DAsync(a, 64, 0, 16, 4, s)); SHOW(cudaMemset(a, 0, 0));
    SHOW(cudaMemcpyToSymbol(number, &v, 4)); SHOW(cudaMemcpyFromSymbol(&v, number, 4)); SHOW(cudaMemcpyToSymbolAsync(number, h, 4, 0, cudaMemcpyHostToDevice, s)); SHOW(cudaGetSymbolAddress(&p, number)); SHOW(cudaGetSymbolSize(&bytes, number));
    cudaMemLocation here = {cudaMemLocationTypeDevice, 0}; SHOW(cudaMemAdvise(m, 4096, cudaMemAdviseSetPreferredLocation, here)); SHOW(cudaMemPrefetchAsync(m, 4096, here, 0, s));
    cudaMemPoolProps props = {}; props.allocType = cudaMemAllocationTypePinned; props.location = here; SHOW(cudaMemPoolCreate(&pool2, &props)); SHOW(cudaDeviceGetDefaultMemPool(&pool, 0)); SHOW(cudaMemPoolTrimTo(pool, 0));
    puts("-- kernels");
    store<<<1, 1>>>(a); SHOW(cudaGetLastError()); store<<<1, 1, 0, s>>>(a); SHOW(cudaGetLastError()); store<<<1, 0>>>(a); SHOW(cudaGetLastError());
    SHOW(cudaFuncGetAttributes(&about, store)); SHOW(cudaFuncSetAttribute(store, cudaFuncAttributeMaxDynamicSharedMemorySize, 1024)); SHOW(cudaFuncSetCacheConfig(store, cudaFuncCachePreferL1)); SHOW(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&v, store, 32, 0));
    puts("-- graphs");
    SHOW(cudaGraphCreate(&g2, 0)); SHOW(cudaGraphAddEmptyNode(&node, g2, nullptr, 0));
    void *args[] = {&a}; cudaKernelNodeParams kernel = {}; kernel.func = (void *)store; kernel.gridDim = 1; kernel.blockDim = 1; kernel.kernelParams = args; SHOW(cudaGraphAddKernelNode(&node, g2, nullptr, 0, &kernel));
    cudaMemsetParams set = {}; set.dst = a; set.elementSize = 1; set.width = 16; set.height = 1; SHOW(cudaGraphAddMemsetNode(&node, g2, nullptr, 0, &set)); SHOW(cudaGraphAddMemcpyNode1D(&node, g2, nullptr, 0, a, h, 16, cudaMemcpyHostToDevice)); SHOW(cudaGraphAddEventRecordNode(&node, g2, nullptr, 0, e));
    SHOW(cudaGraphInstantiate(&x2, g, 0)); SHOW(cudaGraphLaunch(x, s)); SHOW(cudaGraphUpload(x, s)); SHOW(cudaGraphExecUpdate(x, g, &result)); SHOW(cudaGraphGetNodes(g, nullptr, &bytes)); SHOW(cudaStreamIsCapturing(s, &capturing)); SHOW(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal)); SHOW(cudaStreamIsCapturing(s, &capturing)); SHOW(cudaStreamEndCapture(s, &g2));
    puts("-- device");
    SHOW(cudaDeviceGetAttribute(&v, cudaDevAttrWarpSize, 0)); SHOW(cudaGetDeviceProperties(&device, 0)); SHOW(cudaDeviceGetLimit(&bytes, cudaLimitStackSize)); SHOW(cudaDeviceSetLimit(cudaLimitStackSize, 2048)); SHOW(cudaDeviceCanAccessPeer(&v, 0, 0)); SHOW(cudaGetDeviceFlags(&flags)); SHOW(cudaDeviceSetCacheConfig(cudaFuncCachePreferNone));
    puts("-- driver");
    CUcontext context; CUstream stream; CUevent event; CUdeviceptr address; CUmodule module; CUdevice dev; CUmemGenericAllocationHandle handle; CUmemAllocationProp prop = {}; prop.type = CU_MEM_ALLOCATION_TYPE_PINNED; prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    DRIVER(cuCtxGetCurrent, &context); DRIVER(cuCtxGetDevice, &dev); DRIVER(cuCtxSetCurrent, context); DRIVER(cuCtxPushCurrent_v2, context); DRIVER(cuCtxPopCurrent_v2, &context); DRIVER(cuCtxGetFlags, &flags); DRIVER(cuCtxGetLimit, &bytes, 0); DRIVER(cuCtxSetLimit, 0, (size_t)2048); DRIVER(cuCtxSynchronize); DRIVER(cuCtxGetApiVersion, context, &flags);
    DRIVER(cuStreamCreate, &stream, 0); DRIVER(cuEventCreate, &event, 0); DRIVER(cuMemAlloc_v2, &address, (size_t)16); DRIVER(cuMemHostAlloc, &p, (size_t)16, 0); DRIVER(cuModuleLoadData, &module, ".version 7.0\n.target sm_75\n.address_size 64\n"); DRIVER(cuMemsetD8_v2, (CUdeviceptr)a, 0, (size_t)16); DRIVER(cuMemcpyDtoH_v2, &v, (CUdeviceptr)a, (size_t)4);
    DRIVER(cuMemAddressReserve, &address, (size_t)(2 << 20), (size_t)0, (CUdeviceptr)0, 0ull); DRIVER(cuMemCreate, &handle, (size_t)(2 << 20), &prop, 0ull); DRIVER(cuPointerGetAttribute, &context, 1, (CUdeviceptr)a); DRIVER(cuDevicePrimaryCtxGetState, 0, &flags, &v);
    puts("-- ends");
    SHOW(cudaEventDestroy(e)); SHOW(cudaGraphExecDestroy(x)); SHOW(cudaGraphDestroy(g)); SHOW(cudaFreeAsync(late, s)); SHOW(cudaStreamDestroy(s)); SHOW(cudaFree(a)); SHOW(cudaFree(m)); SHOW(cudaFree(nullptr)); SHOW(cudaFreeHost(h)); SHOW(cudaHostUnregister(page)); SHOW(cudaSetDevice(0)); SHOW(cudaDeviceReset());
    return 0;
}
