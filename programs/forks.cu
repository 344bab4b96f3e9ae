// Forks before the first CUDA call and in the middle of the work. The first
// child never touches CUDA (with --child-gpu 1 it does, on its own); a child of
// the second kind gets an error from every call, and its parent goes on.
#include "common.h"

#include <sys/wait.h>
#include <unistd.h>

__global__ void advance(unsigned *v, unsigned salt) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    v[i] = v[i] * 1103515245u + salt;
}

static int wait_for(pid_t child) {
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) {
        fail("fork", "a child did not end as it should");
    }
    return WEXITSTATUS(status);
}

static int early_child(bool gpu) {
    if (!gpu) {
        return (int)(noise(1) % 50) + 1;
    }
    unsigned *v = device_array<unsigned>(64), word = 0;
    CHECK(cudaMemset(v, 1, 64 * sizeof(unsigned)));
    advance<<<1, 64>>>(v, 5);
    CHECK(cudaMemcpy(&word, v + 3, sizeof word, cudaMemcpyDeviceToHost));
    return word == 0x01010101u * 1103515245u + 5 ? 77 : 78;
}

// What a child sees that was born after CUDA was used: an error, at once.
static int late_child() {
    void *p = nullptr;
    cudaError_t status = cudaMalloc(&p, 16);
    return status == cudaSuccess ? 1 : 0;
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 4096, 60);
    bool gpu = option(argc, argv, "--child-gpu", 0) != 0;
    fflush(stdout);
    pid_t early = fork();
    if (early == 0) {
        _exit(early_child(gpu));
    }

    unsigned blocks = blocks_for(o.size, 128);
    size_t n = blocks * 128;
    unsigned *v = device_array<unsigned>(n);
    CHECK(cudaMemset(v, 9, n * sizeof(unsigned)));
    int early_status = wait_for(early);
    require(early_status == (gpu ? 77 : (int)(noise(1) % 50) + 1), "status of the first child");
    for (long k = 1; k <= o.steps; k++) {
        advance<<<blocks, 128>>>(v, (unsigned)k);
        CHECK_LAUNCH();
        if (k % 20 == 0) {
            fflush(stdout);
            pid_t late = fork();
            if (late == 0) {
                _exit(late_child());
            }
            require(wait_for(late) == 0, "CUDA worked in a child born after its first use");
        }
        if (k % 5 == 0) {
            CHECK(cudaDeviceSynchronize());
            step(o, k, o.steps);
        }
    }
    Digest d;
    d.all(from_device(v, n));
    return finish("forks", d);
}
