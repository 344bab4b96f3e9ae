/* Every call of fermata.h, with what is right and what is wrong; compiled as C and
 * as C++. Prints "fine" and exits with 0, or names the line that failed.
 *   api FOLDER */
#include "fermata.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(what)                                                          \
    do {                                                                       \
        if (!(what)) {                                                         \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what);                 \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

static void fine(fermata_status status, fermata_error *error, int line) {
    if (status != FERMATA_OK) {
        fprintf(stderr, "line %d: %d %s\n", line, (int)status,
                fermata_error_message(error));
        exit(1);
    }
}
#define FINE(call) fine((call), error, __LINE__)

/* The call fails with this status and a message that contains `word`. */
#define FAILS(call, expected, word)                                            \
    do {                                                                       \
        error = NULL;                                                          \
        REQUIRE((call) == (expected));                                         \
        REQUIRE(fermata_error_status(error) == (expected));                    \
        REQUIRE(strstr(fermata_error_message(error), (word)) != NULL);         \
        fermata_error_free(error);                                             \
        error = NULL;                                                          \
    } while (0)

static fermata_error *error = NULL;

static fermata *start(const char *config, const fermata_comm *comm) {
    fermata *session = NULL;
    FINE(fermata_init_text(config, comm, &session, &error));
    REQUIRE(session != NULL);
    return session;
}

/* A bridge of one rank. */
static int calls = 0;
static int comm_rank(void *context, int *rank) {
    REQUIRE(context == &calls);
    *rank = 0;
    return 0;
}
static int comm_size(void *context, int *size) {
    (void)context;
    *size = 1;
    return 0;
}
static int comm_gather(void *context, const void *mine, size_t bytes, void *all,
                       int root) {
    ++*(int *)context;
    REQUIRE(root == 0);
    memcpy(all, mine, bytes);
    return 0;
}
static int comm_broadcast(void *context, void *data, size_t bytes, int root) {
    (void)data;
    (void)bytes;
    ++*(int *)context;
    return root;
}

int main(int argc, char **argv) {
    char config[1024], path[1024];
    double values[1000];
    int64_t step = 7, id = 0;
    uint64_t bytes = 0;
    int i;
    fermata *s = NULL;
    fermata_snapshot_kind kind;
    fermata_info info;
    fermata_comm comm;
    FILE *file;

    REQUIRE(argc == 2);
    REQUIRE(strlen(fermata_version()) >= 5);
    snprintf(config, sizeof config, "name = \"api\"\n[local]\nfolders = [\"%s\"]\n",
             argv[1]);
    for (i = 0; i < 1000; i++) {
        values[i] = i * 0.5;
    }

    /* What cannot be. */
    FAILS(fermata_init(NULL, NULL, &s, &error), FERMATA_MISUSE, "null");
    FAILS(fermata_init("/nowhere/at/all", NULL, &s, &error), FERMATA_STORAGE, "/nowhere");
    FAILS(fermata_init("/dev/zero", NULL, &s, &error), FERMATA_STORAGE, "regular file");
    FAILS(fermata_init_text("", NULL, &s, &error), FERMATA_CONFIG, "local.folders");
    FAILS(fermata_init_text("nam = 1", NULL, &s, &error), FERMATA_CONFIG, "`name`");
    FAILS(fermata_init_text(config, NULL, NULL, &error), FERMATA_MISUSE, "nowhere");
    REQUIRE(fermata_init_text("nam = 1", NULL, &s, NULL) == FERMATA_CONFIG);
    REQUIRE(s == NULL);
    FAILS(fermata_wait(NULL, 1.0, &error), FERMATA_MISUSE, "null");
    REQUIRE(fermata_error_message(NULL)[0] == 0 && fermata_error_hint(NULL) == NULL);
    fermata_error_free(NULL);

    /* A first life. */
    s = start(config, NULL);
    FAILS(fermata_init_text(config, NULL, &s, &error), FERMATA_BUSY, "used by process");
    FAILS(fermata_recover(s, &id, &error), FERMATA_NOTHING, "no usable checkpoint");
    FINE(fermata_protect(s, 0, &step, 1, FERMATA_INT(8), &error));
    FINE(fermata_protect(s, 1, values, 1000, FERMATA_FLOAT(8), &error));
    FAILS(fermata_protect(s, 2, values, SIZE_MAX / 2, FERMATA_FLOAT(8), &error),
          FERMATA_VARIABLE, "variable 2");
    FAILS(fermata_protect(s, 2, (void *)16, 1, FERMATA_FLOAT(8), &error),
          FERMATA_VARIABLE, "cannot be");
    FAILS(fermata_protect(s, 2, values, 1, 0, &error), FERMATA_VARIABLE, "element type");
    FAILS(fermata_checkpoint(s, 1, 9, &error), FERMATA_MISUSE, "level 9");
    FAILS(fermata_checkpoint(s, 1, FERMATA_SHARED, &error), FERMATA_LEVEL, "shared");
    FINE(fermata_checkpoint(s, 11, FERMATA_LOCAL, &error));
    FINE(fermata_wait(s, 60.0, &error));
    memset(&info, 0, sizeof info);
    FAILS(fermata_get_info(s, &info, &error), FERMATA_MISUSE, "size_of_this");
    info.size_of_this = sizeof info;
    FINE(fermata_get_info(s, &info, &error));
    REQUIRE(info.checkpoints == 1 && info.last_id == 11 && info.last_level == 1);
    REQUIRE(info.last_bytes == 8008 && info.last_written == 8008 && !info.busy);
    REQUIRE(info.last_blocked > 0 && info.last_total > 0);
    FINE(fermata_snapshot(s, &kind, &error));
    REQUIRE(kind == FERMATA_SNAPSHOT_NOTHING || kind == FERMATA_SNAPSHOT_RECOVERED);
    FINE(fermata_unprotect(s, 1, &error));
    FAILS(fermata_unprotect(s, 1, &error), FERMATA_VARIABLE, "variable 1");
    FINE(fermata_finalize(s, 0, &error));

    /* A second one, from a file and with a bridge. */
    memset(values, 0, sizeof values);
    step = 0;
    snprintf(path, sizeof path, "%s/config.toml", argv[1]);
    file = fopen(path, "w");
    REQUIRE(file != NULL && fputs(config, file) >= 0 && fclose(file) == 0);
    memset(&comm, 0, sizeof comm);
    FAILS(fermata_init(path, &comm, &s, &error), FERMATA_MISUSE, "size_of_this");
    comm.size_of_this = sizeof comm;
    FAILS(fermata_init(path, &comm, &s, &error), FERMATA_MISUSE, "rank");
    comm.context = &calls;
    comm.rank = comm_rank;
    comm.size = comm_size;
    FAILS(fermata_init(path, &comm, &s, &error), FERMATA_MISUSE, "gather");
    comm.gather = comm_gather;
    comm.broadcast = comm_broadcast;
    FINE(fermata_init(path, &comm, &s, &error));
    REQUIRE(calls > 0);
    FINE(fermata_stored_bytes(s, 1, &bytes, &error));
    REQUIRE(bytes == sizeof values);
    FAILS(fermata_stored_bytes(s, 5, &bytes, &error), FERMATA_NOTHING, "variable 5");
    FINE(fermata_protect(s, 0, &step, 1, FERMATA_INT(8), &error));
    FAILS(fermata_recover(s, &id, &error), FERMATA_MISMATCH, "variable 1");
    REQUIRE(step == 0);
    FINE(fermata_recover_variable(s, 0, &id, &error));
    REQUIRE(step == 7 && id == 11 && values[999] == 0.0);
    FINE(fermata_protect(s, 1, values, 1000, FERMATA_FLOAT(8), &error));
    FINE(fermata_recover(s, NULL, &error));
    for (i = 0; i < 1000; i++) {
        REQUIRE(values[i] == i * 0.5);
    }
    info.size_of_this = sizeof info;
    FINE(fermata_get_info(s, &info, &error));
    REQUIRE(info.recovery_level == 1 && info.recovery_bytes == 8008);
    REQUIRE(info.recovery_integrity > 0 && info.recovery_data > 0);
    FINE(fermata_finalize(s, 1, &error));

    /* Nothing is left of it. */
    s = start(config, NULL);
    FINE(fermata_get_info(s, &info, &error));
    REQUIRE(!info.recoverable);
    FINE(fermata_finalize(s, 1, &error));
    FAILS(fermata_finalize(NULL, 1, &error), FERMATA_MISUSE, "null");
    puts("fine");
    return 0;
}
