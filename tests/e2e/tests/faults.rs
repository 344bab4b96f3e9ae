//! Processes that die at a bad moment: the rest ends or goes on in bounded time,
//! older images stay whole, nothing is left behind.

use std::time::Duration;

use anyhow::{Result, ensure};
use fermata_e2e::case::{Mode, PROGRAM_LIMIT};
use fermata_e2e::fermata::Fermata;
use fermata_e2e::halt::Halt;
use fermata_e2e::scene::{Scene, Which, kill_nine, wait_gone};

/// Every image that can be seen by its name is whole. What a killed daemon had begun is none of them: a draft's name
/// begins with a dot, and nothing lists it.
fn check_all_images(fermata: &Fermata) -> Result<()> {
    let mut whole = 0;
    for entry in std::fs::read_dir(fermata.image(""))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && entry.path().join("manifest.json").exists() {
            fermata
                .call(&["images", "verify", &name])?
                .success("fermata images verify")?;
            whole += 1;
        }
    }
    ensure!(whole > 0, "the image from before is gone");
    let listed = fermata
        .call(&["images", "ls"])?
        .success("fermata images ls")?
        .stdout;
    ensure!(!listed.contains(".draft"), "a draft is listed: {listed}");
    Ok(())
}

#[test]
fn a_program_whose_worker_dies_ends_with_an_error() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    scene.fermata().checkpoint("heat", "before", Mode::Stop)?;
    kill_nine(&scene.process("heat", Which::Worker)?)?;
    let status = scene.fermata().wait_exit("heat", PROGRAM_LIMIT)?;
    ensure!(
        status != 0,
        "the program ended with success though its GPU was gone"
    );
    scene.check_restorable("before")?;
    scene.close()
}

#[test]
fn a_worker_does_not_outlive_its_program() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    let worker = scene.process("heat", Which::Worker)?;
    kill_nine(&scene.process("heat", Which::Program)?)?;
    ensure!(
        scene.fermata().wait_exit("heat", PROGRAM_LIMIT)? == 137,
        "status of a killed program"
    );
    wait_gone(&worker)?;
    scene.close()
}

#[test]
fn a_program_killed_during_its_checkpoint_leaves_older_images_whole() -> Result<()> {
    // So many milliseconds after it has begun, and when the program stands still for it.
    let delays = [0, 20, 60, 150, 300].map(Some);
    for delay_ms in delays.into_iter().chain([None]) {
        let scene = Scene::new()?;
        scene.start_slow("heat")?;
        scene.fermata().checkpoint("heat", "older", Mode::Stop)?;
        let victim = scene.process("heat", Which::Program)?;
        let halt = match delay_ms {
            Some(_) => None,
            None => Some(Halt::at(&scene, "parked")?),
        };
        let attempt = std::thread::scope(|scope| {
            let attempt = scope.spawn(|| scene.fermata().checkpoint("heat", "newer", Mode::Stop));
            scene.wait_begun("newer")?;
            if let Some(halt) = &halt {
                halt.wait()?;
            }
            std::thread::sleep(Duration::from_millis(delay_ms.unwrap_or_default()));
            kill_nine(&victim)?;
            drop(halt);
            let attempt = attempt.join();
            attempt.map_err(|_| anyhow::anyhow!("checkpoint thread"))
        })?;
        // It may have been quick enough with the others; a refusal must come in time.
        if delay_ms.is_none() {
            ensure!(attempt.is_err(), "an image of a program that was killed");
            ensure!(!scene.fermata().image("newer").exists(), "half an image");
        }
        check_all_images(&scene.fermata())?;
        scene.check_restorable("older")?;
        scene.close()?;
    }
    Ok(())
}

#[test]
fn a_killed_daemon_leaves_images_whole_and_a_new_one_starts() -> Result<()> {
    for delay_ms in [0, 30, 120] {
        let scene = Scene::new()?;
        scene.start_slow("heat")?;
        scene.fermata().checkpoint("heat", "older", Mode::Stop)?;
        // The image is not complete before, however late this thread is.
        let halt = Halt::at(&scene, "commit")?;
        let attempt = std::thread::scope(|scope| {
            let attempt = scope.spawn(|| scene.fermata().checkpoint("heat", "newer", Mode::Stop));
            scene.wait_begun("newer")?;
            std::thread::sleep(Duration::from_millis(delay_ms));
            scene.kill_daemon()?;
            let attempt = attempt.join();
            attempt.map_err(|_| anyhow::anyhow!("checkpoint thread"))
        })?;
        drop(halt);
        ensure!(attempt.is_err(), "a checkpoint of a daemon that was killed");
        ensure!(!scene.fermata().image("newer").exists(), "half an image");
        check_all_images(&scene.fermata())?;
        scene.check_restorable("older")?;
        scene.close()?;
    }
    Ok(())
}
