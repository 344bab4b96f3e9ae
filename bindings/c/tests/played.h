/* What tests of the headers have in common: a clock that is the test's, and a check. Included before the header that is tested. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double clock_now;

#define CHECK(what)                                                                                                            \
    do {                                                                                                                       \
        if (!(what)) {                                                                                                         \
            fprintf(stderr, "line %d: %s, at %f s\n", __LINE__, #what, clock_now);                                             \
            exit(1);                                                                                                           \
        }                                                                                                                      \
    } while (0)

static int played_clock_gettime(clockid_t clock, struct timespec *now) {
    (void)clock;
    now->tv_sec = (time_t)clock_now;
    now->tv_nsec = (long)((clock_now - (double)now->tv_sec) * 1e9);
    return 0;
}

#define clock_gettime played_clock_gettime
