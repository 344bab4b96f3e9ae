/* A management library for tests, as NVIDIA's behind ours: it answers with numbers that are its own, tells of processes
 * of others, and can stand still. */
#include <stdio.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
} pci;
typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned instance, part;
} process;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    int kind, answer;
    unsigned long long value;
} field;

static char cards[2];

static int at(void *device) {
    return device == &cards[0] ? 0 : device == &cards[1] ? 1 : -1;
}
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 2;
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = index < 2 ? &cards[index] : NULL;
    return index < 2 ? 0 : 2;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = &cards[1];
    return strcmp(uuid, "GPU-test-1") ? 6 : 0;
}
int nvmlDeviceGetIndex(void *device, unsigned *index) {
    *index = (unsigned)at(device);
    return at(device) < 0 ? 2 : 0;
}
int nvmlDeviceGetName(void *device, char *name, unsigned bytes) {
    return at(device) < 0 || snprintf(name, bytes, "Test %d", at(device)) >= (int)bytes ? 7 : 0;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned bytes) {
    return snprintf(uuid, bytes, "GPU-test-%d", at(device)) >= (int)bytes ? 7 : 0;
}
int nvmlDeviceGetPciInfo_v3(void *device, pci *info) {
    memset(info, 0, sizeof *info);
    info->bus = 0x40 + (unsigned)at(device);
    snprintf(info->text, sizeof info->text, "00000000:4%d:00.0", at(device));
    return 0;
}
/* Stands still while the file that HOLD_NVML names is there, and makes another beside it. */
int nvmlDeviceGetSerial(void *device, char *serial, unsigned bytes) {
    const char *hold = getenv("HOLD_NVML");
    if (hold) {
        char mark[4096];
        snprintf(mark, sizeof mark, "%s.reached", hold);
        close(open(mark, O_CREAT | O_WRONLY, 0600));
    }
    while (hold && access(hold, F_OK) == 0) {
        usleep(10000);
    }
    return snprintf(serial, bytes, "serial-%d", at(device)) >= (int)bytes ? 7 : 0;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
    memory[0] = 1000;
    memory[1] = 600 + (unsigned)at(device);
    memory[2] = 400;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    rates[0] = 70 + (unsigned)at(device);
    rates[1] = 30;
    return 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, pci *info) {
    memset(info, 0, sizeof *info);
    info->bus = 0x80 + link + (unsigned)at(device);
    return link < 18 ? 0 : 2;
}
int nvmlDeviceGetP2PStatus(void *one, void *other, int index, int *status) {
    *status = at(one) == 0 && at(other) == 1 && index == 2 ? 0 : 5;
    return 0;
}
int nvmlDeviceGetFieldValues(void *device, int count, field *values) {
    for (int n = 0; n < count; n++) {
        values[n].answer = at(device);
        values[n].value = values[n].field * 10u;
    }
    return 0;
}
/* Of the worker, which this process does not know, and of a process of somebody else. */
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process *all) {
    if (*count < 1 || !all) {
        *count = 1;
        return 7;
    }
    *count = 1;
    all[0] = (process){.pid = 1, .used = 5 + (unsigned)at(device), .instance = ~0u, .part = ~0u};
    return 0;
}
