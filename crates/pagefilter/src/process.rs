//! Which process a descriptor of CRIU's is about.

use libc::c_int;

/// The process whose folder in `/proc` this descriptor is of, or a file in it whose name is `inside`.
pub fn of(descriptor: c_int, inside: &[u8]) -> Option<u32> {
    let mut target = [0; 64];
    let length = read_link(descriptor, &mut target)?;
    number(target.get(..length)?.strip_suffix(inside)?)
}

/// Device and inode of the file that this descriptor is of.
pub fn identity(descriptor: c_int) -> Option<[u64; 2]> {
    // SAFETY: all zeros are an answer, which is as long as is expected.
    unsafe {
        let mut answer = core::mem::zeroed::<libc::stat>();
        (libc::fstat(descriptor, &raw mut answer) == 0).then_some([answer.st_dev, answer.st_ino])
    }
}

/// Where `/proc/self/fd/N` leads; the bytes written.
fn read_link(descriptor: c_int, target: &mut [u8]) -> Option<usize> {
    const FOLDER: &[u8] = b"/proc/self/fd/";
    let mut path = [0; FOLDER.len() + 11];
    path[..FOLDER.len()].copy_from_slice(FOLDER);
    let number = u32::try_from(descriptor).ok()?;
    decimal(number, path.get_mut(FOLDER.len()..)?)?;
    // SAFETY: the path ends with a zero; the buffer is as long as is said.
    let length = unsafe {
        libc::readlink(
            path.as_ptr().cast(),
            target.as_mut_ptr().cast(),
            target.len(),
        )
    };
    usize::try_from(length).ok()
}

/// Writes `number` in decimal to the beginning of `space`; the digits, if there is room for them.
pub fn decimal(mut number: u32, space: &mut [u8]) -> Option<&[u8]> {
    let count = number.checked_ilog10().unwrap_or(0) as usize + 1;
    let digits = space.get_mut(..count)?;
    for place in digits.iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
    }
    Some(digits)
}

/// The decimal number behind the last slash.
fn number(path: &[u8]) -> Option<u32> {
    let name = path.rsplit(|byte| *byte == b'/').next()?;
    let is_decimal = name.iter().all(u8::is_ascii_digit);
    str::from_utf8(name)
        .ok()
        .filter(|_| is_decimal)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_by_its_folder() {
        assert_eq!(number(b"/proc/123"), Some(123));
        assert_eq!(number(b"/7"), Some(7));
        for other in [&b"/proc"[..], b"/proc/1a", b"/proc/", b""] {
            assert_eq!(number(other), None);
        }
    }

    #[test]
    fn a_number_is_written_in_decimal() {
        for number in [0, 7, 10, 3441, u32::MAX] {
            let digits = number.to_string();
            let mut space = [b'x'; 16];
            assert_eq!(decimal(number, &mut space), Some(digits.as_bytes()));
            assert_eq!(decimal(number, &mut space[..digits.len() - 1]), None);
        }
    }

    #[test]
    fn a_descriptor_is_found_by_its_number() {
        for number in [0, 9, 10, 123] {
            let mut target = [0; 64];
            // SAFETY: a copy of standard output at a number that this test may take.
            let own = unsafe { libc::fcntl(1, libc::F_DUPFD, number) };
            assert!(own >= number && read_link(own, &mut target).is_some_and(|it| it > 0));
            // SAFETY: the copy is this test's own.
            unsafe { libc::close(own) };
            assert_eq!(read_link(own, &mut target), None);
        }
        assert_eq!(read_link(-1, &mut [0; 64]), None);
    }
}
