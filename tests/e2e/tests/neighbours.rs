//! Two daemons that use one folder of images, and so one store: neither takes from the other what it needs.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::command::Finished;
use fermata_e2e::scene::{Scene, gc_when_free};

const OPTIONS: &[&str] = &["--steps", "200"];
/// Where programs stand still.
const HELD: u64 = 60;

/// Two scenes with a folder of images in common, in each of which a program stands still.
fn neighbours() -> Result<[Scene; 2]> {
    let scenes = [Scene::new()?, Scene::new()?];
    let [one, other] = &scenes;
    fs::remove_dir(other.sandbox().images())?;
    symlink(one.sandbox().images(), other.sandbox().images())?;
    for scene in &scenes {
        let program = scene.tree().program("heat2d")?;
        let hold = scene.hold(HELD)?;
        let fermata = scene.fermata();
        fermata.run_with(&hold, "heat", Device::Soft, &program, OPTIONS)?;
        scene.wait_steps("heat", 2)?;
    }
    Ok(scenes)
}

/// Takes an image of each scene's session at the same time.
fn both(scenes: &[Scene; 2], images: [&str; 2], mode: Mode) -> Result<[Finished; 2]> {
    std::thread::scope(|scope| {
        let take = |at: usize| {
            move || {
                let fermata = scenes[at].fermata();
                fermata.try_checkpoint("heat", images[at], mode, &[])
            }
        };
        let threads = [0, 1].map(|at| scope.spawn(take(at)));
        let mut done = Vec::new();
        for thread in threads {
            done.push(thread.join().map_err(|_| anyhow!("a thread"))??);
        }
        <[Finished; 2]>::try_from(done).map_err(|_| anyhow!("two of them"))
    })
}

#[test]
fn two_daemons_on_one_folder_of_images_harm_neither() -> Result<()> {
    let scenes = neighbours()?;
    let straight = scenes[0].straight("heat2d", OPTIONS)?;
    // One name can be had once; who does not get it goes on.
    let done = both(&scenes, ["same", "same"], Mode::Cow)?;
    let [one, other] = &done;
    let won = [one.status, other.status]
        .iter()
        .filter(|it| **it == 0)
        .count();
    ensure!(won == 1, "{done:?}");
    let lost = if one.status == 0 { other } else { one };
    ensure!(lost.stderr.contains("exists"), "{lost:?}");
    // Meanwhile somebody collects what nobody needs.
    let over = AtomicBool::new(false);
    let taken = std::thread::scope(|scope| {
        let collector = scope.spawn(|| {
            let fermata = scenes[0].fermata();
            while !over.load(Ordering::Relaxed) {
                gc_when_free(|| fermata.call(&["images", "gc"]))?.success("gc")?;
            }
            Ok::<(), anyhow::Error>(())
        });
        let taken = || {
            let mut taken = Vec::new();
            for (at, mode) in [Mode::Snapshot, Mode::Stop, Mode::Recopy]
                .into_iter()
                .enumerate()
            {
                let names = [format!("one-{at}"), format!("other-{at}")];
                let names = [names[0].as_str(), names[1].as_str()];
                for (name, done) in names.into_iter().zip(both(&scenes, names, mode)?) {
                    // A collection has the store for a moment.
                    let locked = done.status == 11;
                    ensure!(locked || done.status == 0, "{}: {done:?}", mode.name());
                    taken.extend((!locked).then(|| name.to_owned()));
                }
            }
            Ok::<Vec<String>, anyhow::Error>(taken)
        };
        let taken = taken();
        over.store(true, Ordering::Relaxed);
        let collected = collector.join().map_err(|_| anyhow!("the collector"))?;
        collected.and(taken)
    })?;
    ensure!(
        !taken.is_empty(),
        "no image was taken while somebody collected"
    );
    for (scene, image) in scenes.iter().zip(["one-last", "other-last"]) {
        scene.fermata().checkpoint("heat", image, Mode::Cow)?;
        scene.fermata().kill("heat")?;
    }
    // Each has what the other has taken, whose program waits for that one's word.
    scenes.iter().try_for_each(Scene::let_go)?;
    let [one, other] = &scenes;
    let beside = taken[0].as_str();
    for (scene, image) in [
        (one, "other-last"),
        (other, "one-last"),
        (one, "same"),
        (other, beside),
    ] {
        scene.try_restore(image, image)?.success("restore")?;
        scene
            .check_ends_as(image, &straight)
            .with_context(|| image.to_owned())?;
    }
    one.fermata()
        .call(&["images", "verify", "--all"])?
        .success("verify")?;
    let [one, other] = scenes;
    other.close()?;
    one.close()
}
