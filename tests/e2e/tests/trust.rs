//! Whom the command and the library in the program believe: sockets of other users, settings, logs that grow.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::Mode;
use fermata_e2e::command;
use fermata_e2e::fermata::COMMAND_LIMIT;
use fermata_e2e::scene::{Scene, wait_until};

/// User and group that own nothing.
const NOBODY: u32 = 65534;

/// Listens at the socket that its first argument names as the user of the second one, and appends what comes to the
/// file of the third.
const LISTENER: &str = "
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o600)
heard = open(sys.argv[3], 'wb', buffering=0)
os.setresuid(int(sys.argv[2]), int(sys.argv[2]), int(sys.argv[2]))
s.listen()
print('listens', flush=True)
while True:
    c = s.accept()[0]
    c.settimeout(5)
    try:
        heard.write(c.recv(1 << 20))
    except OSError:
        pass
";

/// What this process sends to the listener.
const MARKER: &[u8] = b"nothing before this";

/// A process that is ended with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn listen(socket: &Path, heard: &Path) -> Result<Ended> {
    let mut child = Command::new("/usr/bin/python3")
        .args(["-c", LISTENER])
        .arg(socket)
        .arg(NOBODY.to_string())
        .arg(heard)
        .stdout(Stdio::piped())
        .spawn()
        .context("a listener")?;
    let mut said = [0; 8];
    let out = child.stdout.as_mut().context("its output")?;
    out.read_exact(&mut said).context("it listens")?;
    Ok(Ended(child))
}

#[test]
fn nothing_of_a_request_reaches_a_socket_of_another_user() -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "only root can act as another user"
    );
    // The folder is another user's; then the folder and the socket are ours, and another user's process listens.
    for (owner, reason) in [
        (NOBODY, "belongs to user 65534"),
        (0, "a process of user 65534"),
    ] {
        let scene = Scene::new()?;
        let heard = scene.sandbox().work().join("heard");
        let folder = scene.sandbox().runtime();
        std::os::unix::fs::chown(&folder, Some(owner), None)?;
        let socket = folder.join("fermatad.sock");
        let _listener = listen(&socket, &heard)?;
        for words in [
            &["run", "--device", "soft", "--", "true"][..],
            &["ps"],
            &["checkpoint", "heat"],
        ] {
            let mut tool = Command::new(scene.tree().fermata());
            tool.args(words).env("SECRET", "do not tell");
            scene.sandbox().enter(&mut tool);
            let done = command::run(tool, COMMAND_LIMIT)?;
            ensure!(done.status != 0, "`fermata {}` was done", words.join(" "));
            ensure!(
                done.stderr.contains(reason) && done.stderr.contains("hint:"),
                "{}",
                done.stderr
            );
        }
        // What was sent is there before: the listener takes one connection after the other.
        UnixStream::connect(&socket)?.write_all(MARKER)?;
        wait_until("the marker is heard", || {
            Ok(fs::read(&heard)?.ends_with(MARKER))
        })?;
        ensure!(fs::read(&heard)? == MARKER, "something was sent");
        std::os::unix::fs::chown(&folder, Some(0), None)?;
        scene.close()?;
    }
    Ok(())
}

#[test]
fn a_session_with_a_wrong_setting_does_not_begin_and_says_why() -> Result<()> {
    let scene = Scene::new()?;
    let heat = scene.tree().program("heat2d")?;
    let heat = heat.to_str().context("path")?;
    // The program sets it, so that the command has not seen it.
    let script = format!("FERMATA_PARK_SIGNAL=99 exec {heat} --steps 3");
    let words = ["run", "--device", "soft", "--", "/bin/sh", "-c", &script];
    let done = scene.fermata().call(&words)?;
    ensure!(
        !matches!(done.status, 0 | 125..=127),
        "status {}: {}",
        done.status,
        done.stderr
    );
    for part in ["FERMATA_PARK_SIGNAL", "`99`", "from 1 to 64"] {
        ensure!(done.stderr.contains(part), "{}", done.stderr);
    }
    scene.close()
}

/// Prints a number in each of 60,000 lines of 64 bytes, then waits.
const CHATTY: &str = "
import sys, time
for n in range(60000):
    print(f'{n:063}')
sys.stdout.flush()
time.sleep(100000)
";

#[test]
fn a_chatty_session_is_checkpointed_and_restored_with_the_end_of_its_log() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let words = [
        "run",
        "--device",
        "soft",
        "--detach",
        "--name",
        "chatty",
        "--",
        "/usr/bin/python3",
        "-c",
        CHATTY,
    ];
    let limit: u64 = 256 << 10;
    fermata
        .call_with(&words, &[("FERMATA_LOG_LIMIT", "256K")])?
        .success("fermata run")?;
    let last = format!("{:063}\n", 59_999);
    let kept = |name: &str| -> Result<String> {
        let done = fermata.call(&["logs", name])?.success("fermata logs")?;
        Ok(done.stdout)
    };
    wait_until("the log has its end, and no more than its limit", || {
        let text = kept("chatty")?;
        Ok(text.ends_with(&last) && text.len() as u64 <= limit)
    })?;
    fermata.checkpoint("chatty", "image", Mode::Stop)?;
    let copied = fs::metadata(fermata.image("image").join("log"))?.len();
    ensure!(copied <= limit, "the image has {copied} bytes of its log");
    scene
        .try_restore("image", "again")?
        .success("fermata restore")?;
    let text = kept("again")?;
    ensure!(text.ends_with(&last), "{} bytes", text.len());
    ensure!(text.len() as u64 <= limit);
    for name in ["chatty", "again"] {
        fermata.kill(name)?;
    }
    scene.close()
}
