//! Jobs of 2 to 8 processes over MPI, with device and managed memory, of which one kills itself with signal 9 between
//! any two of its acts: calls of message passing, and files and folders that are made, synced, renamed or removed, by
//! the program's thread or behind it, at the start, in checkpoints, in the recovery and at the end. Nodes' folders go
//! with it. Started again until it ends, the job has the result of an undisturbed one, and never goes back.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/mpi.rs"]
mod launch;
#[allow(dead_code)]
#[path = "../../../crates/object/tests/common/server.rs"]
mod server;

use common::{Random, tree};
use launch::{Job, Mpi, sum};
use server::Server;

/// A job that is killed, again and again.
struct Chain {
    ranks: u32,
    level: &'static str,
    /// Whether message passing works on several threads.
    threads: bool,
    victim: u32,
    /// Nodes whose folders go with it, each time.
    lost: &'static [u32],
    /// Whether there is a device.
    device: bool,
}

const fn chain(ranks: u32, level: &'static str, victim: u32, lost: &'static [u32]) -> Chain {
    Chain {
        ranks,
        level,
        threads: false,
        victim,
        lost,
        device: false,
    }
}

const ALL: &[u32] = &[0, 1, 2, 3, 4, 5, 6, 7];

/// Over MPICH: every level, and every number of ranks from 2 to 8.
const CHAINS: &[Chain] = &[
    Chain {
        device: true,
        ..chain(4, "1", 2, &[])
    },
    Chain {
        device: true,
        ..chain(2, "2", 1, &[1])
    },
    Chain {
        threads: true,
        ..chain(5, "2", 0, &[0])
    },
    Chain {
        device: true,
        ..chain(3, "3", 0, &[0, 2])
    },
    Chain {
        threads: true,
        ..chain(8, "3", 5, &[5, 6])
    },
    chain(6, "4", 4, ALL),
    Chain {
        threads: true,
        ..chain(7, "5", 3, ALL)
    },
];

/// Over Open MPI.
const FEWER: &[Chain] = &[
    Chain {
        threads: true,
        ..chain(3, "2", 2, &[2])
    },
    chain(5, "3", 1, &[1, 3]),
];

/// How often a job is killed; those of many ranks take long to start.
fn kills(ranks: u32) -> u32 {
    if ranks < 6 { 3 } else { 2 }
}

fn survives(mpi: &Mpi, chains: &[Chain]) {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("ranks");
    mpi.compile(&program);
    let server = Server::start(&dir.path().join("s3"));
    for (number, chain) in chains.iter().enumerate() {
        let dir = dir.path().join(format!("job-{number}"));
        std::fs::create_dir(&dir).unwrap();
        let job = Job {
            mpi,
            dir: &dir,
            program: program.clone(),
            driver: chain.device.then(|| tree().join("libcuda.so.1")),
        };
        configure(&job, chain, &server);
        killed_again_and_again(&job, chain, &format!("chain {number}"));
    }
}

fn configure(job: &Job<'_>, chain: &Chain, server: &Server) {
    let folders: Vec<_> = (0..chain.ranks)
        .map(|r| format!("{:?}", job.node(r)))
        .collect();
    let objects = server.config();
    let (key, secret) = objects.keys.unwrap();
    let text = format!(
        "name = {:?}\nblock_bytes = 16384\nbackground = {}\n[local]\nfolders = [{}]\n[erasure]\ngroup = 4\n\
         losses = 2\n[shared]\nfolder = {:?}\n[object]\nbucket = {:?}\nendpoint = {:?}\naccess_key = {key:?}\n\
         secret_key = {:?}\n",
        job.dir.file_name().unwrap(),
        chain.threads,
        folders.join(", "),
        job.dir.join("shared"),
        objects.bucket,
        objects.endpoint.unwrap(),
        secret.0
    );
    std::fs::write(job.dir.join("job.toml"), text).unwrap();
}

fn killed_again_and_again(job: &Job<'_>, chain: &Chain, name: &str) {
    let threads = if chain.threads { "multiple" } else { "single" };
    let victim = chain.victim.to_string();
    let start = |act: u64| {
        let act = act.to_string();
        job.start(chain.ranks, &[chain.level, &act, &victim, "act", threads])
    };
    let (fine, text, errors) = start(0);
    assert!(fine, "{name}: {text}{errors}");
    let want = sum(&text);
    let counted = format!("acts {victim} ");
    let acts = text.lines().find_map(|line| line.strip_prefix(&counted));
    let acts: u64 = acts.unwrap().parse().unwrap();
    assert!(acts > 100, "{name}: only {acts}");
    let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ u64::from(chain.ranks) << 32 | acts);
    let ended = job.dir.join("job.toml.ended");
    let (mut newest, mut last) = (0, 0);
    let kills = kills(chain.ranks);
    for kill in 0..=kills {
        let _ = std::fs::remove_file(&ended);
        // First anywhere in the first half, where all of it is still to be done.
        let act = match kill {
            0 => acts / 4 + random.below(acts / 4),
            _ if kill < kills => 1 + random.below(acts / 2),
            _ => 0,
        };
        let (fine, text, errors) = start(act);
        for line in text.lines().filter(|line| line.contains("resumed at")) {
            let (_, at) = line.split_once("resumed at ").unwrap();
            let at: u32 = at.split(' ').next().unwrap().parse().unwrap();
            assert!(
                at.is_multiple_of(5) && at >= newest,
                "{name}: {line} after {newest}"
            );
            last = at;
        }
        newest = last;
        if fine {
            // What was left to be done had fewer acts.
            assert!(kill > 0, "{name}: it ended before it was killed");
            assert_eq!(sum(&text), want, "{name}");
            return;
        }
        assert!(act > 0, "{name}: {text}{errors}");
        if ended.exists() {
            // Only its own end was disturbed: its checkpoints may be gone.
            (newest, last) = (0, 0);
        }
        for rank in chain.lost.iter().filter(|rank| **rank < chain.ranks) {
            let _ = std::fs::remove_dir_all(job.node(*rank));
        }
    }
    unreachable!("the last start ends or fails");
}

#[test]
fn over_mpich() {
    survives(&Mpi::mpich(), CHAINS);
}

#[test]
fn over_open_mpi() {
    survives(&Mpi::open_mpi(), FEWER);
}
