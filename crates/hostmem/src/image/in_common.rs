//! Memory that processes of a dump have in common with the process that has forked them, for restores that bring memory on demand.
//!
//! On demand each process gets pages of its own. What CRIU reads at once stays in common: it forks a process from its parent, compares what it reads
//! with what is there, and leaves a page where it is if that is the same (`restore_priv_vma_content` in its source). So CRIU is
//! given what is the same in both:
//!
//! ```text
//!  page maps of the dump ─► pieces: addresses, content ─► those that parent and child have alike
//!                                                            ├─► one file with pages of all these processes, by address, each content once
//!                                                            ├─► `pagemap-PID.img`: what CRIU reads of that file
//!                                                            └─► `at-once-PID.img`: what need not be brought on demand
//! ```
//! A page map says of all pages in its file, in their order, whether CRIU reads them or passes over them. What others have in the common
//! file is one entry that is passed over; its address has no meaning.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rangemap::RangeSet;

use super::records::{
    IN_FILE, MapEntry, Mm, ON_DEMAND, encode_map, map_of, mm_of, read_map, read_memory,
};
use crate::ranges;

const MAGIC: &ranges::Magic = b"FERMONCE";
/// What begins the names of files with what need not be brought on demand.
const AT_ONCE: &str = "at-once-";
/// What parent and child must agree in, so that CRIU takes a mapping over (`check_cow_vmas` in its source).
const ALIKE: u32 = (libc::MAP_GROWSDOWN | libc::MAP_ANONYMOUS) as u32;
const ANONYMOUS: u32 = libc::MAP_ANONYMOUS as u32;
const PRIVATE: u32 = libc::MAP_PRIVATE as u32;
const HUGE: u32 = libc::MAP_HUGETLB as u32;

/// What processes of a dump have in common, for CRIU. `C` stands for the content of pages.
#[derive(Debug)]
pub struct InCommon<C> {
    /// The NUMBER of `pages-NUMBER.img`, which has the pages of all these processes.
    pub number: u32,
    /// Its length in bytes.
    pub bytes: u64,
    /// What is where in it, ascending; all else is zeros.
    pub content: Vec<(Range<u64>, C)>,
    /// The numbers of the files that it stands for, with its own.
    pub replaced: Vec<u32>,
    /// Bytes that processes need not have of their own.
    pub saved: u64,
    maps: Vec<Map>,
}

/// Of a process, for CRIU and for the server of pages on demand.
#[derive(Debug)]
struct Map {
    pid: u32,
    bytes: Vec<u8>,
    at_once: Vec<Range<u64>>,
}

impl<C: Copy + Ord> InCommon<C> {
    /// What the processes of the dump in `dir` have in common: `parents` has each with its parent, by their numbers in CRIU's files, and `content` says
    /// what is where in the file with pages of this number, ascending, and not what is zeros. None if that would save less than `least` bytes, or nothing.
    ///
    /// # Errors
    /// The dump is not as CRIU writes it, or cannot be read.
    pub fn of(
        dir: &Path,
        parents: &[(u32, u32)],
        least: u64,
        content: impl Fn(u32) -> Vec<(Range<u64>, C)>,
    ) -> io::Result<Option<Self>> {
        let mut all = Vec::new();
        for (pid, parent) in parents {
            if map_of(dir, *pid).exists() {
                all.push(Process::read(dir, *pid, *parent, &content)?);
            }
        }
        let saved = mark(&mut all);
        if saved < least {
            return Ok(None);
        }
        all.retain(|it| it.pieces.iter().any(|it| it.in_common));
        let Some(number) = all.first().map(|it| it.number) else {
            return Ok(None);
        };
        let (places, bytes) = places(&all);
        let content = places.iter().filter_map(|(key, place)| {
            let content = key.content?;
            Some((*place..*place + (key.end - key.start), content))
        });
        Ok(Some(Self {
            number,
            bytes,
            content: content.collect(),
            replaced: all.iter().map(|it| it.number).collect(),
            saved,
            maps: all.iter().map(|it| it.map(number, &places)).collect(),
        }))
    }

    /// Puts the page maps, and what the server of pages on demand reads, into `dir`, in place of what has their names there.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        for map in &self.maps {
            put(&map_of(dir, map.pid), &map.bytes)?;
            let at_once = ranges::encode(MAGIC, &map.at_once);
            put(&at_once_of(dir, map.pid), &at_once)?;
        }
        Ok(())
    }
}

/// What CRIU reads of the process that it knows as `pid` although the dump has it for later, by what is in `dir`.
///
/// # Errors
/// That cannot be read.
pub fn at_once(dir: &Path, pid: u32) -> io::Result<Vec<Range<u64>>> {
    let bytes = match fs::read(at_once_of(dir, pid)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    let ranges = ranges::decode(MAGIC, &bytes).and_then(Iterator::collect);
    ranges.ok_or_else(|| io::Error::other("it has another format"))
}

fn at_once_of(dir: &Path, pid: u32) -> PathBuf {
    dir.join(format!("{AT_ONCE}{pid}.img"))
}

/// A new file in place of one, or of a link to one.
fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::write(path, bytes),
    }
}

/// A process and its memory.
struct Process<C> {
    pid: u32,
    parent: u32,
    /// That of its file with pages.
    number: u32,
    memory: Mm,
    /// By address; those of zeros that CRIU does not read are left out.
    pieces: Vec<Piece<C>>,
}

/// Pages that follow each other.
struct Piece<C> {
    range: Range<u64>,
    /// None if they are zeros.
    content: Option<C>,
    /// Whether CRIU reads them anyway.
    at_once: bool,
    /// Whether another process has them in common.
    in_common: bool,
}

impl<C: Copy + Ord> Process<C> {
    fn read(
        dir: &Path,
        pid: u32,
        parent: u32,
        content: &impl Fn(u32) -> Vec<(Range<u64>, C)>,
    ) -> io::Result<Self> {
        let (head, entries) = read_map(&map_of(dir, pid))?;
        let mut memory = read_memory(&mm_of(dir, pid))?;
        memory.mappings.sort_by_key(|it| it.start);
        let pieces = pieces(&entries, &content(head.pages))?;
        Ok(Self {
            pid,
            parent,
            number: head.pages,
            memory,
            pieces,
        })
    }

    /// The addresses at which CRIU takes mappings of `parent` over.
    fn taken_over(&self, parent: &Self) -> RangeSet<u64> {
        let mut taken = RangeSet::new();
        if self.memory.program != parent.memory.program {
            return taken;
        }
        let theirs = &parent.memory.mappings;
        for own in &self.memory.mappings {
            let found = theirs.binary_search_by_key(&own.start, |it| it.start);
            let Some(its) = found.ok().map(|at| &theirs[at]) else {
                continue;
            };
            let is_private = |flags| flags & PRIVATE != 0 && flags & HUGE == 0;
            let are_alike = (own.flags ^ its.flags) & ALIKE == 0
                && is_private(own.flags)
                && is_private(its.flags)
                && (own.flags & ANONYMOUS != 0 || own.file == its.file);
            if own.end == its.end && are_alike && own.start < own.end {
                taken.insert(own.start..own.end);
            }
        }
        taken
    }

    /// Its pieces that `parent` has alike, and which those are there.
    fn alike(&self, parent: &Self) -> Vec<(usize, usize)> {
        let taken = self.taken_over(parent);
        let mut alike = Vec::new();
        for (number, own) in self.pieces.iter().enumerate() {
            let theirs = &parent.pieces;
            let found = theirs.binary_search_by_key(&own.range.start, |it| it.range.start);
            if let Ok(at) = found
                && !own.at_once
                && own.content.is_some()
                && (&own.range, &own.content) == (&theirs[at].range, &theirs[at].content)
                && taken.gaps(&own.range).next().is_none()
            {
                alike.push((number, at));
            }
        }
        alike
    }

    /// What CRIU reads of it.
    fn read_at_once(&self) -> impl Iterator<Item = &Piece<C>> {
        let pieces = self.pieces.iter();
        pieces.filter(|it| it.at_once || it.in_common)
    }

    /// Its page map, of pages in file `number`.
    fn map(&self, number: u32, places: &BTreeMap<Key<C>, u64>) -> Map {
        let (mut runs, mut at_once): (Vec<(Range<u64>, u32)>, RangeSet<u64>) = Default::default();
        let mut at = 0;
        for piece in self.read_at_once() {
            let range = piece.range.clone();
            let place = places[&Key::of(piece)];
            if place > at {
                runs.push((0..place - at, IN_FILE | ON_DEMAND));
            }
            at = place + (range.end - range.start);
            if !piece.at_once {
                at_once.insert(range.clone());
            }
            match runs.last_mut() {
                Some((last, IN_FILE)) if last.end == range.start => last.end = range.end,
                _ => runs.push((range, IN_FILE)),
            }
        }
        Map {
            pid: self.pid,
            bytes: encode_map(number, &runs),
            at_once: at_once.into_iter().collect(),
        }
    }
}

/// The pieces of a page map, by address.
fn pieces<C: Copy>(entries: &[MapEntry], content: &[(Range<u64>, C)]) -> io::Result<Vec<Piece<C>>> {
    let unfit = || io::Error::other("its pages are not in the order of their addresses");
    let (mut pieces, mut offset, mut end) = (Vec::new(), 0, 0);
    let mut rest = content.iter().peekable();
    for entry in entries {
        let range = entry.range();
        let at_once = entry.in_file()? & ON_DEMAND == 0;
        if range.start < end || range.end < range.start {
            return Err(unfit());
        }
        end = range.end;
        let mut add = |from: u64, to: u64, content: Option<C>| {
            if from < to && (at_once || content.is_some()) {
                pieces.push(Piece {
                    range: from..to,
                    content,
                    at_once,
                    in_common: false,
                });
            }
        };
        let behind = offset + (range.end - range.start);
        let mut at = range.start;
        while let Some((place, content)) = rest.next_if(|(it, _)| it.start < behind) {
            if place.start < offset || place.end > behind || place.end < place.start {
                return Err(unfit());
            }
            let from = range.start + (place.start - offset);
            let to = range.start + (place.end - offset);
            if from < at {
                return Err(unfit());
            }
            add(at, from, None);
            add(from, to, Some(*content));
            at = to;
        }
        add(at, range.end, None);
        offset = behind;
    }
    Ok(pieces)
}

/// Marks what processes have in common with their parents, in both; how many bytes the children need not have then.
fn mark<C: Copy + Ord>(all: &mut [Process<C>]) -> u64 {
    let index: BTreeMap<u32, usize> = all
        .iter()
        .enumerate()
        .map(|(at, it)| (it.pid, at))
        .collect();
    let mut saved = 0;
    for child in 0..all.len() {
        let Some(parent) = index
            .get(&all[child].parent)
            .copied()
            .filter(|it| *it != child)
        else {
            continue;
        };
        for (own, its) in all[child].alike(&all[parent]) {
            let piece = &mut all[child].pieces[own];
            piece.in_common = true;
            saved += piece.range.end - piece.range.start;
            all[parent].pieces[its].in_common = true;
        }
    }
    saved
}

/// By which pieces are told apart, and in which order they lie in the common file.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key<C> {
    start: u64,
    end: u64,
    content: Option<C>,
}

impl<C: Copy> Key<C> {
    fn of(piece: &Piece<C>) -> Self {
        Self {
            start: piece.range.start,
            end: piece.range.end,
            content: piece.content,
        }
    }
}

/// Where each piece that is read at once lies in the common file, and the file's length.
fn places<C: Copy + Ord>(all: &[Process<C>]) -> (BTreeMap<Key<C>, u64>, u64) {
    let pieces = all.iter().flat_map(Process::read_at_once);
    let mut places: BTreeMap<_, u64> = pieces.map(|it| (Key::of(it), 0)).collect();
    let mut bytes = 0;
    for (key, place) in &mut places {
        *place = bytes;
        bytes += key.end - key.start;
    }
    (places, bytes)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::super::records::{MM, Vma, encode, vma};
    use super::*;
    use crate::PAGE;

    /// Pages that follow each other, whether CRIU reads them, and their content, of which `.` are zeros.
    type Pages = (u64, bool, &'static str);

    /// Three mappings: pages 10 to 20, 30 to 40 of a file, and 50 to 60.
    fn mappings() -> Vec<Vma> {
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        vec![
            vma(10..20, 0, anonymous),
            vma(30..40, 5, libc::MAP_PRIVATE),
            vma(50..60, 0, anonymous),
        ]
    }

    /// The files of process `pid`, whose pages are in file `pid + 100`.
    fn process(dir: &Path, pid: u32, program: u32, mappings: Vec<Vma>, pages: &[Pages]) {
        let mm = Mm { program, mappings }.encode_to_vec();
        fs::write(mm_of(dir, pid), encode(MM, [mm])).expect("written");
        let entries = pages.iter().map(|(start, at_once, text)| {
            let flags = IN_FILE | if *at_once { 0 } else { ON_DEMAND };
            let end = start + text.len() as u64;
            (start * PAGE..end * PAGE, flags)
        });
        let map = encode_map(pid + 100, &entries.collect::<Vec<_>>());
        fs::write(map_of(dir, pid), map).expect("written");
    }

    /// What is where in the file of such pages, page by page.
    fn content(pages: &[Pages]) -> Vec<(Range<u64>, char)> {
        let all = pages.iter().flat_map(|(.., text)| text.chars());
        let placed = (0..).map(|at| at * PAGE..(at + 1) * PAGE).zip(all);
        placed.filter(|(_, it)| *it != '.').collect()
    }

    fn all_of(dir: &Path, parents: &[(u32, u32)], all: &[&[Pages]]) -> Option<InCommon<char>> {
        let of = |number: u32| content(all[number as usize - 101]);
        InCommon::of(dir, parents, 0, of).expect("read")
    }

    /// What CRIU reads of a process by the page map in `dir`: address and content of each page.
    fn read(dir: &Path, pid: u32, found: &InCommon<char>) -> Vec<(u64, char)> {
        let (head, entries) = read_map(&map_of(dir, pid)).expect("a page map");
        assert_eq!(head.pages, found.number);
        let (mut pages, mut offset) = (Vec::new(), 0);
        for entry in entries {
            let range = entry.range();
            let count = (range.end - range.start) / PAGE;
            for page in 0..count {
                if entry.in_file().expect("in the file") & ON_DEMAND == 0 {
                    let place = offset + page * PAGE;
                    let mut all = found.content.iter();
                    let what = all.find(|it| it.0.contains(&place)).map_or('.', |it| it.1);
                    pages.push((range.start / PAGE + page, what));
                }
            }
            offset += count * PAGE;
        }
        assert!(offset <= found.bytes);
        pages
    }

    fn at_once_of_pages(dir: &Path, pid: u32) -> Vec<Range<u64>> {
        let found = at_once(dir, pid).expect("read").into_iter();
        found.map(|it| it.start / PAGE..it.end / PAGE).collect()
    }

    #[test]
    fn criu_reads_what_is_in_common_and_each_process_its_own() {
        let dir = tempfile::tempdir().expect("a folder");
        let one: &[Pages] = &[(11, false, "abc.d"), (31, true, "xy"), (50, false, "uvw")];
        // The child has changed two pages, and one that CRIU reads anyway.
        let child: &[Pages] = &[(11, false, "aBc.d"), (31, true, "xY."), (50, false, "uvW")];
        // Its child has another in common with it than with its own parent.
        let grandchild: &[Pages] = &[(11, false, "aB"), (32, true, "Z"), (50, false, "..W")];
        // One that has nothing in common with others keeps its files.
        let other: &[Pages] = &[(11, false, "abc")];
        let all = [one, child, grandchild, other];
        for (pid, pages) in (1..).zip(all) {
            process(dir.path(), pid, 9, mappings(), pages);
        }
        let parents = [(1, 0), (2, 1), (3, 2), (4, 77), (5, 1)];
        let found = all_of(dir.path(), &parents, &all).expect("much is in common");
        assert_eq!(found.replaced, [101, 102, 103]);
        assert_eq!(found.saved, (5 + 3) * PAGE);
        let work = tempfile::tempdir().expect("a folder");
        let link = map_of(work.path(), 1);
        std::os::unix::fs::symlink(map_of(dir.path(), 1), link).expect("linked");
        let before = fs::read(map_of(dir.path(), 1)).expect("read");
        found.write(work.path()).expect("written");
        assert_eq!(fs::read(map_of(dir.path(), 1)).expect("read"), before);
        let pages = |of: &[(u64, &str)]| -> Vec<(u64, char)> {
            let runs = of.iter().flat_map(|(at, text)| (*at..).zip(text.chars()));
            runs.collect()
        };
        let first = [(11, "a"), (13, "c"), (15, "d"), (31, "xy"), (50, "uv")];
        assert_eq!(read(work.path(), 1, &found), pages(&first));
        let second = [(11, "aBc"), (15, "d"), (31, "xY."), (50, "uvW")];
        assert_eq!(read(work.path(), 2, &found), pages(&second));
        let third = [(11, "aB"), (32, "Z"), (52, "W")];
        assert_eq!(read(work.path(), 3, &found), pages(&third));
        assert_eq!(
            at_once_of_pages(work.path(), 1),
            [11..12, 13..14, 15..16, 50..52]
        );
        assert_eq!(at_once_of_pages(work.path(), 2), [11..14, 15..16, 50..53]);
        assert_eq!(at_once_of_pages(work.path(), 4), []);
        // Each content is there once: a, b is in no two, B, c, d; x, y, Y, zeros, Z; u, v, W.
        assert_eq!(found.bytes, 12 * PAGE);
        assert!(!map_of(work.path(), 4).exists());
    }

    #[test]
    fn only_what_criu_takes_over_is_in_common() {
        let pages: &[Pages] = &[(11, false, "abc")];
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let cases = [
            (9, vma(10..20, 0, anonymous), 3),
            (8, vma(10..20, 0, anonymous), 0),
            (9, vma(10..21, 0, anonymous), 0),
            (9, vma(9..20, 0, anonymous), 0),
            (9, vma(10..20, 0, anonymous | libc::MAP_GROWSDOWN), 0),
            (9, vma(10..20, 0, anonymous | libc::MAP_HUGETLB), 0),
            (9, vma(10..20, 0, libc::MAP_SHARED | libc::MAP_ANONYMOUS), 0),
            (9, vma(10..20, 3, libc::MAP_PRIVATE), 0),
        ];
        for (program, mapping, count) in cases {
            let dir = tempfile::tempdir().expect("a folder");
            process(dir.path(), 1, 9, mappings(), pages);
            process(dir.path(), 2, program, vec![mapping.clone()], pages);
            let found = all_of(dir.path(), &[(1, 0), (2, 1)], &[pages, pages]);
            assert_eq!(found.map_or(0, |it| it.saved / PAGE), count, "{mapping:?}");
        }
    }

    #[test]
    fn a_dump_that_does_not_fit_its_content_is_refused() {
        let pages: &[Pages] = &[(11, false, "ab"), (30, false, "c")];
        let dir = tempfile::tempdir().expect("a folder");
        for pid in [1, 2] {
            process(dir.path(), pid, 9, mappings(), pages);
        }
        let of = |content: Vec<(Range<u64>, char)>| {
            let found = InCommon::of(dir.path(), &[(1, 0), (2, 1)], 0, |_| content.clone());
            found.map(|it| it.map_or(0, |it| it.saved))
        };
        assert_eq!(of(content(pages)).expect("as it is"), 3 * PAGE);
        let worth = |least| {
            let parents = [(1, 0), (2, 1)];
            InCommon::of(dir.path(), &parents, least, |_| content(pages)).expect("as it is")
        };
        assert!(worth(3 * PAGE).is_some() && worth(3 * PAGE + 1).is_none());
        // Pages of two entries are no one's content.
        assert!(of(vec![(PAGE..3 * PAGE, 'x')]).is_err());
        assert!(of(vec![(0..2 * PAGE, 'x'), (PAGE..2 * PAGE, 'y')]).is_err());
        let backward: &[Pages] = &[(30, false, "c"), (11, false, "ab")];
        process(dir.path(), 2, 9, mappings(), backward);
        assert!(of(Vec::new()).is_err());
        fs::write(at_once_of(dir.path(), 1), "FERMWSET").expect("written");
        assert!(at_once(dir.path(), 1).is_err());
    }
}
