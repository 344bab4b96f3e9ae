//! CRIU's question for TCP sockets.
//!
//! CRIU asks the kernel for all TCP sockets of the machine, once for each version of IP, and the kernel looks through a table whose size goes with
//! the machine's memory: 4.5 ms each time with 128 GiB. Of processes that have no connections CRIU needs none but the sockets that listen, which are
//! in a table of their own. The daemon says whether they have any (`daemon`).

use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use libc::{c_int, c_long, msghdr, ssize_t};

use crate::daemon::DAEMON;

const QUESTION: &[u8] = b"connections";

/// `SOCK_DIAG_BY_FAMILY`, and the flags of a question for all sockets.
const BY_FAMILY: u16 = 20;
const ALL: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
/// Sockets that listen, in a set of states.
const LISTENING: u32 = 1 << 10;

/// A `struct nlmsghdr`, and the `struct inet_diag_req_v2` behind it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Request {
    length: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
    family: u8,
    protocol: u8,
    extensions: u8,
    padding: u8,
    states: u32,
    socket: [u32; 12],
}

/// A question for sockets that listen, in place of one for all TCP sockets; none for other questions.
fn narrowed(request: &Request) -> Option<Request> {
    let families = [libc::AF_INET, libc::AF_INET6];
    let asks = request.length as usize == size_of::<Request>()
        && request.kind == BY_FAMILY
        && request.flags == ALL
        && families.contains(&request.family.into())
        && c_int::from(request.protocol) == libc::IPPROTO_TCP
        && request.states & LISTENING != 0;
    asks.then_some(Request {
        states: LISTENING,
        ..*request
    })
}

/// The request that this message is, if it is as long as one.
///
/// # Safety
/// The message is one that can be sent.
unsafe fn request(message: *const msghdr) -> Option<Request> {
    // SAFETY: the caller's message names its parts, which are as long as it says.
    unsafe {
        let message = message.as_ref()?;
        let part = message
            .msg_iov
            .as_ref()
            .filter(|_| message.msg_iovlen == 1)?;
        let fits = part.iov_len == size_of::<Request>() && !part.iov_base.is_null();
        fits.then(|| ptr::read_unaligned(part.iov_base.cast()))
    }
}

/// What the daemon has said, which holds for as long as the processes stand still, and with that for all of a dump.
static NONE: AtomicBool = AtomicBool::new(false);

/// Whether the processes have no connections.
fn have_none() -> bool {
    if NONE.load(Relaxed) {
        return true;
    }
    let Some(files) = DAEMON.ask(QUESTION) else {
        return false;
    };
    NONE.store(true, Relaxed);
    for file in files {
        // SAFETY: the call takes a number; the descriptors came with the answer, and nothing else has them.
        unsafe { libc::close(file) };
    }
    true
}

/// `sendmsg(2)`: the system call, but for the question for TCP sockets.
///
/// # Safety
/// As the system call with these arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's own message.
    let narrowed = unsafe { request(message) }.and_then(|it| narrowed(&it));
    let send = |message: *const msghdr| -> c_long {
        // SAFETY: the caller's own call, or one whose message lies on this stack.
        unsafe { libc::syscall(libc::SYS_sendmsg, fd, message, flags) }
    };
    let Some(mut request) = narrowed.filter(|_| have_none()) else {
        return send(message) as ssize_t;
    };
    let mut part = libc::iovec {
        iov_base: (&raw mut request).cast(),
        iov_len: size_of::<Request>(),
    };
    let mut other = MaybeUninit::<msghdr>::uninit();
    // SAFETY: the caller's message, of which a request was read.
    let other = unsafe {
        other.write(message.read());
        other.assume_init_mut()
    };
    other.msg_iov = &raw mut part;
    send(other) as ssize_t
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Request = Request {
        length: 72,
        kind: BY_FAMILY,
        flags: ALL,
        sequence: 24680,
        port: 0,
        family: libc::AF_INET as u8,
        protocol: libc::IPPROTO_TCP as u8,
        extensions: 0,
        padding: 0,
        states: 0x5be,
        socket: [0; 12],
    };

    #[test]
    fn only_the_question_for_all_tcp_sockets_is_narrowed() {
        assert_eq!(size_of::<Request>(), 72);
        for family in [libc::AF_INET, libc::AF_INET6] {
            let family = family as u8;
            let asked = Request { family, ..ASKED };
            let told = narrowed(&asked).expect("CRIU's question");
            let expected = Request {
                states: LISTENING,
                ..asked
            };
            assert_eq!(format!("{told:?}"), format!("{expected:?}"));
        }
        let udp = libc::IPPROTO_UDP as u8;
        let of_one = libc::NLM_F_REQUEST as u16;
        let others = [
            Request {
                protocol: udp,
                ..ASKED
            },
            Request {
                flags: of_one,
                ..ASKED
            },
            Request { kind: 21, ..ASKED },
            Request {
                length: 71,
                ..ASKED
            },
            Request { states: 2, ..ASKED },
            Request {
                family: libc::AF_UNIX as u8,
                ..ASKED
            },
        ];
        for other in others {
            assert!(narrowed(&other).is_none(), "{other:?}");
        }
    }

    #[test]
    fn a_message_that_is_no_request_is_none() {
        let mut bytes = [0_u8; 80];
        let mut told = |parts: usize, length: usize| {
            let mut part = libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: length,
            };
            // SAFETY: all zeros are a message without parts; then it names a live buffer.
            unsafe {
                let mut message: msghdr = core::mem::zeroed();
                message.msg_iov = &raw mut part;
                message.msg_iovlen = parts;
                request(&raw const message).is_some()
            }
        };
        assert!(told(1, 72));
        assert!(!told(1, 71) && !told(1, 80) && !told(0, 72));
        // SAFETY: there is nothing to read.
        assert!(unsafe { request(ptr::null()) }.is_none());
    }
}
