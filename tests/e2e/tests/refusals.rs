//! What is refused, or passed on: one clear sentence and the documented status.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::command::{self, Finished};
use fermata_e2e::executable;
use fermata_e2e::fermata::COMMAND_LIMIT;
use fermata_e2e::scene::{SHORT, Scene, Which, wait_until};

/// Runs `fermata run --device soft -- words` to its end.
fn run(scene: &Scene, words: &[&str]) -> Result<Finished> {
    let all: Vec<&str> = ["run", "--device", "soft", "--"]
        .into_iter()
        .chain(words.iter().copied())
        .collect();
    scene.fermata().call(&all)
}

fn expect(done: &Finished, status: i32, words: &[&str]) -> Result<()> {
    ensure!(
        done.status == status,
        "status {} instead of {status}: {}",
        done.status,
        done.stderr
    );
    for word in words {
        ensure!(
            done.stderr.contains(word),
            "`{word}` is missing in: {}",
            done.stderr
        );
    }
    Ok(())
}

#[test]
fn a_program_keeps_its_own_status() -> Result<()> {
    let scene = Scene::new()?;
    expect(&run(&scene, &["sh", "-c", "exit 7"])?, 7, &[])?;
    expect(&run(&scene, &["sh", "-c", "kill -15 $$"])?, 143, &[])?;
    expect(
        &run(&scene, &["/no/such/program"])?,
        127,
        &["/no/such/program"],
    )?;
    let file = scene.sandbox().work().join("plain");
    std::fs::write(&file, "text")?;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644))?;
    expect(
        &run(&scene, &[file.to_str().context("path")?])?,
        126,
        &["plain"],
    )?;
    scene.close()
}

#[test]
fn a_wrong_option_is_wrong_usage() -> Result<()> {
    let scene = Scene::new()?;
    expect(
        &scene.fermata().call(&["checkpoint", "--no-such-option"])?,
        2,
        &["--no-such-option"],
    )?;
    scene.close()
}

#[test]
fn an_unknown_session_or_image_is_named() -> Result<()> {
    let scene = Scene::new()?;
    expect(
        &scene.fermata().call(&["checkpoint", "nobody"])?,
        10,
        &["nobody"],
    )?;
    expect(&scene.fermata().call(&["logs", "nobody"])?, 10, &["nobody"])?;
    expect(&scene.try_restore("nothing", "name")?, 10, &["nothing"])?;
    scene.close()
}

#[test]
fn an_unknown_instruction_is_named_when_the_module_is_loaded() -> Result<()> {
    let scene = Scene::new()?;
    let program = scene.sandbox().work().join("driver");
    executable::copy(&scene.tree().program("driver")?, &program)?;
    let ptx = std::fs::read_to_string(scene.tree().program("driver_kernels.ptx")?)?;
    let strange = ptx.replacen("ret;", "frobnicate.u32 %r1, %r2;\n\tret;", 1);
    std::fs::write(scene.sandbox().work().join("driver_kernels.ptx"), strange)?;
    let done = run(&scene, &[program.to_str().context("path")?])?;
    ensure!(done.status == 1, "status {}: {}", done.status, done.stderr);
    let said = done.stdout + &done.stderr;
    ensure!(
        said.contains("frobnicate"),
        "the instruction is not named: {said}"
    );
    scene.close()
}

#[test]
fn without_criu_nothing_is_stopped() -> Result<()> {
    let scene = Scene::new()?;
    let mut run = Command::new(scene.tree().fermata());
    run.args([
        "run", "--device", "soft", "--name", "heat", "--detach", "--",
    ])
    .arg(scene.tree().program("heat2d")?)
    .args(fermata_e2e::scene::SLOW)
    .env("FERMATA_CRIU", "/no/such/criu");
    scene.sandbox().enter(&mut run);
    command::run(run, COMMAND_LIMIT)?.success("fermata run")?;
    scene.wait_steps("heat", 2)?;
    let done = scene.fermata().call(&["checkpoint", "heat"])?;
    expect(&done, 13, &["CRIU"])?;
    scene.check_goes_on("heat")?;
    scene.fermata().kill("heat")?;
    scene.close()
}

/// Listens at a port of the machine, and says which. Connections of others come from another address, and do not get
/// the port while nobody has it.
const LISTENER: &str = "
import socket, time
s = socket.create_server(('127.86.83.1', 0))
print('port', s.getsockname()[1], flush=True)
time.sleep(600)
";

#[test]
fn a_port_that_is_in_use_is_named_and_leaves_the_image_whole() -> Result<()> {
    let scene = Scene::new()?;
    let python = std::path::Path::new("/usr/bin/python3");
    let fermata = scene.fermata();
    fermata.run("first", Device::Soft, python, &["-c", LISTENER])?;
    wait_until("a program listens", || {
        Ok(fermata.log("first")?.contains("port "))
    })?;
    fermata.checkpoint("first", "image", Mode::Stop)?;
    let refused = scene.try_restore("image", "second")?;
    expect(&refused, 1, &["in use", "hint:", "taken", "ss -lntxp"])?;
    ensure!(fermata.session("second").is_err(), "half a session is left");
    // The program, its daemon, and perhaps a worker that waits for the next session.
    wait_until("what was restored in vain ends", || {
        let mut left = scene.sandbox().processes();
        left.retain(|it| it.name != "fermata-worker");
        Ok(left.len() <= 2)
    })?;
    fermata.kill("first")?;
    scene
        .try_restore("image", "second")?
        .success("fermata restore")?;
    fermata.kill("second")?;
    scene.close()
}

#[test]
fn a_stopped_program_is_refused_at_once() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_held("heat")?;
    let process = scene.process("heat", Which::Program)?;
    let pid = rustix::process::Pid::from_raw(process.pid).context("a number")?;
    rustix::process::kill_process(pid, rustix::process::Signal::STOP)?;
    wait_until("a program is stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid))?;
        Ok(stat.contains(") T "))
    })?;
    let words = ["stopped by a signal", "hint:", "kill -CONT"];
    let done = scene.fermata().call(&["checkpoint", "heat"])?;
    expect(&done, 14, &words)?;
    let doctor = scene.fermata().call(&["doctor", "heat"])?;
    ensure!(
        doctor.status == 14 && doctor.stdout.contains("kill -CONT"),
        "{}",
        doctor.stdout
    );
    rustix::process::kill_process(pid, rustix::process::Signal::CONT)?;
    scene.fermata().checkpoint("heat", "image", Mode::Stop)?;
    scene.let_go()?;
    scene.close()
}

/// The tool as another user would call it, with folders of that user's own; programs stand still at step 40 until
/// there is the file `go`.
struct OtherUser<'s> {
    scene: &'s Scene,
    folder: tempfile::TempDir,
}

/// A user that this machine does not have.
const OTHER: u32 = 54321;

impl<'s> OtherUser<'s> {
    fn new(scene: &'s Scene) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("fo-").tempdir_in("/tmp")?;
        std::os::unix::fs::chown(folder.path(), Some(OTHER), Some(OTHER))?;
        Ok(Self { scene, folder })
    }

    fn call(&self, words: &[&str]) -> Result<Finished> {
        let tool = self.scene.tree().fermata();
        let tool = tool.to_str().context("path")?;
        self.call_program(&[&[tool], words].concat())
    }

    fn call_program(&self, words: &[&str]) -> Result<Finished> {
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--reuid={OTHER}"))
            .arg(format!("--regid={OTHER}"))
            .args(["--clear-groups", "--inh-caps=-all", "--bounding-set=-all"])
            .args(words);
        self.scene.sandbox().enter(&mut command);
        let folder = self.folder.path();
        command
            .current_dir(folder)
            .env("HOME", folder)
            .env("FERMATA_RUNTIME_DIR", folder.join("run"))
            .env("FERMATA_IMAGE_DIR", folder.join("images"))
            .env("HOLD_AT", "40")
            .env("HOLD_UNTIL", folder.join("go"));
        command::run(command, COMMAND_LIMIT)
    }
}

#[test]
fn another_user_runs_programs_and_is_told_what_criu_needs() -> Result<()> {
    let scene = Scene::new()?;
    let other = OtherUser::new(&scene)?;
    let program = scene.tree().program("heat2d")?;
    let program = program.to_str().context("path")?;
    let small = ["run", "--device", "soft", "--", program, "--steps", "5"];
    let done = other.call(&small)?;
    expect(&done, 0, &["cannot be checkpointed", "need root"])?;
    ensure!(done.stdout.contains("digest "), "{}", done.stdout);
    let quiet = other.call(&[&["--quiet"][..], &small].concat())?;
    ensure!(quiet.stderr.is_empty(), "{}", quiet.stderr);
    let held = [
        &[
            "run", "--device", "soft", "--name", "heat", "--detach", "--", program,
        ][..],
        SHORT,
    ]
    .concat();
    expect(&other.call(&held)?, 0, &[])?;
    let listed = other.call(&["ps", "--json"])?;
    ensure!(listed.stdout.contains("\"heat\""), "{}", listed.stdout);
    let words = ["need root", "CRIU", "54321", "hint:", "sudo fermata run"];
    expect(&other.call(&["checkpoint", "heat"])?, 13, &words)?;
    let doctor = other.call(&["doctor"])?;
    for word in ["privileges", "need root", "sudo fermata run"] {
        ensure!(
            doctor.stdout.contains(word),
            "`{word}` is missing in: {}",
            doctor.stdout
        );
    }
    std::fs::write(other.folder.path().join("go"), "")?;
    let end = other.call(&["wait", "heat"])?;
    ensure!(
        end.status == 0,
        "the refusal has touched the program: {}",
        end.stderr
    );
    scene.close()
}

#[test]
fn in_a_user_namespace_a_checkpoint_is_refused_before_the_stop() -> Result<()> {
    let scene = Scene::new()?;
    let call = |words: &[&str]| {
        let mut command = Command::new("unshare");
        // Root of it may make namespaces and mount, and CRIU could dump there; it could not restore.
        command.args(["--user", "--map-root-user", "--mount"]);
        command.arg(scene.tree().fermata()).args(words);
        scene.sandbox().enter(&mut command);
        command::run(command, COMMAND_LIMIT)
    };
    let words = [
        "run",
        "--detach",
        "--name",
        "first",
        "--",
        "/bin/sleep",
        "1000",
    ];
    expect(&call(&words)?, 0, &[])?;
    let words = ["root of a user namespace", "hint:"];
    expect(&scene.fermata().call(&["checkpoint", "first"])?, 13, &words)?;
    let doctor = scene.fermata().call(&["doctor", "first"])?;
    ensure!(
        doctor.status == 14 && doctor.stdout.contains("root of a user namespace"),
        "{}",
        doctor.stdout
    );
    scene.fermata().kill("first")?;
    scene.close()
}

/// The tool under `ulimit LIMIT`.
fn limited(scene: &Scene, limit: &str, words: &[&str]) -> Result<Finished> {
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("ulimit {limit} && exec \"$0\" \"$@\""));
    command.arg(scene.tree().fermata()).args(words);
    scene.sandbox().enter(&mut command);
    command::run(command, COMMAND_LIMIT)
}

/// 20 MB that an image must hold.
const MEMORY: &str = "
import time
held = b'held' * 5000000
print('ready', flush=True)
time.sleep(600)
";

#[test]
fn small_limits_of_the_shell_do_not_reach_checkpoints() -> Result<()> {
    for limit in ["-S -f 2000", "-S -n 24"] {
        let scene = Scene::new()?;
        let fermata = scene.fermata();
        let words = [
            "run",
            "--detach",
            "--name",
            "first",
            "--",
            "/usr/bin/python3",
            "-c",
            MEMORY,
        ];
        expect(&limited(&scene, limit, &words)?, 0, &[])?;
        scene.wait_says("first", "ready")?;
        scene.replace("first", "image", "second")?;
        fermata.kill("second")?;
        scene.close()?;
    }
    Ok(())
}

#[test]
fn a_daemon_that_may_not_work_says_so_when_it_starts() -> Result<()> {
    let scene = Scene::new()?;
    let other = OtherUser::new(&scene)?;
    for (limit, word) in [("-f 8", "ulimit -f"), ("-n 24", "ulimit -n")] {
        let tool = scene.tree().fermata();
        let script = format!("ulimit {limit} && exec '{}' run -- true", tool.display());
        let done = other.call_program(&["sh", "-c", &script])?;
        expect(&done, 125, &[word])?;
    }
    scene.close()
}
