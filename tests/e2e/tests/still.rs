//! `checkpoint --then stop`: nothing of the program runs between its dump and its end, and all of it goes on if there is no
//! image to end with.

use std::fs;
use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use fermata_e2e::appender::{check_still, wait_grows, words};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::command::Finished;
use fermata_e2e::halt::Halt;
use fermata_e2e::processes::Process;
use fermata_e2e::scene::{SLOW, Scene, kill_nine};

/// Starts session `one`: a process without CUDA that appends to a file, and below it a program that uses CUDA if `beside`.
fn start(scene: &Scene, beside: bool) -> Result<()> {
    let heat = scene.tree().program("heat2d")?;
    let heat = format!("{} {}", heat.display(), SLOW.join(" "));
    let words = words(beside.then_some(&*heat));
    let words = words.each_ref().map(String::as_str);
    scene
        .fermata()
        .run("one", Device::Soft, Path::new("/bin/sh"), &words)?;
    if beside {
        scene.wait_steps("one", 2)?;
    }
    wait_grows(scene)
}

/// Takes an image with which session `one` ends, and does `meanwhile` between its dump and the image.
fn ended_by(
    scene: &Scene,
    image: &str,
    meanwhile: impl FnOnce(Process) -> Result<()>,
) -> Result<Result<Finished>> {
    let fermata = scene.fermata();
    let halt = Halt::at(scene, "commit")?;
    std::thread::scope(|scope| {
        let taken =
            scope.spawn(|| fermata.checkpoint_with("one", image, Mode::Auto, &["--then", "stop"]));
        let done = halt.wait().and_then(meanwhile);
        drop(halt);
        let taken = taken.join().map_err(|_| anyhow!("a thread"))?;
        done.map(|()| taken)
    })
}

#[test]
fn no_process_runs_between_its_dump_and_the_end_of_the_session() -> Result<()> {
    for beside in [false, true] {
        let scene = Scene::new()?;
        start(&scene, beside)?;
        ended_by(&scene, "image", |_| check_still(&scene))??;
        ensure!(scene.fermata().session("one")?.state == "exited");
        scene
            .try_restore("image", "two")?
            .success("fermata restore")?;
        wait_grows(&scene)?;
        // CRIU is now in the namespace of the restored session.
        scene
            .fermata()
            .checkpoint_with("two", "next", Mode::Auto, &["--then", "stop"])?;
        scene
            .try_restore("next", "three")?
            .success("fermata restore")?;
        wait_grows(&scene)?;
        scene.fermata().kill("three")?;
        scene.close()?;
    }
    Ok(())
}

#[test]
fn all_processes_go_on_when_there_is_no_image_to_end_with() -> Result<()> {
    for beside in [false, true] {
        let scene = Scene::new()?;
        start(&scene, beside)?;
        let taken = scene.fermata().image("taken");
        let refused = ended_by(&scene, "taken", |_| Ok(fs::create_dir(&taken)?))?;
        ensure!(refused.is_err(), "it has replaced a folder");
        wait_grows(&scene)?;
        let goes_on = || match beside {
            true => scene.check_goes_on("one"),
            false => Ok(()),
        };
        goes_on()?;
        let refused = ended_by(&scene, "lost", |daemon| kill_nine(&daemon))?;
        ensure!(refused.is_err(), "an image of a daemon that was killed");
        wait_grows(&scene)?;
        scene.wait_back("one")?;
        goes_on()?;
        scene.fermata().kill("one")?;
        scene.close()?;
    }
    Ok(())
}
