//! Makes the copy of a process's memory part of the image that CRIU has written.
//!
//! | file | record | content |
//! | --- | --- | --- |
//! | `pagemap-PID.img` | first | number of the file with the pages |
//! | | others | pages that follow each other: address, flags, number; ascending |
//! | `pages-NUMBER.img` | | the bytes, in the order of the records |
//! | `mm-PID.img` | one | the mappings |
//!
//! Each record is its length in 4 bytes and a message; field numbers are those of CRIU's `pagemap.proto`, `mm.proto` and
//! `vma.proto`. The page map is written anew for CRIU's pages and those of the copy; their bytes stay where they are, and are read from
//! both by [`Settled`]. Where both have a page, CRIU's is taken: both were read while the process stood still. Of mappings that the kernel may drop (`MAP_DROPPABLE`)
//! CRIU has no pages, and neither has the image: they hold what must not be there twice, such as the state of random numbers.

mod in_common;
mod records;

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use rangemap::RangeMap;

pub use self::in_common::InCommon;
pub(crate) use self::in_common::at_once;
use self::records::{IN_FILE, MapEntry, ON_DEMAND, Vma, map_of, mm_of, read_map, read_memory};
use crate::demand::PageBytes;
use crate::error::{Error, Result};
use crate::tracker::Copied;
use crate::working_set;

/// `MADV_WIPEONFORK` among the advice of a mapping.
const WIPED: u64 = 1 << libc::MADV_WIPEONFORK;
/// What of a mapping CRIU brings back on demand.
const ANONYMOUS_PRIVATE: u32 = (libc::MAP_ANONYMOUS | libc::MAP_PRIVATE) as u32;
const NOT_ON_DEMAND: u32 = (libc::MAP_LOCKED | libc::MAP_HUGETLB) as u32;
/// What of a mapping it does not bring back.
const DROPPABLE: u32 = libc::MAP_DROPPABLE as u32;

/// Whose pages, where in their file, and with which flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Source {
    /// 0 for CRIU's file, 1 for the copy, 2 for that of the process that has forked it.
    file: usize,
    /// Added to an address, modulo 2^64, it is the place in the file.
    place: u64,
    flags: u32,
}

/// Pages of a process that are to be brought on demand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OnDemand {
    pub range: Range<u64>,
    /// Where in the file they begin.
    pub offset: u64,
    /// Whether a child made by `fork` gets empty ones instead (`MADV_WIPEONFORK`).
    pub wiped: bool,
}

/// The number of the file with the pages of the process that CRIU knows as `pid`, and those of them that are to be brought on demand.
pub(crate) fn on_demand(dir: &Path, pid: u32) -> io::Result<(u32, Vec<OnDemand>)> {
    let mappings = read_memory(&mm_of(dir, pid))?.mappings;
    let (head, entries) = read_map(&map_of(dir, pid))?;
    let (mut pages, mut offset) = (Vec::new(), 0);
    for entry in &entries {
        let range = entry.range();
        let bytes = range.end - range.start;
        let flags = entry.in_file()?;
        if flags & ON_DEMAND != 0 {
            let wiped = |it: &&Vma| it.advice.unwrap_or(0) & WIPED != 0;
            let mut wiped = mappings.iter().filter(wiped);
            pages.push(OnDemand {
                wiped: wiped.any(|it| it.start < range.end && range.start < it.end),
                range,
                offset,
            });
        }
        offset += bytes;
    }
    Ok((head.pages, pages))
}

/// A file with pages of a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageFile {
    /// The NUMBER of `pages-NUMBER.img`.
    pub number: u32,
    /// Its length in bytes.
    pub bytes: u64,
    /// Parts of it in ascending order, which cover it: each holds memory from one multiple of a piece's length to the next, or less
    /// where there is less. So memory that is the same in two dumps is in the same parts, wherever it lies in the files.
    pub parts: Vec<Range<u64>>,
    /// What of it CRIU reads, where the rest is brought on demand: ascending, and each part of `parts` is inside or outside.
    pub at_once: Vec<Range<u64>>,
}

/// The files with pages in `dir`, in parts of at most `piece` bytes.
///
/// # Errors
/// A page map is not as CRIU writes it, or cannot be read.
pub fn page_files(dir: &Path, piece: u64) -> io::Result<Vec<PageFile>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with("pagemap-") || !name.ends_with(".img") {
            continue;
        }
        let (head, entries) = read_map(&dir.join(&*name))?;
        let (mut offset, mut parts, mut at_once) = (0, Vec::new(), Vec::new());
        for entry in &entries {
            let flags = entry.in_file()?;
            let range = entry.range();
            // CRIU reads shared memory itself.
            if flags & ON_DEMAND == 0 || name.starts_with("pagemap-shmem-") {
                at_once.push(offset..offset + (range.end - range.start));
            }
            let mut address = range.start;
            while address < range.end {
                let next = (address / piece + 1) * piece;
                let bytes = next.min(range.end) - address;
                parts.push(offset..offset + bytes);
                (address, offset) = (address + bytes, offset + bytes);
            }
        }
        files.push(PageFile {
            number: head.pages,
            bytes: offset,
            parts,
            at_once,
        });
    }
    files.sort_by_key(|file| file.number);
    Ok(files)
}

/// The pages of a process, by address.
#[derive(Debug)]
struct Layout(RangeMap<u64, Source>);

/// The pages of a process, from CRIU's file and copies, in the order of its page map.
#[derive(Debug)]
pub struct Settled {
    /// The NUMBER of `pages-NUMBER.img`, which has CRIU's pages alone.
    pub number: u32,
    /// See [`Source::file`]: each file, its device and number there.
    sources: Vec<(File, [u64; 2])>,
    /// Where each part ends, in which source it lies, and where it begins there.
    parts: Vec<(u64, usize, u64)>,
}

/// Where a copy has some bytes: those of several processes may be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    file: [u64; 2],
    offset: u64,
}

impl Settled {
    /// Where this part of the pages is, if all of it follows each other in a copy.
    pub fn place(&self, part: &Range<u64>) -> Option<Place> {
        let next = self.parts.partition_point(|(end, ..)| *end <= part.start);
        let (end, source, from) = self.parts.get(next)?;
        let begin = next.checked_sub(1).map_or(0, |it| self.parts[it].0);
        (*source > 0 && part.end <= *end).then(|| Place {
            file: self.sources[*source].1,
            offset: from + (part.start - begin),
        })
    }
}

/// Makes a copy part of the image in `dir` of the process that CRIU knows as `pid`: the page map is of all pages then.
///
/// # Errors
/// The image is not as CRIU writes it, or cannot be written.
pub fn settle(dir: &Path, pid: u32, copied: &Copied) -> Result<Settled> {
    let bad = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| Error::Image {
            path,
            why: error.to_string(),
        }
    };
    let (map, mm) = (map_of(dir, pid), mm_of(dir, pid));
    let mappings = read_memory(&mm).map_err(bad(&mm))?.mappings;
    let (head, entries) = read_map(&map).map_err(bad(&map))?;
    let pages = dir.join(format!("pages-{}.img", head.pages));
    let layout = Layout::of(copied, &mappings, &entries).map_err(bad(&map))?;
    let write = || {
        let mut sources = vec![File::open(&pages)?, copied.file.try_clone()?];
        if let Some((file, _)) = &copied.parents {
            sources.push(file.try_clone()?);
        }
        let settled = layout.settled(head.pages, sources)?;
        fs::write(&map, records::encode_map(head.pages, &layout.runs()))?;
        working_set::write(dir, pid, &copied.working_set)?;
        Ok(settled)
    };
    write().map_err(bad(&pages))
}

impl PageBytes for Settled {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let (mut rest, mut at) = (bytes, offset);
        let first = self.parts.partition_point(|(end, ..)| *end <= offset);
        let mut begin = first
            .checked_sub(1)
            .map_or(0, |before| self.parts[before].0);
        for (end, source, from) in &self.parts[first..] {
            if rest.is_empty() {
                break;
            }
            let length = (end - at).min(rest.len() as u64);
            let (part, behind) = rest.split_at_mut(length as usize);
            self.sources[*source]
                .0
                .read_exact_at(part, from + (at - begin))?;
            (rest, at, begin) = (behind, at + length, *end);
        }
        match rest.is_empty() {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Layout {
    fn of(copied: &Copied, mappings: &[Vma], entries: &[MapEntry]) -> io::Result<Self> {
        let mut all = RangeMap::new();
        let parents = copied.parents.iter().flat_map(|(_, extents)| extents);
        let own = copied.extents.iter().map(|it| (1, it));
        for (file, extent) in own.chain(parents.map(|it| (2, it))) {
            let place = extent.offset.wrapping_sub(extent.range.start);
            let inside = |it: &&Vma| it.start < extent.range.end && extent.range.start < it.end;
            let mut covered = 0;
            for mapping in mappings.iter().filter(inside) {
                let part = extent.range.start.max(mapping.start)..extent.range.end.min(mapping.end);
                covered += part.end - part.start;
                if mapping.flags & DROPPABLE != 0 {
                    continue;
                }
                let demand = mapping.flags & ANONYMOUS_PRIVATE == ANONYMOUS_PRIVATE
                    && mapping.flags & NOT_ON_DEMAND == 0;
                let flags = IN_FILE | if demand { ON_DEMAND } else { 0 };
                all.insert(part, Source { file, place, flags });
            }
            if covered != extent.range.end - extent.range.start {
                return Err(io::Error::other(format!(
                    "CRIU has no mapping at {:#x}",
                    extent.range.start
                )));
            }
        }
        let mut offset = 0;
        for entry in entries {
            let range = entry.range();
            let bytes = range.end - range.start;
            let flags = entry.in_file()?;
            let source = Source {
                file: 0,
                place: u64::wrapping_sub(offset, entry.address),
                flags,
            };
            if bytes > 0 {
                all.insert(range, source);
            }
            offset += bytes;
        }
        Ok(Self(all))
    }

    /// Pages that follow each other with the same flags.
    fn runs(&self) -> Vec<(Range<u64>, u32)> {
        let mut runs: Vec<(Range<u64>, u32)> = Vec::new();
        for (range, source) in self.0.iter() {
            match runs.last_mut() {
                Some((last, flags)) if last.end == range.start && *flags == source.flags => {
                    last.end = range.end;
                }
                _ => runs.push((range.clone(), source.flags)),
            }
        }
        runs
    }

    /// Where the bytes are.
    fn settled(&self, number: u32, sources: Vec<File>) -> io::Result<Settled> {
        let about = sources.iter().map(File::metadata);
        let about = about.collect::<io::Result<Vec<_>>>()?;
        let (mut at, mut parts) = (0, Vec::new());
        for (range, source) in self.0.iter() {
            let bytes = range.end - range.start;
            let from = range.start.wrapping_add(source.place);
            let end = from.checked_add(bytes);
            if end.is_none_or(|end| end > about[source.file].len()) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            at += bytes;
            parts.push((at, source.file, from));
        }
        let names = about.iter().map(|it| [it.dev(), it.ino()]);
        Ok(Settled {
            number,
            sources: sources.into_iter().zip(names).collect(),
            parts,
        })
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::records::{Head, MM, Mm, PAGEMAP, encode, vma};
    use super::*;
    use crate::PAGE;
    use crate::extents::Extent;

    fn pages(bytes: &str) -> Vec<u8> {
        bytes
            .bytes()
            .flat_map(|byte| vec![byte; PAGE as usize])
            .collect()
    }

    fn file(bytes: &[u8]) -> File {
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(bytes, 0).expect("written");
        file
    }

    fn entry(page: u64, count: u64, flags: u32) -> MapEntry {
        MapEntry {
            address: page * PAGE,
            former_count: 0,
            flags: Some(flags),
            count: Some(count),
        }
    }

    /// CRIU's image of one process with pages A to D, and mappings of 16 pages, one of them locked, one of a file.
    fn image(dir: &Path) {
        let vma = |start: u64, flags: i32| vma(start..start + 16, 0, flags);
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let mappings = vec![
            vma(16, anonymous),
            vma(32, anonymous | libc::MAP_LOCKED),
            vma(48, libc::MAP_PRIVATE),
        ];
        let mm = Mm {
            program: 1,
            mappings,
        }
        .encode_to_vec();
        fs::write(dir.join("mm-7.img"), encode(MM, [mm])).expect("written");
        let entries = [entry(18, 2, 6), entry(49, 1, 4), entry(50, 1, 4)];
        let mut map = vec![Head { pages: 3 }.encode_to_vec()];
        map.extend(entries.iter().map(|it| it.encode_to_vec()));
        fs::write(dir.join("pagemap-7.img"), encode(PAGEMAP, map)).expect("written");
        fs::write(dir.join("pages-3.img"), pages("ABCD")).expect("written");
    }

    fn extent(page: u64, count: u64, at: u64) -> Extent {
        Extent {
            range: page * PAGE..(page + count) * PAGE,
            offset: at * PAGE,
        }
    }

    #[test]
    fn pages_of_both_are_in_the_order_of_their_addresses() {
        let dir = tempfile::tempdir().expect("a folder");
        image(dir.path());
        // One extent lies in two mappings; CRIU has one of its pages, too.
        let copied = Copied {
            file: file(&pages("zyxwvuts")),
            extents: vec![extent(17, 1, 2), extent(30, 4, 4), extent(49, 1, 0)],
            parents: None,
            working_set: vec![30 * PAGE..31 * PAGE, 17 * PAGE..18 * PAGE],
        };
        let settled = settle(dir.path(), 7, &copied).expect("settled");
        let (head, entries) = read_map(&dir.path().join("pagemap-7.img")).expect("read");
        let expected = [
            entry(17, 3, 6),
            entry(30, 2, 6),
            entry(32, 2, 4),
            entry(49, 2, 4),
        ];
        assert_eq!((head.pages, &entries[..]), (3, &expected[..]));
        let whole = pages("xABvutsCD");
        for (from, count) in [(0, 9), (0, 1), (2, 3), (3, 6), (8, 1)] {
            let range = from * PAGE as usize..(from + count) * PAGE as usize;
            let mut bytes = vec![0; range.len()];
            let read = settled.read_at(&mut bytes, range.start as u64);
            read.expect("read");
            assert!(bytes == whole[range], "{count} pages from {from}");
        }
        let mut more = vec![0; PAGE as usize + 1];
        settled.read_at(&mut more, 8 * PAGE).expect_err("its end");
        let names = fs::read_dir(dir.path()).expect("listed").count();
        assert_eq!(names, 4, "nothing else is left");
        assert_eq!(working_set::read(dir.path(), 7), copied.working_set);
    }

    #[test]
    fn what_is_in_the_copy_of_another_process_is_read_from_there() {
        let dir = tempfile::tempdir().expect("a folder");
        image(dir.path());
        let theirs = file(&pages("0123456"));
        let copied = Copied {
            file: file(&pages("zy")),
            extents: vec![extent(20, 2, 0)],
            parents: Some((theirs, vec![extent(16, 2, 3), extent(22, 3, 0)])),
            working_set: Vec::new(),
        };
        let settled = settle(dir.path(), 7, &copied).expect("settled");
        // Pages 16 to 24 and, as CRIU has them, 18, 19, 49 and 50.
        let whole = pages("34ABzy012CD");
        let mut bytes = vec![0; whole.len()];
        settled.read_at(&mut bytes, 0).expect("read");
        assert!(bytes == whole);
        let place = |from: u64, to: u64| settled.place(&(from * PAGE..to * PAGE));
        // Two processes that have the same pages from there have them in the same place.
        let dir = tempfile::tempdir().expect("a folder");
        image(dir.path());
        let other = settle(dir.path(), 7, &copied).expect("settled");
        assert!(place(6, 8).is_some());
        assert_eq!(place(6, 8), other.place(&(6 * PAGE..8 * PAGE)));
        assert_ne!(place(6, 8), place(7, 9));
        // What is in two copies, or in CRIU's file, has none.
        assert_eq!([place(5, 7), place(2, 3), place(10, 12)], [None; 3]);
    }

    #[test]
    fn files_are_cut_where_addresses_are_multiples() {
        let dir = tempfile::tempdir().expect("a folder");
        image(dir.path());
        let files = page_files(dir.path(), 2 * PAGE).expect("read");
        let [file] = &files[..] else {
            panic!("{files:?}")
        };
        assert_eq!((file.number, file.bytes), (3, 4 * PAGE));
        // Pages 18 and 19 are a piece, 49 is the end of one, 50 the beginning of another.
        let parts = [0..2, 2..3, 3..4].map(|it| it.start * PAGE..it.end * PAGE);
        assert_eq!(file.parts, parts);
        fs::write(dir.path().join("pagemap-8.img"), "x").expect("written");
        page_files(dir.path(), PAGE).expect_err("damaged");
    }

    #[test]
    fn pages_that_the_kernel_may_drop_are_in_no_image() {
        let mapping = |start: u64, flags: i32| vma(start..start + 4, 0, flags);
        let anonymous = libc::MAP_ANONYMOUS;
        let mappings = [
            mapping(16, anonymous | libc::MAP_PRIVATE),
            mapping(20, anonymous | libc::MAP_DROPPABLE),
            mapping(24, anonymous | libc::MAP_PRIVATE),
        ];
        let copied = Copied {
            file: file(&[]),
            extents: vec![extent(18, 8, 0)],
            parents: None,
            working_set: Vec::new(),
        };
        let layout = Layout::of(&copied, &mappings, &[]).expect("all have a mapping");
        let pages = |from: u64, to: u64| (from * PAGE..to * PAGE, IN_FILE | ON_DEMAND);
        assert_eq!(layout.runs(), [pages(18, 20), pages(24, 26)]);
    }

    #[test]
    fn a_copy_that_does_not_fit_the_image_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        image(dir.path());
        let before = fs::read(dir.path().join("pagemap-7.img")).expect("read");
        let copied = |extents| Copied {
            file: file(&pages("z")),
            extents,
            parents: None,
            working_set: Vec::new(),
        };
        let outside = settle(dir.path(), 7, &copied(vec![extent(63, 2, 0)]));
        assert!(
            outside
                .expect_err("no mapping")
                .to_string()
                .contains("no mapping")
        );
        let short = settle(dir.path(), 7, &copied(vec![extent(17, 1, 5)]));
        short.expect_err("the copy is too short");
        settle(dir.path(), 8, &copied(vec![extent(17, 1, 0)])).expect_err("no such process");
        assert_eq!(
            fs::read(dir.path().join("pagemap-7.img")).expect("read"),
            before
        );
        assert_eq!(
            fs::read(dir.path().join("pages-3.img")).expect("read"),
            pages("ABCD")
        );
    }
}
