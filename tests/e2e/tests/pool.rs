//! Workers that wait for sessions: `fermata ps --pool`, their limits, what becomes of one that ends by itself, and those that have
//! loaded an image ahead.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::processes::{self, Process};
use fermata_e2e::scene::{SHORT, Scene, Which, kill_nine, wait_gone, wait_until};
use serde_json::Value;

/// The numbers of the software GPU's workers that wait for any program.
fn ready(pool: &Value) -> Result<Vec<i32>> {
    numbers(pool, |it| it["image"].is_null())
}

/// The numbers of those that wait for a restore of `image`.
fn ready_for(pool: &Value, image: &Path) -> Result<Vec<i32>> {
    let image = image.to_str().context("image path")?;
    numbers(pool, |it| it["image"] == image)
}

fn numbers(pool: &Value, which: impl Fn(&Value) -> bool) -> Result<Vec<i32>> {
    let kinds = pool["kinds"].as_array().context("kinds")?;
    let soft = kinds.iter().filter(|it| it["soft"] == true && which(it));
    let workers = soft.flat_map(|it| it["ready"].as_array().into_iter().flatten());
    workers
        .map(|it| Ok(i32::try_from(it["pid"].as_i64().context("pid")?)?))
        .collect()
}

fn number(pool: &Value, name: &str) -> Result<u64> {
    pool[name]
        .as_u64()
        .with_context(|| format!("{name} in {pool}"))
}

/// Starts the daemon with these settings.
fn daemon(scene: &Scene, settings: &[(&str, &str)]) -> Result<()> {
    let done = scene.fermata().call_with(&["ps"], settings)?;
    done.success("fermata ps").map(drop)
}

/// Runs a program to its end.
fn run(scene: &Scene, name: &str) -> Result<()> {
    let program = scene.tree().program("heat2d")?;
    let straight = scene.straight("heat2d", &["--steps", "3"])?;
    scene
        .fermata()
        .run(name, Device::Soft, &program, &["--steps", "3"])?;
    scene.check_ends_as(name, &straight)
}

fn wait_ready(scene: &Scene, count: usize) -> Result<Vec<i32>> {
    wait_until("workers wait", || {
        Ok(ready(&scene.fermata().pool()?)?.len() == count)
    })?;
    ready(&scene.fermata().pool()?)
}

fn alive(pid: i32) -> Result<Process> {
    processes::look_up(pid).with_context(|| format!("process {pid} is gone"))
}

#[test]
fn a_worker_that_dies_while_it_waits_is_replaced_and_nothing_else_notices() -> Result<()> {
    let scene = Scene::new()?;
    daemon(&scene, &[("FERMATA_SPARE_WORKERS", "2")])?;
    scene.start_held("heat")?;
    let before = wait_ready(&scene, 2)?;
    let serving = scene.process("heat", Which::Worker)?;
    ensure!(!before.contains(&serving.pid), "{} is shared", serving.pid);
    let [dead, other] = [alive(before[0])?, alive(before[1])?];
    kill_nine(&dead)?;
    wait_until("another one waits", || {
        let ready = ready(&scene.fermata().pool()?)?;
        Ok(ready.len() == 2 && !ready.contains(&dead.pid))
    })?;
    ensure!(alive(other.pid)? == other && alive(serving.pid)? == serving);
    let told = scene.fermata().pool()?;
    ensure!(number(&told, "failed")? == 1, "{told}");
    let log = scene.daemon_log()?;
    let line = format!("worker {}, which waited for a session, is lost", dead.pid);
    ensure!(log.contains(&line), "{log}");
    let table = scene.fermata().call(&["ps", "--pool"])?;
    let table = table.success("fermata ps --pool")?.stdout;
    ensure!(table.matches(" ready ").count() == 2, "{table}");
    // Each is given to one session only.
    let ready = ready(&told)?;
    let program = scene.tree().program("heat2d")?;
    for name in ["one", "two"] {
        let options = ["--steps", "400"];
        let hold = scene.hold(200)?;
        scene
            .fermata()
            .run_with(&hold, name, Device::Soft, &program, &options)?;
        scene.wait_steps(name, 10)?;
    }
    let (one, two) = (
        scene.process("one", Which::Worker)?,
        scene.process("two", Which::Worker)?,
    );
    ensure!(
        ready.contains(&one.pid) && one.pid != two.pid,
        "{ready:?}: {one:?} {two:?}"
    );
    for name in ["heat", "one", "two"] {
        scene.fermata().kill(name)?;
    }
    wait_gone(&one)?;
    scene.close()
}

#[test]
fn workers_that_cannot_be_started_are_tried_ever_more_slowly_and_sessions_run() -> Result<()> {
    let scene = Scene::new()?;
    let driver = scene.sandbox().work().join("libcuda.so.1");
    fs::write(&driver, "no library")?;
    let path = driver.to_str().context("path")?;
    daemon(&scene, &[("FERMATA_REAL_LIBCUDA", path)])?;
    wait_until("it was tried three times", || {
        Ok(number(&scene.fermata().pool()?, "failed")? >= 3)
    })?;
    let told = scene.fermata().pool()?;
    let kind = &told["kinds"][0];
    let trouble = kind["trouble"].as_str().unwrap_or_default();
    // The third pause is 4 s long; on a busy machine it may be over.
    let held = kind["retry_seconds"].as_u64().is_some() && trouble.contains("libcuda.so.1");
    ensure!(held || kind["making"] == 1, "{told}");
    let shown = scene.fermata().call(&["ps", "--pool"])?;
    ensure!(shown.status == 0, "{}", shown.stderr);
    run(&scene, "heat")?;
    wait_ready(&scene, 1)?;
    scene.close()
}

#[test]
fn a_worker_that_no_session_uses_is_ended_and_the_next_session_fills_the_pool() -> Result<()> {
    let scene = Scene::new()?;
    daemon(&scene, &[("FERMATA_SPARE_IDLE", "1")])?;
    for round in 1..=2 {
        run(&scene, &format!("heat-{round}"))?;
        wait_until("it is ended", || {
            let told = scene.fermata().pool()?;
            Ok(ready(&told)?.is_empty() && number(&told, "idle_ended")? >= round)
        })?;
    }
    let told = scene.fermata().pool()?;
    ensure!(
        told["idle_seconds"] == 1 && number(&told, "failed")? == 0,
        "{told}"
    );
    scene.close()
}

#[test]
fn a_session_that_comes_while_the_pool_is_filled_gets_the_worker_that_is_being_made() -> Result<()>
{
    let scene = Scene::new()?;
    let moment = scene.sandbox().moments().join("spare-made");
    daemon(&scene, &[])?;
    run(&scene, "first")?;
    wait_ready(&scene, 1)?;
    fs::write(&moment, "")?;
    // It takes the one that waits; the next one is being made.
    let program = scene.tree().program("heat2d")?;
    let start = |name: &str| {
        let hold = scene.hold(200)?;
        let options = ["--steps", "400"];
        scene
            .fermata()
            .run_with(&hold, name, Device::Soft, &program, &options)
    };
    start("second")?;
    wait_until("one is made", || {
        Ok(moment.with_extension("reached").exists())
    })?;
    start("third")?;
    wait_until("a session waits for it", || {
        let told = scene.fermata().pool()?;
        let kinds = told["kinds"].as_array().context("kinds")?;
        Ok(kinds.iter().any(|it| it["awaited"] == 1))
    })?;
    let failed = number(&scene.fermata().pool()?, "failed")?;
    fs::remove_file(&moment)?;
    for name in ["second", "third"] {
        scene.wait_steps(name, 10)?;
    }
    wait_ready(&scene, 1)?;
    ensure!(failed == 0 && number(&scene.fermata().pool()?, "failed")? == 0);
    scene.fermata().kill("second")?;
    scene.fermata().kill("third")?;
    scene.close()
}

#[test]
fn a_restore_gets_a_worker_that_has_loaded_its_image_and_leaves_one_for_the_next() -> Result<()> {
    let scene = Scene::new()?;
    let straight = scene.straight("heat2d", SHORT)?;
    scene.make_held_image("image")?;
    let image = scene.fermata().image("image");
    scene.fermata().warm("image")?;
    let mut before = ready_for(&scene.fermata().pool()?, &image)?;
    let table = scene.fermata().call(&["ps", "--pool"])?;
    let table = table.success("fermata ps --pool")?.stdout;
    ensure!(table.contains("  image  "), "{table}");
    for name in ["first", "second"] {
        ensure!(before.len() == 1, "one waits: {before:?}");
        scene.fermata().restore("image", name, Device::Soft)?;
        let worker = scene.process(name, Which::Worker)?;
        ensure!(before == [worker.pid], "{before:?}, and {worker:?} serves");
        wait_until("the next one waits", || {
            before = ready_for(&scene.fermata().pool()?, &image)?;
            Ok(before.len() == 1)
        })?;
    }
    scene.let_go()?;
    for name in ["first", "second"] {
        scene.check_ends_as(name, &straight)?;
    }
    // A program that is started gets another one.
    run(&scene, "third")?;
    ensure!(ready_for(&scene.fermata().pool()?, &image)? == before);
    scene.close()
}

#[test]
fn variables_that_were_filled_ahead_are_those_of_the_image() -> Result<()> {
    let options = ["--size", "1", "--steps", "60"];
    Scene::comes_back_warm("symbols", &options, Mode::Cow)
}

#[test]
fn an_image_that_is_damaged_after_it_was_preloaded_is_refused() -> Result<()> {
    let scene = Scene::new()?;
    scene.make_image("image")?;
    let state = scene.fermata().image("image").join("state");
    let sound = fs::read(&state)?;
    let mut damaged = sound.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    scene.fermata().warm("image")?;
    fs::write(&state, damaged)?;
    let refused = scene.try_restore("image", "back")?;
    ensure!(
        refused.status != 0 && refused.stderr.contains("state"),
        "{refused:?}"
    );
    fs::write(&state, sound)?;
    scene.check_restorable("image")?;
    scene.close()
}
