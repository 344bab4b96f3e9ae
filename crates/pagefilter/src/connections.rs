//! CRIU's question for TCP sockets.
//!
//! CRIU asks the kernel for all TCP sockets of the machine, once for each version of IP, and the kernel looks through a table whose size goes with
//! the machine's memory: 4.5 ms each time with 128 GiB. CRIU needs those of the processes that it dumps. The daemon lists their
//! connections (`daemon`), and the kernel finds each by its addresses at once. Sockets that listen are in a table of their own, for which
//! it is asked as CRIU does.
//!
//! ```text
//!  sendmsg(all of IPv4) ─┬► each connection of IPv4 that is listed ─► the kernel's answer is kept
//!                        └► those that listen
//!  recvmsg              ◄── what was kept, then what the kernel says
//! ```
//! If there is no list, or one of them is not found, the kernel is asked for all.

use core::cell::UnsafeCell;
use core::mem::{MaybeUninit, size_of};
use core::ptr;
use core::slice;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::Relaxed};

use libc::{c_int, c_void, msghdr, ssize_t};

use crate::daemon::DAEMON;
use crate::list::List;

const QUESTION: &[u8] = b"connections";

/// `SOCK_DIAG_BY_FAMILY`, and the flags of a question for all sockets.
const BY_FAMILY: u16 = 20;
const ALL: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
/// Sockets that listen, in a set of states.
const LISTENING: u32 = 1 << 10;
/// In place of a socket's cookie, which is not known.
const ANY: u32 = u32::MAX;

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
    socket: Socket,
}

/// A `struct inet_diag_sockid`, whose ports and addresses are as on the wire.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Socket {
    ports: [u16; 2],
    own: [u32; 4],
    other: [u32; 4],
    interface: u32,
    cookie: [u32; 2],
}

/// What an answer begins with: a `struct nlmsghdr`, and the `struct inet_diag_msg` behind it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Answer {
    length: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
    states: [u8; 4],
    socket: Socket,
    expires: u32,
    queues: [u32; 2],
    user: u32,
    inode: u32,
}

/// A connection as the daemon lists it: its family, and the interface that it is bound to, in the upper half; its inode; its port, and the other end's
/// in the next 16 bits, as on the wire; its address and the other one, 16 bytes each.
type Listed = [u64; 7];

/// Those of the processes that are dumped, if the daemon has said so. It holds for as long as they stand still, and with that for all of a dump.
static CONNECTIONS: List<7> = List::new();
/// Whether the daemon was asked.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Answers that are kept.
static KEPT: Kept = Kept::new();

/// The longest answer of the kernel's for one socket, and the bytes that are kept at most.
const MOST_LONG: usize = 1 << 10;
const MOST_KEPT: usize = 64 << 10;

/// Answers of the kernel's for single sockets, which are handed out as if they were those for all.
struct Kept {
    /// The descriptor that they came by, -1 if there are none.
    by: AtomicI32,
    bytes: UnsafeCell<[u8; MOST_KEPT]>,
    length: AtomicUsize,
    told: AtomicUsize,
}

// SAFETY: CRIU has one thread.
unsafe impl Sync for Kept {}

impl Kept {
    const fn new() -> Self {
        Self {
            by: AtomicI32::new(-1),
            bytes: UnsafeCell::new([0; MOST_KEPT]),
            length: AtomicUsize::new(0),
            told: AtomicUsize::new(0),
        }
    }

    /// Forgets what was kept, and keeps what comes by this descriptor.
    fn begin(&self, by: c_int) {
        self.by.store(by, Relaxed);
        self.length.store(0, Relaxed);
        self.told.store(0, Relaxed);
    }

    /// Keeps an answer; whether there is room for it.
    fn add(&self, answer: &[u8]) -> bool {
        let length = self.length.load(Relaxed);
        let end = length + answer.len().next_multiple_of(4);
        if end > MOST_KEPT {
            return false;
        }
        // SAFETY: CRIU has one thread; the bytes are there by the line above.
        unsafe {
            let place = self.bytes.get().cast::<u8>().add(length);
            ptr::copy_nonoverlapping(answer.as_ptr(), place, answer.len());
        }
        self.length.store(end, Relaxed);
        true
    }

    /// Whether some that came by this descriptor have not been handed out.
    fn has(&self, by: c_int) -> bool {
        by >= 0
            && by == self.by.load(Relaxed)
            && self.told.load(Relaxed) < self.length.load(Relaxed)
    }

    /// Copies the next ones to `room`, as many as fit; how many bytes.
    fn tell(&self, room: &mut [u8]) -> usize {
        let (length, told) = (self.length.load(Relaxed), self.told.load(Relaxed));
        // SAFETY: CRIU has one thread, and so many bytes were kept.
        let left = unsafe {
            let first = self.bytes.get().cast::<u8>().add(told);
            slice::from_raw_parts(first, length - told)
        };
        let mut end = 0;
        while let Some(length) = left.get(end..end + 4) {
            let length = u32::from_ne_bytes([length[0], length[1], length[2], length[3]]) as usize;
            let next = end + length.next_multiple_of(4);
            if length == 0 || next > room.len() || next > left.len() {
                break;
            }
            end = next;
        }
        if let (Some(to), Some(from)) = (room.get_mut(..end), left.get(..end)) {
            to.copy_from_slice(from);
        }
        self.told.store(told + end, Relaxed);
        end
    }
}

/// Whether this is CRIU's question for all TCP sockets.
fn is_for_all(request: &Request) -> bool {
    let families = [libc::AF_INET, libc::AF_INET6];
    request.length as usize == size_of::<Request>()
        && request.kind == BY_FAMILY
        && request.flags == ALL
        && families.contains(&request.family.into())
        && c_int::from(request.protocol) == libc::IPPROTO_TCP
        && request.states & LISTENING != 0
}

/// The same question for this connection; none if it is of another family.
fn for_one(request: &Request, listed: &Listed) -> Option<Request> {
    let [family, _inode, ports, addresses @ ..] = listed;
    let word = |at: usize| (addresses[at / 2] >> (at % 2 * 32)) as u32;
    let is_of = *family as u32 == u32::from(request.family);
    is_of.then(|| Request {
        flags: libc::NLM_F_REQUEST as u16,
        states: 0,
        socket: Socket {
            ports: [*ports as u16, (*ports >> 16) as u16],
            own: [word(0), word(1), word(2), word(3)],
            other: [word(4), word(5), word(6), word(7)],
            interface: (*family >> 32) as u32,
            cookie: [ANY; 2],
        },
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

/// Whether the daemon has listed the connections.
fn are_listed() -> bool {
    if !ASKED.swap(true, Relaxed)
        && let Some([list, others @ ..]) = DAEMON.ask(QUESTION)
    {
        // Any number will do, for they are of all processes.
        CONNECTIONS.take(1, list);
        for file in others {
            // SAFETY: the call takes a number; the descriptors came with the answer, and nothing else has them.
            unsafe { libc::close(file) };
        }
    }
    CONNECTIONS.pid().is_some()
}

/// Asks the kernel by `fd` for each connection that is listed and of the request's family, and keeps the answers; whether all were found.
fn keep_answers(fd: c_int, request: &Request) -> bool {
    KEPT.begin(fd);
    let found = CONNECTIONS.with(|all| {
        let mut asked = all
            .iter()
            .filter_map(|it| Some((it[1], for_one(request, it)?)));
        asked.all(|(inode, request)| find(fd, &request, inode))
    });
    if !found {
        KEPT.begin(-1);
    }
    found
}

/// Asks for one connection, which has this inode, and keeps the answer.
fn find(fd: c_int, request: &Request, inode: u64) -> bool {
    let mut answer = [0_u32; MOST_LONG / 4];
    // SAFETY: the request and the buffer for the answer are live and as long as is said.
    let length = unsafe {
        let length = size_of::<Request>();
        let to_kernel: libc::sockaddr_nl = netlink();
        let address = (&raw const to_kernel).cast::<libc::sockaddr>();
        let address_length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        let bytes = (&raw const *request).cast::<c_void>();
        if libc::sendto(fd, bytes, length, 0, address, address_length) != length as isize {
            return false;
        }
        let room = size_of_val(&answer);
        // The kernel has answered by then.
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        libc::recv(fd, answer.as_mut_ptr().cast(), room, flags)
    };
    let whole = size_of::<Answer>()..=size_of_val(&answer);
    let Some(length) = usize::try_from(length).ok().filter(|it| whole.contains(it)) else {
        return false;
    };
    // SAFETY: so many bytes of the buffer are written, and at least as many as an answer begins with; the buffer is aligned as one.
    let (head, bytes) = unsafe {
        let head = answer.as_ptr().cast::<Answer>().read();
        (head, slice::from_raw_parts(answer.as_ptr().cast(), length))
    };
    let is_it = head.kind == BY_FAMILY
        && head.length as usize == length
        && head.sequence == request.sequence
        && u64::from(head.inode) == inode;
    is_it && KEPT.add(bytes)
}

/// The kernel's end of a netlink socket.
fn netlink() -> libc::sockaddr_nl {
    // SAFETY: all zeros are an address.
    let mut address: libc::sockaddr_nl = unsafe { MaybeUninit::zeroed().assume_init() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address
}

/// `sendmsg(2)`: the system call, but for the question for TCP sockets.
///
/// # Safety
/// As the system call with these arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let send = |message: *const msghdr| -> ssize_t {
        // SAFETY: the caller's own call, or one whose message lies on this stack.
        unsafe { libc::syscall(libc::SYS_sendmsg, fd, message, flags) as ssize_t }
    };
    // SAFETY: the caller's own message.
    let asked = unsafe { request(message) }.filter(is_for_all);
    let Some(asked) = asked.filter(|it| are_listed() && keep_answers(fd, it)) else {
        return send(message);
    };
    let mut narrowed = Request {
        states: LISTENING,
        ..asked
    };
    let mut part = libc::iovec {
        iov_base: (&raw mut narrowed).cast(),
        iov_len: size_of::<Request>(),
    };
    // SAFETY: the caller's message, of which a request was read.
    let mut other = unsafe { message.read() };
    other.msg_iov = &raw mut part;
    send(&raw const other)
}

/// `recvmsg(2)`: the system call, but for answers that are kept.
///
/// # Safety
/// As the system call with these arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's message names its parts, which are as long as it says.
    let told = unsafe {
        let part = message
            .as_ref()
            .filter(|it| it.msg_iovlen == 1)
            .and_then(|it| it.msg_iov.as_ref());
        part.filter(|it| KEPT.has(fd) && !it.iov_base.is_null())
            .map_or(0, |it| {
                KEPT.tell(slice::from_raw_parts_mut(it.iov_base.cast(), it.iov_len))
            })
    };
    if told == 0 {
        // SAFETY: the caller's own call.
        return unsafe { libc::syscall(libc::SYS_recvmsg, fd, message, flags) as ssize_t };
    }
    // SAFETY: the caller's message, of which a part was read.
    unsafe {
        (*message).msg_flags = 0;
        (*message).msg_controllen = 0;
    }
    told as ssize_t
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
    use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
    use std::os::unix::fs::MetadataExt as _;

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
        socket: Socket {
            ports: [0; 2],
            own: [0; 4],
            other: [0; 4],
            interface: 0,
            cookie: [0; 2],
        },
    };

    #[test]
    fn only_the_question_for_all_tcp_sockets_is_changed() {
        assert_eq!((size_of::<Request>(), size_of::<Answer>()), (72, 88));
        let v6 = libc::AF_INET6 as u8;
        assert!(
            is_for_all(&ASKED)
                && is_for_all(&Request {
                    family: v6,
                    ..ASKED
                })
        );
        let udp = libc::IPPROTO_UDP as u8;
        let of_one = libc::NLM_F_REQUEST as u16;
        let unix = libc::AF_UNIX as u8;
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
                family: unix,
                ..ASKED
            },
        ];
        for other in others {
            assert!(!is_for_all(&other), "{other:?}");
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

    /// A connection on this host, as the daemon lists it, and both its ends.
    fn connection(at: SocketAddr) -> (Listed, [TcpStream; 2]) {
        let listener = TcpListener::bind(at).expect("bound");
        let own = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (other, _) = listener.accept().expect("accepted");
        // SAFETY: the descriptor is a copy of this test's own.
        let copy = unsafe { std::fs::File::from_raw_fd(libc::dup(own.as_raw_fd())) };
        let inode = copy.metadata().expect("a socket").ino();
        let ends = [own.local_addr(), own.peer_addr()].map(|it| it.expect("connected"));
        let octets = |at: SocketAddr| match at {
            SocketAddr::V4(it) => {
                let mut all = [0; 16];
                all[..4].copy_from_slice(&it.ip().octets());
                all
            }
            SocketAddr::V6(it) => it.ip().octets(),
        };
        let words = |at: SocketAddr| {
            let octets: [u8; 16] = octets(at);
            let [first, last] = [0, 8].map(|from| octets[from..from + 8].try_into());
            [first, last].map(|it| u64::from_ne_bytes(it.expect("eight")))
        };
        let ports = ends.map(|it| u64::from(it.port().to_be()));
        let family = if at.is_ipv4() {
            libc::AF_INET
        } else {
            libc::AF_INET6
        };
        let ([a, b], [c, d]) = (words(ends[0]), words(ends[1]));
        let listed = [family as u64, inode, ports[0] | ports[1] << 16, a, b, c, d];
        (listed, [own, other])
    }

    fn diagnosis() -> OwnedFd {
        // SAFETY: the descriptor is nobody else's.
        unsafe {
            let how = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
            let fd = libc::socket(libc::AF_NETLINK, how, libc::NETLINK_SOCK_DIAG);
            assert!(fd >= 0);
            OwnedFd::from_raw_fd(fd)
        }
    }

    #[test]
    fn the_kernel_finds_a_connection_by_its_addresses_and_no_other() {
        let fd = diagnosis();
        let addresses: [SocketAddr; 2] = [
            (Ipv4Addr::LOCALHOST, 0).into(),
            (Ipv6Addr::LOCALHOST, 0).into(),
        ];
        let there = |it: &SocketAddr| TcpListener::bind(it).is_ok();
        let all: Vec<_> = addresses
            .into_iter()
            .filter(there)
            .map(connection)
            .collect();
        assert!(!all.is_empty(), "there is IPv4, or IPv6");
        for (listed, _) in &all {
            let family = listed[0] as u8;
            let asked = Request { family, ..ASKED };
            KEPT.begin(fd.as_raw_fd());
            let one = for_one(&asked, listed).expect("of this family");
            assert!(!find(fd.as_raw_fd(), &one, listed[1] + 1), "it is another");
            let mut nowhere = one;
            nowhere.socket.ports[0] ^= 0x0101;
            assert!(!find(fd.as_raw_fd(), &nowhere, listed[1]), "there is none");
            assert!(!KEPT.has(fd.as_raw_fd()));
            assert!(find(fd.as_raw_fd(), &one, listed[1]));
            assert!(KEPT.has(fd.as_raw_fd()) && !KEPT.has(fd.as_raw_fd() + 1));
            let mut room = [0_u8; 512];
            assert_eq!(KEPT.tell(&mut room[..40]), 0, "it does not fit");
            let told = KEPT.tell(&mut room);
            // SAFETY: a whole answer was copied.
            let answer: Answer = unsafe { room.as_ptr().cast::<Answer>().read_unaligned() };
            assert_eq!((answer.length as usize).next_multiple_of(4), told);
            assert_eq!(answer.socket.ports, one.socket.ports);
            assert_eq!(answer.sequence, ASKED.sequence);
            assert!(!KEPT.has(fd.as_raw_fd()), "all is handed out");
            let other = match i32::from(family) {
                libc::AF_INET => libc::AF_INET6,
                _ => libc::AF_INET,
            };
            let family = other as u8;
            assert!(for_one(&Request { family, ..ASKED }, listed).is_none());
        }
        KEPT.begin(-1);
    }
}
