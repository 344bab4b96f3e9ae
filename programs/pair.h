// What the programs of two processes have in common: the second is started by `fork` and `exec` with `--child FD`, the end of a
// socket over which they pass messages and descriptors.
#pragma once

#include "common.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

inline void say(int fd, const void *data, size_t len) {
    if (write(fd, data, len) != (ssize_t)len) {
        fail("socket", "cannot be written");
    }
}

inline void hear(int fd, void *data, size_t len) {
    size_t at = 0;
    while (at < len) {
        ssize_t got = read(fd, (char *)data + at, len - at);
        if (got <= 0) {
            fail("socket", "has ended");
        }
        at += (size_t)got;
    }
}

// A message of one byte, with room for a descriptor.
struct Letter {
    char byte = 'd';
    struct iovec part = {&byte, 1};
    struct msghdr message = {};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {};

    Letter() {
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
    }
    // It holds addresses of its own.
    Letter(const Letter &) = delete;
};

inline void pass(int fd, int descriptor) {
    Letter letter;
    if (descriptor >= 0) {
        struct cmsghdr *head = CMSG_FIRSTHDR(&letter.message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(head), &descriptor, sizeof(int));
    }
    if (sendmsg(fd, &letter.message, 0) != 1) {
        fail("socket", "takes no descriptor");
    }
}

inline int get(int fd) {
    Letter letter;
    int descriptor = -1;
    if (recvmsg(fd, &letter.message, 0) != 1 || !CMSG_FIRSTHDR(&letter.message)) {
        fail("socket", "gives no descriptor");
    }
    memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&letter.message)), sizeof(int));
    return descriptor;
}

// Starts the second process; `*to` is the first one's end of the socket. CUDA must not have been used yet.
inline pid_t start_child(const char *name, const Options &o, int *to) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) {
        fail("socketpair", "cannot be made");
    }
    fflush(stdout);
    pid_t other = fork();
    if (other == 0) {
        close(ends[0]);
        std::string number = std::to_string(ends[1]), size = std::to_string(o.size);
        execl("/proc/self/exe", name, "--child", number.c_str(), "--size", size.c_str(), (char *)nullptr);
        _exit(127);
    }
    close(ends[1]);
    *to = ends[0];
    return other;
}

inline void await_child(pid_t other) {
    int status = 0;
    require(waitpid(other, &status, 0) == other && WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's status");
}

// Ends the turns of the second process and waits for it; the answer is its digest.
inline uint64_t end_child(int to, pid_t other) {
    unsigned end = 0;
    say(to, &end, sizeof end);
    uint64_t digest;
    hear(to, &digest, sizeof digest);
    await_child(other);
    return digest;
}

// Turns words of `from` into words of `to`, from where this turn's are.
__global__ void turn(unsigned *to, const unsigned *from, unsigned n, unsigned word) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        to[i] = (to[i] ^ word) * 1103515245u + from[(i + word) % n];
    }
}

inline std::vector<unsigned> seed(size_t n, unsigned first) {
    std::vector<unsigned> words(n);
    for (size_t i = 0; i < n; i++) {
        words[i] = noise(i + first);
    }
    return words;
}
