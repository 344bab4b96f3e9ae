//! What the tests share: the library under test, compilers, the software GPU.
#![allow(dead_code, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Numbers that are the same in every run.
pub struct Random(pub u64);

impl Random {
    /// One below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// The folder in which cargo has put what it built for this test.
fn built() -> PathBuf {
    std::env::current_exe()
        .unwrap()
        .parent()
        .unwrap()
        .to_owned()
}

/// What was built last: `cargo build` and `cargo test` put it into different folders.
fn find(name: &str) -> PathBuf {
    let deps = built();
    let built = |path: &PathBuf| path.metadata().and_then(|m| m.modified()).ok();
    [deps.parent().unwrap().join(name), deps.join(name)]
        .into_iter()
        .filter(|path| built(path).is_some())
        .max_by_key(built)
        .unwrap_or_else(|| panic!("`{name}` has not been built"))
}

/// A folder with the libraries that `make build` lays out: libfermata and softgpu.
pub fn tree() -> &'static Path {
    static TREE: OnceLock<tempfile::TempDir> = OnceLock::new();
    let tree = TREE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let lib = dir.path();
        std::fs::copy(find("libfermata.so"), lib.join("libfermata.so.0")).unwrap();
        std::os::unix::fs::symlink("libfermata.so.0", lib.join("libfermata.so")).unwrap();
        std::fs::copy(find("libfermata_softgpu.so"), lib.join("libcuda.so.1")).unwrap();
        dir
    });
    tree.path()
}

/// The CUDA compiler: `$FERMATA_NVCC`, else the one that `make deps` installs.
pub fn nvcc() -> PathBuf {
    let path = match std::env::var_os("FERMATA_NVCC") {
        Some(path) => path.into(),
        None => root().join(".deps/cuda/bin/nvcc"),
    };
    assert!(
        path.exists(),
        "no nvcc at {}: set FERMATA_NVCC, or run `make deps`",
        path.display()
    );
    path
}

/// Compiles a CUDA program against the tree.
pub fn cuda_program(source: &Path, out: &Path) {
    let cuda = root().join(".deps/cuda");
    run(Command::new(nvcc())
        .args([
            "-O2",
            "-std=c++17",
            "--fmad=false",
            "-Wno-deprecated-gpu-targets",
        ])
        .args(["-gencode", "arch=compute_75,code=compute_75"])
        .arg(format!("-I{}", root().join("bindings/c/include").display()))
        .arg(format!("-L{}", cuda.join("lib").display()))
        .arg(format!("-L{}", tree().display()))
        .arg("-lfermata")
        .arg("-o")
        .arg(out)
        .arg(source));
}

/// Runs a command to its end; it must succeed.
pub fn run(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr),
    );
    assert!(status.success(), "{command:?}: {status}\n{out}{err}");
    out.into_owned()
}

/// A command that finds the tree's libraries.
pub fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", tree());
    command
}

/// Starts a program and kills it with signal 9 once it has reported step `step` and `after` has passed.
/// Its output, and whether it ended by itself.
pub fn kill_at(command: &mut Command, step: u64, after: Duration) -> (String, bool) {
    use std::process::Stdio;
    let out = tempfile::NamedTempFile::new().unwrap();
    let mut child = command
        .stdout(out.reopen().unwrap())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(300);
    let output = || std::fs::read_to_string(out.path()).unwrap();
    let mut reached = None;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{command:?}: {status}");
            return (output(), true);
        }
        if reached.is_none() && last_step(&output()) >= step {
            reached = Some(Instant::now());
        }
        let over = Instant::now() >= deadline;
        if over || reached.is_some_and(|moment| moment.elapsed() >= after) {
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(!over, "{command:?} does not come to an end");
            return (output(), false);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the last process of `program` has gone.
pub fn wait_until_nobody_runs(program: &Path) {
    let runs = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut executables = processes.map(|it| it.path().join("exe").read_link());
        executables.any(|it| it.is_ok_and(|it| it == program))
    };
    let deadline = Instant::now() + Duration::from_secs(300);
    while runs() {
        assert!(Instant::now() < deadline, "{} runs on", program.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn last_step(output: &str) -> u64 {
    let steps = output.lines().rev().filter_map(|l| l.strip_prefix("step "));
    steps
        .filter_map(|l| l.split(' ').next()?.parse().ok())
        .next()
        .unwrap_or(0)
}
