/* The ranks' bridge over MPI. Header only: it is compiled with the program, so one
 * libfermata serves every MPI.
 *
 *     fermata_comm comm;
 *     fermata_mpi_open(MPI_COMM_WORLD, &comm);
 *     fermata_init("job.toml", &comm, &session, &error);
 *     ...
 *     fermata_finalize(session, 1, &error);
 *     fermata_mpi_close(&comm);
 *     MPI_Finalize();
 *
 * MPI must be initialised; MPI_THREAD_SINGLE will do, for then the library calls it
 * only on the thread that calls the library. With MPI_THREAD_MULTIPLE it gives copies
 * to other ranks behind the program. It uses communicators of its own.
 */
#ifndef FERMATA_MPI_H
#define FERMATA_MPI_H

#include <mpi.h>
#include <stdlib.h>

#include "fermata.h"

/* Longest message handed to MPI at once, whose counts are int. */
#define FERMATA_MPI_PIECE ((size_t)1 << 30)
#define FERMATA_MPI_TAG 4711

static inline int fermata_mpi_rank(void *context, int *rank) {
    return MPI_Comm_rank(*(MPI_Comm *)context, rank);
}

static inline int fermata_mpi_size(void *context, int *size) {
    return MPI_Comm_size(*(MPI_Comm *)context, size);
}

static inline int fermata_mpi_barrier(void *context) {
    return MPI_Barrier(*(MPI_Comm *)context);
}

static inline size_t fermata_mpi_piece(size_t bytes, size_t at) {
    return bytes - at < FERMATA_MPI_PIECE ? bytes - at : FERMATA_MPI_PIECE;
}

static inline int fermata_mpi_broadcast(void *context, void *data, size_t bytes,
                                        int root) {
    size_t at;
    int code = MPI_SUCCESS;
    for (at = 0; at < bytes && code == MPI_SUCCESS; at += FERMATA_MPI_PIECE) {
        code = MPI_Bcast((char *)data + at, (int)fermata_mpi_piece(bytes, at), MPI_BYTE,
                         root, *(MPI_Comm *)context);
    }
    return code;
}

static inline int fermata_mpi_gather(void *context, const void *mine, size_t bytes,
                                     void *all, int root) {
    if (bytes > FERMATA_MPI_PIECE) {
        return MPI_ERR_COUNT;
    }
    /* Older headers lack the const. */
    return MPI_Gather((void *)mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE,
                      root, *(MPI_Comm *)context);
}

static inline int fermata_mpi_send(void *context, const void *data, size_t bytes,
                                   int to) {
    size_t at;
    int code = MPI_SUCCESS;
    for (at = 0; at < bytes && code == MPI_SUCCESS; at += FERMATA_MPI_PIECE) {
        code = MPI_Send((char *)data + at, (int)fermata_mpi_piece(bytes, at), MPI_BYTE,
                        to, FERMATA_MPI_TAG, *(MPI_Comm *)context);
    }
    return code;
}

static inline int fermata_mpi_receive(void *context, void *data, size_t bytes,
                                      int from) {
    size_t at;
    int code = MPI_SUCCESS;
    for (at = 0; at < bytes && code == MPI_SUCCESS; at += FERMATA_MPI_PIECE) {
        code = MPI_Recv((char *)data + at, (int)fermata_mpi_piece(bytes, at), MPI_BYTE,
                        from, FERMATA_MPI_TAG, *(MPI_Comm *)context, MPI_STATUS_IGNORE);
    }
    return code;
}

/* Makes `out` a bridge over the ranks of `parent`. Collective. Returns MPI's code. */
static inline int fermata_mpi_open(MPI_Comm parent, fermata_comm *out) {
    int code, threads = MPI_THREAD_SINGLE;
    MPI_Comm *own = (MPI_Comm *)malloc(2 * sizeof(MPI_Comm));
    if (!own) {
        return MPI_ERR_NO_MEM;
    }
    own[1] = MPI_COMM_NULL;
    code = MPI_Query_thread(&threads);
    if (code == MPI_SUCCESS) {
        code = MPI_Comm_dup(parent, &own[0]);
    }
    if (code == MPI_SUCCESS && threads == MPI_THREAD_MULTIPLE) {
        code = MPI_Comm_dup(parent, &own[1]);
    }
    if (code != MPI_SUCCESS) {
        free(own);
        return code;
    }
    out->size_of_this = sizeof(*out);
    out->context = own;
    out->rank = fermata_mpi_rank;
    out->size = fermata_mpi_size;
    out->barrier = fermata_mpi_barrier;
    out->broadcast = fermata_mpi_broadcast;
    out->gather = fermata_mpi_gather;
    out->send = fermata_mpi_send;
    out->receive = fermata_mpi_receive;
    out->behind = own[1] == MPI_COMM_NULL ? NULL : &own[1];
    return MPI_SUCCESS;
}

/* Frees a bridge that no session uses any more. Collective. Returns MPI's code. */
static inline int fermata_mpi_close(fermata_comm *comm) {
    MPI_Comm *own = (MPI_Comm *)comm->context;
    int code = own[1] == MPI_COMM_NULL ? MPI_SUCCESS : MPI_Comm_free(&own[1]);
    if (code == MPI_SUCCESS) {
        code = MPI_Comm_free(&own[0]);
    }
    free(own);
    comm->context = comm->behind = NULL;
    return code;
}

#endif
