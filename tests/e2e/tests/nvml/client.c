/* What C libraries do with NVML: NCCL's way of finding it, all that it finds there, calls in a forked child, in threads,
 * and in destructors at exit. Prints nothing but one line for each step that is as it should be. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* Those that NCCL 2.19 to 2.30 look up; some it calls without a look at what it has found. */
static const char *const nccl[] = {
    "nvmlInit", "nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetCount", "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetUUID", "nvmlDeviceGetIndex",
    "nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v3", "nvmlErrorString",
    "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkVersion", "nvmlDeviceGetNvLinkRemotePciInfo",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkCapability", "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetP2PStatus", "nvmlDeviceGetFieldValues", "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetPlatformInfo", "nvmlSystemGetConfComputeState", "nvmlSystemGetConfComputeSettings",
    "nvmlDeviceSetCpuAffinity", "nvmlDeviceClearCpuAffinity", "nvmlDeviceGetCpuAffinity", "nvmlDeviceGetName",
    "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetTopologyCommonAncestor", "nvmlSystemGetDriverVersion"};

static void *library;

static void *found(const char *name) {
    void *symbol = dlsym(library, name);
    if (!symbol) {
        printf("missing %s\n", name);
        exit(1);
    }
    return symbol;
}

static int count(void) {
    unsigned devices = 0;
    int code = ((int (*)(unsigned *))found("nvmlDeviceGetCount_v2"))(&devices);
    return code ? -code : (int)devices;
}

static void check(const char *what, int is) {
    printf("%s %s\n", is ? "ok" : "WRONG", what);
    fflush(stdout);
}

static void *ask(void *result) {
    *(int *)result = count();
    return NULL;
}

__attribute__((destructor)) static void at_the_end(void) {
    if (library) {
        check("destructor", count() == 2);
    }
}

int main(void) {
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        printf("WRONG %s\n", dlerror());
        return 1;
    }
    for (unsigned at = 0; at < sizeof nccl / sizeof *nccl; at++) {
        found(nccl[at]);
    }
    check("symbols", 1);
    check("uninitialised", count() == -1);
    check("init", ((int (*)(void))found("nvmlInit_v2"))() == 0);
    check("count", count() == 2);

    int (*handle_of)(unsigned, void **) = (int (*)(unsigned, void **))found("nvmlDeviceGetHandleByIndex_v2");
    int (*name_of)(void *, char *, unsigned) = (int (*)(void *, char *, unsigned))found("nvmlDeviceGetName");
    void *handle = NULL;
    char name[96] = "";
    check("handle", handle_of(1, &handle) == 0 && handle);
    check("name", name_of(handle, name, sizeof name) == 0 && *name);
    check("short name", name_of(handle, name, 2) == 7);
    check("null", name_of(handle, NULL, 96) == 2 && handle_of(0, NULL) == 2);
    check("wrong handles", name_of(NULL, name, 96) == 2 && name_of((char *)handle + 1, name, 96) == 2);
    check("no such device", handle_of(2, &handle) == 2);
    check("version", ((int (*)(void *, void *))found("nvmlDeviceGetMemoryInfo_v2"))(handle, &(unsigned[16]){7}) == 25);
    check("near", ((int (*)(void *))found("nvmlDeviceSetCpuAffinity"))(handle) == 0);

    pid_t child = fork();
    if (child == 0) {
        _exit(count() == 2 ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    check("fork", status == 0);

    pthread_t threads[4];
    int results[4];
    for (int at = 0; at < 4; at++) {
        pthread_create(&threads[at], NULL, ask, &results[at]);
    }
    int right = 1;
    for (int at = 0; at < 4; at++) {
        pthread_join(threads[at], NULL);
        right &= results[at] == 2;
    }
    check("threads", right);
    return 0;
}
