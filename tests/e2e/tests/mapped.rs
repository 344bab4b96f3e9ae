//! Files that a program has mapped: a restore has the page cache get what the program used of them, and nothing else.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::Mode;
use fermata_e2e::command;
use fermata_e2e::scene::{Scene, wait_until};

const MIB: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);

/// Maps a file of 8 MiB and reads its third MiB; reads all of it once there is a file `stop`.
const PROGRAM: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
#define MIB (1l << 20)
static long sum(const unsigned char *bytes, long count) {
    long all = 0;
    for (long at = 0; at < count; at++) all += bytes[at];
    return all;
}
int main(int count, char **words) {
    int file = open(words[1], O_RDONLY);
    const unsigned char *all = mmap(0, 8 * MIB, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    madvise((void *)all, 8 * MIB, MADV_RANDOM);
    printf("read %ld\n", sum(all + 2 * MIB, MIB));
    fflush(stdout);
    while (access("stop", F_OK)) usleep(20000);
    printf("all %ld\n", sum(all, 8 * MIB));
    return 0;
}
"#;

/// How much of a file the page cache has.
fn cached(path: &Path) -> Result<usize> {
    let mut fincore = Command::new("fincore");
    fincore
        .args(["--bytes", "--noheadings", "--output", "RES"])
        .arg(path);
    let told = command::run(fincore, LIMIT)?.success("fincore")?.stdout;
    told.trim().parse().context("a number of bytes")
}

/// Has the page cache forget a file that nobody has mapped.
fn forget(path: &Path) -> Result<()> {
    let mut sync = Command::new("sync");
    sync.arg(path);
    command::run(sync, LIMIT)?.success("sync")?;
    let mut dd = Command::new("dd");
    dd.arg(format!("if={}", path.display()))
        .args(["iflag=nocache", "count=0", "status=none"]);
    command::run(dd, LIMIT)?.success("dd").map(drop)
}

#[test]
fn a_restore_brings_what_the_program_used_of_its_files() -> Result<()> {
    let scene = Scene::new()?;
    // On a disk, wherever temporary files are.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let data = folder.path().join("data");
    let bytes: Vec<u8> = (0..8 * MIB).map(|at| (at / 4096 % 251) as u8).collect();
    fs::write(&data, &bytes)?;
    let sum = |part: &[u8]| part.iter().map(|it| u64::from(*it)).sum::<u64>();
    let program = scene.compile("mapping", PROGRAM)?;
    let words = [&program, &data].map(|it| it.to_string_lossy().into_owned());
    let run = [
        "run", "--detach", "--name", "mapping", "--", &words[0], &words[1],
    ];
    scene.fermata().call(&run)?.success("fermata run")?;
    let read = format!("read {}\n", sum(&bytes[2 * MIB..3 * MIB]));
    wait_until("it has read a part", || {
        Ok(scene.fermata().log("mapping")?.contains(&read))
    })?;
    scene.fermata().checkpoint("mapping", "image", Mode::Auto)?;
    scene.fermata().kill("mapping")?;
    wait_until("nobody has the file", || {
        forget(&data)?;
        Ok(cached(&data)? == 0)
    })?;
    let restore = ["restore", "image", "--name", "again", "--detach"];
    scene.fermata().call(&restore)?.success("restore")?;
    wait_until("the restore has brought what was used of files", || {
        Ok(scene.daemon_log()?.contains("files are there"))
    })?;
    let there = cached(&data)?;
    ensure!((MIB..2 * MIB).contains(&there), "{there} bytes are there");
    fs::write(scene.sandbox().work().join("stop"), "")?;
    wait_until("the program ends", || {
        Ok(scene.fermata().session("again")?.state == "exited")
    })?;
    let all = format!("all {}\n", sum(&bytes));
    let log = scene.fermata().log("again")?;
    ensure!(log.ends_with(&all), "{log}");
    scene.close()
}
