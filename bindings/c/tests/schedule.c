/* fermata_schedule.h: when a loop asks for checkpoints, and which rank does. The clock and the daemon are this test's. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "played.h"

#include "fermata_program.h"

static int asked, stand, outside;
static unsigned flags_given;
static const char *mode_given;

static int played_checkpoint(fermata_request *r, const char *mode, unsigned flags) {
    memset(r, 0, sizeof *r);
    strcpy(r->text, "played");
    asked++;
    mode_given = mode;
    flags_given = flags;
    return strcmp(mode, "unknown") ? 0 : -1;
}

static int played_state(fermata_request *r) { return r->state = stand; }

static int played_outside(void) { return outside; }

#define fermata_request_checkpoint_with played_checkpoint
#define fermata_request_state played_state
#define fermata_program_outside_ played_outside
#include "fermata_schedule.h"

/* Steps that take so long each, until a checkpoint is asked for; how many, at most 100,000. */
static long until_asked(fermata_schedule *s, double step) {
    long n;
    for (n = 1; n < 100000; n++) {
        clock_now += step;
        if (fermata_schedule_step(s))
            break;
    }
    return n;
}

static fermata_schedule of(long every, double seconds) {
    fermata_schedule s;
    memset(&s, 0, sizeof s);
    s.every = every;
    s.seconds = seconds;
    asked = outside = 0;
    stand = FERMATA_TAKEN;
    return s;
}

static void steps_are_counted(void) {
    fermata_schedule s = of(3, 0);
    CHECK(isinf(fermata_schedule_interval(&s)));
    CHECK(until_asked(&s, 1) == 3 && until_asked(&s, 1) == 3 && asked == 2);
    CHECK(!strcmp(mode_given, "auto") && flags_given == 0);
    /* One that is being taken is not waited for, and no other is begun. */
    stand = FERMATA_TAKING;
    CHECK(!fermata_schedule_step(&s) && !fermata_schedule_step(&s) && !fermata_schedule_step(&s) && asked == 2);
    stand = FERMATA_TAKEN;
    CHECK(until_asked(&s, 1) == 3);
    s.mode = "cow";
    s.flags = FERMATA_TCP_CLOSE;
    CHECK(until_asked(&s, 1) == 3 && !strcmp(mode_given, "cow") && flags_given == FERMATA_TCP_CLOSE);
    s.mode = "unknown";
    asked = 0;
    CHECK(!fermata_schedule_step(&s) && !fermata_schedule_step(&s) && !fermata_schedule_step(&s) && asked == 1 && !s.asked);
}

static void seconds_are_counted(void) {
    fermata_schedule s = of(0, 10);
    CHECK(!fermata_schedule_step(&s) && fermata_schedule_interval(&s) == 10);
    CHECK(until_asked(&s, 4) == 3);
    stand = FERMATA_FAILED;
    CHECK(until_asked(&s, 4) == 3);
    outside = 1;
    CHECK(until_asked(&s, 4) == 100000);
}

static void the_interval_follows_what_checkpoints_cost(void) {
    fermata_schedule s = of(0, 0);
    double first = sqrt(2 * 1 * 3600.0), cost = 4 + 2;
    CHECK(!fermata_schedule_step(&s) && fabs(fermata_schedule_interval(&s) - first) < 1e-9);
    CHECK(until_asked(&s, 2) == (long)ceil(first / 2));
    /* The step with the stop, and a slower one behind it. */
    stand = FERMATA_TAKING;
    clock_now += 2 + 4;
    CHECK(!fermata_schedule_step(&s));
    stand = FERMATA_TAKEN;
    clock_now += 2 + 2;
    CHECK(!fermata_schedule_step(&s));
    CHECK(fabs(fermata_schedule_interval(&s) - sqrt(2 * cost * 3600.0)) < 1e-6);
    s.gpus = 4;
    s.between_failures = 100;
    CHECK(fabs(fermata_schedule_interval(&s) - sqrt(2 * cost * 25.0)) < 1e-6);
    /* It is no shorter than a checkpoint takes: ten seconds here. */
    s.between_failures = 1;
    CHECK(fabs(fermata_schedule_interval(&s) - 10) < 1e-6);
}

static void time_without_a_program_does_not_count(void) {
    fermata_schedule s = of(0, 50);
    CHECK(until_asked(&s, 10) == 6);
    clock_now += 100000;
    stand = FERMATA_RESTORED;
    CHECK(!fermata_schedule_step(&s) && s.cost == 0);
    stand = FERMATA_TAKEN;
    CHECK(until_asked(&s, 10) == 5);
}

/* The status of this program, started with this word and these variables. */
static int started(const char *what, char *const variables[]) {
    char *const words[] = {(char *)"schedule", (char *)what, NULL};
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        execve("/proc/self/exe", words, variables);
        _exit(9);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* What `fermata_first_rank` says in a process that is started with these variables. */
static int first_rank(char *const variables[]) {
    int first = started("rank", variables);
    CHECK(first < 2);
    return first;
}

/* A launcher in a session, whose variables are those given to it. */
static int be_a_launcher(void) {
    char *token = (char *)"FERMATA_SESSION_TOKEN=one";
    char *zero[] = {token, (char *)"LOCAL_RANK=0", (char *)"RANK=8", NULL};
    char *five[] = {token, (char *)"LOCAL_RANK=5", NULL};
    char *other[] = {token, (char *)"XLOCAL_RANK=5", (char *)"PMI_RANK=3", NULL};
    char *none[] = {token, NULL};
    char *own[] = {(char *)"FERMATA_SESSION_TOKEN=two", (char *)"LOCAL_RANK=5", NULL};
    CHECK(first_rank(zero) && !first_rank(five) && !first_rank(other) && first_rank(none));
    /* A session of its own, which the launcher is not in. */
    CHECK(first_rank(own));
    return 0;
}

/* A session for each rank: what it starts has the rank's number, and asks. */
static int be_a_rank_of_its_own(void) {
    char *child[] = {(char *)"FERMATA_SESSION_TOKEN=three", (char *)"LOCAL_RANK=5", NULL};
    CHECK(first_rank(child));
    return 0;
}

int main(int count, char **words) {
    char *launcher[] = {(char *)"FERMATA_SESSION_TOKEN=one", NULL};
    char *rank[] = {(char *)"FERMATA_SESSION_TOKEN=three", (char *)"LOCAL_RANK=5", NULL};
    if (count == 2 && !strcmp(words[1], "rank"))
        return fermata_first_rank();
    if (count == 2 && !strcmp(words[1], "launcher"))
        return be_a_launcher();
    if (count == 2 && !strcmp(words[1], "own"))
        return be_a_rank_of_its_own();
    CHECK(count == 1);
    steps_are_counted();
    seconds_are_counted();
    the_interval_follows_what_checkpoints_cost();
    time_without_a_program_does_not_count();
    CHECK(started("launcher", launcher) == 0);
    CHECK(started("own", rank) == 0);
    puts("fine");
    return 0;
}
