// How long a large library takes from its load to its first kernel's end, and to its unloading, as one JSON object:
//   start FILE OFFSET
// FILE holds a fat binary at OFFSET, with PTX for a kernel `mark(unsigned *)` that stores 42. It is mapped, as the fat
// binaries of shared libraries are. The driver library is the one in the library path.
#include <cuda.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what, int status) {
    fprintf(stderr, "%s: %d\n", what, status);
    exit(1);
}
#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        int status_ = (int)(call);                                                                                     \
        if (status_ != 0) {                                                                                            \
            fail(#call, status_);                                                                                      \
        }                                                                                                              \
    } while (0)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int count, char **words) {
    if (count != 3) {
        fail("start FILE OFFSET", count);
    }
    int file = open(words[1], O_RDONLY);
    struct stat about;
    if (file < 0 || fstat(file, &about) != 0) {
        fail(words[1], file);
    }
    char *mapped = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (mapped == MAP_FAILED) {
        fail("mmap", 0);
    }
    close(file);
    CUcontext context;
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    CUdeviceptr word;
    unsigned value = 0;
    CHECK(cuInit(0));
    CHECK(cuCtxCreate(&context, NULL, 0, 0));
    CHECK(cuMemAlloc(&word, 4));
    double begin = now();
    CHECK(cuLibraryLoadData(&library, mapped + atol(words[2]), NULL, NULL, 0, NULL, NULL, 0));
    double loaded = now();
    CHECK(cuLibraryGetKernel(&kernel, library, "mark"));
    CHECK(cuKernelGetFunction(&function, kernel));
    double found = now();
    void *params[] = {&word};
    CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    CHECK(cuCtxSynchronize());
    double ran = now();
    CHECK(cuMemcpyDtoH(&value, word, 4));
    if (value != 42) {
        fail("the kernel's result", (int)value);
    }
    double before = now();
    CHECK(cuLibraryUnload(library));
    printf("{\"load_s\": %.6f, \"kernel_s\": %.6f, \"run_s\": %.6f, \"first_kernel_s\": %.6f, \"unload_s\": %.6f}\n",
           loaded - begin, found - loaded, ran - found, ran - begin, now() - before);
    return 0;
}
