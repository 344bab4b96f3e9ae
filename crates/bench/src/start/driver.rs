//! The driver's own checkpoint with CRIU, as its users do it: the device's memory goes into the process's, CRIU writes that, and
//! both ways back.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use fermata_control::Paths;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::results::{Shown, Start};
use super::setup::Cases;
use crate::error::BenchError;
use crate::native::Native;
use crate::program::now;

/// How long a process may take to end.
const END: Duration = Duration::from_secs(60);

/// What is needed for it.
pub struct Tools {
    criu: PathBuf,
    /// Calls the driver's functions for it.
    peer: PathBuf,
}

impl Tools {
    /// Those of the installation, or why they are of no use here.
    pub fn find(settings: &crate::settings::Settings) -> Result<Self, String> {
        if settings.is_soft {
            return Err("the software GPU has no checkpoint of its own".to_owned());
        }
        let home = Paths::find().home;
        let tools = Self {
            criu: home.join("lib/criu/criu"),
            peer: home.join("bench/peer"),
        };
        for it in [&tools.criu, &tools.peer] {
            if !it.is_file() {
                return Err(format!("there is no `{}`", it.display()));
            }
        }
        if !rustix::process::geteuid().is_root() {
            return Err("CRIU needs root".to_owned());
        }
        Ok(tools)
    }

    fn peer(&self, pid: &str, how: &[&str]) -> Result<(), BenchError> {
        let words = [&[pid][..], how].concat();
        told(&self.peer, &words)
    }

    fn criu(&self, what: &str, folder: &Path, options: &[&str]) -> Result<(), BenchError> {
        let folder = folder.to_string_lossy();
        let fixed = [what, "--images-dir", &folder, "--log-file", "log"];
        told(&self.criu, &[&fixed[..], options].concat())
    }
}

/// Runs a tool, whose failure is told with what it has said.
fn told<A: AsRef<OsStr>>(program: &Path, words: &[A]) -> Result<(), BenchError> {
    let done = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .map_err(BenchError::io(format!("start `{}`", program.display())))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let message = format!("`{}`: {}", program.display(), said.trim());
    Err(BenchError::program(message))
}

/// One for each run.
pub fn starts(cases: &Cases<'_>, tools: &Tools, shown: &mut Shown) -> Result<(), BenchError> {
    let folder = cases.sandbox.file_beside_images("criu");
    fs::create_dir_all(&folder).map_err(BenchError::io(format!("make `{}`", folder.display())))?;
    let done = image(cases, tools, &folder).and_then(|pid| {
        (0..cases.settings.runs).try_for_each(|_| restored(cases, tools, (&folder, pid), shown))
    });
    // It holds as much as the model.
    let _ = fs::remove_dir_all(&folder);
    done
}

/// Takes the image of a loaded model, which ends; its process.
fn image(cases: &Cases<'_>, tools: &Tools, folder: &Path) -> Result<u32, BenchError> {
    let printed = cases.sandbox.file("printed");
    cases.model.program.clean();
    let mut native = Native::start(cases.settings, &cases.model.program, &printed)?;
    cases.model.loaded(cases.sandbox, &printed)?;
    let pid = native.pid().to_string();
    tools.peer(&pid, &[])?;
    tools.criu("dump", folder, &["--tree", &pid])?;
    native.end(cases.sandbox)?;
    Ok(native.pid())
}

fn restored(
    cases: &Cases<'_>,
    tools: &Tools,
    (folder, pid): (&Path, u32),
    shown: &mut Shown,
) -> Result<(), BenchError> {
    let printed = cases.sandbox.file("printed");
    // CRIU refuses an output file that has grown since.
    fs::write(&printed, "ready\n")
        .map_err(BenchError::io(format!("write `{}`", printed.display())))?;
    cases.sandbox.pause(cases.rest())?;
    cases.model.program.clean();
    cases.model.program.release()?;
    let begin = now();
    tools.criu("restore", folder, &["--restore-detached"])?;
    tools.peer(&pid.to_string(), &["--only-restore"])?;
    let command = (now() - begin) / 1e3;
    let times = cases.model.results(cases.sandbox, begin, 1);
    let process = Pid::from_raw(pid.cast_signed());
    let lives = || process.is_some_and(|it| test_kill_process(it).is_ok());
    let ended = cases
        .sandbox
        .wait(END, "the restored program has not ended", || Ok(!lives()));
    if let (Err(_), Some(process)) = (&ended, process) {
        // It has ended meanwhile.
        let _ = kill_process(process, Signal::KILL);
    }
    let times = times?;
    let printed = fs::read_to_string(&printed).unwrap_or_default();
    ended?;
    shown.take(Start::one("driver", times, Some(command)), &printed);
    Ok(())
}
