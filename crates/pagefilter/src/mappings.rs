//! CRIU's question for mappings.
//!
//! CRIU reads `/proc/PID/smaps` for the flags of mappings, and the kernel counts every page of the process for it, 15 to 20 ms
//! for each GiB. The daemon has a faster way (`fermata-hostmem`, `mappings`): it is asked for a file with the lines that CRIU
//! reads.
//!
//! ```text
//!  openat64(/proc/PID, "smaps") ─► PID, in decimal ─► daemon ─► PID and a descriptor: that is the answer
//!                                                            └► PID: none; so is no answer within a second: the system call
//! ```
//! An answer that comes late would be taken for that to the next question. So after a question without an answer to it this
//! library shuts the socket down, and CRIU reads all further mappings from the kernel.

use core::ffi::CStr;
use core::mem::{MaybeUninit, size_of};
use core::ptr;

use libc::{c_char, c_int, c_uint, c_void};

/// The conversation with the daemon in a CRIU of ours.
const DAEMON: Daemon = Daemon {
    socket: 98,
    time: libc::timeval {
        tv_sec: 1,
        tv_usec: 0,
    },
};
/// The longest answer.
const MOST_BYTES: usize = 16;

/// A conversation with the daemon.
struct Daemon {
    socket: c_int,
    /// How long the daemon may take.
    time: libc::timeval,
}

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
    DAEMON.ask(number(target.get(..length)?)?)
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

impl Daemon {
    /// The answer for process `pid`, in decimal.
    fn ask(&self, pid: &[u8]) -> Option<c_int> {
        // SAFETY: the value is as long as is said.
        let set = unsafe {
            let time = (&raw const self.time).cast();
            let length = size_of::<libc::timeval>() as libc::socklen_t;
            libc::setsockopt(
                self.socket,
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                time,
                length,
            )
        };
        if set != 0 {
            // There is no daemon.
            return None;
        }
        let flags = libc::MSG_NOSIGNAL;
        // SAFETY: the buffer is live and as long as is said.
        let sent = unsafe { libc::send(self.socket, pid.as_ptr().cast(), pid.len(), flags) };
        if sent != pid.len() as isize {
            return None;
        }
        let mut answer = [0; MOST_BYTES];
        let (length, file) = self.receive(&mut answer);
        if length.and_then(|it| answer.get(..it)) == Some(pid) {
            return file;
        }
        // SAFETY: the calls take numbers only; the descriptor came with the message, and nothing else has it.
        unsafe {
            libc::shutdown(self.socket, libc::SHUT_RDWR);
            file.map(|it| libc::close(it));
        }
        None
    }

    /// The bytes of the next message, none if none comes in time, and its descriptor.
    fn receive(&self, text: &mut [u8]) -> (Option<usize>, Option<c_int>) {
        #[repr(align(8))]
        struct Control([u8; 64]);
        let mut part = libc::iovec {
            iov_base: text.as_mut_ptr().cast(),
            iov_len: text.len(),
        };
        let mut control = Control([0; 64]);
        // SAFETY: all zeros are a message without parts.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast::<c_void>();
        message.msg_controllen = control.0.len();
        let flags = libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the message names live buffers with their lengths.
        let received = unsafe { libc::recvmsg(self.socket, &raw mut message, flags) };
        let Ok(length) = usize::try_from(received) else {
            return (None, None);
        };
        // SAFETY: the kernel has filled the message; a header that it gives lies in `control`, and so does the descriptor
        // behind one of this kind.
        let file = unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            let is_rights = !header.is_null()
                && (*header).cmsg_level == libc::SOL_SOCKET
                && (*header).cmsg_type == libc::SCM_RIGHTS;
            is_rights.then(|| ptr::read_unaligned(libc::CMSG_DATA(header).cast::<c_int>()))
        };
        (Some(length), file)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Write as _};
    use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

    use super::*;

    /// A conversation in which no answer is waited for, and the daemon's end of it.
    fn conversation() -> (Daemon, [OwnedFd; 2]) {
        let mut ends = [-1; 2];
        // SAFETY: the kernel writes two descriptors, which nothing else owns.
        let ends = unsafe {
            let made = libc::socketpair(
                libc::AF_UNIX,
                libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC,
                0,
                ends.as_mut_ptr(),
            );
            assert_eq!(made, 0);
            ends.map(|it| OwnedFd::from_raw_fd(it))
        };
        let daemon = Daemon {
            socket: ends[0].as_raw_fd(),
            time: libc::timeval {
                tv_sec: 0,
                tv_usec: 1,
            },
        };
        (daemon, ends)
    }

    /// Sends an answer with the reading end of a pipe that holds `content`, if there is some; whether it could be sent.
    fn answer(end: &OwnedFd, text: &[u8], content: Option<&[u8]>) -> bool {
        let file = content.map(|content| {
            let (reader, mut writer) = std::io::pipe().expect("a pipe");
            writer.write_all(content).expect("written");
            reader
        });
        let mut part = libc::iovec {
            iov_base: text.as_ptr().cast_mut().cast(),
            iov_len: text.len(),
        };
        let mut control = [0_u64; 3];
        // SAFETY: all zeros are a message without parts; then it names live buffers with their lengths, of which the second
        // has space for one descriptor.
        unsafe {
            let mut message: libc::msghdr = MaybeUninit::zeroed().assume_init();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            if let Some(file) = &file {
                message.msg_control = control.as_mut_ptr().cast();
                message.msg_controllen = libc::CMSG_SPACE(4) as usize;
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
                ptr::write_unaligned(libc::CMSG_DATA(header).cast(), file.as_raw_fd());
            }
            libc::sendmsg(end.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) >= 0
        }
    }

    #[test]
    fn an_answer_is_the_file_of_the_process_that_was_asked_for() {
        let (daemon, [_ours, theirs]) = conversation();
        // The daemon may have no file for one; the next ones are asked for all the same.
        assert!(answer(&theirs, b"7", None));
        assert_eq!(daemon.ask(b"7"), None);
        assert!(answer(&theirs, b"8", Some(b"of 8")));
        let file = daemon.ask(b"8").expect("a file");
        let mut text = String::new();
        // SAFETY: a descriptor of this test's own.
        let mut file = unsafe { File::from_raw_fd(file) };
        file.read_to_string(&mut text).expect("read");
        assert_eq!(text, "of 8");
    }

    #[test]
    fn a_late_answer_is_not_that_of_the_next_process() {
        let (daemon, [_ours, theirs]) = conversation();
        assert_eq!(daemon.ask(b"7"), None);
        answer(&theirs, b"7", Some(b"of 7"));
        assert_eq!(daemon.ask(b"8"), None);
        // Nothing more is asked, and the daemon's thread ends.
        assert_eq!(daemon.ask(b"7"), None);
        assert!(!answer(&theirs, b"7", None));
    }

    #[test]
    fn an_answer_for_another_process_is_refused() {
        let (daemon, [_ours, theirs]) = conversation();
        assert!(answer(&theirs, b"7", Some(b"of 7")));
        assert!(answer(&theirs, b"8", Some(b"of 8")));
        assert_eq!(daemon.ask(b"8"), None);
        assert_eq!(daemon.ask(b"8"), None);
    }

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
