//! Which GPUs a program sees: those that it names itself, and other ones after `fermata restore --gpus`, in the order that is
//! asked for.

use std::path::Path;

use anyhow::{Result, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::scene::{Scene, Which};

/// Two GPUs, each of which reads the other's memory.
const PROGRAM: &str = "peer";
const OPTIONS: &[&str] = &["--size", "4096", "--steps", "40"];
/// What a program names its GPUs with.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// The machine.
const MACHINE: (&str, &str) = ("FERMATA_SOFTGPU_DEVICES", "3");

/// Session `one` of the program, started by this line of a shell on a machine of three GPUs, which waits for its release.
fn start(scene: &Scene, variable: (&str, &str), line: &str) -> Result<()> {
    start_as(scene, "one", variable, line)
}

fn start_as(scene: &Scene, name: &str, variable: (&str, &str), line: &str) -> Result<()> {
    let program = scene.tree().program(PROGRAM)?;
    let program = program.to_str().unwrap_or_default();
    let line = format!("{line} exec {program} {}", OPTIONS.join(" "));
    let held = scene.hold(20)?;
    let mut variables: Vec<(&str, &str)> =
        held.iter().map(|(name, it)| (*name, it.as_str())).collect();
    variables.extend([MACHINE, variable]);
    let shell = Path::new("/bin/sh");
    let fermata = scene.fermata();
    fermata.run_with(&variables, name, Device::Soft, shell, &["-c", &line])?;
    scene.wait_steps(name, 3)
}

/// Session `one` of the program, which has three GPUs, and its image `image`; it is killed.
fn image(scene: &Scene, seen: &str) -> Result<()> {
    start(scene, ("FERMATA_SOFTGPU_VISIBLE_DEVICES", seen), "")?;
    let fermata = scene.fermata();
    fermata.checkpoint("one", "image", Mode::Cow)?;
    fermata.kill("one")?;
    Ok(())
}

/// Whether process `pid` has found this variable with this value.
fn has_variable(pid: i32, variable: &str, value: &str) -> Result<bool> {
    let environment = std::fs::read(format!("/proc/{pid}/environ"))?;
    let environment = String::from_utf8_lossy(&environment).into_owned();
    let wanted = format!("{variable}={value}");
    Ok(environment.split('\0').any(|it| it == wanted))
}

/// Demands that the worker of a session sees these GPUs, whose ever they are.
fn check_sees(scene: &Scene, name: &str, list: &str) -> Result<()> {
    let worker = scene.process(name, Which::Worker)?;
    for variable in [VISIBLE, "FERMATA_SOFTGPU_VISIBLE_DEVICES"] {
        let has = has_variable(worker.pid, variable, list)?;
        ensure!(has, "{name}: no {variable}={list}");
    }
    Ok(())
}

/// Whether the worker of a session was told to begin with this GPU.
fn begins_with(scene: &Scene, name: &str, gpu: &str) -> Result<bool> {
    let worker = scene.process(name, Which::Worker)?;
    has_variable(worker.pid, "FERMATA_FIRST_DEVICE", gpu)
}

/// Restores image `image` as session `moved`, onto these GPUs of the machine.
fn move_onto(scene: &Scene, list: &str) -> Result<()> {
    let path = scene.fermata().image("image");
    let path = path.to_str().unwrap_or_default();
    let words = [
        "restore", path, "--detach", "--name", "moved", "--gpus", list,
    ];
    let restored = scene.fermata().call(&words)?;
    restored.success("fermata restore --gpus")?;
    Ok(())
}

/// Restores an image as session `name`, whose worker must see these GPUs.
fn comes_back_onto(scene: &Scene, image: &str, name: &str, list: &str) -> Result<()> {
    scene.try_restore(image, name)?.success("fermata restore")?;
    check_sees(scene, name, list)
}

#[test]
fn the_worker_of_a_rank_begins_with_the_ranks_gpu_also_after_a_restore_and_a_pause() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    start(&scene, ("LOCAL_RANK", "2"), "")?;
    ensure!(begins_with(&scene, "one", "2")?, "at its start");
    fermata
        .call(&["pause", "one"])?
        .success("fermata pause one")?;
    fermata
        .call(&["resume", "one"])?
        .success("fermata resume one")?;
    ensure!(begins_with(&scene, "one", "2")?, "after its pause");
    fermata.checkpoint("one", "image", Mode::Cow)?;
    fermata.kill("one")?;
    fermata.restore("image", "back", Device::Soft)?;
    ensure!(begins_with(&scene, "back", "2")?, "after its restore");
    // A worker that waits for any program begins with the first.
    start_as(&scene, "two", ("RANK", "2"), "")?;
    ensure!(!begins_with(&scene, "two", "2")?, "without a rank");
    scene.let_go()?;
    let straight = scene.straight(PROGRAM, OPTIONS)?;
    scene.check_ends_as("back", &straight)?;
    scene.close()
}

#[test]
fn a_rank_whose_gpu_is_not_among_those_of_a_restore_is_refused_and_nothing_is_left() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    // It uses the first two.
    start(&scene, ("LOCAL_RANK", "2"), "")?;
    fermata.checkpoint("one", "image", Mode::Cow)?;
    fermata.kill("one")?;
    let path = fermata.image("image");
    let path = path.to_str().unwrap_or_default();
    let refused = fermata.call(&["restore", path, "--detach", "--gpus", "0,1"])?;
    let said = &refused.stderr;
    let named = said.contains("its GPU 2") && said.contains("at least 3 GPUs");
    ensure!(refused.status == 13 && named, "{} {said}", refused.status);
    fermata.restore("image", "back", Device::Soft)?;
    scene.let_go()?;
    scene.check_ends_as("back", &scene.straight(PROGRAM, OPTIONS)?)?;
    scene.close()
}

#[test]
fn a_rank_beyond_the_gpus_begins_with_the_first() -> Result<()> {
    let scene = Scene::new()?;
    start(&scene, ("LOCAL_RANK", "3"), "")?;
    scene.fermata().checkpoint("one", "image", Mode::Cow)?;
    scene.fermata().kill("one")?;
    scene.fermata().restore("image", "back", Device::Soft)?;
    ensure!(!begins_with(&scene, "back", "3")?, "it has no GPU 3");
    scene.let_go()?;
    scene.check_ends_as("back", &scene.straight(PROGRAM, OPTIONS)?)?;
    scene.close()
}

#[test]
fn a_program_comes_back_onto_the_gpus_that_are_named_and_stays_there() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    image(&scene, "0,1")?;
    move_onto(&scene, "2,0")?;
    check_sees(&scene, "moved", "2,0")?;
    // An image of it is one of these GPUs.
    fermata.checkpoint("moved", "second", Mode::Stop)?;
    comes_back_onto(&scene, "second", "again", "2,0")?;
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

#[test]
fn gpus_that_do_not_reach_each_other_are_refused_where_those_of_the_program_did() -> Result<()> {
    let scene = Scene::new()?;
    image(&scene, "0,1")?;
    scene.kill_daemon()?;
    let apart = [("FERMATA_SOFTGPU_NO_PEERS", "1")];
    let started = scene.fermata().call_with(&["ps"], &apart)?;
    started.success("fermata ps")?;
    let refused = scene.try_restore("image", "apart")?;
    ensure!(refused.status == 13, "{}", refused.status);
    for word in ["GPU 0", "GPU 1", "cannot reach", "--gpus"] {
        ensure!(refused.stderr.contains(word), "{word}: {}", refused.stderr);
    }
    scene.kill_daemon()?;
    scene
        .try_restore("image", "whole")?
        .success("fermata restore")?;
    scene.let_go()?;
    scene.check_ends_as("whole", &scene.straight(PROGRAM, OPTIONS)?)?;
    scene.close()
}

#[test]
fn a_session_sees_the_gpus_that_its_user_names() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    start(&scene, (VISIBLE, "2,1"), "")?;
    check_sees(&scene, "one", "2,1")?;
    fermata.checkpoint("one", "image", Mode::Snapshot)?;
    comes_back_onto(&scene, "image", "again", "2,1")?;
    scene.let_go()?;
    let straight = scene.straight(PROGRAM, OPTIONS)?;
    for name in ["one", "again"] {
        scene.check_ends_as(name, &straight)?;
    }
    scene.close()
}

#[test]
fn a_process_sees_the_gpus_that_it_names_itself_after_pause_restore_and_on_others() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    start(&scene, (VISIBLE, "2,1"), "CUDA_VISIBLE_DEVICES=1")?;
    check_sees(&scene, "one", "1")?;
    for verb in ["pause", "resume"] {
        fermata.call(&[verb, "one"])?.success(verb)?;
    }
    check_sees(&scene, "one", "1")?;
    fermata.checkpoint("one", "image", Mode::Cow)?;
    fermata.kill("one")?;
    comes_back_onto(&scene, "image", "again", "1")?;
    // What the program calls 2 and 1 are 0 and 2 then.
    move_onto(&scene, "0,2")?;
    check_sees(&scene, "moved", "2")?;
    fermata.checkpoint("moved", "second", Mode::Stop)?;
    comes_back_onto(&scene, "second", "third", "2")?;
    scene.let_go()?;
    let straight = scene.straight(PROGRAM, OPTIONS)?;
    for name in ["again", "moved", "third"] {
        scene.check_ends_as(name, &straight)?;
    }
    scene.close()
}

#[test]
fn a_process_that_names_no_gpu_is_told_that_there_is_none() -> Result<()> {
    let scene = Scene::new()?;
    let program = scene.tree().program(PROGRAM)?;
    for (name, list) in [("none", "-1"), ("empty", ""), ("others", "7")] {
        let variables = [MACHINE, (VISIBLE, list)];
        let fermata = scene.fermata();
        fermata.run_with(&variables, name, Device::Soft, &program, OPTIONS)?;
        scene.wait_says(name, "cudaErrorNoDevice")?;
    }
    scene.close()
}
