// Calls the driver where a process or a thread ends, after `dlclose`, in a forked child and in a signal handler.
//
//   life LIBRARY WHAT
//
// Each place checks what it gets and says so in a line on stdout; a wrong answer ends the program with its line. A line
// of stdin is awaited where the test may want to stop the program.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*init_t)(unsigned);
typedef int (*create_t)(void **, unsigned, int);
typedef int (*current_t)(void **);
typedef int (*set_t)(void *);
typedef int (*alloc_t)(uint64_t *, size_t);
typedef int (*free_t)(uint64_t);
typedef int (*upload_t)(uint64_t, const void *, size_t);
typedef int (*download_t)(void *, uint64_t, size_t);
typedef int (*fill_t)(uint64_t, unsigned char, size_t, void *);
typedef int (*sync_t)(void *);

static init_t init;
static create_t create;
static current_t current;
static set_t set_current;
static alloc_t alloc;
static free_t release;
static upload_t upload;
static download_t download;
static fill_t fill;
static sync_t stream_sync;

static void *library;
static void *context;
// The program ends while threads call.
static atomic_int leaving;

static void fail(const char *where, int line) {
    printf("%s: wrong in line %d\n", where, line);
    fflush(stdout);
    _exit(1);
}
#define EXPECT(where, truth) ((truth) ? (void)0 : fail(where, __LINE__))

static void *find(const char *name) {
    void *found = dlsym(library, name);
    EXPECT(name, found != NULL);
    return found;
}

static void open_library(const char *path) {
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    EXPECT(path, library != NULL);
    init = (init_t)find("cuInit");
    create = (create_t)find("cuCtxCreate_v2");
    current = (current_t)find("cuCtxGetCurrent");
    set_current = (set_t)find("cuCtxSetCurrent");
    alloc = (alloc_t)find("cuMemAlloc_v2");
    release = (free_t)find("cuMemFree_v2");
    upload = (upload_t)find("cuMemcpyHtoD_v2");
    download = (download_t)find("cuMemcpyDtoH_v2");
    fill = (fill_t)find("cuMemsetD8Async");
    stream_sync = (sync_t)find("cuStreamSynchronize");
}

// The context is current, memory works, and so does the thread's own stream.
static void check(const char *where) {
    void *now = NULL;
    uint64_t address = 0;
    char there[64], back[64];
    memset(there, 7, sizeof there);
    EXPECT(where, current(&now) == 0 && now == context);
    EXPECT(where, alloc(&address, sizeof there) == 0);
    EXPECT(where, upload(address, there, sizeof there) == 0);
    EXPECT(where, fill(address, 9, 32, (void *)2) == 0);
    EXPECT(where, stream_sync((void *)2) == 0);
    EXPECT(where, download(back, address, sizeof back) == 0);
    EXPECT(where, back[0] == 9 && back[63] == 7);
    EXPECT(where, release(address) == 0);
}

// Waits for the test; then everything works.
static void check_and_wait(const char *where) {
    char line[16];
    check(where);
    printf("%s\n", where);
    fflush(stdout);
    EXPECT(where, fgets(line, sizeof line, stdin) != NULL);
    check(where);
}

extern int __cxa_thread_atexit_impl(void (*)(void *), void *, void *);
extern void *__dso_handle;

static void at_thread_local(void *where) { check_and_wait((const char *)where); }
static void at_exit(void) { check_and_wait("atexit"); }
__attribute__((destructor)) static void at_static(void) {
    if (leaving) {
        // Other threads call meanwhile.
        for (int n = 0; n < 20; n++) {
            check("static destructor in a crowd");
        }
    } else if (context) {
        check_and_wait("static destructor");
    }
}

static pthread_key_t key;

static void at_key(void *round) {
    static const char *const NAMES[] = {"", "round 1", "round 2", "round 3"};
    uintptr_t n = (uintptr_t)round;
    check_and_wait(NAMES[n]);
    if (n < 3) {
        pthread_setspecific(key, (void *)(n + 1));
    }
}

static void *thread(void *ignored) {
    // Before the first call, so that it is destroyed after whatever the library keeps for the thread.
    __cxa_thread_atexit_impl(at_thread_local, "thread-local", &__dso_handle);
    pthread_setspecific(key, (void *)1);
    EXPECT("thread", set_current(context) == 0);
    check("thread");
    return ignored;
}

// A thread that calls the driver for the first time when it ends.
static void at_late_key(void *ignored) {
    void *now = context;
    (void)ignored;
    EXPECT("late", current(&now) == 0 && now == NULL);
    EXPECT("late", set_current(context) == 0);
    check("late");
}

static void *late_thread(void *late) {
    pthread_setspecific(*(pthread_key_t *)late, (void *)1);
    return NULL;
}

static void join(void *(*run)(void *), void *argument) {
    pthread_t id;
    EXPECT("thread", pthread_create(&id, NULL, run, argument) == 0);
    EXPECT("thread", pthread_join(id, NULL) == 0);
}

static void run_child(const char *where) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        uint64_t address;
        void *now;
        // CUDA_ERROR_NOT_INITIALIZED, as the driver says.
        int good = alloc(&address, 64) == 3 && current(&now) == 3 && init(0) == 3;
        context = NULL;
        _exit(good ? 0 : 1);
    }
    int status = -1;
    EXPECT(where, waitpid(child, &status, 0) == child && status == 0);
    check(where);
}

static void at_forking_key(void *ignored) {
    (void)ignored;
    run_child("fork in a destructor");
}

static void *forking_thread(void *forking) {
    pthread_setspecific(*(pthread_key_t *)forking, (void *)1);
    __cxa_thread_atexit_impl((void (*)(void *))run_child, "fork in a thread-local's destructor", &__dso_handle);
    EXPECT("thread", set_current(context) == 0);
    check("thread");
    return NULL;
}

static atomic_int handled;

static void on_signal(int number) {
    (void)number;
    check("signal handler");
    handled++;
}

static void *caller(void *ignored) {
    EXPECT("caller", set_current(context) == 0);
    for (;;) {
        check("caller");
        handled++;
    }
    return ignored;
}


static void wait_for_test(const char *where) {
    check_and_wait(where);
    printf("done\n");
    fflush(stdout);
}

int main(int count, char **words) {
    EXPECT("arguments", count == 3);
    const char *path = words[1], *what = words[2];
    pthread_key_create(&key, at_key);
    if (!strcmp(what, "exit")) {
        __cxa_thread_atexit_impl(at_thread_local, "thread-local", &__dso_handle);
        atexit(at_exit);
    }
    if (!strcmp(what, "early-fork")) {
        // A call before the session, then a child that begins its own.
        void *now;
        open_library(path);
        EXPECT(what, current(&now) == 3);
        pid_t child = fork();
        if (child != 0) {
            int status = -1;
            EXPECT(what, waitpid(child, &status, 0) == child);
            _exit(status == 0 ? 0 : 1);
        }
    } else {
        open_library(path);
    }
    EXPECT(what, init(0) == 0 && create(&context, 0, 0) == 0);
    check(what);
    if (!strcmp(what, "thread")) {
        join(thread, NULL);
    } else if (!strcmp(what, "late")) {
        pthread_key_t late;
        pthread_key_create(&late, at_late_key);
        for (int n = 0; n < 20; n++) {
            join(late_thread, &late);
        }
    } else if (!strcmp(what, "fork")) {
        pthread_key_t forking;
        pthread_key_create(&forking, at_forking_key);
        run_child("fork");
        join(forking_thread, &forking);
    } else if (!strcmp(what, "dlclose")) {
        EXPECT(what, dlclose(library) == 0);
        check("closed");
        open_library(path);
        check("opened again");
        EXPECT(what, dlclose(library) == 0);
    } else if (!strcmp(what, "signal")) {
        static char own_stack[1 << 17];
        stack_t stack = {.ss_sp = own_stack, .ss_size = sizeof own_stack};
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
        EXPECT(what, sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
        for (int n = 0; n < 50; n++) {
            raise(SIGUSR1);
        }
        EXPECT(what, handled == 50);
    } else if (!strcmp(what, "crowd")) {
        pthread_t id;
        for (int n = 0; n < 4; n++) {
            pthread_create(&id, NULL, caller, NULL);
        }
        while (handled < 40) {
            usleep(100);
        }
        check("crowd");
        leaving = 1;
        exit(0);
    }
    if (strcmp(what, "exit")) {
        wait_for_test(what);
        context = NULL;
    }
    return 0;
}
