// A server on a Unix socket whose state lives on the GPU.
//
//   server                        serves itself: a client thread asks, over a
//                                 real socket, --steps times
//   server --serve PATH           serves others until one sends `q`
//   server --client PATH          sends --steps requests and prints the digest
//
// A request is 'a' and a number to add to the state, or 'r' to read a digest of
// it, or 'q'. Each answer is eight bytes.
#include "common.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

__global__ void add(unsigned long long *state, int n, unsigned long long value) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        state[i] = state[i] * 6364136223846793005ull + value + i;
    }
}

struct Request {
    char verb;
    char pad[7];
    uint64_t value;
};

static bool read_all(int fd, void *to, size_t len) {
    for (char *p = (char *)to; len > 0;) {
        ssize_t got = read(fd, p, len);
        if (got <= 0) {
            return false;
        }
        p += got;
        len -= got;
    }
    return true;
}

static void write_all(int fd, const void *from, size_t len) {
    if (write(fd, from, len) != (ssize_t)len) {
        fail("socket", "cannot write");
    }
}

struct State {
    unsigned long long *data;
    int n;
};

// Serves one connection; returns false after `q`.
static bool serve(const State &s, int fd) {
    Request r;
    while (read_all(fd, &r, sizeof r)) {
        uint64_t answer = r.value;
        if (r.verb == 'a') {
            add<<<blocks_for(s.n, 128), 128>>>(s.data, s.n, r.value);
            CHECK_LAUNCH();
        } else if (r.verb == 'r') {
            Digest d;
            d.all(from_device(s.data, s.n));
            answer = d.state;
        }
        write_all(fd, &answer, sizeof answer);
        if (r.verb == 'q') {
            return false;
        }
    }
    return true;
}

static uint64_t ask(int fd, char verb, uint64_t value) {
    Request r = {verb, {}, value};
    uint64_t answer = 0;
    write_all(fd, &r, sizeof r);
    if (!read_all(fd, &answer, sizeof answer)) {
        fail("socket", "the server hung up");
    }
    return answer;
}

static Digest converse(const Options &o, int fd) {
    Digest d;
    for (long k = 1; k <= o.steps; k++) {
        ask(fd, 'a', (uint64_t)k);
        if (k % 5 == 0) {
            d.word(ask(fd, 'r', 0));
            step(o, k, o.steps);
        }
    }
    return d;
}

static sockaddr_un address(const char *path) {
    sockaddr_un a = {};
    a.sun_family = AF_UNIX;
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    return a;
}

static void serve_path(const State &s, const char *path) {
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un a = address(path);
    unlink(path);
    if (bind(listener, (sockaddr *)&a, sizeof a) != 0 || listen(listener, 4) != 0) {
        fail(path, "cannot listen");
    }
    printf("listening\n");
    for (bool more = true; more;) {
        int fd = accept(listener, nullptr, nullptr);
        more = fd < 0 || serve(s, fd);
        close(fd);
    }
    close(listener);
    unlink(path);
}

static int run_client(const Options &o, const char *path) {
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un a = address(path);
    if (connect(fd, (sockaddr *)&a, sizeof a) != 0) {
        fail(path, "cannot connect");
    }
    Digest d = converse(o, fd);
    close(fd);
    return finish("server", d);
}

static State make_state(int n) {
    State s = {device_array<unsigned long long>(n), n};
    CHECK(cudaMemset(s.data, 0, n * sizeof(*s.data)));
    return s;
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 4096, 200);
    if (const char *path = option_text(argc, argv, "--client")) {
        return run_client(o, path);
    }
    State s = make_state((int)o.size);
    if (const char *path = option_text(argc, argv, "--serve")) {
        serve_path(s, path);
        return finish("server", Digest());
    }
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) {
        fail("socketpair", "refused");
    }
    Digest d;
    std::thread client([&] {
        d = converse(o, ends[1]);
        shutdown(ends[1], SHUT_RDWR);
    });
    serve(s, ends[0]);
    client.join();
    return finish("server", d);
}
