//! What fails while a session is paused or resumed costs its program nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::disk::SmallDisk;
use fermata_e2e::halt::Halt;
use fermata_e2e::processes::look_up;
use fermata_e2e::scene::{Scene, Which, kill_nine, wait_gone, wait_until};
use serde_json::{Value, json};

/// Begins a command of the tool, whose end is looked at later.
fn begin(scene: &Scene, line: &[&str]) -> Result<Child> {
    let mut command = Command::new(scene.tree().fermata());
    command
        .args(line)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    scene.sandbox().enter(&mut command);
    Ok(command.spawn()?)
}

/// Demands that a command fails, and says `word`.
fn check_fails(command: Child, word: &str) -> Result<()> {
    let done = command.wait_with_output()?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(!done.status.success(), "it has succeeded");
    ensure!(said.contains(word), "it does not say `{word}`: {said}");
    Ok(())
}

fn call(scene: &Scene, line: &[&str]) -> Result<()> {
    scene.fermata().call(line)?.success(line[0]).map(drop)
}

fn wait_state(scene: &Scene, name: &str, state: &str) -> Result<()> {
    wait_until(&format!("session `{name}` is {state}"), || {
        Ok(scene.fermata().session(name)?.state == state)
    })
}

fn notes_path(scene: &Scene, name: &str) -> PathBuf {
    scene
        .sandbox()
        .runtime()
        .join("sessions")
        .join(name)
        .join("meta.json")
}

/// What the daemon has noted down of a session.
fn notes(scene: &Scene, name: &str) -> Result<Value> {
    Ok(serde_json::from_slice(&fs::read(notes_path(scene, name))?)?)
}

/// Where the data of a session is that is being paused, or paused.
fn folder(scene: &Scene, name: &str) -> Result<PathBuf> {
    let notes = notes(scene, name)?;
    let folder = notes["entry"]["data"]["folder"].as_str();
    Ok(folder.context("no folder is noted down")?.into())
}

/// Demands that nothing of a pause is left, and that the program works.
fn check_unharmed(scene: &Scene, name: &str, folder: &Path) -> Result<()> {
    scene.check_goes_on(name)?;
    wait_until("the data of a pause is removed", || Ok(!folder.exists()))?;
    ensure!(
        notes(scene, name)?["entry"].is_null(),
        "it is noted down still"
    );
    Ok(())
}

/// Resumes session `heat` by `line`, demands that nothing of its pause is left and that it works, and ends the scene.
fn ends_unharmed(scene: Scene, line: &[&str], folder: &Path) -> Result<()> {
    call(&scene, line)?;
    check_unharmed(&scene, "heat", folder)?;
    scene.fermata().kill("heat")?;
    scene.close()
}

/// The daemon is killed when it comes to `moment` of `line`; the next one, which a question starts, is left.
fn kill_daemon_at(scene: &Scene, moment: &'static str, line: &[&str]) -> Result<()> {
    let halt = Halt::at(scene, moment)?;
    let command = begin(scene, line)?;
    let daemon = halt.wait()?;
    kill_nine(&daemon)?;
    drop(halt);
    let done = command.wait_with_output()?;
    ensure!(!done.status.success(), "it has succeeded without a daemon");
    Ok(())
}

#[test]
fn a_session_stays_paused_without_its_daemon() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    call(&scene, &["pause", "heat"])?;
    scene.kill_daemon()?;
    wait_state(&scene, "heat", "paused")?;
    let folder = folder(&scene, "heat")?;
    ensure!(folder.is_dir(), "its data is gone");
    call(&scene, &["resume", "heat"])?;
    check_unharmed(&scene, "heat", &folder)?;
    // Killed by a daemon that has not paused it.
    call(&scene, &["pause", "heat"])?;
    scene.kill_daemon()?;
    wait_state(&scene, "heat", "paused")?;
    let folder = self::folder(&scene, "heat")?;
    scene.fermata().kill("heat")?;
    ensure!(!folder.exists(), "its data is left");
    scene.close()
}

#[test]
fn a_daemon_that_dies_before_the_data_is_safe_leaves_a_running_program() -> Result<()> {
    for moment in ["parked", "pause-checked"] {
        let scene = Scene::new()?;
        scene.start_slow("heat")?;
        kill_daemon_at(&scene, moment, &["pause", "heat"])?;
        let folder = folder(&scene, "heat")?;
        scene.wait_back("heat")?;
        check_unharmed(&scene, "heat", &folder).context(moment)?;
        scene.fermata().kill("heat")?;
        scene.close().context(moment)?;
    }
    Ok(())
}

#[test]
fn a_daemon_that_dies_when_the_data_is_safe_leaves_a_paused_session() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    let worker = scene.process("heat", Which::Worker)?;
    kill_daemon_at(&scene, "pause-noted", &["pause", "heat"])?;
    wait_state(&scene, "heat", "paused")?;
    wait_gone(&worker)?;
    let folder = folder(&scene, "heat")?;
    ends_unharmed(scene, &["resume", "heat"], &folder)
}

#[test]
fn a_worker_that_has_given_back_everything_ends_without_a_daemon() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    let worker = scene.process("heat", Which::Worker)?;
    kill_daemon_at(&scene, "pause-vacated", &["pause", "heat"])?;
    wait_gone(&worker)?;
    let next = scene.sandbox().daemon();
    ensure!(next.is_none(), "it has started another daemon");
    wait_state(&scene, "heat", "paused")?;
    let folder = folder(&scene, "heat")?;
    ends_unharmed(scene, &["resume", "heat"], &folder)
}

#[test]
fn workers_that_another_daemon_has_left_share_nothing_with_the_next() -> Result<()> {
    const HELD: u64 = 12;
    let options = ["--size", "20000", "--steps", "60"];
    let scene = Scene::new()?;
    let program = scene.tree().program("ipcevents")?;
    scene
        .fermata()
        .run_with(&scene.hold(HELD)?, "one", Device::Soft, &program, &options)?;
    scene.wait_steps("one", HELD as usize)?;
    kill_daemon_at(&scene, "pause-noted", &["pause", "one"])?;
    call(&scene, &["resume", "one"])?;
    scene.let_go()?;
    scene.check_ends_as("one", &scene.straight("ipcevents", &options)?)?;
    scene.close()
}

#[test]
fn a_daemon_that_dies_while_it_resumes_loses_nothing() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    call(&scene, &["pause", "heat"])?;
    let folder = folder(&scene, "heat")?;
    kill_daemon_at(&scene, "resume-loaded", &["resume", "heat"])?;
    wait_state(&scene, "heat", "paused")?;
    ensure!(folder.is_dir(), "its data is gone");
    // What it had noted down as its aim, the next one comes to.
    kill_daemon_at(&scene, "resume-noted", &["resume", "heat"])?;
    scene.wait_back("heat")?;
    check_unharmed(&scene, "heat", &folder)?;
    scene.fermata().kill("heat")?;
    scene.close()
}

#[test]
fn a_worker_that_dies_while_it_is_paused_does_not_leave_its_program_parked() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    let halt = Halt::at(&scene, "stopped")?;
    let pause = begin(&scene, &["pause", "heat"])?;
    let worker = halt.wait()?;
    let folder = folder(&scene, "heat")?;
    kill_nine(&worker)?;
    drop(halt);
    check_fails(pause, "error")?;
    ensure!(!folder.exists(), "its data is left");
    // Its data went with the worker: its calls fail, as ever when a worker is lost, and it ends.
    wait_state(&scene, "heat", "exited")?;
    scene.close()
}

#[test]
fn a_worker_that_dies_while_it_loads_leaves_the_session_paused() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    call(&scene, &["pause", "heat"])?;
    let folder = folder(&scene, "heat")?;
    let halt = Halt::at(&scene, "objects")?;
    let resume = begin(&scene, &["resume", "heat"])?;
    kill_nine(&halt.wait()?)?;
    drop(halt);
    check_fails(resume, "stays paused")?;
    wait_state(&scene, "heat", "paused")?;
    ends_unharmed(scene, &["resume", "heat"], &folder)
}

#[test]
fn a_disk_that_fills_up_leaves_the_program_running() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    let disk = SmallDisk::mount(scene.sandbox().work().join("disk"), "64m")?;
    let to = disk.at().to_str().context("a path")?;
    // Before the stop, where it can be told.
    let full = disk.fill()?;
    check_fails(
        begin(&scene, &["pause", "heat", "--to", to])?,
        "cannot be paused",
    )?;
    fs::remove_file(full)?;
    // And in the stop.
    let halt = Halt::at(&scene, "stopped")?;
    let pause = begin(&scene, &["pause", "heat", "--to", to])?;
    halt.wait()?;
    let folder = folder(&scene, "heat")?;
    let full = disk.fill()?;
    drop(halt);
    check_fails(pause, "no space left")?;
    fs::remove_file(full)?;
    check_unharmed(&scene, "heat", &folder)?;
    scene.fermata().kill("heat")?;
    drop(disk);
    scene.close()
}

#[test]
fn memory_that_is_short_leaves_the_session_paused() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    call(&scene, &["pause", "heat"])?;
    let folder = folder(&scene, "heat")?;
    // Its next worker has a device that is too small for it.
    scene.kill_daemon()?;
    let path = notes_path(&scene, "heat");
    let before = fs::read(&path)?;
    let mut small = notes(&scene, "heat")?;
    small["variables"]["FERMATA_SOFTGPU_MEMORY"] = json!("64K");
    fs::write(&path, serde_json::to_vec(&small)?)?;
    let resume = begin(&scene, &["resume", "heat"])?;
    check_fails(resume, "stays paused")?;
    wait_state(&scene, "heat", "paused")?;
    scene.kill_daemon()?;
    fs::write(&path, before)?;
    ends_unharmed(scene, &["resume", "heat"], &folder)
}

#[test]
fn data_that_is_damaged_is_named_and_the_session_stays_paused() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    call(&scene, &["pause", "heat"])?;
    let folder = folder(&scene, "heat")?;
    let state = folder.join("parts/1/state");
    let sound = fs::read(&state)?;
    fs::write(&state, &sound[1..])?;
    check_fails(begin(&scene, &["resume", "heat"])?, "stays paused")?;
    fs::write(&state, sound)?;
    ends_unharmed(scene, &["resume", "--eager", "heat"], &folder)
}

#[test]
fn a_pause_and_a_checkpoint_do_not_meet() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    let halt = Halt::at(&scene, "dump")?;
    let path = scene.fermata().image("image");
    let path = path.to_str().context("a path")?;
    let mode = ["--mode", Mode::Stop.name()];
    let taken = begin(
        &scene,
        &[&["checkpoint", "heat", "-o", path], &mode[..]].concat(),
    )?;
    halt.wait()?;
    check_fails(begin(&scene, &["pause", "heat"])?, "is being checkpointed")?;
    drop(halt);
    ensure!(
        taken.wait_with_output()?.status.success(),
        "the checkpoint fails"
    );
    let halt = Halt::at(&scene, "pause-checked")?;
    let paused = begin(&scene, &["pause", "heat"])?;
    halt.wait()?;
    for verb in ["checkpoint", "pause", "resume"] {
        check_fails(begin(&scene, &[verb, "heat"])?, "paused")?;
    }
    drop(halt);
    ensure!(
        paused.wait_with_output()?.status.success(),
        "the pause fails"
    );
    call(&scene, &["resume", "heat"])?;
    scene.check_goes_on("heat")?;
    scene.fermata().kill("heat")?;
    scene.close()
}

#[test]
fn a_process_that_is_killed_while_a_paused_session_is_checkpointed_is_in_no_image() -> Result<()> {
    let scene = Scene::new()?;
    let program = scene.tree().program("heat2d")?;
    let rank = format!(
        "{} --size 64 --steps 2000000 --pause-ms 20 >/dev/null 2>&1 &",
        program.display()
    );
    let shell = format!("{rank} {rank} wait");
    let words = ["-c", &shell];
    let fermata = scene.fermata();
    fermata.run("pair", Device::Soft, Path::new("/bin/sh"), &words)?;
    wait_until("two processes use CUDA", || {
        Ok(fermata.session("pair")?.processes.len() == 2)
    })?;
    let one = fermata.session("pair")?.processes[0].pid;
    let one = look_up(one).context("no such process")?;
    call(&scene, &["pause", "pair"])?;
    let path = fermata.image("image");
    let path = path.to_str().context("a path")?;
    let line = ["checkpoint", "pair", "-o", path];
    let halt = Halt::at(&scene, "dump")?;
    let taken = begin(&scene, &line)?;
    halt.wait()?;
    kill_nine(&one)?;
    drop(halt);
    // There is no image with data of a process that it does not have; the next one is without that process.
    if !taken.wait_with_output()?.status.success() {
        call(&scene, &line)?;
    }
    call(&scene, &["kill", "pair"])?;
    scene
        .try_restore("image", "again")?
        .success("fermata restore")?;
    let again = fermata.session("again")?;
    ensure!(again.processes.len() == 1, "{:?}", again.processes);
    call(&scene, &["kill", "again"])?;
    scene.close()
}

#[test]
fn a_session_that_is_killed_while_it_is_paused_leaves_nothing() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    let program = scene.process("heat", Which::Program)?;
    let worker = scene.process("heat", Which::Worker)?;
    let halt = Halt::at(&scene, "pause-checked")?;
    let paused = begin(&scene, &["pause", "heat"])?;
    halt.wait()?;
    let folder = folder(&scene, "heat")?;
    scene.fermata().kill("heat")?;
    drop(halt);
    check_fails(paused, "error")?;
    wait_gone(&program)?;
    wait_gone(&worker)?;
    ensure!(
        look_up(worker.pid).is_none_or(|it| it != worker),
        "its worker is left"
    );
    wait_until("its data is removed", || Ok(!folder.exists()))?;
    scene.close()
}
