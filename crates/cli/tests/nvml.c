/* A management library for tests. NVML_MACHINE says of which machine: "switch" has four GPUs with 18 links each to a
 * switch; "direct" has three, the first linked to the second twice and to the third once, and knows neither the speed
 * of links nor PCI Express; "lent" is that machine where the second GPU is somebody else's; "none" answers that there
 * is no driver. */
#include <stdlib.h>
#include <string.h>

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
} pci;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    int kind, answer;
    union {
        unsigned number;
        unsigned long long wide;
    } value;
} field;
typedef struct {
    unsigned long long total, free, used;
} memory;

static int began, switched, lent;
static const int direct[3][3] = {{1, 1, 2}, {0, 0, -1}, {0, -1, -1}};

int nvmlInit_v2(void) {
    const char *machine = getenv("NVML_MACHINE");
    if (!machine || !strcmp(machine, "none")) {
        return 9;
    }
    switched = !strcmp(machine, "switch");
    lent = !strcmp(machine, "lent");
    began = 1;
    return 0;
}
int nvmlShutdown(void) { return began ? 0 : 1; }
const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "Other"; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = switched ? 4 : 3;
    return began ? 0 : 1;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(size_t)(index + 1);
    return lent && index == 1 ? 4 : 0;
}
static int at(void *device) { return (int)(size_t)device - 1; }
int nvmlDeviceGetName(void *device, char *name, unsigned bytes) {
    (void)device;
    strncpy(name, "Test GPU", bytes);
    return 0;
}
int nvmlDeviceGetPciInfo_v3(void *device, pci *info) {
    info->domain = 0;
    info->bus = 0x10 + (unsigned)at(device);
    info->device = 0;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, memory *memory) {
    (void)device;
    memory->total = 64ull << 30;
    memory->free = 34ull << 30;
    memory->used = 30ull << 30;
    return 0;
}
int nvmlDeviceGetMaxPcieLinkGeneration(void *device, unsigned *generation) {
    (void)device;
    *generation = 5;
    return switched ? 0 : 3;
}
int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *lanes) {
    (void)device;
    *lanes = 16;
    return switched ? 0 : 3;
}
int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *state) {
    *state = switched ? link < 18 : link < 3 && direct[at(device)][link] >= 0;
    return link < 18 ? 0 : 2;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, pci *info) {
    info->domain = 0;
    info->bus = switched ? 0x80 : 0x10 + (unsigned)direct[at(device)][link];
    info->device = 0;
    return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, int *type) {
    (void)device;
    *type = switched ? 2 : 0;
    return link < 18 ? 0 : 2;
}
int nvmlDeviceGetFieldValues(void *device, int count, field *value) {
    (void)device;
    if (count != 1 || value->field != 90) {
        return 2;
    }
    value->answer = switched ? 0 : 3;
    value->kind = 1;
    value->value.number = 26562;
    return 0;
}
