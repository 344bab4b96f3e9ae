//! Checkpoints behind a running program, over a link so slow that copying takes its time: one at a time,
//! one after another, and whatever dies meanwhile, nothing is left behind and no wrong image is made.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, Mode, PROGRAM_LIMIT};
use fermata_e2e::disk::SmallDisk;
use fermata_e2e::output::Output;
use fermata_e2e::scene::{Scene, Which, kill_nine};

/// Two fields of 8 MiB take most of a second to copy.
const SLOW_LINK: [(&str, &str); 1] = [("FERMATA_SOFTGPU_HOST_LINK", "20000000")];
const WIDE: &[&str] = &["--steps", "4000", "--pause-ms", "20", "--size", "1024"];
const BEHIND: [Mode; 3] = [Mode::Snapshot, Mode::Cow, Mode::Recopy];

fn start_wide(scene: &Scene, name: &str) -> Result<()> {
    let program = scene.tree().program("heat2d")?;
    scene
        .fermata()
        .run_with(&SLOW_LINK, name, Device::Soft, &program, WIDE)?;
    scene.wait_steps(name, 2)
}

fn verify(scene: &Scene, image: &str) -> Result<()> {
    scene
        .fermata()
        .call(&["images", "verify", image])?
        .success("fermata images verify")?;
    Ok(())
}

#[test]
fn every_protocol_after_the_other_gives_images_that_restore() -> Result<()> {
    let scene = Scene::new()?;
    start_wide(&scene, "heat")?;
    for (nth, mode) in BEHIND.iter().chain(&[Mode::Auto, Mode::Stop]).enumerate() {
        let image = format!("image-{nth}");
        scene.fermata().checkpoint("heat", &image, *mode)?;
        scene.check_goes_on("heat")?;
        verify(&scene, &image)?;
    }
    scene
        .fermata()
        .call(&["kill", "heat"])?
        .success("fermata kill")?;
    for nth in 0..5 {
        scene.check_restorable(&format!("image-{nth}"))?;
    }
    scene.close()
}

#[test]
fn a_second_checkpoint_during_one_is_refused_and_disturbs_nothing() -> Result<()> {
    let scene = Scene::new()?;
    start_wide(&scene, "heat")?;
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| scene.fermata().checkpoint("heat", "first", Mode::Cow));
        std::thread::sleep(Duration::from_millis(400));
        let image = scene.fermata().image("second");
        let second = image.to_str().context("image path").and_then(|image| {
            scene
                .fermata()
                .call(&["checkpoint", "heat", "-o", image, "--mode", "cow"])
        });
        (first.join(), second)
    });
    first.map_err(|_| anyhow::anyhow!("checkpoint thread"))??;
    let second = second?;
    ensure!(
        second.status == 11 && second.stderr.contains("is being checkpointed"),
        "{}: {}",
        second.status,
        second.stderr
    );
    scene.check_goes_on("heat")?;
    scene
        .fermata()
        .call(&["kill", "heat"])?
        .success("fermata kill")?;
    scene.check_restorable("first")?;
    scene.close()
}

#[test]
fn a_program_that_ends_with_its_checkpoint_is_in_the_image() -> Result<()> {
    let scene = Scene::new()?;
    for mode in BEHIND {
        let (name, image) = (
            format!("heat-{}", mode.name()),
            format!("{}-end", mode.name()),
        );
        start_wide(&scene, &name)?;
        scene
            .fermata()
            .checkpoint_with(&name, &image, mode, &["--then", "stop"])?;
        let status = scene.fermata().wait_exit(&name, Duration::from_secs(20))?;
        ensure!(status == 137, "`{name}` ended with {status}");
        scene.check_restorable(&image)?;
    }
    scene.close()
}

#[test]
fn whoever_is_killed_during_a_capture_leaves_older_images_and_nothing_else() -> Result<()> {
    for mode in BEHIND {
        for (victim, delay_ms) in [
            (Which::Program, 250),
            (Which::Program, 600),
            (Which::Worker, 250),
            (Which::Worker, 600),
        ] {
            let scene = Scene::new()?;
            start_wide(&scene, "heat")?;
            scene.fermata().checkpoint("heat", "older", Mode::Stop)?;
            let victim = scene.process("heat", victim)?;
            std::thread::scope(|scope| -> Result<()> {
                let attempt = scope.spawn(|| scene.fermata().checkpoint("heat", "newer", mode));
                std::thread::sleep(Duration::from_millis(delay_ms));
                kill_nine(&victim)?;
                // It may have been quick enough; a refusal must come in time.
                attempt
                    .join()
                    .map_err(|_| anyhow::anyhow!("checkpoint thread"))?
                    .ok();
                Ok(())
            })?;
            if scene.fermata().image("newer").exists() {
                verify(&scene, "newer")?;
            }
            scene.check_restorable("older")?;
            // Without a GPU the program cannot go on; whether it has noticed is its own affair.
            scene.fermata().call(&["kill", "heat"]).ok();
            scene.close()?;
        }
    }
    Ok(())
}

/// Programs whose kernels write what no argument names. The copying is so slow that they must overtake it.
#[test]
fn an_unforeseen_write_gives_a_short_stop_and_a_right_image() -> Result<()> {
    let slower = [("FERMATA_SOFTGPU_HOST_LINK", "3000000")];
    for name in ["hidden", "overrun", "ptrtable"] {
        let scene = Scene::new()?;
        let (fermata, program) = (scene.fermata(), scene.tree().program(name)?);
        let steps = ["--steps", "6000"];
        fermata.run("straight", Device::Soft, &program, &steps)?;
        ensure!(fermata.wait_exit("straight", PROGRAM_LIMIT)? == 0, "{name}");
        let straight = Output::parse(&fermata.log("straight")?)?;

        fermata.run_with(&slower, "first", Device::Soft, &program, &steps)?;
        scene.wait_steps("first", 2)?;
        let image = fermata.image("image");
        let image = image.to_str().context("image path")?;
        let words = [
            "checkpoint",
            "first",
            "-o",
            image,
            "--mode",
            "cow",
            "--json",
        ];
        let done = fermata.call(&words)?.success("fermata checkpoint")?;
        let told: serde_json::Value = serde_json::from_str(&done.stdout)?;
        ensure!(
            told["overtaken"]
                .as_u64()
                .is_some_and(|buffers| buffers > 0),
            "`{name}` was not caught: {told}"
        );
        fermata.call(&["kill", "first"])?.success("fermata kill")?;
        verify(&scene, "image")?;
        fermata.restore("image", "second", Device::Soft)?;
        ensure!(fermata.wait_exit("second", PROGRAM_LIMIT)? == 0, "{name}");
        Output::parse(&fermata.log("second")?)?.check_complete(&straight)?;
        scene.close()?;
    }
    Ok(())
}

#[test]
fn a_disk_that_fills_up_behind_the_program_gives_no_image_and_harms_nobody() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    for mode in [Mode::Snapshot, Mode::Cow, Mode::Recopy, Mode::Stop] {
        let scene = Scene::new()?;
        let disk = SmallDisk::mount(scene.sandbox().images(), "96m")?;
        start_wide(&scene, "heat")?;
        let (filled, attempt) = std::thread::scope(|scope| {
            let attempt = scope.spawn(|| scene.fermata().checkpoint("heat", "image", mode));
            std::thread::sleep(Duration::from_millis(300));
            (disk.fill(), attempt.join())
        });
        let filled = filled?;
        let refused = attempt.map_err(|_| anyhow::anyhow!("checkpoint thread"))?;
        ensure!(refused.is_err(), "{}: there is an image", mode.name());
        let text = format!("{:#}", refused.err().context("refusal")?);
        let named = text.contains("space") || text.contains("full");
        ensure!(named, "{}: {text}", mode.name());
        ensure!(!scene.fermata().image("image").exists(), "half an image");
        scene.check_goes_on("heat")?;
        std::fs::remove_file(filled)?;
        let again = scene.fermata().checkpoint("heat", "image", mode);
        again.with_context(|| format!("{} with space again, after: {text}", mode.name()))?;
        scene
            .fermata()
            .call(&["kill", "heat"])?
            .success("fermata kill")?;
        scene.check_restorable("image")?;
        drop(disk);
        scene.close()?;
    }
    Ok(())
}
