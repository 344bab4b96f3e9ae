// Ranks of a job as processes of one machine, without MPI: `--ranks N` forks N - 1
// times before CUDA is touched, and all share one GPU. They talk over sockets, which
// the checkpoint library gets as its bridge.
#pragma once

#include <cerrno>
#include <csignal>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../common.h"
#include "fermata.h"

class Ranks {
  public:
    // Returns in every rank; rank 0 is the process that was started.
    Ranks(int argc, char **argv) : size_((int)option(argc, argv, "--ranks", 1)) {
        if (size_ < 1 || size_ > 64) {
            fail("--ranks", "must be 1 to 64");
        }
        std::vector<std::vector<int>> ends(size_, std::vector<int>(size_, -1));
        for (int a = 0; a < size_; a++) {
            for (int b = a + 1; b < size_; b++) {
                int pair[2];
                if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
                    fail("socketpair", strerror(errno));
                }
                ends[a][b] = pair[0];
                ends[b][a] = pair[1];
            }
        }
        pid_t first = getpid();
        for (int r = 1; r < size_ && rank_ == 0; r++) {
            fflush(stdout);
            pid_t child = fork();
            if (child < 0) {
                fail("fork", strerror(errno));
            }
            if (child == 0) {
                rank_ = r;
                // A test that kills the job kills its first process.
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                if (getppid() != first) {
                    _exit(1);
                }
            } else {
                children_.push_back(child);
            }
        }
        for (int r = 0; r < size_; r++) {
            for (int other = 0; other < size_; other++) {
                if (r != rank_ && ends[r][other] >= 0) {
                    close(ends[r][other]);
                }
            }
        }
        ends_ = ends[rank_];
    }

    int rank() const { return rank_; }
    int size() const { return size_; }

    void send(const void *data, size_t bytes, int to) const {
        const char *p = (const char *)data;
        for (ssize_t n; bytes > 0; p += n, bytes -= (size_t)n) {
            n = ::send(ends_[to], p, bytes, MSG_NOSIGNAL);
            if (n <= 0) {
                fail("send", "another rank is gone");
            }
        }
    }

    void receive(void *data, size_t bytes, int from) const {
        char *p = (char *)data;
        for (ssize_t n; bytes > 0; p += n, bytes -= (size_t)n) {
            n = ::recv(ends_[from], p, bytes, 0);
            if (n <= 0) {
                fail("receive", "another rank is gone");
            }
        }
    }

    void broadcast(void *data, size_t bytes, int root) const {
        if (rank_ != root) {
            receive(data, bytes, root);
            return;
        }
        for (int r = 0; r < size_; r++) {
            if (r != root) {
                send(data, bytes, r);
            }
        }
    }

    void gather(const void *mine, size_t bytes, void *all, int root) const {
        if (rank_ != root) {
            send(mine, bytes, root);
            return;
        }
        for (int r = 0; r < size_; r++) {
            char *place = (char *)all + (size_t)r * bytes;
            if (r == root) {
                memcpy(place, mine, bytes);
            } else {
                receive(place, bytes, r);
            }
        }
    }

    // The bridge for the library.
    fermata_comm bridge() {
        fermata_comm c = {};
        c.size_of_this = sizeof(c);
        c.context = this;
        c.rank = [](void *self, int *rank) { return *rank = ((Ranks *)self)->rank_, 0; };
        c.size = [](void *self, int *size) { return *size = ((Ranks *)self)->size_, 0; };
        c.barrier = [](void *self) {
            char token = 0, all[64];
            ((Ranks *)self)->gather(&token, 1, all, 0);
            ((Ranks *)self)->broadcast(&token, 1, 0);
            return 0;
        };
        c.broadcast = [](void *self, void *data, size_t bytes, int root) {
            return ((Ranks *)self)->broadcast(data, bytes, root), 0;
        };
        c.gather = [](void *self, const void *mine, size_t bytes, void *all, int root) {
            return ((Ranks *)self)->gather(mine, bytes, all, root), 0;
        };
        c.send = [](void *self, const void *data, size_t bytes, int to) {
            return ((Ranks *)self)->send(data, bytes, to), 0;
        };
        c.receive = [](void *self, void *data, size_t bytes, int from) {
            return ((Ranks *)self)->receive(data, bytes, from), 0;
        };
        return c;
    }

    // Waits for the other ranks, all of which must have succeeded; they end here.
    void join() {
        fflush(stdout);
        if (rank_ != 0) {
            _exit(0);
        }
        for (pid_t child : children_) {
            int status = 0;
            if (waitpid(child, &status, 0) != child || status != 0) {
                fail("a rank", "did not end well");
            }
        }
    }

  private:
    int size_, rank_ = 0;
    std::vector<int> ends_;
    std::vector<pid_t> children_;
};
