// Memory shared between processes: the first gives the second, which it has started by fork and exec, an allocation of two
// megabytes and more, a small one (`cuIpcGetMemHandle`), and physical memory by its descriptor (`cuMemExportToShareableHandle`), all
// through a socket. Both run kernels on all three in turns; the second opens the large one anew now and then. `--child FD`
// is how the second is started.
#include "pair.h"

#include <cuda.h>

const unsigned SMALL = 256;

// What of the driver API the runtime has no name for.
struct Driver {
    decltype(&cuMemCreate) create;
    decltype(&cuMemGetAllocationGranularity) granularity;
    decltype(&cuMemAddressReserve) reserve;
    decltype(&cuMemMap) map;
    decltype(&cuMemSetAccess) access;
    decltype(&cuMemExportToShareableHandle) give;
    decltype(&cuMemImportFromShareableHandle) take;
};

static void check_driver(CUresult code, const char *what) {
    if (code != CUDA_SUCCESS) {
        fprintf(stderr, "%s: error %d of the driver\n", what, (int)code);
        exit(1);
    }
}
#define DRIVER(call) check_driver(driver.call, #call)

static Driver find_driver() {
    Driver d;
    cudaDriverEntryPointQueryResult found;
    auto get = [&](const char *name, void *at) {
        CHECK(cudaGetDriverEntryPointByVersion(name, (void **)at, 12000, cudaEnableDefault, &found));
        require(found == cudaDriverEntryPointSuccess, name);
    };
    get("cuMemCreate", &d.create);
    get("cuMemGetAllocationGranularity", &d.granularity);
    get("cuMemAddressReserve", &d.reserve);
    get("cuMemMap", &d.map);
    get("cuMemSetAccess", &d.access);
    get("cuMemExportToShareableHandle", &d.give);
    get("cuMemImportFromShareableHandle", &d.take);
    return d;
}

static CUmemAllocationProp properties() {
    CUmemAllocationProp p = {};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return p;
}

static unsigned *map(const Driver &driver, CUmemGenericAllocationHandle memory, size_t bytes) {
    CUdeviceptr at = 0;
    DRIVER(reserve(&at, bytes, 0, 0, 0));
    DRIVER(map(at, bytes, 0, memory, 0));
    CUmemAccessDesc access = {};
    access.location = properties().location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    DRIVER(access(at, bytes, &access, 1));
    return (unsigned *)at;
}

// A word that all turns before have made.
__global__ void mark(unsigned *small, const unsigned *large, unsigned n, unsigned word) {
    unsigned i = threadIdx.x;
    small[i] = small[i] * 31 + large[(i * 977 + word) % n];
}

struct Given {
    cudaIpcMemHandle_t large;
    cudaIpcMemHandle_t small;
    uint64_t words;
    uint64_t mapped_bytes;
};

static unsigned *open_memory(const cudaIpcMemHandle_t &handle) {
    void *at = nullptr;
    CHECK(cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess));
    return (unsigned *)at;
}

// One turn of a process: everything that is shared, and its own, is changed by what is shared.
static void work(unsigned *large, unsigned *small, unsigned *mapped, unsigned *own, unsigned n, unsigned k) {
    unsigned blocks = blocks_for(n, 256);
    turn<<<blocks, 256>>>(own, large, n, k);
    turn<<<blocks, 256>>>(large, own, n, k + 7);
    turn<<<blocks, 256>>>(mapped, large, n, k + 13);
    mark<<<1, SMALL>>>(small, mapped, n, k);
    CHECK_LAUNCH();
    CHECK(cudaDeviceSynchronize());
}

static int child(int fd, const Options &o) {
    Driver driver = find_driver();
    unsigned *own = to_device(seed((size_t)o.size, 77));
    Given given;
    hear(fd, &given, sizeof given);
    unsigned n = (unsigned)given.words;
    int descriptor = get(fd);
    CUmemGenericAllocationHandle memory;
    DRIVER(take(&memory, (void *)(uintptr_t)descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(descriptor);
    unsigned *mapped = map(driver, memory, given.mapped_bytes);
    unsigned *large = open_memory(given.large);
    unsigned *small = open_memory(given.small);
    require(open_memory(given.small) == small, "memory that is open already");
    CHECK(cudaIpcCloseMemHandle(small));
    unsigned k;
    for (hear(fd, &k, sizeof k); k != 0; hear(fd, &k, sizeof k)) {
        if (k % 50 == 0) {
            CHECK(cudaIpcCloseMemHandle(large));
            large = open_memory(given.large);
        }
        work(large, small, mapped, own, n, 2 * k + 1);
        say(fd, &k, sizeof k);
    }
    Digest d;
    d.all(from_device(own, n));
    say(fd, &d.state, sizeof d.state);
    CHECK(cudaIpcCloseMemHandle(large));
    CHECK(cudaIpcCloseMemHandle(small));
    require(cudaIpcCloseMemHandle(small) != cudaSuccess, "memory that is closed");
    return 0;
}

int main(int argc, char **argv) {
    long fd = option(argc, argv, "--child", -1);
    if (fd >= 0) {
        Options o = {option(argc, argv, "--size", 0), 0, 0};
        return child((int)fd, o);
    }
    Options o = begin(argc, argv, 1 << 20, 60);
    int to;
    pid_t other = start_child("shared", o, &to);
    unsigned n = (unsigned)o.size;
    unsigned *own = to_device(seed(n, 1)), *large = to_device(seed(n, 2));
    unsigned *small = to_device(seed(SMALL, 3));
    Driver driver = find_driver();
    CUmemAllocationProp wish = properties();
    size_t unit = 0;
    DRIVER(granularity(&unit, &wish, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    size_t bytes = (n * sizeof(unsigned) + unit - 1) / unit * unit;
    CUmemGenericAllocationHandle memory;
    DRIVER(create(&memory, bytes, &wish, 0));
    unsigned *mapped = map(driver, memory, bytes);
    CHECK(cudaMemset(mapped, 5, bytes));
    CHECK(cudaDeviceSynchronize());
    Given given = {};
    given.words = n;
    given.mapped_bytes = bytes;
    CHECK(cudaIpcGetMemHandle(&given.large, large));
    CHECK(cudaIpcGetMemHandle(&given.small, small));
    void *again;
    require(cudaIpcOpenMemHandle(&again, given.large, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess, "its own memory");
    (void)cudaGetLastError();
    say(to, &given, sizeof given);
    int descriptor = -1;
    DRIVER(give(&descriptor, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    pass(to, descriptor);
    close(descriptor);
    for (long k = 1; k <= o.steps; k++) {
        unsigned word = (unsigned)k;
        work(large, small, mapped, own, n, 2 * word);
        say(to, &word, sizeof word);
        hear(to, &word, sizeof word);
        step(o, k, o.steps);
    }
    Digest d;
    d.word(end_child(to, other));
    d.all(from_device(own, n));
    d.all(from_device(large, n));
    d.all(from_device(small, SMALL));
    d.all(from_device(mapped, n));
    return finish("shared", d);
}
