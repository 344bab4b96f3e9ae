//! Jobs of four processes over MPICH and over Open MPI, with one libfermata. A rank is killed with signal 9,
//! its node's folder is removed, and the job is started again: the result is the undisturbed one.
//!
//! Needs `tools/setup.sh mpi`; run with `cargo test -p fermata-c --test mpi -- --ignored`.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{root, run, tree};

const RANKS: u32 = 4;

/// An MPI in a private folder.
struct Mpi {
    prefix: PathBuf,
    include: &'static str,
    launcher: &'static str,
    library: &'static str,
    folders: &'static [&'static str],
    options: &'static [&'static str],
}

const ARCH: &str = "usr/lib/x86_64-linux-gnu";

impl Mpi {
    fn mpich() -> Self {
        Self::at(
            "mpich",
            Self {
                prefix: PathBuf::new(),
                include: "usr/include/x86_64-linux-gnu/mpich",
                launcher: "usr/bin/mpiexec.hydra",
                library: "-lmpich",
                folders: &[ARCH, "lib/x86_64-linux-gnu"],
                options: &[],
            },
        )
    }

    fn open_mpi() -> Self {
        Self::at(
            "openmpi",
            Self {
                prefix: PathBuf::new(),
                include: "usr/lib/x86_64-linux-gnu/openmpi/include",
                launcher: "usr/bin/orterun",
                library: "-lmpi",
                folders: &[
                    "usr/lib/x86_64-linux-gnu/openmpi/lib",
                    ARCH,
                    "lib/x86_64-linux-gnu",
                ],
                options: &["--oversubscribe"],
            },
        )
    }

    fn at(name: &str, mut mpi: Self) -> Self {
        mpi.prefix = root().join(".deps/mpi").join(name);
        let there = mpi.prefix.join("done").exists();
        assert!(there, "no {name} in .deps/mpi: run `tools/setup.sh mpi`");
        mpi
    }

    fn compile(&self, out: &Path) {
        let here = root().join("bindings/c");
        let mut compiler = Command::new("gcc");
        compiler
            .arg(format!("-I{}", here.join("include").display()))
            .arg(format!("-I{}", self.prefix.join(self.include).display()))
            .arg("-o")
            .arg(out)
            .arg(here.join("tests/ranks.c"))
            .arg(format!("-L{}", tree().display()));
        for folder in self.folders {
            compiler.arg(format!("-L{}", self.prefix.join(folder).display()));
        }
        run(compiler.args([self.library, "-lfermata", "-Wl,--allow-shlib-undefined"]));
    }

    fn start(&self, program: &Path, args: &[&str]) -> Output {
        let prefix = |folder: &str| self.prefix.join(folder);
        let mut path: Vec<_> = self.folders.iter().map(|f| prefix(f)).collect();
        path.push(tree().into());
        Command::new("timeout")
            .args(["-s", "KILL", "120"])
            .arg(prefix(self.launcher))
            .args(self.options)
            .args(["-n", &RANKS.to_string()])
            .arg(program)
            .args(args)
            .env("LD_LIBRARY_PATH", std::env::join_paths(path).unwrap())
            // Open MPI looks for its parts where it was built to be.
            .env("OPAL_PREFIX", prefix("usr"))
            .env("OPAL_LIBDIR", prefix(ARCH))
            .env("OPAL_PKGLIBDIR", prefix(ARCH).join("openmpi/lib/openmpi3"))
            .env("OPAL_DATADIR", prefix("usr/share"))
            .envs([
                ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
                ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ])
            .envs([("OMPI_MCA_btl", "self,tcp"), ("OMPI_MCA_pml", "ob1")])
            .output()
            .unwrap()
    }
}

fn survives(mpi: &Mpi) {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("ranks");
    mpi.compile(&program);
    let node = |rank: u32| dir.path().join(format!("node-{rank}"));
    let folders: Vec<_> = (0..RANKS).map(|r| format!("{:?}", node(r))).collect();
    let shared = dir.path().join("shared");
    let config = dir.path().join("job.toml");
    let text = format!(
        "block_bytes = 16384\nbackground = false\n[local]\nfolders = [{}]\n[shared]\nfolder = {shared:?}\n",
        folders.join(", ")
    );
    std::fs::write(&config, text).unwrap();
    let start = |args: [&str; 4]| {
        let args = [config.to_str().unwrap(), args[0], args[1], args[2], args[3]];
        let done = mpi.start(&program, &args);
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        (
            done.status.success(),
            text,
            String::from_utf8_lossy(&done.stderr).into_owned(),
        )
    };
    let sum = |text: &str| {
        let line = text.lines().find(|l| l.starts_with("sum "));
        line.unwrap_or_else(|| panic!("no sum in:\n{text}"))
            .to_owned()
    };
    let (fine, text, errors) = start(["1", "0", "0", "0"]);
    assert!(fine, "{text}{errors}");
    let want = sum(&text);
    // Level, step, who is killed and when, whether it loses its folder, the step it must come back to at
    // least: only level 2 makes ranks wait for each other, elsewhere one can be a checkpoint behind.
    for (level, step, victim, early, lost, back) in [
        ("1", "17", 3, "0", false, 10),
        ("2", "17", 1, "0", true, 15),
        ("2", "20", 2, "1", true, 15),
        ("4", "33", 0, "0", true, 25),
    ] {
        let (fine, text, _) = start([level, step, &victim.to_string(), early]);
        assert!(!fine, "it was to be killed: {text}");
        if lost {
            std::fs::remove_dir_all(node(victim)).unwrap();
        }
        let (fine, text, errors) = start([level, "0", "0", "0"]);
        assert!(fine, "{text}{errors}");
        assert_eq!(sum(&text), want);
        let resumed: Vec<_> = text.lines().filter(|l| l.contains("resumed at")).collect();
        assert_eq!(resumed.len(), RANKS as usize, "{text}");
        for line in resumed {
            let at = line
                .split("resumed at ")
                .nth(1)
                .unwrap()
                .split(' ')
                .next()
                .unwrap();
            let at: u32 = at.parse().unwrap();
            assert_eq!(at % 5, 0, "{line}");
            assert!(at >= back && at <= step.parse().unwrap(), "{line}");
        }
    }
}

#[test]
#[ignore = "needs `tools/setup.sh mpi`"]
fn four_ranks_over_mpich() {
    survives(&Mpi::mpich());
}

#[test]
#[ignore = "needs `tools/setup.sh mpi`"]
fn four_ranks_over_open_mpi() {
    survives(&Mpi::open_mpi());
}
