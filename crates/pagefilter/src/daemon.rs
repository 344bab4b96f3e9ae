//! The conversation with the daemon.
//!
//! ```text
//!  PID, in decimal ─► daemon ─► PID, a descriptor, and others for lists (`mappings`)
//!  "connections"   ─► daemon ─► "connections", a descriptor for the list of them (`connections`)
//!  "dumped"        ─► daemon
//!                            └► what was asked, and no descriptor; so is no answer within a second: the kernel is asked
//! ```
//! An answer that comes late would be taken for that to the next question. So after a question without an answer to it this
//! library shuts the socket down, and CRIU asks the kernel for all that it wants to know from then on.

use core::mem::{MaybeUninit, size_of};
use core::ptr;

use libc::{c_int, c_void};

/// That of a CRIU of ours.
pub const DAEMON: Daemon = Daemon {
    socket: 98,
    time: libc::timeval {
        tv_sec: 1,
        tv_usec: 0,
    },
};
/// The longest answer, and the most descriptors that come with it.
const MOST_BYTES: usize = 16;
const MOST_FILES: usize = 5;

/// A conversation with the daemon.
pub struct Daemon {
    socket: c_int,
    /// How long the daemon may take.
    time: libc::timeval,
}

impl Daemon {
    /// Says this; if it does not get through, the daemon finds out later.
    pub fn tell(&self, what: &[u8]) {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the buffer is live and as long as is said.
        unsafe { libc::send(self.socket, what.as_ptr().cast(), what.len(), flags) };
    }

    /// The descriptors that come with the answer to this question, -1 for each that does not; none if not even the first does.
    pub fn ask(&self, question: &[u8]) -> Option<[c_int; MOST_FILES]> {
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
        let sent =
            unsafe { libc::send(self.socket, question.as_ptr().cast(), question.len(), flags) };
        if sent != question.len() as isize {
            return None;
        }
        let mut answer = [0; MOST_BYTES];
        let (length, files) = self.receive(&mut answer);
        if length.and_then(|it| answer.get(..it)) == Some(question) {
            return (files[0] >= 0).then_some(files);
        }
        // SAFETY: the calls take numbers only; the descriptors came with the message, and nothing else has them.
        unsafe {
            libc::shutdown(self.socket, libc::SHUT_RDWR);
            for file in files {
                libc::close(file);
            }
        }
        None
    }

    /// The bytes of the next message, none if none comes in time, and its descriptors, -1 for each that it lacks.
    fn receive(&self, text: &mut [u8]) -> (Option<usize>, [c_int; MOST_FILES]) {
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
        let mut files = [-1; MOST_FILES];
        let Ok(length) = usize::try_from(received) else {
            return (None, files);
        };
        // SAFETY: the kernel has filled the message; a header that it gives lies in `control`, and so do the descriptors behind
        // one of this kind, of which its length tells the number.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            let is_rights = !header.is_null()
                && (*header).cmsg_level == libc::SOL_SOCKET
                && (*header).cmsg_type == libc::SCM_RIGHTS;
            if is_rights {
                let bytes =
                    ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let first = libc::CMSG_DATA(header).cast::<c_int>();
                for (at, file) in files
                    .iter_mut()
                    .take(bytes / size_of::<c_int>())
                    .enumerate()
                {
                    *file = ptr::read_unaligned(first.add(at));
                }
            }
        }
        (Some(length), files)
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

    /// Sends an answer with the reading ends of pipes that hold `contents`; whether it could be sent.
    fn answer(end: &OwnedFd, text: &[u8], contents: &[&[u8]]) -> bool {
        let file = |content: &&[u8]| {
            let (reader, mut writer) = std::io::pipe().expect("a pipe");
            writer.write_all(content).expect("written");
            reader
        };
        let files: Vec<_> = contents.iter().map(file).collect();
        let mut part = libc::iovec {
            iov_base: text.as_ptr().cast_mut().cast(),
            iov_len: text.len(),
        };
        let mut control = [0_u64; 5];
        let bytes = size_of::<c_int>() * files.len();
        // SAFETY: all zeros are a message without parts; then it names live buffers with their lengths, of which the second
        // has space for five descriptors.
        unsafe {
            let mut message: libc::msghdr = MaybeUninit::zeroed().assume_init();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            if !files.is_empty() {
                message.msg_control = control.as_mut_ptr().cast();
                message.msg_controllen = libc::CMSG_SPACE(bytes as u32) as usize;
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(bytes as u32) as usize;
                let first = libc::CMSG_DATA(header).cast::<c_int>();
                for (at, file) in files.iter().enumerate() {
                    ptr::write_unaligned(first.add(at), file.as_raw_fd());
                }
            }
            libc::sendmsg(end.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) >= 0
        }
    }

    fn read(file: c_int) -> String {
        let mut text = String::new();
        // SAFETY: a descriptor of this test's own.
        let mut file = unsafe { File::from_raw_fd(file) };
        file.read_to_string(&mut text).expect("read");
        text
    }

    #[test]
    fn an_answer_is_the_file_of_the_process_that_was_asked_for() {
        let (daemon, [_ours, theirs]) = conversation();
        // The daemon may have no file for one; the next ones are asked for all the same.
        assert!(answer(&theirs, b"7", &[]));
        assert_eq!(daemon.ask(b"7"), None);
        // An older daemon has fewer lists.
        assert!(answer(&theirs, b"8", &[b"of 8"]));
        let [file, lists @ ..] = daemon.ask(b"8").expect("a file");
        assert_eq!((read(file), lists), ("of 8".to_owned(), [-1; 4]));
        let all = ["of 9", "without", "pages", "guards", "private"];
        assert!(answer(&theirs, b"9", &all.map(str::as_bytes)));
        let files = daemon.ask(b"9").expect("five files");
        assert_eq!(files.map(read), all);
    }

    #[test]
    fn a_late_answer_is_not_that_of_the_next_process() {
        let (daemon, [_ours, theirs]) = conversation();
        assert_eq!(daemon.ask(b"7"), None);
        answer(&theirs, b"7", &[b"of 7"]);
        assert_eq!(daemon.ask(b"8"), None);
        // Nothing more is asked, and the daemon's thread ends.
        assert_eq!(daemon.ask(b"7"), None);
        assert!(!answer(&theirs, b"7", &[]));
    }

    #[test]
    fn an_answer_for_another_process_is_refused() {
        let (daemon, [_ours, theirs]) = conversation();
        assert!(answer(&theirs, b"7", &[b"of 7"]));
        assert!(answer(&theirs, b"8", &[b"of 8"]));
        assert_eq!(daemon.ask(b"8"), None);
        assert_eq!(daemon.ask(b"8"), None);
    }
}
