// Memory shared between processes: the first gives the second, which it has started by fork and exec, an allocation of two
// megabytes and more, a small one (`cuIpcGetMemHandle`), and physical memory by its descriptor (`cuMemExportToShareableHandle`), all
// through a socket. Both run kernels on all three in turns; the second opens the large one anew now and then. `--child FD`
// is how the second is started.
#include "common.h"

#include <cuda.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

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

// Turns words of `from` into words of `to`, from where this turn's are.
__global__ void turn(unsigned *to, const unsigned *from, unsigned n, unsigned word) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        to[i] = (to[i] ^ word) * 1103515245u + from[(i + word) % n];
    }
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

static void say(int fd, const void *data, size_t len) {
    if (write(fd, data, len) != (ssize_t)len) {
        fail("socket", "cannot be written");
    }
}

static void hear(int fd, void *data, size_t len) {
    size_t at = 0;
    while (at < len) {
        ssize_t got = read(fd, (char *)data + at, len - at);
        if (got <= 0) {
            fail("socket", "has ended");
        }
        at += (size_t)got;
    }
}

// A message of one byte, with room for a descriptor.
struct Letter {
    char byte = 'd';
    struct iovec part = {&byte, 1};
    struct msghdr message = {};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {};

    Letter() {
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
    }
    // It holds addresses of its own.
    Letter(const Letter &) = delete;
};

static void pass(int fd, int descriptor) {
    Letter letter;
    if (descriptor >= 0) {
        struct cmsghdr *head = CMSG_FIRSTHDR(&letter.message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(head), &descriptor, sizeof(int));
    }
    if (sendmsg(fd, &letter.message, 0) != 1) {
        fail("socket", "takes no descriptor");
    }
}

static int get(int fd) {
    Letter letter;
    int descriptor = -1;
    if (recvmsg(fd, &letter.message, 0) != 1 || !CMSG_FIRSTHDR(&letter.message)) {
        fail("socket", "gives no descriptor");
    }
    memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&letter.message)), sizeof(int));
    return descriptor;
}

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

static std::vector<unsigned> seed(size_t n, unsigned first) {
    std::vector<unsigned> words(n);
    for (size_t i = 0; i < n; i++) {
        words[i] = noise(i + first);
    }
    return words;
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
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) {
        fail("socketpair", "cannot be made");
    }
    fflush(stdout);
    pid_t other = fork();
    if (other == 0) {
        close(ends[0]);
        std::string number = std::to_string(ends[1]), size = std::to_string(o.size);
        execl("/proc/self/exe", "shared", "--child", number.c_str(), "--size", size.c_str(), (char *)nullptr);
        _exit(127);
    }
    close(ends[1]);
    int to = ends[0];
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
    unsigned end = 0;
    say(to, &end, sizeof end);
    uint64_t digest;
    hear(to, &digest, sizeof digest);
    int status = 0;
    require(waitpid(other, &status, 0) == other && WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's status");
    Digest d;
    d.word(digest);
    d.all(from_device(own, n));
    d.all(from_device(large, n));
    d.all(from_device(small, SMALL));
    d.all(from_device(mapped, n));
    return finish("shared", d);
}
