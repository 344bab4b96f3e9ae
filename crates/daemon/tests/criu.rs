//! CRIU alone: a program that polls a block of its memory, as the library in programs does, is dumped,
//! restored twice at once in namespaces of its own, reached through its memory, and ended.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use fermata_daemon::criu::Criu;
use fermata_daemon::namespace::{HostImage, Namespace};

use self::support::{criu, wait_for};

mod support;

const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
volatile struct { char magic[8]; unsigned state; char text[180]; } block = { "FERMATAW", 0, "" };
int main(void) {
    char *big = malloc(8 << 20);
    memset(big, 7, 8 << 20);
    printf("block %p\n", (void *)&block);
    fflush(stdout);
    while (!block.state) usleep(1000);
    long sum = 0;
    for (int i = 0; i < 8 << 20; i++) sum += big[i];
    printf("woken %s %ld pid %d\n", (char *)block.text, sum, (int)getpid());
    fflush(stdout);
    return block.state == 7 ? 7 : 0;
}
"#;

fn compile(dir: &Path) -> PathBuf {
    let (source, program) = (dir.join("p.c"), dir.join("p"));
    fs::write(&source, PROGRAM).expect("written");
    let status = Command::new("cc")
        .arg("-O1")
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .status();
    assert!(status.expect("cc runs").success());
    program
}

fn append(path: &Path) -> File {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .expect("opened")
}

fn poke(pid: u32, address: u64, state: u32, text: &str) {
    let memory = OpenOptions::new()
        .write(true)
        .open(format!("/proc/{pid}/mem"))
        .expect("opened");
    memory
        .write_all_at(format!("{text}\0").as_bytes(), address + 12)
        .expect("text written");
    memory
        .write_all_at(&state.to_ne_bytes(), address + 8)
        .expect("state written");
}

#[test]
fn a_dumped_program_runs_twice_at_once_in_its_own_namespaces() {
    let criu = criu();
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let program = compile(dir);
    let log = dir.join("log");
    let out = append(&log);
    let mut child = Command::new("setsid")
        .arg(&program)
        .stdin(Stdio::null())
        .stderr(out.try_clone().expect("cloned"))
        .stdout(out)
        .spawn()
        .expect("started");
    wait_for("the first line", || {
        fs::read_to_string(&log).is_ok_and(|t| t.ends_with('\n'))
    });
    let recorded = fs::read_to_string(&log).expect("read");
    let address = recorded
        .trim()
        .strip_prefix("block 0x")
        .expect("an address");
    let address = u64::from_str_radix(address, 16).expect("a number");

    let host = dir.join("host");
    fs::create_dir(&host).expect("made");
    criu.dump(child.id(), &host, false).expect("dumped");
    let files = fs::read_dir(&host).expect("listed").count();
    assert!(
        child.try_wait().expect("asked").is_none(),
        "it runs on after the dump"
    );
    poke(child.id(), address, 1, "original");
    assert!(child.wait().expect("waited").success());
    assert!(
        fs::read_to_string(&log)
            .expect("read")
            .contains("woken original 58720256")
    );

    let mut copies = Vec::new();
    for (n, lazy) in [(1, true), (2, false)] {
        let own = dir.join(format!("log-{n}"));
        fs::write(&own, &recorded).expect("written");
        let image = HostImage {
            old_log: Some(log.clone()),
            lazy,
            memory: None,
            ..image(&host, dir, n, child.id(), &own)
        };
        let copy = Namespace::restore(&criu, &image, || Ok(())).expect("restored");
        copies.push((copy, own));
    }
    assert_ne!(copies[0].0.root.pid, copies[1].0.root.pid);
    // A restored program can be dumped again, from inside its namespace.
    let again = dir.join("again");
    fs::create_dir(&again).expect("made");
    criu.dump(copies[1].0.root.pid, &again, false)
        .unwrap_or_else(|e| {
            panic!(
                "{e:?}: {}",
                fs::read_to_string(again.join("dump.log")).unwrap_or_default()
            )
        });

    poke(copies[0].0.root.pid, address, 7, "first");
    assert_eq!(copies[0].0.wait().expect("waited"), 7);
    assert_eq!(fs::read_to_string(dir.join("exit-1")).expect("read"), "7\n");
    let text = fs::read_to_string(&copies[0].1).expect("read");
    assert_eq!(
        text,
        format!("{recorded}woken first 58720256 pid {}\n", child.id())
    );
    copies[1].0.kill();
    assert_eq!(copies[1].0.wait().expect("waited"), 128 + 9);
    assert_eq!(fs::read_to_string(&copies[1].1).expect("read"), recorded);
    assert!(!copies[1].0.root.alive());
    assert_eq!(
        fs::read_dir(&host).expect("listed").count(),
        files,
        "the image is untouched"
    );

    let own = dir.join("log-3");
    append(&own);
    let third = HostImage {
        old_log: Some(copies[1].1.clone()),
        lazy: true,
        memory: None,
        ..image(&again, dir, 3, child.id(), &own)
    };
    let mut third = Namespace::restore(&criu, &third, || Ok(())).expect("restored again");
    poke(third.root.pid, address, 1, "third");
    assert_eq!(third.wait().expect("waited"), 0);
    assert!(
        fs::read_to_string(&own)
            .expect("read")
            .starts_with("woken third 58720256")
    );

    // Nobody knows of a program whose restorer dies before it has noted that down.
    for (n, kept) in [(4, false), (5, true)] {
        let own = dir.join(format!("log-{n}"));
        append(&own);
        let image = HostImage {
            old_log: Some(copies[1].1.clone()),
            ..image(&again, dir, n, child.id(), &own)
        };
        let mut copy = Namespace::restore(&criu, &image, || Ok(())).expect("restored again");
        let (init, root) = (copy.init, copy.root);
        if kept {
            copy.keep().expect("it lives");
        }
        drop(copy);
        if kept {
            std::thread::sleep(Duration::from_millis(300));
            assert!(root.alive(), "a kept program has ended");
            init.signal(rustix::process::Signal::KILL);
        }
        wait_for("its end", || !root.alive() && !init.alive());
    }
}

#[test]
fn an_image_that_lacks_a_file_leaves_nothing_behind() {
    let criu = criu();
    let dir = tempfile::tempdir().expect("a folder");
    let host = dir.path().join("host");
    fs::create_dir(&host).expect("made");
    append(&dir.path().join("log"));
    let image = image(&host, dir.path(), 1, 4711, &dir.path().join("log"));
    let failure = Namespace::restore(&criu, &image, || Ok(())).expect_err("there is no image");
    assert!(
        failure.message.contains("CRIU cannot restore the program"),
        "{}",
        failure.message
    );
    let work = image.work.to_string_lossy().into_owned();
    let mentions = |pid: &u32| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&work))
    };
    assert_eq!(
        fermata_daemon::proc::all().iter().find(|pid| mentions(pid)),
        None
    );
}

/// The image of a program without descriptors of its own, restored as number `n` in `dir`.
fn image<'a>(files: &'a Path, dir: &Path, n: u32, root: u32, log: &Path) -> HostImage<'a> {
    HostImage {
        files,
        work: dir.join(format!("work-{n}")),
        root,
        log: log.into(),
        old_log: None,
        lazy: false,
        memory: None,
        share: 1.0,
        own_network: false,
        shell_job: false,
        connected: true,
        input: None,
        replaced: Vec::new(),
        nameless: Vec::new(),
        exit_file: dir.join(format!("exit-{n}")),
        agents: "/nowhere/agent.sock".into(),
    }
}

/// A script in the place of CRIU.
fn fake_criu(program: &Path, script: &str) -> Criu {
    let text = program.with_extension("text");
    fs::write(&text, script).expect("written");
    // By another process: a child of another test may have open what this one writes, which then cannot be executed.
    let mut install = Command::new("install");
    install.arg("-m755").arg(text).arg(program);
    assert!(install.status().expect("install").success());
    Criu::at(program.into(), Path::new(env!("CARGO_BIN_EXE_fermatad")))
}

/// A CRIU that is killed while it asks the kernel what it can do, for which it lets a child sleep.
const KILLED: &str = "#!/bin/sh
sleep 1000 &
echo $! >$0.child
kill -9 $$
";

#[test]
fn a_criu_that_is_killed_leaves_no_child_behind() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = dir.path().join("killed");
    let criu = fake_criu(&program, KILLED);
    criu.version().expect_err("it is killed");
    let child = fs::read_to_string(program.with_extension("child")).expect("its child");
    let state = || fs::read_to_string(format!("/proc/{}/stat", child.trim()));
    // Its parent may take some time to reap it.
    wait_for("the end of CRIU's child", || {
        state().map_or(true, |it| it.contains(") Z "))
    });
}

/// A CRIU whose program, process 1000, is killed without its hearing of it.
const UNHEARD: &str = "#!/bin/sh
(echo 999 >/proc/sys/kernel/ns_last_pid; sh -c 'kill -9 $$' &)
sleep 1000
";

#[test]
fn a_program_that_is_killed_while_it_is_restored_ends_the_restore() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let criu = fake_criu(&dir.join("unheard"), UNHEARD);
    let (files, log) = (dir.join("host"), dir.join("log"));
    fs::create_dir(&files).expect("made");
    append(&log);
    let image = image(&files, dir, 1, 1000, &log);
    Namespace::restore(&criu, &image, || Ok(())).expect_err("it is killed");
    let status = fs::read_to_string(dir.join("exit-1")).expect("a status");
    assert_eq!(status, "137\n");
}
