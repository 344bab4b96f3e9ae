//! What nvcc makes of the programs runs, however it is asked to compile: every architecture from compute_75 to
//! compute_90 with every level of optimisation.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::Device;
use fermata_e2e::command;
use fermata_e2e::programs::{PROGRAMS, digest};
use fermata_e2e::scene::Scene;

const COMPILE_LIMIT: Duration = Duration::from_secs(600);
const RUN_LIMIT: Duration = Duration::from_secs(300);

/// Architectures whose PTX the software GPU takes.
const ARCHITECTURES: [&str; 7] = ["75", "80", "86", "87", "88", "89", "90"];

/// What is asked of the compiler for host and device. Without an option device code is optimised most,
/// whatever is said for the host.
const LEVELS: [&[&str]; 5] = [
    &["-O0", "-G"],
    &["-O0", "-Xcicc", "-O0"],
    &["-O1", "-Xcicc", "-O1"],
    &["-O2", "-Ofc=min"],
    &["-O3"],
];

/// Written for the driver, not for the runtime; or one that talks with a client.
const NOT_COMPILED: [&str; 3] = ["driver", "server", "textures"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn nvcc() -> Command {
    let mut nvcc = Command::new(root().join(".deps/cuda/bin/nvcc"));
    nvcc.args(["-std=c++17", "--fmad=false", "-Wno-deprecated-gpu-targets"]);
    nvcc
}

/// Runs a program alone on the software GPU and demands its digest.
fn check_digest(scene: &Scene, program: &Path, name: &str) -> Result<()> {
    let mut run = Command::new(program);
    run.current_dir(scene.sandbox().work())
        .env("LD_LIBRARY_PATH", scene.tree().library_path(Device::Soft));
    let done = command::run(run, RUN_LIMIT)?.success("the program")?;
    let expected = format!("digest {name} {}", digest(name).context("no digest")?);
    ensure!(
        done.stdout.lines().any(|line| line == expected),
        "`{expected}` is missing in: {}",
        done.stdout
    );
    Ok(())
}

/// One program with one architecture and one level.
fn compile_and_run(scene: &Scene, number: usize) -> Result<()> {
    let architecture = ARCHITECTURES[number % ARCHITECTURES.len()];
    let level = LEVELS[number % LEVELS.len()];
    let programs: Vec<&str> = PROGRAMS
        .iter()
        .map(|program| program.name)
        // A source that is built for two runtimes is compiled once here.
        .filter(|name| !NOT_COMPILED.contains(name) && !name.contains('-'))
        .collect();
    let name = programs[number % programs.len()];
    let out = scene.sandbox().work().join(format!("{name}-{number}"));
    let code = format!("arch=compute_{architecture},code=compute_{architecture}");
    let mut compile = nvcc();
    compile
        .args(level)
        .args(["-gencode", &code, "-L"])
        .arg(root().join(".deps/cuda/lib"))
        .arg("-o")
        .arg(&out)
        .arg(root().join("programs").join(name).with_extension("cu"));
    command::run(compile, COMPILE_LIMIT)
        .and_then(|done| done.success("nvcc"))
        .and_then(|_| check_digest(scene, &out, name))
        .with_context(|| format!("`{name}` for compute_{architecture} with {level:?}"))
}

#[test]
fn every_architecture_with_every_level_gives_the_digests() -> Result<()> {
    let scene = Scene::new()?;
    // Neither number divides the other: each pair comes once.
    let next = Mutex::new(0..ARCHITECTURES.len() * LEVELS.len());
    let take = || next.lock().ok().and_then(|mut numbers| numbers.next());
    let work = || -> Result<()> {
        while let Some(number) = take() {
            compile_and_run(&scene, number)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let helpers: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        helpers.into_iter().try_for_each(|helper| {
            helper
                .join()
                .map_err(|_| anyhow::anyhow!("a thread that compiles"))?
        })
    })?;
    scene.close()
}
