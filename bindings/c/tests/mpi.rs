//! Jobs of four processes over MPICH and over Open MPI, with one libfermata. A rank is killed with signal 9,
//! nodes' folders are removed or their files cut, and the job is started again: the result is the undisturbed
//! one. Needs `tools/setup.sh mpi s3`.
#![allow(clippy::unwrap_used)]

mod common;
#[allow(dead_code)]
#[path = "../../../crates/app/tests/common/server.rs"]
mod server;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{root, run, tree, wait_until_nobody_runs};
use server::Server;

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
        mpi.prefix = root().join(".deps/mpi");
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

    fn start(&self, program: &Path, ranks: u32, args: &[&str]) -> Output {
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
            .output()
            .unwrap()
    }
}

/// What happens to a job: it runs at a level until its step `stop`, in which a rank is killed.
struct Blow {
    level: &'static str,
    /// Whether message passing works on several threads.
    threads: bool,
    stop: u32,
    victim: u32,
    moment: &'static str,
    /// Nodes whose folders are removed.
    lost: &'static [u32],
    /// Nodes whose packs are cut.
    cut: &'static [u32],
    /// The step it must come back to at least: levels at which ranks do not wait for each other can be a
    /// checkpoint behind, and so can those behind the program.
    back: u32,
}

const fn blow(level: &'static str, stop: u32, victim: u32, back: u32) -> Blow {
    Blow {
        level,
        threads: false,
        stop,
        victim,
        moment: "after",
        lost: &[],
        cut: &[],
        back,
    }
}

const BLOWS: &[Blow] = &[
    blow("1", 17, 3, 10),
    Blow {
        lost: &[1],
        ..blow("2", 17, 1, 15)
    },
    Blow {
        moment: "before",
        lost: &[2],
        ..blow("2", 20, 2, 15)
    },
    Blow {
        threads: true,
        moment: "within",
        cut: &[3],
        ..blow("2", 20, 0, 10)
    },
    Blow {
        lost: &[0, 1],
        ..blow("3", 18, 1, 15)
    },
    Blow {
        threads: true,
        lost: &[2],
        cut: &[3],
        ..blow("3", 23, 3, 15)
    },
    Blow {
        moment: "within",
        lost: &[0, 2],
        ..blow("3", 25, 2, 20)
    },
    Blow {
        lost: &[0, 1, 2, 3],
        ..blow("4", 33, 0, 25)
    },
    Blow {
        threads: true,
        lost: &[0, 1, 2, 3],
        ..blow("4", 33, 2, 25)
    },
    Blow {
        lost: &[0, 1, 2, 3],
        ..blow("5", 27, 1, 20)
    },
    Blow {
        threads: true,
        moment: "within",
        lost: &[1],
        cut: &[2],
        ..blow("5", 20, 3, 10)
    },
];

struct Job<'a> {
    mpi: &'a Mpi,
    dir: &'a Path,
    program: PathBuf,
}

impl Job<'_> {
    fn node(&self, rank: u32) -> PathBuf {
        self.dir.join(format!("node-{rank}"))
    }

    fn start(&self, ranks: u32, args: [&str; 5]) -> (bool, String, String) {
        let config = self.dir.join("job.toml");
        let said = self.dir.join("job.toml.said");
        let _ = std::fs::remove_file(&said);
        let mut all = vec![config.to_str().unwrap()];
        all.extend(args);
        let done = self.mpi.start(&self.program, ranks, &all);
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

    fn cut(&self, rank: u32) {
        for pack in std::fs::read_dir(self.node(rank).join("job/store/packs")).unwrap() {
            let path = pack.unwrap().path();
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        }
    }
}

fn sum(text: &str) -> String {
    let line = text.lines().find(|l| l.starts_with("sum "));
    line.unwrap_or_else(|| panic!("no sum in:\n{text}"))
        .to_owned()
}

fn survives(mpi: &Mpi) {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("ranks");
    mpi.compile(&program);
    let job = Job {
        mpi,
        dir: dir.path(),
        program,
    };
    let folders: Vec<_> = (0..RANKS).map(|r| format!("{:?}", job.node(r))).collect();
    let shared = dir.path().join("shared");
    let server = Server::start(&dir.path().join("s3"));
    let objects = server.config();
    let (key, secret) = objects.keys.unwrap();
    let bucket = format!(
        "[object]\nbucket = {:?}\nendpoint = {:?}\naccess_key = {key:?}\nsecret_key = {:?}\n",
        objects.bucket,
        objects.endpoint.unwrap(),
        secret.0
    );
    let write = |background: bool| {
        let text = format!(
            "block_bytes = 16384\nbackground = {background}\n[local]\nfolders = [{}]\n\
             [erasure]\ngroup = 4\nlosses = 2\n[shared]\nfolder = {shared:?}\n{bucket}",
            folders.join(", ")
        );
        std::fs::write(dir.path().join("job.toml"), text).unwrap();
    };
    write(false);
    let (fine, text, errors) = job.start(RANKS, ["1", "0", "0", "never", "single"]);
    assert!(fine, "{text}{errors}");
    let want = sum(&text);
    for blow in BLOWS {
        write(blow.threads);
        let threads = if blow.threads { "multiple" } else { "single" };
        let (stop, victim) = (blow.stop.to_string(), blow.victim.to_string());
        let (fine, text, _) = job.start(RANKS, [blow.level, &stop, &victim, blow.moment, threads]);
        assert!(!fine, "it was to be killed: {text}");
        for rank in blow.lost {
            std::fs::remove_dir_all(job.node(*rank)).unwrap();
        }
        blow.cut.iter().for_each(|rank| job.cut(*rank));
        if blow.level == "1" {
            another_number_of_ranks_is_refused(&job);
        }
        let (fine, text, errors) = job.start(RANKS, [blow.level, "0", "0", "never", threads]);
        assert!(fine, "{text}{errors}");
        assert_eq!(sum(&text), want);
        let resumed: Vec<_> = text.lines().filter(|l| l.contains("resumed at")).collect();
        assert_eq!(resumed.len(), RANKS as usize, "{text}");
        for line in resumed {
            let (_, at) = line.split_once("resumed at ").unwrap();
            let at: u32 = at.split(' ').next().unwrap().parse().unwrap();
            assert_eq!(at % 5, 0, "{line}");
            assert!(
                at >= blow.back && at <= blow.stop,
                "level {}: {line}",
                blow.level
            );
        }
    }
}

/// More ranks than before, and fewer; nothing is lost by it.
fn another_number_of_ranks_is_refused(job: &Job<'_>) {
    for ranks in [RANKS - 1, RANKS + 1] {
        let (fine, _, errors) = job.start(ranks, ["1", "0", "0", "never", "single"]);
        assert!(!fine);
        // Whichever rank said it first has ended the job.
        let said = (0..ranks).any(|r| errors.contains(&format!("this is rank {r} of {ranks}")));
        assert!(
            said && errors.contains(&format!("of {RANKS}, ")),
            "{errors}"
        );
    }
}

#[test]
fn ranks_in_python_over_mpich() {
    let dir = tempfile::tempdir().unwrap();
    let mut mpi = Mpi::mpich();
    mpi.folders = &["../mpi4py", ARCH, "lib/x86_64-linux-gnu"];
    let here = root().join("bindings");
    let program = here.join("c/tests/ranks.py").display().to_string();
    let script = dir.path().join("rank");
    let text = format!(
        "#!/bin/sh\nPYTHONDONTWRITEBYTECODE=1 PYTHONPATH={}:{} FERMATA_LIBRARY={} exec python3 {program} \"$@\"\n",
        here.join("python").display(),
        mpi.prefix.join("../mpi4py").display(),
        tree().join("libfermata.so.0").display(),
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let done = mpi.start(&script, 3, &[&dir.path().display().to_string(), "mpi"]);
    let errors = String::from_utf8_lossy(&done.stderr);
    // What ranks print is mixed on its way.
    let said = String::from_utf8_lossy(&done.stdout);
    assert_eq!(said.matches("fine").count(), 3, "{said}{errors}");
}

#[test]
fn four_ranks_over_mpich() {
    survives(&Mpi::mpich());
}

#[test]
fn four_ranks_over_open_mpi() {
    survives(&Mpi::open_mpi());
}
