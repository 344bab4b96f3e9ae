//! A host variable of more than 4 GiB that takes a few MiB of memory: most of it is one small file, mapped again and
//! again, and what lies around 2 GiB and 4 GiB and at both ends has pages of its own, no two of which are the same.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::common::{noise, session};
use fermata_app::{ElementType, Level, Memory};

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;
/// Bytes of the file.
const FILE: usize = 4 * MIB;
/// The variable's, with the last piece cut.
const BYTES: usize = 4 * GIB + 2 * FILE - 4097;
/// Where it has pages of its own. What an offset of 32 bits, or of 31, would take for another lies in one of them, too.
const OWN: [(usize, usize); 3] = [
    (0, FILE),
    (2 * GIB - FILE, 2 * FILE),
    (4 * GIB - FILE, 3 * FILE),
];

/// Addresses with the file everywhere, but where it has pages of its own.
struct Wide {
    start: *mut u8,
    bytes: usize,
    _file: OwnedFd,
}

impl Wide {
    fn new() -> Self {
        let bytes = BYTES.next_multiple_of(FILE);
        // SAFETY: makes a file that nobody else has.
        let file = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"wide".as_ptr(), 0)) };
        // SAFETY: the file is ours.
        assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), FILE as i64) }, 0);
        let start = map(std::ptr::null_mut(), bytes, None);
        for at in (0..bytes).step_by(FILE) {
            let own = OWN
                .iter()
                .any(|(from, len)| (*from..from + len).contains(&at));
            if !own {
                map(start.wrapping_add(at), FILE, Some(&file));
            }
        }
        Self {
            start,
            bytes,
            _file: file,
        }
    }

    fn memory(&self) -> Memory {
        // SAFETY: the mapping outlives the session, and nobody writes it while the session does.
        unsafe { Memory::new(self.start.cast::<c_void>(), BYTES as u64) }
    }

    /// The bytes from `at` on.
    fn part(&mut self, at: usize, bytes: usize) -> &mut [u8] {
        assert!(at + bytes <= self.bytes);
        // SAFETY: within the mapping, and the only reference into it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), bytes) }
    }

    /// Fills it with other bytes everywhere that it has pages of its own, or wipes it.
    fn fill(&mut self, content: impl Fn(u64) -> Vec<u8>) {
        self.part(FILE, FILE).copy_from_slice(&content(0));
        for (number, at) in own_pieces() {
            self.part(at, FILE).copy_from_slice(&content(number));
        }
    }

    /// Whether it holds what it was filled with; where it does not.
    fn differs(&mut self, content: impl Fn(u64) -> Vec<u8>) -> Option<usize> {
        let file = content(0);
        let mut own = own_pieces();
        let wrong = own.find(|(number, at)| {
            let bytes = FILE.min(BYTES - at);
            self.part(*at, bytes) != &content(*number)[..bytes]
        });
        let file = (self.part(FILE, FILE) != &file[..]).then_some(FILE);
        wrong.map(|(_, at)| at).or(file)
    }
}

impl Drop for Wide {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's own.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

/// Maps memory of its own somewhere, or a file in its place.
fn map(at: *mut u8, bytes: usize, file: Option<&OwnedFd>) -> *mut u8 {
    let (flags, fd) = match file {
        None => (
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
        ),
        Some(file) => (libc::MAP_SHARED | libc::MAP_FIXED, file.as_raw_fd()),
    };
    // SAFETY: fresh addresses, or within those of the caller's own.
    let got = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(at.cast(), bytes, access, flags, fd, 0)
    };
    assert_ne!(got, libc::MAP_FAILED);
    got.cast()
}

/// The pieces with pages of their own, numbered from 1, and where they are.
fn own_pieces() -> impl Iterator<Item = (u64, usize)> {
    let at = OWN
        .into_iter()
        .flat_map(|(from, len)| (from..from + len).step_by(FILE));
    (1..).zip(at)
}

#[test]
fn a_variable_beyond_4_gib_comes_back_on_both_sides_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut wide = Wide::new();
    let first = |number: u64| noise(FILE, 1 + number);
    wide.fill(first);
    let mut s = session(dir.path(), |_| ());
    s.protect(1, wide.memory(), ElementType(1)).unwrap();
    s.checkpoint(1, Level::Local).unwrap();
    s.wait(Duration::from_secs(300)).unwrap();
    // Every piece of its own and the file are written once, whatever the variable's length.
    let own = own_pieces().count() as u64;
    let full = s.status().last.unwrap();
    assert_eq!(full.bytes, BYTES as u64);
    let written = (own + 1) * FILE as u64 - 4097;
    assert!(
        (written..written + MIB as u64).contains(&full.written_bytes),
        "{full:?}"
    );
    // A byte on each side, and what would be taken for it.
    for at in [4 * GIB - 1, 4 * GIB, BYTES - 1] {
        wide.part(at, 1)[0] ^= 0x55;
    }
    s.checkpoint(2, Level::Local).unwrap();
    s.wait(Duration::from_secs(300)).unwrap();
    drop(s);

    wide.fill(|_| vec![0xaa; FILE]);
    let mut s = session(dir.path(), |_| ());
    s.protect(1, wide.memory(), ElementType(1)).unwrap();
    assert_eq!(s.stored_bytes(1), Some(BYTES as u64));
    assert_eq!(s.recover().unwrap(), 2);
    for at in [4 * GIB - 1, 4 * GIB, BYTES - 1] {
        wide.part(at, 1)[0] ^= 0x55;
    }
    assert_eq!(wide.differs(first), None);
    // The one before, by its number.
    wide.fill(|_| vec![0xaa; FILE]);
    s.load(1).unwrap();
    assert_eq!(wide.differs(first), None);
}
