//! Jobs of four processes over MPICH and over Open MPI, with one libfermata. A rank is killed with signal 9,
//! nodes' folders are removed or their files cut, and the job is started again: the result is the undisturbed
//! one. Needs `tools/setup.sh mpi`.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/mpi.rs"]
mod launch;
#[allow(dead_code)]
#[path = "../../../crates/object/tests/common/server.rs"]
mod server;

use std::process::Command;

use common::{root, run, tree};
use launch::{ARCH, Job, Mpi, sum};
use server::Server;

const RANKS: u32 = 4;

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

fn survives(mpi: &Mpi) {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("ranks");
    mpi.compile(&program);
    let mut job = Job {
        mpi,
        dir: dir.path(),
        program,
        driver: None,
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
    let (fine, text, errors) = job.start(RANKS, &["1", "0", "0", "never", "single"]);
    assert!(fine, "{text}{errors}");
    let want = sum(&text);
    for blow in BLOWS {
        job.driver = blow.threads.then(|| tree().join("libcuda.so.1"));
        write(blow.threads);
        let threads = if blow.threads { "multiple" } else { "single" };
        let (stop, victim) = (blow.stop.to_string(), blow.victim.to_string());
        let (fine, text, _) = job.start(RANKS, &[blow.level, &stop, &victim, blow.moment, threads]);
        assert!(!fine, "it was to be killed: {text}");
        for rank in blow.lost {
            std::fs::remove_dir_all(job.node(*rank)).unwrap();
        }
        blow.cut.iter().for_each(|rank| job.cut(*rank));
        if blow.level == "1" {
            another_number_of_ranks_is_refused(&job);
        }
        let (fine, text, errors) = job.start(RANKS, &[blow.level, "0", "0", "never", threads]);
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
        let (fine, _, errors) = job.start(ranks, &["1", "0", "0", "never", "single"]);
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
    let (script, draft) = (dir.path().join("rank"), dir.path().join("rank.draft"));
    let text = format!(
        "#!/bin/sh\nPYTHONDONTWRITEBYTECODE=1 PYTHONPATH={}:{} FERMATA_LIBRARY={} exec python3 {program} \"$@\"\n",
        here.join("python").display(),
        mpi.prefix.join("../mpi4py").display(),
        tree().join("libfermata.so.0").display(),
    );
    std::fs::write(&draft, text).unwrap();
    // What another test's process still has open cannot be executed: this one never has the script open.
    run(Command::new("install")
        .args(["-m", "755"])
        .args([&draft, &script]));
    let done = mpi.start(&script, 3, &[&dir.path().display().to_string(), "mpi"], &[]);
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
