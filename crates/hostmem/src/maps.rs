//! The mappings of a process, from `/proc/PID/maps`.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;

/// What `/proc/PID/maps` says; by default of no process. Names of files need not be UTF-8.
#[derive(Debug, Default)]
pub struct Maps(Vec<u8>);

/// One line of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The addresses.
    pub range: Range<u64>,
    /// `rwxp`, each a dash where it is not so; the last is `s` where it is shared.
    pub access: [u8; 4],
    /// The file's device, in hexadecimal with a colon; `00:00` if it is of none.
    pub device: &'a [u8],
    /// The file's number; 0 if it is of none.
    pub inode: u64,
    /// The file's path, ` (deleted)` behind it if it has none any more, or a name such as `[heap]`; empty without one.
    pub name: &'a OsStr,
}

impl Maps {
    /// Of process `pid`.
    ///
    /// # Errors
    /// There is none, or it may not be examined.
    pub fn of(pid: u32) -> io::Result<Self> {
        fs::read(format!("/proc/{pid}/maps")).map(Self)
    }

    /// Its lines, by ascending address.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        entries(&self.0)
    }

    /// The paths among their names.
    pub fn files(&self) -> impl Iterator<Item = &OsStr> {
        let names = self.entries().map(|it| it.name);
        names.filter(|it| it.as_bytes().starts_with(b"/"))
    }
}

/// From such a text.
impl From<&str> for Maps {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl Entry<'_> {
    /// What `/proc/PID/map_files` calls it.
    pub fn in_map_files(&self) -> String {
        name_of(&self.range)
    }
}

/// Without zeros in front, which `maps` has.
fn name_of(range: &Range<u64>) -> String {
    format!("{:x}-{:x}", range.start, range.end)
}

/// The addresses in the first field of a line.
pub(crate) fn range(field: &[u8]) -> Option<Range<u64>> {
    let (start, end) = std::str::from_utf8(field).ok()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(number(start)?..number(end)?)
}

/// The mappings that lines of such a text, or of `smaps`, begin with.
pub(crate) fn entries(lines: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    lines.split(|byte| *byte == b'\n').filter_map(parse)
}

fn parse(line: &[u8]) -> Option<Entry<'_>> {
    let mut fields = line.splitn(6, |byte| *byte == b' ');
    let range = range(fields.next()?)?;
    let access = fields.next()?.try_into().ok()?;
    let (_offset, device) = (fields.next()?, fields.next()?);
    let inode = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let name = OsStr::from_bytes(fields.next().unwrap_or(b"").trim_ascii_start());
    Some(Entry {
        range,
        access,
        device,
        inode,
        name,
    })
}

/// What a private mapping is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Of no file: what is not there is zero.
    Anonymous,
    /// Of a file: pages that were not written are the file's.
    File,
}

/// A private mapping that can be tracked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// Its addresses.
    pub range: Range<u64>,
    /// What it is of.
    pub kind: Kind,
}

/// Why a process is not tracked for which [`has_direct_io`] is true.
pub const DIRECT_IO: &str = "it has a file open with O_DIRECT, an io_uring or a userfaultfd";

/// `f_type` of hugetlbfs.
const HUGETLBFS: i64 = 0x9584_58f6;

/// Private mappings of process `pid`, ascending. Those that the kernel provides (`[vdso]` and its kin) are not among them.
pub fn read(pid: u32) -> io::Result<Vec<Mapping>> {
    Ok(Maps::of(pid)?.entries().filter_map(tracked).collect())
}

/// Whether process `pid` has any mappings: one that has ended has none.
pub fn has_any(pid: u32) -> bool {
    let maps = File::open(format!("/proc/{pid}/maps"));
    maps.and_then(|mut it| it.read(&mut [0]))
        .is_ok_and(|it| it > 0)
}

/// Whether a mapping of a file is one of huge pages, which are left to CRIU. What cannot be examined counts as one.
pub fn is_huge(pid: u32, mapping: &Mapping) -> bool {
    let file = format!("/proc/{pid}/map_files/{}", name_of(&mapping.range));
    rustix::fs::statfs(file).map_or(true, |it| it.f_type == HUGETLBFS)
}

fn tracked(entry: Entry<'_>) -> Option<Mapping> {
    if entry.access[3] != b'p' {
        return None;
    }
    let kind = match entry.inode {
        0 => Kind::Anonymous,
        _ => Kind::File,
    };
    let name = entry.name.as_bytes();
    let from_kernel = kind == Kind::Anonymous
        && name.starts_with(b"[")
        && ![&b"[heap]"[..], b"[stack]"].contains(&name)
        && !name.starts_with(b"[anon:");
    let range = entry.range;
    (!from_kernel).then_some(Mapping { range, kind })
}

/// Whether process `pid` has a descriptor whose memory the kernel or a device may write behind the page tables, or that
/// tracks memory itself: files open with `O_DIRECT`, rings, userfaultfds. What cannot be examined counts.
pub fn has_direct_io(pid: u32) -> bool {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return true;
    };
    entries.flatten().any(|entry| {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        let target = target.as_os_str().as_bytes();
        if [&b"anon_inode:[io_uring]"[..], b"anon_inode:[userfaultfd]"].contains(&target) {
            return true;
        }
        if !target.starts_with(b"/") || target.starts_with(b"/dev/null") {
            return false;
        }
        let number = entry.file_name();
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", number.display()));
        // One that is gone by now has no flags any more.
        info.is_ok_and(|it| open_flags(&it).is_some_and(|it| it & libc::O_DIRECT != 0))
    })
}

/// With which flags a descriptor was opened, from its `/proc/PID/fdinfo`.
pub fn open_flags(info: &str) -> Option<i32> {
    let line = info.lines().find_map(|it| it.strip_prefix("flags:"))?;
    i32::from_str_radix(line.trim(), 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_mappings_of_programs_are_found() {
        let of = |line: &str| parse(line.as_bytes()).and_then(tracked);
        let heap = of("5500-6600 rw-p 00000000 00:00 0                  [heap]").expect("heap");
        assert_eq!((heap.range, heap.kind), (0x5500..0x6600, Kind::Anonymous));
        let file = of("7f00-7f10 r--p 00001000 fe:01 1234    /lib/a b.so").expect("a file");
        assert_eq!(file.kind, Kind::File);
        assert!(of("7f00-7f10 rw-p 00000000 00:00 0 ").is_some());
        assert!(of("7f00-7f10 rw-p 00000000 00:00 0   [anon: cache]").is_some());
        for other in [
            "7f00-7f10 rw-s 00000000 00:01 55   /dev/zero (deleted)",
            "7f00-7f10 r-xp 00000000 00:00 0    [vdso]",
            "7f00-7f10 r--p 00000000 00:00 0    [vvar]",
            "ff00-ff10 --xp 00000000 00:00 0    [vsyscall]",
            "",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn names_need_not_be_text() {
        let line = b"00400000-00500000 rw-s 00001000 fe:01 1234    /tmp/\xffa b (deleted)\n\n";
        let maps = Maps(line.to_vec());
        let entry = maps.entries().next().expect("a line");
        assert_eq!(entry.in_map_files(), "400000-500000");
        assert_eq!((entry.access, entry.inode), (*b"rw-s", 1234));
        let name = OsStr::from_bytes(b"/tmp/\xffa b (deleted)");
        assert_eq!(entry.name, name);
        assert_eq!(maps.files().collect::<Vec<_>>(), [name]);
        assert_eq!(maps.entries().count(), 1);
        assert_eq!(
            Maps::from("7f00-7f10 r-xp 0 00:00 0 [vdso]")
                .files()
                .count(),
            0
        );
    }

    #[test]
    fn flags_are_octal() {
        assert_eq!(open_flags("pos:\t0\nflags:\t0140002\n"), Some(0o140_002));
        assert_eq!(open_flags("pos:\t0\n"), None);
    }
}
