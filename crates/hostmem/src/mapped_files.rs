//! Which parts of the files that they have mapped processes use: code and constants of programs and libraries, which an image does not
//! have. A restored program finds them one page fault after the other; on a machine whose page cache lacks them each waits for the disk.
//! So the image says what was used, and a restore has it read while CRIU makes the processes.
//!
//! | bytes | what |
//! | --- | --- |
//! | 8 | `FERMFILE` |
//! | each file: 8, so many, 8 | the length of its path, its path, and how many parts follow |
//! | each part: 8, 8 | where it begins in the file, and its bytes |
//!
//! All numbers are little-endian. It is advice: what is not understood, and what is no regular file any more, is passed over.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use rangemap::RangeSet;
use rustix::fs::{Advice, FileType, Mode, OFlags};

use crate::maps::Maps;
use crate::scan::Pagemap;
use crate::working_set::WINDOW;

/// The file of an image, beside CRIU's.
const NAME: &str = "mapped-files";
const MAGIC: &[u8; 8] = b"FERMFILE";
/// Bytes of that file, and of a path in it, at most.
const LONGEST: usize = 4 << 20;
const LONGEST_PATH: usize = 4096;
/// Bytes that are read at most.
const MOST: u64 = 1 << 30;
/// Bytes that a disk is asked for at once, and by how many threads: with more, or longer reads, those of CRIU and of page faults would
/// wait for up to half a second (docs/decisions/058-turns-at-a-disk.md).
const PIECE: u64 = 512 << 10;
const THREADS: usize = 2;

/// Parts of files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MappedFiles(BTreeMap<OsString, RangeSet<u64>>);

impl MappedFiles {
    /// Adds what process `pid` has of files in its page tables, whole windows of 64 KiB, which is what the kernel maps around a page fault.
    ///
    /// # Errors
    /// It cannot be examined, or the kernel (before Linux 6.7) does not say.
    pub fn add(&mut self, pid: u32) -> io::Result<()> {
        let maps = Maps::of(pid)?;
        let mut pagemap = Pagemap::open(pid)?;
        for entry in maps.entries() {
            if entry.inode == 0 || !entry.name.as_bytes().starts_with(b"/") {
                continue;
            }
            for pages in pagemap.of_files(&entry.range)? {
                let at = |address: u64| address - entry.range.start + entry.offset;
                let first = at(pages.range.start) & !(WINDOW - 1);
                let end = at(pages.range.end).next_multiple_of(WINDOW);
                self.insert(entry.name, first..end);
            }
        }
        Ok(())
    }

    fn insert(&mut self, path: &OsStr, part: Range<u64>) {
        match self.0.get_mut(path) {
            Some(parts) => parts.insert(part),
            None => drop(self.0.insert(path.to_owned(), RangeSet::from([part]))),
        }
    }

    /// Puts them beside CRIU's files in `dir`, if there are any.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        let bytes = self.encode();
        match self.0.is_empty() || bytes.len() > LONGEST {
            true => Ok(()),
            false => fs::write(dir.join(NAME), bytes),
        }
    }

    /// Those in `dir`; none if it does not say.
    pub fn read(dir: &Path) -> Self {
        let mut bytes = Vec::new();
        let file = File::open(dir.join(NAME));
        let read = file.and_then(|it| it.take(LONGEST as u64 + 1).read_to_end(&mut bytes));
        let whole = read.is_ok_and(|it| it <= LONGEST);
        Some(bytes)
            .filter(|_| whole)
            .and_then(|it| Self::decode(&it))
            .unwrap_or_default()
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let mut put = |number: u64, text: &[u8]| {
            bytes.extend(number.to_le_bytes());
            bytes.extend(text);
        };
        for (path, parts) in &self.0 {
            put(path.len() as u64, path.as_bytes());
            put(parts.len() as u64, &[]);
            for part in parts.iter() {
                put(part.start, &[]);
                put(part.end - part.start, &[]);
            }
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(MAGIC)?;
        let mut all = Self::default();
        while !rest.is_empty() {
            let length = usize::try_from(number(&mut rest)?).ok()?;
            if length > LONGEST_PATH {
                return None;
            }
            let (path, behind) = rest.split_at_checked(length)?;
            rest = behind;
            let path = OsString::from_vec(path.to_vec());
            for _ in 0..number(&mut rest)? {
                let (start, bytes) = (number(&mut rest)?, number(&mut rest)?);
                let end = start.checked_add(bytes).filter(|it| *it > start)?;
                all.insert(&path, start..end);
            }
        }
        Some(all)
    }

    /// Has the page cache get them from their disks, a little at a time; returns when it has, with how many bytes that were. What it has
    /// already costs a look.
    pub fn bring(&self) -> u64 {
        let files: Vec<_> = self.0.iter().collect();
        let (next, left) = (AtomicUsize::new(0), AtomicUsize::new(MOST as usize));
        let work = || {
            let mut all = 0;
            while let Some((path, parts)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                // It may be gone, or another machine's.
                let Ok(file) = open(Path::new(path)) else {
                    continue;
                };
                let parts = parts.iter().flat_map(pieces);
                let within = |it: &Range<u64>| take(&left, it.end - it.start);
                all += parts
                    .take_while(within)
                    .map_while(|it| ask(&file, &it))
                    .sum::<u64>();
            }
            all
        };
        std::thread::scope(|scope| {
            let beside: Vec<_> = (1..THREADS)
                .filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok())
                .collect();
            let own = work();
            let others = beside.into_iter().map(|it| it.join().unwrap_or(0));
            own + others.sum::<u64>()
        })
    }
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    let (first, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(u64::from_le_bytes(*first))
}

fn pieces(part: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let end = part.end;
    let starts = (part.start..end).step_by(PIECE as usize);
    starts.map(move |start| start..end.min(start + PIECE))
}

/// Whether so much is left of what may be read; it is not any more then.
fn take(left: &AtomicUsize, bytes: u64) -> bool {
    let less = |left: usize| left.checked_sub(bytes as usize);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
        .is_ok()
}

/// Opens a regular file, and nothing else: to open a device can have effects.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let place = rustix::fs::open(path, flags, Mode::empty())?;
    let kind = rustix::fs::fstat(&place)?.st_mode;
    if FileType::from_raw_mode(kind) != FileType::RegularFile {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(format!("/proc/self/fd/{}", place.as_raw_fd()))?;
    // No more is read than is asked for.
    rustix::fs::fadvise(&file, 0, None, Advice::Random)?;
    Ok(file)
}

/// Has a part of a file read, and returns how many bytes that are when the last of it is there; none behind the file's end.
fn ask(file: &File, part: &Range<u64>) -> Option<u64> {
    let bytes = NonZeroU64::new(part.end - part.start)?;
    rustix::fs::fadvise(file, part.start, Some(bytes), Advice::WillNeed).ok()?;
    let last = file.metadata().ok()?.len().min(part.end).checked_sub(1)?;
    if last < part.start {
        return None;
    }
    file.read_exact_at(&mut [0], last).ok()?;
    Some(last + 1 - part.start)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn of(path: &Path, parts: &[Range<u64>]) -> MappedFiles {
        let mut all = MappedFiles::default();
        for part in parts {
            all.insert(path.as_os_str(), part.clone());
        }
        all
    }

    #[test]
    fn what_is_written_is_read_and_anything_else_is_passed_over() {
        let dir = tempfile::tempdir().expect("a folder");
        assert_eq!(MappedFiles::read(dir.path()), MappedFiles::default());
        let mut all = of(
            Path::new("/lib/a b.so"),
            &[0..WINDOW, 3 * WINDOW..9 * WINDOW],
        );
        all.insert(OsStr::from_bytes(b"/\xff"), WINDOW..2 * WINDOW);
        all.write(dir.path()).expect("written");
        assert_eq!(MappedFiles::read(dir.path()), all);
        let whole = all.encode();
        for length in 0..whole.len() {
            let cut = MappedFiles::decode(&whole[..length]);
            assert!(cut.is_none_or(|it| it.0.len() < 2), "{length} bytes");
        }
        // A length, a count, and an end beyond all numbers.
        for at in [8, 8 + 8 + 3 + 7, 8 + 8 + 3 + 8 + 7] {
            let mut odd = whole.clone();
            odd[at..at + 8].fill(0xff);
            assert_eq!(MappedFiles::decode(&odd), None, "byte {at}");
        }
        fs::write(dir.path().join(NAME), vec![0; LONGEST + 1]).expect("written");
        assert_eq!(MappedFiles::read(dir.path()), MappedFiles::default());
    }

    #[test]
    fn of_this_program_the_parts_are_known_that_it_has_used() {
        let pid = std::process::id();
        let mut all = MappedFiles::default();
        all.add(pid).expect("examined");
        // Code that runs, and so is there.
        let code = of as fn(&Path, &[Range<u64>]) -> MappedFiles as usize as u64;
        of(Path::new(""), &[]);
        let maps = Maps::of(pid).expect("examined");
        let mut entries = maps.entries();
        let entry = entries
            .find(|it| it.range.contains(&code))
            .expect("its mapping");
        let parts = all.0.get(entry.name).expect("it was used");
        assert!(parts.contains(&(code - entry.range.start + entry.offset)));
        assert!(
            parts
                .iter()
                .all(|it| it.start % WINDOW == 0 && it.end % WINDOW == 0)
        );
        assert!(!all.0.keys().any(|it| it.as_bytes().starts_with(b"[")));
    }

    #[test]
    fn only_regular_files_are_read_and_no_more_of_them_than_there_is() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, link) = (dir.path().join("data"), dir.path().join("link"));
        fs::write(&path, vec![7; 100_000]).expect("written");
        symlink(&path, &link).expect("linked");
        let fifo = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR).expect("made");
        assert_eq!(of(&path, &[0..WINDOW]).bring(), WINDOW);
        assert_eq!(of(&path, &[WINDOW..40 * WINDOW]).bring(), 100_000 - WINDOW);
        for other in [&link, &fifo, &dir.path().join("none"), dir.path()] {
            assert_eq!(of(other, &[0..WINDOW]).bring(), 0, "{}", other.display());
        }
    }

    #[test]
    fn no_more_is_read_than_may_be() {
        let left = AtomicUsize::new(3 * PIECE as usize);
        let taken = pieces(&(0..9 * PIECE + 1)).take_while(|it| take(&left, it.end - it.start));
        assert_eq!(taken.count(), 3);
        assert_eq!(pieces(&(0..PIECE + 1)).count(), 2);
    }
}
