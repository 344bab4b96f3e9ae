// A small HTTP server whose answers need what it has on the GPU, for functions.
//
//   web --port P           listens at 127.0.0.1:P, or with --everywhere 1 at all addresses
//   web --name NAME        listens at the Unix socket @NAME
//   web --straight N       prints the answer to N and ends
//   ... --unpredicted 1         its kernel gets the model as a distance from another buffer, as in overrun.cu
//
//   GET /N                 the answer to N, in hexadecimal; `/N?MS` waits so many milliseconds before it, `/N?gate` until
//                          there is a file `gate` in the program's folder
//   GET /die               ends the program without an answer
//
// It answers one request at a time, each on a connection of its own.
#include "common.h"

#include <csignal>
#include <netinet/in.h>
#include <stddef.h>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

// The model lies so many elements behind `base`.
__global__ void infer(const unsigned *base, long long distance, unsigned *layer, unsigned n, unsigned x) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned *model = base + distance;
    if (i < n) {
        unsigned from = model[(i * 7 + x) % n];
        layer[i] = (from ^ x) * 2654435761u + model[i];
    }
}

struct Model {
    unsigned *base;
    unsigned *layer;
    long long distance;
    unsigned n;
};

static Model load(unsigned n, bool unpredicted) {
    std::vector<unsigned> weights(n);
    for (unsigned i = 0; i < n; i++) {
        weights[i] = noise(i);
    }
    unsigned *base = unpredicted ? to_device(weights) : nullptr;
    unsigned *layer = device_array<unsigned>(n);
    CHECK(cudaMemset(layer, 0, n * sizeof(unsigned)));
    unsigned *model = to_device(weights);
    if (!unpredicted) {
        return {model, layer, 0, n};
    }
    CHECK(cudaMemset(base, 1, n * sizeof(unsigned)));
    long long bytes = (long long)(uintptr_t)model - (long long)(uintptr_t)base;
    return {base, layer, bytes / (long long)sizeof(unsigned), n};
}

static std::string answer(const Model &m, unsigned x) {
    infer<<<blocks_for(m.n, 128), 128>>>(m.base, m.distance, m.layer, m.n, x);
    CHECK_LAUNCH();
    Digest d;
    d.all(from_device(m.layer, m.n));
    char text[32];
    snprintf(text, sizeof text, "%016llx\n", (unsigned long long)d.state);
    return text;
}

static void respond(const Model &m, int fd) {
    std::string head;
    char piece[1024];
    while (head.find("\r\n\r\n") == std::string::npos) {
        ssize_t got = read(fd, piece, sizeof piece);
        if (got <= 0) {
            return;
        }
        head.append(piece, got);
    }
    if (head.rfind("GET /die", 0) == 0) {
        _exit(3);
    }
    unsigned x = 0, ms = 0;
    bool known = sscanf(head.c_str(), "GET /%u?%u", &x, &ms) >= 1;
    usleep(ms * 1000);
    bool gated = known && head.find("?gate ") < head.find('\n');
    while (gated && access("gate", F_OK) != 0) {
        usleep(1000);
    }
    std::string body = known ? answer(m, x) : "there is no such page\n";
    std::string text = std::string("HTTP/1.1 ") + (known ? "200 OK" : "404 Not Found") +
                       "\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: " +
                       std::to_string(body.size()) + "\r\n\r\n" + body;
    // A client that has gone is no error.
    (void)!write(fd, text.data(), text.size());
}

static int listen_at_port(unsigned short port, bool everywhere) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in a = {};
    a.sin_family = AF_INET;
    a.sin_port = htons(port);
    a.sin_addr.s_addr = htonl(everywhere ? INADDR_ANY : INADDR_LOOPBACK);
    if (bind(listener, (sockaddr *)&a, sizeof a) != 0 || listen(listener, 16) != 0) {
        fail("the port", "cannot listen");
    }
    return listener;
}

static int listen_at_name(const char *name) {
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un a = {};
    a.sun_family = AF_UNIX;
    snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "%s", name);
    socklen_t length = offsetof(sockaddr_un, sun_path) + 1 + strlen(name);
    if (bind(listener, (sockaddr *)&a, length) != 0 || listen(listener, 16) != 0) {
        fail(name, "cannot listen");
    }
    return listener;
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 1 << 14, 0);
    signal(SIGPIPE, SIG_IGN);
    Model m = load((unsigned)o.size, option(argc, argv, "--unpredicted", 0) != 0);
    if (const char *x = option_text(argc, argv, "--straight")) {
        printf("%s", answer(m, (unsigned)strtoul(x, nullptr, 10)).c_str());
        return 0;
    }
    // As a model is run once before it serves.
    answer(m, 0);
    CHECK(cudaDeviceSynchronize());
    const char *name = option_text(argc, argv, "--name");
    long port = option(argc, argv, "--port", 8000);
    bool everywhere = option(argc, argv, "--everywhere", 0) != 0;
    int listener = name ? listen_at_name(name) : listen_at_port((unsigned short)port, everywhere);
    printf("listening\n");
    for (;;) {
        int fd = accept(listener, nullptr, nullptr);
        if (fd >= 0) {
            respond(m, fd);
            close(fd);
        }
    }
}
