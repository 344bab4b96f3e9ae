//! A process without CUDA that appends to a file for as long as it runs: the file shows whether it runs after its dump.

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::processes::Process;
use crate::scene::{Scene, wait_until};

const PYTHON: &str = "/usr/bin/python3";
const NAME: &str = "python3";

/// Its text.
const PROGRAM: &str = "
import time
with open('grown', 'ab', buffering=0) as file:
    while True:
        file.write(b'x')
        time.sleep(0.001)
";

/// Arguments with which a shell becomes the appender. It first starts the command `beside` in the background, if there is one.
pub fn words(beside: Option<&str>) -> [String; 3] {
    let start = beside.map_or_else(String::new, |it| format!("{it} & "));
    let script = format!("{start}exec {PYTHON} -c \"$0\"");
    ["-c".to_owned(), script, PROGRAM.to_owned()]
}

fn file(scene: &Scene) -> PathBuf {
    scene.sandbox().work().join("grown")
}

fn bytes(scene: &Scene) -> u64 {
    fs::metadata(file(scene)).map_or(0, |it| it.len())
}

/// Waits until the file grows, from now on.
///
/// # Errors
/// At the deadline.
pub fn wait_grows(scene: &Scene) -> Result<()> {
    let now = bytes(scene);
    wait_until("a file grows", || Ok(bytes(scene) > now))
}

/// Demands that no thread of the appender can run: CRIU traces each of them and has stopped it.
///
/// # Errors
/// One can, or there is no appender.
pub fn check_still(scene: &Scene) -> Result<()> {
    let mut all = scene.sandbox().processes();
    all.retain(|it| it.name == NAME);
    ensure!(!all.is_empty(), "there is no appender");
    for process in all {
        for (thread, state) in threads(&process)? {
            ensure!(state == "t", "thread {thread} is in state `{state}`");
        }
    }
    Ok(())
}

/// The threads of a process, and the state of each as `/proc` tells it.
fn threads(process: &Process) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{}/task", process.pid))? {
        let entry = entry?;
        let stat = fs::read_to_string(entry.path().join("stat"))?;
        let state = stat.rsplit(')').next().unwrap_or_default();
        let state = state.split_whitespace().next().unwrap_or_default();
        let thread = entry.file_name().to_string_lossy().into_owned();
        found.push((thread, state.to_owned()));
    }
    Ok(found)
}
