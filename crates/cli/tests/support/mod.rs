//! The command in folders of its own, and a daemon that answers from a script.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use fermata_control::Connection;
use fermata_control::user::{FromDaemon, Request, Session, SessionState, Verb};

/// Until a test gives up: what it waits for comes, however busy the machine is.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Folders of one test.
pub struct Place {
    dir: tempfile::TempDir,
}

/// What the command did.
pub struct Finished {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Place {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["run", "home", "home/bin"] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
        }
        fermata_control::private_folder(&dir.path().join("run")).unwrap();
        // Alone in its folder, so that it finds no daemon beside it.
        let (built, own) = (
            env!("CARGO_BIN_EXE_fermata"),
            dir.path().join("home/bin/fermata"),
        );
        if std::fs::hard_link(built, &own).is_err() {
            executable(Path::new(built), &own);
        }
        Self { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn images(&self) -> PathBuf {
        self.dir.path().join("images")
    }

    /// Starts the command.
    pub fn start(&self, args: &[&str]) -> Child {
        self.command(args).spawn().unwrap()
    }

    /// The command, which finds no configuration file of this machine.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.path().join("home/bin/fermata"));
        command
            .args(args)
            .current_dir(self.path())
            .env("FERMATA_RUNTIME_DIR", self.path().join("run"))
            .env("FERMATA_IMAGE_DIR", self.images())
            .env("FERMATA_HOME", self.path().join("home"))
            .env("FERMATA_CONFIG", "/dev/null")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs the command to its end.
    pub fn call(&self, args: &[&str]) -> Finished {
        finish(self.start(args))
    }

    /// Listens where the daemon does, at a socket that only its owner may write to, whatever the umask is.
    pub fn listen(&self) -> UnixListener {
        let (new, socket) = ("run/new.sock", "run/fermatad.sock");
        let [new, socket] = [new, socket].map(|name| self.path().join(name));
        let listener = UnixListener::bind(&new).unwrap();
        std::fs::set_permissions(&new, PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::rename(&new, socket).unwrap();
        listener
    }

    /// A daemon that answers each request with what `answer` says, on any number of connections.
    pub fn daemon<F>(&self, answer: F) -> JoinHandle<()>
    where
        F: Fn(Verb) -> Vec<FromDaemon> + Clone + Send + 'static,
    {
        let listener = self.listen();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let connection: Connection<Request, FromDaemon> =
                    Connection::new(stream.unwrap().into(), "the tool");
                let answer = answer.clone();
                std::thread::spawn(move || {
                    while let Ok((request, _)) = connection.recv(LIMIT) {
                        for message in answer(request.verb) {
                            if connection.send(&message, &[]).is_err() {
                                return;
                            }
                        }
                    }
                });
            }
        })
    }

    /// A session whose log is `log` in the test's folder.
    pub fn session(&self, name: &str, exit_status: Option<i32>) -> Session {
        let running = exit_status.is_none();
        Session {
            name: name.into(),
            state: if running {
                SessionState::Running
            } else {
                SessionState::Exited
            },
            pid: running.then_some(4711),
            worker_pid: None,
            processes: Vec::new(),
            exit_status,
            argv: vec!["./heat2d".into(), "--steps".into()],
            cwd: "/work".into(),
            started: 0,
            log: self.path().join("log"),
            soft: Some(true),
            devices: Vec::new(),
            image: None,
            note: None,
            losses: 0,
            phases: Vec::new(),
            arrival: None,
            paused: None,
            failure: None,
            ready: false,
            killed: false,
            priority: 0,
            paused_for: None,
        }
    }
}

/// Makes an executable copy of a file. This process never has it open: one that another test starts just then would
/// have it open too, and what somebody may write cannot be executed.
pub fn executable(from: &Path, to: &Path) {
    let mut install = Command::new("install");
    let done = install.args(["-m", "755"]).arg(from).arg(to).status();
    assert!(done.unwrap().success(), "{}", to.display());
}

/// Waits for the command's end, and reads what it says meanwhile, which may be more than a pipe holds; ends it at the
/// deadline.
pub fn finish(child: Child) -> Finished {
    let pid = rustix::process::Pid::from_child(&child);
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    let out = receiver.recv_timeout(LIMIT).unwrap_or_else(|_| {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        panic!("the command did not end: {:?}", receiver.recv());
    });
    let out = out.unwrap();
    Finished {
        status: out.status.code().unwrap_or(-1),
        stdout: String::from_utf8(out.stdout).unwrap(),
        stderr: String::from_utf8(out.stderr).unwrap(),
    }
}
