//! Standard input of programs: what they get, and what becomes of it at a checkpoint.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Mode, PROGRAM_LIMIT};
use fermata_e2e::command;
use fermata_e2e::fermata::COMMAND_LIMIT;
use fermata_e2e::scene::{Scene, wait_until};
use rustix::event::{PollFd, PollFlags, poll};

/// A command of the tool that runs beside the test.
struct Beside {
    child: Child,
    output: File,
}

impl Beside {
    fn start(scene: &Scene, input: Stdio, words: &[&str]) -> Result<Self> {
        let output = tempfile::tempfile()?;
        let mut command = Command::new(scene.tree().fermata());
        command.arg("--quiet").args(words);
        scene.sandbox().enter(&mut command);
        command.stdin(input).stdout(output.try_clone()?);
        Ok(Self {
            child: command.spawn()?,
            output,
        })
    }

    /// Writes to its input.
    fn write(&mut self, text: &[u8]) -> Result<()> {
        let input = self.child.stdin.as_mut().context("no pipe")?;
        Ok(input.write_all(text)?)
    }

    /// Its status and what it has printed, once it has ended.
    fn end(mut self) -> Result<(i32, String)> {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break command::code(status);
            }
            if begun.elapsed() > COMMAND_LIMIT {
                self.child.kill()?;
                anyhow::bail!("it does not end; printed so far: {}", self.printed()?);
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        Ok((status, self.printed()?))
    }

    fn printed(&self) -> Result<String> {
        // Without moving the file's position, at which the command goes on to write.
        let mut text = vec![0; usize::try_from(self.output.metadata()?.len())?];
        self.output.read_exact_at(&mut text, 0)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

const RUN: [&str; 4] = ["run", "--device", "soft", "--"];

fn piped(scene: &Scene, program: &[&str]) -> Result<Beside> {
    Beside::start(scene, Stdio::piped(), &[&RUN, program].concat())
}

#[test]
fn a_program_reads_what_is_piped_to_the_command() -> Result<()> {
    let scene = Scene::new()?;
    let mut cat = piped(&scene, &["/bin/cat"])?;
    cat.write(b"hello\n")?;
    drop(cat.child.stdin.take());
    ensure!(cat.end()? == (0, "hello\n".to_owned()));

    // More than a pipe holds, and the status passes on.
    let mut count = piped(&scene, &["sh", "-c", "wc -c; exit 7"])?;
    count.write(&vec![b'x'; 3_000_001])?;
    drop(count.child.stdin.take());
    let (status, printed) = count.end()?;
    ensure!(
        (status, printed.trim()) == (7, "3000001"),
        "{status}: {printed}"
    );

    // Input that does not end keeps nobody from ending.
    let mut done = piped(&scene, &["sh", "-c", "read line; echo $line; exit 3"])?;
    done.write(b"first\nsecond\n")?;
    let held = done.child.stdin.take();
    ensure!(done.end()? == (3, "first\n".to_owned()));
    drop(held);
    scene.close()
}

#[test]
fn a_detached_program_gets_a_file_and_nothing_else() -> Result<()> {
    let scene = Scene::new()?;
    let file = scene.sandbox().work().join("input");
    std::fs::write(&file, "from a file\n")?;
    for (name, input, expected) in [
        ("piped", Stdio::piped(), ""),
        ("file", File::open(&file)?.into(), "from a file\n"),
    ] {
        let words = ["run", "--detach", "--name", name, "--", "/bin/cat"];
        let started = Beside::start(&scene, input, &words)?;
        let (status, printed) = started.end()?;
        ensure!(status == 0, "status {status}: {printed}");
        scene.fermata().wait_exit(name, PROGRAM_LIMIT)?;
        let log = scene.fermata().log(name)?;
        ensure!(log == expected, "{name}: {log}");
    }
    scene.close()
}

/// Copies a terminal of its own, in which a line and the end of input are typed, to a command.
const TERMINAL: &str = "
import os, pty, subprocess, sys
ours, theirs = pty.openpty()
child = subprocess.Popen(sys.argv[1:], stdin=theirs)
os.close(theirs)
os.write(ours, b'typed\\n')
os.write(ours, b'\\x04')
sys.exit(child.wait())
";

#[test]
fn a_program_reads_what_is_typed() -> Result<()> {
    let scene = Scene::new()?;
    let tool = scene.tree().fermata();
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", TERMINAL]).arg(tool);
    command
        .arg("--quiet")
        .args(RUN)
        .args(["sh", "-c", "cat; exit 5"]);
    scene.sandbox().enter(&mut command);
    let done = command::run(command, COMMAND_LIMIT)?;
    ensure!(
        (done.status, done.stdout.as_str()) == (5, "typed\n"),
        "{done:?}"
    );
    scene.close()
}

/// Reads one line, byte by byte, and everything else once there is the file that it is given.
const READER: &str = "
import os, sys, time
line = b''
while not line.endswith(b'\\n'):
    line += os.read(0, 1)
print('read', line, flush=True)
end = time.time() + 600
while not os.path.exists(sys.argv[1]):
    assert time.time() < end
    time.sleep(0.01)
while piece := os.read(0, 100):
    print('read', piece, flush=True)
print('end', flush=True)
";

/// Whether nobody can write to the pipe that is the input of process `pid`.
fn has_ended(pid: i32) -> Result<bool> {
    let input = File::open(format!("/proc/{pid}/fd/0"))?;
    let mut set = [PollFd::new(&input, PollFlags::IN)];
    poll(&mut set, None)?;
    Ok(set[0].revents().contains(PollFlags::HUP))
}

/// Takes an image of a program that has read one line of two.
fn image(scene: &Scene, ended: bool) -> Result<()> {
    let fermata = scene.fermata();
    let go = scene.sandbox().work().join("go");
    let go = go.to_str().context("path")?;
    let words = [
        "run",
        "--device",
        "soft",
        "--name",
        "first",
        "--",
        "/usr/bin/python3",
        "-c",
        READER,
        go,
    ];
    let mut first = Beside::start(scene, Stdio::piped(), &words)?;
    first.write(b"one\ntwo\n")?;
    if ended {
        drop(first.child.stdin.take());
    }
    wait_until("a line is read", || {
        let session = fermata.find("first")?;
        Ok(session.is_some() && fermata.log("first")?.contains("one"))
    })?;
    let pid = fermata.session("first")?.pid.context("no process")?;
    // A process that another test has just made may have it for a moment, too.
    wait_until("nobody writes any more", || Ok(!ended || has_ended(pid)?))?;
    fermata.checkpoint_with("first", "image", Mode::Stop, &["--then", "stop"])?;
    let (status, printed) = first.end()?;
    ensure!(status == 137, "status {status}: {printed}");
    std::fs::write(go, "")?;
    Ok(())
}

fn restore(scene: &Scene, name: &str) -> Result<Beside> {
    let path = scene.fermata().image("image");
    let words = ["restore", path.to_str().context("path")?, "--name", name];
    Beside::start(scene, Stdio::piped(), &words)
}

const UNREAD: &str = "read b'one\\n'\nread b'two\\n'\n";

#[test]
fn what_was_not_read_at_a_checkpoint_comes_before_the_input_of_the_restore() -> Result<()> {
    let scene = Scene::new()?;
    image(&scene, false)?;
    for name in ["second", "third"] {
        let mut restored = restore(&scene, name)?;
        wait_until("what was unread is read", || {
            Ok(restored.printed()? == UNREAD)
        })?;
        restored.write(b"three\n")?;
        wait_until("what is written is read", || {
            Ok(restored.printed()?.ends_with("read b'three\\n'\n"))
        })?;
        drop(restored.child.stdin.take());
        let (status, printed) = restored.end()?;
        let expected = format!("{UNREAD}read b'three\\n'\nend\n");
        ensure!((status, &printed) == (0, &expected), "{status}: {printed}");
    }
    // Nobody writes to one that is detached.
    scene
        .try_restore("image", "detached")?
        .success("fermata restore")?;
    scene.fermata().wait_exit("detached", PROGRAM_LIMIT)?;
    let log = scene.fermata().log("detached")?;
    ensure!(log == format!("{UNREAD}end\n"), "{log}");
    scene.close()
}

#[test]
fn a_restored_program_that_ends_at_once_keeps_its_status() -> Result<()> {
    let scene = Scene::new()?;
    let program = "import os, sys; os.read(0, 100); os._exit(9)";
    let words = [
        "run",
        "--name",
        "first",
        "--",
        "/usr/bin/python3",
        "-c",
        program,
    ];
    let first = Beside::start(&scene, Stdio::piped(), &words)?;
    wait_until("a program waits for its input", || {
        let Some(pid) = scene.fermata().find("first")?.and_then(|it| it.pid) else {
            return Ok(false);
        };
        let waits = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
        // Of the reads that it does, the one of its input.
        Ok(waits.starts_with("0 0x0 "))
    })?;
    scene
        .fermata()
        .checkpoint_with("first", "image", Mode::Stop, &["--then", "stop"])?;
    ensure!(first.end()?.0 == 137);
    for round in 0..10 {
        let name = format!("round-{round}");
        scene
            .try_restore("image", &name)?
            .success("fermata restore")?;
        let status = scene.fermata().wait_exit(&name, PROGRAM_LIMIT)?;
        ensure!(status == 9, "status {status} in round {round}");
    }
    scene.close()
}

#[test]
fn input_that_had_ended_at_a_checkpoint_has_ended_after_it() -> Result<()> {
    let scene = Scene::new()?;
    image(&scene, true)?;
    let mut restored = restore(&scene, "second")?;
    // It may be gone before it is written to.
    let _ = restored.write(b"three\n");
    let held = restored.child.stdin.take();
    let (status, printed) = restored.end()?;
    ensure!(
        (status, &printed) == (0, &format!("{UNREAD}end\n")),
        "{status}: {printed}"
    );
    drop(held);
    scene.close()
}
