//! Host memory that is copied while the program runs: the image is that of the stop, whatever the program writes.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;

use anyhow::{Context, Result, anyhow, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::halt::Halt;
use fermata_e2e::scene::{Scene, kill_nine, wait_until};

/// Rewrites memory for ever, in an order that its own memory says; each page names the step that wrote it last. With a file
/// `stop` it ends, after it has held every page against that order, and mappings against its advice. A child does the same.
/// With the argument `on` neither rests. With `forks` the parent always has one more child, which goes on with what it has from
/// its parent for a moment, and holds it against that order. With a file `late` the parent starts a process that does the same with other
/// memory, and removes the file. With a file `direct` the parent opens another past the page cache, and
/// removes that one. At its end it says what is in a page that the kernel may drop, in which it has written 1, if it got one.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define PAGE 4096
static uint64_t table[64 * PAGE / 8];
typedef struct { uint64_t *base; size_t pages; uint64_t step; uint64_t *last; } Area;
static uint64_t place(const Area *a, uint64_t step) { return step * 2654435761u % a->pages; }
static void step(Area *a) {
    uint64_t n = a->step++, page = place(a, n);
    for (int i = 0; i < PAGE / 8; i++) a->base[page * (PAGE / 8) + i] = n + i;
    a->last[page] = n;
}
static long wrong(const Area *a) {
    long bad = 0;
    for (size_t page = 0; page < a->pages; page++)
        for (int i = 0; i < PAGE / 8; i++) bad += a->base[page * (PAGE / 8) + i] != a->last[page] + i;
    return bad;
}
static Area area(uint64_t *base, size_t pages) {
    Area a = { base, pages, 0, calloc(pages, 8) };
    for (size_t i = 0; i < pages; i++)
        for (int j = 0; j < PAGE / 8; j++) a.base[i * (PAGE / 8) + j] = j;
    return a;
}
static uint64_t *map(size_t pages) {
    return mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
static long kept(const char *wiped) {
    int status;
    pid_t child = fork();
    if (!child) _exit(wiped[PAGE]);
    waitpid(child, &status, 0);
    return status;
}
// Whether pages that were made inaccessible are, and those beside them are what they were.
static long guarded(const volatile char *pages, int installed) {
    int status;
    pid_t child = fork();
    if (!child) _exit(pages[3 * PAGE]);
    waitpid(child, &status, 0);
    int denied = WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
    return (denied != installed) + (pages[PAGE] != 7) + (pages[5 * PAGE] != 8);
}
static long heir(Area *a, Area *b) {
    pid_t child = fork();
    for (int i = 0; i < 60; i++) {
        step(a);
        step(b);
        usleep(1000);
    }
    if (!child) _exit(wrong(a) + wrong(b) != 0);
    int status;
    waitpid(child, &status, 0);
    return status != 0;
}
static long run(size_t pages, const char *name, int rests, int forks) {
    char *wiped = (char *)map(4);
    madvise(wiped, 4 * PAGE, MADV_WIPEONFORK);
    wiped[PAGE] = 1;
    char *guards = (char *)map(8);
    guards[PAGE] = 7;
    guards[5 * PAGE] = 8;
    // MADV_GUARD_INSTALL, from Linux 6.13 on.
    int installed = madvise(guards + 2 * PAGE, 3 * PAGE, 102) == 0;
    char *dropped = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | 0x08, -1, 0);
    if (dropped != MAP_FAILED) *dropped = 1;
    Area big = area(map(pages), pages), data = area(table, 64), own = area(map(300), 300);
    printf("%s runs\n", name);
    fflush(stdout);
    long bad = 0;
    while (access("stop", F_OK)) {
        for (int i = 0; i < 64; i++) step(&big);
        step(&data);
        step(&own);
        if (own.step % 500 == 0) {
            // It goes somewhere else, and something new comes in its place.
            uint64_t *old = own.base;
            own.base = mremap(old, 300 * PAGE, 300 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, map(300));
            munmap(mmap(old, 300 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 300 * PAGE);
        }
        if (rests) usleep(200);
        if (forks) bad += heir(&big, &data);
        if (*name == 'p' && !access("late", F_OK)) {
            unlink("late");
            if (!fork()) {
                execl("/proc/self/exe", "rewrite", "late", NULL);
                _exit(1);
            }
        }
        if (*name == 'p' && !access("direct", F_OK) && open("/proc/self/exe", O_RDONLY | O_DIRECT) >= 0) unlink("direct");
    }
    bad += wrong(&big) + wrong(&data) + wrong(&own) + kept(wiped) + guarded(guards, installed);
    if (dropped != MAP_FAILED) printf("%s: %d in the page that may be dropped\n", name, *dropped);
    printf("%s: %ld words are wrong\n", name, bad);
    fflush(stdout);
    return bad;
}
int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "late")) return run(48 << 8, "late", 1, 0) != 0;
    pid_t child = fork();
    int rests = argc < 2 || strcmp(argv[1], "on"), forks = argc > 1 && !strcmp(argv[1], "forks");
    if (!child) return run(8 << 8, "child", rests, 0) != 0;
    long bad = run(100 << 8, "parent", rests, forks);
    int status;
    while (wait(&status) > 0) bad += status != 0;
    return bad != 0;
}
"#;

fn start(scene: &Scene, name: &str, arguments: &[&str]) -> Result<()> {
    let program = scene.compile("rewrite", PROGRAM)?;
    let program = program.to_str().context("a path")?;
    let mut words = vec!["run", "--detach", "--name", name, "--", program];
    words.extend(arguments);
    scene.fermata().call(&words)?.success("fermata run")?;
    let runs = || Ok(scene.fermata().log(name)?.lines().count() == 2);
    wait_until("both processes run", runs)
}

/// Has the program end, which says what it has found.
fn check_whole(scene: &Scene, name: &str) -> Result<()> {
    let stop = scene.sandbox().work().join("stop");
    fs::write(&stop, "")?;
    // Its status is told to the daemon that started it, which may be gone; what it has printed says it all.
    let ended = || Ok(scene.fermata().session(name)?.state == "exited");
    wait_until("the program ends", ended)?;
    fs::remove_file(&stop)?;
    let log = scene.fermata().log(name)?;
    let all = log.matches(" runs\n").count();
    ensure!(
        all >= 2 && log.matches(": 0 words are wrong").count() == all,
        "{log}"
    );
    Ok(())
}

/// Has the program of an image come back and end.
fn check_restored(scene: &Scene, image: &str) -> Result<()> {
    let again = format!("again-{image}");
    scene.fermata().restore(image, &again, Device::Soft)?;
    check_whole(scene, &again)
}

/// Takes an image, ahead of the stop.
fn take(scene: &Scene, name: &str, image: &str) -> Result<()> {
    let done = scene
        .fermata()
        .checkpoint_with(name, image, Mode::Auto, &["--json"])?;
    ensure!(done.stdout.contains("\"host last\""), "{}", done.stdout);
    Ok(())
}

/// The daemon's log has nothing of a copy that was given up.
fn check_copied(scene: &Scene) -> Result<()> {
    let log = scene.daemon_log()?;
    let given_up = ["not copied ahead", "after all"];
    ensure!(!given_up.iter().any(|it| log.contains(it)), "{log}");
    Ok(())
}

#[test]
fn memory_that_is_rewritten_comes_back_as_it_was_at_the_stop() -> Result<()> {
    let scene = Scene::new()?;
    start(&scene, "rewrite", &[])?;
    for image in ["first", "second", "third"] {
        std::thread::sleep(std::time::Duration::from_millis(137));
        let done = scene.fermata().checkpoint("rewrite", image, Mode::Auto)?;
        ensure!(
            done.stderr.contains("of which it stood still"),
            "{}",
            done.stderr
        );
    }
    check_copied(&scene)?;
    scene.fermata().kill("rewrite")?;
    for image in ["first", "third"] {
        let verified = scene.fermata().call(&["images", "verify", image])?;
        verified.success("fermata images verify")?;
        check_restored(&scene, image)?;
    }
    // A restored program is one whose memory can be copied, too, and its image is as good.
    scene.fermata().restore("second", "again", Device::Soft)?;
    take(&scene, "again", "fourth")?;
    check_copied(&scene)?;
    scene.fermata().kill("again")?;
    scene.fermata().restore("fourth", "last", Device::Soft)?;
    check_whole(&scene, "last")?;
    scene.close()
}

#[test]
fn memory_that_is_written_without_a_rest_comes_back_as_it_was_at_the_stop() -> Result<()> {
    let scene = Scene::new()?;
    start(&scene, "rewrite", &["on"])?;
    for image in ["first", "second"] {
        take(&scene, "rewrite", image)?;
    }
    check_copied(&scene)?;
    check_whole(&scene, "rewrite")?;
    for image in ["first", "second"] {
        check_restored(&scene, image)?;
    }
    scene.close()
}

#[test]
fn a_process_that_begins_during_a_checkpoint_has_its_parents_memory_from_the_copy() -> Result<()> {
    let scene = Scene::new()?;
    start(&scene, "rewrite", &["forks"])?;
    for image in ["first", "second"] {
        take(&scene, "rewrite", image)?;
        std::thread::sleep(std::time::Duration::from_millis(41));
    }
    check_copied(&scene)?;
    let log = scene.daemon_log()?;
    let shared = log.matches("is that of their parents").count();
    ensure!(shared > 0, "{log}");
    check_whole(&scene, "rewrite")?;
    for image in ["first", "second"] {
        check_restored(&scene, image)?;
    }
    scene.close()
}

#[test]
fn the_memory_of_a_process_that_comes_before_the_stop_is_copied_ahead() -> Result<()> {
    let scene = Scene::new()?;
    start(&scene, "rewrite", &[])?;
    // Before CRIU is started, and when it is ready to dump.
    let moments = [("ahead", "first"), ("ready", "second")];
    for (at, (moment, image)) in moments.into_iter().enumerate() {
        let halt = Halt::at(&scene, moment)?;
        std::thread::scope(|scope| {
            let attempt = scope.spawn(|| take(&scene, "rewrite", image));
            halt.wait()?;
            fs::write(scene.sandbox().work().join("late"), "")?;
            let runs = || Ok(scene.fermata().log("rewrite")?.matches("late runs").count() > at);
            wait_until("it has started another process", runs)?;
            drop(halt);
            attempt.join().map_err(|_| anyhow!("a thread has failed"))?
        })?;
        check_copied(&scene)?;
        let log = scene.daemon_log()?;
        let copied = "memory of processes that have just begun is copied ahead, too";
        ensure!(log.matches(copied).count() == at + 1, "{log}");
    }
    check_whole(&scene, "rewrite")?;
    for (_, image) in moments {
        check_restored(&scene, image)?;
    }
    scene.close()
}

#[test]
fn memory_that_the_kernel_may_drop_is_not_in_the_image() -> Result<()> {
    let scene = Scene::new()?;
    start(&scene, "rewrite", &[])?;
    take(&scene, "rewrite", "first")?;
    check_copied(&scene)?;
    check_whole(&scene, "rewrite")?;
    check_restored(&scene, "first")?;
    let dropped = |name: &str, value: &str| -> Result<usize> {
        let line = format!(": {value} in the page that may be dropped");
        Ok(scene.fermata().log(name)?.matches(&line).count())
    };
    // A kernel before 6.11 has no such pages.
    if dropped("rewrite", "1")? > 0 {
        let log = scene.fermata().log("again-first")?;
        ensure!(dropped("again-first", "0")? == 2, "{log}");
    }
    scene.close()
}

#[test]
fn memory_whose_copy_fails_in_the_stop_is_dumped_by_criu_after_all() -> Result<()> {
    let scene = Scene::new()?;
    start(&scene, "rewrite", &[])?;
    let halt = Halt::at(&scene, "dump")?;
    std::thread::scope(|scope| {
        let attempt = scope.spawn(|| take(&scene, "rewrite", "first"));
        halt.wait()?;
        // Such memory may be written past the page tables: it cannot be copied.
        let direct = scene.sandbox().work().join("direct");
        fs::write(&direct, "")?;
        wait_until("it has opened a file", || Ok(!direct.exists()))?;
        drop(halt);
        attempt.join().map_err(|_| anyhow!("a thread has failed"))?
    })?;
    let log = scene.daemon_log()?;
    ensure!(log.contains("memory is dumped by CRIU after all"), "{log}");
    check_whole(&scene, "rewrite")?;
    check_restored(&scene, "first")?;
    scene.close()
}

#[test]
fn a_daemon_killed_while_memory_is_copied_leaves_the_program_unharmed() -> Result<()> {
    let scene = Scene::new()?;
    start(&scene, "rewrite", &[])?;
    let drafts = || -> Result<BTreeSet<OsString>> {
        let entries = fs::read_dir(scene.sandbox().images())?.flatten();
        let names = entries.map(|it| it.file_name());
        Ok(names
            .filter(|it| it.to_string_lossy().starts_with(".draft"))
            .collect())
    };
    for pause in [5, 30, 60, 100] {
        // That of a killed daemon may be there still.
        let before = drafts()?;
        // The image is not complete before, however late this thread is.
        let halt = Halt::at(&scene, "commit")?;
        let done = std::thread::scope(|scope| {
            let attempt = scope.spawn(|| scene.fermata().call(&["checkpoint", "rewrite"]));
            wait_until("a checkpoint begins", || Ok(!drafts()?.is_subset(&before)))?;
            std::thread::sleep(std::time::Duration::from_millis(pause));
            let daemon = scene.sandbox().daemon().context("no daemon")?;
            kill_nine(&daemon)?;
            attempt.join().map_err(|_| anyhow!("a thread has failed"))?
        })?;
        drop(halt);
        ensure!(done.status != 0, "the checkpoint of a killed daemon");
        scene.wait_back("rewrite")?;
    }
    // It runs on, is whole, and the next daemon can take an image of it.
    take(&scene, "rewrite", "next")?;
    check_whole(&scene, "rewrite")?;
    scene.fermata().restore("next", "again", Device::Soft)?;
    check_whole(&scene, "again")?;
    scene.close()
}
