//! Programs in C that tests track.
// Each test uses a part of it.
#![allow(dead_code)]

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use fermata_hostmem::Extent;
use rustix::process::{Pid, Signal, kill_process};

/// Until a test gives up, however busy the machine is.
pub const LIMIT: Duration = Duration::from_secs(120);

/// A program that runs, until this is dropped.
pub struct Program {
    pub child: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Compiles and starts it; it says `ready`.
    pub fn start(dir: &Path, source: &str, arguments: &[&str]) -> Self {
        let (text, program) = (dir.join("p.c"), dir.join("p"));
        fs::write(&text, source).expect("written");
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-w", "-pthread", "-o"])
            .arg(&program)
            .arg(&text);
        assert!(cc.status().expect("cc runs").success());
        let mut child = Command::new(&program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut program = Self { child, output };
        assert_eq!(program.line(), "ready");
        program
    }

    /// What it says next.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("signalled");
    }

    /// Stops every thread.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let until = Instant::now() + LIMIT;
        let moving = || {
            let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).expect("its threads");
            tasks.flatten().any(|task| {
                let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                !stat
                    .rsplit(')')
                    .next()
                    .is_some_and(|it| it.starts_with(" T"))
            })
        };
        while moving() {
            assert!(Instant::now() < until, "it does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Holds a copy against the memory of process `pid`, which stands still.
pub fn check_equal(pid: u32, copy: &File, extents: &[Extent]) {
    let memory = File::open(format!("/proc/{pid}/mem")).expect("its memory");
    for Extent { range, offset } in extents {
        let length = (range.end - range.start) as usize;
        let (mut there, mut here) = (vec![0; length], vec![0; length]);
        let read = memory.read_exact_at(&mut there, range.start);
        read.expect("its bytes");
        copy.read_exact_at(&mut here, *offset).expect("their copy");
        let differs = there.iter().zip(&here).position(|(a, b)| a != b);
        assert_eq!(
            differs.map(|at| range.start + at as u64),
            None,
            "in {range:x?}"
        );
    }
}
