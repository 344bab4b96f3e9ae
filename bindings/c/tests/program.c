/* fermata_program.h with a daemon that never answers, without a free descriptor, and in forked children. The clock is this
 * test's: its waits take no time. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "played.h"

static unsigned polls;

static void pass(double seconds) {
    clock_now += seconds;
    CHECK(clock_now < 1000);
}

/* Every second wait is interrupted in its middle. */
static int played_poll(struct pollfd *ready, nfds_t count, int milliseconds) {
    (void)ready;
    (void)count;
    if (polls++ % 2 == 0) {
        pass(milliseconds / 2000.0);
        errno = EINTR;
        return -1;
    }
    pass(milliseconds / 1000.0);
    return 0;
}

static int played_nanosleep(const struct timespec *moment, struct timespec *left) {
    (void)left;
    pass((double)moment->tv_sec + (double)moment->tv_nsec / 1e9);
    return 0;
}

#define poll played_poll
#define nanosleep played_nanosleep
#include "fermata_program.h"

/* A socket from which nothing is read. */
static void be_a_silent_daemon(const char *folder) {
    struct sockaddr_un at;
    char agents[108];
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    memset(&at, 0, sizeof at);
    at.sun_family = AF_UNIX;
    CHECK(strlen(folder) < 80);
    strcpy(at.sun_path, folder);
    strcat(at.sun_path, "/program.sock");
    CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)&at, sizeof at));
    CHECK(!chmod(folder, 0700) && !chmod(at.sun_path, 0600));
    strcpy(agents, folder);
    strcat(agents, "/agents.sock");
    CHECK(!setenv("FERMATA_AGENT_SOCKET", agents, 1));
}

static void a_question_ends(fermata_request *r) {
    double begun = clock_now;
    CHECK(!fermata_request_checkpoint(r, "cow"));
    CHECK(r->state == FERMATA_FAILED && strstr(r->text, "no daemon answers"));
    CHECK(clock_now - begun < 31);
    r->state = FERMATA_TAKING;
    begun = clock_now;
    CHECK(fermata_request_wait(r, 5) == FERMATA_TAKING && clock_now - begun < 6.5);
    begun = clock_now;
    CHECK(fermata_program_ready() == -1 && clock_now - begun < 31);
}

static void what_cannot_be_read_is_no_restore(fermata_request *r, char mark[160]) {
    struct rlimit before, none;
    fermata_request other;
    CHECK(!getrlimit(RLIMIT_NOFILE, &before));
    none = before;
    none.rlim_cur = 0;
    CHECK(!setrlimit(RLIMIT_NOFILE, &none));
    CHECK(fermata_request_state(r) == FERMATA_TAKEN && !fermata_program_restored(mark));
    CHECK(!fermata_request_checkpoint(&other, "cow") && other.state == FERMATA_FAILED);
    CHECK(!setrlimit(RLIMIT_NOFILE, &before));
    CHECK(fermata_request_state(r) == FERMATA_TAKEN && !fermata_program_restored(mark));
}

/* Several, because a start is told by hundredths of a second. */
static void a_child_is_no_restore(fermata_request *r, char mark[160]) {
    int n, status;
    for (n = 0; n < 50; n++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0)
            _exit(fermata_request_state(r) != FERMATA_TAKEN || fermata_program_restored(mark));
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

/* As after a restart of the machine: its number, the last word, is another. */
static void make_another_life(char generation[160]) {
    char *last = generation + strlen(generation) - 1;
    *last = *last == '0' ? '1' : '0';
}

int main(int count, char **words) {
    fermata_request r;
    char mark[160] = "";
    CHECK(count == 2);
    be_a_silent_daemon(words[1]);
    CHECK(!fermata_program_restored(mark) && !fermata_program_restored(mark));
    a_question_ends(&r);
    r.state = FERMATA_TAKEN;
    what_cannot_be_read_is_no_restore(&r, mark);
    a_child_is_no_restore(&r, mark);
    make_another_life(mark);
    make_another_life(r.generation);
    CHECK(fermata_program_restored(mark) && !fermata_program_restored(mark));
    CHECK(fermata_request_state(&r) == FERMATA_RESTORED);
    puts("fine");
    return 0;
}
