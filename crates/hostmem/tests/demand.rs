//! Memory that comes while a program runs is what it would have been, whatever the program does meanwhile.
//!
//! The program here speaks to the server as CRIU does, and then works with memory that it has never written.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};

use fermata_hostmem::PAGE;
use fermata_hostmem::demand::{Folder, Learnt, Server, Turn, hold};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use self::support::{LIMIT, Program};

mod support;

/// Where the program has its memory, and how many pages.
const BASE: u64 = 0x2000_0000_0000;
const PAGES: u64 = 4096;
/// The first page of the working set, of 20.
const FIRST: u64 = 3000;
/// Pages from here on are wiped by `fork`.
const WIPED: u64 = 4000;

const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#define BASE ((char *)0x200000000000)
#define PAGES 4096L
#define FIRST 3000L
#define WIPED 4000L
#define PAGE 4096L
static int server;
static void fail(const char *what) { printf("failed: %s: %s\n", what, strerror(errno)); fflush(stdout); _exit(3); }
static void say(int number) { if (send(server, &number, 4, 0) != 4) fail("send"); }
static void offer(int fd) {
    char dummy = 0, space[CMSG_SPACE(sizeof fd)] = { 0 };
    struct iovec part = { &dummy, 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET; header->cmsg_type = SCM_RIGHTS; header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (sendmsg(server, &message, 0) != 1) fail("sendmsg");
}
// Page `page` of the image, which lies at `at`.
static long wrong(volatile char *at, long page) {
    volatile uint64_t *words = (volatile uint64_t *)at;
    long bad = 0;
    for (int i = 0; i < 512; i += 73) bad += words[i] != (uint64_t)page * 512 + i;
    return bad;
}
static long empty(volatile char *at) {
    volatile uint64_t *words = (volatile uint64_t *)at;
    long bad = 0;
    for (int i = 0; i < 512; i++) bad += words[i] != 0;
    return bad;
}
static uint64_t next(uint64_t *x) { *x ^= *x << 13; *x ^= *x >> 7; return *x ^= *x << 17; }
// Moves, shrinks, discards and checks pages from `first` on, 512 of them, in pieces of 8.
static void *wild(void *first) {
    struct { char *at; long page; long count; int discarded; } piece[64];
    uint64_t x = 88172645463325252u + (uintptr_t)first;
    long bad = 0;
    for (int i = 0; i < 64; i++) {
        piece[i].page = (long)(uintptr_t)first + i * 8;
        piece[i].at = BASE + piece[i].page * PAGE;
        piece[i].count = 8;
        piece[i].discarded = 0;
    }
    for (int i = 0; i < 3000; i++) {
        int n = next(&x) % 64;
        char *at = piece[n].at;
        long bytes = piece[n].count * PAGE;
        switch (next(&x) % 5) {
        case 0: {
            // Somewhere else, and larger; what follows is empty.
            char *to = mremap(at, bytes, bytes + 4 * PAGE, MREMAP_MAYMOVE);
            if (to == MAP_FAILED) fail("mremap");
            bad += empty(to + bytes);
            if (munmap(to + bytes, 4 * PAGE)) fail("munmap");
            piece[n].at = to;
            break;
        }
        case 1:
            if (piece[n].count > 1) { piece[n].count--; if (munmap(at + bytes - PAGE, PAGE)) fail("munmap"); }
            break;
        case 2:
            if (next(&x) % 8 == 0) { piece[n].discarded = 1; if (madvise(at, bytes, MADV_DONTNEED)) fail("madvise"); }
            break;
        case 3:
            if (mprotect(at, PAGE, next(&x) % 2 ? PROT_READ : PROT_READ | PROT_WRITE)) fail("mprotect");
            // A mapping can only be moved as a whole.
            if (mprotect(at, bytes, PROT_READ | PROT_WRITE)) fail("mprotect");
            break;
        default: {
            long page = next(&x) % piece[n].count;
            bad += piece[n].discarded ? empty(at + page * PAGE) : wrong(at + page * PAGE, piece[n].page + page);
        }
        }
    }
    for (int n = 0; n < 64; n++)
        for (long page = 0; page < piece[n].count; page++) {
            char *at = piece[n].at + page * PAGE;
            bad += piece[n].discarded ? empty(at) : wrong(at, piece[n].page + page);
        }
    return (void *)bad;
}
static long all(char *at, long from, long to) {
    long bad = 0;
    for (long page = from; page < to; page++) bad += wrong(at + page * PAGE, page);
    return bad;
}
int main(int count, char **arguments) {
    const char *what = arguments[2];
    if (mmap(BASE, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != BASE) fail("mmap");
    int fd = syscall(SYS_userfaultfd, 02000000 | 04000);
    struct uffdio_api api = { UFFD_API, UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP };
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api)) fail("userfaultfd");
    struct uffdio_register range = { { (uintptr_t)BASE, PAGES * PAGE }, UFFDIO_REGISTER_MODE_MISSING };
    int early = !strcmp(what, "early");
    if (!early && ioctl(fd, UFFDIO_REGISTER, &range)) fail("register");
    if (!strcmp(what, "wiped") && madvise(BASE + WIPED * PAGE, (PAGES - WIPED) * PAGE, MADV_WIPEONFORK)) fail("madvise");
    server = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un address = { AF_UNIX };
    strcpy(address.sun_path, arguments[1]);
    if (connect(server, (struct sockaddr *)&address, sizeof address)) fail("connect");
    say(7);
    offer(fd);
    // CRIU makes the mappings after that.
    if (early && (usleep(20000) || ioctl(fd, UFFDIO_REGISTER, &range))) fail("register");
    close(fd);
    say(-8);
    puts("ready");
    long bad = 0;
    char *at = BASE;
    int hurry = 0x52535446;
    // What comes before the server brings pages that are not waited for.
    if (!strcmp(what, "split")) {
        for (long page = 100; page < PAGES; page += 100) if (mprotect(at + page * PAGE, PAGE, PROT_READ)) fail("mprotect");
    } else if (!strcmp(what, "discarded")) {
        if (madvise(at + 64 * PAGE, 64 * PAGE, MADV_DONTNEED)) fail("madvise");
        at = mremap(at, PAGES * PAGE, (PAGES + 16) * PAGE, MREMAP_MAYMOVE);
        if (at == MAP_FAILED) fail("mremap");
        bad += empty(at + 100 * PAGE) + empty(at + PAGES * PAGE) + wrong(at + 63 * PAGE, 63);
    }
    for (long page = FIRST; early && page < FIRST + 45; page++) {
        unsigned char there = 0;
        while (!(there & 1)) if (mincore(at + page * PAGE, PAGE, &there)) fail("mincore");
    }
    // No page is brought yet that is not waited for.
    if (!strcmp(what, "waits")) bad += wrong(at + WIPED * PAGE, WIPED);
    if (!strcmp(what, "through")) bad += all(at, 0, PAGES);
    say(hurry);
    if (!strcmp(what, "ended")) {
        if (!fork()) _exit(wrong(at, 0) != 0);
        bad += wrong(at + PAGE, 1);
        printf("bad %ld\n", bad);
        return 0;
    }
    if (!strcmp(what, "wild")) {
        pthread_t threads[4];
        for (long i = 0; i < 4; i++) pthread_create(threads + i, 0, wild, (void *)(i * 512));
        for (int i = 0; i < 10; i++) {
            pid_t child = fork();
            if (!child) _exit(all(at, 2048, PAGES) != 0);
            int status;
            waitpid(child, &status, 0);
            bad += status != 0;
        }
        for (int i = 0; i < 4; i++) { void *more; pthread_join(threads[i], &more); bad += (long)more; }
        bad += all(at, 2048, PAGES);
    } else if (!strcmp(what, "wiped")) {
        pid_t child = fork();
        if (!child) {
            for (long page = WIPED; page < PAGES; page++) bad += empty(at + page * PAGE);
            _exit(bad + all(at, 0, WIPED) != 0);
        }
        int status;
        waitpid(child, &status, 0);
        bad += (status != 0) + all(at, 0, PAGES);
    } else {
        if (!strcmp(what, "first")) {
            // It touches nothing until the first page of all is there.
            unsigned char there = 0;
            while (!(there & 1)) if (mincore(at, PAGE, &there)) fail("mincore");
            for (long page = FIRST; page < FIRST + 20; page++) {
                if (mincore(at + page * PAGE, PAGE, &there)) fail("mincore");
                bad += !(there & 1);
            }
        }
        bad += all(at, 0, strcmp(what, "discarded") ? PAGES : 64);
        if (!strcmp(what, "discarded"))
            for (long page = 64; page < PAGES; page++) bad += page < 128 ? empty(at + page * PAGE) : wrong(at + page * PAGE, page);
    }
    printf("bad %ld\n", bad);
    fflush(stdout);
    getchar();
    return 0;
}
"#;

fn varint(mut value: u64, to: &mut Vec<u8>) {
    while value > 127 {
        to.push(value as u8 | 128);
        value >>= 7;
    }
    to.push(value as u8);
}

/// A message of numbers, by field.
fn message(fields: &[(u64, u64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (field, value) in fields {
        varint(field << 3, &mut bytes);
        varint(*value, &mut bytes);
    }
    bytes
}

fn image_file(path: &Path, magic: u32, records: &[Vec<u8>]) {
    let mut bytes = [0x5456_4319_u32.to_le_bytes(), magic.to_le_bytes()].concat();
    for record in records {
        bytes.extend((record.len() as u32).to_le_bytes());
        bytes.extend(record);
    }
    fs::write(path, bytes).expect("written");
}

/// CRIU's image of process 7: each word of the memory is its number.
fn image(dir: &Path, wiped: bool, working_set: bool) {
    let vma = |from: u64, to: u64, advice: u64| {
        let inner = message(&[
            (1, BASE + from * PAGE),
            (2, BASE + to * PAGE),
            (6, 0x22),
            (9, advice),
        ]);
        let mut bytes = vec![14 << 3 | 2];
        varint(inner.len() as u64, &mut bytes);
        [bytes, inner].concat()
    };
    let mm = [vma(0, WIPED, 0), vma(WIPED, PAGES, u64::from(wiped) << 18)].concat();
    image_file(&dir.join("mm-7.img"), 0x5749_2820, &[mm]);
    let entry =
        |from: u64, to: u64| message(&[(1, BASE + from * PAGE), (2, 0), (4, 6), (5, to - from)]);
    let map = [message(&[(1, 3)]), entry(0, WIPED), entry(WIPED, PAGES)];
    image_file(&dir.join("pagemap-7.img"), 0x5608_4025, &map);
    let words = (0..PAGES * 512)
        .flat_map(u64::to_le_bytes)
        .collect::<Vec<_>>();
    fs::write(dir.join("pages-3.img"), words).expect("written");
    // Pages that are none of the image's, those that shall come first, some of them twice.
    let set = [(PAGES + 9, 3), (FIRST, 20), (FIRST + 5, 40)];
    let set = set.map(|(page, count)| [BASE + page * PAGE, count * PAGE]);
    let set = set.as_flattened().iter().flat_map(|it| it.to_le_bytes());
    let set: Vec<u8> = b"FERMWSET".iter().copied().chain(set).collect();
    if working_set {
        fs::write(dir.join("working-set-7.img"), set).expect("written");
    }
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair")
}

/// Serves until all is there; what is returned says so, and what has been learnt.
fn serve(mut server: Server) -> JoinHandle<Learnt> {
    thread::spawn(move || {
        server.prepare();
        while server.turn(&[]).expect("served") != Turn::Complete {}
        server.learnt()
    })
}

fn runs(what: &str) {
    runs_knowing(what, None);
}

/// Has the program do `what`, with a working set or what was learnt in its place; returns what has been learnt.
fn runs_knowing(what: &str, learnt: Option<Learnt>) -> Learnt {
    let dir = tempfile::tempdir().expect("a folder");
    image(dir.path(), what == "wiped", learnt.is_none());
    let socket = dir.path().join("socket");
    let (ours, theirs) = pair();
    let files = Box::new(Folder(dir.path().into()));
    let server = Server::listen(dir.path(), dir.path(), files, &socket, ours).expect("listens");
    let server = server.knowing(learnt.unwrap_or_default());
    let holder = thread::spawn(move || hold(theirs, || panic!("the server has died")));
    let served = serve(server);
    let name = socket.to_str().expect("a short name");
    let mut program = Program::start(dir.path(), PROGRAM, &[name, what]);
    assert_eq!(program.line(), "bad 0", "{what}");
    let (sender, done) = channel();
    thread::spawn(move || sender.send((served.join(), holder.join())));
    let (served, held) = done.recv_timeout(LIMIT).expect("all pages come");
    let learnt = served.expect("served");
    held.expect("held");
    let maps = fs::read_to_string(format!("/proc/{}/smaps", program.pid())).unwrap_or_default();
    let watched =
        |line: &&str| line.starts_with("VmFlags:") && line.split(' ').any(|it| it == "um");
    assert_eq!(
        maps.lines().find(watched),
        None,
        "nothing is watched any more"
    );
    learnt
}

#[test]
fn pages_of_a_mapping_that_was_split_come() {
    runs("split");
}

#[test]
fn the_working_set_comes_before_other_pages() {
    runs("first");
}

#[test]
fn the_working_set_comes_as_soon_as_it_has_a_place() {
    runs("early");
}

#[test]
fn what_a_restore_has_waited_for_is_learnt_and_comes_as_soon_as_it_has_a_place() {
    let learnt = runs_knowing("waits", Some(Learnt::default()));
    assert_eq!(learnt.of(7).first(), Some(&(BASE + WIPED * PAGE)));
    let mut first = Learnt::default();
    let pages: Vec<u64> = (FIRST..FIRST + 45).map(|it| BASE + it * PAGE).collect();
    first.add(7, &pages);
    runs_knowing("early", Some(first));
}

#[test]
fn who_goes_through_memory_gets_more_of_it_each_time() {
    let learnt = runs_knowing("through", Some(Learnt::default()));
    let waits = learnt.of(7).len() as u64;
    // 64 KiB first, then half a MiB each.
    let most = PAGES * PAGE / (512 << 10) + 2;
    assert!((2..=most).contains(&waits), "{waits} waits");
}

#[test]
fn discarded_memory_is_empty_and_can_be_moved_with_what_surrounds_it() {
    runs("discarded");
}

#[test]
fn memory_that_threads_move_while_others_fork_keeps_its_content() {
    runs("wild");
}

#[test]
fn memory_that_fork_wipes_is_empty_in_the_child() {
    runs("wiped");
}

#[test]
fn a_program_that_ends_before_its_memory_is_there_is_not_waited_for() {
    runs("ended");
}

#[test]
fn what_holds_the_descriptors_ends_the_program_when_the_server_dies() {
    let dir = tempfile::tempdir().expect("a folder");
    let socket = dir.path().join("socket");
    let (ours, theirs) = pair();
    let files = Box::new(Folder(dir.path().into()));
    let server = Server::listen(dir.path(), dir.path(), files, &socket, ours).expect("listens");
    let (sender, ended) = channel();
    let holder = thread::spawn(move || hold(theirs, || sender.send(()).expect("heard")));
    drop(server);
    ended.recv_timeout(LIMIT).expect("the program is ended");
    holder.join().expect("held");
}
