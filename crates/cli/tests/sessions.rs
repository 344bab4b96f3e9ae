//! Verbs that talk to a daemon, against one that answers from a script.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fermata_control::Connection;
use fermata_control::user::{
    Failure, FailureKind, FromDaemon, Progress, Request, STATUS_TAKEN, Verb, WAITING,
};
use support::{LIMIT, Place, executable, finish};

fn failed(kind: FailureKind) -> FromDaemon {
    FromDaemon::Failed(Failure {
        kind,
        message: "cannot do `it`".into(),
        hint: "do something else".into(),
    })
}

#[test]
fn kinds_of_failure_have_their_status() {
    let kinds = [
        (FailureKind::User, 1),
        (FailureKind::Internal, 2),
        (FailureKind::NotFound, 10),
        (FailureKind::Locked, 11),
        (FailureKind::Damaged, 12),
        (FailureKind::Host, 13),
        (FailureKind::NotCheckpointable, 14),
    ];
    for (kind, status) in kinds {
        let place = Place::new();
        place.daemon(move |_| vec![failed(kind)]);
        let done = place.call(&["checkpoint", "heat"]);
        assert_eq!(done.status, status, "{kind:?}");
        assert_eq!(
            done.stderr,
            "error: cannot do `it`\n\nhint: do something else\n"
        );
        assert_eq!(place.call(&["run", "--", "true"]).status, 125);
    }
}

#[test]
fn run_prints_the_log_and_returns_the_programs_status() {
    let place = Place::new();
    let log = place.path().join("log");
    std::fs::write(&log, "one\n").unwrap();
    let (running, ended) = (place.session("heat", None), place.session("heat", Some(7)));
    place.daemon(move |verb| match verb {
        Verb::Run(run) => {
            assert_eq!(run.argv[0].lossy(), "sh");
            assert!(run.env.iter().any(|(k, _)| k.lossy() == "FERMATA_HOME"));
            vec![FromDaemon::Session(running.clone())]
        }
        Verb::Wait { name } => {
            assert_eq!(name, "heat");
            // Some of it is mostly printed by now.
            std::thread::sleep(Duration::from_millis(60));
            let mut log = OpenOptions::new().append(true).open(&ended.log).unwrap();
            log.write_all(b"two\n").unwrap();
            vec![FromDaemon::Session(ended.clone())]
        }
        _ => vec![failed(FailureKind::Internal)],
    });
    let done = place.call(&["run", "--", "sh", "-c", "exit 7"]);
    assert_eq!(
        (done.status, done.stdout.as_str()),
        (7, "one\ntwo\n"),
        "{}",
        done.stderr
    );
    let done = place.call(&["run", "--detach", "--", "sh"]);
    assert_eq!(
        (done.status, done.stdout.as_str()),
        (0, "heat\n"),
        "{}",
        done.stderr
    );
}

#[test]
fn an_interrupt_goes_to_the_program() {
    let place = Place::new();
    std::fs::write(place.path().join("log"), "ready\n").unwrap();
    let (running, ended) = (
        place.session("heat", None),
        place.session("heat", Some(130)),
    );
    let killed = Arc::new(AtomicI32::new(0));
    let seen = killed.clone();
    place.daemon(move |verb| match verb {
        Verb::Run(_) => vec![FromDaemon::Session(running.clone())],
        Verb::Wait { .. } => {
            while seen.load(Ordering::SeqCst) == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
            vec![FromDaemon::Session(ended.clone())]
        }
        Verb::Kill { signal, .. } => {
            seen.store(signal, Ordering::SeqCst);
            vec![FromDaemon::Done]
        }
        _ => vec![failed(FailureKind::Internal)],
    });
    let mut child = place.start(&["run", "--", "sh"]);
    let mut ready = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(finish(child).status, 130);
    assert_eq!(killed.load(Ordering::SeqCst), 2);
}

#[test]
fn ps_is_a_table_or_a_document() {
    let place = Place::new();
    let sessions = vec![place.session("heat", None), place.session("old", Some(3))];
    place.daemon(move |_| vec![FromDaemon::Sessions(sessions.clone())]);
    let text = place.call(&["ps"]).stdout;
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].starts_with("NAME  STATE "), "{text}");
    assert!(
        lines[1].contains("running") && lines[1].contains("software GPU"),
        "{text}"
    );
    assert!(lines[2].contains("exited 3"), "{text}");
    assert_eq!(place.call(&["ps", "--running"]).stdout.lines().count(), 2);
    let json: serde_json::Value =
        serde_json::from_str(&place.call(&["ps", "--json"]).stdout).unwrap();
    assert_eq!(json["schema_version"], 1);
    assert_eq!(json["sessions"][1]["exit_status"], 3);
    assert_eq!(json["sessions"][0]["state"], "running");
}

#[test]
fn signals_go_out_by_number() {
    let place = Place::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    place.daemon(move |verb| {
        if let Verb::Kill { name, signal } = verb {
            log.lock().unwrap().push((name, signal));
        }
        vec![FromDaemon::Done]
    });
    assert_eq!(place.call(&["kill", "a", "b"]).status, 0);
    assert_eq!(place.call(&["kill", "-s", "term", "c"]).status, 0);
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen, [("a".into(), 9), ("b".into(), 9), ("c".into(), 15)]);
}

#[test]
fn a_daemon_that_hangs_up_is_named() {
    let place = Place::new();
    let listener = place.listen();
    std::thread::spawn(move || drop(listener.accept()));
    // It may have done it: that is not asked for twice.
    let done = place.call(&["checkpoint", "heat"]);
    assert_eq!(done.status, 2);
    assert!(
        done.stderr.contains("the daemon closed the connection"),
        "{}",
        done.stderr
    );
}

#[test]
fn a_question_is_asked_again_when_the_daemon_ends() {
    let place = Place::new();
    let listener = place.listen();
    let ended = place.session("heat", Some(0));
    std::fs::write(&ended.log, "printed\n").unwrap();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let connection: Connection<Request, FromDaemon> =
                Connection::new(stream.unwrap().into(), "the tool");
            // Every other one ends at the question.
            let Ok((request, _)) = connection.recv(LIMIT) else {
                continue;
            };
            let answer = match request.verb {
                Verb::Ps => FromDaemon::Sessions(Vec::new()),
                _ => FromDaemon::Session(ended.clone()),
            };
            if number % 2 == 1 {
                connection.send(&answer, &[]).unwrap();
            }
        }
    });
    for words in [&["ps"][..], &["logs", "heat"], &["wait", "heat"]] {
        let done = place.call(words);
        assert_eq!(done.status, 0, "{words:?}: {}", done.stderr);
    }
}

/// A daemon that finds another one in its folder.
fn taken(place: &Place) {
    let script = place.path().join("script");
    std::fs::write(&script, format!("#!/bin/sh\nexit {STATUS_TAKEN}\n")).unwrap();
    executable(&script, &place.path().join("home/bin/fermatad"));
}

#[test]
fn a_daemon_that_somebody_else_has_just_started_is_waited_for() {
    let place = Place::new();
    taken(&place);
    let done = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            place.daemon(|_| vec![FromDaemon::Sessions(Vec::new())])
        });
        place.call(&["ps"])
    });
    assert_eq!(done.status, 0, "{}", done.stderr);
}

/// Listens, and then is as a process that was killed and has one thread left.
const DYING: &str = "import ctypes, os, socket, sys, threading, time\n\
    os.umask(0o077)\n\
    listener = socket.socket(socket.AF_UNIX)\n\
    listener.bind(sys.argv[1])\n\
    listener.listen()\n\
    threading.Thread(target=time.sleep, args=(1000,)).start()\n\
    ctypes.CDLL(None).pthread_exit(None)\n";

#[test]
fn nothing_is_asked_of_a_daemon_that_is_about_to_be_gone() {
    let place = Place::new();
    taken(&place);
    let socket = place.path().join("run/fermatad.sock");
    let mut dying = Command::new("python3")
        .args(["-c", DYING])
        .arg(&socket)
        .spawn()
        .unwrap();
    let stat = format!("/proc/{}/stat", dying.id());
    let until = Instant::now() + LIMIT;
    while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
        assert!(Instant::now() < until, "it goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
    let done = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            dying.kill().unwrap();
            dying.wait().unwrap();
            std::fs::remove_file(&socket).unwrap();
            place.daemon(|_| vec![failed(FailureKind::NotFound)])
        });
        place.call(&["checkpoint", "heat"])
    });
    assert_eq!(done.status, 10, "{}", done.stderr);
}

#[test]
fn nothing_is_said_to_a_socket_where_others_may_put_theirs() {
    let place = Place::new();
    let listener = place.listen();
    listener.set_nonblocking(true).unwrap();
    let (run, socket) = (place.path().join("run"), "fermatad.sock");
    for path in [run.clone(), run.join(socket)] {
        let before = std::fs::metadata(&path).unwrap().permissions();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
        for (words, status) in [
            (&["run", "--", "true"][..], 125),
            (&["ps"], 1),
            (&["checkpoint", "heat"], 1),
        ] {
            let done = place.call(words);
            assert_eq!(done.status, status, "{words:?}: {}", done.stderr);
            let named = format!("other users may write to `{}`", path.display());
            assert!(
                done.stderr.contains(&named) && done.stderr.contains("hint:"),
                "{}",
                done.stderr
            );
        }
        assert!(listener.accept().is_err(), "it was called");
        std::fs::set_permissions(&path, before).unwrap();
    }
}

/// A daemon that writes down what it was started with, and ends.
const TELLS: &str = "#!/bin/sh\npwd >&2\necho \"runtime $FERMATA_RUNTIME_DIR\" >&2\nexit 1\n";

#[test]
fn a_relative_runtime_folder_is_the_same_for_the_daemon() {
    let place = Place::new();
    let script = place.path().join("script");
    std::fs::write(&script, TELLS).unwrap();
    executable(&script, &place.path().join("home/bin/fermatad"));
    let child = Command::new(place.path().join("home/bin/fermata"))
        .arg("ps")
        .current_dir(place.path())
        .env("FERMATA_RUNTIME_DIR", "run/below")
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let done = finish(child);
    assert_eq!(done.status, 1, "{}", done.stderr);
    let here = std::fs::canonicalize(place.path()).unwrap();
    let log = std::fs::read_to_string(here.join("run/below/fermatad.log")).unwrap();
    let expected = format!("/\nruntime {}\n", here.join("run/below").display());
    assert_eq!(log, expected, "{}", done.stderr);
}

#[test]
fn a_daemon_is_not_started_in_a_folder_that_is_a_link() {
    let place = Place::new();
    let link = place.path().join("link");
    std::os::unix::fs::symlink(place.path().join("home"), &link).unwrap();
    let mut command = Command::new(place.path().join("home/bin/fermata"));
    command.arg("ps").env("FERMATA_RUNTIME_DIR", &link);
    let out = command.output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("symbolic link"), "{said}");
    assert!(!place.path().join("home/fermatad.log").exists());
}

#[test]
fn what_a_log_has_dropped_is_said_and_not_printed() {
    let place = Place::new();
    let ended = place.session("heat", Some(0));
    let text: String = (0..20_000)
        .map(|number| format!("{number:063}\n"))
        .collect();
    std::fs::write(&ended.log, &text).unwrap();
    let file = OpenOptions::new().write(true).open(&ended.log).unwrap();
    assert!(fermata_control::printed::drop_oldest(&file, 128 << 10).unwrap());
    place.daemon(move |_| vec![FromDaemon::Session(ended.clone())]);
    for words in [&["logs", "heat"][..], &["logs", "-f", "heat"]] {
        let done = place.call(words);
        assert_eq!(done.status, 0, "{}", done.stderr);
        assert!(!done.stdout.is_empty() && text.ends_with(&done.stdout));
        assert!(done.stderr.contains("FERMATA_LOG_LIMIT"), "{}", done.stderr);
    }
}

#[test]
fn wrong_settings_are_errors_and_unknown_ones_are_told() {
    let place = Place::new();
    place.daemon(|_| vec![FromDaemon::Sessions(Vec::new())]);
    let call = |words: &[&str], name: &str, value: &str| {
        let mut command = Command::new(place.path().join("home/bin/fermata"));
        command
            .args(words)
            .env("FERMATA_RUNTIME_DIR", place.path().join("run"))
            .env(name, value);
        let out = command.output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        (out.status.code(), said)
    };
    for (words, status) in [(&["ps"][..], 1), (&["run", "--", "true"], 125)] {
        let (code, said) = call(words, "FERMATA_WRITE_RATE", "fast");
        assert_eq!(code, Some(status), "{said}");
        for part in [
            "`FERMATA_WRITE_RATE`",
            "`fast`",
            "a number of bytes",
            "hint:",
        ] {
            assert!(said.contains(part), "{said}");
        }
    }
    let (code, said) = call(&["ps"], "FERMATA_CASHE", "1G");
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("warning:") && said.contains("`FERMATA_CACHE`"),
        "{said}"
    );
}

#[test]
fn a_checkpoint_that_waits_for_the_program_says_so_once() {
    let place = Place::new();
    let progress = |phase: &str| {
        FromDaemon::Progress(Progress {
            phase: phase.into(),
            done: 4,
            total: 30,
        })
    };
    place.daemon(move |_| {
        vec![
            progress(WAITING),
            progress(WAITING),
            failed(FailureKind::NotCheckpointable),
        ]
    });
    let done = place.call(&["checkpoint", "heat"]);
    assert_eq!(done.status, 14, "{}", done.stderr);
    let said = "waits, up to 30 s, for the program's threads to stop";
    assert_eq!(done.stderr.matches(said).count(), 1, "{}", done.stderr);
    // What the device is at is named.
    let place = Place::new();
    place.daemon(move |_| {
        let what = format!("{WAITING} for kernel `grind` on the default stream");
        vec![progress(&what), failed(FailureKind::NotCheckpointable)]
    });
    let done = place.call(&["checkpoint", "heat"]);
    let said = "waits, up to 30 s, for kernel `grind` on the default stream to end";
    assert!(done.stderr.contains(said), "{}", done.stderr);
}
