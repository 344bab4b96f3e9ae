//! A session of two ranks whose disk fills up while the part of one of them is written: there is no image, and both go on.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::disk::SmallDisk;
use fermata_e2e::hold::{COPIES, Hold};
use fermata_e2e::scene::{Scene, wait_until};

/// A small rank, and one with 8 MiB of device memory.
const RANKS: [&str; 2] = ["64", "1024"];
const FIELDS: u64 = 2 << 22;

/// What a rank prints.
fn log(scene: &Scene, rank: usize) -> PathBuf {
    scene.sandbox().work().join(format!("rank-{rank}"))
}

/// Starts both ranks as session `name`; returns when they work.
fn start(scene: &Scene, name: &str, variables: &[(&str, &str)]) -> Result<()> {
    let program = scene.tree().program("heat2d")?;
    let start = |(rank, size): (usize, &str)| {
        format!(
            "{} --steps 400000 --pause-ms 5 --size {size} >{} 2>&1 & ",
            program.display(),
            log(scene, rank).display()
        )
    };
    let all: String = RANKS.into_iter().enumerate().map(start).collect();
    let shell = format!("{all} wait");
    let words = ["-c", shell.as_str()];
    let fermata = scene.fermata();
    fermata.run_with(variables, name, Device::Soft, Path::new("/bin/sh"), &words)?;
    wait_until("two processes use CUDA", || {
        Ok(fermata.session(name)?.processes.len() == 2)
    })?;
    goes_on(scene, 0)?;
    goes_on(scene, 1)
}

/// Demands that a rank goes on working, from now on.
fn goes_on(scene: &Scene, rank: usize) -> Result<()> {
    let steps = || -> Result<usize> {
        let text = std::fs::read_to_string(log(scene, rank))?;
        Ok(text.lines().count())
    };
    let now = steps()?;
    wait_until("a rank goes on", || Ok(steps()? > now + 2))
}

/// What the ranks print goes to files, which have grown since.
fn restore(scene: &Scene, image: &str, name: &str) -> Result<()> {
    let words = ["restore", image, "--name", name, "--ignore-changed-files"];
    let tail = ["--device", "soft", "--detach"];
    let done = scene.fermata().call(&[&words[..], &tail].concat())?;
    done.success("fermata restore").map(drop)
}

#[test]
fn a_disk_that_is_full_for_one_rank_gives_no_image_and_harms_nobody() -> Result<()> {
    let root = rustix::process::geteuid().is_root();
    ensure!(root, "mounting a small file system needs root");
    for mode in [Mode::Cow, Mode::Stop] {
        let scene = Scene::new()?;
        let fermata = scene.fermata();
        let disk = SmallDisk::mount(scene.sandbox().images(), "192m")?;
        let hold = Hold::at(tempfile::tempdir()?);
        start(&scene, "ranks", &[hold.variable()])?;
        // With `cow` the large rank's data is read twice in the stop, to be hashed.
        let in_stop = if mode == Mode::Cow { 2 * FIELDS } else { 0 };
        hold.only(COPIES, in_stop);
        let what = ("ranks", "newer");
        let (attempt, filled) =
            scene.checkpoint_beside(&hold, what, (mode, &[]), || disk.fill())?;
        let refusal = attempt.err().context("an image on a full disk")?;
        let text = format!("{refusal:#}");
        let named = text.contains("space") || text.contains("full");
        ensure!(named, "{}: {text}", mode.name());
        ensure!(!fermata.image("newer").exists(), "half an image");
        goes_on(&scene, 0)?;
        goes_on(&scene, 1)?;
        std::fs::remove_file(filled)?;
        fermata.checkpoint("ranks", "image", mode)?;
        fermata.kill("ranks")?;
        restore(&scene, "image", "again")?;
        goes_on(&scene, 0)?;
        goes_on(&scene, 1)?;
        fermata.kill("again")?;
        drop(disk);
        scene.close()?;
    }
    Ok(())
}
