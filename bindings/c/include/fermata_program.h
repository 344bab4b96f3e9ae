/* Fermata from inside a program that runs under it (`fermata run -- ./program`): the program asks for an image of itself.
 *
 *     fermata_request r;
 *     fermata_request_checkpoint(&r, "cow");             returns at once; the program runs on
 *     ...
 *     if (fermata_request_state(&r) == FERMATA_TAKEN)    r.text is the image's folder
 *
 * This header is all there is: nothing is linked, and nothing stays open between two calls, so that the program can be
 * checkpointed at any moment. Outside of a session the calls do nothing, and one line on standard error says so. What the
 * messages are: crates/control/src/program.rs. A request belongs to one thread at a time. Of several ranks in one session one
 * asks: its image holds all of them. */
#ifndef FERMATA_PROGRAM_H
#define FERMATA_PROGRAM_H

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
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a request stands. */
enum fermata_request_state_t {
    FERMATA_TAKING = 0,   /* the image is being taken */
    FERMATA_TAKEN = 1,    /* it is complete; `text` is its folder */
    FERMATA_FAILED = 2,   /* there is none, and the program goes on as before; `text` says why */
    FERMATA_RESTORED = 3, /* this process has been brought back from an image since */
    FERMATA_OUTSIDE = 4   /* this process runs under no session */
};

/* A checkpoint that was asked for. */
typedef struct {
    int state;
    char text[4096];
    char id[33];
    char generation[160];
} fermata_request;

/* The start of what a file of /proc says; -1 if it cannot be read. */
static inline int fermata_program_read_(const char *path, char *out, size_t most) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got;
    if (fd < 0)
        return -1;
    got = read(fd, out, most - 1);
    close(fd);
    out[got > 0 ? got : 0] = 0;
    return got > 0 ? 0 : -1;
}

/* This process's number, and what another life of it differs in: a restored one was started anew, in a namespace of its own,
 * and keeps its number. -1, with `out` as it was, if any of it cannot be read now, for example because too many files are
 * open. */
static inline int fermata_program_generation_(char out[160]) {
    char stat[1024], boot[64], space[64] = "";
    const char *word;
    int n;
    if (fermata_program_read_("/proc/self/stat", stat, sizeof stat) ||
        fermata_program_read_("/proc/sys/kernel/random/boot_id", boot, sizeof boot) ||
        readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0)
        return -1;
    /* The 20th word behind the name is the time of the start. */
    word = strrchr(stat, ')');
    word = word ? word + 1 : NULL;
    for (n = 0; n < 19 && word; n++)
        word = strchr(word + 1, ' ');
    if (!word)
        return -1;
    snprintf(out, 160, "%ld %s %.*s %.36s", (long)getpid(), space, (int)strcspn(word + 1, " "), word + 1, boot);
    return 0;
}

/* Whether this is another life of the process of `before`; -1 if that cannot be told now. In a forked child, which was
 * started later than its parent, `before` becomes the child's. */
static inline int fermata_program_differs_(char before[160]) {
    char now[160];
    if (fermata_program_generation_(now))
        return -1;
    if (strtol(before, NULL, 10) != (long)getpid())
        memcpy(before, now, sizeof now);
    return strcmp(now, before) != 0;
}

/* Where the daemon listens: the one that has restored this program, if one has, else the one that has started it. */
static inline int fermata_program_socket_(char out[108]) {
    char line[8192], *word = line, *slash;
    const char *agents = getenv("FERMATA_AGENT_SOCKET");
    int fd = open("/proc/1/cmdline", O_RDONLY | O_CLOEXEC), n;
    ssize_t got = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
    if (fd >= 0)
        close(fd);
    line[got > 0 ? got : 0] = 0;
    for (n = 0; n < 3 && word < line + got; n++) {
        if (n == 1 && strcmp(word, "__init"))
            break;
        word += strlen(word) + 1;
    }
    if (n == 3 && word < line + got && word[0] == '/')
        agents = word;
    if (!agents || strlen(agents) >= 108 || !strchr(agents, '/'))
        return -1;
    strcpy(out, agents);
    slash = strrchr(out, '/');
    if (slash - out + sizeof "/program.sock" > 108)
        return -1;
    strcpy(slash, "/program.sock");
    return 0;
}

/* Whether the socket and its folder are this user's or root's, and nobody else may write to them. */
static inline int fermata_program_trusted_(const char *path) {
    char folder[108];
    struct stat found;
    int turn;
    strcpy(folder, path);
    *strrchr(folder, '/') = 0;
    for (turn = 0; turn < 2; turn++) {
        if (lstat(turn ? path : folder, &found))
            return -errno;
        if ((turn ? !S_ISSOCK(found.st_mode) : !S_ISDIR(found.st_mode)) || (found.st_mode & 022) ||
            (found.st_uid && found.st_uid != geteuid()))
            return -EPERM;
    }
    return 0;
}

/* Sends a question with the end of a pipe; 0 or -errno. */
static inline int fermata_program_send_(const char *path, const char *question, int answers) {
    struct sockaddr_un to;
    struct iovec piece;
    struct msghdr message;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), status;
    if (fd < 0)
        return -errno;
    memset(&to, 0, sizeof to);
    memset(&message, 0, sizeof message);
    memset(&control, 0, sizeof control);
    to.sun_family = AF_UNIX;
    strcpy(to.sun_path, path);
    piece.iov_base = (void *)question;
    piece.iov_len = strlen(question);
    message.msg_name = &to;
    message.msg_namelen = sizeof to;
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.room;
    message.msg_controllen = sizeof control.room;
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.header), &answers, sizeof(int));
    status = sendmsg(fd, &message, MSG_NOSIGNAL) < 0 ? -errno : 0;
    close(fd);
    return status;
}

/* For how many seconds a question is asked: a daemon that was killed is followed by the next one. */
#define FERMATA_PROGRAM_LIMIT_ 30.0

/* Now, in seconds of the monotonic clock. */
static inline double fermata_program_now_(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* The seconds that a wait for at most `most` has taken since `begun`. What goes beyond that does not count: the program was
 * stopped for its image, paused, or restored. */
static inline double fermata_program_waited_(double most, double begun) {
    double took = fermata_program_now_() - begun;
    return took < 0 ? 0 : took > most ? most : took;
}

/* One attempt: the length of the answer, 0 if it must be asked again, or -errno. It waits for at most 15 of the seconds that
 * are `left`, and takes off what it has waited. */
static inline long fermata_program_once_(const char *path, const char *question, char answer[4097], double *left) {
    int ends[2], status = fermata_program_trusted_(path);
    long length = 0;
    double kept = *left > 15 ? *left - 15 : 0;
    if (status)
        return status;
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
        return -errno;
    status = fermata_program_send_(path, question, ends[1]);
    close(ends[1]);
    while (!status && length < 4096) {
        struct pollfd ready = {ends[0], POLLIN, 0};
        ssize_t got;
        double most = *left > kept ? *left - kept : 0, begun = fermata_program_now_();
        int found = poll(&ready, 1, (int)(most * 1000) + (most > 0)), interrupted = found < 0 && errno == EINTR;
        *left -= fermata_program_waited_(most, begun);
        if (interrupted && most > 0)
            continue;
        if (found <= 0)
            break;
        got = read(ends[0], answer + length, (size_t)(4096 - length));
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (got <= 0)
            break;
        length += got;
    }
    close(ends[0]);
    answer[length] = 0;
    return status ? status : length;
}

/* The answer to a question, without its last newline; -1 if it cannot be asked, -2 if none comes within `left` seconds. */
static inline int fermata_program_ask_(const char *about, double left, char answer[4097]) {
    char path[108], question[1024];
    const char *token = getenv("FERMATA_SESSION_TOKEN");
    for (;;) {
        double begun;
        struct timespec moment = {0, 20 * 1000 * 1000};
        long length;
        if (fermata_program_socket_(path))
            return -1;
        snprintf(question, sizeof question, "fermata 1\n%.128s\n%.512s\n", token ? token : "", about);
        length = fermata_program_once_(path, question, answer, &left);
        if (length > 0) {
            if (answer[length - 1] == '\n')
                answer[length - 1] = 0;
            return 0;
        }
        if (length == -EPERM || length == -EACCES)
            return -1;
        if (left <= 0)
            return -2;
        begun = fermata_program_now_();
        nanosleep(&moment, NULL);
        left -= fermata_program_waited_(0.02, begun);
    }
}

static inline int fermata_program_outside_(void) {
    static int said;
    char path[108];
    if (!fermata_program_socket_(path))
        return 0;
    if (!said) {
        said = 1;
        fputs("fermata: this process runs under no session, so checkpoints do nothing; start it with `fermata run`\n",
              stderr);
    }
    return 1;
}

static inline int fermata_request_ask_(fermata_request *r, const char *about, double seconds) {
    char answer[4097], *rest;
    int asked = fermata_program_ask_(about, seconds, answer), differs = fermata_program_differs_(r->generation);
    if (differs > 0)
        return r->state = FERMATA_RESTORED;
    /* Where the caller gave it less time, the next look asks again. */
    if (asked == -2 && seconds < FERMATA_PROGRAM_LIMIT_)
        return r->state;
    if (asked)
        strcpy(answer, "failed\nno daemon answers");
    else if (differs < 0)
        /* A daemon that has restored this process would not know the request: the next look tells. */
        return r->state;
    rest = strchr(answer, '\n');
    if (!strncmp(answer, "taking", 6))
        return r->state = FERMATA_TAKING;
    r->state = !strncmp(answer, "taken", 5) ? FERMATA_TAKEN : FERMATA_FAILED;
    snprintf(r->text, sizeof r->text, "%s", rest ? rest + 1 : "the daemon that was taking the checkpoint has ended");
    return r->state;
}

/* For fermata_request_checkpoint_with: TCP connections to processes outside the session are left out of the image, instead of
 * the checkpoint being refused. This process keeps them; in a restored one they are closed. */
#define FERMATA_TCP_CLOSE 1u

/* Asks for an image of this process's session and returns at once: 0, or -1 for an unknown mode ("auto", "stop", "snapshot",
 * "cow", "recopy"). `flags` is 0 or FERMATA_TCP_CLOSE. How it goes is in `r`. */
static inline int fermata_request_checkpoint_with(fermata_request *r, const char *mode, unsigned flags) {
    static const char *const modes[] = {"auto", "stop", "snapshot", "cow", "recopy"};
    static unsigned asked;
    char about[64];
    struct timespec now;
    size_t n = 0;
    memset(r, 0, sizeof *r);
    while (n < 5 && strcmp(modes[n], mode))
        n++;
    if (n == 5) {
        r->state = FERMATA_FAILED;
        snprintf(r->text, sizeof r->text, "there is no mode `%.16s`", mode);
        return -1;
    }
    if (fermata_program_outside_()) {
        r->state = FERMATA_OUTSIDE;
        return 0;
    }
    clock_gettime(CLOCK_REALTIME, &now);
    n = (size_t)__atomic_add_fetch(&asked, 1, __ATOMIC_RELAXED);
    snprintf(r->id, sizeof r->id, "%08x%08x%08x%08x", (unsigned)now.tv_sec, (unsigned)now.tv_nsec, (unsigned)getpid(),
             (unsigned)n);
    if (fermata_program_generation_(r->generation)) {
        r->state = FERMATA_FAILED;
        strcpy(r->text, "this process cannot read `/proc`, which tells whether it was restored");
        return 0;
    }
    snprintf(about, sizeof about, "checkpoint %s %s%s", r->id, mode, flags & FERMATA_TCP_CLOSE ? " tcp-close" : "");
    fermata_request_ask_(r, about, FERMATA_PROGRAM_LIMIT_);
    return 0;
}

/* The same without flags. */
static inline int fermata_request_checkpoint(fermata_request *r, const char *mode) {
    return fermata_request_checkpoint_with(r, mode, 0);
}

static inline int fermata_request_look_(fermata_request *r, double seconds) {
    char about[64];
    if (r->state != FERMATA_TAKING && r->state != FERMATA_TAKEN)
        return r->state;
    if (fermata_program_differs_(r->generation) > 0)
        return r->state = FERMATA_RESTORED;
    if (r->state == FERMATA_TAKEN)
        return r->state;
    snprintf(about, sizeof about, "status %s", r->id);
    return fermata_request_ask_(r, about, seconds);
}

/* How a request stands now: one of the states above. */
static inline int fermata_request_state(fermata_request *r) {
    return fermata_request_look_(r, FERMATA_PROGRAM_LIMIT_);
}

/* As fermata_request_state, waiting until nothing is being taken any more, at most `seconds`; with a daemon that does not
 * answer a second longer. */
static inline int fermata_request_wait(fermata_request *r, double seconds) {
    struct timespec moment = {0, 10 * 1000 * 1000};
    double until = fermata_program_now_() + seconds, left = seconds;
    for (;;) {
        double most = left < 1 ? 1 : left < FERMATA_PROGRAM_LIMIT_ ? left : FERMATA_PROGRAM_LIMIT_;
        if (fermata_request_look_(r, most) != FERMATA_TAKING || (left = until - fermata_program_now_()) <= 0)
            return r->state;
        nanosleep(&moment, NULL);
    }
}

/* Tells Fermata that the program is ready for what it is to do: `fermata wait --ready NAME` returns. 0, or -1. */
static inline int fermata_program_ready(void) {
    char answer[4097];
    if (fermata_program_outside_())
        return -1;
    return fermata_program_ask_("ready", FERMATA_PROGRAM_LIMIT_, answer) || strcmp(answer, "done") ? -1 : 0;
}

/* Whether this process has been restored since the last call with the same `mark`, which begins as zeros. A forked child has
 * not been. If it cannot be told now, the next call tells. */
static inline int fermata_program_restored(char mark[160]) {
    char now[160];
    int differs;
    if (fermata_program_generation_(now))
        return 0;
    differs = mark[0] && strtol(mark, NULL, 10) == (long)getpid() && strcmp(now, mark);
    memcpy(mark, now, sizeof now);
    return differs;
}

/* The seconds between two checkpoints that waste least (PhoenixOS, appendix A.1): each costs the program `checkpoint`
 * seconds, and the job fails every `between_failures` seconds. */
static inline double fermata_optimal_interval(double checkpoint, double between_failures) {
    return checkpoint >= 0 && between_failures > 0 ? sqrt(2 * checkpoint * between_failures) : NAN;
}

#ifdef __cplusplus
}
#endif
#endif
