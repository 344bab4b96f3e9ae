//! What the store writes and reads beside what the disk does: one JSON line with bytes per second
//! and ratios. `cargo bench -p fermata-store -- FOLDER [MIB]`; all in one run, for ratios are what
//! counts.
#![allow(clippy::unwrap_used, reason = "a bench may panic")]

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use fermata_store::{AlignedBuf, ChunkId, Store};

const CHUNK: usize = 4 << 20;
const O_DIRECT: i32 = 0o40000;
const THREADS: usize = 4;

fn main() {
    let mut args = std::env::args().skip(1).filter(|a| !a.starts_with("--"));
    let folder = args.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let count = args.next().map_or(512, |m| m.parse::<usize>().unwrap()) / 4;
    let dir = tempfile::tempdir_in(folder).unwrap();
    let chunks: Vec<AlignedBuf> = (0..count as u64)
        .map(|n| {
            let mut buffer = AlignedBuf::new(CHUNK);
            blake3::Hasher::new()
                .update(&n.to_le_bytes())
                .finalize_xof()
                .fill(&mut buffer);
            buffer
        })
        .collect();
    let ids: Vec<ChunkId> = chunks.iter().map(|c| ChunkId::of(c)).collect();
    let bytes = (count * CHUNK) as f64;
    let raw_write = bytes / raw(&dir.path().join("raw"), &chunks);

    let store = Store::open(&dir.path().join("store"), true).unwrap();
    let put = bytes
        / timed(|| {
            let writer = store.begin().unwrap();
            each(count, |n| {
                writer.put(&ids[n], &chunks[n]).unwrap();
            });
            writer.finish().unwrap();
        });
    let again = bytes
        / timed(|| {
            let writer = store.begin().unwrap();
            each(count, |n| {
                assert!(!writer.put(&ids[n], &chunks[n]).unwrap().new)
            });
        });
    let reader = store.reader().unwrap();
    let read = |verified: bool| {
        bytes
            / timed(|| {
                each(count, |n| {
                    let mut buffer = AlignedBuf::new(CHUNK);
                    if verified {
                        reader.read_verified(&ids[n], &mut buffer).unwrap();
                    } else {
                        reader.read(&ids[n], &mut buffer).unwrap();
                    }
                });
            })
    };
    let (plain, verified) = (read(false), read(true));
    println!(
        "{{\"schema_version\":1,\"bytes\":{bytes},\"raw_write\":{raw_write:.0},\"put\":{put:.0},\
         \"put_to_raw\":{:.3},\"put_known\":{again:.0},\"read\":{plain:.0},\"read_verified\":{verified:.0}}}",
        put / raw_write
    );
}

/// Seconds to write all chunks to a file past the page cache and to sync it.
fn raw(path: &Path, chunks: &[AlignedBuf]) -> f64 {
    timed(|| {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        let direct = options.clone().custom_flags(O_DIRECT).open(path);
        let file = direct.or_else(|_| options.open(path)).unwrap();
        each(chunks.len(), |n| {
            file.write_all_at(&chunks[n], (n * CHUNK) as u64).unwrap()
        });
        file.sync_all().unwrap();
    })
}

fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// Calls `work` with 0 to `count` from several threads.
fn each(count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    match next.fetch_add(1, Ordering::Relaxed) {
                        n if n < count => work(n),
                        _ => return,
                    }
                }
            });
        }
    });
}
