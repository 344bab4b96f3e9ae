/* Fermata's application library: a program names its variables, and the library
 * checkpoints and recovers them, wherever they are: host memory, memory of a GPU,
 * managed memory. See docs/library.md.
 *
 * Conventions
 *   - Every call returns FERMATA_OK or another fermata_status. If `error` is not
 *     null and the call fails, `*error` becomes an object that says why; free it
 *     with fermata_error_free. On success `*error` is left alone.
 *   - Sizes are bytes, times are seconds.
 *   - A session may be used from several threads, one call at a time: calls wait
 *     for each other. There is no global state, and nothing is printed.
 *   - Calls marked collective must be made by all ranks in the same order.
 *   - A failed checkpoint leaves the program and older checkpoints as they were.
 *     A failed recovery leaves the variables untouched, except with
 *     FERMATA_MIXED.
 *   - The library must not be used in a child between fork and exec.
 */
#ifndef FERMATA_H
#define FERMATA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What became of a call. The numbers never change their meaning. */
typedef enum fermata_status {
    FERMATA_OK = 0,
    FERMATA_MISUSE = 1,       /* the call makes no sense: a null pointer, no such level */
    FERMATA_CONFIG = 2,       /* the configuration cannot be used; the key is named */
    FERMATA_LEVEL = 3,        /* the level is not configured, or not in this release */
    FERMATA_VARIABLE = 4,     /* a variable is not there: freed, too short, not protected */
    FERMATA_MISMATCH = 5,     /* the checkpoint does not fit the variables or the ranks */
    FERMATA_NOTHING = 6,      /* no usable checkpoint */
    FERMATA_BUSY = 7,         /* another process uses the folder */
    FERMATA_FULL = 8,         /* no space left */
    FERMATA_DAMAGED = 9,      /* a file does not hold what was written */
    FERMATA_STORAGE = 10,     /* reading or writing failed */
    FERMATA_DEVICE = 11,      /* the GPU's driver refused */
    FERMATA_CHANGED = 12,     /* memory was written while it was captured */
    FERMATA_DEADLINE = 13,    /* a step took longer than the configured deadline */
    FERMATA_MIXED = 14,       /* recovery failed half-way: do not go on with the variables */
    FERMATA_RANKS = 15,       /* message passing failed, or another rank did */
    FERMATA_FAULT = 16,       /* a fault of the library */
    FERMATA_REMOTE = 17       /* the object store refuses, or cannot be reached */
} fermata_status;

/* A session: one job in one process. */
typedef struct fermata fermata;

/* Why a call failed. */
typedef struct fermata_error fermata_error;

/* Elements of a variable: a class in the upper 8 bits, a size in bytes in the
 * lower 24. Recovery refuses another type than was stored. */
typedef uint32_t fermata_type;
#define FERMATA_BYTES(size) ((fermata_type)(size))
#define FERMATA_INT(size) ((fermata_type)(1u << 24 | (size)))
#define FERMATA_UINT(size) ((fermata_type)(2u << 24 | (size)))
#define FERMATA_FLOAT(size) ((fermata_type)(3u << 24 | (size)))
#define FERMATA_COMPLEX(size) ((fermata_type)(4u << 24 | (size)))

/* Levels of a checkpoint: what it survives. */
enum {
    FERMATA_LOCAL = 1,   /* this node's device: a process */
    FERMATA_PARTNER = 2, /* another node's device: a node */
    FERMATA_ERASURE = 3, /* a group of nodes: several nodes */
    FERMATA_SHARED = 4,  /* a folder that all ranks reach: all nodes */
    FERMATA_OBJECT = 5   /* an object store: the site */
};

/* Message passing between the ranks of a job; fermata_mpi.h makes one of MPI.
 * Each function gets `context` first and returns 0, or a number of its own.
 * They are called on the thread that calls the library. `gather` collects `bytes`
 * bytes of every rank at `root`, by rank; `all` is null elsewhere.
 * Where message passing works on several threads, `behind` is a context for them
 * with which one other thread may call the same functions at the same time: then
 * copies for other ranks are made behind the program. Else it is null. */
typedef struct fermata_comm {
    size_t size_of_this; /* sizeof(fermata_comm) */
    void *context;
    int (*rank)(void *context, int *rank);
    int (*size)(void *context, int *size);
    int (*barrier)(void *context);
    int (*broadcast)(void *context, void *data, size_t bytes, int root);
    int (*gather)(void *context, const void *mine, size_t bytes, void *all, int root);
    int (*send)(void *context, const void *data, size_t bytes, int to);
    int (*receive)(void *context, void *data, size_t bytes, int from);
    void *behind;
} fermata_comm;

/* Begins a session with the configuration in the file `path`: TOML, or FTI's
 * keys. `comm` may be null for a job of one process; what it points to is copied.
 * Checks the newest checkpoint if there is one. Collective. */
fermata_status fermata_init(const char *path, const fermata_comm *comm,
                            fermata **session, fermata_error **error);

/* The same with the configuration itself. */
fermata_status fermata_init_text(const char *text, const fermata_comm *comm,
                                 fermata **session, fermata_error **error);

/* Protects `count` elements at `address` as variable `id`, or protects it anew
 * after a reallocation. The memory must be there, and nobody may write it, from
 * the begin of every checkpoint or recovery until that call returns. */
fermata_status fermata_protect(fermata *session, uint32_t id, void *address,
                               size_t count, fermata_type type,
                               fermata_error **error);

/* Ends the protection of a variable, whose memory may be freed then. */
fermata_status fermata_unprotect(fermata *session, uint32_t id,
                                 fermata_error **error);

/* Makes a checkpoint that the program calls `id`. Returns as soon as the data is
 * captured (or, with `background = false`, written). Waits for one that is still
 * being written. Collective. */
fermata_status fermata_checkpoint(fermata *session, int64_t id, int level,
                                  fermata_error **error);

/* What fermata_snapshot did. */
typedef enum fermata_snapshot_kind {
    FERMATA_SNAPSHOT_NOTHING = 0,
    FERMATA_SNAPSHOT_CHECKPOINT = 1,
    FERMATA_SNAPSHOT_RECOVERED = 2
} fermata_snapshot_kind;

/* To be called at every good moment: recovers at the first call of a restarted
 * job, and makes a checkpoint whenever the configured interval has passed. `kind`
 * may be null. Collective. */
fermata_status fermata_snapshot(fermata *session, fermata_snapshot_kind *kind,
                                fermata_error **error);

/* Fills all protected variables from the newest sound checkpoint, whose number
 * goes to `id` unless that is null. Collective. */
fermata_status fermata_recover(fermata *session, int64_t *id,
                               fermata_error **error);

/* The same for one variable. Collective. */
fermata_status fermata_recover_variable(fermata *session, uint32_t variable,
                                        int64_t *id, fermata_error **error);

/* Fills all protected variables from this rank's own checkpoint `id`, which must
 * still be kept at the first level (`keep_last`). For programs that save every step
 * forward and read them backward. Not collective. */
fermata_status fermata_load(fermata *session, int64_t id, fermata_error **error);

/* Begins to read that checkpoint into memory behind the program, for the next
 * fermata_load of it. Not collective. */
fermata_status fermata_prefetch(fermata *session, int64_t id, fermata_error **error);

/* Bytes that a variable has in the checkpoint that was found when the session
 * began; FERMATA_NOTHING if there is none or it has no such variable. */
fermata_status fermata_stored_bytes(fermata *session, uint32_t id,
                                    uint64_t *bytes, fermata_error **error);

/* Waits at most `seconds` until what is being written is complete, and says
 * whether it failed. FERMATA_DEADLINE if it is not complete yet. */
fermata_status fermata_wait(fermata *session, double seconds,
                            fermata_error **error);

/* Where a session stands. Set size_of_this to sizeof(fermata_info) before the
 * call. Later releases may add fields at the end. */
typedef struct fermata_info {
    size_t size_of_this;
    int32_t recoverable;        /* 1 if there is a checkpoint to recover from */
    int32_t busy;               /* 1 if one is being written behind the program */
    int64_t recoverable_id;     /* its number */
    uint64_t checkpoints;       /* completed in this run */
    uint64_t failed;            /* failed in this run */
    int64_t last_id;            /* the newest completed one: its number, */
    int32_t last_level;         /* its level, 0 if there is none, */
    int32_t recovery_level;     /* level this run recovered from, 0 if it did not */
    uint64_t last_bytes;        /* bytes protected, */
    uint64_t last_written;      /* bytes that had changed and were written, */
    double last_blocked;        /* seconds for which the program was held, */
    double last_total;          /* seconds until it was complete */
    uint64_t recovery_bytes;    /* bytes recovered */
    double recovery_integrity;  /* seconds for checking every bit */
    double recovery_data;       /* seconds for filling the variables */
    double interval;            /* seconds between snapshots' checkpoints, 0 if never */
    double waste;               /* expected share of time lost at that interval */
    double last_moved;          /* seconds in which data went to wait on devices, and */
    double last_predicted;      /* what the schedule gave to what left its own GPU */
} fermata_info;

/* Tells where the session stands. */
fermata_status fermata_get_info(fermata *session, fermata_info *info,
                                fermata_error **error);

/* Ends a session and frees it, also when it returns an error: waits for what is
 * being written, and removes the job's checkpoints if `remove` is not 0 and the
 * configuration does not keep them, for a job that is done. Collective. */
fermata_status fermata_finalize(fermata *session, int remove,
                                fermata_error **error);

/* What went wrong, in one line; lives as long as the object. Null gives "". */
const char *fermata_error_message(const fermata_error *error);

/* What can be done about it, or null. */
const char *fermata_error_hint(const fermata_error *error);

/* The status that came with it. */
fermata_status fermata_error_status(const fermata_error *error);

/* Frees an error; null is fine. */
void fermata_error_free(fermata_error *error);

/* The library's release, as "0.2.0". */
const char *fermata_version(void);

#ifdef __cplusplus
}
#endif
#endif
