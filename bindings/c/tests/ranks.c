/* A job of several ranks over MPI: each step every rank passes a value on and
 * changes its field; every fifth step is checkpointed. Rank VICTIM kills itself with
 * signal 9 in step STOP: "before" its checkpoint, "after" it, or "within" it, from
 * another thread a moment after it has begun. Rank 0 prints the sum of all fields at
 * the end. MPI works on a "single" thread or "multiple" ones.
 *   ranks CONFIG LEVEL STOP VICTIM MOMENT THREADS */
#include "fermata_mpi.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define CELLS 50000
#define STEPS 40

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
    static double field[CELLS];
    int64_t step = 0;
    int rank, size, i, level, stop, victim, threads, has;
    const char *moment;
    pthread_t killer;
    double given, taken, mine = 0, all = 0;
    fermata *s;
    fermata_comm comm;
    fermata_info info;
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
    FINE(fermata_init(argv[1], &comm, &s, &error));
    for (i = 0; i < CELLS; i++) {
        field[i] = rank + i * 1e-3;
    }
    FINE(fermata_protect(s, 0, &step, 1, FERMATA_INT(8), &error));
    FINE(fermata_protect(s, 1, field, CELLS, FERMATA_FLOAT(8), &error));
    info.size_of_this = sizeof info;
    FINE(fermata_get_info(s, &info, &error));
    if (info.recoverable) {
        FINE(fermata_recover(s, NULL, &error));
        FINE(fermata_get_info(s, &info, &error));
        printf("rank %d resumed at %d from level %d\n", rank, (int)step,
               (int)info.recovery_level);
    }
    while (step < STEPS) {
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
    FINE(fermata_finalize(s, 1, &error));
    fermata_mpi_close(&comm);
    if (rank == 0) {
        printf("sum %.17g\n", all);
    }
    MPI_Finalize();
    return 0;
}
