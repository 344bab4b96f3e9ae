// The driver API alone, without any runtime: a PTX file loaded by path and from
// memory, a created context, functions, globals, streams, events and memory
// mapped by hand (cuMemCreate, cuMemMap).
#include "common.h"

#include <cuda.h>
#include <string>
#include <unistd.h>

static void check(CUresult status, const char *what) {
    if (status != CUDA_SUCCESS) {
        const char *name = "unknown";
        cuGetErrorName(status, &name);
        fail(what, name);
    }
}
#define CHECK(call) check((call), #call)

// The PTX file lies beside the program.
static std::string ptx_path() {
    char self[4096];
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    if (len <= 0) {
        fail("/proc/self/exe", "cannot be read");
    }
    std::string path(self, (size_t)len);
    return path.substr(0, path.rfind('/')) + "/driver_kernels.ptx";
}

static std::string read_file(const std::string &path) {
    FILE *f = fopen(path.c_str(), "rb");
    if (!f) {
        fail(path.c_str(), "cannot be opened");
    }
    std::string text;
    char part[4096];
    for (size_t got; (got = fread(part, 1, sizeof part, f)) > 0;) {
        text.append(part, got);
    }
    fclose(f);
    return text;
}

// Memory reserved and mapped by hand.
struct Mapped {
    CUdeviceptr address;
    CUmemGenericAllocationHandle handle;
    size_t size;
};

static Mapped map(CUdevice device, size_t bytes) {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    size_t grain = 0;
    CHECK(cuMemGetAllocationGranularity(&grain, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    Mapped m = {};
    m.size = (bytes + grain - 1) / grain * grain;
    CHECK(cuMemAddressReserve(&m.address, m.size, 0, 0, 0));
    CHECK(cuMemCreate(&m.handle, m.size, &prop, 0));
    CHECK(cuMemMap(m.address, m.size, 0, m.handle, 0));
    CUmemAccessDesc access = {};
    access.location = prop.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CHECK(cuMemSetAccess(m.address, m.size, &access, 1));
    return m;
}

static void unmap(const Mapped &m) {
    CHECK(cuMemUnmap(m.address, m.size));
    CHECK(cuMemRelease(m.handle));
    CHECK(cuMemAddressFree(m.address, m.size));
}

static void set_global(CUmodule module, const char *name, unsigned value) {
    CUdeviceptr address = 0;
    size_t size = 0;
    CHECK(cuModuleGetGlobal(&address, &size, module, name));
    require(size == sizeof value, "size of a device variable");
    CHECK(cuMemcpyHtoD(address, &value, sizeof value));
    // The value has left our memory, but need not have arrived (CUDA Driver API, "API synchronization behavior"), and
    // a stream that does not wait for the default one would not wait for it.
    CHECK(cuStreamSynchronize(CU_STREAM_LEGACY));
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 32768, 60);
    unsigned n = (unsigned)o.size;
    CUdevice device;
    CUcontext context;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuCtxCreate(&context, nullptr, 0, device));

    CUmodule by_path, by_text;
    CUfunction fill, rotate;
    CHECK(cuModuleLoad(&by_path, ptx_path().c_str()));
    std::string text = read_file(ptx_path());
    CHECK(cuModuleLoadData(&by_text, text.c_str()));
    CHECK(cuModuleGetFunction(&fill, by_path, "fill"));
    CHECK(cuModuleGetFunction(&rotate, by_text, "rotate"));
    set_global(by_path, "seed", 12345);

    CUdeviceptr plain;
    CUstream stream;
    CUevent event;
    Mapped mapped = map(device, n * sizeof(unsigned));
    CHECK(cuMemAlloc(&plain, n * sizeof(unsigned)));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));

    unsigned blocks = (n + 127) / 128;
    CUdeviceptr from = plain, to = mapped.address;
    void *fill_args[] = {&from, &n};
    CHECK(cuLaunchKernel(fill, blocks, 1, 1, 128, 1, 1, 0, stream, fill_args, nullptr));
    for (long k = 1; k <= o.steps; k++) {
        CHECK(cuStreamSynchronize(stream));
        set_global(by_text, "factor", 2 * (unsigned)k + 1);
        unsigned by = noise(k) % n;
        void *args[] = {&from, &to, &n, &by};
        CHECK(cuLaunchKernel(rotate, blocks, 1, 1, 128, 1, 1, 512, stream, args, nullptr));
        CHECK(cuEventRecord(event, stream));
        std::swap(from, to);
        if (k % 5 == 0) {
            CHECK(cuEventSynchronize(event));
            step(o, k, o.steps);
        }
    }
    CHECK(cuCtxSynchronize());

    std::vector<unsigned> end(n);
    CHECK(cuMemcpyDtoH(end.data(), from, n * sizeof(unsigned)));
    Digest d;
    d.all(end);
    unmap(mapped);
    CHECK(cuMemFree(plain));
    CHECK(cuModuleUnload(by_path));
    CHECK(cuModuleUnload(by_text));
    CHECK(cuCtxDestroy(context));
    return finish("driver", d);
}
