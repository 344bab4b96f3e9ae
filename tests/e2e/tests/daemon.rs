//! A daemon that is killed at any moment: programs go on, the next daemon knows them, and everything works
//! again; no half image is left.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::fermata::Session;
use fermata_e2e::scene::{Scene, Which, kill_nine};

/// How long a session may take to come back to the next daemon.
const RETURN_LIMIT: Duration = Duration::from_secs(40);

/// As `Scene::start_slow`, for minutes.
fn start_long(scene: &Scene) -> Result<()> {
    let program = scene.tree().program("heat2d")?;
    let arguments = ["--steps", "20000", "--pause-ms", "100", "--size", "128"];
    scene
        .fermata()
        .run("heat", Device::Soft, &program, &arguments)?;
    scene.wait_steps("heat", 2)
}

/// Waits until session `name` has ended. A program's status is told to who started it: the daemon that is gone.
fn wait_end(scene: &Scene, name: &str) -> Result<()> {
    let begun = Instant::now();
    while scene.fermata().session(name)?.state != "exited" {
        ensure!(
            begun.elapsed() < RETURN_LIMIT,
            "session `{name}` does not end"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn kill_daemon(scene: &Scene) -> Result<()> {
    kill_nine(&scene.sandbox().daemon().context("no daemon runs")?)
}

/// Waits until `name` is running for a new daemon, which the question starts.
fn wait_back(scene: &Scene, name: &str) -> Result<Session> {
    let begun = Instant::now();
    loop {
        // The system may close the sockets of the killed daemon a moment after its end.
        let session = scene.fermata().session(name);
        match &session {
            Ok(it) if it.state == "running" => return session,
            _ if begun.elapsed() < RETURN_LIMIT => std::thread::sleep(Duration::from_millis(50)),
            Ok(it) => bail!("session `{name}` is still {}: {:?}", it.state, it.note),
            Err(_) => return session,
        }
    }
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
    start_long(&scene)?;
    let before = scene.fermata().session("heat")?;
    for round in 0..3 {
        kill_daemon(&scene)?;
        let after = wait_back(&scene, "heat")?;
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
    scene
        .fermata()
        .call(&["kill", "heat"])?
        .success("fermata kill")?;
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
    let shell = format!("sleep 3; exec {} --steps 5", program.display());
    scene.fermata().run(
        "later",
        Device::Soft,
        std::path::Path::new("/bin/sh"),
        &["-c", &shell],
    )?;
    kill_daemon(&scene)?;
    wait_back(&scene, "later")?;
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
    kill_daemon(&scene)?;
    wait_back(&scene, "again")?;
    scene.check_goes_on("again")?;
    scene.fermata().checkpoint("again", "second", Mode::Stop)?;
    scene.check_goes_on("again")?;
    scene
        .fermata()
        .call(&["kill", "again"])?
        .success("fermata kill")?;
    scene.check_restorable("second")?;
    scene.close()
}

/// Kills the daemon so many milliseconds after a checkpoint has begun, and demands the promises of the file.
fn killed_in_checkpoint(mode: Mode, delays: &[u64]) -> Result<()> {
    let scene = Scene::new()?;
    start_long(&scene)?;
    scene.fermata().checkpoint("heat", "older", Mode::Stop)?;
    for delay in delays {
        let name = format!("newer-{delay}");
        std::thread::scope(|scope| -> Result<()> {
            let attempt = scope.spawn(|| scene.fermata().checkpoint("heat", &name, mode));
            std::thread::sleep(Duration::from_millis(*delay));
            kill_daemon(&scene)?;
            // It may have been quick enough.
            attempt
                .join()
                .map_err(|_| anyhow!("checkpoint thread"))?
                .ok();
            Ok(())
        })?;
        wait_back(&scene, "heat").with_context(|| format!("killed after {delay} ms"))?;
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
    scene
        .fermata()
        .call(&["kill", "heat"])?
        .success("fermata kill")?;
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
            kill_daemon(&scene)?;
            let attempt = attempt.join().map_err(|_| anyhow!("restore thread"))?;
            Ok(attempt.is_ok_and(|it| it.success("fermata restore").is_ok()))
        })?;
        let begun = Instant::now();
        // Whole, or gone.
        loop {
            let state = scene.fermata().session(&name).map(|it| it.state);
            match state.as_deref() {
                // What it is said to be is needed to understand a failure.
                Ok("exited") | Err(_) if restored => {
                    return state
                        .context("a session that was restored is gone")
                        .and_then(|state| {
                            bail!("the session restored after {delay} ms is {state}")
                        });
                }
                Ok("running") => {
                    scene.check_goes_on(&name)?;
                    scene
                        .fermata()
                        .call(&["kill", &name])?
                        .success("fermata kill")?;
                    break;
                }
                Ok("exited") | Err(_) => break,
                Ok(other) => ensure!(
                    begun.elapsed() < RETURN_LIMIT,
                    "session `{name}` is {other}"
                ),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    scene.check_restorable("image")?;
    scene.close()
}
