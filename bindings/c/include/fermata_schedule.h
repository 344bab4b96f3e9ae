/* When a program that works in steps checkpoints itself, in C: what `fermata.torch.Checkpointer` is in Python.
 *
 *     fermata_schedule plan = {0};                        the interval that wastes least
 *     while (working) {
 *         ...
 *         fermata_schedule_step(&plan);                   after each step; returns at once
 *     }
 *
 * With `every` a checkpoint is asked for after so many steps, with `seconds` after so long; with neither, at the interval that wastes
 * least for what checkpoints have cost this program so far (PhoenixOS, appendix A.1), for which steps are timed. A checkpoint that is
 * still being taken is waited for by none: the next one comes at the first step after it. One that fails is a line on standard error.
 * Of several ranks in one session the first asks, for an image that holds all of them: `fermata_first_rank`. A schedule belongs to one
 * thread at a time. Outside of a session nothing is asked for, and one line on standard error says so. */
#ifndef FERMATA_SCHEDULE_H
#define FERMATA_SCHEDULE_H

#include "fermata_program.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How many steps without a checkpoint say how long a step usually takes, and how many checkpoints what one costs. Medians are
 * taken, because a program also reads files, or is paused for an hour. */
#define FERMATA_SCHEDULE_STEPS_ 15
#define FERMATA_SCHEDULE_COSTS_ 5
/* The variable that all processes of a session have, and only they. */
#define FERMATA_SCHEDULE_TOKEN_ "FERMATA_SESSION_TOKEN"

/* The last values, at most `most`; `at` is where the next one goes. */
typedef struct {
    double of[FERMATA_SCHEDULE_STEPS_];
    int count, at;
} fermata_values_;

/* When to checkpoint. All zeros, and then what is to differ of the first part. */
typedef struct {
    long every;              /* steps between two checkpoints; 0: by time */
    double seconds;          /* seconds between two; 0: the interval that wastes least */
    const char *mode;        /* as of fermata_request_checkpoint; NULL: "auto" */
    unsigned flags;          /* 0 or FERMATA_TCP_CLOSE */
    double between_failures; /* mean seconds between two failures of one GPU; 0: an hour */
    int gpus;                /* GPUs of the job; 0: one */

    fermata_request request; /* the last one that was asked for */
    /* The rest belongs to the functions. */
    int begun, first, asked, is_free, has_cost;
    long steps;
    double last, step_began, took, slow, cost;
    fermata_values_ free_steps, costs;
} fermata_schedule;

static inline void fermata_values_add_(fermata_values_ *values, int most, double value) {
    values->of[values->at] = value;
    values->at = (values->at + 1) % most;
    if (values->count < most)
        values->count++;
}

/* The lower one of an even number. */
static inline double fermata_values_median_(const fermata_values_ *values) {
    double sorted[FERMATA_SCHEDULE_STEPS_];
    int n, at;
    for (n = 0; n < values->count; n++) {
        for (at = n; at > 0 && sorted[at - 1] > values->of[n]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = values->of[n];
    }
    return sorted[(values->count - 1) / 2];
}

/* Copies the value of a variable out of the environment that process `pid` was started with, as /proc shows it; 0 if it has it. A
 * value that is too long counts as none. */
static inline int fermata_schedule_variable_(long pid, const char *name, char *value, size_t most) {
    char path[64];
    size_t at = 0, length = strlen(name);
    int c, matches = 1, found = 0;
    FILE *file;
    snprintf(path, sizeof path, "/proc/%ld/environ", pid);
    file = fopen(path, "re");
    if (!file)
        return -1;
    while (!found && (c = fgetc(file)) != EOF) {
        if (c == 0) {
            at = 0, matches = 1;
        } else if (matches && at == length && c == '=') {
            size_t n = 0;
            while ((c = fgetc(file)) != EOF && c != 0 && n + 1 < most)
                value[n++] = (char)c;
            value[n] = 0;
            found = c == 0 || c == EOF;
            break;
        } else {
            matches = matches && at < length && c == (unsigned char)name[at];
            at++;
        }
    }
    fclose(file);
    return found ? 0 : -1;
}

/* The parent of a process, or 0. */
static inline long fermata_schedule_parent_(long pid) {
    char path[64], text[1024], *end;
    long parent = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    if (fermata_program_read_(path, text, sizeof text))
        return 0;
    end = strrchr(text, ')');
    return end && sscanf(end + 1, " %*c %ld", &parent) == 1 ? parent : 0;
}

/* Whether this process is the one among its session's ranks that asks for their checkpoints. A launcher within the session
 * (`fermata run -- mpirun`) starts each rank with its number. Where each rank is a session of its own (`mpirun fermata run`), the
 * session's first process has that number already, and it says nothing here. In case of doubt a process asks: an image too many
 * is better than none. */
static inline int fermata_first_rank(void) {
    /* The rank on this machine comes first: ranks of other machines belong to other sessions. */
    static const char *const names[] = {"LOCAL_RANK",           "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "RANK",
                                        "OMPI_COMM_WORLD_RANK", "PMI_RANK"};
    char session[256], other[256], rank[32], outside[32];
    long pid = (long)getpid(), top = pid;
    size_t n;
    if (fermata_schedule_variable_(pid, FERMATA_SCHEDULE_TOKEN_, session, sizeof session))
        session[0] = 0;
    while (pid > 0 && !fermata_schedule_variable_(pid, FERMATA_SCHEDULE_TOKEN_, other, sizeof other) && !strcmp(other, session)) {
        top = pid;
        pid = fermata_schedule_parent_(pid);
    }
    for (n = 0; n < sizeof names / sizeof *names; n++) {
        const char *set = getenv(names[n]);
        /* A process that has set its title has overwritten what the kernel shows of its variables. */
        if (fermata_schedule_variable_((long)getpid(), names[n], rank, sizeof rank) || !rank[0])
            snprintf(rank, sizeof rank, "%s", set ? set : "");
        if (!strcmp(rank, "0"))
            return 1;
        if (rank[0] && (fermata_schedule_variable_(top, names[n], outside, sizeof outside) || strcmp(outside, rank)))
            return 0;
    }
    return 1;
}

/* Seconds between two checkpoints now; infinite if steps are counted. */
static inline double fermata_schedule_interval(const fermata_schedule *s) {
    double failures = s->between_failures > 0 ? s->between_failures : 3600;
    double shortest = s->took > 1 ? s->took : 1, least;
    if (s->every > 0)
        return INFINITY;
    if (s->seconds > 0)
        return s->seconds;
    /* One second until the first is measured. */
    least = fermata_optimal_interval(s->has_cost ? s->cost : 1, failures / (s->gpus > 1 ? s->gpus : 1));
    return least > shortest ? least : shortest;
}

/* What this step took longer than steps without a checkpoint. */
static inline void fermata_schedule_measure_(fermata_schedule *s, double now) {
    s->is_free = s->step_began >= 0 && !s->asked;
    if (s->step_began >= 0) {
        double took = now - s->step_began;
        if (!s->asked)
            fermata_values_add_(&s->free_steps, FERMATA_SCHEDULE_STEPS_, took);
        else if (s->free_steps.count && took > fermata_values_median_(&s->free_steps))
            s->slow += took - fermata_values_median_(&s->free_steps);
    }
    s->step_began = now;
}

static inline int fermata_schedule_is_taking_(fermata_schedule *s, double now) {
    int state;
    if (!s->asked)
        return 0;
    state = fermata_request_state(&s->request);
    if (state == FERMATA_TAKING)
        return 1;
    s->asked = 0;
    if (state == FERMATA_TAKEN) {
        s->took = now - s->last;
        /* The stop and what steps lost behind it, as the program has felt both. */
        fermata_values_add_(&s->costs, FERMATA_SCHEDULE_COSTS_, s->slow);
        s->cost = fermata_values_median_(&s->costs);
        s->has_cost = 1;
    } else if (state == FERMATA_RESTORED) {
        /* The clock went on while there was no program. */
        s->last = now;
        s->step_began = -1;
    } else if (state == FERMATA_FAILED) {
        fprintf(stderr, "fermata: no checkpoint: %s\n", s->request.text);
    }
    return 0;
}

static inline int fermata_schedule_is_due_(const fermata_schedule *s, double now) {
    if (s->every > 0)
        return s->steps % s->every == 0;
    if (!(s->seconds > 0) && !s->is_free)
        return 0;
    return now - s->last >= fermata_schedule_interval(s);
}

/* To be called after each step. 1 if a checkpoint has been asked for now: `request` is its handle; else 0. */
static inline int fermata_schedule_step(fermata_schedule *s) {
    double now = fermata_program_now_();
    if (!s->begun) {
        s->begun = 1;
        s->last = now;
        s->step_began = -1;
        s->first = fermata_first_rank();
        fermata_program_outside_();
    }
    fermata_schedule_measure_(s, now);
    s->steps++;
    if (!s->first || fermata_program_outside_() || fermata_schedule_is_taking_(s, now) || !fermata_schedule_is_due_(s, now))
        return 0;
    s->last = now;
    s->slow = 0;
    if (fermata_request_checkpoint_with(&s->request, s->mode ? s->mode : "auto", s->flags)) {
        fprintf(stderr, "fermata: no checkpoint: %s\n", s->request.text);
        return 0;
    }
    s->asked = 1;
    return 1;
}

#ifdef __cplusplus
}
#endif
#endif
