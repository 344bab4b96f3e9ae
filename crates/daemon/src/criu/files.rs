//! The open files that CRIU has recorded in an image (`files.img`): which have changed since, and where sockets are. Names
//! need not be UTF-8.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | two magic numbers |
//! | 8 | 4 + n | length and record, repeated to the end; field numbers as in `fdinfo.proto`, `regfile.proto`, `sk-unix.proto` |

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use prost::Message as _;
use rustix::fs::OFlags;

use crate::criu;

/// Name of the file in CRIU's folder.
const FILE: &str = "files.img";
/// First magic number of CRIU's images.
const MAGIC: u32 = 0x5456_4319;
/// Number of the field with a regular file.
const REGULAR: u64 = 3;
/// Numbers of its fields with what CRIU compares with the file as it is: length and mode. Without a length CRIU does not
/// compare build-ids either.
const COMPARED: [u64; 2] = [8, 10];

#[derive(Clone, PartialEq, prost::Message)]
struct RegularFile {
    #[prost(uint32, optional, tag = "2")]
    flags: Option<u32>,
    #[prost(bytes = "vec", optional, tag = "6")]
    name: Option<Vec<u8>>,
    #[prost(uint64, optional, tag = "8")]
    size: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UnixSocket {
    #[prost(bytes = "vec", optional, tag = "11")]
    name: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Entry {
    #[prost(message, optional, tag = "3")]
    regular: Option<RegularFile>,
    #[prost(message, optional, tag = "16")]
    socket: Option<UnixSocket>,
}

/// A file whose size is not what it was at the dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedFile {
    /// Its path.
    pub path: PathBuf,
    /// Bytes at the dump.
    pub recorded: u64,
    /// Bytes now.
    pub found: u64,
    /// Whether the program had it open for writing, so that it may have changed it itself.
    pub written: bool,
}

/// Files of the dump in `host` that have another size now, `except` some. Files that are gone are left
/// for CRIU to name: it keeps those that were deleted while open.
///
/// # Errors
/// CRIU's list cannot be read.
pub fn changed(host: &Path, except: &dyn Fn(&Path) -> bool) -> io::Result<Vec<ChangedFile>> {
    let mut changed: Vec<ChangedFile> = Vec::new();
    let entries = decode(&fs::read(host.join(FILE))?)?;
    for file in entries.into_iter().filter_map(|entry| entry.regular) {
        let (Some(name), Some(recorded)) = (file.name, file.size) else {
            continue;
        };
        let path = PathBuf::from(OsString::from_vec(name));
        let Some(meta) = fs::metadata(&path).ok().filter(|m| m.is_file()) else {
            continue;
        };
        if except(&path) || meta.len() == recorded {
            continue;
        }
        let flags = OFlags::from_bits_retain(file.flags.unwrap_or_default());
        let written = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        match changed.iter_mut().find(|it| it.path == path) {
            Some(seen) => seen.written |= written,
            None => changed.push(ChangedFile {
                path,
                recorded,
                found: meta.len(),
                written,
            }),
        }
    }
    Ok(changed)
}

/// Has CRIU take changed files as they are, each as often as the program had it open: in the folder `work` it finds a list of
/// its own in place of a link to that of the dump.
///
/// # Errors
/// The list cannot be read or written.
pub fn take_as_they_are(work: &Path, changed: &[ChangedFile]) -> io::Result<()> {
    if changed.is_empty() {
        return Ok(());
    }
    let mut records = read(work)?;
    for record in &mut records.list {
        let entry = Entry::decode(&record[..]).map_err(|_| bad())?;
        let Some(name) = entry.regular.and_then(|it| it.name) else {
            continue;
        };
        if changed
            .iter()
            .any(|it| it.path.as_os_str().as_bytes() == name)
        {
            *record = remove_from_field(record, REGULAR, &COMPARED).ok_or_else(bad)?;
        }
    }
    fs::remove_file(work.join(FILE))?;
    records.write(work)
}

/// Bytes that the file at `path` had when the program was dumped to `host`; none if no process had it open.
///
/// # Errors
/// CRIU's list cannot be read.
pub fn length_of(host: &Path, path: &Path) -> io::Result<Option<u64>> {
    let entries = decode(&fs::read(host.join(FILE))?)?;
    let regular = entries.into_iter().filter_map(|entry| entry.regular);
    let its = |file: &RegularFile| file.name.as_deref() == Some(path.as_os_str().as_bytes());
    Ok(regular.filter(its).filter_map(|file| file.size).max())
}

/// Where the dump in `host` has sockets: the absolute paths, each once.
///
/// # Errors
/// CRIU's list cannot be read.
pub fn sockets(host: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let entries = decode(&fs::read(host.join(FILE))?)?;
    let names = entries.into_iter().filter_map(|entry| entry.socket?.name);
    // Abstract ones begin with a zero; others may end with one.
    let paths = names.map(|name| {
        let end = name.iter().position(|byte| *byte == 0);
        PathBuf::from(OsStr::from_bytes(&name[..end.unwrap_or(name.len())]))
    });
    Ok(paths.filter(|path| path.is_absolute()).collect())
}

fn decode(bytes: &[u8]) -> io::Result<Vec<Entry>> {
    let records = Records::parse(bytes)?.list;
    let entries = records.iter().map(|record| Entry::decode(&record[..]));
    entries.collect::<Result<_, _>>().map_err(|_| bad())
}

/// CRIU's list as it is, for a change.
#[derive(Debug)]
pub struct Records {
    magic: [u8; 8],
    /// The records, encoded.
    pub list: Vec<Vec<u8>>,
}

/// Reads the list of the dump in `host`.
///
/// # Errors
/// It cannot be read.
pub fn read(host: &Path) -> io::Result<Records> {
    Records::parse(&fs::read(host.join(FILE))?)
}

impl Records {
    pub(super) fn parse(bytes: &[u8]) -> io::Result<Self> {
        let word = |at: usize| -> Option<u32> {
            Some(u32::from_le_bytes(
                bytes.get(at..at.checked_add(4)?)?.try_into().ok()?,
            ))
        };
        let magic = bytes.first_chunk().ok_or_else(bad)?;
        if word(0) != Some(MAGIC) {
            return Err(bad());
        }
        let mut list = Vec::new();
        let mut at = 8;
        while at < bytes.len() {
            let length = word(at).ok_or_else(bad)? as usize;
            let record = bytes.get(at + 4..).and_then(|rest| rest.get(..length));
            list.push(record.ok_or_else(bad)?.to_vec());
            at += 4 + length;
        }
        Ok(Self {
            magic: *magic,
            list,
        })
    }

    /// Writes the list to the dump in `host`.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, host: &Path) -> io::Result<()> {
        let mut bytes = self.magic.to_vec();
        for record in &self.list {
            let length = u32::try_from(record.len()).map_err(|_| bad())?;
            bytes.extend(length.to_le_bytes());
            bytes.extend(record);
        }
        fs::write(host.join(FILE), bytes)
    }
}

/// A record whose field `number`, which is a message, has more fields at its end.
pub fn append_to_field(record: &[u8], number: u64, fields: &[u8]) -> Option<Vec<u8>> {
    change_field(record, number, |value| Some([value, fields].concat()))
}

/// A record whose field `number`, which is a message, lacks the fields of these numbers.
fn remove_from_field(record: &[u8], number: u64, fields: &[u64]) -> Option<Vec<u8>> {
    change_field(record, number, |value| criu::core::without(value, fields))
}

fn change_field(
    record: &[u8],
    number: u64,
    change: impl FnOnce(&[u8]) -> Option<Vec<u8>>,
) -> Option<Vec<u8>> {
    let value = criu::core::field(record, 0..record.len(), number)?;
    let old = length_prefix(value.len());
    let start = value.start.checked_sub(old.len())?;
    // CRIU writes lengths in as few bytes as there can be.
    if record.get(start..value.start)? != old {
        return None;
    }
    let (before, behind) = (&record[..start], &record[value.end..]);
    let changed = change(&record[value])?;
    let new = length_prefix(changed.len());
    Some([before, &new, &changed, behind].concat())
}

fn length_prefix(length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_varint(length as u64, &mut bytes);
    bytes
}

fn bad() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not CRIU's list of files")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[(&Path, u64)]) -> Vec<u8> {
        let regular = |(name, size): &(&Path, u64)| RegularFile {
            flags: Some(OFlags::RDWR.bits()),
            name: Some(name.as_os_str().as_bytes().to_vec()),
            size: Some(*size),
        };
        let entries = names.iter().map(|it| Entry {
            regular: Some(regular(it)),
            socket: None,
        });
        encode(entries)
    }

    fn encode(entries: impl Iterator<Item = Entry>) -> Vec<u8> {
        let mut bytes = [MAGIC.to_le_bytes(), [1; 4]].concat();
        for record in entries.map(|entry| entry.encode_to_vec()) {
            bytes.extend((record.len() as u32).to_le_bytes());
            bytes.extend(record);
        }
        bytes
    }

    #[test]
    fn sockets_with_paths_are_found() {
        let dir = tempfile::tempdir().expect("a folder");
        let names: [&[u8]; 5] = [b"/a/b", b"/a/c\0", b"\0/abstract", b"relative", b"/a/b"];
        let entries = names.iter().map(|name| Entry {
            regular: None,
            socket: Some(UnixSocket {
                name: Some(name.to_vec()),
            }),
        });
        fs::write(dir.path().join(FILE), encode(entries)).expect("written");
        let found = sockets(dir.path()).expect("read");
        assert_eq!(found, ["/a/b", "/a/c"].map(PathBuf::from).into());
    }

    #[test]
    fn changed_files_are_found() {
        let dir = tempfile::tempdir().expect("a folder");
        let (same, other, log) = (
            dir.path().join("same"),
            dir.path().join("other"),
            dir.path().join("log"),
        );
        for path in [&same, &other, &log] {
            fs::write(path, "12345").expect("written");
        }
        let gone = dir.path().join("gone");
        let odd = dir.path().join(OsStr::from_bytes(b"\xff"));
        fs::write(&odd, "1").expect("written");
        let bytes = list(&[(&same, 5), (&other, 4), (&log, 1), (&gone, 1), (&odd, 1)]);
        fs::write(dir.path().join(FILE), bytes).expect("written");
        let length = |path| length_of(dir.path(), path).expect("read");
        assert_eq!((length(&log), length(&other)), (Some(1), Some(4)));
        assert_eq!(length(dir.path()), None);
        let found = changed(dir.path(), &|path| path == log).expect("read");
        let expected = ChangedFile {
            path: other,
            recorded: 4,
            found: 5,
            written: true,
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn a_changed_file_is_written_if_it_was_open_once_for_writing() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("x");
        fs::write(&path, "12345").expect("written");
        // For reading, and for appending.
        for (modes, written) in [(&[0o100_000][..], false), (&[0, 0o2001, 0], true)] {
            let entries = modes.iter().map(|flags| Entry {
                regular: Some(RegularFile {
                    flags: Some(*flags),
                    name: Some(path.as_os_str().as_bytes().to_vec()),
                    size: Some(1),
                }),
                socket: None,
            });
            fs::write(dir.path().join(FILE), encode(entries)).expect("written");
            let found = changed(dir.path(), &|_| false).expect("read");
            assert!(found.len() == 1 && found[0].written == written, "{found:?}");
        }
    }

    /// A regular file with what CRIU needs to open it.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Opened {
        #[prost(uint32, optional, tag = "2")]
        flags: Option<u32>,
        #[prost(uint64, optional, tag = "3")]
        position: Option<u64>,
        #[prost(bytes = "vec", optional, tag = "6")]
        name: Option<Vec<u8>>,
        #[prost(uint64, optional, tag = "8")]
        size: Option<u64>,
        #[prost(uint32, optional, tag = "10")]
        mode: Option<u32>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct OpenedEntry {
        #[prost(message, optional, tag = "3")]
        regular: Option<Opened>,
    }

    #[test]
    fn a_changed_file_that_is_open_twice_is_opened_twice_and_the_image_stays() {
        let (host, work) = (
            tempfile::tempdir().expect("a folder"),
            tempfile::tempdir().expect("a folder"),
        );
        let opened = |name: &str, flags, position| Opened {
            flags: Some(flags),
            position: Some(position),
            name: Some(name.into()),
            size: Some(5),
            mode: Some(0o100_644),
        };
        let all = [
            opened("/changed", 0, 3),
            opened("/same", 0, 4),
            opened("/changed", 0o2001, 5),
        ];
        let records = all.clone().map(|it| {
            let entry = OpenedEntry { regular: Some(it) };
            entry.encode_to_vec()
        });
        let list = Records {
            magic: [0x19, 0x43, 0x56, 0x54, 1, 1, 1, 1],
            list: records.into(),
        };
        list.write(host.path()).expect("written");
        let image = fs::read(host.path().join(FILE)).expect("read");
        let link = work.path().join(FILE);
        std::os::unix::fs::symlink(host.path().join(FILE), &link).expect("linked");
        take_as_they_are(work.path(), &[]).expect("nothing to do");
        assert!(link.is_symlink());
        let changed = ChangedFile {
            path: "/changed".into(),
            recorded: 5,
            found: 9,
            written: true,
        };
        take_as_they_are(work.path(), &[changed]).expect("written");
        let found = read(work.path()).expect("read").list;
        let decode = |it: &Vec<u8>| OpenedEntry::decode(&it[..]).expect("a record");
        let found: Vec<_> = found.iter().filter_map(|it| decode(it).regular).collect();
        let unchecked = |it: &Opened| Opened {
            size: None,
            mode: None,
            ..it.clone()
        };
        assert_eq!(
            found,
            [unchecked(&all[0]), all[1].clone(), unchecked(&all[2])]
        );
        assert!(!link.is_symlink());
        assert_eq!(fs::read(host.path().join(FILE)).expect("read"), image);
    }

    #[test]
    fn a_cut_list_is_refused() {
        let bytes = list(&[(Path::new("/x"), 5)]);
        for length in [0, 7, 9, bytes.len() - 1] {
            assert!(decode(&bytes[..length]).is_err(), "{length}");
        }
        assert_eq!(decode(&bytes).expect("whole").len(), 1);
    }
}
