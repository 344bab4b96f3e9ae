//! A daemon that is killed at exactly one step of a checkpoint or a restore.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use fermata_e2e::case::{Mode, PROGRAM_LIMIT};
use fermata_e2e::command::Finished;
use fermata_e2e::halt::Halt;
use fermata_e2e::held::HeldCriu;
use fermata_e2e::processes::Process;
use fermata_e2e::scene::{Scene, Which, kill_nine, wait_gone, wait_until};
use rustix::process::{Pid, Signal, kill_process};

fn send(process: &Process, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(process.pid).ok_or_else(|| anyhow!("process number 0"))?;
    Ok(kill_process(pid, signal)?)
}

/// Runs `command` of Fermata beside `steps`, which must not take longer; the answer is what the command said.
fn beside(
    command: impl FnOnce() -> Result<Finished> + Send,
    steps: impl FnOnce() -> Result<()>,
) -> Result<Finished> {
    std::thread::scope(|scope| {
        let command = scope.spawn(command);
        let done = steps();
        let finished = command.join().map_err(|_| anyhow!("a thread has failed"))?;
        done.and(finished)
    })
}

/// Checkpoints session `heat` up to where the program has been dumped and its worker, which is stopped by a signal,
/// is waited for; then does `break_it`, and lets the worker go on.
fn broken_before_the_worker_serves(
    scene: &Scene,
    break_it: impl FnOnce() -> Result<()>,
) -> Result<Finished> {
    let worker = scene.process("heat", Which::Worker)?;
    let dump = Halt::at(scene, "dump")?;
    let image = scene.fermata().image("image");
    let words = ["checkpoint", "heat", "--mode", "stop", "-o"].map(std::ffi::OsStr::new);
    let words: Vec<_> = words.into_iter().chain([image.as_os_str()]).collect();
    beside(
        || scene.fermata().call(&words),
        || {
            dump.wait()?;
            send(&worker, Signal::STOP)?;
            drop(dump);
            scene.wait_dumped("image")?;
            let broken = break_it();
            send(&worker, Signal::CONT)?;
            broken
        },
    )
}

#[test]
fn a_daemon_killed_while_criu_restores_leaves_nothing() -> Result<()> {
    let scene = Scene::new()?;
    scene.make_image("image")?;
    let criu = HeldCriu::install(&scene)?;
    criu.hold()?;
    let done = beside(
        || scene.try_restore("image", "half"),
        || {
            criu.wait()?;
            scene.kill_daemon()?;
            criu.release()
        },
    )?;
    ensure!(done.status != 0, "half a restore counts as one");
    // The worker of what is no session may start a daemon, which ends it and has a spare worker.
    let begun = Instant::now();
    loop {
        let daemon = scene.sandbox().daemon();
        let mut left = scene.sandbox().processes();
        left.retain(|it| Some(it) != daemon.as_ref());
        let workers = left.iter().filter(|it| it.name == "fermata-worker");
        if workers.count() == left.len() && left.len() <= 1 {
            break;
        }
        ensure!(begun.elapsed() < PROGRAM_LIMIT, "left: {left:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    scene.check_restorable("image")?;
    scene.close()
}

#[test]
fn a_daemon_killed_before_the_worker_serves_again_loses_no_session() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    let before = scene.fermata().session("heat")?;
    let done = broken_before_the_worker_serves(&scene, || scene.kill_daemon())?;
    ensure!(done.status != 0, "the checkpoint of a killed daemon");
    let after = scene.wait_back("heat")?;
    ensure!(
        (after.pid, after.worker_pid) == (before.pid, before.worker_pid),
        "other processes"
    );
    scene.check_goes_on("heat")?;
    scene.fermata().checkpoint("heat", "next", Mode::Stop)?;
    scene.fermata().kill("heat")?;
    scene.check_restorable("next")?;
    scene.close()
}

#[test]
fn a_program_that_cannot_go_on_leaves_its_image() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    let program = scene.process("heat", Which::Program)?;
    let done = broken_before_the_worker_serves(&scene, || kill_nine(&program))?;
    ensure!(
        done.status != 0 && done.stderr.contains("its image is complete"),
        "status {}: {}",
        done.status,
        done.stderr
    );
    scene
        .fermata()
        .call(&["images", "verify", "image"])?
        .success("fermata images verify")?;
    scene.check_restorable("image")?;
    scene.close()
}

#[test]
fn a_program_that_dies_while_its_image_is_written_leaves_it() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    let program = scene.process("heat", Which::Program)?;
    let worker = scene.process("heat", Which::Worker)?;
    std::thread::scope(|scope| -> Result<()> {
        let writes = Halt::at(&scene, "write")?;
        let image = scope.spawn(|| scene.fermata().checkpoint("heat", "image", Mode::Stop));
        scene.wait_behind("heat", "image")?;
        writes.wait()?;
        kill_nine(&program)?;
        // Longer than a worker is given to end.
        std::thread::sleep(Duration::from_secs(7));
        drop(writes);
        image.join().map_err(|_| anyhow!("a thread has failed"))??;
        Ok(())
    })?;
    wait_gone(&worker)?;
    scene
        .fermata()
        .call(&["images", "verify", "image"])?
        .success("fermata images verify")?;
    scene.check_restorable("image")?;
    scene.close()
}

#[test]
fn a_parked_program_goes_on_although_nobody_starts_a_daemon() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    let log = scene.fermata().session("heat")?.log;
    let dump = Halt::at(&scene, "dump")?;
    let done = beside(
        || {
            scene
                .fermata()
                .call(&["checkpoint", "heat", "--mode", "stop"])
        },
        || {
            dump.wait()?;
            scene.kill_daemon()?;
            drop(dump);
            Ok(())
        },
    )?;
    ensure!(done.status != 0, "the checkpoint of a killed daemon");
    let lines = || std::fs::read_to_string(&log).map(|text| text.lines().count());
    let parked = lines()?;
    wait_until("it goes on", || Ok(lines()? >= parked + 2))?;
    scene.wait_back("heat")?;
    scene.fermata().checkpoint("heat", "next", Mode::Stop)?;
    scene.fermata().kill("heat")?;
    scene.check_restorable("next")?;
    scene.close()
}

#[test]
fn a_worker_that_comes_back_late_is_waited_for() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    let worker = scene.process("heat", Which::Worker)?;
    send(&worker, Signal::STOP)?;
    scene.kill_daemon()?;
    let state = scene.fermata().session("heat")?.state;
    // Longer than workers take that have nothing else to do.
    std::thread::sleep(Duration::from_secs(22));
    send(&worker, Signal::CONT)?;
    ensure!(state == "orphaned", "it is {state}");
    scene.wait_back("heat")?;
    scene.check_goes_on("heat")?;
    scene.fermata().kill("heat")?;
    scene.close()
}
