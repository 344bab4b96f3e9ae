//! Finds the file behind a module image in a mapping, so that the worker reads the file and nothing is copied here.
//!
//! | what could make file and memory differ | why it does not |
//! | --- | --- |
//! | the program has written to the pages | the mapping may not be written to, and no page has become private memory (`pagemap`) |
//! | another file lies at the path | a mapping of that file is listed with the same device and inode |
//! | the file has been overwritten | pages that are not private show what it holds now |
//! | a file system shows other content under the same inode (a copy made by `overlayfs` when the file is written to) | pages all over the image are compared |
//!
//! In doubt no file is reported; the image is then sent in a memory file.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

const PAGE: u64 = 4096;
/// Pages that are compared.
const SAMPLES: u64 = 64;
/// Bits of an entry of `pagemap`: in memory, in swap space, of a file.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;

/// A file and where an image begins in it.
#[derive(Debug)]
pub struct Mapped {
    /// The file, open for reading.
    pub file: File,
    /// Offset of the image's first byte.
    pub offset: u64,
}

/// A line of `/proc/self/maps`.
#[derive(Debug, PartialEq, Eq)]
struct Line<'m> {
    start: u64,
    end: u64,
    permissions: &'m str,
    offset: u64,
    /// Device and inode, as the kernel writes them.
    identity: (&'m str, &'m str),
    path: &'m str,
}

/// The file behind `image`, if its bytes are certain to be the file's.
pub fn find(image: &[u8]) -> Option<Mapped> {
    let start = image.as_ptr().addr() as u64;
    let end = start + image.len() as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let (line, offset) = behind(&maps, start, end)?;
    if !is_untouched(start, end)? {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(line.path, flags, Mode::empty()).ok()?);
    let about = file.metadata().ok()?;
    let is_there = offset
        .checked_add(image.len() as u64)
        .is_some_and(|end| end <= about.len());
    let same = about.is_file() && is_there && identity_of(&file)? == owned(line.identity);
    let equal = same && is_equal(&file, offset, (start, end))?;
    equal.then_some(Mapped { file, offset })
}

/// Whether file and memory are equal in pages sampled from the whole range. `None` if either cannot be read.
fn is_equal(file: &File, offset: u64, (start, end): (u64, u64)) -> Option<bool> {
    // Read through the kernel: if the file has been truncated, that is an error, where a memory access would be a signal.
    let memory = File::open("/proc/self/mem").ok()?;
    let (mut ours, mut theirs) = ([0; PAGE as usize], [0; PAGE as usize]);
    let last = (end - start).saturating_sub(PAGE);
    for sample in 0..SAMPLES {
        let at = last / (SAMPLES - 1) * sample;
        let at = if sample == SAMPLES - 1 { last } else { at };
        let len = (end - start - at).min(PAGE) as usize;
        memory.read_exact_at(&mut ours[..len], start + at).ok()?;
        file.read_exact_at(&mut theirs[..len], offset + at).ok()?;
        if ours[..len] != theirs[..len] {
            return Some(false);
        }
    }
    Some(true)
}

fn owned((device, inode): (&str, &str)) -> (String, String) {
    (device.to_owned(), inode.to_owned())
}

/// The first line of a range that lies in private mappings of one file, one after another in it, none of which may be
/// written to; and the range's offset in the file.
fn behind(maps: &str, start: u64, end: u64) -> Option<(Line<'_>, u64)> {
    let lines = maps.lines().filter_map(parse);
    let mut lines = lines.skip_while(|line| line.end <= start);
    let first = lines.next().filter(|line| line.start <= start)?;
    let offset = first.offset.checked_add(start - first.start)?;
    let fits = |line: &Line<'_>| {
        let permissions = line.permissions.as_bytes();
        let is_fixed = matches!(permissions, [b'r', b'-', _, b'p']);
        // What is escaped, or deleted, cannot be opened.
        is_fixed && line.path.starts_with('/') && !line.path.contains('\\')
    };
    if !fits(&first) {
        return None;
    }
    let (mut at, mut next) = (
        first.end,
        first.offset.checked_add(first.end - first.start)?,
    );
    while at < end {
        let line = lines.next()?;
        let follows = line.start == at && line.offset == next && line.identity == first.identity;
        if !follows || !fits(&line) {
            return None;
        }
        (at, next) = (line.end, next.checked_add(line.end - line.start)?);
    }
    Some((first, offset))
}

fn parse(line: &str) -> Option<Line<'_>> {
    let mut rest = line;
    let mut field = || {
        rest = rest.trim_start_matches(' ');
        let (field, after) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = after;
        field
    };
    let (start, end) = field().split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (permissions, offset) = (field(), number(field())?);
    let identity = (field(), field());
    Some(Line {
        start: number(start)?,
        end: number(end)?,
        permissions,
        offset,
        identity,
        path: rest.trim_start_matches(' '),
    })
}

/// Whether no page of the range has become private memory; `None` if the kernel does not report it.
fn is_untouched(start: u64, end: u64) -> Option<bool> {
    let pages = File::open("/proc/self/pagemap").ok()?;
    let (mut page, last) = (start / PAGE, end.div_ceil(PAGE));
    let mut entries = vec![0; 64 << 10];
    while page < last {
        let count = (last - page).min(entries.len() as u64 / 8);
        let part = &mut entries[..count as usize * 8];
        pages.read_exact_at(part, page * 8).ok()?;
        let is_private = |entry: &[u8]| {
            let entry = u64::from_le_bytes(std::array::from_fn(|n| entry[n]));
            entry & SWAPPED != 0 || entry & (PRESENT | OF_FILE) == PRESENT
        };
        if part.chunks_exact(8).any(is_private) {
            return Some(false);
        }
        page += count;
    }
    Some(true)
}

/// Device and inode of a file as `/proc/self/maps` writes them, which need not be those of `stat`: a mapping says so.
fn identity_of(file: &File) -> Option<(String, String)> {
    // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing; it is never read.
    let page = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            PAGE as usize,
            ProtFlags::READ,
            MapFlags::PRIVATE,
            file.as_fd(),
            0,
        )
    };
    let page = page.ok()?;
    let maps = std::fs::read_to_string("/proc/self/maps").ok();
    // SAFETY: the mapping made above.
    let _ = unsafe { rustix::mm::munmap(page, PAGE as usize) };
    let maps = maps?;
    let at = page.addr() as u64;
    let mut lines = maps.lines().filter_map(parse);
    let line = lines.find(|line| (line.start..line.end).contains(&at))?;
    Some(owned(line.identity))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
        1000-3000 r--p 00004000 fe:01 77                         /a b/libcublasLt.so.13\n\
        3000-4000 r-xp 00006000 fe:01 77                         /a b/libcublasLt.so.13\n\
        4000-5000 rw-p 00007000 fe:01 77                         /a b/libcublasLt.so.13\n\
        5000-6000 r--p 00000000 00:00 0 \n\
        6000-7000 r--s 00000000 fe:01 78                         /shared\n\
        8000-9000 r--p 00001000 fe:01 79                         /gone\\040x (deleted)\n";

    #[test]
    fn a_range_has_a_file_if_all_of_it_lies_there_and_cannot_be_written_to() {
        let offset = |start, end| behind(MAPS, start, end).map(|(line, at)| (line.path, at));
        let path = "/a b/libcublasLt.so.13";
        assert_eq!(offset(0x1100, 0x2000), Some((path, 0x4100)));
        assert_eq!(offset(0x1100, 0x4000), Some((path, 0x4100)));
        for (start, end) in [
            (0x1100, 0x4001),
            (0x4000, 0x4100),
            (0x5000, 0x5100),
            (0x6000, 0x6100),
            (0x7000, 0x7100),
            (0x7800, 0x8100),
            (0x8000, 0x8100),
            (0x8800, 0x9100),
        ] {
            assert_eq!(offset(start, end), None, "{start:#x}");
        }
    }

    /// A private mapping of a file with this content.
    fn map(file: &File, len: usize, protection: ProtFlags) -> &'static mut [u8] {
        // SAFETY: a fresh mapping that is never unmapped; the tests write to it where they may.
        unsafe {
            let to = std::ptr::null_mut();
            let at =
                rustix::mm::mmap(to, len, protection, MapFlags::PRIVATE, file, 0).expect("mapped");
            std::slice::from_raw_parts_mut(at.cast(), len)
        }
    }

    #[test]
    fn what_differs_at_one_of_the_places_is_not_the_file() {
        let folder = std::env::temp_dir().join(format!("fermata-equal-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let content: Vec<u8> = (0..300 * PAGE).map(|n| (n / PAGE) as u8).collect();
        std::fs::write(folder.join("image"), &content).expect("written");
        let file = File::open(folder.join("image")).expect("open");
        let range = |bytes: &[u8]| {
            let start = bytes.as_ptr().addr() as u64;
            (start, start + bytes.len() as u64)
        };
        assert_eq!(is_equal(&file, 0, range(&content)), Some(true));
        assert_eq!(is_equal(&file, 7, range(&content[7..5000])), Some(true));
        assert_eq!(is_equal(&file, 0, range(&content[..100])), Some(true));
        assert_eq!(is_equal(&file, PAGE, range(&content[..5000])), Some(false));
        std::fs::write(folder.join("cut"), &content[..PAGE as usize]).expect("written");
        let cut = File::open(folder.join("cut")).expect("open");
        assert_eq!(is_equal(&cut, 0, range(&content)), None);
        let mut last = content.clone();
        *last.last_mut().expect("not empty") ^= 1;
        assert_eq!(is_equal(&file, 0, range(&last)), Some(false));
        let _ = std::fs::remove_dir_all(folder);
    }

    #[test]
    fn pages_that_were_written_to_and_files_that_were_replaced_are_not_taken() {
        let folder = std::env::temp_dir().join(format!("fermata-mapped-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("image");
        let len = 3 * PAGE as usize;
        std::fs::write(&path, vec![7; len]).expect("written");
        let file = File::open(&path).expect("open");
        let image = map(&file, len, ProtFlags::READ);
        let found = find(&image[100..]).expect("a file");
        assert_eq!(found.offset, 100);
        // Written to, then protected again, as a loader does with what it has relocated.
        let written = map(&file, len, ProtFlags::READ | ProtFlags::WRITE);
        assert!(find(written).is_none());
        written[5000] = 8;
        let at = written.as_mut_ptr().cast();
        // SAFETY: the mapping made above.
        unsafe { rustix::mm::mprotect(at, len, rustix::mm::MprotectFlags::READ) }
            .expect("read only");
        assert!(find(&written[4096..]).is_none());
        assert!(find(&written[..4096]).is_some());
        // Another file at the path, and none.
        std::fs::write(folder.join("other"), vec![9; len]).expect("written");
        std::fs::rename(folder.join("other"), &path).expect("replaced");
        assert!(find(image).is_none());
        std::fs::remove_file(&path).expect("removed");
        assert!(find(image).is_none());
        let _ = std::fs::remove_dir_all(folder);
    }
}
