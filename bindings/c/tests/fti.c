/* A program as one writes it for FTI, built with our fti.h and without MPI. Runs
 * until step `stop`, where it ends without saying goodbye; prints the sum at the end.
 *   fti CONFIG STOP */
#define FERMATA_NO_MPI
#include <fti.h>

#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct {
    int step;
    double sum;
} progress;

int main(int argc, char **argv) {
    progress p = {0, 0.0};
    double *values = (double *)malloc(10000 * sizeof(double));
    int i, stop, good = 1;
    fti_id_t progress_type, bytes_type;
    FTIT_type old_name;
    FTIT_H5Group group;
    int lengths[2] = {2, 4};
    if (argc != 3 || !values) {
        return 2;
    }
    stop = atoi(argv[2]);
    if (FTI_Init(argv[1], 0) != FTI_SCES) {
        return 3;
    }
    /* A type by its size, one by its fields, and by the name that the type had. */
    FTI_InitType(&bytes_type, sizeof(progress));
    FTI_InitGroup(&group, "group", NULL);
    progress_type = FTI_InitCompositeType("progress", sizeof(progress), &group);
    old_name = progress_type;
    if (progress_type < 0 || bytes_type != old_name ||
        FTI_AddScalarField(progress_type, "step", FTI_INTG, offsetof(progress, step)) ||
        FTI_AddScalarField(progress_type, "sum", FTI_DBLE, offsetof(progress, sum)) ||
        FTI_AddVectorField(progress_type, "bytes", FTI_CHAR, 8, 2, lengths)) {
        return 7;
    }
    /* Fields that the type has no place for, and types that there are not. */
    if (FTI_AddVectorField(progress_type, "bytes", FTI_CHAR, 9, 2, lengths) == FTI_SCES ||
        FTI_AddScalarField(progress_type, "sum", FTI_DBLE, sizeof(progress)) == FTI_SCES ||
        FTI_AddScalarField(FTI_NSCS, "sum", FTI_DBLE, 0) == FTI_SCES ||
        FTI_InitCompositeType("large", (size_t)1 << 24, NULL) != FTI_NSCS ||
        FTI_InitType(&bytes_type, 0) != FTI_NSCS) {
        return 8;
    }
    for (i = 0; i < 10000; i++) {
        values[i] = i;
    }
    FTI_Protect(0, &p, 1, progress_type);
    FTI_Protect(1, values, 10000, FTI_DBLE);
    if (FTI_Status() != 0) {
        if (FTI_GetStoredSize(1) != 10000 * (long)sizeof(double)) {
            return 4;
        }
        /* One way to recover, or the other. */
        if (stop % 2) {
            good = FTI_Recover() == FTI_SCES;
        } else {
            good = FTI_RecoverVarInit() == FTI_SCES && FTI_RecoverVar(1) == FTI_SCES &&
                   FTI_RecoverVar(0) == FTI_SCES && FTI_RecoverVarFinalize() == FTI_SCES;
        }
        if (!good) {
            return 4;
        }
        printf("restart at %d\n", p.step);
    }
    while (p.step < 100) {
        for (i = 0; i < 10000; i++) {
            values[i] = values[i] * 0.99 + p.step;
        }
        p.sum += values[p.step];
        p.step++;
        if (p.step % 10 == 0 && FTI_Checkpoint(p.step, p.step % 20 ? FTI_L1 : FTI_L4_DCP) != FTI_DONE) {
            return 5;
        }
        if (p.step == stop) {
            fflush(stdout);
            _exit(0);
        }
    }
    printf("sum %.17g\n", p.sum);
    free(values);
    return FTI_Finalize() == FTI_SCES ? 0 : 6;
}
