/* The driver's own checkpoint of a running process, timed: the tool to beat.
 *
 * peer PID [--restore|--only-restore]: lock, checkpoint, and with --restore also restore and unlock; with --only-restore
 * nothing but these two, of a process that CRIU has brought back. Prints one JSON object with seconds per step. Uses cuCheckpointProcess* of the CUDA driver API directly.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void must(CUresult r, const char *what) {
    if (r != CUDA_SUCCESS) {
        const char *name = "?";
        cuGetErrorName(r, &name);
        fprintf(stderr, "%s: %s\n", what, name);
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: peer PID [--restore|--only-restore]\n");
        return 2;
    }
    int pid = atoi(argv[1]);
    must(cuInit(0), "cuInit");
    const char *how = argc > 2 ? argv[2] : "";
    int only = !strcmp(how, "--only-restore");
    double t0 = now();
    if (!only) must(cuCheckpointProcessLock(pid, NULL), "cuCheckpointProcessLock");
    double t1 = now();
    if (!only) must(cuCheckpointProcessCheckpoint(pid, NULL), "cuCheckpointProcessCheckpoint");
    double t2 = now(), t3 = t2, t4 = t2;
    if (only || !strcmp(how, "--restore")) {
        must(cuCheckpointProcessRestore(pid, NULL), "cuCheckpointProcessRestore");
        t3 = now();
        must(cuCheckpointProcessUnlock(pid, NULL), "cuCheckpointProcessUnlock");
        t4 = now();
    }
    printf("{\"lock_s\":%.4f,\"checkpoint_s\":%.4f,\"restore_s\":%.4f,\"unlock_s\":%.4f}\n", t1 - t0, t2 - t1,
           t3 - t2, t4 - t3);
    return 0;
}
