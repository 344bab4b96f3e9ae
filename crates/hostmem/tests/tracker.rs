//! A copy that is taken of running programs: exact, whatever they do, and without a trace in them.

use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::time::{Duration, Instant};

use fermata_hostmem::{PAGE, Room, SETTLED, Tracker, acquire, is_tracked};
use rustix::process::Signal;

use self::support::{Program, bytes_of, check_equal, own_pages};

mod support;

/// Threads that write, map, unmap, move, discard, fork and read files into memory.
const CHURN: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define BIG (24u << 20)
#define RW PROT_READ | PROT_WRITE, MAP_PRIVATE
static char table[1 << 20] = { 1 };
static char *big;
static uint64_t next(uint64_t *x) { *x ^= *x << 13; *x ^= *x >> 7; return *x ^= *x << 17; }
static void *write_all(void *seed) {
    uint64_t x = (uintptr_t)seed;
    for (;;) {
        for (int i = 0; i < 200; i++) *(uint64_t *)(big + next(&x) % (BIG / 8) * 8) = x;
        for (int i = 0; i < 20; i++) table[next(&x) % sizeof table]++;
        usleep(100);
    }
}
static void *map_all(void *unused) {
    uint64_t x = 99991;
    for (;;) {
        // Some stay long enough to be tracked.
        useconds_t pause = next(&x) % 3 ? 1000 : 120000;
        size_t bytes = (64 + next(&x) % 64) << 12;
        char *a = mmap(0, bytes, RW | MAP_ANONYMOUS, -1, 0);
        memset(a, (int)x, bytes);
        usleep(pause);
        char *b = mremap(a, bytes, bytes * 2, MREMAP_MAYMOVE);
        memset(b + bytes, (int)x, bytes);
        usleep(pause);
        madvise(b + 8192, bytes / 2, MADV_DONTNEED);
        b[12288] = 7;
        usleep(pause);
        mprotect(b, bytes, next(&x) & 1 ? PROT_NONE : PROT_READ);
        usleep(pause);
        // Another mapping takes the place of a part of this one.
        mmap(b + bytes, 40 << 12, RW | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        memset(b + bytes, 5, 20 << 12);
        usleep(pause);
        munmap(b, bytes * 2);
    }
}
static void *fork_all(void *path) {
    for (;;) {
        pid_t child = fork();
        if (!child) { memset(big, 3, 1 << 20); usleep(3000); _exit(0); }
        waitpid(child, 0, 0);
        int fd = open(path, O_RDONLY);
        char *file = mmap(0, 1 << 20, RW, fd, 0);
        for (int i = 0; i < 1 << 20; i += 8192) file[i]++;
        usleep(3000);
        madvise(file, 1 << 19, MADV_DONTNEED);
        (void)!read(fd, big + (5 << 20), 1 << 20);
        usleep(3000);
        munmap(file, 1 << 20);
        close(fd);
    }
}
int main(int argc, char **argv) {
    big = mmap(0, BIG, RW | MAP_ANONYMOUS, -1, 0);
    madvise(big, BIG, atoi(argv[2]) ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memset(big, 1, BIG);
    char *heap = malloc(64 << 10);
    memset(heap, 2, 64 << 10);
    pthread_t thread;
    for (uintptr_t i = 1; i < 3; i++) pthread_create(&thread, 0, write_all, (void *)(i * 7919));
    pthread_create(&thread, 0, map_all, 0);
    pthread_create(&thread, 0, fork_all, argv[1]);
    puts("ready");
    fflush(stdout);
    for (;;) { heap = realloc(heap, (64 + rand() % 512) << 10); heap[rand() % 65536]++; usleep(500); }
}
"#;

/// Waits in system calls, and says which of them a stop has disturbed.
const WAITING: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
static volatile int handled;
static void handle(int s) { handled++; }
int main(void) {
    int p[2];
    (void)!pipe(p);
    signal(SIGTRAP, SIG_IGN);
    struct sigaction action = { .sa_handler = handle };
    sigaction(SIGUSR1, &action, 0);
    sigset_t mask, before, after;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    sigprocmask(SIG_BLOCK, &mask, 0);
    sigprocmask(SIG_BLOCK, 0, &before);
    puts("ready");
    fflush(stdout);
    struct timespec second = { 1, 0 }, left;
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    if (nanosleep(&second, &left)) printf("nanosleep: %d\n", errno);
    clock_gettime(CLOCK_MONOTONIC, &b);
    double slept = b.tv_sec - a.tv_sec + (b.tv_nsec - a.tv_nsec) / 1e9;
    if (slept < 0.99) printf("slept %f\n", slept);
    struct pollfd nothing = { p[0], POLLIN, 0 };
    if (poll(&nothing, 1, 700) != 0) printf("poll: %d\n", errno);
    if (ppoll(&nothing, 1, &(struct timespec){ 0, 700000000 }, &mask) != 0) printf("ppoll: %d\n", errno);
    puts("reading");
    fflush(stdout);
    char c;
    if (read(0, &c, 1) != 1) printf("read: %d\n", errno);
    sigprocmask(SIG_BLOCK, 0, &after);
    struct sigaction trap;
    sigaction(SIGTRAP, 0, &trap);
    if (trap.sa_handler != SIG_IGN) puts("SIGTRAP is not ignored any more");
    for (int s = 1; s < 32; s++) if (sigismember(&before, s) != sigismember(&after, s)) printf("mask %d\n", s);
    printf("handled %d\n", handled);
    fflush(stdout);
    struct pollfd more = { 0, POLLIN, 0 };
    do {
        volatile double sum = 0;
        for (long i = 0; i < 1000000; i++) sum += i & 7;
        if (sum != 3500000) printf("sum %f\n", sum);
    } while (poll(&more, 1, 0) == 0);
    puts("done");
    return 0;
}
"#;

fn track(program: &Program) -> Tracker {
    track_to(program, tempfile::tempfile().expect("a file"))
}

fn track_to(program: &Program, file: File) -> Tracker {
    let uffd = acquire(program.pid()).expect("a userfaultfd");
    let tracker = Tracker::new(program.pid(), uffd, file).expect("its mappings");
    std::thread::sleep(SETTLED);
    tracker
}

/// Takes a copy, and holds it against the memory of the program, which stands still.
fn check_copy(program: &Program, mut tracker: Tracker) {
    program.stop();
    let left_out = tracker.known().left_out(2).expect("it can be examined");
    let extents = tracker.last(&left_out).expect("the rest is copied");
    let extents = extents.expect("it lives");
    let tracked = tracked_mappings(program.pid());
    assert!(
        tracked.iter().all(|it| left_out.contains(it)),
        "all that is tracked is left out"
    );
    assert!(tracked.len() + 10 < left_out.len(), "and more than that");
    // Other mappings are CRIU's.
    let is_left_out = |address: &u64| left_out.iter().any(|it| it.contains(address));
    let own: Vec<u64> = own_pages(program.pid())
        .into_iter()
        .filter(is_left_out)
        .collect();
    let has = |address: u64| extents.iter().any(|it| it.range.contains(&address));
    let lost: Vec<_> = own.iter().filter(|it| !has(**it)).collect();
    assert!(
        lost.is_empty(),
        "{} pages are not copied: {:x?}",
        lost.len(),
        lost.first()
    );
    assert!(own.len() as u64 * PAGE > 20 << 20, "most of it is tracked");
    assert!(bytes_of(&extents) >= own.len() as u64 * PAGE);
    let copied = tracker.release(extents).expect("the copy is written");
    check_equal(program.pid(), &copied.file, &copied.extents);
    check_untracked(program);
    program.signal(Signal::CONT);
}

/// Nothing is left of the tracking. A process that another test starts has the descriptor, too, until it executes its program.
fn check_untracked(program: &Program) {
    let until = Instant::now() + Duration::from_secs(10);
    while is_tracked(program.pid()).expect("asked") {
        assert!(Instant::now() < until, "it is tracked still");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Mappings that the kernel says are tracked.
fn tracked_mappings(pid: u32) -> Vec<Range<u64>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps")).expect("its mappings");
    let number = |text| u64::from_str_radix(text, 16);
    let (mut found, mut last) = (Vec::new(), 0..0);
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|it| it.split_once('-'));
        if let Some((start, end)) = range
            && let (Ok(start), Ok(end)) = (number(start), number(end))
        {
            last = start..end;
        } else if line.starts_with("VmFlags:") && line.split_whitespace().any(|it| it == "uw") {
            found.push(last.clone());
        }
    }
    found
}

fn churns(huge: &str) {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("file");
    fs::write(&file, vec![9; 1 << 20]).expect("written");
    let program = Program::start(dir.path(), CHURN, &[file.to_str().expect("a name"), huge]);
    // With memory for nothing, for all and for a part of what is written, and the same for what the last pass copies.
    let (most, part) = (64 << 20, 4 << 20);
    let rounds = [
        (1, 0, 0),
        (3, most, most),
        (0, most, 0),
        (6, part, part),
        (2, 0, part),
        (4, most, part),
        (1, 0, most),
    ];
    for (passes, memory, room) in rounds {
        let mut tracker = track(&program);
        let until = Instant::now() + Duration::from_secs(20);
        // A neighbour that the kernel makes one with the large mapping, or cuts off from it, makes it young once more.
        while tracker.pass().expect("a pass").bytes < 24 << 20 {
            assert!(Instant::now() < until, "no pass has copied most of it");
            std::thread::sleep(SETTLED);
        }
        tracker.keep_in_memory(memory, 3);
        let (young, others) = (room / 2, room / 2);
        tracker.make_room(Room { young, others }, 3);
        for _ in 0..passes {
            std::thread::sleep(Duration::from_millis(40));
            let bytes = tracker.pass().expect("a pass").bytes;
            assert!(bytes > 0, "it writes all the time");
        }
        check_copy(&program, tracker);
    }
}

#[test]
fn a_copy_is_exact_whatever_the_program_does_meanwhile() {
    churns("0");
}

#[test]
fn a_copy_of_huge_pages_is_exact() {
    churns("1");
}

#[test]
fn tracking_leaves_system_calls_and_signals_as_they_were() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut program = Program::start(dir.path(), WAITING, &[]);
    let disturb = |program: &Program, times: u32| {
        for _ in 0..times {
            let mut tracker = track(program);
            program.signal(Signal::USR2);
            tracker.pass().expect("a pass");
            std::thread::sleep(Duration::from_millis(40));
        }
    };
    let write = |program: &mut Program| {
        let input = program.child.stdin.as_mut().expect("a pipe");
        input.write_all(b"x").expect("written");
    };
    // All three waits of 2.4 s together.
    disturb(&program, 25);
    assert_eq!(program.line(), "reading");
    disturb(&program, 10);
    write(&mut program);
    assert_eq!(program.line(), "handled 0");
    // Now it computes.
    disturb(&program, 10);
    write(&mut program);
    assert_eq!(program.line(), "done");
    assert!(
        program.child.wait().expect("waited").success(),
        "it ends by itself"
    );
}

#[test]
fn a_holder_that_dies_leaves_nothing_behind() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("file");
    fs::write(&file, vec![9; 1 << 20]).expect("written");
    let program = Program::start(dir.path(), CHURN, &[file.to_str().expect("a name"), "0"]);
    let mut tracker = track(&program);
    tracker.pass().expect("a pass");
    assert!(is_tracked(program.pid()).expect("asked"));
    drop(tracker);
    check_untracked(&program);
    let again = track(&program);
    check_copy(&program, {
        let mut again = again;
        again.pass().expect("a pass");
        again
    });
}

#[test]
fn a_process_that_ends_is_an_error() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("file");
    fs::write(&file, vec![9; 1 << 20]).expect("written");
    let mut program = Program::start(dir.path(), CHURN, &[file.to_str().expect("a name"), "0"]);
    let mut tracker = track(&program);
    tracker.pass().expect("a pass");
    program.child.kill().expect("killed");
    program.child.wait().expect("waited");
    tracker.pass().expect_err("it has ended");
    acquire(program.pid()).expect_err("it has ended");
}

/// Moves the lower part of its memory away and back, so that it becomes one mapping with the rest again, and rewrites
/// the rest; does each when it is told to.
const RETURNS: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#define PART (1u << 20)
#define REST (32u << 20)
#define RW PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS
static void move(char *from, char *to) {
    if (mremap(from, PART, PART, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to) puts("not moved");
}
int main(void) {
    char *part = mmap(0, PART + REST, RW, -1, 0), *rest = part + PART, *there = mmap(0, 3 * PART, PROT_NONE,
        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + PART;
    madvise(part, PART + REST, MADV_NOHUGEPAGE);
    memset(part, 1, PART + REST);
    for (int round = 2;; round++) {
        puts("ready");
        fflush(stdout);
        switch (getchar()) {
        case 'a': move(part, there); break;
        case 'b': move(there, part); break;
        default: memset(rest, round, REST);
        }
    }
}
"#;

#[test]
fn memory_beside_a_mapping_that_came_back_is_copied_exactly() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut program = Program::start(dir.path(), RETURNS, &[]);
    let tell = |program: &mut Program, what: &str| {
        let input = program.child.stdin.as_mut().expect("a pipe");
        input.write_all(what.as_bytes()).expect("written");
        assert_eq!(program.line(), "ready");
    };
    let settle = |tracker: &mut Tracker| {
        tracker.pass().expect("a pass");
        std::thread::sleep(SETTLED);
        tracker.pass().expect("a pass").bytes
    };
    let mut tracker = track(&program);
    settle(&mut tracker);
    tell(&mut program, "a");
    settle(&mut tracker);
    // Two tracked mappings become one: the kernel ends the tracking of both, and the marks of protected pages stay.
    tell(&mut program, "b");
    tell(&mut program, "w");
    let again = settle(&mut tracker);
    assert!(again >= 32 << 20, "{again} bytes: it is tracked again");
    tell(&mut program, "w");
    check_copy(&program, tracker);
}

/// Writes to all of its memory faster than it can be copied.
const RUSH: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#define BYTES (96L << 20)
static char memory[BYTES];
static void *rush(void *from) {
    for (char k = 1;; k++) memset(from, k, BYTES / 2);
}
int main(void) {
    pthread_t thread;
    memset(memory, 1, BYTES);
    pthread_create(&thread, 0, rush, memory);
    puts("ready");
    fflush(stdout);
    rush(memory + BYTES / 2);
}
"#;

#[test]
fn a_program_that_writes_faster_than_it_is_copied_is_copied_as_it_stands() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = Program::start(dir.path(), RUSH, &[]);
    let mut tracker = track(&program);
    for _ in 0..3 {
        tracker.pass().expect("a pass");
    }
    check_copy(&program, tracker);
}

/// Has 8 MiB, of which it first writes so many bytes; when it is told to, it gives them back and takes new ones at the same
/// addresses, which it writes all.
const RENEWS: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#define BYTES (8L << 20)
int main(int argc, char **argv) {
    char *guarded = mmap(0, BYTES + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *own = guarded + 4096;
    for (int round = 1;; round++) {
        mmap(own, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        memset(own, round, round == 1 ? atol(argv[1]) : BYTES);
        puts("ready");
        fflush(stdout);
        getchar();
        munmap(own, BYTES);
    }
}
"#;

const BYTES: u64 = 8 << 20;

fn renew(program: &mut Program) {
    let input = program.child.stdin.as_mut().expect("a pipe");
    input.write_all(b"x").expect("written");
    assert_eq!(program.line(), "ready");
}

#[test]
fn what_is_tracked_no_longer_and_what_has_been_filled_is_not_left_out() {
    // The mapping is tracked, and there is little in it.
    for first in [BYTES, PAGE] {
        let dir = tempfile::tempdir().expect("a folder");
        let mut program = Program::start(dir.path(), RENEWS, &[&first.to_string()]);
        let mut tracker = track(&program);
        tracker.pass().expect("a pass");
        let left_out = |tracker: &Tracker| {
            let left_out = tracker.known().left_out(2).expect("examined");
            let of_that_size = left_out.iter().filter(|it| it.end - it.start == BYTES);
            (of_that_size.count(), left_out)
        };
        assert_eq!(left_out(&tracker).0, 1);
        renew(&mut program);
        program.stop();
        let (of_that_size, left_out) = left_out(&tracker);
        assert_eq!(of_that_size, 0, "CRIU dumps it");
        let extents = tracker.last(&left_out).expect("the rest is copied");
        let extents = extents.expect("it lives");
        assert!(bytes_of(&extents) < BYTES);
    }
}

#[test]
fn what_has_just_been_made_is_left_out_as_far_as_there_is_room() {
    for first in [BYTES, PAGE] {
        for (room, expected) in [(0, 0), (BYTES - PAGE, 0), (BYTES + BYTES / 2, 1)] {
            let dir = tempfile::tempdir().expect("a folder");
            let mut program = Program::start(dir.path(), RENEWS, &[&first.to_string()]);
            let mut tracker = track(&program);
            tracker.pass().expect("a pass");
            let (young, others) = (room, 0);
            tracker.make_room(Room { young, others }, 2);
            renew(&mut program);
            program.stop();
            let left_out = tracker.known().left_out(2).expect("examined");
            let new = left_out.iter().filter(|it| it.end - it.start == BYTES);
            assert_eq!(new.count(), expected, "{first} {room}");
            let extents = tracker.last(&left_out).expect("the rest is copied");
            let extents = extents.expect("it lives");
            assert_eq!(bytes_of(&extents) >= BYTES, expected == 1);
            let copied = tracker.release(extents).expect("the copy is written");
            check_equal(program.pid(), &copied.file, &copied.extents);
        }
    }
}

#[test]
fn memory_that_is_taken_anew_needs_no_more_space_for_its_copy() {
    for memory in [0, 2 * BYTES] {
        let dir = tempfile::tempdir().expect("a folder");
        let mut program = Program::start(dir.path(), RENEWS, &["8388608"]);
        let file = tempfile::tempfile().expect("a file");
        let mut tracker = track_to(&program, file.try_clone().expect("the same file"));
        let mut first = tracker.pass().expect("a pass").bytes;
        tracker.keep_in_memory(memory, 2);
        for _ in 0..4 {
            assert!(first >= BYTES, "{first} bytes: it is tracked");
            renew(&mut program);
            let early = tracker.pass().expect("a pass");
            assert!(
                early.bytes < BYTES && early.young >= BYTES,
                "it has not stayed for long enough: {early:?}"
            );
            std::thread::sleep(SETTLED);
            let late = tracker.pass().expect("a pass");
            assert!(late.young < BYTES, "{late:?}");
            first = late.bytes;
        }
        program.stop();
        let left_out = tracker.known().left_out(2).expect("examined");
        let extents = tracker.last(&left_out).expect("the rest is copied");
        let extents = extents.expect("it lives");
        let copied = tracker.release(extents).expect("the copy is written");
        check_equal(program.pid(), &copied.file, &copied.extents);
        let length = file.metadata().expect("examined").len();
        assert!(length < 2 * BYTES, "{length} bytes for {BYTES}");
    }
}

/// Opens a file past the page cache when it is told to.
const DIRECT: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) {
    puts("ready");
    fflush(stdout);
    getchar();
    open(argv[1], O_RDONLY | O_DIRECT);
    puts("open");
    fflush(stdout);
    pause();
}
"#;

#[test]
fn a_process_that_begins_to_read_past_the_page_tables_is_tracked_no_longer() {
    // File systems in memory have no such files.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let file = dir.path().join("file");
    fs::write(&file, "x").expect("written");
    let mut program = Program::start(dir.path(), DIRECT, &[file.to_str().expect("a name")]);
    let mut tracker = track(&program);
    tracker.pass().expect("a pass");
    let input = program.child.stdin.as_mut().expect("a pipe");
    input.write_all(b"x\n").expect("written");
    assert_eq!(program.line(), "open");
    let refused = tracker.pass().expect_err("it has a file open");
    assert!(refused.to_string().contains("O_DIRECT"), "{refused}");
    let refused = tracker.last(&[]).expect_err("it has a file open");
    assert!(refused.to_string().contains("O_DIRECT"), "{refused}");
}

#[test]
fn a_mapping_that_is_left_out_and_no_more_is_an_error() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = Program::start(dir.path(), RUSH, &[]);
    let mut tracker = track(&program);
    tracker.pass().expect("a pass");
    program.stop();
    let mut left_out = tracker.known().left_out(2).expect("examined");
    let last = left_out.last_mut().expect("a mapping");
    last.end += PAGE;
    let refused = tracker
        .last(&left_out)
        .expect_err("there is no such mapping");
    assert!(refused.to_string().contains("is no more"), "{refused}");
}
