// One way of saving device memory and getting it back, in one or more MPI ranks, as lines of JSON; compare.py runs
// all ways in turn:
//   compare WAY FOLDER MIB save|back    WAY: plain, mpiio, fermata, fermata-behind, fermata-room; fti, fti-dcp with -DWITH_FTI
// Each rank has MIB on the GPU. "save" stores all of it, then twice with a fifth of its blocks of 1 MiB changed; each
// save is one set of files, the one before is removed after it, and all are synced. "back" is a process that starts
// anew and gets it back: `sum` must be the same. "plain" copies everything to pinned memory and writes one file a
// rank; "mpiio" writes them all into one file with MPI_File_write_at_all. Times are the slowest rank's.
#include <fcntl.h>
#include <mpi.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <cuda_runtime.h>

#include "data.cuh"
#ifdef WITH_FTI
#include "fti.h"
#else
#include "fermata_mpi.h"
#endif

static const size_t BLOCK = 1 << 20, PIECE = 64 << 20;
static int rank, ranks;
static uint64_t *data;
static size_t bytes;
static char *host;
static std::string folder;

static void fine(bool ok, const char *what, const char *why = "") {
    if (!ok) {
        fprintf(stderr, "compare: %s %s\n", what, why);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}
#define CUDA(call) fine((call) == cudaSuccess, #call)

// Changes all words of a fifth of the blocks, others for each seed.
__global__ void touch(uint64_t *a, size_t n, size_t words, uint64_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        if ((i / words + seed) % 5 == 0) {
            a[i] += seed + 1;
        }
    }
}

static uint64_t digest() {
    unsigned long long *out, value = 0;
    CUDA(cudaMalloc(&out, 8));
    CUDA(cudaMemset(out, 0, 8));
    sum<<<512, 256>>>(data, bytes / 8, out);
    CUDA(cudaMemcpy(&value, out, 8, cudaMemcpyDeviceToHost));
    CUDA(cudaFree(out));
    return value;
}

static double slowest(double mine) {
    double all;
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

static const int LAST = 3;

// A way of saving. Pinned memory and the like are made when they are first needed, whose time counts.
struct Way {
    virtual void start() {}
    // Saves; returns once the program may go on.
    virtual void save(int number) = 0;
    // Waits until it is stored.
    virtual void wait() {}
    // Gets the last one back in a process that has just started.
    virtual void load() = 0;
    // Leaves what is stored.
    virtual void end() {}
    virtual ~Way() {}
};

static void pin() {
    if (!host) {
        CUDA(cudaMallocHost(&host, bytes));
    }
}

struct Plain : Way {
    static std::string path(int number) {
        return folder + "/plain-" + std::to_string(rank) + "-" + std::to_string(number);
    }
    void save(int number) override {
        pin();
        CUDA(cudaMemcpy(host, data, bytes, cudaMemcpyDeviceToHost));
        int file = open(path(number).c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
        fine(file >= 0, "open");
        for (size_t at = 0; at < bytes; at += PIECE) {
            size_t part = bytes - at < PIECE ? bytes - at : PIECE;
            fine(write(file, host + at, part) == (ssize_t)part, "write");
        }
        fine(fsync(file) == 0 && close(file) == 0, "fsync");
        unlink(path(number - 1).c_str());
    }
    void load() override {
        pin();
        int file = open(path(LAST).c_str(), O_RDONLY);
        fine(file >= 0, "open");
        for (size_t at = 0; at < bytes; at += PIECE) {
            size_t part = bytes - at < PIECE ? bytes - at : PIECE;
            fine(read(file, host + at, part) == (ssize_t)part, "read");
        }
        close(file);
        CUDA(cudaMemcpy(data, host, bytes, cudaMemcpyHostToDevice));
    }
};

struct MpiIo : Way {
    static std::string path(int number) { return folder + "/mpiio-" + std::to_string(number); }
    static MPI_File open_file(int number, int mode) {
        MPI_File file;
        fine(MPI_File_open(MPI_COMM_WORLD, path(number).c_str(), mode, MPI_INFO_NULL, &file) ==
                 MPI_SUCCESS,
             "MPI_File_open");
        return file;
    }
    void save(int number) override {
        pin();
        CUDA(cudaMemcpy(host, data, bytes, cudaMemcpyDeviceToHost));
        MPI_File file = open_file(number, MPI_MODE_CREATE | MPI_MODE_WRONLY);
        for (size_t at = 0; at < bytes; at += PIECE) {
            int part = (int)(bytes - at < PIECE ? bytes - at : PIECE);
            fine(MPI_File_write_at_all(file, (MPI_Offset)(rank * bytes + at), host + at, part,
                                       MPI_BYTE, MPI_STATUS_IGNORE) == MPI_SUCCESS,
                 "MPI_File_write_at_all");
        }
        fine(MPI_File_sync(file) == MPI_SUCCESS, "MPI_File_sync");
        MPI_File_close(&file);
        if (rank == 0) {
            unlink(path(number - 1).c_str());
        }
    }
    void load() override {
        pin();
        MPI_File file = open_file(LAST, MPI_MODE_RDONLY);
        for (size_t at = 0; at < bytes; at += PIECE) {
            int part = (int)(bytes - at < PIECE ? bytes - at : PIECE);
            fine(MPI_File_read_at_all(file, (MPI_Offset)(rank * bytes + at), host + at, part,
                                      MPI_BYTE, MPI_STATUS_IGNORE) == MPI_SUCCESS,
                 "MPI_File_read_at_all");
        }
        MPI_File_close(&file);
        CUDA(cudaMemcpy(data, host, bytes, cudaMemcpyHostToDevice));
    }
};

#ifdef WITH_FTI
struct Fti : Way {
    bool differential;
    explicit Fti(bool differential) : differential(differential) {}
    void start() override {
        fine(FTI_Init((folder + "/fti.cfg").c_str(), MPI_COMM_WORLD) == FTI_SCES, "FTI_Init");
        fine(FTI_Protect(0, data, (int64_t)(bytes / 8), FTI_ULNG) == FTI_SCES, "FTI_Protect");
    }
    void save(int number) override {
        int level = differential ? FTI_L4_DCP : FTI_L1;
        fine(FTI_Checkpoint(number, level) == FTI_DONE, "FTI_Checkpoint");
    }
    void load() override {
        fine(FTI_Status() != 0, "FTI_Status");
        fine(FTI_Recover() == FTI_SCES, "FTI_Recover");
    }
};
#else
struct Fermata : Way {
    std::string text;
    fermata *s = nullptr;
    fermata_comm comm = {};
    fermata_error *e = nullptr;
    Fermata(bool background, bool room) {
        text = "block_bytes = 1048576\nkeep_last = 1\nbackground = ";
        text += background ? "true" : "false";
        text += "\nstaging_bytes = 1073741824\n[local]\nfolders = [\"" + folder + "\"]\n";
        if (room) {
            text += "[stage]\ndevice_bytes = " + std::to_string(bytes + (64 << 20)) + "\n";
        }
    }
    void good(fermata_status status, const char *what) {
        fine(status == FERMATA_OK, what, status == FERMATA_OK ? "" : fermata_error_message(e));
    }
    void start() override {
        fermata_mpi_open(MPI_COMM_WORLD, &comm);
        good(fermata_init_text(text.c_str(), &comm, &s, &e), "fermata_init");
        good(fermata_protect(s, 0, data, bytes / 8, FERMATA_UINT(8), &e), "fermata_protect");
    }
    void save(int number) override {
        good(fermata_checkpoint(s, number, FERMATA_LOCAL, &e), "fermata_checkpoint");
    }
    void wait() override { good(fermata_wait(s, 600, &e), "fermata_wait"); }
    void load() override { good(fermata_recover(s, nullptr, &e), "fermata_recover"); }
    void end() override {
        good(fermata_finalize(s, 0, &e), "fermata_finalize");
        fermata_mpi_close(&comm);
    }
};
#endif

static Way *way_of(const std::string &name) {
#ifdef WITH_FTI
    if (name == "fti" || name == "fti-dcp") {
        return new Fti(name == "fti-dcp");
    }
#else
    if (name == "fermata" || name == "fermata-behind" || name == "fermata-room") {
        return new Fermata(name != "fermata", name == "fermata-room");
    }
#endif
    if (name == "plain") {
        return new Plain();
    }
    return name == "mpiio" ? new MpiIo() : nullptr;
}

static void report(const char *what, double held, double stored) {
    held = slowest(held);
    stored = slowest(stored);
    if (rank == 0) {
        printf("{\"what\":\"%s\",\"held_s\":%.4f,\"stored_s\":%.4f}\n", what, held, stored);
    }
}

static void save(Way *way) {
    fill<<<512, 256>>>(data, bytes / 8, (uint64_t)rank + 1);
    CUDA(cudaDeviceSynchronize());
    way->start();
    for (int number = 1; number <= LAST; number++) {
        if (number > 1) {
            touch<<<512, 256>>>(data, bytes / 8, BLOCK / 8, number);
            CUDA(cudaDeviceSynchronize());
        }
        MPI_Barrier(MPI_COMM_WORLD);
        double start = now();
        way->save(number);
        double held = now() - start;
        way->wait();
        report(number == 1 ? "full" : "changed", held, now() - start);
    }
}

int main(int argc, char **argv) {
    int threads, devices = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    fine(argc == 5, "usage: compare WAY FOLDER MIB save|back");
    folder = argv[2];
    bytes = (size_t)atol(argv[3]) << 20;
    CUDA(cudaGetDeviceCount(&devices));
    CUDA(cudaSetDevice(rank % devices));
    CUDA(cudaMalloc(&data, bytes));
    CUDA(cudaMemset(data, 0, bytes));
    CUDA(cudaDeviceSynchronize());
    Way *way = way_of(argv[1]);
    fine(way, "no such way:", argv[1]);
    if (strcmp(argv[4], "save") == 0) {
        save(way);
    } else {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = now();
        way->start();
        way->load();
        CUDA(cudaDeviceSynchronize());
        report("back", now() - start, now() - start);
    }
    unsigned long long mine = digest(), all = 0;
    MPI_Reduce(&mine, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("{\"what\":\"sum\",\"sum\":%llu}\n", all);
        fflush(stdout);
    }
    way->end();
    delete way;
    MPI_Finalize();
    return 0;
}
