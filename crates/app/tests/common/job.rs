//! A job of several ranks, each with a node folder of its own.

use std::path::Path;

use fermata_app::{Config, ElementType, Level, Session};

use super::ranks::Threads;
use super::{config, host, noise};

pub const BYTE: ElementType = ElementType(1);

/// Bytes of a rank's data; no two have as many.
pub fn bytes(rank: u32) -> usize {
    700_001 + 12_345 * rank as usize
}

pub fn data(rank: u32, step: u64) -> Vec<u8> {
    // Half is the same everywhere, as in replicas; a part changes with the step.
    let mut data = noise(bytes(rank), 7);
    data[..350_000].copy_from_slice(&noise(350_000, 100 + u64::from(rank)));
    data[..1000].copy_from_slice(&noise(1000, 10_000 * step + u64::from(rank)));
    data
}

pub fn node(dir: &Path, rank: u32) -> std::path::PathBuf {
    dir.join(format!("node-{rank}"))
}

pub fn start(
    dir: &Path,
    comm: Threads,
    change: &(dyn Fn(&mut Config) + Sync),
) -> fermata_app::Result<Session> {
    let rank = fermata_app::Comm::rank(&comm);
    let folder = node(dir, rank);
    let config = config(&folder, |c| {
        c.block_bytes = 16_384;
        c.node = Some(format!("node-{rank}"));
        change(c);
    });
    Session::init(config, Box::new(comm))
}

/// Makes a checkpoint of each of these steps and levels, on all ranks.
pub fn write(
    dir: &Path,
    ranks: u32,
    steps: &[(u64, Level)],
    change: &(dyn Fn(&mut Config) + Sync),
) {
    Threads::run(ranks, |comm| write_rank(dir, comm, steps, change));
}

/// The same, with message passing that works behind the program too.
pub fn write_behind(
    dir: &Path,
    ranks: u32,
    steps: &[(u64, Level)],
    change: &(dyn Fn(&mut Config) + Sync),
) {
    Threads::run_beside(ranks, |comm| write_rank(dir, comm, steps, change));
}

fn write_rank(
    dir: &Path,
    comm: Threads,
    steps: &[(u64, Level)],
    change: &(dyn Fn(&mut Config) + Sync),
) {
    let rank = fermata_app::Comm::rank(&comm);
    let mut s = start(dir, comm, change).unwrap();
    for (step, level) in steps {
        let mut data = data(rank, *step);
        s.protect(1, host(&mut data), BYTE).unwrap();
        s.checkpoint(*step as i64, *level).unwrap();
    }
    s.wait(std::time::Duration::from_secs(300)).unwrap();
}

/// Recovers on all ranks; the step, and the level at each rank.
pub fn read(dir: &Path, ranks: u32, change: &(dyn Fn(&mut Config) + Sync)) -> (i64, Vec<u8>) {
    let found = Threads::run(ranks, |comm| {
        let rank = fermata_app::Comm::rank(&comm);
        let mut s = start(dir, comm, change).unwrap();
        let mut back = vec![0u8; bytes(rank)];
        s.protect(1, host(&mut back), BYTE).unwrap();
        let step = s.recover().unwrap();
        assert!(back == data(rank, step as u64), "rank {rank}");
        (step, s.status().recovery.unwrap().level)
    });
    let step = found[0].0;
    assert!(found.iter().all(|f| f.0 == step), "{found:?}");
    (step, found.into_iter().map(|f| f.1).collect())
}
