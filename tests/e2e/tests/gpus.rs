//! `fermata restore --gpus`: a program comes back onto other GPUs than it had, in the order that is asked for.

use anyhow::{Result, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::scene::{Scene, Which};

/// Two GPUs, each of which reads the other's memory.
const PROGRAM: &str = "peer";
const OPTIONS: &[&str] = &["--size", "4096", "--steps", "40"];
/// The machine.
const MACHINE: (&str, &str) = ("FERMATA_SOFTGPU_DEVICES", "3");

/// Session `one` of the program, which has three GPUs, and its image `image`; it is killed.
fn image(scene: &Scene, seen: &str) -> Result<()> {
    let fermata = scene.fermata();
    let program = scene.tree().program(PROGRAM)?;
    let held = scene.hold(20)?;
    let mut variables: Vec<(&str, &str)> =
        held.iter().map(|(name, it)| (*name, it.as_str())).collect();
    variables.extend([MACHINE, ("FERMATA_SOFTGPU_VISIBLE_DEVICES", seen)]);
    fermata.run_with(&variables, "one", Device::Soft, &program, OPTIONS)?;
    scene.wait_steps("one", 3)?;
    fermata.checkpoint("one", "image", Mode::Cow)?;
    fermata.kill("one")?;
    Ok(())
}

/// Demands that the worker of a session sees these GPUs, whose ever they are.
fn check_sees(scene: &Scene, name: &str, list: &str) -> Result<()> {
    let worker = scene.process(name, Which::Worker)?;
    let environment = std::fs::read(format!("/proc/{}/environ", worker.pid))?;
    let environment = String::from_utf8_lossy(&environment).into_owned();
    for variable in ["CUDA_VISIBLE_DEVICES", "FERMATA_SOFTGPU_VISIBLE_DEVICES"] {
        let wanted = format!("{variable}={list}");
        ensure!(
            environment.split('\0').any(|it| it == wanted),
            "{name}: no {wanted}"
        );
    }
    Ok(())
}

#[test]
fn a_program_comes_back_onto_the_gpus_that_are_named_and_stays_there() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    image(&scene, "0,1")?;
    let path = fermata.image("image");
    let path = path.to_str().unwrap_or_default();
    let words = [
        "restore", path, "--detach", "--name", "moved", "--gpus", "2,0",
    ];
    fermata.call(&words)?.success("fermata restore --gpus")?;
    check_sees(&scene, "moved", "2,0")?;
    // An image of it is one of these GPUs.
    fermata.checkpoint("moved", "second", Mode::Stop)?;
    scene
        .try_restore("second", "again")?
        .success("fermata restore")?;
    check_sees(&scene, "again", "2,0")?;
    scene.let_go()?;
    let straight = scene.straight(PROGRAM, OPTIONS)?;
    for name in ["moved", "again"] {
        scene.check_ends_as(name, &straight)?;
    }
    scene.close()
}

#[test]
fn fewer_gpus_than_the_program_has_are_refused_and_nothing_is_left() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    image(&scene, "0,1")?;
    let path = fermata.image("image");
    let path = path.to_str().unwrap_or_default();
    // The host has not what the image needs; or the list is none.
    for (list, status) in [("1", 13), ("1,7", 13), ("first", 13), ("", 2), ("1,,0", 2)] {
        let refused = fermata.call(&["restore", path, "--detach", "--gpus", list])?;
        let (got, said) = (refused.status, &refused.stderr);
        ensure!(
            got == status && said.contains("error: "),
            "`{list}`: {got} {said}"
        );
    }
    scene
        .try_restore("image", "whole")?
        .success("fermata restore")?;
    scene.let_go()?;
    scene.check_ends_as("whole", &scene.straight(PROGRAM, OPTIONS)?)?;
    scene.close()
}
