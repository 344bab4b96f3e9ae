//! Copies of processes that were forked: what they have in common is in the copy of the first, and each copy is exact, whatever they do meanwhile.

use std::io::Write as _;
use std::ops::Range;
use std::time::Duration;

use fermata_hostmem::{Exact, Extent, PAGE, SETTLED, Tracker, acquire};
use rustix::process::{Pid, Signal, kill_process};

use self::support::{Program, bytes_of, check_equal, own_pages, stop};

mod support;

/// Fills 24 MiB, forks a process that forks another, and has each write, discard, map anew and move memory that they have from it. With a
/// line of input the first one discards a quarter of it.
const CHURN: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
#define BIG (24u << 20)
#define PAGE 4096
#define RW PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS
static char *big, *fixed, *moved;
static uint64_t next(uint64_t *x) { *x ^= *x << 13; *x ^= *x >> 7; return *x ^= *x << 17; }
static void churn(uint64_t x, int quiet) {
    for (;;) {
        struct pollfd told = { 0, POLLIN, 0 };
        if (!quiet && poll(&told, 1, 0) > 0) {
            char c;
            (void)!read(0, &c, 1);
            madvise(big, BIG / 4, MADV_DONTNEED);
            puts("discarded");
            fflush(stdout);
        }
        for (int i = 0; i < 5; i++) big[next(&x) % (BIG / 2)] = x;
        size_t at = next(&x) % (BIG / PAGE - 16) * PAGE;
        switch (next(&x) % 256) {
        case 0:
            madvise(big + at, 16 * PAGE, MADV_DONTNEED);
            memset(big + at, (int)x, 4 * PAGE);
            break;
        case 1:
            mmap(fixed, 1 << 20, RW | MAP_FIXED, -1, 0);
            memset(fixed, (int)x, 1 << 19);
            break;
        case 2: {
            char *to = mmap(0, 1 << 20, RW, -1, 0);
            mremap(moved, 1 << 20, 1 << 20, MREMAP_MAYMOVE | MREMAP_FIXED, to);
            mmap(moved, 1 << 20, RW | MAP_FIXED, -1, 0);
            mremap(to, 1 << 20, 1 << 20, MREMAP_MAYMOVE | MREMAP_FIXED, moved);
        }
        }
        usleep(300);
    }
}
int main(int argc, char **argv) {
    big = mmap(0, BIG, RW, -1, 0);
    madvise(big, BIG, atoi(argv[1]) ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    for (uint64_t i = 0; i < BIG / 8; i++) ((uint64_t *)big)[i] = i * 0x9e3779b97f4a7c15;
    // Apart from each other, so that they stay what they are.
    fixed = mmap(0, 3 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fixed = mmap(fixed + (1 << 20), 1 << 20, RW | MAP_FIXED, -1, 0);
    memset(fixed, 7, 1 << 20);
    moved = mmap(0, 3 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    moved = mmap(moved + (1 << 20), 1 << 20, RW | MAP_FIXED, -1, 0);
    memset(moved, 9, 1 << 20);
    puts("ready");
    fflush(stdout);
    int told[2];
    (void)!pipe(told);
    for (int child = 0; child < 2; child++) {
        pid_t forked = fork();
        if (forked) {
            if (child) churn(7919 * (child + 2), 1);
            break;
        }
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int own = getpid();
        (void)!write(told[1], &own, sizeof own);
        if (child) churn(104729, 1);
    }
    int children[2];
    (void)!read(told[0], children, sizeof children[0]);
    (void)!read(told[0], children + 1, sizeof children[1]);
    printf("%d %d\n", children[0], children[1]);
    fflush(stdout);
    churn(15485863, 0);
}
"#;

/// The three processes, and how each is tracked.
struct Family {
    program: Program,
    pids: [u32; 3],
    trackers: Vec<Tracker>,
}

impl Drop for Family {
    fn drop(&mut self) {
        for pid in &self.pids[1..] {
            let pid = Pid::from_raw(*pid as i32).expect("a process");
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Family {
    fn start(dir: &std::path::Path, huge: &str) -> Self {
        let mut program = Program::start(dir, CHURN, &[huge]);
        let line = program.line();
        let number = |it: &str| it.parse::<u32>().expect("a number");
        let (child, grandchild) = line.split_once(' ').expect("two numbers");
        let pids = [program.pid(), number(child), number(grandchild)];
        let mut family = Self {
            program,
            pids,
            trackers: Vec::new(),
        };
        family.track();
        family
    }

    fn track(&mut self) {
        let track = |pid: &u32| {
            let uffd = acquire(*pid).expect("a userfaultfd");
            let file = tempfile::tempfile().expect("a file");
            Tracker::new(*pid, uffd, file).expect("a tracker")
        };
        self.trackers = self.pids.iter().map(track).collect();
        self.trackers[0].is_parent();
        std::thread::sleep(SETTLED);
    }

    /// A pass over each; how many bytes of the children were copied.
    fn pass(&mut self) -> u64 {
        let (first, children) = self.trackers.split_first_mut().expect("three");
        first.pass().expect("a pass");
        let passes = children.iter_mut().map(|it| it.pass_after(Some(first)));
        passes.map(|it| it.expect("a pass").bytes).sum()
    }

    /// Stops all, makes the copies exact, those of children with or without that of their parent, and holds them against their memory; how many bytes
    /// are in the parent's copy.
    fn check(&mut self, with_parent: bool) -> u64 {
        self.pids.iter().for_each(|pid| stop(*pid));
        let left_out = |it: &Tracker| it.known().left_out(2).expect("it can be examined");
        let mut trackers = std::mem::take(&mut self.trackers);
        let outs: Vec<Vec<Range<u64>>> = trackers.iter().map(left_out).collect();
        let (first, children) = trackers.split_first_mut().expect("three");
        let own = first.last(&outs[0]).expect("the rest is copied");
        let own = own.expect("it lives");
        let parents = Exact {
            own,
            parents: Vec::new(),
        };
        let mut all = vec![parents];
        for (child, out) in children.iter_mut().zip(&outs[1..]) {
            let parent = with_parent.then_some((&*first, &all[0].own[..]));
            let exact = child.last_after(out, parent).expect("the rest is copied");
            all.push(exact.expect("it lives"));
        }
        let bytes = all.iter().map(|it| bytes_of(&it.parents)).sum();
        let released = trackers.into_iter().zip(&all);
        let released = released.map(|(it, exact)| it.release(exact.own.clone()).expect("written"));
        let files: Vec<_> = released.map(|it| it.file).collect();
        for (at, (pid, exact)) in self.pids.iter().zip(&all).enumerate() {
            check_equal(*pid, &files[at], &exact.own);
            check_equal(*pid, &files[0], &exact.parents);
            check_whole(*pid, &outs[at], exact);
        }
        bytes
    }

    fn go_on(&mut self) {
        for pid in self.pids {
            let pid = Pid::from_raw(pid as i32).expect("a process");
            kill_process(pid, Signal::CONT).expect("signalled");
        }
        self.track();
    }
}

/// Every page of the process's own that CRIU leaves out is in the copy, once.
fn check_whole(pid: u32, left_out: &[Range<u64>], exact: &Exact) {
    let has = |extents: &[Extent], at: u64| extents.iter().any(|it| it.range.contains(&at));
    let own = own_pages(pid);
    let own = own
        .iter()
        .filter(|it| left_out.iter().any(|out| out.contains(it)));
    let wrong: Vec<_> = own
        .filter(|it| has(&exact.own, **it) == has(&exact.parents, **it))
        .collect();
    assert!(wrong.is_empty(), "process {pid}: {wrong:x?}");
    let twice = exact
        .parents
        .iter()
        .flat_map(|it| it.range.clone().step_by(PAGE as usize));
    assert_eq!(twice.filter(|it| has(&exact.own, *it)).count(), 0);
}

fn churns(huge: &str) {
    for passes in [1, 2, 7, 3] {
        let dir = tempfile::tempdir().expect("a folder");
        let mut family = Family::start(dir.path(), huge);
        let first = family.pass();
        for _ in 1..passes {
            std::thread::sleep(Duration::from_millis(5));
            family.pass();
        }
        let common = family.check(true);
        // Of 52 MiB of both children. All processes write all the time to one half of them.
        assert!(common > 4 << 20, "{common} bytes are in common");
        assert!(first + common > 20 << 20, "{first} bytes were copied");
    }
}

#[test]
fn copies_of_forked_processes_are_exact_whatever_they_do_meanwhile() {
    churns("0");
}

#[test]
fn so_are_those_with_huge_pages() {
    churns("1");
}

#[test]
fn what_the_parent_has_no_more_is_copied_from_its_children() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut family = Family::start(dir.path(), "0");
    let first = family.pass();
    assert!(first < 48 << 20, "{first} bytes were copied");
    let input = family.program.child.stdin.as_mut().expect("a pipe");
    input.write_all(b"x").expect("written");
    assert_eq!(family.program.line(), "discarded");
    family.check(true);
    // Without the parent's copy, all of it.
    family.go_on();
    family.pass();
    assert_eq!(family.check(false), 0);
}
