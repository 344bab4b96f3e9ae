//! The Unix sockets of running processes, from the kernel's socket diagnostics (`sock_diag(7)`) and their descriptors:
//! which of them are connected to a process outside the session.
//!
//! ```text
//!  request  header (16) ─ family, states, what to show (24)
//!  answer   header (16) ─ family, type, state, inode, cookie (16) ─ attributes: length, kind, value, filled to 4 bytes
//! ```
//! CRIU refuses such a socket, but only when the program stands still. What is not found here, for example because the
//! socket is of another network namespace, is left to CRIU.

use std::collections::HashMap;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use crate::open_files::sockets::{Holder, Unsaved, holders};
use crate::proc;

/// `struct nlmsghdr`: length, type, flags, sequence, port.
const HEADER: usize = 16;
/// `struct unix_diag_msg`: family, type, state, padding, inode, cookie.
const FIXED: usize = 16;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const FLAGS: u16 = 0x301;
const AF_UNIX: u8 = 1;
/// `UDIAG_SHOW_PEER | UDIAG_SHOW_ICONS`.
const SHOW: u32 = 0x4 | 0x8;
/// `UNIX_DIAG_PEER`: the inode of the other end.
const PEER: u16 = 2;
/// `UNIX_DIAG_ICONS`: the inodes of those that wait to be accepted.
const WAITING: u16 = 3;
const LISTEN: u8 = 10;

/// How long the kernel may take for its next part.
const ANSWER: Timespec = Timespec {
    tv_sec: 2,
    tv_nsec: 0,
};

/// What can be done about a connection to elsewhere.
const CLOSE_HINT: &str = "close it before the checkpoint (`ss -xp` lists it); an image holds a Unix socket only if both \
                          ends are in the session";
const ACCEPT_HINT: &str = "try again when the program has accepted them";

/// A socket in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Socket {
    inode: u32,
    state: u8,
    /// The other end; 0 if there is none.
    peer: u32,
    /// The other ends of connections that it has not accepted.
    waiting: Vec<u32>,
}

/// The Unix sockets of the processes `tree` that are connected to a process outside, which is none of `ours`, at one look.
pub fn unsaved(tree: &[u32], ours: &[u32]) -> Vec<Unsaved> {
    let held = holders(tree);
    // A kernel that does not tell leaves it to CRIU.
    let table = match held.is_empty() {
        true => Vec::new(),
        false => table().unwrap_or_default(),
    };
    judge(&table, &held, ours)
}

fn judge(table: &[Socket], held: &HashMap<u64, Holder>, ours: &[u32]) -> Vec<Unsaved> {
    let outside = |inode: u32| inode != 0 && !held.contains_key(&u64::from(inode));
    let own = table
        .iter()
        .filter_map(|it| Some((it, *held.get(&u64::from(it.inode))?)));
    let own: Vec<_> = own
        .filter(|(it, _)| outside(it.peer) || it.waiting.iter().any(|it| outside(*it)))
        .collect();
    if own.is_empty() {
        return Vec::new();
    }
    // Who holds a socket outside is looked for only where there is one.
    let others = holders(&proc::all());
    let holder = |inode: &u32| others.get(&u64::from(*inode)).copied();
    let mut found: Vec<Unsaved> = own
        .into_iter()
        .filter_map(|(socket, holder_of_it)| {
            let (what, hint) = match socket.state {
                LISTEN => {
                    let waiting = socket.waiting.iter().copied().filter(|it| outside(*it));
                    let count = waiting.filter(|it| holder(it).is_some()).count();
                    let what = format!(
                        "a Unix socket that listens, with {count} connections from outside the session that the program has not accepted yet"
                    );
                    ((count > 0).then_some(what)?, ACCEPT_HINT)
                }
                _ => {
                    // One that no process holds may be on its way between two of the session.
                    let other = holder(&socket.peer).filter(|it| !ours.contains(&it.pid))?;
                    let what = format!(
                        "a Unix socket: its other end is held by process {} ({}), outside the session",
                        other.pid,
                        proc::name_of(other.pid)
                    );
                    (what, CLOSE_HINT)
                }
            };
            Some(Unsaved {
                holder: holder_of_it,
                what,
                hint,
            })
        })
        .collect();
    found.sort_by_key(|it| (it.holder.pid, it.holder.descriptor));
    found
}

/// All Unix sockets of the daemon's network namespace.
fn table() -> rustix::io::Result<Vec<Socket>> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    send(&socket, &request(), SendFlags::NOSIGNAL)?;
    let mut sockets = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        if poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&ANSWER))? == 0 {
            return Err(Errno::TIMEDOUT);
        }
        let (got, _) = recv(&socket, &mut buffer, RecvFlags::empty())?;
        if read(&buffer[..got], &mut sockets)? {
            return Ok(sockets);
        }
    }
}

fn request() -> Vec<u8> {
    const LENGTH: u32 = 40;
    let mut bytes = Vec::with_capacity(LENGTH as usize);
    bytes.extend(LENGTH.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(FLAGS.to_ne_bytes());
    // Sequence and port.
    bytes.extend([0; 8]);
    bytes.extend([AF_UNIX, 0, 0, 0]);
    // All states, any inode.
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(SHOW.to_ne_bytes());
    // No cookie.
    bytes.extend([0xff; 8]);
    bytes
}

/// Takes the sockets out of a part of the answer; true if it is the last.
///
/// # Errors
/// The kernel says that it cannot answer, or what it says cannot be read.
fn read(mut part: &[u8], sockets: &mut Vec<Socket>) -> rustix::io::Result<bool> {
    while !part.is_empty() {
        let length = word(part, 0).ok_or(Errno::BADMSG)? as usize;
        let kind = half(part, 4).ok_or(Errno::BADMSG)?;
        let body = part.get(HEADER..length).ok_or(Errno::BADMSG)?;
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => return Err(Errno::NOTSUP),
            SOCK_DIAG_BY_FAMILY => sockets.push(one(body).ok_or(Errno::BADMSG)?),
            _ => {}
        }
        part = part.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn one(body: &[u8]) -> Option<Socket> {
    let mut socket = Socket {
        state: *body.get(2)?,
        inode: word(body, 4)?,
        peer: 0,
        waiting: Vec::new(),
    };
    let mut rest = body.get(FIXED..)?;
    while !rest.is_empty() {
        let length = usize::from(half(rest, 0)?);
        let value = rest.get(4..length)?;
        match half(rest, 2)? {
            PEER => socket.peer = word(value, 0)?,
            WAITING => {
                let words = (0..value.len() / 4).filter_map(|at| word(value, 4 * at));
                socket.waiting = words.collect();
            }
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(socket)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    bytes.try_into().ok().map(u16::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::looks::scene::soon;

    /// A process that holds a socket as its standard input.
    fn holding(socket: &UnixStream) -> Child {
        let input = OwnedFd::from(socket.try_clone().expect("cloned"));
        let child = Command::new("sleep").arg("1000").stdin(input).spawn();
        let child = child.expect("sleep starts");
        let until = Instant::now() + Duration::from_secs(120);
        // Before it executes the other program it is this one, with all its descriptors.
        while proc::name_of(child.id()) != "sleep" {
            assert!(Instant::now() < until, "it does not start");
        }
        child
    }

    #[test]
    fn a_unix_socket_to_another_process_is_found_and_the_process_named() {
        let (one, other) = UnixStream::pair().expect("a pair");
        let (mut first, mut second) = (holding(&one), holding(&other));
        drop((one, other));
        let tree = [first.id()];
        let unsaved_of = |tree: &[u32], ours: &[u32]| soon(|| unsaved(tree, ours), Vec::is_empty);
        let named = format!("process {} (sleep)", second.id());
        let names_it = |found: &Vec<Unsaved>| found.iter().any(|it| it.what.contains(&named));
        let found = soon(|| unsaved(&tree, &[]), names_it);
        assert_eq!(found.len(), 1, "{found:?}");
        let holder = Holder {
            pid: first.id(),
            descriptor: 0,
        };
        assert_eq!(found[0].holder, holder);
        assert!(names_it(&found), "{found:?}");
        assert_eq!(unsaved_of(&tree, &[second.id()]), [], "it is ours");
        assert_eq!(unsaved(&[first.id(), second.id()], &[]), [], "both ends");
        second.kill().expect("killed");
        second.wait().expect("waited");
        assert_eq!(unsaved_of(&tree, &[]), [], "the other end is closed");
        first.kill().expect("killed");
        first.wait().expect("waited");
    }

    #[test]
    fn a_connection_that_waits_to_be_accepted_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("listens");
        let held = |listener: &UnixListener| {
            use std::os::fd::AsRawFd as _;
            let descriptor = listener.as_raw_fd().unsigned_abs();
            let mut held = holders(&[std::process::id()]);
            held.retain(|_, it| it.descriptor == descriptor);
            held
        };
        let client = UnixStream::connect(&path).expect("connected");
        let mut child = holding(&client);
        drop(client);
        let judged = |held| judge(&table().expect("a table"), &held, &[]);
        let found = judged(held(&listener));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].what.contains("1 connections"), "{found:?}");
        child.kill().expect("killed");
        child.wait().expect("waited");
        drop(listener.accept().expect("accepted"));
        assert_eq!(judged(held(&listener)), []);
    }

    #[test]
    fn what_is_cut_or_refused_is_an_error_and_no_table() {
        let mut sockets = Vec::new();
        let mut error = 20u32.to_ne_bytes().to_vec();
        error.extend(NLMSG_ERROR.to_ne_bytes());
        error.extend([0; 14]);
        assert!(read(&error, &mut sockets).is_err());
        let whole = request();
        for cut in 1..whole.len() {
            assert!(read(&whole[..cut], &mut sockets).is_err(), "{cut}");
        }
        assert_eq!(sockets, []);
    }
}
