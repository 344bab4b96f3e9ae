// Calls much of the runtime API and prints what each call answers, one line per call, nothing that varies
// from run to run. surface.expected is what NVIDIA's runtime prints on an H200, without the lines that
// describe the device:
//     nvcc -arch=compute_75 -o surface surface.cu
//     ./surface | grep -v ^device | cmp - surface.expected
#include <cstdio>
#include <cstring>
#include <thread>
#include <cuda_runtime.h>

#define SHOW(call) do { int r_ = (call); printf("%s: %d, last %d\n", #call, r_, (int)cudaGetLastError()); } while (0)

__device__ int counter = 5;
__device__ float table[64];
__constant__ int factor = 3;
__managed__ int shared_count = 11;

__global__ void scale(int *to, const int *from, int n, int by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] = from[i] * by * factor;
}
__global__ void count() { atomicAdd(&counter, 1); atomicAdd(&shared_count, 1); }
__global__ void __launch_bounds__(256) spill(float *to) {
    extern __shared__ float tile[];
    tile[threadIdx.x] = to[threadIdx.x];
    __syncthreads();
    to[threadIdx.x] = tile[255 - threadIdx.x];
}

static long sum(const int *v, int n) { long s = 0; for (int i = 0; i < n; i++) s = s * 31 + v[i]; return s; }
static void CUDART_CB host_function(void *data) { ++*(int *)data; }
static void CUDART_CB stream_callback(cudaStream_t, cudaError_t status, void *data) { *(int *)data += 10 + status; }

static void devices() {
    int n = -1, v = -1, w = -1; unsigned flags = 0; size_t bytes = 0; char id[32];
    SHOW(cudaGetDevice(&n)); printf("%d\n", n);
    SHOW(cudaSetDevice(99)); SHOW(cudaSetDevice(-1)); SHOW(cudaSetDevice(0));
    SHOW(cudaRuntimeGetVersion(&v)); printf("%d\n", v / 1000);
    SHOW(cudaDeviceGetAttribute(&v, cudaDevAttrMaxThreadsPerBlock, 0)); printf("%d\n", v);
    SHOW(cudaDeviceGetAttribute(&v, (cudaDeviceAttr)9999, 0));
    SHOW(cudaDeviceGetAttribute(&v, cudaDevAttrWarpSize, 77));
    SHOW(cudaDeviceGetAttribute(nullptr, cudaDevAttrWarpSize, 0));
    cudaDeviceProp p; memset(&p, 0xee, sizeof p);
    SHOW(cudaGetDeviceProperties(&p, 0));
    printf("device %s %d %d %d %zu %d %zu %d %d %d\n", p.name, p.major, p.minor, p.warpSize, p.sharedMemPerBlock, p.multiProcessorCount,
           p.totalGlobalMem, p.maxGridSize[0], p.l2CacheSize, p.concurrentManagedAccess);
    printf("device %d %zu %zu %d %d %zu %d %d %u\n", p.maxTexture1D, p.memPitch, p.sharedMemPerBlockOptin, p.maxBlocksPerMultiProcessor,
           p.memoryPoolsSupported, p.reservedSharedMemPerBlock, p.maxSurface3D[2], p.hostNumaId, p.memoryPoolSupportedHandleTypes);
    SHOW(cudaGetDeviceProperties(&p, 99));
    SHOW(cudaChooseDevice(&v, &p)); printf("%d\n", v);
    SHOW(cudaDeviceGetPCIBusId(id, sizeof id, 0)); SHOW(cudaDeviceGetByPCIBusId(&v, id)); printf("%d\n", v);
    SHOW(cudaDeviceGetStreamPriorityRange(&v, &w)); printf("%d %d\n", v, w);
    SHOW(cudaSetDeviceFlags(cudaDeviceScheduleYield)); SHOW(cudaGetDeviceFlags(&flags)); printf("%u\n", flags);
    SHOW(cudaSetDeviceFlags(0x1000));
    SHOW(cudaDeviceGetLimit(&bytes, cudaLimitStackSize)); printf("%zu\n", bytes);
    SHOW(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 1 << 20)); SHOW(cudaDeviceGetLimit(&bytes, cudaLimitPrintfFifoSize)); printf("%zu\n", bytes);
    SHOW(cudaDeviceGetLimit(&bytes, (cudaLimit)99));
    SHOW(cudaDeviceCanAccessPeer(&v, 0, 0)); printf("%d\n", v);
    SHOW(cudaDeviceCanAccessPeer(&v, 0, 99));
    SHOW(cudaDeviceEnablePeerAccess(0, 0));
    SHOW(cudaDeviceSetCacheConfig(cudaFuncCachePreferL1));
    printf("%s | %s | %s\n", cudaGetErrorName((cudaError_t)2), cudaGetErrorName((cudaError_t)719), cudaGetErrorName((cudaError_t)4242));
}

static void memory() {
    int *a, *b, host[256]; void *p = (void *)1; size_t pitch = 0, free_ = 0, total = 0;
    for (int i = 0; i < 256; i++) host[i] = i;
    SHOW(cudaMalloc(&a, 1024)); SHOW(cudaMalloc(&b, 1024));
    SHOW(cudaMalloc(&p, 0)); printf("%p\n", p);
    SHOW(cudaMalloc(nullptr, 4)); SHOW(cudaMalloc(&p, (size_t)1 << 60));
    SHOW(cudaMemcpy(a, host, 1024, cudaMemcpyHostToDevice));
    SHOW(cudaMemcpy(b, a, 1024, cudaMemcpyDeviceToDevice)); SHOW(cudaMemset(b, 1, 8));
    int back[256]; SHOW(cudaMemcpy(back, b, 1024, cudaMemcpyDefault)); printf("%ld\n", sum(back, 256));
    SHOW(cudaMemcpy(back, host, 1024, cudaMemcpyHostToHost)); printf("%ld\n", sum(back, 256));
    SHOW(cudaMemcpy(back, a, 1024, (cudaMemcpyKind)17)); SHOW(cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyHostToDevice));
    SHOW(cudaMemcpy(nullptr, a, 4, cudaMemcpyDeviceToHost));
    SHOW(cudaMallocPitch(&p, &pitch, 100, 7)); printf("%zu\n", pitch);
    SHOW(cudaMemset2D(p, pitch, 0, 100, 7));
    SHOW(cudaMemcpy2D(p, pitch, host, 64, 64, 7, cudaMemcpyHostToDevice));
    SHOW(cudaMemcpy2D(p, 10, host, 64, 64, 7, cudaMemcpyHostToDevice));
    memset(back, 0, sizeof back);
    SHOW(cudaMemcpy2D(back, 128, p, pitch, 100, 7, cudaMemcpyDeviceToHost)); printf("%ld\n", sum(back, 256));
    SHOW(cudaFree(p)); SHOW(cudaFree(nullptr)); SHOW(cudaFree((void *)0x1234));
    SHOW(cudaMallocPitch(&p, &pitch, 0, 7)); printf("%p %zu\n", p, pitch);
    cudaPitchedPtr box; SHOW(cudaMalloc3D(&box, make_cudaExtent(40, 5, 3))); printf("%zu %zu %zu\n", box.pitch, box.xsize, box.ysize);
    SHOW(cudaMemset3D(box, 7, make_cudaExtent(40, 5, 3)));
    SHOW(cudaMemset3D(box, 9, make_cudaExtent(8, 2, 2)));
    cudaMemcpy3DParms c = {}; c.srcPtr = box; c.dstPtr = make_cudaPitchedPtr(back, 40, 40, 5); c.extent = make_cudaExtent(40, 5, 3); c.kind = cudaMemcpyDeviceToHost;
    memset(back, 0, sizeof back); SHOW(cudaMemcpy3D(&c)); printf("%ld\n", sum(back, 150));
    c.kind = cudaMemcpyHostToDevice; c.srcPtr = c.dstPtr; c.dstPtr = box; SHOW(cudaMemcpy3DAsync(&c, 0)); SHOW(cudaMemcpy3D(nullptr));
    SHOW(cudaFree(box.ptr));
    SHOW(cudaMemGetInfo(&free_, &total)); printf("%d\n", free_ <= total && total > 0);
    int *pinned, *mapped; unsigned flags;
    SHOW(cudaMallocHost(&pinned, 4096)); SHOW(cudaHostAlloc(&mapped, 4096, cudaHostAllocMapped));
    SHOW(cudaHostGetFlags(&flags, mapped)); printf("%u\n", flags); SHOW(cudaHostGetFlags(&flags, host));
    SHOW(cudaHostGetDevicePointer(&p, mapped, 0)); printf("%d\n", p == mapped);
    SHOW(cudaHostGetDevicePointer(&p, host, 0));
    SHOW(cudaHostRegister(nullptr, 10, 0));
    SHOW(cudaHostUnregister(host));
    cudaPointerAttributes at;
    void *kinds[] = {a, pinned, &shared_count, host, nullptr};
    for (void *k : kinds) { memset(&at, 0xee, sizeof at); SHOW(cudaPointerGetAttributes(&at, k));
        printf("type %d device %d dev %d host %d\n", at.type, at.device, at.devicePointer == k, at.hostPointer == k); }
    SHOW(cudaFreeHost(mapped)); SHOW(cudaFreeHost(pinned)); SHOW(cudaFreeHost(nullptr)); SHOW(cudaFreeHost(host));
    SHOW(cudaMallocManaged(&p, 0)); SHOW(cudaMallocManaged(&p, 4096, 77)); SHOW(cudaMallocManaged(&p, 4096));
    cudaMemLocation device0 = {cudaMemLocationTypeDevice, 0};
    int state = -7;
    SHOW(cudaMemAdvise(p, 4096, cudaMemAdviseSetPreferredLocation, device0));
    SHOW(cudaMemRangeGetAttribute(&state, sizeof state, cudaMemRangeAttributePreferredLocation, p, 4096)); printf("%d\n", state);
    SHOW(cudaMemPrefetchAsync(p, 4096, device0, 0, 0)); SHOW(cudaStreamSynchronize(0)); SHOW(cudaFree(p));
    SHOW(cudaMallocAsync(&p, 1 << 20, 0)); SHOW(cudaMemsetAsync(p, 3, 1 << 20, 0)); SHOW(cudaFreeAsync(p, 0)); SHOW(cudaFreeAsync(nullptr, 0));
    cudaMemPool_t pool; uint64_t threshold = 4096; SHOW(cudaDeviceGetDefaultMemPool(&pool, 0));
    SHOW(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold)); threshold = 0;
    SHOW(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold)); printf("%d\n", (int)threshold);
    SHOW(cudaMemPoolTrimTo(pool, 0));
    SHOW(cudaFree(a)); SHOW(cudaFree(b)); SHOW(cudaFree(b));
}

static void symbols() {
    int v = 0; void *p; size_t n = 0;
    SHOW(cudaMemcpyFromSymbol(&v, counter, 4)); printf("%d\n", v); v = 100; SHOW(cudaMemcpyToSymbol(counter, &v, 4));
    count<<<2, 32>>>(); SHOW(cudaDeviceSynchronize()); SHOW(cudaMemcpyFromSymbol(&v, counter, 4)); printf("%d %d\n", v, shared_count);
    SHOW(cudaGetSymbolSize(&n, table)); printf("%zu\n", n); SHOW(cudaGetSymbolAddress(&p, table)); printf("%d\n", p != nullptr);
    SHOW(cudaMemcpyToSymbol(table, &v, 4, 252)); SHOW(cudaMemcpyToSymbol(table, &v, 4, 253)); SHOW(cudaGetSymbolSize(&n, &v));
    v = 4; SHOW(cudaMemcpyToSymbolAsync(factor, &v, 4, 0, cudaMemcpyHostToDevice, 0)); SHOW(cudaGetSymbolSize(&n, shared_count)); printf("%zu\n", n);
    SHOW(cudaMemcpyToSymbol(counter, &v, 4, 0, cudaMemcpyDeviceToHost));
}

static void streams() {
    cudaStream_t s, t; cudaEvent_t e, f; int calls = 0, v = 9; unsigned flags = 9; float ms = -1; unsigned long long id = 0;
    SHOW(cudaStreamCreate(&s)); SHOW(cudaStreamCreateWithPriority(&t, cudaStreamNonBlocking, -1)); SHOW(cudaStreamCreateWithFlags(&t, 55)); SHOW(cudaStreamCreate(nullptr));
    SHOW(cudaStreamGetFlags(s, &flags)); printf("%u\n", flags); SHOW(cudaStreamGetPriority(t, &v)); printf("%d\n", v); SHOW(cudaStreamGetId(s, &id));
    SHOW(cudaStreamGetDevice(s, &v)); printf("%d\n", v);
    SHOW(cudaEventCreate(&e)); SHOW(cudaEventCreateWithFlags(&f, cudaEventDisableTiming)); SHOW(cudaEventCreateWithFlags(&f, 999));
    SHOW(cudaEventQuery(e)); SHOW(cudaEventRecord(e, s)); SHOW(cudaStreamWaitEvent(t, e, 0)); SHOW(cudaEventSynchronize(e)); SHOW(cudaEventQuery(e));
    SHOW(cudaEventElapsedTime(&ms, e, e)); printf("%g\n", ms); SHOW(cudaEventElapsedTime(&ms, e, f));
    SHOW(cudaLaunchHostFunc(s, host_function, &calls)); SHOW(cudaStreamAddCallback(s, stream_callback, &calls, 0)); SHOW(cudaStreamSynchronize(s)); printf("%d\n", calls);
    SHOW(cudaLaunchHostFunc(s, nullptr, &calls)); SHOW(cudaStreamQuery(s)); SHOW(cudaStreamQuery(cudaStreamPerThread)); SHOW(cudaStreamSynchronize(cudaStreamLegacy));
    SHOW(cudaEventDestroy(e)); SHOW(cudaEventDestroy(nullptr)); SHOW(cudaStreamDestroy(t)); SHOW(cudaStreamDestroy(nullptr)); SHOW(cudaStreamDestroy(s));
}

static void launches() {
    int *a, *b, host[64], n = 64, by = 2, v = 0; size_t bytes = 0; cudaFuncAttributes at;
    for (int i = 0; i < 64; i++) host[i] = i + 1;
    cudaMalloc(&a, 256); cudaMalloc(&b, 256); cudaMemcpy(a, host, 256, cudaMemcpyHostToDevice);
    scale<<<2, 32>>>(b, a, n, by); SHOW(cudaGetLastError()); SHOW(cudaMemcpy(host, b, 256, cudaMemcpyDeviceToHost)); printf("%ld\n", sum(host, 64));
    void *args[] = {&b, &a, &n, &by};
    SHOW(cudaLaunchKernel((void *)scale, dim3(1), dim3(64), args, 0, 0)); SHOW(cudaLaunchKernel((void *)scale, dim3(0), dim3(64), args, 0, 0));
    SHOW(cudaLaunchKernel((void *)scale, dim3(1), dim3(4096), args, 0, 0)); SHOW(cudaLaunchKernel((void *)&host_function, dim3(1), dim3(1), args, 0, 0));
    SHOW(cudaLaunchKernel((void *)scale, dim3(1), dim3(64), args, 1 << 20, 0)); SHOW(cudaLaunchKernel(nullptr, dim3(1), dim3(64), args, 0, 0));
    cudaLaunchConfig_t config = {}; config.gridDim = dim3(2); config.blockDim = dim3(32); by = 5;
    SHOW(cudaLaunchKernelExC(&config, (void *)scale, args)); SHOW(cudaMemcpy(host, b, 256, cudaMemcpyDeviceToHost)); printf("%ld\n", sum(host, 64));
    SHOW(cudaFuncGetAttributes(&at, spill)); printf("%d %zu\n", at.maxThreadsPerBlock, at.sharedSizeBytes);
    SHOW(cudaFuncSetAttribute(spill, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000)); SHOW(cudaFuncSetAttribute(spill, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 30));
    scale<<<0, 32>>>(b, a, n, by); SHOW(cudaGetLastError()); scale<<<1, 2000>>>(b, a, n, by); SHOW(cudaGetLastError());
    scale<<<1, 32, 1 << 20>>>(b, a, n, by); SHOW(cudaGetLastError()); SHOW(cudaFuncSetCacheConfig(spill, cudaFuncCachePreferShared));
    SHOW(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&v, spill, 256, 1024)); printf("%d\n", v > 0); SHOW(cudaOccupancyAvailableDynamicSMemPerBlock(&bytes, spill, 1, 256)); printf("%d\n", bytes > 0);
    int grid = 0, block = 0; SHOW(cudaOccupancyMaxPotentialBlockSize(&grid, &block, spill, 0, 0)); printf("%d\n", block);
    const char *name = nullptr; SHOW(cudaFuncGetName(&name, (void *)scale)); printf("%s\n", name ? name : "none");
    SHOW(cudaFuncGetParamInfo((void *)scale, 3, &bytes, nullptr)); printf("%zu\n", bytes);
    cudaKernel_t kernel = nullptr; SHOW(cudaGetKernel(&kernel, (void *)scale)); by = 7; SHOW(cudaLaunchKernel((void *)kernel, dim3(1), dim3(64), args, 0, 0));
    SHOW(cudaMemcpy(host, b, 256, cudaMemcpyDeviceToHost)); printf("%ld\n", sum(host, 64));
    cudaFunction_t function = nullptr; SHOW(cudaGetFuncBySymbol(&function, (void *)scale)); printf("%d\n", function != nullptr);
    void *entry = nullptr; cudaDriverEntryPointQueryResult status;
    SHOW(cudaGetDriverEntryPointByVersion("cuMemAlloc", &entry, 12000, cudaEnableDefault, &status)); printf("%d %d\n", entry != nullptr, status);
    SHOW(cudaGetDriverEntryPointByVersion("cuNothing", &entry, 12000, cudaEnableDefault, &status)); printf("%d %d\n", entry != nullptr, status);
    SHOW(cudaGetDriverEntryPointByVersion("cuLibraryLoadData", &entry, 11000, cudaEnableDefault, &status)); printf("%d %d\n", entry != nullptr, status);
    cudaFree(a); cudaFree(b);
}

static void graphs() {
    cudaStream_t s; cudaGraph_t g, h; cudaGraphExec_t x; cudaGraphNode_t nodes[4], found[8]; size_t n = 8; int *a, *b, host[64], size = 64, by = 3, v = 0;
    cudaStreamCreate(&s); cudaMalloc(&a, 256); cudaMalloc(&b, 256); for (int i = 0; i < 64; i++) host[i] = i;
    cudaStreamCaptureStatus cs; SHOW(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal)); SHOW(cudaStreamIsCapturing(s, &cs)); printf("%d\n", cs);
    cudaMemcpyAsync(a, host, 256, cudaMemcpyHostToDevice, s); scale<<<1, 64, 0, s>>>(b, a, 64, 3); cudaMemcpyAsync(host, b, 256, cudaMemcpyDeviceToHost, s);
    SHOW(cudaStreamEndCapture(s, &g)); SHOW(cudaGraphGetNodes(g, found, &n)); printf("%zu\n", n);
    SHOW(cudaGraphInstantiate(&x, g, 0)); SHOW(cudaGraphLaunch(x, s)); SHOW(cudaGraphLaunch(x, s)); SHOW(cudaStreamSynchronize(s)); printf("%ld\n", sum(host, 64));
    for (size_t i = 0; i < n; i++) { cudaGraphNodeType type; SHOW(cudaGraphNodeGetType(found[i], &type)); printf("%d\n", type);
        if (type == cudaGraphNodeTypeKernel) { cudaKernelNodeParams p; SHOW(cudaGraphKernelNodeGetParams(found[i], &p)); printf("%d %u %d\n", p.func == (void *)scale, p.blockDim.x, **(int **)(p.kernelParams + 2)); }
        if (type == cudaGraphNodeTypeMemcpy) { cudaMemcpy3DParms p; SHOW(cudaGraphMemcpyNodeGetParams(found[i], &p)); printf("%zu %zu %zu\n", p.extent.width, p.extent.height, p.extent.depth); } }
    cudaGraph_t clone; SHOW(cudaGraphClone(&clone, g)); SHOW(cudaGraphNodeFindInClone(&nodes[0], found[0], clone)); SHOW(cudaGraphDestroy(clone));
    SHOW(cudaGraphCreate(&h, 0)); void *args[] = {&b, &a, &size, &by}; cudaKernelNodeParams kp = {}; kp.func = (void *)scale; kp.gridDim = dim3(1); kp.blockDim = dim3(64); kp.kernelParams = args;
    cudaMemsetParams mp = {}; mp.dst = a; mp.value = 2; mp.elementSize = 4; mp.width = 64; mp.height = 1; SHOW(cudaGraphAddMemsetNode(&nodes[0], h, nullptr, 0, &mp));
    SHOW(cudaGraphAddKernelNode(&nodes[1], h, &nodes[0], 1, &kp)); SHOW(cudaGraphAddMemcpyNode1D(&nodes[2], h, &nodes[1], 1, host, b, 256, cudaMemcpyDeviceToHost));
    cudaHostNodeParams hp = {host_function, &v}; SHOW(cudaGraphAddHostNode(&nodes[3], h, &nodes[2], 1, &hp));
    cudaGraphExec_t y; SHOW(cudaGraphInstantiateWithFlags(&y, h, 0)); SHOW(cudaGraphLaunch(y, s)); SHOW(cudaStreamSynchronize(s)); printf("%ld %d\n", sum(host, 64), v);
    by = 10; SHOW(cudaGraphExecKernelNodeSetParams(y, nodes[1], &kp)); mp.value = 6; SHOW(cudaGraphExecMemsetNodeSetParams(y, nodes[0], &mp)); SHOW(cudaGraphLaunch(y, s)); SHOW(cudaStreamSynchronize(s)); printf("%ld %d\n", sum(host, 64), v);
    by = 4; SHOW(cudaGraphKernelNodeSetParams(nodes[1], &kp)); cudaGraphExecUpdateResultInfo info; SHOW(cudaGraphExecUpdate(y, h, &info)); printf("%d\n", info.result); SHOW(cudaGraphExecUpdate(x, h, &info)); printf("%d\n", info.result);
    SHOW(cudaGraphLaunch(y, s)); SHOW(cudaStreamSynchronize(s)); printf("%ld %d\n", sum(host, 64), v);
    n = 8; SHOW(cudaGraphGetRootNodes(h, found, &n)); printf("%zu\n", n); n = 0; SHOW(cudaGraphGetEdges(h, nullptr, nullptr, nullptr, &n)); printf("%zu\n", n);
    cudaGraphNode_t empty; SHOW(cudaGraphAddEmptyNode(&empty, h, nullptr, 0)); SHOW(cudaGraphAddDependencies(h, &empty, &nodes[3], nullptr, 1)); SHOW(cudaGraphDestroyNode(empty));
    SHOW(cudaGraphExecDestroy(x)); SHOW(cudaGraphExecDestroy(y)); SHOW(cudaGraphDestroy(g)); SHOW(cudaGraphDestroy(h)); SHOW(cudaStreamEndCapture(s, &g)); SHOW(cudaStreamDestroy(s)); cudaFree(a); cudaFree(b);
}

static void arrays() {
    cudaArray_t a = nullptr; cudaChannelFormatDesc d = cudaCreateChannelDesc<float>(), back; cudaExtent e; unsigned flags; float host[32], to[32]; for (int i = 0; i < 32; i++) host[i] = i, to[i] = 0;
    SHOW(cudaMallocArray(&a, &d, 8, 4)); SHOW(cudaArrayGetInfo(&back, &e, &flags, a)); printf("%d %d %zu %zu %zu %u\n", back.x, back.f, e.width, e.height, e.depth, flags); SHOW(cudaGetChannelDesc(&back, a));
    SHOW(cudaMemcpy2DToArray(a, 0, 0, host, 32, 32, 4, cudaMemcpyHostToDevice)); SHOW(cudaMemcpy2DFromArray(to, 32, a, 0, 0, 32, 4, cudaMemcpyDeviceToHost)); printf("%d\n", memcmp(host, to, sizeof to));
    d.y = 5; cudaArray_t bad; SHOW(cudaMallocArray(&bad, &d, 8, 4)); SHOW(cudaFreeArray(a)); SHOW(cudaFreeArray(nullptr));
}

static void nodes_and_batches() {
    cudaGraph_t g; cudaGraphNode_t fill, run, back, memory; cudaGraphExec_t x; int *a, *b, host[64], n = 64, by = 2; cudaStream_t s;
    cudaMalloc(&a, 256); cudaMalloc(&b, 256); cudaStreamCreate(&s); cudaGraphCreate(&g, 0);
    cudaGraphNodeParams p = {cudaGraphNodeTypeMemset}; p.memset.dst = a; p.memset.value = 3; p.memset.elementSize = 4; p.memset.width = 64; p.memset.height = 1;
    SHOW(cudaGraphAddNode(&fill, g, nullptr, nullptr, 0, &p));
    void *args[] = {&b, &a, &n, &by}; p = {cudaGraphNodeTypeKernel}; p.kernel.func = (void *)scale; p.kernel.gridDim = dim3(1); p.kernel.blockDim = dim3(64); p.kernel.kernelParams = args;
    SHOW(cudaGraphAddNode(&run, g, &fill, nullptr, 1, &p));
    cudaGraphNodeParams c = {cudaGraphNodeTypeMemcpy}; c.memcpy.copyParams.srcPtr = make_cudaPitchedPtr(b, 256, 256, 1); c.memcpy.copyParams.dstPtr = make_cudaPitchedPtr(host, 256, 256, 1); c.memcpy.copyParams.extent = make_cudaExtent(256, 1, 1); c.memcpy.copyParams.kind = cudaMemcpyDeviceToHost;
    SHOW(cudaGraphAddNode(&back, g, &run, nullptr, 1, &c));
    cudaGraphNodeParams m = {cudaGraphNodeTypeMemAlloc}; m.alloc.poolProps.allocType = cudaMemAllocationTypePinned; m.alloc.poolProps.location = {cudaMemLocationTypeDevice, 0}; m.alloc.bytesize = 4096;
    SHOW(cudaGraphAddNode(&memory, g, nullptr, nullptr, 0, &m)); printf("%d\n", m.alloc.dptr != nullptr); SHOW(cudaGraphAddMemFreeNode(&memory, g, &memory, 1, m.alloc.dptr));
    SHOW(cudaGraphInstantiate(&x, g, 0)); SHOW(cudaGraphLaunch(x, s)); SHOW(cudaStreamSynchronize(s)); printf("%ld\n", sum(host, 64));
    by = 9; SHOW(cudaGraphExecNodeSetParams(x, run, &p)); SHOW(cudaGraphLaunch(x, s)); SHOW(cudaStreamSynchronize(s)); printf("%ld\n", sum(host, 64)); SHOW(cudaGraphAddNode(&run, g, nullptr, nullptr, 0, nullptr));
    SHOW(cudaGraphExecDestroy(x)); SHOW(cudaGraphDestroy(g));
    void *to[] = {b, b + 8}; const void *from[] = {a, a + 32}; size_t sizes[] = {16, 32}; cudaMemcpyAttributes at = {}; at.srcAccessOrder = cudaMemcpySrcAccessOrderStream; size_t first = 0;
    SHOW(cudaMemcpyBatchAsync(to, from, sizes, 2, &at, &first, 1, s)); SHOW(cudaMemcpyAsync(host, b, 256, cudaMemcpyDeviceToHost, s)); SHOW(cudaStreamSynchronize(s)); printf("%ld\n", sum(host, 64));
    cudaIpcMemHandle_t handle; SHOW(cudaIpcGetMemHandle(&handle, a)); void *opened; SHOW(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess));
    SHOW(cudaStreamDestroy(s)); cudaFree(a); cudaFree(b);
}

int main() {
    setvbuf(stdout, nullptr, _IONBF, 0);
    SHOW(cudaPeekAtLastError()); devices(); memory(); symbols(); streams(); launches(); graphs(); arrays(); nodes_and_batches();
    std::thread([] { int d = -1; SHOW(cudaGetDevice(&d)); SHOW(cudaFree(nullptr)); SHOW(cudaMalloc((void **)nullptr, 1)); }).join();
    SHOW(cudaPeekAtLastError()); SHOW(cudaMalloc((void **)nullptr, 1)); SHOW(cudaDeviceSynchronize()); SHOW(cudaDeviceReset());
    int v; SHOW(cudaMemcpyFromSymbol(&v, counter, 4)); printf("%d\n", v);
    return 0;
}
