//! PyTorch on the software GPU, with the cuBLAS of its folder: a transformer that trains comes back from checkpoints at
//! random steps, and the library's products are right.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::command::{self, Finished};
use fermata_e2e::moment::Moment;
use fermata_e2e::output::Output;
use fermata_e2e::programs::python_package;
use fermata_e2e::scene::{Scene, wait_until};

const COMPILE_LIMIT: Duration = Duration::from_secs(600);
/// Importing PyTorch and compiling a training step takes half a minute where nothing else runs.
const RUN_LIMIT: Duration = Duration::from_secs(600);

const STEPS: usize = 40;
/// How each of the checkpoints is taken.
const MODES: [Mode; 5] = [
    Mode::Cow,
    Mode::Stop,
    Mode::Snapshot,
    Mode::Recopy,
    Mode::Cow,
];

fn root() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().context("the repository")
}

/// What a PyTorch program needs to run on the software GPU (docs/softgpu.md).
fn variables(scene: &Scene) -> Result<Vec<(&'static str, String)>> {
    let torch = root()?.join(".deps/torch");
    ensure!(
        torch.join(".complete").exists(),
        "no PyTorch; run `sh tools/setup.sh torch`"
    );
    let library = scene.tree().library_path(Device::Soft);
    let assembler = format!("{library}/ptxas");
    let text = |path: PathBuf| path.into_os_string().into_string().ok().context("path");
    let cache = text(scene.sandbox().work().join("compiled"))?;
    // Python's headers, where the machine's own Python has none: in a folder of its version, which includes from beside it.
    let headers = root()?.join(".deps/python-headers/usr/include");
    let version = std::fs::read_dir(&headers).into_iter().flatten().flatten();
    let mut folders: Vec<_> = version.map(|it| it.path()).collect();
    folders.push(headers);
    let headers = text(std::env::join_paths(folders)?.into())?;
    Ok(vec![
        ("CPATH", headers),
        ("PYTHONPATH", text(torch)?),
        // What Python makes of PyTorch's files is kept: at each start it would take longer than all else.
        ("PYTHONDONTWRITEBYTECODE", String::new()),
        ("LD_LIBRARY_PATH", library),
        ("TRITON_PTXAS_PATH", assembler.clone()),
        ("TRITON_PTXAS_BLACKWELL_PATH", assembler),
        ("TRITON_CACHE_DIR", format!("{cache}/triton")),
        ("TORCHINDUCTOR_CACHE_DIR", cache),
        // In the program's own process: other tests run beside it.
        ("TORCHINDUCTOR_COMPILE_THREADS", "1".to_owned()),
    ])
}

/// What a program prints that runs without Fermata.
fn without_fermata(words: &[&str], variables: &[(&'static str, String)]) -> Result<String> {
    let mut alone = Command::new("python3");
    alone.args(words).envs(variables.iter().cloned());
    Ok(command::run(alone, RUN_LIMIT)?.success(words[0])?.stdout)
}

#[test]
fn a_transformer_that_trains_comes_back_from_checkpoints_at_random_steps() -> Result<()> {
    let scene = Scene::new()?;
    let variables = variables(&scene)?;
    let program = root()?.join("programs/transformer.py");
    let program = program.to_str().context("path")?;
    let steps = STEPS.to_string();
    let words = [program, "--steps", &steps];

    let printed = without_fermata(&words, &variables)?;
    let straight = Output::parse(&printed)?;

    let seed = RandomState::new().hash_one(MODES.len());
    let moment = |index| Moment::seeded(seed, index, MODES.len(), STEPS, Duration::ZERO).steps + 1;
    let context = || format!("seed {seed:#x}");
    // It is not held where it is checkpointed, but soon behind, so that it is at work and yet not done.
    let held = |index| moment(index) as u64 + 3;
    let variables = [variables, scene.hold(held(0))?.into()].concat();
    let fermata = scene.fermata();
    let python = Path::new("python3");
    fermata.run_with(&variables, "run-0", Device::Soft, python, &words)?;
    for (index, mode) in MODES.into_iter().enumerate() {
        let [name, next] = [index, index + 1].map(|number| format!("run-{number}"));
        let image = format!("image-{index}");
        scene
            .wait_steps(&name, moment(index))
            .with_context(context)?;
        fermata
            .checkpoint(&name, &image, mode)
            .with_context(context)?;
        fermata.kill(&name)?;
        if index + 1 < MODES.len() {
            scene.let_go_to(held(index + 1))?;
        } else {
            scene.let_go()?;
        }
        let restored = scene.try_restore(&image, &next)?;
        restored.success("fermata restore").with_context(context)?;
    }
    let last = format!("run-{}", MODES.len());
    scene
        .check_ends_as(&last, &straight)
        .with_context(context)?;
    // Losses are lines of the log, so those before each image count too.
    let losses = |log: &str| -> Vec<String> {
        let losses = log.lines().filter(|line| line.starts_with("loss "));
        losses.map(str::to_owned).collect()
    };
    let (found, expected) = (losses(&fermata.log(&last)?), losses(&printed));
    ensure!(found == expected, "seed {seed:#x}: losses {found:?}");
    scene.close()
}

#[test]
fn eight_ranks_over_gloo_come_back_from_checkpoints() -> Result<()> {
    let scene = Scene::new()?;
    let variables = variables(&scene)?;
    let program = root()?.join("programs/gloo.py");
    let program = program.to_str().context("path")?;
    let words = [program, "--ranks", "8", "--steps", "12"];

    let straight = Output::parse(&without_fermata(&words, &variables)?)?;

    let variables = [variables, scene.hold(4)?.into()].concat();
    let fermata = scene.fermata();
    let python = Path::new("python3");
    fermata.run_with(&variables, "run-0", Device::Soft, python, &words)?;
    for (at, mode) in [(3, Mode::Cow), (6, Mode::Snapshot)] {
        let [name, next] = [at, at + 3].map(|step| format!("run-{}", step - 3));
        scene.wait_steps(&name, at)?;
        let processes = fermata.session(&name)?.processes.len();
        ensure!(processes == 8, "{processes} ranks");
        let image = format!("image-{at}");
        fermata.checkpoint(&name, &image, mode)?;
        fermata.kill(&name)?;
        match mode {
            Mode::Cow => scene.let_go_to(8)?,
            _ => scene.let_go()?,
        }
        // A port of theirs may be another test's for a moment.
        wait_until("it is restored", || {
            let restored = scene.try_restore(&image, &next)?;
            if restored.stderr.contains("Address already in use") {
                std::thread::sleep(Duration::from_secs(1));
                return Ok(false);
            }
            restored.success("fermata restore").map(|_| true)
        })?;
    }
    scene.check_ends_as("run-6", &straight)?;
    scene.close()
}

/// The callback of a trainer has an image made, which, restored after a kill, ends as a run without interruption.
fn trains(trainer: &str) -> Result<()> {
    let scene = Scene::new()?;
    let mut variables = variables(&scene)?;
    let more = root()?.join(".deps/trainers");
    ensure!(
        more.join(".complete").exists(),
        "no trainers; run `sh tools/setup.sh trainers`"
    );
    // Not beside the SDK's sources.
    let written = variables
        .iter_mut()
        .find(|it| it.0 == "PYTHONDONTWRITEBYTECODE");
    written.context("a variable")?.1 = "1".to_owned();
    let package = python_package()?;
    let (_, paths) = variables
        .iter_mut()
        .find(|it| it.0 == "PYTHONPATH")
        .context("paths")?;
    let folders = [Path::new(paths), &more, Path::new(&package)];
    *paths = std::env::join_paths(folders)?
        .into_string()
        .ok()
        .context("paths")?;
    let program = root()?.join("programs/trainers.py");
    let program = program.to_str().context("path")?;
    let words = [program, trainer];

    let straight = Output::parse(&without_fermata(&words, &variables)?)?;

    // The first image is asked for after step 6.
    let variables = [variables, scene.hold(8)?.into()].concat();
    let fermata = scene.fermata();
    let python = Path::new("python3");
    fermata.run_with(&variables, "train", Device::Soft, python, &words)?;
    scene.wait_steps("train", 8)?;
    let image = fermata.image("train-1");
    wait_until("an image", || {
        let state = fermata.session("train")?.state;
        ensure!(state != "exited", "it has ended: {}", fermata.log("train")?);
        Ok(image.exists())
    })?;
    fermata.kill("train")?;
    scene.let_go()?;
    scene
        .try_restore("train-1", "again")?
        .success("fermata restore")?;
    scene.check_ends_as("again", &straight)?;
    scene.close()
}

#[test]
fn lightnings_trainer_takes_images_and_comes_back() -> Result<()> {
    trains("lightning")
}

#[test]
fn the_trainer_of_transformers_takes_images_and_comes_back() -> Result<()> {
    trains("transformers")
}

fn compiled(scene: &Scene, compiler: &mut Command, to: &str) -> Result<PathBuf> {
    let to = scene.sandbox().work().join(to);
    compiler.arg("-o").arg(&to);
    let compiler = std::mem::replace(compiler, Command::new("true"));
    command::run(compiler, COMPILE_LIMIT)?.success("the compiler")?;
    Ok(to)
}

fn nvcc() -> Result<Command> {
    let mut nvcc = Command::new(root()?.join(".deps/cuda/bin/nvcc"));
    nvcc.args(["-std=c++17", "-Wno-deprecated-gpu-targets", "-L"])
        .arg(root()?.join(".deps/cuda/lib"));
    Ok(nvcc)
}

fn alone(scene: &Scene, program: &Path, library: &str) -> Result<Finished> {
    let mut run = Command::new(program);
    run.env("LD_LIBRARY_PATH", library);
    run.current_dir(scene.sandbox().work());
    command::run(run, RUN_LIMIT)
}

fn under_fermata(scene: &Scene, program: &Path, library: &str) -> Result<Finished> {
    let program = program.to_str().context("path")?;
    let words = ["--quiet", "run", "--device", "soft", "--", program];
    scene
        .fermata()
        .call_with(&words, &[("LD_LIBRARY_PATH", library)])
}

#[test]
fn products_are_those_of_loops_on_the_host() -> Result<()> {
    let scene = Scene::new()?;
    let source = root()?.join("tests/runtime/blas.cpp");
    let program = compiled(&scene, nvcc()?.arg(source).arg("-ldl"), "blas")?;
    let library = scene.tree().library_path(Device::Soft);
    let done = [
        alone(&scene, &program, &library)?,
        under_fermata(&scene, &program, &library)?,
    ];
    for done in done {
        let done = done.success("blas")?;
        let right = done.stdout.lines().filter(|line| line.starts_with("ok "));
        // 6 types, 4 pairs of operations, 3 functions; and 18 others.
        ensure!(right.count() == 6 * 4 * 3 + 18, "{}", done.stdout);
    }
    scene.close()
}

#[test]
fn a_gpu_is_refused_by_the_software_gpus_library() -> Result<()> {
    let scene = Scene::new()?;
    let source = root()?.join("tests/runtime/blas.cpp");
    let program = compiled(&scene, nvcc()?.arg(source).arg("-ldl"), "blas")?;
    let driver = root()?.join("tests/runtime/gpu.c");
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]);
    compiled(&scene, gcc.arg(driver), "libcuda.so.1")?;
    let work = scene.sandbox().work();
    let library = format!(
        "{}:{}",
        work.display(),
        scene.tree().library_path(Device::Soft)
    );
    let done = alone(&scene, &program, &library)?;
    ensure!(done.status == 2 && done.stdout == "created 1\n", "{done:?}");
    scene.close()
}

#[test]
fn a_part_without_ptx_hinders_no_other_part_of_a_program() -> Result<()> {
    let scene = Scene::new()?;
    let source = root()?.join("tests/runtime/parts.cu");
    let mut part = nvcc()?;
    part.args(["-DPART", "-c", "-gencode", "arch=compute_75,code=sm_75"]);
    let part = compiled(&scene, part.arg(&source), "part.o")?;
    let mut whole = nvcc()?;
    whole.arg("-arch=compute_75").arg(&source);
    let program = compiled(&scene, whole.arg(part), "parts")?;
    let library = scene.tree().library_path(Device::Soft);
    let wanted = [
        "own 0",
        "other 209",
        "own 0",
        "other 209",
        "copy 0",
        "told 2",
    ];
    for done in [
        alone(&scene, &program, &library)?,
        under_fermata(&scene, &program, &library)?,
    ] {
        // The worker's words on what it cannot load come between.
        let told = done.stdout.lines().filter(|it| !it.starts_with("soft"));
        ensure!(told.eq(wanted), "{done:?}");
    }
    scene.close()
}
