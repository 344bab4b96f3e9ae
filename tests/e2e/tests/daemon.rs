//! A daemon that is killed at any moment: programs go on, the next daemon knows them, and everything works
//! again; no half image is left.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use fermata_e2e::case::{Device, Mode, PROGRAM_LIMIT};
use fermata_e2e::halt::Halt;
use fermata_e2e::scene::{Scene, Which, wait_until};

/// Waits until session `name` has ended. A program's status is told to who started it: the daemon that is gone.
fn wait_end(scene: &Scene, name: &str) -> Result<()> {
    wait_until("a session ends", || {
        Ok(scene.fermata().session(name)?.state == "exited")
    })
}

/// Folders of images that are not whole.
fn halves(scene: &Scene) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(scene.sandbox().images())?.flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names.filter(|name| name.starts_with(".draft")).collect())
}

#[test]
fn a_session_comes_back_to_the_next_daemon() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    let before = scene.fermata().session("heat")?;
    for round in 0..3 {
        scene.kill_daemon()?;
        let after = scene.wait_back("heat")?;
        ensure!(
            (after.pid, after.worker_pid) == (before.pid, before.worker_pid),
            "round {round}: other processes"
        );
    }
    scene.check_goes_on("heat")?;
    scene.fermata().checkpoint("heat", "after", Mode::Stop)?;
    scene.check_goes_on("heat")?;
    // Behind the running program too, and killed by the daemon that did not start it.
    scene.fermata().checkpoint("heat", "behind", Mode::Cow)?;
    let worker = scene.process("heat", Which::Worker)?;
    scene.fermata().kill("heat")?;
    wait_end(&scene, "heat")?;
    ensure!(
        fermata_e2e::processes::look_up(worker.pid).as_ref() != Some(&worker),
        "its worker is still there"
    );
    scene.check_restorable("after")?;
    scene.check_restorable("behind")?;
    scene.close()
}

#[test]
fn a_program_that_was_to_use_cuda_later_still_can() -> Result<()> {
    let scene = Scene::new()?;
    let program = scene.tree().program("heat2d")?;
    let shell = format!(
        "while [ ! -e go ]; do sleep 0.05; done; exec {} --steps 5",
        program.display()
    );
    scene.fermata().run(
        "later",
        Device::Soft,
        std::path::Path::new("/bin/sh"),
        &["-c", &shell],
    )?;
    scene.kill_daemon()?;
    scene.wait_back("later")?;
    scene.let_go()?;
    wait_end(&scene, "later")?;
    let log = scene.fermata().log("later")?;
    ensure!(log.contains("digest "), "{log}");
    scene.close()
}

#[test]
fn a_restored_session_comes_back_too() -> Result<()> {
    let scene = Scene::new()?;
    scene.make_image("image")?;
    scene
        .try_restore("image", "again")?
        .success("fermata restore")?;
    scene.kill_daemon()?;
    scene.wait_back("again")?;
    scene.check_goes_on("again")?;
    scene.fermata().checkpoint("again", "second", Mode::Stop)?;
    scene.check_goes_on("again")?;
    scene.fermata().kill("again")?;
    scene.check_restorable("second")?;
    scene.close()
}

/// Kills the daemon so many milliseconds after a checkpoint has begun, and before the image is complete, and demands the promises of
/// the file.
fn killed_in_checkpoint(mode: Mode, delays: &[u64]) -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    scene.fermata().checkpoint("heat", "older", Mode::Stop)?;
    for delay in delays {
        let name = format!("newer-{delay}");
        let halt = Halt::at(&scene, "commit")?;
        let attempt = std::thread::scope(|scope| {
            let attempt = scope.spawn(|| scene.fermata().checkpoint("heat", &name, mode));
            scene.wait_begun(&name)?;
            std::thread::sleep(Duration::from_millis(*delay));
            scene.kill_daemon()?;
            attempt.join().map_err(|_| anyhow!("checkpoint thread"))
        })?;
        drop(halt);
        ensure!(attempt.is_err(), "killed after {delay} ms: it succeeded");
        ensure!(!scene.fermata().image(&name).exists(), "half an image");
        scene
            .wait_back("heat")
            .with_context(|| format!("killed after {delay} ms"))?;
        scene.check_goes_on("heat")?;
        let next = format!("next-{delay}");
        scene
            .fermata()
            .checkpoint("heat", &next, mode)
            .with_context(|| format!("after a kill at {delay} ms"))?;
        let left = halves(&scene)?;
        ensure!(left.is_empty(), "half images: {left:?}");
        scene
            .fermata()
            .call(&["images", "verify", &next])?
            .success("fermata images verify")?;
    }
    scene.check_goes_on("heat")?;
    scene.fermata().kill("heat")?;
    scene.check_restorable("older")?;
    let last = delays.last().context("no delay")?;
    scene.check_restorable(&format!("next-{last}"))?;
    scene.close()
}

#[test]
fn a_daemon_killed_during_a_stopped_checkpoint() -> Result<()> {
    killed_in_checkpoint(Mode::Stop, &[5, 20, 45, 80, 130, 200])
}

#[test]
fn a_daemon_killed_during_a_checkpoint_behind_the_program() -> Result<()> {
    killed_in_checkpoint(Mode::Cow, &[15, 60, 110, 180])?;
    killed_in_checkpoint(Mode::Recopy, &[30, 120])
}

#[test]
fn a_daemon_killed_during_a_restore_leaves_no_half_program() -> Result<()> {
    let scene = Scene::new()?;
    scene.make_image("image")?;
    for delay in [5, 25, 60, 120, 250] {
        let name = format!("restored-{delay}");
        let restored = std::thread::scope(|scope| -> Result<bool> {
            let attempt = scope.spawn(|| scene.try_restore("image", &name));
            std::thread::sleep(Duration::from_millis(delay));
            scene.kill_daemon()?;
            let attempt = attempt.join().map_err(|_| anyhow!("restore thread"))?;
            Ok(attempt.is_ok_and(|it| it.success("fermata restore").is_ok()))
        })?;
        let begun = Instant::now();
        // Whole, or gone.
        loop {
            let state = scene.fermata().find(&name)?.map(|it| it.state);
            match state.as_deref() {
                Some("running") => {
                    scene.check_goes_on(&name)?;
                    scene.fermata().kill(&name)?;
                    break;
                }
                None | Some("exited") if restored => {
                    bail!("the session restored after {delay} ms is {state:?}")
                }
                None | Some("exited") => break,
                Some(other) => ensure!(
                    begun.elapsed() < PROGRAM_LIMIT,
                    "session `{name}` is {other}"
                ),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    scene.check_restorable("image")?;
    scene.close()
}
