//! The daemon as a process: sessions of programs that use no GPU, its socket, its end.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fermata_control::Connection;
use fermata_control::user::{
    DeviceChoice, ENV_HOME, ENV_IMAGE_DIR, ENV_RUNTIME_DIR, FailureKind, FromDaemon, Request, Run,
    SOCKET, STATUS_TAKEN, Session, SessionState, Text, Verb,
};

/// Until a test gives up: what it waits for comes, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(120);

/// A daemon in folders of its own, with an installation that has no worker.
struct Daemon {
    folder: tempfile::TempDir,
    process: Child,
}

impl Daemon {
    fn start() -> Self {
        let folder = Self::folder();
        let process = Self::spawn(folder.path());
        Self { folder, process }
    }

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::Builder::new()
            .prefix("fd-")
            .tempdir_in("/tmp")
            .expect("a folder");
        let soft = folder.path().join("home/lib/softgpu");
        fs::create_dir_all(&soft).expect("made");
        // Nobody loads it: these programs use no GPU.
        fs::write(soft.join("libcuda.so.1"), "").expect("written");
        folder
    }

    fn spawn(folder: &Path) -> Child {
        Self::listening(&mut Self::command(folder), folder)
    }

    /// Starts a daemon, and waits until it listens.
    fn listening(command: &mut Command, folder: &Path) -> Child {
        let mut child = command.spawn().expect("started");
        let until = Instant::now() + LIMIT;
        while UnixStream::connect(folder.join("run").join(SOCKET)).is_err() {
            assert!(
                child.try_wait().expect("asked").is_none(),
                "the daemon has ended"
            );
            assert!(Instant::now() < until, "the daemon does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }

    fn command(folder: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fermatad"));
        command
            .env(ENV_RUNTIME_DIR, folder.join("run"))
            .env(ENV_IMAGE_DIR, folder.join("images"))
            .env(ENV_HOME, folder.join("home"))
            .env("FERMATA_SPARE_WORKERS", "0")
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn ask(&self, verb: Verb) -> FromDaemon {
        let socket = self.path().join("run").join(SOCKET);
        let daemon =
            Connection::<FromDaemon, Request>::connect(&socket, "daemon").expect("connected");
        daemon.send(&Request::new(verb), &[]).expect("sent");
        loop {
            match daemon.recv(LIMIT).expect("answered").0 {
                FromDaemon::Progress(_) => {}
                answer => return answer,
            }
        }
    }

    fn run(&self, name: &str, script: &str) -> FromDaemon {
        self.ask(Verb::Run(Run {
            argv: ["/bin/sh", "-c", script].map(Text::from).into(),
            cwd: self.path().into(),
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            name: Some(name.into()),
            device: DeviceChoice::Soft,
            umask: Some(0o027),
            priority: 0,
        }))
    }

    fn wait(&self, name: &str) -> Session {
        session(self.ask(Verb::Wait { name: name.into() }))
    }

    /// Ends the daemon as a service manager does.
    fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("told");
        let until = Instant::now() + LIMIT;
        while self.process.try_wait().expect("asked").is_none() {
            assert!(Instant::now() < until, "the daemon does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn session(answer: FromDaemon) -> Session {
    match answer {
        FromDaemon::Session(session) => session,
        other => panic!("no session: {other:?}"),
    }
}

fn failure(answer: FromDaemon) -> (FailureKind, String) {
    match answer {
        FromDaemon::Failed(failure) => (failure.kind, failure.message),
        other => panic!("no failure: {other:?}"),
    }
}

/// What the session has printed, without what the loader says of the missing library.
fn printed(log: &PathBuf) -> String {
    let text = fs::read_to_string(log).expect("read");
    let lines = text.lines().filter(|line| !line.contains("LD_PRELOAD"));
    lines.map(|line| format!("{line}\n")).collect()
}

fn alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}/exe")).exists()
}

#[test]
fn a_program_keeps_its_output_and_its_status() {
    let daemon = Daemon::start();
    session(daemon.run("one", "pwd; echo oops >&2; cat; exit 3"));
    let ended = daemon.wait("one");
    assert_eq!(
        (ended.state, ended.exit_status),
        (SessionState::Exited, Some(3))
    );
    assert_eq!(
        printed(&ended.log),
        format!("{}\noops\n", daemon.path().display())
    );
    session(daemon.run("two", "kill -TERM $$"));
    assert_eq!(daemon.wait("two").exit_status, Some(128 + 15));
    daemon.end();
}

#[test]
fn killing_a_session_ends_its_children_too() {
    let daemon = Daemon::start();
    let script = "sleep 1000 & setsid sleep 1000 & (sleep 1000 & echo $!) & wait";
    let pid = session(daemon.run("tree", script)).pid.expect("it runs");
    let log = session(daemon.ask(Verb::Session {
        name: "tree".into(),
    }))
    .log;
    let until = Instant::now() + LIMIT;
    while printed(&log).is_empty() {
        assert!(Instant::now() < until, "it prints nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
    let grandchild: u32 = printed(&log).trim().parse().expect("a number");
    assert!(alive(pid) && alive(grandchild));
    let (kind, _) = failure(daemon.run("tree", "true"));
    assert_eq!(kind, FailureKind::User, "the name is taken");
    assert_eq!(
        daemon.ask(Verb::Kill {
            name: "tree".into(),
            signal: 9
        }),
        FromDaemon::Done
    );
    assert!(!alive(pid) && !alive(grandchild));
    assert_eq!(daemon.wait("tree").exit_status, Some(137));
    let again = daemon.ask(Verb::Kill {
        name: "tree".into(),
        signal: 9,
    });
    let FromDaemon::Failed(failure) = again else {
        panic!("killed twice: {again:?}")
    };
    assert!(failure.hint.contains("fermata ps"), "{}", failure.hint);
    session(daemon.run("tree", "true"));
    assert_eq!(
        daemon.wait("tree").exit_status,
        Some(0),
        "the name is free again"
    );
    daemon.end();
}

#[test]
fn a_second_daemon_is_refused_and_a_stale_socket_replaced() {
    let mut daemon = Daemon::start();
    let second = Daemon::command(daemon.path()).output().expect("ran");
    assert_eq!(second.status.code(), Some(STATUS_TAKEN.into()));
    assert!(String::from_utf8_lossy(&second.stderr).contains("another daemon runs"));
    let mode = |name: &str| {
        let path = daemon.path().join("run").join(name);
        fs::metadata(path).expect("there").permissions().mode() & 0o777
    };
    assert_eq!(
        (mode(""), mode(SOCKET), mode("agent.sock")),
        (0o700, 0o600, 0o600)
    );
    daemon.process.kill().expect("killed");
    daemon.process.wait().expect("waited");
    daemon.process = Daemon::spawn(daemon.path());
    assert_eq!(daemon.ask(Verb::Ps), FromDaemon::Sessions(Vec::new()));
    daemon.end();
}

#[test]
fn a_new_daemon_finds_the_sessions_of_a_killed_one() {
    let mut daemon = Daemon::start();
    session(daemon.run("done", "exit 5"));
    assert_eq!(daemon.wait("done").exit_status, Some(5));
    let pid = session(daemon.run("stays", "sleep 1000"))
        .pid
        .expect("it runs");
    daemon.process.kill().expect("killed");
    daemon.process.wait().expect("waited");
    daemon.process = Daemon::spawn(daemon.path());
    let done = session(daemon.ask(Verb::Session {
        name: "done".into(),
    }));
    assert_eq!(
        (done.state, done.exit_status),
        (SessionState::Exited, Some(5))
    );
    let stays = session(daemon.ask(Verb::Session {
        name: "stays".into(),
    }));
    // It has not used CUDA: nothing of it went with the daemon.
    assert_eq!((stays.state, stays.pid), (SessionState::Running, Some(pid)));
    assert_eq!(
        daemon.ask(Verb::Kill {
            name: "stays".into(),
            signal: 9
        }),
        FromDaemon::Done
    );
    assert!(!alive(pid));
    daemon.end();
}

#[test]
fn a_program_is_found_whose_daemon_died_when_it_had_just_started_it() {
    let mut daemon = Daemon::start();
    // It has been noted down before it runs.
    session(daemon.run("one", "ls \"$(dirname \"$FERMATA_NOTICE_FILE\")\""));
    let files = printed(&daemon.wait("one").log);
    assert!(files.lines().any(|it| it == "meta.json"), "{files}");

    let stays = session(daemon.run("stays", "sleep 1000 & wait"));
    daemon.process.kill().expect("killed");
    daemon.process.wait().expect("waited");
    // As it was then: with nothing on its process.
    let meta = stays.log.with_file_name("meta.json");
    let text = fs::read(&meta).expect("read");
    let mut known: serde_json::Value = serde_json::from_slice(&text).expect("a document");
    known["root"] = serde_json::Value::Null;
    fs::write(&meta, known.to_string()).expect("written");
    daemon.process = Daemon::spawn(daemon.path());
    let name = || "stays".to_owned();
    let found = session(daemon.ask(Verb::Session { name: name() }));
    assert_eq!((found.state, found.pid), (SessionState::Running, stays.pid));
    let kill = Verb::Kill {
        name: name(),
        signal: 9,
    };
    assert_eq!(daemon.ask(kill), FromDaemon::Done);
    assert!(!alive(stays.pid.expect("it ran")));
    daemon.end();
}

#[test]
fn a_daemon_that_is_started_inside_a_session_does_not_end_with_it() {
    let mut daemon = Daemon::start();
    let inner = session(daemon.run("inner", "sleep 1000"));
    let environ = fs::read(format!("/proc/{}/environ", inner.pid.expect("it runs")));
    let environ = String::from_utf8(environ.expect("read")).expect("text");
    let variables = environ.split('\0').filter_map(|it| it.split_once('='));
    daemon.process.kill().expect("killed");
    daemon.process.wait().expect("waited");
    // As a script of the session does whose command finds no daemon.
    let mut command = Daemon::command(daemon.path());
    command.envs(variables.filter(|(name, _)| name.starts_with("FERMATA_")));
    daemon.process = Daemon::listening(&mut command, daemon.path());
    let other = session(daemon.run("other", "sleep 1000"));
    let kill = |name: &str| Verb::Kill {
        name: name.into(),
        signal: 9,
    };
    assert_eq!(daemon.ask(kill("inner")), FromDaemon::Done);
    assert!(alive(other.pid.expect("it runs")));
    assert_eq!(daemon.ask(kill("other")), FromDaemon::Done);
    daemon.end();
}

#[test]
fn what_an_unknown_session_has_printed_is_kept() {
    let mut daemon = Daemon::start();
    session(daemon.run("known", "echo kept"));
    let ended = daemon.wait("known");
    daemon.process.kill().expect("killed");
    daemon.process.wait().expect("waited");
    let meta = ended.log.with_file_name("meta.json");
    let whole = fs::read(&meta).expect("read");
    fs::write(&meta, &whole[..whole.len() / 2]).expect("cut");
    daemon.process = Daemon::spawn(daemon.path());
    let (kind, message) = failure(daemon.run("known", "true"));
    assert!(
        kind == FailureKind::User && message.contains("no session that is known"),
        "{message}"
    );
    assert!(printed(&ended.log).contains("kept"));
    session(daemon.run("other", "true"));
    daemon.wait("other");
    daemon.end();
}

#[test]
fn programs_get_the_limit_of_files_that_the_daemon_was_started_with() {
    let daemon = Daemon::start();
    session(daemon.run("asks", "ulimit -n"));
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let expected = limit
        .current
        .map_or("unlimited".to_owned(), |it| it.to_string());
    assert_eq!(printed(&daemon.wait("asks").log).trim(), expected);
    daemon.end();
}

/// A daemon that a shell starts after `words`.
fn started_after(words: &str) -> Daemon {
    let folder = Daemon::folder();
    let mut shell = Command::new("sh");
    let plain = Daemon::command(folder.path());
    shell
        .args(["-c", &format!("{words}; exec \"$0\"")])
        .arg(plain.get_program())
        .current_dir(folder.path());
    shell.stdout(Stdio::null()).stderr(Stdio::piped());
    for (name, value) in plain.get_envs() {
        shell.env(name, value.expect("set"));
    }
    let process = Daemon::listening(&mut shell, folder.path());
    Daemon { folder, process }
}

#[test]
fn a_log_keeps_its_last_part() {
    let daemon = started_after("export FERMATA_LOG_LIMIT=256K");
    let lines = "i=0; while [ $i -lt 200 ]; do seq -f %063.0f $((i * 1000)) $((i * 1000 + 999)); i=$((i + 1)); done";
    session(daemon.run("chatty", &format!("{lines}; sleep 1000")));
    let log = session(daemon.ask(Verb::Session {
        name: "chatty".into(),
    }))
    .log;
    let printed = 200_000 * 64;
    let until = Instant::now() + LIMIT;
    loop {
        let found = fs::metadata(&log).expect("there");
        // What the loader says of the missing library comes on top.
        if found.len() >= printed && found.blocks() * 512 <= 256 << 10 {
            break;
        }
        assert!(Instant::now() < until, "{found:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = fs::read(&log).expect("read");
    let last = format!("{:063}\n", 199_999);
    let tail = &text[text.len() - (64 << 10)..];
    assert!(String::from_utf8_lossy(tail).contains(&last));
    daemon.ask(Verb::Kill {
        name: "chatty".into(),
        signal: 9,
    });
    daemon.end();
}

#[test]
fn logs_can_have_a_place_of_their_own() {
    let daemon = started_after("umask 0; export FERMATA_LOG_DIR=logs");
    let logs = daemon.path().join("logs");
    session(daemon.run("one", "echo printed"));
    let log = daemon.wait("one").log;
    assert!(log.starts_with(&logs), "{}", log.display());
    assert_eq!(printed(&log), "printed\n");
    for (path, mode) in [(&logs, 0o700), (&log, 0o600)] {
        let found = fs::metadata(path).expect("there");
        assert_eq!(found.permissions().mode() & 0o777, mode);
    }
    session(daemon.run("one", "echo again"));
    let next = daemon.wait("one").log;
    assert_eq!(printed(&next), "again\n");
    assert!(!log.exists(), "the first one's is gone with its session");
    daemon.end();
}

#[test]
fn a_daemon_with_a_wrong_setting_does_not_start() {
    let folder = Daemon::folder();
    for (name, value) in [
        ("FERMATA_CACHE", "lots"),
        ("FERMATA_SPARE_WORKERS", "many"),
        ("FERMATA_CRIU", "criu"),
    ] {
        let started = Daemon::command(folder.path()).env(name, value).output();
        let started = started.expect("started");
        let said = String::from_utf8_lossy(&started.stderr);
        assert!(!started.status.success(), "{name}={value}: {said}");
        assert!(
            said.contains(name) && said.contains(value) && said.contains("must be"),
            "{said}"
        );
    }
}

#[test]
fn what_the_starter_of_a_daemon_has_open_stays_with_nobody() {
    let daemon = started_after("exec 5>lock; flock 5; exec 7</etc/passwd");
    let locked = fs::File::open(daemon.path().join("lock")).expect("opened");
    let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::flock(&locked, lock).expect("the daemon does not hold the caller's lock");
    session(daemon.run("tells", "ls /proc/$$/fd; true"));
    let said = printed(&daemon.wait("tells").log);
    let mut numbers: Vec<u32> = said.split_whitespace().flat_map(str::parse).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2], "{said}");
    daemon.end();
}

#[test]
fn nothing_of_a_daemon_is_open_to_others_whatever_its_umask() {
    let daemon = started_after("umask 0");
    session(daemon.run("asks", "umask; echo x >made"));
    let ended = daemon.wait("asks");
    assert_eq!(printed(&ended.log).trim(), "0027", "the program's own");
    let made = fs::metadata(daemon.path().join("made")).expect("made");
    assert_eq!(made.permissions().mode() & 0o777, 0o640);
    let mut folders = vec![daemon.path().join("run")];
    let mut seen = Vec::new();
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).expect("listed");
        let below = entries.map(|entry| entry.expect("listed").path());
        for path in std::iter::once(folder.clone()).chain(below) {
            let found = match fs::symlink_metadata(&path) {
                // The daemon replaces its files.
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                found => found.expect("there"),
            };
            let mode = found.permissions().mode() & 0o777;
            assert_eq!(mode & 0o077, 0, "`{}` has mode {mode:o}", path.display());
            if found.is_dir() && path != folder {
                folders.push(path.clone());
            }
            seen.push(path);
        }
    }
    for name in ["meta.json", "log", SOCKET, "agent.sock", "worker.sock"] {
        assert!(seen.iter().any(|path| path.ends_with(name)), "no {name}");
    }
    daemon.end();
}

#[test]
fn hostile_bytes_end_only_their_own_connection() {
    let daemon = Daemon::start();
    for name in [SOCKET, "agent.sock", "worker.sock"] {
        for bytes in [
            &b"\xff\xff\xff\xff"[..],
            b"\x02\0\0\0{}",
            b"\x03\0\0\0nul",
            b"\x10",
            b"",
        ] {
            let mut stream =
                UnixStream::connect(daemon.path().join("run").join(name)).expect("connected");
            stream.write_all(bytes).expect("written");
        }
    }
    let token = fermata_control::agent::FromAgent::Hello {
        protocol: fermata_control::PROTOCOL,
        pid: 1,
        token: "guessed".into(),
        wake_block: 0,
        reattach: false,
        says_mapped: false,
        prepares: false,
        visible: None,
    };
    let socket = daemon.path().join("run/agent.sock");
    let link = Connection::<fermata_control::agent::ToAgent, _>::connect(&socket, "daemon")
        .expect("connected");
    link.send(&token, &[]).expect("sent");
    let answer = link.recv(LIMIT).expect("answered").0;
    assert!(
        matches!(answer, fermata_control::agent::ToAgent::Reject { .. }),
        "{answer:?}"
    );
    let (kind, message) = failure(daemon.ask(Verb::Session {
        name: "../x".into(),
    }));
    assert_eq!(kind, FailureKind::NotFound, "{message}");
    assert_eq!(failure(daemon.run("../x", "true")).0, FailureKind::User);
    let mut other = Request::new(Verb::Ps);
    other.protocol += 1;
    let socket = daemon.path().join("run").join(SOCKET);
    let user = Connection::<FromDaemon, Request>::connect(&socket, "daemon").expect("connected");
    user.send(&other, &[]).expect("sent");
    assert!(
        failure(user.recv(LIMIT).expect("answered").0)
            .1
            .contains("protocol")
    );
    daemon.end();
}

#[test]
fn a_daemon_that_leaves_leaves_its_programs() {
    let mut daemon = Daemon::start();
    let pid = session(daemon.run("works", "sleep 1000"))
        .pid
        .expect("it runs");
    assert_eq!(daemon.ask(Verb::Leave), FromDaemon::Done);
    daemon.process.wait().expect("it ends");
    assert!(alive(pid));
    daemon.process = Daemon::spawn(daemon.path());
    let until = Instant::now() + LIMIT;
    let works = |it: &Session| it.state == SessionState::Running && it.pid == Some(pid);
    while !works(&session(daemon.ask(Verb::Session {
        name: "works".into(),
    }))) {
        assert!(Instant::now() < until, "the next daemon does not know it");
        std::thread::sleep(Duration::from_millis(5));
    }
    daemon.end();
    assert!(!alive(pid));
}

#[test]
fn a_shutdown_spares_running_sessions_unless_forced() {
    let daemon = Daemon::start();
    let pid = session(daemon.run("works", "sleep 1000"))
        .pid
        .expect("it runs");
    let (kind, message) = failure(daemon.ask(Verb::Shutdown { force: false }));
    assert!(
        kind == FailureKind::User && message.contains("works"),
        "{message}"
    );
    assert!(alive(pid));
    assert_eq!(daemon.ask(Verb::Shutdown { force: true }), FromDaemon::Done);
    let mut daemon = daemon;
    let until = Instant::now() + LIMIT;
    while daemon.process.try_wait().expect("asked").is_none() {
        assert!(Instant::now() < until, "the daemon does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!alive(pid));
    assert!(!daemon.path().join("run").join(SOCKET).exists());
}
