//! A paused session has given its GPU memory back, and goes on where it was, whatever it was doing.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fermata_e2e::case::{Device, Mode, PROGRAM_LIMIT};
use fermata_e2e::moment::Moment;
use fermata_e2e::output::Output;
use fermata_e2e::processes::{Process, look_up};
use fermata_e2e::scene::{Scene, TRIES, Which, wait_gone, wait_until};
use serde_json::Value;

/// The workers of a session.
fn workers(scene: &Scene, name: &str) -> Result<Vec<Process>> {
    let session = scene.fermata().session(name)?;
    let worker = |pid| look_up(pid).with_context(|| format!("worker {pid} is gone"));
    let pids = session.processes.iter().map(|it| it.worker_pid);
    pids.map(worker).collect()
}

/// Pauses session `name` as its user does; the answer.
fn pause(scene: &Scene, name: &str, options: &[&str]) -> Result<Value> {
    let line = [&["pause", name, "--json"], options].concat();
    let done = scene.fermata().call(&line)?.success("fermata pause")?;
    Ok(serde_json::from_str(&done.stdout)?)
}

fn resume(scene: &Scene, name: &str, options: &[&str]) -> Result<Value> {
    let line = [&["resume", name, "--json"], options].concat();
    let done = scene.fermata().call(&line)?.success("fermata resume")?;
    Ok(serde_json::from_str(&done.stdout)?)
}

fn folder(paused: &Value) -> Result<PathBuf> {
    let folder = paused["data"]["folder"].as_str();
    Ok(folder.context("the answer names no folder")?.into())
}

/// Demands that session `name` is paused: no worker, nothing printed any more, its data where `paused` says.
fn check_paused(scene: &Scene, name: &str, workers: &[Process], paused: &Value) -> Result<()> {
    let session = scene.fermata().session(name)?;
    ensure!(session.state == "paused", "it is {}", session.state);
    ensure!(
        session.worker_pid.is_none() && session.processes.is_empty(),
        "it has a worker: {session:?}"
    );
    workers.iter().try_for_each(wait_gone)?;
    ensure!(folder(paused)?.is_dir(), "its data is not there");
    let log = scene.fermata().log(name)?;
    std::thread::sleep(Duration::from_millis(200));
    ensure!(scene.fermata().log(name)? == log, "its program runs");
    Ok(())
}

/// Demands that session `name` ends with what the program prints alone, and that nothing of the pause is left.
fn check_result(scene: &Scene, name: &str, straight: &Output, folders: &[PathBuf]) -> Result<()> {
    let status = scene.fermata().wait_exit(name, PROGRAM_LIMIT)?;
    let log = scene.fermata().log(name)?;
    ensure!(status == 0, "it ended with {status}: {log}");
    scene.check_ends_as(name, straight)?;
    for folder in folders {
        wait_until("the data of a pause is removed", || Ok(!folder.exists()))?;
    }
    Ok(())
}

/// Runs `program` with these options and pauses it at `times` moments; every other time it comes back eagerly. A program
/// that has ended before its moment shows nothing, and is run again.
fn at_moments(program: &str, options: &[&str], times: usize) -> Result<()> {
    for _ in 0..TRIES {
        if in_time(program, options, times)? {
            return Ok(());
        }
    }
    bail!("`{program}` ends before it can be paused")
}

fn in_time(program: &str, options: &[&str], times: usize) -> Result<bool> {
    let scene = Scene::new()?;
    let straight = scene.straight(program, options)?;
    let path = scene.tree().program(program)?;
    let fermata = scene.fermata();
    fermata.run(program, Device::Soft, &path, options)?;
    let mut folders = Vec::new();
    for at in 0..times {
        // In the first half: it runs on while this looks at it.
        let steps = straight.steps.len() / 2;
        let moment = Moment::seeded(36, at, times, steps, Duration::from_secs(1));
        let reached = |log: &str| {
            let steps = Output::parse(log).map(|it| it.steps.len());
            steps.is_ok_and(|it| it >= moment.steps.max(1))
        };
        if !fermata.wait_log(program, PROGRAM_LIMIT, reached)? {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_micros(moment.delay_us));
        let before = workers(&scene, program);
        let paused = before.and_then(|before| Ok((pause(&scene, program, &[])?, before)));
        let (paused, before) = match paused {
            Err(_) if fermata.log(program)?.contains("\ndigest ") => return Ok(false),
            paused => paused?,
        };
        check_paused(&scene, program, &before, &paused)?;
        folders.push(folder(&paused)?);
        let eager: &[&str] = if at % 2 == 0 { &[] } else { &["--eager"] };
        resume(&scene, program, eager)?;
        if let Ok(now) = workers(&scene, program) {
            ensure!(!now.iter().any(|it| before.contains(it)), "the same worker");
        }
    }
    check_result(&scene, program, &straight, &folders)?;
    scene.close()?;
    Ok(true)
}

#[test]
fn a_program_is_paused_at_any_moment() -> Result<()> {
    at_moments("heat2d", &["--steps", "3000", "--pause-ms", "1"], 3)
}

#[test]
fn managed_memory_comes_back() -> Result<()> {
    at_moments("managed", &["--steps", "2000"], 2)
}

#[test]
fn pinned_memory_comes_back() -> Result<()> {
    at_moments("pinned", &["--steps", "2000"], 2)
}

#[test]
fn queued_work_is_done_once() -> Result<()> {
    at_moments("queued", &["--size", "10000", "--steps", "250"], 2)
}

#[test]
fn a_kernel_that_follows_pointers_waits_for_all_data() -> Result<()> {
    at_moments("ptrtable", &["--steps", "800"], 2)
}

/// Runs `program`, whose data takes a while to come, pauses it where it stands still, and lets it go on so.
fn held(program: &str, program_options: &[&str], options: &[&str]) -> Result<()> {
    let scene = Scene::new()?;
    let straight = scene.straight(program, program_options)?;
    let path = scene.tree().program(program)?;
    let link = ("FERMATA_SOFTGPU_HOST_LINK", "32M".to_owned());
    let variables = [&[link], &scene.hold(50)?[..]].concat();
    let fermata = scene.fermata();
    fermata.run_with(&variables, program, Device::Soft, &path, program_options)?;
    scene.wait_steps(program, 5)?;
    let paused = pause(&scene, program, &[])?;
    scene.let_go()?;
    let resumed = resume(&scene, program, options)?;
    ensure!(resumed["coming"] == true, "its data is there: {resumed}");
    check_result(&scene, program, &straight, &[folder(&paused)?])?;
    scene.close()
}

#[test]
fn a_kernel_that_leaves_its_buffers_comes_to_no_harm() -> Result<()> {
    held("overrun", &["--size", "1000000", "--steps", "200"], &[])
}

#[test]
fn a_kernel_that_names_what_it_touches_runs_on_demand() -> Result<()> {
    held(
        "jacobi",
        &["--size", "1024", "--steps", "200"],
        &["--on-demand"],
    )
}

/// A session of three processes that use CUDA, held at a step, and what it prints alone.
fn family_held() -> Result<(Scene, Output)> {
    let options = ["--steps", "60"];
    let scene = Scene::new()?;
    let straight = scene.straight("family", &options)?;
    let program = scene.tree().program("family")?;
    let held = scene.hold(20)?;
    scene
        .fermata()
        .run_with(&held, "family", Device::Soft, &program, &options)?;
    scene.wait_steps("family", 20)?;
    Ok((scene, straight))
}

#[test]
fn all_processes_of_a_session_are_paused_and_come_back() -> Result<()> {
    let (scene, straight) = family_held()?;
    let before = workers(&scene, "family")?;
    ensure!(before.len() == 3, "{before:?}");
    let paused = pause(&scene, "family", &[])?;
    check_paused(&scene, "family", &before, &paused)?;
    resume(&scene, "family", &[])?;
    ensure!(workers(&scene, "family")?.len() == 3, "a worker is missing");
    scene.let_go()?;
    check_result(&scene, "family", &straight, &[folder(&paused)?])?;
    scene.close()
}

#[test]
fn an_image_of_a_paused_session_holds_all_of_it() -> Result<()> {
    let (scene, straight) = family_held()?;
    let paused = pause(&scene, "family", &[])?;
    scene.fermata().checkpoint("family", "image", Mode::Auto)?;
    let verified = scene.fermata().call(&["images", "verify", "image"])?;
    verified.success("fermata images verify")?;
    check_paused(&scene, "family", &[], &paused)?;
    resume(&scene, "family", &[])?;
    scene
        .try_restore("image", "again")?
        .success("fermata restore")?;
    scene.let_go()?;
    let folders = [folder(&paused)?];
    check_result(&scene, "family", &straight, &folders)?;
    check_result(&scene, "again", &straight, &folders)?;
    scene.close()
}

#[test]
fn a_paused_session_can_end_in_an_image() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    let program = scene.process("heat", Which::Program)?;
    let paused = pause(&scene, "heat", &[])?;
    let then_stop = ["--then", "stop"];
    let fermata = scene.fermata();
    fermata.checkpoint_with("heat", "image", Mode::Auto, &then_stop)?;
    wait_gone(&program)?;
    ensure!(!folder(&paused)?.exists(), "its data is left");
    scene.check_restorable("image")?;
    scene.close()
}

#[test]
fn a_paused_session_can_be_killed_and_leaves_nothing() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    let program = scene.process("heat", Which::Program)?;
    let paused = pause(&scene, "heat", &[])?;
    scene.fermata().kill("heat")?;
    wait_gone(&program)?;
    ensure!(!folder(&paused)?.exists(), "its data is left");
    let session = scene.fermata().session("heat")?;
    ensure!(session.state == "exited", "it is {}", session.state);
    scene.close()
}

#[test]
fn the_data_goes_to_a_folder_if_that_is_asked_for() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    let place = scene.sandbox().work().join("place");
    std::fs::create_dir(&place)?;
    let to = place.to_str().context("a path")?;
    let paused = pause(&scene, "heat", &["--to", to])?;
    ensure!(folder(&paused)?.starts_with(&place), "{paused}");
    let ps = scene.fermata().call(&["ps"])?.success("fermata ps")?;
    ensure!(ps.stdout.contains("paused, "), "{}", ps.stdout);
    resume(&scene, "heat", &[])?;
    scene.check_goes_on("heat")?;
    wait_until("the data of a pause is removed", || {
        Ok(std::fs::read_dir(&place)?.next().is_none())
    })?;
    scene.fermata().kill("heat")?;
    scene.close()
}

/// Demands that `line` fails with `status`, and that its message and hint have these words.
fn check_refused(scene: &Scene, line: &[&str], status: i32, words: [&str; 2]) -> Result<()> {
    let refused = scene.fermata().call(line)?;
    ensure!(refused.status == status, "{line:?}: {refused:?}");
    for word in words {
        ensure!(refused.stderr.contains(word), "{line:?}: {refused:?}");
    }
    Ok(())
}

#[test]
fn what_cannot_be_is_refused_with_the_way_out() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    let shell = std::path::Path::new("/bin/sleep");
    scene
        .fermata()
        .run("plain", Device::Soft, shell, &["900"])?;
    check_refused(&scene, &["resume", "heat"], 1, ["is not paused", "hint:"])?;
    check_refused(
        &scene,
        &["pause", "plain"],
        1,
        ["does not use a GPU", "hint:"],
    )?;
    check_refused(&scene, &["pause", "nobody"], 10, ["nobody", "hint:"])?;
    let nowhere = ["pause", "heat", "--to", "/nowhere/at/all"];
    check_refused(&scene, &nowhere, 1, ["is not a folder", "hint:"])?;
    pause(&scene, "heat", &[])?;
    check_refused(
        &scene,
        &["pause", "heat"],
        1,
        ["paused already", "fermata resume heat"],
    )?;
    resume(&scene, "heat", &[])?;
    // As good as any other session.
    scene.fermata().checkpoint("heat", "image", Mode::Stop)?;
    scene.check_goes_on("heat")?;
    for name in ["heat", "plain"] {
        scene.fermata().kill(name)?;
    }
    scene.check_restorable("image")?;
    scene.close()
}
