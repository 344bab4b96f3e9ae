//! Processes that were forked have memory in common with each other, before a checkpoint and after a restore.

use std::fs;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, Mode, Restore};
use fermata_e2e::scene::{Scene, wait_until};

/// Fills 96 MiB and forks two processes, of which one forks another. Each rewrites a MiB of its own of that memory, page after page, and holds all of it
/// against what it must be when there is a file `stop`. It ends with a file `end`. With an argument the second one always has one more child, which goes on with
/// what it has from it for a moment, and holds it against that.
const PROGRAM: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define WORDS 512
#define PAGES (96 << 8)
#define OWN 256
static uint64_t *base;
static uint64_t last[PAGES];
static void fill(size_t page, uint64_t step) {
    for (int i = 0; i < WORDS; i++) base[page * WORDS + i] = (page << 32) + step * 7 + i;
    last[page] = step;
}
static long wrong(void) {
    long bad = 0;
    for (size_t page = 0; page < PAGES; page++)
        for (int i = 0; i < WORDS; i++) bad += base[page * WORDS + i] != (page << 32) + last[page] * 7 + i;
    return bad;
}
static int heir(uint64_t step) {
    pid_t child = fork();
    for (int i = 0; i < 60; i++) {
        fill(child ? OWN + i : 9000 + i, step + i);
        usleep(1000);
    }
    if (!child) _exit(wrong() != 0);
    int status;
    waitpid(child, &status, 0);
    return status != 0;
}
static int run(int number, int forks) {
    printf("%d runs\n", number);
    fflush(stdout);
    long bad = 0;
    for (uint64_t step = 1; access("stop", F_OK); step++) {
        fill(number * OWN + step % OWN, step);
        if (forks && number == 1) bad += heir(step);
        usleep(200);
    }
    bad += wrong();
    printf("%d: %ld words are wrong\n", number, bad);
    fflush(stdout);
    while (access("end", F_OK)) usleep(1000);
    int status;
    while (wait(&status) > 0) bad += status != 0;
    return bad != 0;
}
int main(int argc, char **argv) {
    base = mmap(0, PAGES * 4096L, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t page = 0; page < PAGES; page++) fill(page, 0);
    if (!fork()) return run(1, argc > 1);
    if (!fork()) {
        fill(9000, 5);
        if (!fork()) return run(3, 0);
        return run(2, 0);
    }
    return run(0, 0);
}
"#;
/// How many there are.
const ALL: usize = 4;

/// Bytes that they take together.
fn bytes(scene: &Scene, name: &str) -> Result<u64> {
    let told = scene.fermata().memory_of(name)?;
    let pss = told["program"]["pss"].as_u64();
    pss.with_context(|| format!("{told}"))
}

/// Has all of them look at their memory; how many bytes that takes then.
fn look(scene: &Scene, name: &str) -> Result<u64> {
    let (stop, end) = ["stop", "end"]
        .map(|it| scene.sandbox().work().join(it))
        .into();
    fs::write(&stop, "")?;
    let looked = || {
        Ok(scene
            .fermata()
            .log(name)?
            .matches("words are wrong")
            .count()
            == ALL)
    };
    wait_until("all have looked at their memory", looked)?;
    let taken = bytes(scene, name)?;
    fs::write(&end, "")?;
    let ended = || Ok(scene.fermata().session(name)?.state == "exited");
    wait_until("the program ends", ended)?;
    fs::remove_file(&stop)?;
    fs::remove_file(&end)?;
    let log = scene.fermata().log(name)?;
    let whole = log.matches(": 0 words are wrong").count() == ALL;
    ensure!(whole, "{log}");
    Ok(taken)
}

/// Starts the program as session `forked`; ends when all of its processes run.
fn start(scene: &Scene, arguments: &[&str]) -> Result<()> {
    let program = scene.compile("forked", PROGRAM)?;
    let program = program.to_str().context("a path")?;
    let words = ["run", "--detach", "--name", "forked", "--", program];
    let done = scene.fermata().call(&[&words, arguments].concat())?;
    done.success("fermata run")?;
    let run = || Ok(scene.fermata().log("forked")?.matches(" runs\n").count() == ALL);
    wait_until("all processes run", run)
}

/// How often the daemon's log says this.
fn said(scene: &Scene, what: &str) -> Result<usize> {
    Ok(scene.daemon_log()?.matches(what).count())
}

#[test]
fn what_processes_have_in_common_they_have_in_common_after_a_restore() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    start(&scene, &[])?;
    fermata.checkpoint("forked", "first", Mode::Auto)?;
    let before = look(&scene, "forked")?;
    let check = |name: &str| -> Result<()> {
        let after = look(&scene, name)?;
        // Each of its own would be 288 MiB more.
        ensure!(
            after < before + (32 << 20),
            "{before} bytes before, {after} after"
        );
        Ok(())
    };
    fermata.restore("first", "again", Device::Soft)?;
    // An image of the restored program.
    fermata.checkpoint("again", "second", Mode::Auto)?;
    check("again")?;
    fermata.restore("second", "cold", Device::Soft)?;
    check("cold")?;
    fermata.restore_as("second", "warm", Device::Soft, Restore::Warm)?;
    check("warm")?;
    fermata.restore_as("second", "eager", Device::Soft, Restore::Eager)?;
    check("eager")?;
    scene.close()
}

/// They are the children of a process whose memory is in the copy of another.
#[test]
fn processes_that_begin_during_a_checkpoint_come_back_too() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    start(&scene, &["forks"])?;
    for image in ["first", "second"] {
        fermata.checkpoint("forked", image, Mode::Auto)?;
    }
    let copied_once = said(&scene, "have in common is copied once")?;
    ensure!(copied_once == 2, "{copied_once} of 2 copies");
    let heirs = said(&scene, "is that of their parents")?;
    ensure!(heirs > 0, "no process began during a checkpoint");
    look(&scene, "forked")?;
    for image in ["first", "second"] {
        let name = format!("again-{image}");
        fermata.restore(image, &name, Device::Soft)?;
        look(&scene, &name)?;
    }
    scene.close()
}
