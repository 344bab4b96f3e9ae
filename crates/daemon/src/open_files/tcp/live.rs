//! The TCP sockets of running processes, from `/proc/PID/net/tcp` and their descriptors.
//!
//! | column | content |
//! | --- | --- |
//! | 2, 3 | own and other address: words of the address as the processor reads them, port, in hexadecimal |
//! | 4 | state |
//! | 5 | bytes, or for a listening socket connections, to send and to read |
//! | 10 | inode; 0 where no process holds the socket |

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::{Ends, state};
use crate::open_files::sockets::{Holder, Unsaved, holders};

/// A socket in the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Socket {
    ends: Ends,
    state: u32,
    to_send: u32,
    to_read: u32,
    inode: u64,
}

/// What can be done about a connection to elsewhere.
pub const CLOSE_HINT: &str = "close it before the checkpoint, or take the image with `--tcp-close`: the restored program \
                          finds it closed, and must connect again";
const ACCEPT_HINT: &str = "try again when the program has accepted them, or take the image with `--tcp-close`, without \
                           them";

/// The sockets of the processes `tree` that an image cannot hold, at one look.
pub fn unsaved(tree: &[u32]) -> Vec<Unsaved> {
    let held = holders(tree);
    match (held.is_empty(), tree.first()) {
        (false, Some(root)) => judge(&sockets(*root), &held),
        _ => Vec::new(),
    }
}

/// Whether the connection that process `pid` has from one end to another is held at its other end by a process that is
/// not in `tree`.
pub fn is_held_elsewhere(ends: Ends, tree: &[u32]) -> bool {
    let (Some(root), held) = (tree.first(), holders(tree)) else {
        return false;
    };
    let its = |it: &Socket| it.ends == ends.reversed();
    let other = sockets(*root).into_iter().find(its);
    other.is_some_and(|it| it.inode != 0 && !held.contains_key(&it.inode))
}

/// Connections of this process's network namespace that have ended, and are remembered for a minute (`TIME_WAIT`).
pub fn ended() -> Vec<Ends> {
    let all = sockets(std::process::id()).into_iter();
    let ended = all.filter(|it| it.state == state::TIME_WAIT);
    ended.map(|it| it.ends).collect()
}

/// The addresses at which the processes `tree` listen, each once.
pub fn listening(tree: &[u32]) -> Vec<SocketAddr> {
    let (Some(root), held) = (tree.first(), holders(tree)) else {
        return Vec::new();
    };
    let mut found: Vec<_> = sockets(*root)
        .into_iter()
        .filter(|it| it.state == state::LISTEN && held.contains_key(&it.inode))
        .map(|it| it.ends.own)
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn judge(sockets: &[Socket], held: &HashMap<u64, Holder>) -> Vec<Unsaved> {
    let by_ends: HashMap<Ends, &Socket> = sockets.iter().map(|it| (it.ends, it)).collect();
    let own = sockets
        .iter()
        .filter_map(|it| Some((it, *held.get(&it.inode)?)));
    let mut found: Vec<Unsaved> = own
        .filter_map(|(socket, holder)| {
            let other = by_ends.get(&socket.ends.reversed()).copied();
            let inside = |it: &Socket| held.contains_key(&it.inode);
            let (what, hint) = obstacle(socket, other, other.is_some_and(inside))?;
            Some(Unsaved { holder, what, hint })
        })
        .collect();
    found.sort_by_key(|it| (it.holder.pid, it.holder.descriptor));
    found
}

/// Why an image cannot hold `socket`, whose other end is `other` and in the session or not.
fn obstacle(
    socket: &Socket,
    other: Option<&Socket>,
    inside: bool,
) -> Option<(String, &'static str)> {
    let ends = socket.ends;
    if socket.state == state::LISTEN {
        let what = format!(
            "a socket that listens at {}, with {} connections that the program has not accepted yet",
            ends.own, socket.to_read
        );
        return (socket.to_read > 0).then_some((what, ACCEPT_HINT));
    }
    let why = match other {
        _ if inside => return None,
        Some(it) if it.inode != 0 => "its other end is held by a process outside the session",
        // It waits at a listening socket.
        Some(it)
            if matches!(
                it.state,
                state::ESTABLISHED | state::SYN_RECEIVED | state::CLOSE_WAIT
            ) =>
        {
            "its other end has not been accepted yet"
        }
        // The end is the last that comes: once it is here, only its acknowledgement is on its way, which a kernel may put off.
        Some(_) if state::has_heard_all(socket.state) => return None,
        Some(it) if it.to_send > 0 || it.state == state::FIN_WAIT_1 => {
            "its other end is closed, and bytes from there are still on their way"
        }
        Some(_) => return None,
        None if ends.is_local() && state::has_heard_all(socket.state) => return None,
        None => "its other end is outside the session",
    };
    Some((format!("a TCP connection {ends}: {why}"), CLOSE_HINT))
}

/// Bytes that a table is read in at once: for each read the kernel searches its whole table, which takes milliseconds.
const TABLE: usize = 64 << 10;

/// All TCP sockets of the network namespace of process `pid`.
fn sockets(pid: u32) -> Vec<Socket> {
    let table = |name: &str| {
        let mut text = String::with_capacity(TABLE);
        // A kernel without IPv6 has no second table.
        let file = File::open(format!("/proc/{pid}/net/{name}"));
        match file.and_then(|mut file| file.read_to_string(&mut text)) {
            Ok(_) => text.lines().skip(1).filter_map(line).collect(),
            Err(_) => Vec::new(),
        }
    };
    [table("tcp"), table("tcp6")].concat()
}

fn line(text: &str) -> Option<Socket> {
    let mut fields = text.split_whitespace().skip(1);
    let ends = Ends {
        own: address(fields.next()?)?,
        other: address(fields.next()?)?,
    };
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    let state = number(fields.next()?)?;
    let (to_send, to_read) = fields.next()?.split_once(':')?;
    Some(Socket {
        ends,
        state,
        to_send: number(to_send)?,
        to_read: number(to_read)?,
        inode: fields.nth(4)?.parse().ok()?,
    })
}

/// An address as the tables have it; one of IPv4 in the table of IPv6 is one of IPv4.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let digits = ip.get(at * 8..at * 8 + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    let ip = match ip.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let bytes = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            let bytes: [u8; 16] = bytes.try_into().ok()?;
            IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::looks::scene::soon;
    use crate::looks::settled;

    #[test]
    fn a_line_of_the_table_is_read() {
        let text = "   2: 0100007F:A1B2 0200007F:0050 01 0000000A:00000014 02:000000AB 00000000  1000        0 4711 2 0";
        let socket = line(text).expect("a socket");
        assert_eq!(
            socket.ends.to_string(),
            "from 127.0.0.1:41394 to 127.0.0.2:80"
        );
        assert_eq!((socket.state, socket.to_send, socket.to_read), (1, 10, 20));
        assert_eq!(socket.inode, 4711);
        let six = "00000000000000000000000001000000:0050";
        assert_eq!(
            address(six).map(|it| it.to_string()).as_deref(),
            Some("[::1]:80")
        );
        let mapped = "0000000000000000FFFF00000100007F:0050";
        assert_eq!(
            address(mapped).map(|it| it.to_string()).as_deref(),
            Some("127.0.0.1:80")
        );
        assert!(
            line("  sl  local_address rem_address   st").is_none() && address("12:1").is_none()
        );
    }

    fn socket(own: &str, other: &str, state: u32, inode: u64) -> Socket {
        let parse = |text: &str| text.parse().expect("an address");
        Socket {
            ends: Ends {
                own: parse(own),
                other: parse(other),
            },
            state,
            to_send: 0,
            to_read: 0,
            inode,
        }
    }

    #[test]
    fn connections_are_judged_by_their_other_end() {
        let (a, b, far) = ("127.0.0.1:1", "127.0.0.1:2", "10.0.0.9:80");
        let why = |own: Socket, other: Option<Socket>, inside| {
            obstacle(&own, other.as_ref(), inside).map(|(what, _)| what)
        };
        let open = socket(a, b, state::ESTABLISHED, 7);
        let half = socket(a, b, state::CLOSE_WAIT, 7);
        let other = |state, inode| Some(socket(b, a, state, inode));
        assert_eq!(why(open, other(state::ESTABLISHED, 8), true), None);
        let said = why(open, other(state::ESTABLISHED, 8), false).expect("refused");
        assert!(
            said.contains(a) && said.contains(b) && said.contains("outside"),
            "{said}"
        );
        let said = why(open, other(state::ESTABLISHED, 0), false).expect("refused");
        assert!(said.contains("accepted"), "{said}");
        let said = why(open, other(state::FIN_WAIT_1, 0), false).expect("refused");
        assert!(said.contains("on their way"), "{said}");
        assert_eq!(why(half, other(state::FIN_WAIT_1, 0), false), None);
        const FIN_WAIT_2: u32 = 5;
        assert_eq!(why(half, other(FIN_WAIT_2, 0), false), None);
        assert_eq!(why(half, None, false), None);
        assert!(why(open, None, false).is_some());
        // One that is far away may still read.
        assert!(why(socket("10.0.0.1:9", far, state::CLOSE_WAIT, 7), None, false).is_some());
        let listens = |to_read| Socket {
            to_read,
            ..socket(a, "0.0.0.0:0", state::LISTEN, 7)
        };
        assert_eq!(why(listens(0), None, false), None);
        assert!(why(listens(2), None, false).is_some_and(|it| it.contains("2 connections")));
    }

    #[test]
    fn the_connections_of_this_process_are_found() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let at = listener.local_addr().expect("an address");
        let number = |it: &dyn AsRawFd| it.as_raw_fd().unsigned_abs();
        let me = [std::process::id()];
        let of = |descriptors: &[u32]| {
            let mut all = settled(|| unsaved(&me));
            all.retain(|it| descriptors.contains(&it.holder.descriptor));
            all
        };
        let mut client = TcpStream::connect(at).expect("connected");
        let waiting = of(&[number(&listener), number(&client)]);
        assert_eq!(waiting.len(), 2, "{waiting:?}");
        let (mut server, _) = listener.accept().expect("accepted");
        let three = [number(&listener), number(&client), number(&server)];
        assert_eq!(of(&three), []);
        client.write_all(b"unread").expect("sent");
        client.shutdown(Shutdown::Write).expect("shut down");
        assert_eq!(of(&three), []);
        drop(client);
        assert_eq!(soon(|| of(&[number(&server)]), Vec::is_empty), []);
        let mut text = String::new();
        server.read_to_string(&mut text).expect("read");
        assert_eq!(text, "unread");
    }
}
