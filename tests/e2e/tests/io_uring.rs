//! Programs find no io_uring, which CRIU cannot dump: neither before a checkpoint nor after a restore, in whichever thread or
//! process. Where it is allowed, a checkpoint of a program that holds one is refused before the stop.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, PROGRAM_LIMIT};
use fermata_e2e::scene::Scene;

const PYTHON: &str = "/usr/bin/python3";

/// Says what comes of `io_uring_setup`, and what the kernel says of the thread's filters and its `no_new_privs`.
const RING: &str = "
import ctypes, errno, os, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)

def ring():
    made = libc.syscall(425, 4, ctypes.create_string_buffer(120))
    return 'a ring' if made >= 0 else errno.errorcode[ctypes.get_errno()]

def fact(name):
    lines = open('/proc/thread-self/status').read().splitlines()
    return next(it.split()[1] for it in lines if it.startswith(name + ':'))

def say(who):
    print(who, ring(), 'filters', fact('Seccomp_filters'), 'no_new_privs', fact('NoNewPrivs'), flush=True)
";

/// The first thread, another and a child each say it before and after a file is there.
const ALL: &str = "
def twice(who, wait):
    say(who)
    wait()
    say(who)

asked, answer = os.pipe(), os.pipe()
if os.fork() == 0:
    os.close(asked[1])
    twice('child', lambda: (os.write(answer[1], b'.'), os.read(asked[0], 1)))
    os._exit(0)
os.read(answer[0], 1)
go, said = threading.Event(), threading.Event()
def thread():
    twice('thread', lambda: (said.set(), go.wait()))
other = threading.Thread(target=thread)
other.start()
said.wait()

def wait():
    print('ready', flush=True)
    end = time.time() + 600
    while not os.path.exists(sys.argv[1]):
        assert time.time() < end
        time.sleep(0.01)
twice('first', wait)
go.set()
other.join()
os.write(asked[1], b'.')
os.wait()
";

const EXPECTED: &str = "\
child ENOSYS filters 1 no_new_privs 0
thread ENOSYS filters 1 no_new_privs 0
first ENOSYS filters 1 no_new_privs 0
ready
first ENOSYS filters 1 no_new_privs 0
thread ENOSYS filters 1 no_new_privs 0
child ENOSYS filters 1 no_new_privs 0
";

#[test]
fn io_uring_is_denied_before_a_checkpoint_and_after_a_restore() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let go = scene.sandbox().work().join("go");
    let words = [
        "-c",
        &format!("{RING}{ALL}"),
        go.to_str().context("a path")?,
    ];
    fermata.run("first", Device::Soft, Path::new(PYTHON), &words)?;
    scene.wait_says("first", "ready")?;
    scene.replace("first", "image", "second")?;
    // What is restored is checkpointed like what was started.
    scene.replace("second", "again", "third")?;
    std::fs::write(go, "")?;
    fermata.wait_exit("third", PROGRAM_LIMIT)?;
    let log = fermata.log("third")?;
    ensure!(log == EXPECTED, "{log}");
    scene.close()
}

#[test]
fn a_program_that_holds_an_io_uring_is_refused_before_the_stop() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let program = format!("{RING}print(ring(), flush=True)\n");
    let native = Command::new(PYTHON).args(["-c", &program]).output()?;
    let native = String::from_utf8(native.stdout)?;
    let program = format!("{program}time.sleep(600)\n");
    let words = ["-c", &program];
    let allow = [("FERMATA_IO_URING", "allow")];
    fermata.run_with(&allow, "one", Device::Soft, Path::new(PYTHON), &words)?;
    scene.wait_says("one", "\n")?;
    let log = fermata.log("one")?;
    ensure!(log == native, "natively {native}, here {log}");
    // Some machines give it to no program at all.
    if native == "a ring\n" {
        let refused = fermata.call(&["checkpoint", "one"])?;
        ensure!(refused.status == 14, "{}", refused.stderr);
        for word in ["an io_uring", "FERMATA_IO_URING=allow"] {
            ensure!(refused.stderr.contains(word), "{}", refused.stderr);
        }
        ensure!(!fermata.image("one-1").exists());
    }
    fermata.kill("one")?;
    scene.close()
}
