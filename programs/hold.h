// Standing still for a test, so that it meets the program where it expects it, however fast the machine is.
//
//   HOLD_AT=K          the program stands still after step K and every later one
//   HOLD_UNTIL=FILE    until there is this file; then there are no pauses either. One that is a link to a number
//                      lets it come to that step, where it stands still again
//
// These are variables of the environment. Without HOLD_UNTIL the program stands still for ever. No file is opened: it
// would be in an image of the program.
#pragma once

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

// The step to which the program may go on; -1 without the file.
inline long told_to_go() {
    static const char *file = getenv("HOLD_UNTIL");
    char step[24] = "";
    if (file && readlink(file, step, sizeof step - 1) > 0) {
        return strtol(step, nullptr, 10);
    }
    return file && access(file, F_OK) == 0 ? LONG_MAX : -1;
}

// Called after step `k`.
inline void hold(long k) {
    static const char *at = getenv("HOLD_AT");
    while (at && k >= strtol(at, nullptr, 10) && k >= told_to_go()) {
        usleep(1000);
    }
}
