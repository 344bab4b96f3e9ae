//! Memory that comes on demand: with CRIU itself, and when what brings it dies.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use fermata_daemon::criu::Criu;
use fermata_daemon::namespace::{HostImage, Namespace};
use rustix::process::{Pid, Signal, kill_process};

use self::support::{LIMIT, wait_for};

mod support;

/// 128 MiB of numbers, and one page that it makes read-only when it is told to.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
#define WORDS (16L << 20)
int main(void) {
    long *big = mmap(0, WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (long i = 0; i < WORDS; i++) big[i] = i + 1;
    puts("ready");
    fflush(stdout);
    while (access("split", F_OK)) usleep(1000);
    for (long page = 1; page < WORDS / 512; page += 100) mprotect(big + page * 512, 4096, PROT_READ);
    while (access("go", F_OK)) usleep(1000);
    long wrong = 0;
    for (long i = 0; i < WORDS; i++) wrong += big[i] != i + 1;
    printf("wrong %ld\n", wrong);
    fflush(stdout);
    return 0;
}
"#;

/// Restores until one is caught before its memory is there.
const TRIES: u32 = 50;

/// An image of the program, and the folder that it works in.
struct Scene {
    dir: tempfile::TempDir,
    criu: Criu,
    root: u32,
    restored: u32,
    share: f64,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let criu = support::criu();
        let mut child = start(dir.path());
        let log = dir.path().join("log");
        wait_for("its first line", || {
            fs::read_to_string(&log).is_ok_and(|text| text == "ready\n")
        });
        let host = dir.path().join("host");
        fs::create_dir(&host).expect("made");
        criu.dump(child.id(), &host, false).expect("dumped");
        child.kill().expect("killed");
        child.wait().expect("waited");
        Self {
            root: child.id(),
            dir,
            criu,
            restored: 0,
            share: 1.0,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn restore(&mut self) -> (Namespace, PathBuf) {
        self.restored += 1;
        let log = self.path(&format!("log-{}", self.restored));
        fs::write(&log, "ready\n").expect("written");
        let image = HostImage {
            files: &self.path("host"),
            work: self.path(&format!("work-{}", self.restored)),
            root: self.root,
            log: log.clone(),
            old_log: Some(self.path("log")),
            lazy: true,
            memory: None,
            share: self.share,
            own_network: false,
            shell_job: false,
            connected: true,
            input: None,
            replaced: Vec::new(),
            nameless: Vec::new(),
            exit_file: self.path(&format!("exit-{}", self.restored)),
            agents: "/nowhere/agent.sock".into(),
        };
        let restored = Namespace::restore(&self.criu, &image, || Ok(())).expect("restored");
        (restored, log)
    }

    /// A restored program whose memory is not there; what brings it is stopped.
    fn restore_half(&mut self) -> (Namespace, PathBuf, Pid) {
        for _ in 0..TRIES {
            let (mut restored, log) = self.restore();
            let server = parent(restored.init.pid);
            kill_process(server, Signal::STOP).expect("stopped");
            if is_watched(restored.root.pid) {
                return (restored, log, server);
            }
            kill_process(server, Signal::CONT).expect("goes on");
            restored.kill();
            restored.wait().expect("waited");
        }
        panic!("memory is always there at once");
    }
}

fn start(dir: &Path) -> Child {
    let (source, program) = (dir.join("p.c"), dir.join("p"));
    fs::write(&source, PROGRAM).expect("written");
    let mut cc = Command::new("cc");
    cc.arg("-O1").arg("-o").arg(&program).arg(&source);
    assert!(cc.status().expect("cc runs").success());
    let log: File = OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.join("log"))
        .expect("opened");
    Command::new("setsid")
        .arg(&program)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stderr(log.try_clone().expect("cloned"))
        .stdout(log)
        .spawn()
        .expect("started")
}

fn parent(pid: u32) -> Pid {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find_map(|it| it.strip_prefix("PPid:"));
    let number = line.and_then(|it| it.trim().parse().ok());
    number.and_then(Pid::from_raw).expect("a parent")
}

/// Whether the kernel asks for pages of the process that are missing.
fn is_watched(pid: u32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let mut flags = maps.lines().filter(|it| it.starts_with("VmFlags:"));
    flags.any(|line| line.split(' ').any(|it| it == "um"))
}

#[test]
fn memory_of_mappings_that_the_program_splits_after_a_restore_comes() {
    let mut scene = Scene::new();
    fs::write(scene.path("split"), "").expect("written");
    let (mut restored, log) = scene.restore();
    let root = restored.root.pid;
    wait_for("the end of the missing pages", || !is_watched(root));
    fs::write(scene.path("go"), "").expect("written");
    assert_eq!(restored.wait().expect("waited"), 0);
    let text = fs::read_to_string(log).expect("read");
    assert_eq!(text, "ready\nwrong 0\n");
}

#[test]
fn memory_that_shares_its_disk_comes_when_it_is_used_and_when_nobody_else_needs_the_disk() {
    let mut scene = Scene {
        share: 0.0,
        ..Scene::new()
    };
    // Somebody else needs the disk until the end; the program uses all of its memory.
    fs::write(scene.path("split"), "").expect("written");
    fs::write(scene.path("go"), "").expect("written");
    let (mut restored, log) = scene.restore();
    restored.keep().expect("it lives");
    assert_eq!(restored.wait().expect("waited"), 0);
    assert_eq!(fs::read_to_string(log).expect("read"), "ready\nwrong 0\n");

    fs::remove_file(scene.path("go")).expect("removed");
    let (mut restored, log) = scene.restore();
    restored.keep().expect("it lives");
    let root = restored.root.pid;
    let (mut outer, pages) = restored.split();
    pages.hurry();
    assert!(pages.wait(LIMIT));
    assert!(!is_watched(root));
    fs::write(scene.path("go"), "").expect("written");
    outer.wait().expect("waited");
    assert_eq!(fs::read_to_string(log).expect("read"), "ready\nwrong 0\n");
}

#[test]
fn a_program_never_finds_zeros_in_place_of_memory_that_cannot_come() {
    let mut scene = Scene::new();
    fs::write(scene.path("split"), "").expect("written");
    fs::write(scene.path("go"), "").expect("written");
    // What brings it is killed.
    let (mut restored, log, server) = scene.restore_half();
    kill_process(server, Signal::KILL).expect("killed");
    restored.wait().expect("waited");
    wait_for("its end", || !restored.root.alive());
    assert_eq!(fs::read_to_string(log).expect("read"), "ready\n");

    // It cannot be read.
    let (mut restored, log, server) = scene.restore_half();
    restored.keep().expect("it lives");
    for entry in fs::read_dir(scene.path("host")).expect("listed") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("pages-") {
            let pages = OpenOptions::new().write(true).open(&path);
            pages.and_then(|it| it.set_len(0)).expect("cut");
        }
    }
    kill_process(server, Signal::CONT).expect("goes on");
    let root = restored.root;
    let (mut outer, pages) = restored.split();
    outer.wait().expect("waited");
    let reason = pages.failure(LIMIT).expect("a reason");
    assert!(reason.contains("cannot read the image's pages"), "{reason}");
    wait_for("its end", || !root.alive());
    assert_eq!(fs::read_to_string(log).expect("read"), "ready\n");
}
