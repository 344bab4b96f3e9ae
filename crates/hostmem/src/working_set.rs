//! The working set: memory that the program wrote most often shortly before the stop. A restored program goes on from there, so these
//! pages are brought before others ([`crate::demand`]).
//!
//! The passes of the tracker tell it without further cost. The file `working-set-PID.img` beside CRIU's has it ([`crate::ranges`]); the
//! first to be brought comes first. It is advice: what is no page of the image is passed over.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::{PAGE, ranges};

const MAGIC: &ranges::Magic = b"FERMWSET";
/// What lies in the same so many bytes as a page that was written is brought with it: a program that touches one of them soon touches
/// another.
pub(crate) const WINDOW: u64 = 64 << 10;
/// Bytes of a working set at most: bringing them takes about 20 ms.
const MOST: u64 = 64 << 20;
/// Bytes of a file that are read at most: each page by itself.
const LONGEST: u64 = 8 + MOST / PAGE * 16;

/// What passes have found to be written.
#[derive(Debug, Default)]
pub(crate) struct WorkingSet {
    /// By address.
    windows: BTreeMap<u64, Window>,
    passes: u32,
}

#[derive(Debug, Default)]
struct Window {
    /// How many passes have found a page of it that was written.
    count: u32,
    /// The last of them.
    last: u32,
}

impl WorkingSet {
    /// What is noted from now on was found by another pass.
    pub fn begin_pass(&mut self) {
        self.passes += 1;
    }

    /// The program has written `ranges` since the pass before.
    pub fn note(&mut self, ranges: &[Range<u64>]) {
        for range in ranges {
            let first = range.start & !(WINDOW - 1);
            for start in (first..range.end).step_by(WINDOW as usize) {
                let window = self.windows.entry(start).or_default();
                if window.last != self.passes {
                    window.last = self.passes;
                    window.count += 1;
                }
            }
        }
    }

    /// The windows that were written most often, and of those the ones written last, first.
    pub fn hottest(self) -> Vec<Range<u64>> {
        let mut windows: Vec<(u64, Window)> = self.windows.into_iter().collect();
        windows.sort_by_key(|(start, it)| (Reverse(it.count), Reverse(it.last), *start));
        windows.truncate((MOST / WINDOW) as usize);
        let windows = windows.into_iter();
        windows.map(|(start, _)| start..start + WINDOW).collect()
    }
}

fn path(dir: &Path, pid: u32) -> PathBuf {
    dir.join(format!("working-set-{pid}.img"))
}

/// The numbers of the processes that have a working set in `dir`.
pub(crate) fn processes(dir: &Path) -> Vec<u32> {
    let number = |name: &OsStr| {
        let name = name.to_str()?.strip_prefix("working-set-")?;
        name.strip_suffix(".img")?.parse().ok()
    };
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|it| number(&it.file_name())).collect()
}

/// Puts the working set of the process that CRIU knows as `pid` beside CRIU's files in `dir`.
pub(crate) fn write(dir: &Path, pid: u32, ranges: &[Range<u64>]) -> io::Result<()> {
    fs::write(path(dir, pid), ranges::encode(MAGIC, ranges))
}

/// The working set in `dir`; an empty one if there is none.
pub(crate) fn read(dir: &Path, pid: u32) -> Vec<Range<u64>> {
    let mut bytes = Vec::new();
    let file = File::open(path(dir, pid));
    let read = file.and_then(|file| file.take(LONGEST).read_to_end(&mut bytes));
    let ranges = read.ok().and_then(|_| ranges::decode(MAGIC, &bytes));
    ranges.into_iter().flatten().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(from: u64, to: u64) -> Range<u64> {
        from * PAGE..to * PAGE
    }

    #[test]
    fn what_was_written_most_often_comes_first() {
        let mut set = WorkingSet::default();
        set.begin_pass();
        set.note(&[pages(1, 2), pages(40, 41), pages(70, 90)]);
        set.begin_pass();
        // The same window twice in one pass counts once.
        set.note(&[pages(4, 5), pages(6, 7), pages(100, 101)]);
        let window = |at: u64| at * WINDOW..(at + 1) * WINDOW;
        assert_eq!(set.hottest(), [0, 6, 2, 4, 5].map(window));
    }

    #[test]
    fn a_program_that_writes_everything_has_a_working_set_of_limited_size() {
        let mut set = WorkingSet::default();
        set.begin_pass();
        set.note(&[pages(0, 2 * MOST / PAGE)]);
        let bytes: u64 = set.hottest().iter().map(|it| it.end - it.start).sum();
        assert_eq!(bytes, MOST);
    }

    #[test]
    fn what_is_written_is_read_and_anything_else_is_passed_over() {
        let dir = tempfile::tempdir().expect("a folder");
        assert!(read(dir.path(), 7).is_empty());
        let set = [pages(9, 12), pages(2, 3)];
        write(dir.path(), 7, &set).expect("written");
        assert_eq!(read(dir.path(), 7), set);
        assert_eq!(processes(dir.path()), [7]);
        let file = path(dir.path(), 7);
        let whole = fs::read(&file).expect("read");
        fs::write(&file, &whole[..whole.len() - 3]).expect("written");
        assert_eq!(read(dir.path(), 7), set[..1]);
        let mut odd = whole.clone();
        odd[8] = 1;
        odd[16 + 7] = 0xff;
        fs::write(&file, odd).expect("written");
        assert_eq!(read(dir.path(), 7), set[1..]);
        fs::write(&file, b"something else").expect("written");
        assert!(read(dir.path(), 7).is_empty());
    }
}
