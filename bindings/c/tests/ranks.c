/* A job of several ranks over MPI: each step every rank passes a value on and
 * changes its field; every fifth step is checkpointed. Rank VICTIM kills itself with
 * signal 9 in step STOP: "before" its checkpoint, "after" it, or "within" it, from
 * another thread a moment after it has begun. With "act" it does so before the act
 * of number STOP, whichever that is: a call of MPI, or a file or folder that is
 * made, synced, renamed or removed, by whatever thread. Rank 0 prints the sum of all
 * fields at the end, and with "act" every rank how many acts it has done. MPI works
 * on a "single" thread or "multiple" ones. With RANKS_DRIVER, a driver's library, the
 * field is managed memory, and a part of it is kept in device memory too.
 *   ranks CONFIG LEVEL STOP VICTIM MOMENT THREADS */
#define _GNU_SOURCE
#include "fermata_mpi.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* MPICH looks for messages by this function of UCX, and never rests; Open MPI yields between two looks. With more ranks than cores
 * most of the time is then spent by ranks that wait: here one that has found nothing sleeps for a moment. */
unsigned ucp_worker_progress(void *worker)
{
    /* Several threads may look at once. */
    static unsigned (*_Atomic look)(void *);
    if (!look)
        look = (unsigned (*)(void *))dlsym(RTLD_NEXT, "ucp_worker_progress");
    unsigned found = look(worker);
    if (!found)
        sched_yield();
    return found;
}

int sched_yield(void)
{
    struct timespec moment = {0, 100000};
    return nanosleep(&moment, NULL);
}

#define CELLS 50000
#define PART 20000
#define STEPS 40
/* With "act", where there is something to see in all of them. */
#define FEWER_STEPS 20

/* Acts that this rank has begun; the one that it does not live to do, or 0. */
static long acts = 0, last_act = 0;

static void act(void) {
    if (__atomic_add_fetch(&acts, 1, __ATOMIC_SEQ_CST) == last_act) {
        kill(getpid(), SIGKILL);
    }
}

/* In place of the C library's and MPI's own, for libfermata too. */
int fsync(int file) {
    act();
    return (int)syscall(SYS_fsync, file);
}
int fdatasync(int file) {
    act();
    return (int)syscall(SYS_fdatasync, file);
}
int mkdir(const char *path, mode_t mode) {
    act();
    return (int)syscall(SYS_mkdir, path, mode);
}
int rmdir(const char *path) {
    act();
    return (int)syscall(SYS_rmdir, path);
}
int rename(const char *from, const char *to) {
    act();
    return (int)syscall(SYS_rename, from, to);
}
int unlink(const char *path) {
    act();
    return (int)syscall(SYS_unlink, path);
}
int unlinkat(int folder, const char *path, int flags) {
    act();
    return (int)syscall(SYS_unlinkat, folder, path, flags);
}
int open64(const char *path, int flags, ...) {
    mode_t mode = 0;
    if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) {
        va_list more;
        va_start(more, flags);
        mode = va_arg(more, mode_t);
        va_end(more);
        act();
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
int MPI_Send(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
    act();
    return PMPI_Send(data, count, type, to, tag, comm);
}
int MPI_Recv(void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
             MPI_Status *status) {
    act();
    return PMPI_Recv(data, count, type, from, tag, comm, status);
}
int MPI_Bcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
    act();
    return PMPI_Bcast(data, count, type, root, comm);
}
int MPI_Gather(const void *mine, int count, MPI_Datatype type, void *all, int counts,
               MPI_Datatype types, int root, MPI_Comm comm) {
    act();
    return PMPI_Gather(mine, count, type, all, counts, types, root, comm);
}
int MPI_Barrier(MPI_Comm comm) {
    act();
    return PMPI_Barrier(comm);
}

/* The program's driver, loaded by name as a program does. */
static void *driver = NULL;
static unsigned long long part = 0;

#define DRIVER(name, types, arguments)                                         \
    do {                                                                       \
        int(*call) types = (int(*) types)dlsym(driver, name);                  \
        if (!call || call arguments != 0) {                                    \
            fprintf(stderr, "ranks: %s\n", name);                              \
            MPI_Abort(MPI_COMM_WORLD, 3);                                      \
        }                                                                      \
    } while (0)

/* Managed memory for the field and device memory for its part; or ordinary memory. */
static double *memory(void) {
    static double ordinary[CELLS];
    unsigned long long field = 0;
    void *context = NULL;
    const char *library = getenv("RANKS_DRIVER");
    if (!library) {
        return ordinary;
    }
    driver = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
    if (!driver) {
        fprintf(stderr, "ranks: %s\n", dlerror());
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
    DRIVER("cuInit", (unsigned), (0));
    DRIVER("cuDevicePrimaryCtxRetain", (void **, int), (&context, 0));
    DRIVER("cuCtxSetCurrent", (void *), (context));
    DRIVER("cuMemAllocManaged", (unsigned long long *, size_t, unsigned),
           (&field, CELLS * sizeof(double), 1));
    DRIVER("cuMemAlloc_v2", (unsigned long long *, size_t), (&part, PART * sizeof(double)));
    return (double *)field;
}

static void to_device(const double *field) {
    if (driver) {
        DRIVER("cuMemcpyHtoD_v2", (unsigned long long, const void *, size_t),
               (part, field, PART * sizeof(double)));
    }
}

/* What came back of the device's part is the field's. */
static void check_device(const double *field) {
    static double back[PART];
    if (driver) {
        DRIVER("cuMemcpyDtoH_v2", (void *, unsigned long long, size_t),
               (back, part, sizeof back));
        if (memcmp(back, field, sizeof back) != 0) {
            fprintf(stderr, "ranks: the device has other numbers than the host\n");
            MPI_Abort(MPI_COMM_WORLD, 4);
        }
    }
}

static fermata_error *error = NULL;
static char said[4096];

/* Also to CONFIG.said, for a launcher that ends a job may lose what its ranks have just printed. */
static void fine(fermata_status status, const char *what) {
    if (status != FERMATA_OK) {
        FILE *file = fopen(said, "a");
        fprintf(stderr, "%s: %s\n", what, fermata_error_message(error));
        if (file) {
            fprintf(file, "%s: %s\n", what, fermata_error_message(error));
            fclose(file);
        }
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}
#define FINE(call) fine((call), #call)

static void *kill_soon(void *nothing) {
    struct timespec moment = {0, 2000000};
    nanosleep(&moment, NULL);
    raise(SIGKILL);
    return nothing;
}

int main(int argc, char **argv) {
    double *field;
    int64_t step = 0;
    int rank, size, i, level, stop, victim, threads, has, steps;
    const char *moment;
    pthread_t killer;
    double given, taken, mine = 0, all = 0;
    fermata *s;
    fermata_comm comm;
    fermata_info info;
    FILE *ended;
    if (argc == 7 && strcmp(argv[5], "act") == 0) {
        const char *mpich = getenv("PMI_RANK"), *open_mpi = getenv("OMPI_COMM_WORLD_RANK");
        const char *own = mpich ? mpich : open_mpi ? open_mpi : "-1";
        last_act = atoi(own) == atoi(argv[4]) ? atol(argv[3]) : 0;
    }
    threads = argc == 7 && strcmp(argv[6], "multiple") == 0 ? MPI_THREAD_MULTIPLE
                                                            : MPI_THREAD_SINGLE;
    MPI_Init_thread(&argc, &argv, threads, &has);
    if (argc != 7 || has < threads) {
        fprintf(stderr, "ranks: wrong arguments, or no threads\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    snprintf(said, sizeof said, "%s.said", argv[1]);
    level = atoi(argv[2]);
    stop = atoi(argv[3]);
    victim = atoi(argv[4]);
    moment = argv[5];
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    fermata_mpi_open(MPI_COMM_WORLD, &comm);
    field = memory();
    FINE(fermata_init(argv[1], &comm, &s, &error));
    for (i = 0; i < CELLS; i++) {
        field[i] = rank + i * 1e-3;
    }
    FINE(fermata_protect(s, 0, &step, 1, FERMATA_INT(8), &error));
    FINE(fermata_protect(s, 1, field, CELLS, FERMATA_FLOAT(8), &error));
    if (driver) {
        FINE(fermata_protect(s, 2, (void *)(uintptr_t)part, PART, FERMATA_FLOAT(8), &error));
    }
    info.size_of_this = sizeof info;
    FINE(fermata_get_info(s, &info, &error));
    if (info.recoverable) {
        FINE(fermata_recover(s, NULL, &error));
        check_device(field);
        FINE(fermata_get_info(s, &info, &error));
        printf("rank %d resumed at %d from level %d\n", rank, (int)step,
               (int)info.recovery_level);
    }
    steps = strcmp(moment, "act") == 0 ? FEWER_STEPS : STEPS;
    while (step < steps) {
        given = field[step % CELLS];
        MPI_Sendrecv(&given, 1, MPI_DOUBLE, (rank + 1) % size, 0, &taken, 1, MPI_DOUBLE,
                     (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (i = 0; i < CELLS / 10; i++) {
            field[(i * 7 + (int)step) % CELLS] += taken * 1e-3;
        }
        step++;
        if (step == stop && rank == victim) {
            if (strcmp(moment, "before") == 0) {
                raise(SIGKILL);
            } else if (strcmp(moment, "within") == 0) {
                pthread_create(&killer, NULL, kill_soon, NULL);
            }
        }
        if (step % 5 == 0) {
            to_device(field);
            FINE(fermata_checkpoint(s, step, level, &error));
        }
        if (step == stop && rank == victim && strcmp(moment, "within") == 0) {
            /* It ends here at the latest. */
            pthread_join(killer, NULL);
        }
        if (step == stop && rank == victim && strcmp(moment, "after") == 0) {
            raise(SIGKILL);
        }
    }
    for (i = 0; i < CELLS; i++) {
        mine += field[i];
    }
    MPI_Reduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    /* From here on checkpoints go. */
    snprintf(said, sizeof said, "%s.ended", argv[1]);
    if ((ended = fopen(said, "w"))) {
        fclose(ended);
    }
    snprintf(said, sizeof said, "%s.said", argv[1]);
    FINE(fermata_finalize(s, 1, &error));
    fermata_mpi_close(&comm);
    if (strcmp(moment, "act") == 0) {
        printf("acts %d %ld\n", rank, acts);
    }
    if (rank == 0) {
        printf("sum %.17g\n", all);
    }
    MPI_Finalize();
    return 0;
}
