//! Programs that are killed with signal 9 at seeded moments and started again, until one of them ends: the
//! result is the one of a run that nobody disturbed.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Random, command, cuda_program, kill_at, root, run, wait_until_nobody_runs};

fn digest(output: &str) -> &str {
    let line = output.lines().find(|l| l.starts_with("digest "));
    line.unwrap_or_else(|| panic!("no digest in:\n{output}"))
}

fn resumed(output: &str) -> Option<u64> {
    let line = output.lines().find_map(|l| l.strip_prefix("resumed at "))?;
    Some(line.parse().unwrap())
}

/// Steps that the programs are asked for, and kills they must survive.
const STEPS: u64 = 200;
const KILLS: u64 = 4;

/// Steps of the programs between two that they report.
const REPORTED: u64 = 20;

/// Runs a program undisturbed, then with kills; `saver` is the option that makes it keep its state.
fn survives(program: &Path, size: &str, saver: &[&str], seed: u64) {
    survives_with(program, size, saver, "20", seed);
}

/// As [`survives`], with this pause in milliseconds after each report.
fn survives_with(program: &Path, size: &str, saver: &[&str], pause: &str, seed: u64) {
    let steps = STEPS.to_string();
    let options = ["--size", size, "--steps", &steps];
    let want = run(command(program).args(options));
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let (mut newest, mut advanced, mut missed) = (0, 0, 0);
    for kill in 1..=KILLS + 1 {
        // A little further each time, then at any moment of what follows.
        let step = match kill {
            1..=KILLS => kill * STEPS / (KILLS + 2) + random.below(STEPS / 10),
            _ => STEPS * 2,
        };
        // On a slow disk a checkpoint may not be complete by then: the next is given ten times as long.
        let after = match random.below(20_000) {
            soon if missed == 0 => Duration::from_micros(soon),
            _ => Duration::from_millis(20) * 10u32.pow(missed),
        };
        let saved = &mut command(program);
        saved.args(options).args(saver).args(["--pause-ms", pause]);
        if kill <= KILLS {
            // A test that is late to kill it finds it here, not at its end.
            saved.env("HOLD_AT", (step + REPORTED).to_string());
        }
        let (output, ended) = kill_at(saved, step, after);
        let resumed = resumed(&output);
        if kill > 1 {
            let at = resumed.unwrap_or(0);
            assert!(at >= newest, "it went back from {newest} to {at}");
            advanced += u64::from(at > newest);
            missed += u32::from(at == newest);
            newest = at;
        }
        if ended {
            assert_eq!(digest(&output), digest(&want));
            assert_eq!(kill, KILLS + 1, "it ended before it was killed");
        }
    }
    assert!(
        advanced >= KILLS / 2,
        "only {advanced} times from a newer checkpoint"
    );
}

/// A program, which gives the digest that is recorded for it.
fn program(dir: &Path, name: &str) -> PathBuf {
    let out = dir.join(name);
    cuda_program(&root().join(format!("programs/app/{name}.cu")), &out);
    let mut recorded = include_str!("../../../programs/app/digests.txt").lines();
    let want = recorded.find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
    let want = format!("digest app/{name} {}", want.unwrap());
    assert_eq!(digest(&run(&mut command(&out))), want);
    out
}

fn config(dir: &Path, more: &str) -> String {
    let path = dir.join("config.toml");
    let folder = dir.join("checkpoints");
    let text = format!("{more}\n[local]\nfolders = [\"{}\"]\n", folder.display());
    std::fs::write(&path, text).unwrap();
    path.to_string_lossy().into_owned()
}

#[test]
fn heat_in_managed_memory_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let heat = program(dir.path(), "heat2d");
    for (seed, more) in [
        (1, "background = true"),
        (2, "background = false\nblock_bytes = 16384"),
    ] {
        let config = config(dir.path(), more);
        survives(&heat, "384", &["--config", &config, "--every", "10"], seed);
    }
}

#[test]
fn jacobi_in_device_memory_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let jacobi = program(dir.path(), "jacobi");
    let every = config(dir.path(), "");
    survives(&jacobi, "100000", &["--config", &every, "--every", "10"], 3);
    let timed = config(dir.path(), "interval = 0.05");
    // The interval has passed after each report.
    let saver = ["--config", &timed, "--every", "0"];
    survives_with(&jacobi, "100000", &saver, "100", 4);
    let plain = dir.path().join("plain").to_string_lossy().into_owned();
    survives(&jacobi, "100000", &["--plain", &plain, "--every", "10"], 5);
}

#[test]
fn hydro_in_many_variables_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let hydro = program(dir.path(), "hydro2d");
    let every = config(dir.path(), "block_bytes = 65536");
    survives(&hydro, "96", &["--config", &every, "--every", "10"], 6);
    let plain = dir.path().join("plain").to_string_lossy().into_owned();
    survives(&hydro, "96", &["--plain", &plain, "--every", "10"], 7);
}

#[test]
fn eight_ranks_on_one_gpu_are_one_rank() {
    let dir = tempfile::tempdir().unwrap();
    let jacobi = program(dir.path(), "jacobi");
    let options = ["--size", "50003", "--steps", "120"];
    let want = run(command(&jacobi).args(options));
    let folders: Vec<_> = (0..8)
        .map(|r| format!("{:?}", dir.path().join(format!("node-{r}"))))
        .collect();
    let path = dir.path().join("ranks.toml");
    let text = format!(
        "block_bytes = 16384\n[local]\nfolders = [{}]\n[erasure]\ngroup = 4\nlosses = 2\n",
        folders.join(", ")
    );
    std::fs::write(&path, text).unwrap();
    let saved = [
        "--ranks",
        "8",
        "--config",
        path.to_str().unwrap(),
        "--level",
        "3",
    ];
    let job = || {
        let mut job = command(&jacobi);
        job.args(options).args(saved);
        job
    };
    let (output, ended) = kill_at(job().env("HOLD_AT", "60"), 60, Duration::from_millis(5));
    assert!(!ended, "{output}");
    // The others end with the first, and let go of their folders.
    wait_until_nobody_runs(&jacobi);
    for lost in [1, 6] {
        std::fs::remove_dir_all(dir.path().join(format!("node-{lost}"))).unwrap();
    }
    let output = run(&mut job());
    assert!(resumed(&output).unwrap() >= 40, "{output}");
    assert_eq!(digest(&output), digest(&want));
}

#[test]
fn waves_read_backward_make_the_image_that_computing_them_again_makes() {
    let dir = tempfile::tempdir().unwrap();
    let rtm = program(dir.path(), "rtm2d");
    let options = ["--size", "64", "--steps", "60"];
    let want = run(command(&rtm).args(options));
    let kept = config(dir.path(), "keep_last = 60\nblock_bytes = 16384");
    let plain = dir.path().join("steps");
    std::fs::create_dir(&plain).unwrap();
    for saver in [["--config", &kept], ["--plain", plain.to_str().unwrap()]] {
        let output = run(command(&rtm).args(options).args(saver));
        assert_eq!(digest(&output), digest(&want));
    }
}
