// Host memory that two processes share and both have registered (`cudaHostRegister`): a memory file without a name, passed as a
// descriptor, and a file in /dev/shm, of which neither registers the first page. In turns each process has a kernel change both,
// changes a word itself, and copies a part to its device: what one does the other must find. Now and then the second
// registers them anew. `--child FD` is how the second is started.
#include "pair.h"

#include <fcntl.h>
#include <sys/mman.h>

const size_t PAGE = 4096;

struct Given {
    uint64_t words;
    char name[64];
};

// A mapped file, registered from its second page on.
struct Piece {
    unsigned *mapped = nullptr;
    unsigned *words = nullptr;
    unsigned *device = nullptr;
    size_t bytes = 0;

    void map(int fd, size_t n) {
        bytes = n * sizeof(unsigned);
        void *at = mmap(nullptr, PAGE + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        require(at != MAP_FAILED, "a mapping");
        close(fd);
        mapped = (unsigned *)at;
        words = mapped + PAGE / sizeof(unsigned);
        enlist();
    }

    void enlist() {
        CHECK(cudaHostRegister(words, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable));
        void *at = nullptr;
        CHECK(cudaHostGetDevicePointer(&at, words, 0));
        device = (unsigned *)at;
    }

    void again() {
        CHECK(cudaHostUnregister(words));
        enlist();
    }

    void end() {
        CHECK(cudaHostUnregister(words));
        munmap(mapped, PAGE + bytes);
    }
};

static void work(Piece *piece, unsigned *own, unsigned n, unsigned k) {
    unsigned blocks = blocks_for(n, 256);
    turn<<<blocks, 256>>>(piece[0].device, own, n, k);
    turn<<<blocks, 256>>>(piece[1].device, piece[0].device, n, k + 3);
    turn<<<blocks, 256>>>(own, piece[1].device, n, k + 7);
    CHECK_LAUNCH();
    CHECK(cudaDeviceSynchronize());
    piece[0].words[k % n] += k;
    CHECK(cudaMemcpy(own, piece[0].words, n * sizeof(unsigned) / 2, cudaMemcpyHostToDevice));
}

static int child(int fd) {
    Given given;
    hear(fd, &given, sizeof given);
    unsigned n = (unsigned)given.words;
    Piece piece[2];
    piece[0].map(get(fd), n);
    piece[1].map(open(given.name, O_RDWR | O_CLOEXEC), n);
    unsigned *own = to_device(seed(n, 77));
    unsigned k;
    for (hear(fd, &k, sizeof k); k != 0; hear(fd, &k, sizeof k)) {
        if (k % 16 == 0) {
            piece[k / 16 % 2].again();
        }
        work(piece, own, n, 2 * k + 1);
        say(fd, &k, sizeof k);
    }
    piece[0].end();
    piece[1].end();
    Digest d;
    d.all(from_device(own, n));
    say(fd, &d.state, sizeof d.state);
    return 0;
}

int main(int argc, char **argv) {
    long fd = option(argc, argv, "--child", -1);
    if (fd >= 0) {
        return child((int)fd);
    }
    Options o = begin(argc, argv, 1 << 16, 300);
    int to;
    pid_t other = start_child("hostshare", o, &to);
    Given given = {};
    given.words = (uint64_t)o.size;
    unsigned n = (unsigned)o.size;
    size_t bytes = PAGE + n * sizeof(unsigned);
    snprintf(given.name, sizeof given.name, "/dev/shm/hostshare-%016llx", (unsigned long long)nonce());
    int file = memfd_create("hostshare", MFD_CLOEXEC), named = open(given.name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    require(file >= 0 && named >= 0 && ftruncate(file, (off_t)bytes) == 0 && ftruncate(named, (off_t)bytes) == 0, "files");
    say(to, &given, sizeof given);
    pass(to, file);
    Piece piece[2];
    piece[0].map(file, n);
    piece[1].map(named, n);
    for (unsigned i = 0; i < n; i++) {
        piece[0].words[i] = noise(i);
        piece[1].words[i] = noise(i + n);
    }
    unsigned *own = to_device(seed(n, 1));
    for (long k = 1; k <= o.steps; k++) {
        work(piece, own, n, 2 * (unsigned)k);
        unsigned t = (unsigned)k, answer;
        say(to, &t, sizeof t);
        hear(to, &answer, sizeof answer);
        require(answer == t, "the answer to a turn");
        step(o, k, o.steps);
    }
    Digest d;
    d.word(end_child(to, other));
    for (Piece &it : piece) {
        d.bytes(it.words, n * sizeof(unsigned));
        it.end();
    }
    d.all(from_device(own, n));
    unlink(given.name);
    return finish("hostshare", d);
}
