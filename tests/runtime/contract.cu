// What the documentation of both APIs says of calls that cannot be, or whose answer depends on what went before: events
// and streams of other contexts, hints about managed memory, host memory, memory in stream order, each thread's own last
// error, the default streams, host functions, copies from pageable memory. contract.expected is written after the
// documentation; one line per call. (A few of these have been seen on an H200 too: they are in surface.cu.)
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <thread>
#include <unistd.h>
#include <cuda_runtime.h>
#include <cuda.h>

#define SHOW(call) do { int r_ = (call); printf("%s: %d\n", #call, r_); cudaGetLastError(); } while (0)
#define DRIVER(name, ...) do { auto f_ = (CUresult (*)(...))dlsym(driver, #name); printf("%s(%s): %d\n", #name, #__VA_ARGS__, f_ ? (int)f_(__VA_ARGS__) : -1); } while (0)

static void *driver;
__device__ int number = 3;
__global__ void store(int *to, int value) { *to = value; }
__global__ void wait_for(volatile int *flag, int *to, int value) { while (!*flag) {} *to = value; }
static void CUDART_CB append(void *text) { strcat((char *)text, "h"); }

static void events() {
    puts("-- events");
    cudaEvent_t never, quiet, first, last; cudaStream_t s; int *flag, *word; float ms = -1;
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking); cudaMallocHost(&flag, 4); cudaMalloc(&word, 4); *flag = 0;
    cudaEventCreate(&never); cudaEventCreate(&first); cudaEventCreate(&last); cudaEventCreateWithFlags(&quiet, cudaEventDisableTiming);
    cudaEventRecord(first, s); wait_for<<<1, 1, 0, s>>>(flag, word, 1); cudaEventRecord(last, s); cudaEventRecord(quiet, s);
    SHOW(cudaEventQuery(never)); SHOW(cudaEventSynchronize(never)); SHOW(cudaEventQuery(last)); SHOW(cudaStreamQuery(s));
    SHOW(cudaEventElapsedTime(&ms, first, last)); SHOW(cudaEventElapsedTime(&ms, first, never)); SHOW(cudaEventElapsedTime(&ms, first, quiet));
    SHOW(cudaEventElapsedTime(nullptr, first, last)); SHOW(cudaStreamWaitEvent(s, last, 0x10)); SHOW(cudaEventRecordWithFlags(last, s, 0x10));
    SHOW(cudaEventCreateWithFlags(&never, cudaEventInterprocess));
    *flag = 1; SHOW(cudaEventSynchronize(last)); SHOW(cudaEventElapsedTime(&ms, first, last)); printf("%d\n", ms >= 0); SHOW(cudaStreamSynchronize(s)); SHOW(cudaEventQuery(quiet));
    CUcontext before, other; CUevent theirs; CUstream their_stream;
    DRIVER(cuCtxGetCurrent, &before); DRIVER(cuCtxCreate_v2, &other, 0, 0); DRIVER(cuEventCreate, &theirs, 0); DRIVER(cuStreamCreate, &their_stream, 0);
    store<<<1, 1, 0, s>>>(word, 9); printf("%d\n", cudaGetLastError()); store<<<1, 1, 0, (cudaStream_t)their_stream>>>(word, 9); printf("%d\n", cudaGetLastError());
    DRIVER(cuEventRecord, theirs, (CUstream)s); DRIVER(cuEventRecord, (CUevent)last, their_stream); DRIVER(cuEventRecord, theirs, their_stream); DRIVER(cuEventSynchronize, theirs);
    DRIVER(cuEventElapsedTime, &ms, theirs, (CUevent)last); DRIVER(cuStreamWaitEvent, their_stream, (CUevent)last, 0); DRIVER(cuStreamSynchronize, their_stream);
    DRIVER(cuCtxDestroy_v2, other); DRIVER(cuCtxSetCurrent, before);
}

static void memory() {
    puts("-- memory");
    int *managed, *device, *late, *registered; cudaStream_t s; cudaMemLocation here = {cudaMemLocationTypeDevice, 0}, nowhere = {cudaMemLocationTypeDevice, 77}, host = {cudaMemLocationTypeHost, 0};
    cudaStreamCreate(&s); cudaMallocManaged(&managed, 8192); cudaMalloc(&device, 4096);
    SHOW(cudaMemAdvise(managed, 8192, cudaMemAdviseSetReadMostly, here)); SHOW(cudaMemAdvise(managed, 8192, (cudaMemoryAdvise)99, here)); SHOW(cudaMemAdvise(managed, 8192, cudaMemAdviseSetAccessedBy, nowhere));
    SHOW(cudaMemAdvise(managed, 8192, cudaMemAdviseSetPreferredLocation, host)); SHOW(cudaMemAdvise(device, 4096, cudaMemAdviseSetReadMostly, here));
    SHOW(cudaMemPrefetchAsync(managed, 8192, host, 0, s)); SHOW(cudaMemPrefetchAsync(managed, 8192, nowhere, 0, s)); SHOW(cudaMemPrefetchAsync(managed, 8192, here, 1, s)); SHOW(cudaMemPrefetchAsync(managed, 1 << 20, here, 0, s));
    SHOW(cudaStreamAttachMemAsync(s, managed, 0, cudaMemAttachHost)); SHOW(cudaStreamAttachMemAsync(s, managed, 0, 77)); SHOW(cudaStreamAttachMemAsync(s, device, 0, cudaMemAttachGlobal));
    posix_memalign((void **)&registered, 4096, 16384); memset(registered, 5, 16384);
    SHOW(cudaHostRegister(registered, 8192, 0x100)); SHOW(cudaHostRegister(registered, 0, 0)); SHOW(cudaHostRegister(registered, 8192, 0)); SHOW(cudaHostRegister(registered, 8192, 0)); SHOW(cudaHostRegister(registered + 1024, 8192, 0));
    SHOW(cudaHostUnregister(registered)); SHOW(cudaHostUnregister(registered)); printf("%d\n", registered[0] == 0x05050505);
    SHOW(cudaHostAlloc((void **)&late, 64, 0x100)); SHOW(cudaFreeHost(device)); SHOW(cudaFree(registered));
    SHOW(cudaMallocAsync(&late, 4096, s)); SHOW(cudaMemsetAsync(late, 1, 4096, s)); SHOW(cudaFreeAsync(late, s)); SHOW(cudaFreeAsync(late, s)); SHOW(cudaFree(late)); SHOW(cudaFreeAsync(registered, s));
    SHOW(cudaMallocAsync(&late, 4096, s)); SHOW(cudaFree(late)); SHOW(cudaMalloc(&late, 64)); SHOW(cudaFreeAsync(late, s)); SHOW(cudaMallocAsync(&late, (size_t)1 << 60, s)); SHOW(cudaStreamSynchronize(s));
    SHOW(cudaMemset(device, 1, 8192)); SHOW(cudaMemcpy(device, registered, 8192, cudaMemcpyHostToDevice)); SHOW(cudaMemcpy2D(device, 64, registered, 64, 65, 2, cudaMemcpyHostToDevice));
    cudaFree(device); cudaFree(managed); SHOW(cudaMemcpy(device, registered, 64, cudaMemcpyHostToDevice)); SHOW(cudaFree(device)); free(registered);
}

static void copies() {
    puts("-- pageable memory");
    // A copy from pageable memory has taken its bytes when the call returns, in any stream; one to it is done then.
    int *flag, *word, *device, *own = (int *)malloc(1 << 20), back = 0; cudaStream_t s; cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    cudaMallocHost(&flag, 4); cudaMalloc(&word, 4); cudaMalloc(&device, 1 << 20); *flag = 0; for (int i = 0; i < 1 << 18; i++) own[i] = i;
    cudaMemcpyAsync(device, own, 1 << 20, cudaMemcpyHostToDevice, s); memset(own, 0xff, 1 << 20); cudaMemcpyAsync(&back, device + 1000, 4, cudaMemcpyDeviceToHost, s); cudaStreamSynchronize(s); printf("%d\n", back);
    cudaMemcpyAsync(own, device, 1 << 20, cudaMemcpyDeviceToHost, s); cudaStreamSynchronize(s); printf("%d\n", own[12345]);
    *flag = 1; free(own);
}

static void last_errors() {
    puts("-- each thread's last error");
    cudaSetDevice(77); printf("%d\n", cudaPeekAtLastError());
    std::thread([] { printf("%d\n", cudaPeekAtLastError()); cudaFree((void *)0x1234); printf("%d\n", cudaPeekAtLastError()); }).join();
    int n; cudaGetDevice(&n); printf("%d\n", cudaPeekAtLastError()); printf("%d\n", cudaGetLastError()); printf("%d\n", cudaGetLastError());
    cudaEvent_t e; cudaStream_t s; int *flag, *word; cudaEventCreate(&e); cudaStreamCreate(&s); cudaMallocHost(&flag, 4); cudaMalloc(&word, 4); *flag = 0;
    wait_for<<<1, 1, 0, s>>>(flag, word, 1); cudaEventRecord(e, s); printf("%d\n", cudaEventQuery(e)); printf("%d\n", cudaPeekAtLastError()); *flag = 1; cudaStreamSynchronize(s); cudaGetLastError();
}

static void order() {
    puts("-- order");
    // The legacy default stream waits for blocking streams and they for it; others go their own way.
    int *flag, *word, v = 0; cudaStream_t blocking, free_; cudaStreamCreate(&blocking); cudaStreamCreateWithFlags(&free_, cudaStreamNonBlocking);
    cudaMallocHost(&flag, 4); cudaMalloc(&word, 4); *flag = 0;
    wait_for<<<1, 1, 0, blocking>>>(flag, word, 1); store<<<1, 1>>>(word, 2); printf("%d %d\n", cudaStreamQuery(0), cudaStreamQuery(free_)); cudaGetLastError();
    *flag = 1; cudaMemcpy(&v, word, 4, cudaMemcpyDeviceToHost); printf("%d\n", v);
    *flag = 0; wait_for<<<1, 1>>>(flag, word, 3); store<<<1, 1, 0, blocking>>>(word, 4); printf("%d %d\n", cudaStreamQuery(blocking), cudaStreamQuery(free_)); cudaGetLastError();
    *flag = 1; cudaDeviceSynchronize(); cudaMemcpy(&v, word, 4, cudaMemcpyDeviceToHost); printf("%d\n", v);
    *flag = 0; wait_for<<<1, 1, 0, free_>>>(flag, word, 5); SHOW(cudaStreamSynchronize(0)); SHOW(cudaStreamQuery(cudaStreamPerThread)); *flag = 1; cudaStreamSynchronize(free_);
    // Host functions run in the order of their stream, and what comes after them waits.
    static char text[64] = ""; *flag = 0; wait_for<<<1, 1, 0, free_>>>(flag, word, 6); for (int i = 0; i < 3; i++) cudaLaunchHostFunc(free_, append, text);
    printf("[%s]\n", text); *flag = 1; cudaStreamSynchronize(free_); printf("[%s]\n", text); SHOW(cudaStreamAddCallback(free_, nullptr, nullptr, 0)); SHOW(cudaStreamAddCallback(free_, [](cudaStream_t, cudaError_t, void *) {}, nullptr, 5));
}

static void capture() {
    puts("-- capture");
    cudaStream_t s, t; cudaGraph_t g = nullptr, g2, g3; cudaGraphExec_t x; cudaGraphExecUpdateResultInfo how; cudaEvent_t e; int *a; void *p; cudaStreamCreate(&s); cudaStreamCreate(&t); cudaMalloc(&a, 64); cudaEventCreate(&e);
    SHOW(cudaStreamBeginCapture(0, cudaStreamCaptureModeGlobal)); SHOW(cudaStreamBeginCapture(s, (cudaStreamCaptureMode)9)); SHOW(cudaStreamEndCapture(s, &g)); SHOW(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal)); SHOW(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    SHOW(cudaMalloc(&p, 16)); SHOW(cudaStreamEndCapture(s, &g)); printf("%d\n", g == nullptr);
    SHOW(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal)); SHOW(cudaStreamSynchronize(s)); SHOW(cudaStreamEndCapture(s, &g));
    SHOW(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed)); store<<<1, 1, 0, s>>>(a, 1); SHOW(cudaEventRecord(e, s)); SHOW(cudaEventQuery(e)); SHOW(cudaStreamEndCapture(s, &g));
    SHOW(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed)); store<<<1, 1, 0, s>>>(a, 1); SHOW(cudaEventRecord(e, s)); SHOW(cudaStreamWaitEvent(t, e, 0)); store<<<1, 1, 0, t>>>(a + 1, 1); SHOW(cudaStreamEndCapture(s, &g));
    SHOW(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed)); store<<<1, 1, 0, s>>>(a, 1); SHOW(cudaStreamEndCapture(s, &g)); SHOW(cudaGraphInstantiate(&x, g, 0));
    SHOW(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed)); store<<<1, 1, 0, s>>>(a, 7); SHOW(cudaStreamEndCapture(s, &g2)); SHOW(cudaGraphExecUpdate(x, g2, &how)); printf("%d\n", how.result);
    SHOW(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed)); store<<<1, 1, 0, s>>>(a, 8); store<<<1, 1, 0, s>>>(a, 9); SHOW(cudaStreamEndCapture(s, &g3)); SHOW(cudaGraphExecUpdate(x, g3, &how)); printf("%d\n", how.result);
    int v = 0; SHOW(cudaGraphLaunch(x, s)); SHOW(cudaStreamSynchronize(s)); cudaMemcpy(&v, a, 4, cudaMemcpyDeviceToHost); printf("%d\n", v);
}

static void modules() {
    puts("-- modules");
    const char *text = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .global .align 4 .u32 word = 6;\n.visible .global .attribute(.managed) .align 4 .u32 both = 8;\n.visible .entry nothing()\n{\nret;\n}\n";
    CUmodule module, of_library; CUlibrary library; CUfunction function; CUdeviceptr where, again; size_t bytes;
    DRIVER(cuModuleLoadData, &module, text); DRIVER(cuModuleGetFunction, &function, module, "nothing"); DRIVER(cuModuleGetFunction, &function, module, "other"); DRIVER(cuModuleGetGlobal_v2, &where, &bytes, module, "word"); DRIVER(cuModuleGetGlobal_v2, &where, &bytes, module, "other");
    DRIVER(cuModuleUnload, module);
    DRIVER(cuModuleLoadData, &module, text); DRIVER(cuModuleGetGlobal_v2, &again, &bytes, module, "word"); int v = 0; DRIVER(cuMemcpyDtoH_v2, &v, again, (size_t)4); printf("%d\n", v);
    DRIVER(cuModuleGetGlobal_v2, &where, &bytes, module, "both"); printf("%d\n", *(int *)where); DRIVER(cuModuleUnload, module);
    DRIVER(cuLibraryLoadData, &library, text, nullptr, nullptr, 0, nullptr, nullptr, 0); DRIVER(cuLibraryGetModule, &of_library, library); DRIVER(cuModuleUnload, of_library); DRIVER(cuModuleGetFunction, &function, of_library, "nothing"); DRIVER(cuLibraryUnload, library);
}

static void resets() {
    puts("-- reset");
    int *a, *h, v = 0, active = -1, *own; unsigned flags; void *p; cudaStream_t s; cudaEvent_t e; posix_memalign((void **)&own, 4096, 4096); own[5] = 55;
    cudaMalloc(&a, 64); cudaMallocAsync(&p, 64, 0); cudaMallocHost(&h, 64); cudaHostRegister(own, 4096, 0); cudaStreamCreate(&s); cudaEventCreate(&e); v = 30; cudaMemcpyToSymbol(number, &v, 4);
    SHOW(cudaDeviceReset()); DRIVER(cuDevicePrimaryCtxGetState, 0, &flags, &active); printf("%d\n", active);
    SHOW(cudaFree(a)); SHOW(cudaFree(p)); SHOW(cudaFreeHost(h)); SHOW(cudaHostUnregister(own)); printf("%d\n", own[5]); SHOW(cudaMemcpyFromSymbol(&v, number, 4)); printf("%d\n", v);
    SHOW(cudaMalloc(&a, 64)); store<<<1, 1>>>(a, 17); SHOW(cudaMemcpy(&v, a, 4, cudaMemcpyDeviceToHost)); printf("%d\n", v); DRIVER(cuDevicePrimaryCtxGetState, 0, &flags, &active); printf("%d\n", active);
    SHOW(cudaDeviceReset()); SHOW(cudaDeviceReset()); SHOW(cudaGetLastError());
    puts("-- reset after a fault");
    SHOW(cudaMalloc(&a, 64)); SHOW(cudaStreamCreate(&s)); cudaMallocHost(&h, 64); store<<<1, 1, 0, s>>>((int *)0x10, 1); SHOW(cudaDeviceSynchronize()); SHOW(cudaDeviceReset());
    SHOW(cudaMalloc(&a, 64)); SHOW(cudaDeviceSynchronize()); SHOW(cudaStreamCreate(&s)); SHOW(cudaDeviceReset()); SHOW(cudaMalloc(&a, 64)); SHOW(cudaGetDevice(&v)); SHOW(cudaGetDeviceCount(&v));
    CUcontext context; DRIVER(cuDevicePrimaryCtxRetain, &context, 0); DRIVER(cuDevicePrimaryCtxReset_v2, 0); DRIVER(cuDevicePrimaryCtxGetState, 0, &flags, &active); printf("%d\n", active);
}

int main() {
    setvbuf(stdout, nullptr, _IONBF, 0);
    driver = dlopen("libcuda.so.1", RTLD_NOW); cudaFree(0);
    events(); memory(); copies(); last_errors(); order(); capture(); modules(); resets();
    return 0;
}
