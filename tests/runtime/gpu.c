// A `libcuda.so.1` whose device has a number on its bus, as GPUs have.
int cuInit(unsigned flags) { return (void)flags, 0; }
int cuCtxGetCurrent(void **context) { return *context = &context, 0; }
int cuCtxGetDevice(int *device) { return *device = 0; }
int cuDeviceGetAttribute(int *value, unsigned id, int device) { return *value = id == 139 ? 0x233510de : device, 0; }
// The others must not be called.
#define NEVER(name) int name(void) { __builtin_trap(); }
NEVER(cuCtxSetCurrent)
NEVER(cuDevicePrimaryCtxRetain)
NEVER(cuModuleLoadData)
NEVER(cuModuleUnload)
NEVER(cuModuleGetFunction)
NEVER(cuLaunchKernel)
NEVER(cuMemAlloc_v2)
NEVER(cuMemFree_v2)
NEVER(cuMemcpyDtoHAsync_v2)
NEVER(cuStreamSynchronize)
