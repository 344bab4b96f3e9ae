//! NVIDIA's CUDA runtime answers as it does on an H200, over the software GPU by itself and under Fermata, and programs
//! that go to its edges (modules that are unloaded, resets, faults, children) come back from a checkpoint.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::command;
use fermata_e2e::scene::Scene;

const COMPILE_LIMIT: Duration = Duration::from_secs(600);
const RUN_LIMIT: Duration = Duration::from_secs(300);

/// What is answered otherwise on purpose: where managed memory would rather be is not recorded under Fermata.
const OWN_ANSWERS: [&str; 1] = ["-2"];

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime")
}

/// Compiles `NAME.cu` of `tests/runtime` with the static runtime, as nvcc does by default.
fn compile(scene: &Scene, name: &str) -> Result<PathBuf> {
    compile_for(scene, name, "static")
}

/// The same, for NVIDIA's `static` or `shared` runtime.
fn compile_for(scene: &Scene, name: &str, runtime: &str) -> Result<PathBuf> {
    let deps = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../.deps")
        .canonicalize()?;
    // The name is what messages call the program.
    let folder = scene.sandbox().work().join(runtime);
    std::fs::create_dir_all(&folder)?;
    let out = folder.join(name);
    let mut nvcc = Command::new(deps.join("cuda/bin/nvcc"));
    nvcc.args([
        "-std=c++17",
        "-Wno-deprecated-gpu-targets",
        "-arch=compute_75",
    ])
    .args(["-cudart", runtime, "-L"])
    .arg(deps.join("cuda-link"))
    .arg("-L")
    .arg(deps.join("cuda/lib"))
    .arg("-Xlinker")
    .arg(format!("-rpath={}", deps.join("cuda/lib").display()))
    .arg("-o")
    .arg(&out)
    .arg(sources().join(name).with_extension("cu"));
    command::run(nvcc, COMPILE_LIMIT)?.success("nvcc")?;
    Ok(out)
}

/// Runs a program on the software GPU, without Fermata.
fn alone(scene: &Scene, program: &Path, words: &[&str]) -> Result<String> {
    let mut run = Command::new(program);
    run.args(words)
        .env("LD_LIBRARY_PATH", scene.tree().library_path(Device::Soft));
    Ok(command::run(run, RUN_LIMIT)?.stdout)
}

fn under_fermata(scene: &Scene, program: &Path, words: &[&str]) -> Result<String> {
    let program = program.to_str().context("path")?;
    let mut all = vec!["--quiet", "run", "--device", "soft", "--", program];
    all.extend(words);
    Ok(scene.fermata().call(&all)?.stdout)
}

/// Compares line by line, without those that describe the device.
fn compare(what: &str, found: &str, expected: &str) -> Result<()> {
    let beside = |line: &&str| line.starts_with("device");
    let found: Vec<&str> = found.lines().filter(|line| !beside(line)).collect();
    let expected: Vec<&str> = expected.lines().collect();
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let own = OWN_ANSWERS.iter().any(|own| found.starts_with(own));
        ensure!(
            found == expected || own,
            "{what}, line {}: `{found}` instead of `{expected}`",
            at + 1
        );
    }
    ensure!(
        found.len() == expected.len(),
        "{what}: {} lines instead of {}",
        found.len(),
        expected.len()
    );
    Ok(())
}

/// A program says the same alone, under Fermata and, as was seen, on an H200, over both of NVIDIA's runtimes.
fn says_what_is_expected(name: &str) -> Result<()> {
    let scene = Scene::new()?;
    let expected = std::fs::read_to_string(sources().join(name).with_extension("expected"))?;
    for runtime in ["static", "shared"] {
        let program = compile_for(&scene, name, runtime)?;
        let found = alone(&scene, &program, &[])?;
        compare(&format!("alone, {runtime}"), &found, &expected)?;
        let found = under_fermata(&scene, &program, &[])?;
        compare(&format!("under Fermata, {runtime}"), &found, &expected)?;
    }
    scene.close()
}

#[test]
fn calls_answer_as_on_an_h200() -> Result<()> {
    says_what_is_expected("surface")
}

#[test]
fn errors_stick_where_the_vendors_do() -> Result<()> {
    let scene = Scene::new()?;
    let program = compile(&scene, "faults")?;
    let expected = std::fs::read_to_string(sources().join("faults.expected"))?;
    for part in expected.split("== ").filter(|part| !part.is_empty()) {
        let (mode, expected) = part.split_once('\n').context("a mode and its lines")?;
        compare(mode, &alone(&scene, &program, &[mode])?, expected)?;
        // One program of a session uses CUDA, and that child is a second one.
        if mode != "fork" {
            let found = under_fermata(&scene, &program, &[mode])?;
            let found: Vec<&str> = found.lines().filter(|line| !says(line)).collect();
            compare(
                &format!("{mode} under Fermata"),
                &found.join("\n"),
                expected,
            )?;
        }
    }
    scene.close()
}

#[test]
fn every_call_on_a_dead_context_answers_as_on_an_h200() -> Result<()> {
    says_what_is_expected("sticky")
}

#[test]
fn calls_answer_as_the_documentation_says() -> Result<()> {
    says_what_is_expected("contract")
}

/// The line that begins with `sum`.
fn sum(log: &str) -> Result<&str> {
    let found = log.lines().find(|line| line.starts_with("sum "));
    found.with_context(|| format!("there is no sum: {log}"))
}

/// Starts a program as session `name`, which stands still after this step; returns once it does.
fn start_held(scene: &Scene, name: &str, program: &Path, words: &[&str], step: u64) -> Result<()> {
    let fermata = scene.fermata();
    fermata.run_with(&scene.hold(step)?, name, Device::Soft, program, words)?;
    let line = format!("step {step}\n");
    let there = fermata.wait_log(name, RUN_LIMIT, |log| log.contains(&line))?;
    ensure!(there, "it ended: {}", fermata.log(name)?);
    Ok(())
}

/// Checkpoints a program at this step, kills it, restores it: its sum must be that of an uninterrupted run.
fn comes_back(scene: &Scene, program: &Path, words: &[&str], step: u64) -> Result<()> {
    let expected = alone(scene, program, words)?;
    let fermata = scene.fermata();
    start_held(scene, "first", program, words, step)?;
    let done = fermata.checkpoint("first", "image", Mode::Stop)?;
    ensure!(!done.stderr.contains("may be refused"), "{}", done.stderr);
    fermata.kill("first")?;
    let restored = scene.try_restore("image", "second")?;
    restored.success("fermata restore")?;
    scene.let_go()?;
    let status = fermata.wait_exit("second", RUN_LIMIT)?;
    let log = fermata.log("second")?;
    ensure!(
        status == 0 && sum(&log)? == sum(&expected)?,
        "{status}: {log}"
    );
    Ok(())
}

#[test]
fn a_program_that_has_unloaded_modules_comes_back() -> Result<()> {
    let scene = Scene::new()?;
    let program = compile(&scene, "modules")?;
    comes_back(&scene, &program, &["40", "window"], 17)?;
    scene.close()
}

#[test]
fn a_checkpoint_says_where_unloaded_modules_may_have_it_refused() -> Result<()> {
    let scene = Scene::new()?;
    let program = compile(&scene, "modules")?;
    let fermata = scene.fermata();
    start_held(&scene, "first", &program, &["40", "big"], 5)?;
    let done = fermata.checkpoint_with("first", "image", Mode::Stop, &["--json"])?;
    ensure!(
        done.stderr.contains("device variable `words`"),
        "{}",
        done.stderr
    );
    ensure!(
        done.stdout.contains("a restore may be refused"),
        "{}",
        done.stdout
    );
    fermata.kill("first")?;
    let refused = scene.try_restore("image", "second")?;
    ensure!(
        refused.status != 0 && refused.stderr.contains("device variable `words`"),
        "{}: {}",
        refused.status,
        refused.stderr
    );
    scene.close()
}

#[test]
fn a_program_that_resets_its_device_comes_back() -> Result<()> {
    let scene = Scene::new()?;
    let program = compile(&scene, "resets")?;
    comes_back(&scene, &program, &["40", "plain"], 18)?;
    scene.close()
}

#[test]
fn a_program_that_has_met_a_fault_is_not_checkpointed_even_after_a_reset() -> Result<()> {
    let scene = Scene::new()?;
    let program = compile(&scene, "resets")?;
    let fermata = scene.fermata();
    fermata.run_with(
        &scene.hold(6)?,
        "first",
        Device::Soft,
        &program,
        &["6", "fault"],
    )?;
    let faulted = |log: &str| log.contains("fault 700, reset 0, then 46\n");
    ensure!(fermata.wait_log("first", RUN_LIMIT, faulted)?);
    let path = fermata.image("image");
    let path = path.to_str().context("path")?;
    let refused = fermata.call(&["checkpoint", "first", "-o", path, "--mode", "stop"])?;
    ensure!(
        refused.status == 14
            && refused
                .stderr
                .contains("the program's CUDA context has failed"),
        "{}: {}",
        refused.status,
        refused.stderr
    );
    ensure!(
        fermata.session("first")?.exit_status.is_none(),
        "it goes on"
    );
    fermata.kill("first")?;
    scene.close()
}

/// Whether this is what the failed assertion of `faults.cu` says.
fn says(text: &str) -> bool {
    text.contains("Assertion `threadIdx.x > 5` failed.")
}

#[test]
fn what_a_failed_assertion_says_reaches_standard_error() -> Result<()> {
    let scene = Scene::new()?;
    let program = compile(&scene, "faults")?;
    let mut alone = Command::new(&program);
    alone
        .arg("assert")
        .env("LD_LIBRARY_PATH", scene.tree().library_path(Device::Soft));
    let alone = command::run(alone, RUN_LIMIT)?;
    ensure!(says(&alone.stderr), "alone: `{}`", alone.stderr);
    ensure!(!says(&alone.stdout), "alone, as output: `{}`", alone.stdout);
    // A session's log holds both, and the driver is in another process.
    let log = under_fermata(&scene, &program, &["assert"])?;
    ensure!(says(&log), "under Fermata: `{log}`");
    scene.close()
}

#[test]
fn a_second_program_of_a_session_uses_cuda_beside_the_first() -> Result<()> {
    let scene = Scene::new()?;
    let program = compile(&scene, "family")?;
    let fermata = scene.fermata();
    fermata.run_with(
        &scene.hold(3)?,
        "pair",
        Device::Soft,
        &program,
        &["parent", "40"],
    )?;
    let at_work = |log: &str| log.contains("child 1") && log.contains("step 3\n");
    ensure!(
        fermata.wait_log("pair", RUN_LIMIT, at_work)?,
        "it ended: {}",
        fermata.log("pair")?
    );
    // The child still lives.
    fermata.checkpoint("pair", "image", Mode::Stop)?;
    scene.let_go()?;
    for name in ["pair", "back"] {
        ensure!(fermata.wait_exit(name, RUN_LIMIT)? == 0, "{name} fails");
        let log = fermata.log(name)?;
        ensure!(
            log.contains("value 40, child's status 7") && log.matches("child 1\n").count() == 2,
            "{name}: {log}"
        );
        if name == "pair" {
            scene
                .try_restore("image", "back")?
                .success("fermata restore")?;
        }
    }
    scene.close()
}

#[test]
fn functions_are_called_through_memory_after_a_restore() -> Result<()> {
    let scene = Scene::new()?;
    let program = compile(&scene, "virtual")?;
    let fermata = scene.fermata();
    start_held(&scene, "first", &program, &["20"], 3)?;
    fermata.checkpoint("first", "image", Mode::Stop)?;
    fermata.kill("first")?;
    scene
        .try_restore("image", "second")?
        .success("fermata restore")?;
    scene.let_go()?;
    let status = fermata.wait_exit("second", RUN_LIMIT)?;
    let log = fermata.log("second")?;
    ensure!(status == 0 && log.contains("right"), "{status}: {log}");
    scene.close()
}

#[test]
fn programs_of_a_session_use_cuda_one_after_the_other() -> Result<()> {
    let scene = Scene::new()?;
    let program = compile(&scene, "family")?;
    let program = program.to_str().context("path")?;
    let script = format!("for i in 1 2 3 4; do {program} once; done; {program} again");
    let shell = Path::new("/bin/sh");
    let log = under_fermata(&scene, shell, &["-c", &script])?;
    let expected = "once 1\nonce 1\nonce 1\nonce 1\nfirst 1\nonce 1\n";
    ensure!(log == expected, "`{log}`");
    scene.close()
}
