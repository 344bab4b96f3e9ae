//! One change to what CRIU has recorded of a process (`core-PID.img`).
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | two magic numbers |
//! | 8 | 4 + n | length and record; field numbers as in CRIU's `core.proto` |
//!
//! The library in a program registers it for barriers of the worker (`membarrier`). CRIU would do that again
//! while it restores the program, and the kernel lets it wait until every processor has come by, 5 to 30 ms.
//! The library does it itself, behind the running program, so the record is cleared.

use std::fs::{self, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Where the record begins.
const RECORD: usize = 12;
/// Number of the field with a process's own part.
const PROCESS: u64 = 3;
/// Number of its field with the registrations, one bit each.
const REGISTRATIONS: u64 = 22;
/// `MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED`, the one that the library makes.
const OURS: u8 = 4;

/// Clears the registration in every record in `dir`.
///
/// # Errors
/// A record cannot be read or written.
pub fn clear_registrations(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_core = |name: &str| name.starts_with("core-") && name.ends_with(".img");
        if !name.to_str().is_some_and(is_core) {
            continue;
        }
        let bytes = fs::read(entry.path())?;
        if let Some((at, value)) = registrations(&bytes)
            && value & OURS != 0
        {
            let file = OpenOptions::new().write(true).open(entry.path())?;
            file.write_all_at(&[value & !OURS], at as u64)?;
        }
    }
    Ok(())
}

/// Place and value of the registrations' first byte, which has [`OURS`].
fn registrations(bytes: &[u8]) -> Option<(usize, u8)> {
    let process = field(bytes, RECORD..bytes.len(), PROCESS)?;
    let value = field(bytes, process, REGISTRATIONS)?;
    Some((value.start, bytes[value.start]))
}

/// The value of the first field `number` of the message in `range`.
pub fn field(bytes: &[u8], range: Range<usize>, number: u64) -> Option<Range<usize>> {
    let mut at = range.start;
    while at < range.end {
        let (found, value) = next_field(bytes, at, range.end)?;
        if found == number {
            return Some(value);
        }
        at = value.end;
    }
    None
}

/// A message without its fields of these numbers.
pub fn without(message: &[u8], numbers: &[u64]) -> Option<Vec<u8>> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < message.len() {
        let (found, value) = next_field(message, at, message.len())?;
        if !numbers.contains(&found) {
            kept.extend(&message[at..value.end]);
        }
        at = value.end;
    }
    Some(kept)
}

/// Number and value of the field that begins at `at`, of a message that ends at `end`. The field ends with its value.
fn next_field(bytes: &[u8], mut at: usize, end: usize) -> Option<(u64, Range<usize>)> {
    let key = varint(bytes, &mut at)?;
    let start = match key & 7 {
        2 => {
            let length = usize::try_from(varint(bytes, &mut at)?).ok()?;
            let start = at;
            at = at.checked_add(length)?;
            start
        }
        kind => {
            let start = at;
            match kind {
                0 => drop(varint(bytes, &mut at)?),
                1 => at += 8,
                5 => at += 4,
                _ => return None,
            }
            start
        }
    };
    (at <= end).then_some((key >> 3, start..at))
}

fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Magic numbers and length, a varint, and the process's part: a string, then the registrations.
    const CORE: [u8; 22] = [
        1, 2, 3, 4, 5, 6, 7, 8, 10, 0, 0, 0, 0x08, 1, 0x1a, 6, 0x32, 1, b'p', 0xb0, 0x01, 0x14,
    ];

    #[test]
    fn only_the_librarys_registration_is_cleared() {
        let dir = std::env::temp_dir().join(format!("fermata-core-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder");
        fs::write(dir.join("core-7.img"), CORE).expect("written");
        fs::write(dir.join("mm-7.img"), CORE).expect("written");
        clear_registrations(&dir).expect("cleared");
        let mut expected = CORE;
        expected[21] = 0x10;
        assert_eq!(fs::read(dir.join("core-7.img")).expect("read"), expected);
        assert_eq!(fs::read(dir.join("mm-7.img")).expect("read"), CORE);
        fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn fields_can_be_left_out_of_a_message() {
        let fields: [&[u8]; 4] = [
            &[0x08, 0x96, 1],
            &[0x12, 2, 8, 1],
            &[0x1d, 1, 2, 3, 4],
            &[0x08, 7],
        ];
        let message = fields.concat();
        let kept = |numbers: &[u64]| without(&message, numbers).expect("a message");
        assert_eq!(kept(&[1]), [fields[1], fields[2]].concat());
        assert_eq!(kept(&[2, 3, 9]), [fields[0], fields[3]].concat());
        assert_eq!(without(&message[..6], &[1]), None);
    }

    #[test]
    fn what_is_cut_or_lacks_it_is_left_alone() {
        for length in 0..CORE.len() {
            assert_eq!(registrations(&CORE[..length]), None, "{length}");
        }
        let mut thread = CORE;
        thread[14] = 0x2a;
        assert_eq!(registrations(&thread), None);
    }
}
