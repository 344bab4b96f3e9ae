/* A driver for the tests of the runtime: device memory is host memory, and the only kernel stores one
 * integer. What is missing here is missing in the driver, which the runtime has to live with. */
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef unsigned long long CUdeviceptr;

static char contexts[2][64];
static int retained[2];
static __thread void *current;
static int variable = 7;
static int libraries;
static int dead;

CUresult cuInit(unsigned flags) { return getenv("FAKE_NO_DEVICE") ? 100 : flags; }
CUresult cuDriverGetVersion(int *v) { *v = 13000; return 0; }
CUresult cuDeviceGetCount(int *n) { *n = 2; return 0; }
CUresult cuDeviceGet(int *d, int n) { *d = n; return n < 0 || n > 1 ? 101 : 0; }
CUresult cuDevicePrimaryCtxRetain(void **c, int d) { retained[d]++; *c = contexts[d]; return 0; }
CUresult cuDevicePrimaryCtxReset_v2(int d) { retained[d] = 0; return 0; }
CUresult cuCtxGetCurrent(void **c) { *c = current; return 0; }
CUresult cuCtxSetCurrent(void *c) { current = c; return 0; }
CUresult cuCtxGetDevice(int *d) { *d = current == contexts[1]; return current ? 0 : 201; }
CUresult cuCtxSynchronize(void) { return current ? 0 : 201; }
CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n) {
    if (!current) return 201;
    if (n > 1 << 30) return 2;
    *p = (CUdeviceptr)(size_t)malloc(n);
    return 0;
}
CUresult cuMemGetInfo_v2(size_t *f, size_t *t) { *f = *t = 1 << 30; return dead; }
CUresult cuMemFree_v2(CUdeviceptr p) { free((void *)(size_t)p); return 0; }
CUresult cuMemcpyHtoD_v2(CUdeviceptr d, const void *s, size_t n) { memcpy((void *)(size_t)d, s, n); return 0; }
CUresult cuMemcpyDtoH_v2(void *d, CUdeviceptr s, size_t n) { memcpy(d, (void *)(size_t)s, n); return 0; }
CUresult cuLibraryLoadData(void **l, const void *image, void *a, void *b, unsigned c, void *d, void *e, unsigned f) {
    if (memcmp(image, "\x50\xed\x55\xba", 4)) return 200;
    libraries++;
    *l = &libraries;
    return 0;
}
CUresult cuLibraryUnload(void *l) { libraries--; return 0; }
CUresult cuLibraryGetKernel(void **k, void *l, const char *name) {
    if (strcmp(name, "store")) return 500;
    *k = (void *)name;
    return 0;
}
CUresult cuLibraryGetGlobal(CUdeviceptr *p, size_t *n, void *l, const char *name) {
    if (strcmp(name, "variable")) return 500;
    *p = (CUdeviceptr)(size_t)&variable;
    *n = sizeof variable;
    return 0;
}
CUresult cuLibraryGetManaged(CUdeviceptr *p, size_t *n, void *l, const char *name) { return 500; }
CUresult cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, void *stream, void **params, void **extra) {
    int *to;
    if (!current) return 201;
    if (gx == 0) return 1;
    if (gx == 700) dead = 700;
    if (dead) return dead;
    to = *(int **)params[0];
    *to = *(int *)params[1] + (int)bx;
    return 0;
}
