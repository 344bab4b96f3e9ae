/* FTI's common calls over libfermata: a program written for FTI's C API is compiled
 * with the folder fti beside this header (-I.../include/fti), which has an fti.h, or
 * includes this header instead of fti.h, and is linked with -lfermata.
 *
 * There are: FTI_Init, FTI_Status, FTI_InitType, FTI_InitCompositeType,
 * FTI_AddScalarField, FTI_AddVectorField, FTI_InitGroup, FTI_RenameGroup,
 * FTI_Protect, FTI_Checkpoint, FTI_Snapshot, FTI_Recover, FTI_RecoverVarInit,
 * FTI_RecoverVar, FTI_RecoverVarFinalize, FTI_GetStoredSize, FTI_Finalize, the types
 * fti_id_t, FTIT_type and FTIT_H5Group, the element types FTI_CHAR to FTI_LDBE, the
 * levels FTI_L1 to FTI_L4 and FTI_L1_DCP to FTI_L4_DCP, and FTI_COMM_WORLD.
 *
 * There are not:
 *   - dedicated FTI processes (head = 1; FTI_COMM_WORLD is always the communicator
 *     given to FTI_Init);
 *   - composite types as FTI had them before 1.5: FTI_InitComplexType,
 *     FTI_AddSimpleField, FTI_AddComplexField;
 *   - HDF5: FTI_DefineDataset, FTI_DefineGlobalDataset, FTI_AddSubset,
 *     FTI_UpdateGlobalDataset, FTI_UpdateSubset, FTI_RecoverDatasetDimension,
 *     FTI_GetDatasetSpan, FTI_GetDatasetRank, FTI_L4_H5_SINGLE;
 *   - incremental checkpoints: FTI_InitICP, FTI_AddVarICP, FTI_FinalizeICP;
 *   - staging: FTI_SendFile, FTI_GetStageDir, FTI_GetStageStatus;
 *   - FTI_Realloc, FTI_BitFlip, FTI_setIDFromString, FTI_getIDFromString,
 *     FTI_GetConfig, FTI_Print, the calls for Fortran, and reading of files that FTI
 *     has written.
 *
 * Differences: all checkpoints are differential, so FTI_L4_DCP is FTI_L4; a protected
 * host pointer must be valid when it is protected, and recovery refuses variables of
 * another type or size. A composite type is stored as the bytes that it has; its
 * fields are checked when they are added, and groups have no effect. A type has at
 * most 16 MiB. A message goes to stderr when a call fails, as FTI does.
 *
 * Without MPI define FERMATA_NO_MPI; the second argument of FTI_Init is ignored then.
 */
#ifndef FERMATA_FTI_COMPAT_H
#define FERMATA_FTI_COMPAT_H

#include <stdio.h>

#include "fermata.h"
#ifdef FERMATA_NO_MPI
typedef int MPI_Comm;
#else
#include "fermata_mpi.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define FTI_SCES 0
#define FTI_DONE 1
#define FTI_NSCS (-1)
#define FTI_NREC (-2)

/* FTI's levels. Ours of an object store is not among them. */
enum {
    FTI_L1 = 1,
    FTI_L2,
    FTI_L3,
    FTI_L4,
    FTI_L1_DCP,
    FTI_L2_DCP,
    FTI_L3_DCP,
    FTI_L4_DCP
};

/* An element type: a fermata_type. FTI before 1.5 has the other name for it. */
typedef int fti_id_t;
typedef fti_id_t FTIT_type;

/* A group of FTI's HDF5 files, which are not written. */
typedef struct FTIT_H5Group {
    int id;
} FTIT_H5Group;

/* The one session of an FTI program, shared by all its source files. */
typedef struct fermata_fti {
    fermata *session;
    fermata_comm bridge;
    MPI_Comm world;
} fermata_fti;

__attribute__((weak)) fermata_fti fermata_fti_state;
#define FTI_COMM_WORLD (fermata_fti_state.world)

#define FERMATA_FTI_TYPE(class_of, type) ((fti_id_t)class_of(sizeof(type)))
#define FTI_CHAR FERMATA_FTI_TYPE(FERMATA_INT, char)
#define FTI_SHRT FERMATA_FTI_TYPE(FERMATA_INT, short)
#define FTI_INTG FERMATA_FTI_TYPE(FERMATA_INT, int)
#define FTI_LONG FERMATA_FTI_TYPE(FERMATA_INT, long)
#define FTI_UCHR FERMATA_FTI_TYPE(FERMATA_UINT, unsigned char)
#define FTI_USHT FERMATA_FTI_TYPE(FERMATA_UINT, unsigned short)
#define FTI_UINT FERMATA_FTI_TYPE(FERMATA_UINT, unsigned int)
#define FTI_ULNG FERMATA_FTI_TYPE(FERMATA_UINT, unsigned long)
#define FTI_SFLT FERMATA_FTI_TYPE(FERMATA_FLOAT, float)
#define FTI_DBLE FERMATA_FTI_TYPE(FERMATA_FLOAT, double)
#define FTI_LDBE FERMATA_FTI_TYPE(FERMATA_FLOAT, long double)

/* Turns a status into FTI's: `good` or FTI_NSCS, with a message. */
static inline int fermata_fti_done(fermata_status status, fermata_error *error, int good) {
    if (status == FERMATA_OK) {
        return good;
    }
    fprintf(stderr, "fermata: %s\n", fermata_error_message(error));
    fermata_error_free(error);
    return FTI_NSCS;
}

static inline int FTI_Init(const char *config, MPI_Comm world) {
    fermata_error *error = NULL;
    const fermata_comm *bridge = NULL;
    fermata_status status;
    fermata_fti_state.world = world;
#ifndef FERMATA_NO_MPI
    if (fermata_mpi_open(world, &fermata_fti_state.bridge) != MPI_SUCCESS) {
        return FTI_NSCS;
    }
    bridge = &fermata_fti_state.bridge;
#endif
    status = fermata_init(config, bridge, &fermata_fti_state.session, &error);
#ifndef FERMATA_NO_MPI
    /* It fails on all ranks or on none. */
    if (status != FERMATA_OK) {
        fermata_mpi_close(&fermata_fti_state.bridge);
    }
#endif
    return fermata_fti_done(status, error, FTI_SCES);
}

/* 0 in a fresh job, 1 when there is something to recover. */
static inline int FTI_Status(void) {
    fermata_info info;
    info.size_of_this = sizeof(info);
    if (fermata_get_info(fermata_fti_state.session, &info, NULL) != FERMATA_OK) {
        return 0;
    }
    return info.recoverable && !info.recovery_level && !info.checkpoints;
}

/* The largest size of a type, and what of a type is its size. */
#define FERMATA_FTI_SIZE 0xffffffu

/* FTI_NSCS with a message. */
static inline int fermata_fti_wrong(const char *call, const char *what) {
    fprintf(stderr, "fermata: %s: %s\n", call, what);
    return FTI_NSCS;
}

static inline int FTI_InitType(fti_id_t *type, int bytes) {
    if (!type || bytes <= 0 || (unsigned)bytes > FERMATA_FTI_SIZE) {
        return fermata_fti_wrong("FTI_InitType", "a type has 1 byte to 16 MiB");
    }
    *type = (fti_id_t)FERMATA_BYTES(bytes);
    return FTI_SCES;
}

/* The new type, or FTI_NSCS. */
static inline fti_id_t FTI_InitCompositeType(const char *name, size_t size,
                                             FTIT_H5Group *group) {
    (void)name;
    (void)group;
    if (size == 0 || size > FERMATA_FTI_SIZE) {
        return fermata_fti_wrong("FTI_InitCompositeType", "a type has 1 byte to 16 MiB");
    }
    return (fti_id_t)FERMATA_BYTES(size);
}

static inline int FTI_AddVectorField(fti_id_t id, const char *name, fti_id_t field,
                                     size_t offset, int dimensions, int *lengths) {
    size_t room = (size_t)id & FERMATA_FTI_SIZE;
    size_t bytes = (size_t)field & FERMATA_FTI_SIZE;
    int i;
    (void)name;
    if (id <= 0 || field <= 0 || dimensions < 0 || (dimensions > 0 && !lengths)) {
        return fermata_fti_wrong("FTI_AddVectorField", "there is no such type or dimension");
    }
    for (i = 0; i < dimensions; i++) {
        if (lengths[i] <= 0 || bytes > room / (size_t)lengths[i]) {
            return fermata_fti_wrong("FTI_AddVectorField", "the field exceeds the type");
        }
        bytes *= (size_t)lengths[i];
    }
    if (bytes > room || offset > room - bytes) {
        return fermata_fti_wrong("FTI_AddVectorField", "the field exceeds the type");
    }
    return FTI_SCES;
}

static inline int FTI_AddScalarField(fti_id_t id, const char *name, fti_id_t field,
                                     size_t offset) {
    return FTI_AddVectorField(id, name, field, offset, 0, NULL);
}

static inline int FTI_InitGroup(FTIT_H5Group *group, const char *name,
                                FTIT_H5Group *parent) {
    (void)name;
    (void)parent;
    if (group) {
        group->id = 0;
    }
    return FTI_SCES;
}

static inline int FTI_RenameGroup(FTIT_H5Group *group, const char *name) {
    (void)group;
    (void)name;
    return FTI_SCES;
}

static inline int FTI_Protect(int id, void *data, int64_t count, fti_id_t type) {
    fermata_error *error = NULL;
    fermata_status status = fermata_protect(fermata_fti_state.session, (uint32_t)id, data,
                                            (size_t)count, (fermata_type)type, &error);
    return fermata_fti_done(status, error, FTI_SCES);
}

static inline int FTI_Checkpoint(int id, int level) {
    fermata_error *error = NULL;
    int plain = level > FTI_L4 && level <= FTI_L4_DCP ? level - FTI_L4 : level;
    fermata_status status =
        fermata_checkpoint(fermata_fti_state.session, id, plain, &error);
    return fermata_fti_done(status, error, FTI_DONE);
}

/* FTI_DONE when it made a checkpoint, FTI_NREC when it was to recover and could not. */
static inline int FTI_Snapshot(void) {
    fermata_error *error = NULL;
    fermata_snapshot_kind kind = FERMATA_SNAPSHOT_NOTHING;
    int restart = FTI_Status();
    fermata_status status = fermata_snapshot(fermata_fti_state.session, &kind, &error);
    int code = fermata_fti_done(
        status, error, kind == FERMATA_SNAPSHOT_CHECKPOINT ? FTI_DONE : FTI_SCES);
    return code == FTI_NSCS && restart ? FTI_NREC : code;
}

static inline int FTI_Recover(void) {
    fermata_error *error = NULL;
    fermata_status status = fermata_recover(fermata_fti_state.session, NULL, &error);
    int code = fermata_fti_done(status, error, FTI_SCES);
    return code == FTI_SCES ? FTI_SCES : FTI_NREC;
}

/* One variable needs no more than its own call. */
static inline int FTI_RecoverVarInit(void) {
    return FTI_SCES;
}

static inline int FTI_RecoverVarFinalize(void) {
    return FTI_SCES;
}

static inline int FTI_RecoverVar(int id) {
    fermata_error *error = NULL;
    fermata_status status =
        fermata_recover_variable(fermata_fti_state.session, (uint32_t)id, NULL, &error);
    int code = fermata_fti_done(status, error, FTI_SCES);
    return code == FTI_SCES ? FTI_SCES : FTI_NREC;
}

/* Bytes of a variable in the checkpoint, 0 if there is none. */
static inline long FTI_GetStoredSize(int id) {
    uint64_t bytes = 0;
    if (fermata_stored_bytes(fermata_fti_state.session, (uint32_t)id, &bytes, NULL) !=
        FERMATA_OK) {
        return 0;
    }
    return (long)bytes;
}

/* Removes the job's checkpoints unless the configuration keeps them. */
static inline int FTI_Finalize(void) {
    fermata_error *error = NULL;
    fermata_status status = fermata_finalize(fermata_fti_state.session, 1, &error);
    fermata_fti_state.session = NULL;
#ifndef FERMATA_NO_MPI
    fermata_mpi_close(&fermata_fti_state.bridge);
#endif
    return fermata_fti_done(status, error, FTI_SCES);
}

#ifdef __cplusplus
}
#endif
#endif
