// Standing still for a test, so that it meets the program where it expects it, however fast the machine is.
//
//   HOLD_AT=K          the program stands still after step K and every later one
//   HOLD_UNTIL=FILE    until there is this file; then there are no pauses either
//
// These are variables of the environment. Without HOLD_UNTIL the program stands still for ever.
#pragma once

#include <stdlib.h>
#include <unistd.h>

inline bool told_to_go() {
    static const char *file = getenv("HOLD_UNTIL");
    return file && access(file, F_OK) == 0;
}

// Called after step `k`.
inline void hold(long k) {
    static const char *at = getenv("HOLD_AT");
    while (at && k >= strtol(at, nullptr, 10) && !told_to_go()) {
        usleep(1000);
    }
}
