//! Lines of `/proc/PID/smaps`.

use std::ops::Range;

use crate::maps;

/// Flags by their two letters: bits of `vm_flags` that have been the same in every release that can hand them out, and hold
/// what CRIU restores or refuses.
const NAMES: [(u32, &str); 13] = [
    (8, "gd"),
    (10, "pf"),
    (13, "lo"),
    (14, "io"),
    (15, "sr"),
    (16, "rr"),
    (17, "dc"),
    (21, "nr"),
    (22, "ht"),
    (25, "wf"),
    (26, "dd"),
    (29, "hg"),
    (30, "nh"),
];
/// `mg`, the last bit of the first half.
const MERGEABLE: (u32, &str) = (31, "mg");
/// `dp`: the kernel may drop its pages (Linux 6.11). CRIU dumps none of them.
const DROPPABLE: (u32, &str) = (40, "dp");

/// A mapping, and the kernel's flags for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marked {
    /// Its addresses.
    pub range: Range<u64>,
    /// `vm_flags`.
    pub flags: u64,
}

fn names() -> impl Iterator<Item = (u32, &'static str)> {
    NAMES.into_iter().chain([MERGEABLE, DROPPABLE])
}

/// Those of `names`, as a line `VmFlags` has them, that this module knows, in its order.
pub fn known(line: &str) -> Vec<&'static str> {
    let all: Vec<&str> = line.split_whitespace().collect();
    let known = names().map(|(_, name)| name);
    known.filter(|it| all.contains(it)).collect()
}

/// The known names of `flags`; none of other flags in the second half, whose bits differ between releases.
pub fn in_letters(flags: u64) -> Option<Vec<&'static str>> {
    let set = names().filter(|(bit, _)| flags >> bit & 1 != 0);
    ((flags & !(1 << DROPPABLE.0)) >> 32 == 0).then(|| set.map(|(_, name)| name).collect())
}

/// The range that a line of `maps` begins with.
pub fn range(line: &[u8]) -> Option<Range<u64>> {
    maps::range(line.split(|byte| *byte == b' ').next()?)
}

/// The lines of `maps`, each with its flags behind it; none if there are other mappings.
pub fn join(maps: &[u8], marked: &[Marked]) -> Option<Vec<u8>> {
    let mut marked = marked.iter();
    let mut text = Vec::with_capacity(maps.len() * 2);
    for line in maps.split_inclusive(|byte| *byte == b'\n') {
        text.extend_from_slice(line);
        let letters = match line.trim_ascii_end().ends_with(b"[vsyscall]") {
            // No mapping of the process.
            true => Vec::new(),
            false => {
                let own = marked.next()?;
                if range(line)? != own.range {
                    return None;
                }
                in_letters(own.flags)?
            }
        };
        text.extend_from_slice(b"VmFlags: ");
        for name in letters {
            text.extend_from_slice(name.as_bytes());
            text.push(b' ');
        }
        text.push(b'\n');
    }
    marked.next().is_none().then_some(text)
}

/// The mappings of these lines that are of no file, ascending: the kernel gives those of files an inode.
pub fn without_file(lines: &[u8]) -> Vec<Range<u64>> {
    let of_none = maps::entries(lines).filter(|it| !is_of_file(it));
    of_none.map(|it| it.range).collect()
}

/// The private mappings of these lines that are of files, ascending.
pub fn private_of_files(lines: &[u8]) -> Vec<Range<u64>> {
    let private = |it: &maps::Entry<'_>| is_of_file(it) && it.access[3] == b'p';
    let private = maps::entries(lines).filter(private);
    private.map(|it| it.range).collect()
}

fn is_of_file(entry: &maps::Entry<'_>) -> bool {
    entry.device != b"00:00" || entry.inode != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_gets_its_flags() {
        let maps = b"10-20 rw-p 0 00:00 0 \n20-30 r--p 0 fe:00 7 /a b\nff-100 --xp 0 00:00 0   [vsyscall]\n";
        let one = |range, flags| Marked { range, flags };
        let marked = [
            one(0x10..0x20, 0x73 | 1 << 17 | 1 << 31),
            one(0x20..0x30, 0),
        ];
        let text = join(maps, &marked).expect("they fit");
        let expected = "10-20 rw-p 0 00:00 0 \nVmFlags: dc mg \n20-30 r--p 0 fe:00 7 /a b\nVmFlags: \n\
                        ff-100 --xp 0 00:00 0   [vsyscall]\nVmFlags: \n";
        assert_eq!(String::from_utf8_lossy(&text), expected);
        assert_eq!(known("rd wr mr dc ac mg sd"), ["dc", "mg"]);
        let droppable = 0x73 | 1 << 21 | 1 << 25 | 1 << 26 | 1 << 40;
        let names = known("rd wr mr mw me nr wf dd dp");
        assert_eq!(in_letters(droppable), Some(names));
    }

    #[test]
    fn mappings_of_no_file_have_neither_device_nor_inode() {
        let lines = b"10-20 rw-p 00000000 00:00 0 \nVmFlags: rd wr \n20-30 r--p 00000000 fe:00 7 /a b 00:00 0\nVmFlags: \n\
            30-40 rw-s 00000000 00:01 9  /dev/zero (deleted)\n40-50 r--p 00000000 00:00 9  anon_inode:x\n\
            50-60 rw-p 00000000 00:00 0                          [heap]\nVmFlags: dc \n";
        assert_eq!(without_file(lines), [0x10..0x20, 0x50..0x60]);
        let own = std::fs::read("/proc/self/maps").expect("read");
        let folder = std::path::Path::new("/proc/self/map_files");
        let is_there = |it: &maps::Entry<'_>| {
            let file = folder.join(it.in_map_files());
            file.symlink_metadata().is_ok()
        };
        let without = without_file(&own);
        assert!(without.iter().is_sorted_by_key(|it| it.start));
        let is_without = |it: &maps::Entry<'_>| without.contains(&it.range);
        let (of_none, of_files): (Vec<_>, Vec<_>) = maps::entries(&own).partition(is_without);
        assert!(!without.is_empty() && of_none.len() == without.len());
        assert!(!of_none.iter().any(is_there));
        let there = of_files.iter().filter(|it| is_there(it));
        assert!(there.count() > 5, "libraries and the program");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let maps = b"10-20 rw-p 0 00:00 0 \n";
        let one = |range, flags| Marked { range, flags };
        assert!(join(maps, &[]).is_none());
        assert!(join(maps, &[one(0x10..0x30, 0)]).is_none());
        assert!(join(maps, &[one(0x10..0x20, 0), one(0x20..0x30, 0)]).is_none());
        assert!(join(maps, &[one(0x10..0x20, 1 << 39)]).is_none());
        assert!(join(maps, &[one(0x10..0x20, 1 << 41)]).is_none());
    }
}
