//! Checks that an image is as it was written, before a program runs from it.
//!
//! | file | checked |
//! | --- | --- |
//! | `state`, `chunks` | by the worker, as it reads them; here if no worker does |
//! | `log`; before version 5 `host/pages-*` | while the program is restored, if it comes back parked; else before. One that is [known](Known) is not read again |
//! | all others | before CRIU, or the daemon, reads them |
//!
//! Processes that use CUDA come back parked, but others of their session run at once: if there are some, everything is
//! checked before. A restored program waits for this, so large files are hashed by several threads: BLAKE3
//! is a tree, whose left half is the largest power of two that is less than the whole.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root,
};
use fermata_control::worker::FailureKind;
use fermata_store::image::{CHUNKS, FileRecord, Image, PROCESS_FILES, STATE};
use fermata_store::{FileVersion, StoreError, open_regular};
use parking_lot::Mutex;

use crate::failure::{Hint, OrFail, Result, fail, from_store};
use crate::images::known::{Known, now};
use crate::images::record::{LOG, Place, Record};
use crate::parallel::cores;

/// Bytes of a part that one thread hashes: a power of two of at least 1 KiB.
const PART: u64 = 4 << 20;
/// The most threads.
const THREADS: usize = 8;

/// How names of files with memory of processes begin, and of those that describe it: each process has one.
const PAGES: &str = "host/pages-";
const MEMORY: &str = "host/mm-";

/// Files that are still to be checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Late(Vec<FileRecord>);

/// Checks that the image has exactly the files that a restore of such a program needs, and hashes those that have to be
/// checked before a process is made. [`Late::check`] and the worker check the others.
///
/// # Errors
/// `Damaged`, naming the first file that is not as it was written.
pub fn check_first(image: &Image, record: &Record) -> Result<Late> {
    let places = record.places();
    let files_of = |it: &Place| [STATE, CHUNKS].map(|name| it.file(name));
    let device: Vec<String> = places.iter().flat_map(files_of).collect();
    let needed = PROCESS_FILES
        .into_iter()
        .chain(device.iter().map(String::as_str));
    needed
        .into_iter()
        .try_for_each(|path| image.check_has(path))
        .and_then(|()| image.check_listed())
        .map_err(|e| from_store(&e))?;
    let files = &image.manifest().files;
    let processes = files.iter().filter(|it| it.path.starts_with(MEMORY));
    let parked = processes.count() <= places.len() && !places.is_empty();
    let mut late = Vec::new();
    for file in files.iter().filter(|it| !device.contains(&it.path)) {
        match file.path.starts_with(PAGES) || file.path == LOG {
            true if parked => late.push(file.clone()),
            _ => check(image, file)?,
        }
    }
    Ok(Late(late))
}

impl Late {
    /// Hashes the files that are not in `known`, and adds them to it.
    ///
    /// # Errors
    /// As [`check_first`].
    pub fn check(&self, image: &Image, known: &Known) -> Result<()> {
        let mut files = self.0.iter();
        files.try_for_each(|file| check_unless(image, file, Some(known)))
    }
}

fn check(image: &Image, record: &FileRecord) -> Result<()> {
    check_unless(image, record, None)
}

fn check_unless(image: &Image, record: &FileRecord, known: Option<&Known>) -> Result<()> {
    let path = image.dir().join(&record.path);
    let damaged = |what: &str| {
        let message = format!("`{}` is damaged: {what}", path.display());
        Err(fail(FailureKind::Damaged, message)
            .hint("`fermata images verify` names everything that is damaged"))
    };
    let file = match open_regular(&path) {
        // It was there when the image was opened.
        Err(StoreError::Io { source, .. }) => return damaged(&source.to_string()),
        other => other.map_err(|e| from_store(&e))?,
    };
    let unread = || format!("cannot read `{}`", path.display());
    let asked = now();
    let before = FileVersion::of(&file).or_fail(FailureKind::Damaged, unread)?;
    if known.is_some_and(|it| it.has(&before, &record.blake3)) {
        return Ok(());
    }
    let hash = hash(&file, PART).or_fail(FailureKind::Damaged, unread)?;
    if hash != record.blake3 {
        return damaged("its hash is not the one in the manifest");
    }
    let after = FileVersion::of(&file).or_fail(FailureKind::Damaged, unread)?;
    if let Some(known) = known.filter(|_| before == after) {
        known.add(before, &record.blake3, asked);
    }
    Ok(())
}

/// The BLAKE3 of a file, in hexadecimal, from parts of `part` bytes.
fn hash(file: &File, part: u64) -> io::Result<String> {
    let length = file.metadata()?.len();
    if length <= part {
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, 0)?;
        return Ok(blake3::hash(&bytes).to_hex().to_string());
    }
    let count = usize::try_from(length.div_ceil(part)).map_err(io::Error::other)?;
    let cores = cores();
    let (next, parts) = (AtomicUsize::new(0), Mutex::new(vec![[0; 32]; count]));
    let work = || -> io::Result<()> {
        let mut bytes = vec![0; part as usize];
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let from = number as u64 * part;
            if from >= length {
                return Ok(());
            }
            let bytes = &mut bytes[..(length - from).min(part) as usize];
            file.read_exact_at(bytes, from)?;
            let mut hasher = blake3::Hasher::new();
            let value = hasher.set_input_offset(from).update(bytes);
            parts.lock()[number] = value.finalize_non_root();
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores.clamp(1, THREADS))
            .map(|_| std::thread::Builder::new().spawn_scoped(scope, work))
            .collect();
        let crashed = || Err(io::Error::other("a thread has failed"));
        threads.into_iter().try_for_each(|it| match it {
            Ok(thread) => thread.join().unwrap_or_else(|_| crashed()),
            // One thread then hashes the whole file.
            Err(_) => work(),
        })
    })?;
    let parts = parts.into_inner();
    let (left, right) = parts.split_at(left_of(count));
    let root = merge_subtrees_root(&merged(left), &merged(right), Mode::Hash);
    Ok(root.to_hex().to_string())
}

/// How many of `count` parts are in the left half of their tree.
fn left_of(count: usize) -> usize {
    count.next_power_of_two() / 2
}

fn merged(parts: &[ChainingValue]) -> ChainingValue {
    match parts {
        [one] => *one,
        _ => {
            let (left, right) = parts.split_at(left_of(parts.len()));
            merge_subtrees_non_root(&merged(left), &merged(right), Mode::Hash)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_give_the_hash_of_the_whole() {
        let folder = std::env::temp_dir().join(format!("fermata-hash-{}", std::process::id()));
        for length in [0, 1, 1024, 1025, 4096, 4097, 5000, 16384, 17000, 100_000] {
            let bytes: Vec<u8> = (0..length).map(|n: u32| (n * 7 + n / 251) as u8).collect();
            std::fs::write(&folder, &bytes).expect("written");
            let expected = blake3::hash(&bytes).to_hex().to_string();
            for part in [1024, 4096, 1 << 20] {
                let file = File::open(&folder).expect("opened");
                let found = hash(&file, part).expect("hashed");
                assert_eq!(found, expected, "{length} bytes by {part}");
            }
        }
        std::fs::remove_file(&folder).expect("removed");
    }
}
