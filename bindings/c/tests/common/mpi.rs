//! Jobs over the MPIs of `tools/setup.sh mpi`.
#![allow(dead_code, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{root, run, tree, wait_until_nobody_runs};

/// An MPI in a private folder.
pub struct Mpi {
    pub prefix: PathBuf,
    include: &'static str,
    launcher: &'static str,
    library: &'static str,
    pub folders: &'static [&'static str],
    options: &'static [&'static str],
}

/// Where the libraries of this Debian are.
pub const ARCH: &str = "usr/lib/x86_64-linux-gnu";

impl Mpi {
    pub fn mpich() -> Self {
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

    pub fn open_mpi() -> Self {
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
        mpi.prefix = root().join(".deps/mpi");
        let there = mpi.prefix.join("done").exists();
        assert!(there, "no {name} in .deps/mpi: run `tools/setup.sh mpi`");
        mpi
    }

    pub fn compile(&self, out: &Path) {
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
        run(compiler.args([
            self.library,
            "-lfermata",
            "-ldl",
            "-rdynamic",
            "-Wl,--allow-shlib-undefined",
        ]));
    }

    pub fn start(
        &self,
        program: &Path,
        ranks: u32,
        args: &[&str],
        settings: &[(&str, &Path)],
    ) -> Output {
        let prefix = |folder: &str| self.prefix.join(folder);
        let mut path: Vec<_> = self.folders.iter().map(|f| prefix(f)).collect();
        path.push(tree().into());
        Command::new("timeout")
            .args(["-s", "KILL", "600"])
            .arg(prefix(self.launcher))
            .args(self.options)
            .args(["-n", &ranks.to_string()])
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
            // How many seconds a job's other ranks have after one was killed.
            .env("OMPI_MCA_odls_base_sigkill_timeout", "0")
            // Both ask every PCI device of the machine, which takes a third of a small job's time.
            .env("HWLOC_SYNTHETIC", "pu:2")
            .envs(settings.iter().copied())
            .output()
            .unwrap()
    }
}

/// A job of `ranks.c` with its folders.
pub struct Job<'a> {
    pub mpi: &'a Mpi,
    pub dir: &'a Path,
    pub program: PathBuf,
    /// The library of the driver that its ranks use, if they use one.
    pub driver: Option<PathBuf>,
}

impl Job<'_> {
    /// The folder that stands for a rank's node.
    pub fn node(&self, rank: u32) -> PathBuf {
        self.dir.join(format!("node-{rank}"))
    }

    /// Whether it ended well, what it printed, and what it complained of.
    pub fn start(&self, ranks: u32, args: &[&str]) -> (bool, String, String) {
        let config = self.dir.join("job.toml");
        let said = self.dir.join("job.toml.said");
        let _ = std::fs::remove_file(&said);
        let mut all = vec![config.to_str().unwrap()];
        all.extend(args);
        let driver = self
            .driver
            .iter()
            .map(|path| ("RANKS_DRIVER", path.as_path()));
        let settings: Vec<_> = driver.collect();
        let done = self.mpi.start(&self.program, ranks, &all, &settings);
        // The others may outlive the launcher of a job that was killed, and write.
        wait_until_nobody_runs(&self.program);
        (
            done.status.success(),
            String::from_utf8_lossy(&done.stdout).into_owned(),
            // What the launcher may have lost is there.
            std::fs::read_to_string(&said).unwrap_or_default()
                + &String::from_utf8_lossy(&done.stderr),
        )
    }

    /// Cuts a node's packs in half.
    pub fn cut(&self, rank: u32) {
        for pack in std::fs::read_dir(self.node(rank).join("job/store/packs")).unwrap() {
            let path = pack.unwrap().path();
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        }
    }
}

/// The line with the result.
pub fn sum(text: &str) -> String {
    let line = text.lines().find(|l| l.starts_with("sum "));
    line.unwrap_or_else(|| panic!("no sum in:\n{text}"))
        .to_owned()
}
