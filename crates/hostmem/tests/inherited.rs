//! What a child has in common with its parent is in the copy of the parent, byte for byte, and nothing else is.

use std::io::Write as _;
use std::ops::Range;
use std::time::Instant;

use fermata_hostmem::{PAGE, SETTLED, Tracker, acquire, inherited, select};
use rustix::process::{Pid, Signal, kill_process};

use self::support::{LIMIT, Program, check_equal};

mod support;

/// Has 8 MiB of pages with content and one of no content. When it is told to, it forks a child, which forks another if the second
/// argument says so; the last of them writes the second quarter of the pages, a page in the third, and what has no content, and its parent the last quarter.
const FORKS: &str = r#"
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
#define QUARTER (2L << 20)
#define RW PROT_READ | PROT_WRITE, MAP_PRIVATE
int main(int argc, char **argv) {
    char *own = mmap(0, 4 * QUARTER, RW | MAP_ANONYMOUS, -1, 0), *none = mmap(0, 1 << 20, RW | MAP_ANONYMOUS, -1, 0);
    if (argv[1][0] == '0') madvise(own, 4 * QUARTER, MADV_NOHUGEPAGE);
    for (uint64_t i = 0; i < 4 * QUARTER / 8; i++) ((uint64_t *)own)[i] = i * 0x9e3779b97f4a7c15;
    char page = none[0];
    printf("ready\n");
    fflush(stdout);
    getchar();
    int told[2];
    pipe(told);
    pid_t child = fork();
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (argv[2][0] == '2') {
            if (fork()) for (;;) pause();
            prctl(PR_SET_PDEATHSIG, SIGKILL);
        }
        child = getpid();
        memset(own + QUARTER, 1, QUARTER);
        own[2 * QUARTER + (99 << 12)] ^= 1;
        memset(none, 3, 1 << 20);
        write(told[1], &child, sizeof child);
        for (;;) pause();
    }
    memset(own + 3 * QUARTER, 2, QUARTER);
    read(told[0], &child, sizeof child);
    printf("%d %lu\n", child, (unsigned long)own);
    fflush(stdout);
    for (;;) pause();
}
"#;

/// Kills a process when it is dropped.
struct Killed(Pid);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

fn bytes(pages: &[Range<u64>]) -> u64 {
    pages.iter().map(|it| it.end - it.start).sum()
}

/// When the parent is tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tracked {
    BeforeTheFork,
    AfterTheFork,
}

/// A tracker of the program that has made a pass.
fn track(program: &Program) -> Tracker {
    let uffd = acquire(program.pid()).expect("a userfaultfd");
    let file = tempfile::tempfile().expect("a file");
    let mut tracker = Tracker::new(program.pid(), uffd, file).expect("a tracker");
    std::thread::sleep(SETTLED);
    tracker.pass().expect("a pass");
    tracker
}

fn check(huge: &str, generations: &str, when: Tracked) {
    const QUARTER: u64 = 2 << 20;
    let dir = tempfile::tempdir().expect("a folder");
    let mut program = Program::start(dir.path(), FORKS, &[huge, generations]);
    let before = (when == Tracked::BeforeTheFork).then(|| track(&program));
    let input = program.child.stdin.as_mut().expect("a pipe");
    input.write_all(b"x").expect("written");
    let line = program.line();
    let mut tracker = before.unwrap_or_else(|| track(&program));
    let mut numbers = line
        .split(' ')
        .map(|it| it.parse::<u64>().expect("a number"));
    let [child, own] = [(); 2].map(|()| numbers.next().expect("two numbers"));
    let child_pid = Pid::from_raw(child as i32).expect("a process");
    let _child = Killed(child_pid);
    program.stop();
    let inherited = |until| inherited(child as u32, program.pid(), until);
    let pages = inherited(Instant::now()).expect("both can be examined");
    assert_eq!(pages, [], "there was no time");
    let pages = inherited(Instant::now() + LIMIT).expect("both can be examined");
    // Frames are seen with `CAP_SYS_ADMIN`, which the tests of this crate have.
    let within = |at: Range<u64>| -> u64 {
        let part = |it: &Range<u64>| {
            it.start.max(at.start)..it.end.min(at.end).max(it.start.max(at.start))
        };
        bytes(&pages.iter().map(part).collect::<Vec<_>>())
    };
    let quarter = |k: u64| own + k * QUARTER..own + (k + 1) * QUARTER;
    assert_eq!(within(quarter(0)), QUARTER);
    assert_eq!(within(quarter(1)), 0, "the child has written it");
    let changed = own + 2 * QUARTER + 99 * PAGE;
    assert_eq!(
        within(changed..changed + PAGE),
        0,
        "the child has written it"
    );
    // The kernel splits a huge page of both for that.
    assert_eq!(within(quarter(2)), QUARTER - PAGE);
    assert_eq!(within(quarter(3)), 0, "the parent has written it");

    let extents = tracker.last(&[]).expect("the rest is copied");
    let extents = extents.expect("it lives");
    let [parts] = select([&extents], &pages).expect("the parent's copy has them");
    let copied = tracker.release(extents).expect("the copy is written");
    check_equal(child as u32, &copied.file, &parts);
}

#[test]
fn a_childs_pages_are_in_its_parents_copy() {
    check("0", "1", Tracked::BeforeTheFork);
}

#[test]
fn a_childs_huge_pages_are_in_its_parents_copy() {
    check("1", "1", Tracked::BeforeTheFork);
}

#[test]
fn a_grandchilds_pages_are_in_its_grandparents_copy() {
    check("0", "2", Tracked::BeforeTheFork);
}

/// What copies the parent must leave it what it has in common with its child.
#[test]
fn pages_of_an_earlier_child_are_in_its_parents_copy() {
    check("0", "1", Tracked::AfterTheFork);
    check("1", "1", Tracked::AfterTheFork);
}

#[test]
fn nothing_is_inherited_from_a_process_that_is_not_tracked() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut program = Program::start(dir.path(), FORKS, &["0", "1"]);
    let input = program.child.stdin.as_mut().expect("a pipe");
    input.write_all(b"x").expect("written");
    let line = program.line();
    let child = line.split(' ').next().and_then(|it| it.parse().ok());
    let child: u32 = child.expect("a number");
    let _child = Killed(Pid::from_raw(child as i32).expect("a process"));
    let until = Instant::now() + LIMIT;
    let pages = inherited(child, program.pid(), until).expect("both can be examined");
    assert_eq!(pages, []);
    inherited(u32::MAX, program.pid(), until).expect_err("no such process");
}
