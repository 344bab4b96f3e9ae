//! CRIU's question for mappings.
//!
//! CRIU reads `/proc/PID/smaps` for the flags of mappings, and the kernel counts every page of the process for it, 15 to 20 ms
//! for each GiB. The daemon has a faster way (`fermata-hostmem`, `mappings`): it is asked for a file with the lines that CRIU
//! reads.
//!
//! ```text
//!  openat64(/proc/PID, "smaps") ─► PID, in decimal ─► daemon ─► "" and a descriptor: that is the answer
//!                                                            └► "": none; so is no answer within a second: the system call
//! ```

use core::ffi::CStr;
use core::mem::{MaybeUninit, size_of};
use core::ptr;

use libc::{c_char, c_int, c_uint, c_void};

/// The socket to the daemon in a CRIU of ours.
const SOCKET: c_int = 98;
/// How long the daemon may take.
static TIME: libc::timeval = libc::timeval {
    tv_sec: 1,
    tv_usec: 0,
};

/// `openat(2)`: the system call, but for the mappings of a process.
///
/// # Safety
/// As the system call with these arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat64(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    // SAFETY: the caller's path is a string.
    let is_mappings = !path.is_null() && unsafe { CStr::from_ptr(path) } == c"smaps";
    if is_mappings && let Some(file) = ask(folder) {
        return file;
    }
    // SAFETY: the caller's own call.
    unsafe { libc::syscall(libc::SYS_openat, folder, path, flags, mode) as c_int }
}

/// The daemon's answer for the process whose folder in `/proc` this is.
fn ask(folder: c_int) -> Option<c_int> {
    let mut target = [0; 64];
    let length = read_link(folder, &mut target)?;
    let pid = number(target.get(..length)?)?;
    // SAFETY: the value is as long as is said.
    let set = unsafe {
        let time = (&raw const TIME).cast();
        let length = size_of::<libc::timeval>() as libc::socklen_t;
        libc::setsockopt(SOCKET, libc::SOL_SOCKET, libc::SO_RCVTIMEO, time, length)
    };
    if set != 0 {
        // There is no daemon.
        return None;
    }
    // SAFETY: the buffer is live and as long as is said.
    let sent = unsafe { libc::send(SOCKET, pid.as_ptr().cast(), pid.len(), libc::MSG_NOSIGNAL) };
    (sent == pid.len() as isize).then(receive)?
}

/// Where `/proc/self/fd/N` leads; the bytes written.
fn read_link(descriptor: c_int, target: &mut [u8]) -> Option<usize> {
    const FOLDER: &[u8] = b"/proc/self/fd/";
    let mut path = [0; FOLDER.len() + 11];
    path[..FOLDER.len()].copy_from_slice(FOLDER);
    let mut rest = u32::try_from(descriptor).ok()?;
    let digits = rest.checked_ilog10().unwrap_or(0) as usize + 1;
    for place in path
        .get_mut(FOLDER.len()..FOLDER.len() + digits)?
        .iter_mut()
        .rev()
    {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
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

/// The decimal number behind the last slash.
fn number(path: &[u8]) -> Option<&[u8]> {
    let name = path.rsplit(|byte| *byte == b'/').next()?;
    (!name.is_empty() && name.iter().all(u8::is_ascii_digit)).then_some(name)
}

/// A message's descriptor.
fn receive() -> Option<c_int> {
    #[repr(align(8))]
    struct Control([u8; 64]);
    let mut byte = 0_u8;
    let mut part = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let mut control = Control([0; 64]);
    // SAFETY: all zeros are a message without parts.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast::<c_void>();
    message.msg_controllen = control.0.len();
    // SAFETY: the message names live buffers with their lengths.
    let received = unsafe { libc::recvmsg(SOCKET, &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    if received < 0 {
        return None;
    }
    // SAFETY: the kernel has filled the message; a header that it gives lies in `control`, and so does the descriptor behind
    // one of this kind.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let is_rights = !header.is_null()
            && (*header).cmsg_level == libc::SOL_SOCKET
            && (*header).cmsg_type == libc::SCM_RIGHTS;
        is_rights.then(|| ptr::read_unaligned(libc::CMSG_DATA(header).cast::<c_int>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_by_its_folder() {
        assert_eq!(number(b"/proc/123"), Some(&b"123"[..]));
        assert_eq!(number(b"/7"), Some(&b"7"[..]));
        for other in [&b"/proc"[..], b"/proc/1a", b"/proc/", b""] {
            assert_eq!(number(other), None);
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

    #[test]
    fn without_a_daemon_the_kernel_answers() {
        // SAFETY: strings that live as long as the calls.
        unsafe {
            let folder = libc::open(c"/proc/self".as_ptr(), libc::O_PATH);
            let file = openat64(folder, c"smaps".as_ptr(), libc::O_RDONLY, 0);
            assert!(file >= 0);
            let mut byte = 0_u8;
            assert_eq!(libc::read(file, (&raw mut byte).cast(), 1), 1);
            libc::close(file);
            libc::close(folder);
        }
    }
}
