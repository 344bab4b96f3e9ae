//! The library where a process or a thread ends, after `dlclose`, in a forked child, in a signal handler: right answers,
//! and nothing of ours on the program's stderr. The program is in C and loads the shared library itself.

#![allow(clippy::unwrap_used)]

// Each test binary uses a part of it.
#[allow(dead_code)]
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{ChildStderr, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use fermata_client as _;
use fermata_control::agent::{FromAgent, ToAgent};
use support::{Stage, WAIT};

/// The shared library, as cargo has built it beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    let library = folder.join("libfermata_client.so");
    assert!(library.exists(), "{}", library.display());
    library
}

/// The program, compiled once.
fn program() -> PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let made = PROGRAM.get_or_init(|| {
        let to =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("life-{}", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/life.c");
        let compiled = Command::new("cc")
            .args(["-O1", "-Wall", "-Werror", "-pthread", source, "-ldl", "-o"])
            .arg(&to)
            .status()
            .unwrap();
        assert!(compiled.success());
        to
    });
    made.clone()
}

/// The program on its stage.
struct Life {
    stage: Stage,
    lines: BufReader<ChildStdout>,
    errors: ChildStderr,
}

impl Life {
    fn start(what: &str) -> Self {
        let mut program = Command::new(program());
        program.arg(library()).arg(what);
        program.stdout(Stdio::piped()).stderr(Stdio::piped());
        let name = format!("life-{what}");
        let mut stage = Stage::start_program(&name, &mut program, fermata_wire::Config::default());
        let (_, reattach) = stage.hello();
        assert!(!reattach);
        stage.welcome(true);
        Self {
            lines: BufReader::new(stage.program.stdout.take().unwrap()),
            errors: stage.program.stderr.take().unwrap(),
            stage,
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The program is so far, and stands at this place.
    fn reaches(&mut self, place: &str) {
        assert_eq!(self.line(), place);
    }

    /// Stops the program as a checkpoint does, and lets it go on.
    fn stop_and_go(&mut self) {
        let stopped = self.stage.quiesce();
        assert!(matches!(stopped, FromAgent::Quiesced { .. }), "{stopped:?}");
        self.stage.detach();
        self.stage.reattach();
    }

    fn go_on(&mut self) {
        let stdin = self.stage.program.stdin.as_mut().unwrap();
        stdin.write_all(b"\n").unwrap();
    }

    /// The program ends well, and nothing was written to its stderr.
    fn ends(mut self) {
        let end = Instant::now() + WAIT;
        let status = loop {
            if let Some(status) = self.stage.program.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < end, "the program hangs");
            std::thread::sleep(Duration::from_millis(1));
        };
        let (mut said, mut errors) = (String::new(), String::new());
        self.lines.read_to_string(&mut said).unwrap();
        self.errors.read_to_string(&mut errors).unwrap();
        assert!(status.success(), "{status}: {said}{errors}");
        assert_eq!(errors, "");
        self.stage.stop_worker();
    }
}

#[test]
fn destructors_at_exit_find_the_context_and_are_stopped_and_go_on() {
    let mut life = Life::start("exit");
    for place in ["thread-local", "atexit", "static destructor"] {
        life.reaches(place);
        life.stop_and_go();
        life.go_on();
    }
    life.ends();
}

#[test]
fn destructors_of_a_thread_find_its_context_in_every_round() {
    let mut life = Life::start("thread");
    for place in ["thread-local", "round 1", "round 2", "round 3"] {
        life.reaches(place);
        life.stop_and_go();
        life.go_on();
    }
    life.reaches("thread");
    life.go_on();
    life.reaches("done");
    life.ends();
}

#[test]
fn what_a_thread_kept_goes_with_it_and_its_streams_too() {
    let mut life = Life::start("late");
    life.reaches("late");
    // The main thread's is still there.
    assert_eq!(life.stage.device.lock().unwrap().streams, (21, 20));
    life.stop_and_go();
    life.go_on();
    life.reaches("done");
    life.ends();
}

#[test]
fn a_child_of_a_fork_in_a_destructor_has_no_cuda_and_its_parent_keeps_it() {
    let mut life = Life::start("fork");
    life.reaches("fork");
    life.stop_and_go();
    life.go_on();
    life.reaches("done");
    life.ends();
}

#[test]
fn a_child_of_a_process_that_had_only_asked_begins_its_own_session_and_is_stopped() {
    let mut life = Life::start("early-fork");
    life.reaches("early-fork");
    let stopped = life.stage.quiesce();
    assert!(matches!(stopped, FromAgent::Quiesced { .. }), "{stopped:?}");
    assert_eq!(life.stage.order(&ToAgent::Resume), FromAgent::Resumed);
    life.go_on();
    life.reaches("done");
    life.ends();
}

#[test]
fn the_library_serves_on_after_dlclose() {
    let mut life = Life::start("dlclose");
    life.reaches("dlclose");
    life.stop_and_go();
    life.go_on();
    life.reaches("done");
    life.ends();
}

#[test]
fn calls_in_a_signal_handler_on_its_own_stack_are_answered() {
    let mut life = Life::start("signal");
    life.reaches("signal");
    life.stop_and_go();
    life.go_on();
    life.reaches("done");
    life.ends();
}

#[test]
fn threads_call_while_the_process_ends() {
    Life::start("crowd").ends();
}
