//! NVML in programs under Fermata (`crates/ml`): what it tells, without a device, a descriptor or a worker for it; in
//! forked children, in destructors and after a restore.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use fermata_e2e::case::{Device, Mode, PROGRAM_LIMIT};
use fermata_e2e::command;
use fermata_e2e::fermata::COMMAND_LIMIT;
use fermata_e2e::halt::Halt;
use fermata_e2e::scene::{Scene, wait_until};
use serde_json::{Value, json};

/// `NVML_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: i64 = 3;

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/nvml")
        .join(name)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("path")
}

/// Variables of a Python program: where NVML's bindings are.
fn python() -> Result<(&'static str, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.deps/pynvml");
    let folder = folder
        .canonicalize()
        .context("no NVML bindings; run `sh tools/setup.sh nvml`")?;
    Ok(("PYTHONPATH", text(&folder)?.to_owned()))
}

/// Compiles a C file of the tests.
fn compiled(scene: &Scene, name: &str, options: &[&str]) -> Result<String> {
    let to = scene.sandbox().work().join(name.replace('.', "-"));
    let mut compiler = Command::new("gcc");
    compiler.args([
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-cast-function-type",
        "-o",
    ]);
    compiler.arg(&to).arg(source(name)).args(options);
    command::run(compiler, COMMAND_LIMIT)?.success("gcc")?;
    Ok(text(&to)?.to_owned())
}

/// The JSON lines that a program prints.
fn lines(printed: &str) -> Result<Vec<Value>> {
    let lines = printed.lines().filter(|line| line.starts_with('{'));
    let lines: Result<Vec<Value>, _> = lines.map(serde_json::from_str).collect();
    lines.with_context(|| format!("printed: {printed}"))
}

/// Runs a Python program of the tests as session `name`, to its end.
fn told(scene: &Scene, name: &str, words: &[&str], devices: &str) -> Result<Vec<Value>> {
    let (path, folder) = python()?;
    let program = source(words[0]);
    let mut all = vec!["run", "--device", "soft", "--name", name, "--", "python3"];
    all.push(text(&program)?);
    all.extend(&words[1..]);
    let variables = [(path, &*folder), ("FERMATA_SOFTGPU_DEVICES", devices)];
    let done = scene.fermata().call_with(&all, &variables)?;
    lines(&done.success("fermata run")?.stdout)
}

/// Demands what is so of every answer: ours has told it, nothing is left open, nothing of a GPU is.
fn check_clean(told: &Value) -> Result<()> {
    ensure!(told["left"] == json!({}), "left open: {told}");
    ensure!(told["gpu"] == json!([]), "devices are open: {told}");
    ensure!(
        told["uninitialised"]["error"] == 1,
        "not uninitialised: {told}"
    );
    let libraries = told["libraries"].as_array().context("libraries")?;
    let ours = |it: &Value| {
        it.as_str()
            .is_some_and(|it| it.ends_with("/lib/client/libnvidia-ml.so.1"))
    };
    ensure!(
        libraries.len() == 1 && libraries.iter().all(ours),
        "{libraries:?}"
    );
    Ok(())
}

#[test]
fn a_program_learns_of_its_devices_without_using_them() -> Result<()> {
    let scene = Scene::new()?;
    let answers = told(&scene, "once", &["client.py", "once"], "2")?;
    let [told] = answers.as_slice() else {
        anyhow::bail!("{answers:?}");
    };
    check_clean(told)?;
    ensure!(told["cuda"].as_i64() >= Some(12000), "{told}");
    ensure!(told["beyond"]["error"] == 2, "{told}");
    let devices = told["devices"].as_array().context("devices")?;
    ensure!(devices.len() == 2, "{told}");
    ensure!(devices[0]["uuid"] != devices[1]["uuid"], "{told}");
    for (at, device) in devices.iter().enumerate() {
        let is = |name: &str| device[name].as_str().unwrap_or_default().to_owned();
        ensure!(
            !is("name").is_empty() && is("uuid").starts_with("GPU-"),
            "{device}"
        );
        ensure!(is("bus").ends_with(&is("legacy")), "{device}");
        ensure!(device["found"] == json!([at, at]), "{device}");
        ensure!(
            device["memory"][0] == device["memory"][1],
            "used by nobody: {device}"
        );
        ensure!(device["memory"] == device["second"], "{device}");
        ensure!(
            device["memory"][2] == 0 && device["processes"] == json!([]),
            "{device}"
        );
        ensure!(device["affinity"][0].as_u64() > Some(0), "{device}");
        ensure!(device["locked"]["error"] == 4, "{device}");
        ensure!(device["fields"] == json!([NOT_SUPPORTED]), "{device}");
        for unknown in ["utilization", "temperature", "link"] {
            ensure!(
                device[unknown]["error"] == NOT_SUPPORTED,
                "{unknown}: {device}"
            );
        }
    }
    let session = scene.fermata().session("once")?;
    ensure!(
        session.worker_pid.is_none(),
        "a worker was started: {session:?}"
    );
    scene.close()
}

#[test]
fn a_forked_child_is_answered_as_its_parent_is() -> Result<()> {
    let scene = Scene::new()?;
    let answers = told(&scene, "fork", &["client.py", "fork"], "1")?;
    ensure!(answers.len() == 2, "{answers:?}");
    answers.iter().try_for_each(check_clean)?;
    ensure!(
        answers[0]["devices"] == answers[1]["devices"],
        "{answers:?}"
    );
    scene.close()
}

#[test]
fn used_memory_is_what_the_session_has() -> Result<()> {
    const BYTES: u64 = 32 << 20;
    let scene = Scene::new()?;
    let answers = told(
        &scene,
        "cuda",
        &["client.py", "cuda", &BYTES.to_string()],
        "1",
    )?;
    ensure!(answers.len() == 2, "{answers:?}");
    for told in &answers {
        check_clean(told)?;
        let device = &told["devices"][0];
        let [total, free, used] = [0, 1, 2].map(|at| device["memory"][at].as_u64().unwrap_or(0));
        ensure!(
            (BYTES..2 * BYTES).contains(&used) && free + used == total,
            "{device}"
        );
        // The child has none of it: its parent is named.
        let user = json!([[answers[0]["pid"], used]]);
        ensure!(device["processes"] == user, "{device}");
    }
    scene.close()
}

#[test]
fn c_libraries_find_all_they_look_for_and_may_call_whenever_they_like() -> Result<()> {
    let scene = Scene::new()?;
    let program = compiled(&scene, "client.c", &["-pthread", "-ldl"])?;
    let words = ["run", "--device", "soft", "--", &program];
    let done = scene
        .fermata()
        .call_with(&words, &[("FERMATA_SOFTGPU_DEVICES", "2")])?
        .success("fermata run")?;
    let right = done
        .stdout
        .lines()
        .filter(|line| line.starts_with("ok "))
        .count();
    ensure!(
        right == 15 && done.stdout.lines().count() == right,
        "{}",
        done.stdout
    );
    ensure!(done.stdout.ends_with("ok destructor\n"), "{}", done.stdout);
    scene.close()
}

#[test]
fn a_restored_program_is_told_of_its_new_devices() -> Result<()> {
    let (scene, other) = (Scene::new()?, Scene::new()?);
    let go = scene.sandbox().work().join("go-on");
    let bytes = (8 << 20).to_string();
    let client = source("client.py");
    let words = [text(&client)?, "stay", &bytes, text(&go)?];
    let fermata = scene.fermata();
    fermata.run_with(
        &[python()?],
        "told",
        Device::Soft,
        Path::new("python3"),
        &words,
    )?;
    for who in ["parent", "child"] {
        wait_until("a program has asked", || {
            Ok(go.with_extension(who).exists())
        })?;
    }
    fermata.checkpoint("told", "image", Mode::Stop)?;
    fermata.kill("told")?;
    // Another daemon, and what it knows of the machine is something else.
    let library = compiled(&other, "calls.c", &["-shared", "-fPIC"])?;
    let image = fermata.image("image");
    let words = [
        "restore",
        text(&image)?,
        "--name",
        "back",
        "--device",
        "soft",
        "--detach",
    ];
    other
        .fermata()
        .call_with(&words, &[("FERMATA_NVML", &*library)])?
        .success("fermata restore")?;
    std::fs::write(&go, "")?;
    let status = other.fermata().wait_exit("back", PROGRAM_LIMIT)?;
    let log = other.fermata().log("back")?;
    ensure!(status == 0, "status {status}: {log}");
    let told = lines(&log)?;
    for who in ["parent", "child"] {
        let find = |when: &str| {
            let what = format!("{who} {when}");
            told.iter()
                .find(|it| it["what"] == what)
                .with_context(|| format!("{what}: {log}"))
        };
        let (before, after) = (find("before")?, find("after")?);
        check_clean(before)?;
        check_clean(after)?;
        ensure!(before["devices"][0]["memory"][0] != 1000, "{before}");
        let names = [0, 1].map(|at| after["devices"][at]["name"].clone());
        ensure!(names == ["Test 0", "Test 1"], "{after}");
        ensure!(
            after["devices"][1]["memory"] == json!([1000, 601, 400]),
            "{after}"
        );
    }
    other.close()?;
    scene.close()
}

#[test]
fn a_program_that_is_dumped_in_the_middle_of_a_call_is_answered_after_its_restore() -> Result<()> {
    let (scene, other) = (Scene::new()?, Scene::new()?);
    let library = compiled(&scene, "calls.c", &["-shared", "-fPIC"])?;
    let hold = scene.sandbox().work().join("hold");
    std::fs::write(&hold, "")?;
    let variables = [
        python()?,
        ("FERMATA_NVML", library.clone()),
        ("HOLD_NVML", text(&hold)?.to_owned()),
    ];
    let client = source("client.py");
    let words = [text(&client)?, "serial"];
    let fermata = scene.fermata();
    fermata.run_with(
        &variables,
        "held",
        Device::Soft,
        Path::new("python3"),
        &words,
    )?;
    wait_until("a program asks", || {
        Ok(hold.with_extension("reached").exists())
    })?;
    fermata.checkpoint("held", "image", Mode::Stop)?;
    fermata.kill("held")?;
    let image = fermata.image("image");
    let words = ["restore", text(&image)?, "--name", "back", "--copies", "2"];
    let words = [&words[..], &["--device", "soft", "--detach"]].concat();
    // They ask before the daemon knows whose processes they are.
    let halt = Halt::at(&other, "made")?;
    let variables = [("FERMATA_NVML", &*library)];
    let made = std::thread::scope(|scope| {
        let restore = scope.spawn(|| other.fermata().call_with(&words, &variables));
        let reached = halt.wait();
        std::thread::sleep(Duration::from_millis(300));
        drop(halt);
        let made = restore.join();
        let made = made.map_err(|_| anyhow!("a thread has failed"))?;
        reached.and(made)
    })?;
    made.success("fermata restore")?;
    for name in ["back-1", "back-2"] {
        let status = other.fermata().wait_exit(name, PROGRAM_LIMIT)?;
        let mut log = lines(&other.fermata().log(name)?)?;
        log.sort_by_key(Value::to_string);
        let told = [json!({"child": "serial-1"}), json!({"parent": "serial-1"})];
        ensure!(
            status == 0 && log == told,
            "{name}: status {status}, {log:?}"
        );
    }
    other.close()?;
    scene.close()
}

#[test]
fn what_the_drivers_library_says_comes_to_the_program_as_it_is() -> Result<()> {
    let scene = Scene::new()?;
    let library = compiled(&scene, "calls.c", &["-shared", "-fPIC"])?;
    let (path, folder) = python()?;
    let program = source("forwarded.py");
    let words = ["run", "--device", "soft", "--", "python3", text(&program)?];
    let variables = [(path, &*folder), ("FERMATA_NVML", &*library)];
    let done = scene.fermata().call_with(&words, &variables)?;
    let told = lines(&done.success("fermata run")?.stdout)?;
    let wanted = json!({
        "names": ["Test 0", "Test 1", "Test 1"],
        "bus": 0x41,
        "memory": [1000, 601, 400],
        "rates": [71, 30],
        "remote": 0x84,
        "peers": [0, 5],
        "fields": [[1, 900], [1, 910]],
        "processes": [[1, 6]],
        "unknown": 6,
        "lacking": 13,
        "setting": 4,
        "event": 3,
    });
    ensure!(told == [wanted.clone()], "{told:?} instead of {wanted}");
    scene.close()
}
