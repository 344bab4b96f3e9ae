//! A process gets a userfaultfd made for it, and notices nothing, whatever it is at; others are refused.

use std::io::Write as _;
use std::time::{Duration, Instant};

use fermata_hostmem::{Error, acquire};
use rustix::process::Signal;

use self::support::{LIMIT, Program};

mod support;

/// A program that filters its system calls, and lets all pass.
const FILTERED: &str = r#"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(void) {
    struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = { 1, &all };
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    puts("ready");
    fflush(stdout);
    pause();
}
"#;

/// A program with the filter of Fermata's programs, and with its argument another one.
const WITHOUT_IO_URING: &str = r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct sock_filter deny[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xbfffffff),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { 5, deny };
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 1;
    if (argc > 1) {
        program = (struct sock_fprog){ 1, deny + 4 };
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 1;
    }
    puts("ready");
    fflush(stdout);
    pause();
}
"#;

/// Has a userfaultfd of its own.
const OWN: &str = r#"
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
    if (syscall(SYS_userfaultfd, 1) < 0) return 1;
    puts("ready");
    fflush(stdout);
    pause();
}
"#;

/// A thread forks all the time; each child looks for a userfaultfd.
const FORKS: &str = r#"
#define _GNU_SOURCE
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile int end, found;
static int has_one(void) {
    char name[64], to[64];
    for (int fd = 3; fd < 16; fd++) {
        sprintf(name, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(name, to, sizeof to - 1);
        if (n > 0 && (to[n] = 0, strstr(to, "userfaultfd"))) return 1;
    }
    return 0;
}
static void *fork_all(void *unused) {
    while (!end) {
        int status;
        pid_t child = fork();
        if (!child) _exit(has_one());
        waitpid(child, &status, 0);
        found += status != 0;
    }
    return 0;
}
int main(void) {
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) pthread_create(&thread[i], 0, fork_all, 0);
    puts("ready");
    fflush(stdout);
    getchar();
    end = 1;
    for (int i = 0; i < 2; i++) pthread_join(thread[i], 0);
    printf("found %d\n", found);
}
"#;

/// Computes, with all that a wrong register would spoil.
const COMPUTES: &str = r#"
#include <poll.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
    puts("ready");
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

/// Half of its time it is in a restartable sequence; the kernel forgets one that it finds interrupted elsewhere.
const RESTARTS: &str = r#"
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <sys/rseq.h>
static long run(char *area) {
    long seen;
    __asm__ volatile(
        ".pushsection __rseq_cs, \"aw\"\n.balign 32\n3: .long 0, 0\n.quad 1f, 2f - 1f, 4f\n.popsection\n"
        "leaq 3b(%%rip), %%rax\nmovq %%rax, 8(%[area])\n"
        "1: movl $200000, %%ecx\n5: decl %%ecx\njnz 5b\nmovq 8(%[area]), %%rax\n2: jmp 6f\n"
        ".long 0x53053053\n4: movq $1, %%rax\n6:\n"
        : "=&a"(seen) : [area] "r"(area) : "rcx", "memory", "cc");
    return seen;
}
int main(void) {
    if (!__rseq_size) return 1;
    char *area = (char *)__builtin_thread_pointer() + __rseq_offset;
    long forgotten = 0;
    puts("ready");
    fflush(stdout);
    struct pollfd more = { 0, POLLIN, 0 };
    do {
        for (int i = 0; i < 50; i++) {
            forgotten += run(area) == 0;
            for (volatile int j = 0; j < 50000; j++) { }
        }
    } while (poll(&more, 1, 0) == 0);
    printf("forgotten %ld\n", forgotten);
    return 0;
}
"#;

/// Says the number of a child that has its memory.
const SHARES: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <unistd.h>
int main(void) {
    puts("ready");
    fflush(stdout);
    if (!vfork()) {
        char text[16];
        (void)!write(1, text, sprintf(text, "%d\n", getpid()));
        for (;;) pause();
    }
}
"#;

fn end(program: &mut Program) -> String {
    let input = program.child.stdin.as_mut().expect("a pipe");
    input.write_all(b"x\n").expect("written");
    let said = program.line();
    assert!(program.child.wait().expect("waited").success(), "{said}");
    said
}

#[test]
fn programs_that_cannot_be_tracked_are_left_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = Program::start(dir.path(), FILTERED, &[]);
    let refused = acquire(program.pid()).expect_err("it filters its calls");
    assert!(matches!(refused, Error::Untrackable { .. }), "{refused}");
    assert!(refused.to_string().contains("seccomp"), "{refused}");
    program.stop();
    let refused = acquire(program.pid()).expect_err("it filters its calls, and is stopped");
    assert!(matches!(refused, Error::Untrackable { .. }), "{refused}");
}

#[test]
fn the_filter_of_our_own_programs_hinders_nothing_and_another_beside_it_does() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = Program::start(dir.path(), WITHOUT_IO_URING, &[]);
    acquire(program.pid()).expect("a userfaultfd");
    let program = Program::start(dir.path(), WITHOUT_IO_URING, &["more"]);
    let refused = acquire(program.pid()).expect_err("one of its filters is its own");
    assert!(refused.to_string().contains("seccomp"), "{refused}");
}

#[test]
fn a_program_with_a_userfaultfd_of_its_own_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = Program::start(dir.path(), OWN, &[]);
    let refused = acquire(program.pid()).expect_err("it has one");
    assert!(refused.to_string().contains("userfaultfd"), "{refused}");
}

#[test]
fn a_child_that_has_its_parents_memory_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut program = Program::start(dir.path(), SHARES, &[]);
    let child: u32 = program.line().parse().expect("a number");
    let refused = acquire(child);
    let pid = rustix::process::Pid::from_raw(child as i32).expect("a process");
    rustix::process::kill_process(pid, Signal::KILL).expect("killed");
    let refused = refused.expect_err("it has no memory of its own");
    let cause = std::error::Error::source(&refused).map(ToString::to_string);
    assert!(
        cause.as_deref().is_some_and(|it| it.contains("parent")),
        "{refused}: {cause:?}"
    );
}

#[test]
fn no_child_inherits_the_descriptor() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut program = Program::start(dir.path(), FORKS, &[]);
    for _ in 0..200 {
        acquire(program.pid()).expect("a userfaultfd");
    }
    assert_eq!(end(&mut program), "found 0");
}

#[test]
fn a_process_that_is_stopped_meanwhile_goes_on_as_it_was() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut program = Program::start(dir.path(), COMPUTES, &[]);
    let (mut got, mut refused) = (0, 0);
    let until = Instant::now() + LIMIT;
    for round in 0_u64.. {
        std::thread::scope(|scope| {
            let stop = scope.spawn(|| {
                // All of the time that an acquisition takes is hit.
                std::thread::sleep(Duration::from_micros(round * 37 % 1500));
                program.signal(Signal::STOP);
            });
            match acquire(program.pid()) {
                Ok(_) => got += 1,
                Err(_) => refused += 1,
            }
            stop.join().expect("joined");
        });
        program.signal(Signal::CONT);
        if (round >= 300 && got > 20) || Instant::now() > until {
            break;
        }
    }
    assert!(got > 20, "{got} of {} have succeeded", got + refused);
    assert_eq!(end(&mut program), "done");
}

#[test]
fn a_restartable_sequence_is_not_forgotten() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut program = Program::start(dir.path(), RESTARTS, &[]);
    let got = (0..60).filter(|_| acquire(program.pid()).is_ok()).count();
    assert!(got > 10, "{got} of 60");
    assert_eq!(end(&mut program), "forgotten 0");
}
