//! The TCP connections in a dump of CRIU: which are whole, and what a restore needs.
//!
//! | file | offset | bytes | field |
//! | --- | --- | --- | --- |
//! | `files.img` | 8 | 4 + n | see `crate::criu::files`; a socket is field 4 of a record, as in CRIU's `sk-inet.proto` |
//! | `tcp-stream-INODE.img` | 0 | 8 | two magic numbers |
//! | | 8 | 4 + n | length and record, as in `tcp-stream.proto`, then unread and unacknowledged bytes |
//!
//! CRIU dumps one end after the other. Both stand still, but the kernel may send what was kept back in the meantime:
//! numbers that do not fit together fail the dump.
//!
//! A restore makes one end after the other, too. CRIU would send what an end had not sent yet at once, and the kernel would
//! answer for the end that is not there yet with a reset. Here it is recorded as sent and not acknowledged, so that the
//! kernel sends it again when both ends are there.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use prost::Message as _;

use super::{Ends, state};
use crate::criu::{self, files::Records};

const IPPROTO_TCP: u32 = 6;
const AF_INET: u32 = 2;
/// `SK_SHUTDOWN__BOTH`: it reads as ended and cannot be written.
const SHUT_BOTH: u32 = 3;
/// Where the record of a connection begins.
const RECORD: usize = 12;

#[derive(Clone, PartialEq, prost::Message)]
struct Entry {
    #[prost(message, optional, tag = "4")]
    socket: Option<InetSocket>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct InetSocket {
    #[prost(uint32, optional, tag = "2")]
    inode: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    family: Option<u32>,
    #[prost(uint32, optional, tag = "5")]
    protocol: Option<u32>,
    #[prost(uint32, optional, tag = "6")]
    state: Option<u32>,
    #[prost(uint32, optional, tag = "7")]
    own_port: Option<u32>,
    #[prost(uint32, optional, tag = "8")]
    other_port: Option<u32>,
    #[prost(uint32, repeated, packed = "false", tag = "11")]
    own: Vec<u32>,
    #[prost(uint32, repeated, packed = "false", tag = "12")]
    other: Vec<u32>,
}

/// The changes that close a socket; of a field that comes twice the last one counts.
#[derive(Clone, PartialEq, prost::Message)]
struct Closed {
    #[prost(uint32, optional, tag = "6")]
    state: Option<u32>,
    #[prost(uint32, optional, tag = "7")]
    own_port: Option<u32>,
    #[prost(uint32, optional, tag = "8")]
    other_port: Option<u32>,
    #[prost(uint32, optional, tag = "19")]
    shutdown: Option<u32>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Stream {
    #[prost(uint32, optional, tag = "2")]
    received: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    unacknowledged: Option<u32>,
    #[prost(uint32, optional, tag = "4")]
    written: Option<u32>,
}

/// The change to a connection that has everything sent.
#[derive(Clone, PartialEq, prost::Message)]
struct AllSent {
    #[prost(uint32, optional, tag = "12")]
    unsent: Option<u32>,
}

/// Why a dump cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// A connection has its other end elsewhere.
    #[error(
        "a TCP connection {0} was made while the checkpoint began, and its other end is outside the session"
    )]
    Outside(Ends),
    /// Bytes have come between the dumps of both ends.
    #[error("bytes of the TCP connection {0} were on their way")]
    Moving(Ends),
    /// The dump cannot be read or changed.
    #[error(transparent)]
    Files(#[from] io::Error),
}

/// A connection in a dump.
#[derive(Debug, Clone, Copy)]
struct Connection {
    ends: Ends,
    state: u32,
    inode: u32,
    /// Its record in `files.img`.
    record: usize,
}

/// Makes the connections of the dump in `host` fit for a restore; the answer is how many ends are whole. Those whose
/// other end is elsewhere are closed in the image, if `close`. `is_elsewhere` says whether a process outside holds the
/// other end of one.
///
/// # Errors
/// There are such, and they are not to be closed; or the dump is of no use.
pub fn settle(
    host: &Path,
    close: bool,
    is_elsewhere: impl Fn(Ends) -> bool,
) -> Result<u32, Unusable> {
    let mut records = criu::files::read(host)?;
    let all = connections(&records)?;
    if all.is_empty() {
        return Ok(0);
    }
    let by_ends: HashMap<Ends, &Connection> = all.iter().map(|it| (it.ends, it)).collect();
    let (mut whole, mut closed) = (0, false);
    for it in &all {
        let other = by_ends.get(&it.ends.reversed()).copied();
        let alone = || {
            let over = it.ends.is_local() && state::has_heard_all(it.state);
            over && !is_elsewhere(it.ends)
        };
        match other {
            Some(other) => check_numbers(host, it, other)?,
            None if alone() => {}
            None if close => {
                records.list[it.record] = shut(&records.list[it.record])?;
                fs::remove_file(stream_of(host, it.inode))?;
                closed = true;
                continue;
            }
            None => return Err(Unusable::Outside(it.ends)),
        }
        mark_sent(&stream_of(host, it.inode))?;
        whole += 1;
    }
    if closed {
        records.write(host)?;
    }
    Ok(whole)
}

/// The addresses that a restored program has again.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Those at which it listens.
    pub listening: Vec<SocketAddr>,
    /// Those of its connections, from each end.
    pub connected: Vec<Ends>,
}

/// The addresses of TCP sockets in the dump in `host`.
///
/// # Errors
/// The dump cannot be read.
pub fn addresses(host: &Path) -> io::Result<Addresses> {
    let mut found = Addresses::default();
    for bytes in &criu::files::read(host)?.list {
        let Some(socket) = tcp_socket(bytes)? else {
            continue;
        };
        match socket.ends()? {
            Some(ends) => found.connected.push(ends),
            None if socket.own_port.unwrap_or(0) != 0 => {
                let own = socket.own_address().ok_or_else(bad)?;
                found.listening.push(own);
            }
            None => {}
        }
    }
    Ok(found)
}

impl InetSocket {
    /// The addresses of the connection, if it is one.
    fn ends(&self) -> io::Result<Option<Ends>> {
        let other_port = self.other_port.unwrap_or(0);
        if other_port == 0 {
            return Ok(None);
        }
        let ends = self
            .own_address()
            .zip(self.address(&self.other, other_port))
            .map(|(own, other)| Ends { own, other });
        ends.ok_or_else(bad).map(Some)
    }

    fn own_address(&self) -> Option<SocketAddr> {
        self.address(&self.own, self.own_port.unwrap_or(0))
    }

    fn address(&self, words: &[u32], port: u32) -> Option<SocketAddr> {
        let ip = match self.family? {
            AF_INET => IpAddr::from(words.first()?.to_ne_bytes()),
            _ => {
                let bytes: Vec<u8> = words.iter().flat_map(|it| it.to_ne_bytes()).collect();
                let bytes: [u8; 16] = bytes.try_into().ok()?;
                IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()
            }
        };
        Some(SocketAddr::new(ip, u16::try_from(port).ok()?))
    }
}

/// The TCP socket in a record of `files.img`, if it is one.
fn tcp_socket(record: &[u8]) -> io::Result<Option<InetSocket>> {
    let entry = Entry::decode(record).map_err(|_| bad())?;
    Ok(entry.socket.filter(|it| it.protocol == Some(IPPROTO_TCP)))
}

fn connections(records: &Records) -> io::Result<Vec<Connection>> {
    let mut found = Vec::new();
    for (record, bytes) in records.list.iter().enumerate() {
        let Some(socket) = tcp_socket(bytes)? else {
            continue;
        };
        let Some(ends) = socket.ends()? else {
            continue;
        };
        found.push(Connection {
            ends,
            state: socket.state.unwrap_or(0),
            inode: socket.inode.unwrap_or(0),
            record,
        });
    }
    Ok(found)
}

/// What `one` has got must be what `other` has sent: nothing that is acknowledged may be in neither record.
fn check_numbers(host: &Path, one: &Connection, other: &Connection) -> Result<(), Unusable> {
    let got = read_stream(&stream_of(host, one.inode))?.received;
    let sent = read_stream(&stream_of(host, other.inode))?;
    let (Some(got), Some(written), Some(unacknowledged)) = (got, sent.written, sent.unacknowledged)
    else {
        return Err(bad().into());
    };
    // The mark of the end has a number, and is not among the bytes.
    let mark = state::ends_unheard(other.state).into();
    let acknowledged = written.wrapping_sub(unacknowledged).wrapping_sub(mark);
    let distance = |from: u32, to: u32| to.wrapping_sub(from).cast_signed();
    if distance(acknowledged, got) < 0 || distance(got, written) < 0 {
        return Err(Unusable::Moving(one.ends));
    }
    Ok(())
}

/// The record of a socket, closed.
fn shut(record: &[u8]) -> io::Result<Vec<u8>> {
    let closed = Closed {
        state: Some(state::CLOSED),
        own_port: Some(0),
        other_port: Some(0),
        shutdown: Some(SHUT_BOTH),
    };
    criu::files::append_to_field(record, 4, &closed.encode_to_vec()).ok_or_else(bad)
}

fn stream_of(host: &Path, inode: u32) -> PathBuf {
    host.join(format!("tcp-stream-{inode:x}.img"))
}

/// The record of a connection, and where it ends.
fn record_of(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let length = u32::from_le_bytes(bytes.get(8..RECORD)?.try_into().ok()?);
    let end = RECORD.checked_add(usize::try_from(length).ok()?)?;
    Some((bytes.get(RECORD..end)?, end))
}

fn read_stream(path: &Path) -> io::Result<Stream> {
    let bytes = fs::read(path)?;
    let (record, _) = record_of(&bytes).ok_or_else(bad)?;
    Stream::decode(record).map_err(|_| bad())
}

/// Lets a restore take everything for sent.
fn mark_sent(path: &Path) -> io::Result<()> {
    let mut bytes = fs::read(path)?;
    let (record, end) = record_of(&bytes).ok_or_else(bad)?;
    let change = AllSent { unsent: Some(0) }.encode_to_vec();
    let length = u32::try_from(record.len() + change.len()).map_err(|_| bad())?;
    bytes.splice(end..end, change);
    bytes[8..RECORD].copy_from_slice(&length.to_le_bytes());
    fs::write(path, bytes)
}

fn bad() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "not CRIU's record of a connection",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "127.0.0.1:1";
    const OTHER: &str = "127.0.0.1:2";

    fn connection(own: &str, other: &str, state: u32, inode: u32) -> Connection {
        let parse = |text: &str| text.parse().expect("an address");
        Connection {
            ends: Ends {
                own: parse(own),
                other: parse(other),
            },
            state,
            inode,
            record: 0,
        }
    }

    fn write(host: &Path, inode: u32, received: u32, written: u32, unacknowledged: u32) {
        let stream = Stream {
            received: Some(received),
            unacknowledged: Some(unacknowledged),
            written: Some(written),
        };
        let record = stream.encode_to_vec();
        let length = (record.len() as u32).to_le_bytes();
        let bytes = [&[1; 8][..], &length, &record, b"queued"].concat();
        fs::write(stream_of(host, inode), bytes).expect("written");
    }

    #[test]
    fn ends_that_lack_acknowledged_bytes_are_no_image() {
        let dir = tempfile::tempdir().expect("a folder");
        let host = dir.path();
        let one = connection(OWN, OTHER, state::ESTABLISHED, 0xa);
        let fits = |received: u32, written: u32, unacknowledged: u32, its_state: u32| {
            let other = connection(OTHER, OWN, its_state, 0xb);
            write(host, one.inode, received, 0, 0);
            write(host, other.inode, 0, written, unacknowledged);
            check_numbers(host, &one, &other)
        };
        let open = state::ESTABLISHED;
        // Everything has come; some is on its way still; the numbers go round.
        for (received, written) in [(100, 100), (90, 100), (u32::MAX - 4, 5)] {
            fits(received, written, 10, open).expect("it fits");
        }
        for (received, written) in [(89, 100), (101, 100)] {
            let refused = fits(received, written, 10, open).expect_err("bytes are in neither");
            assert!(matches!(refused, Unusable::Moving(_)), "{refused}");
        }
        // The mark of the end counts as a byte until it is confirmed.
        fits(89, 100, 10, state::FIN_WAIT_1).expect("it fits");
    }

    #[test]
    fn a_connection_is_marked_as_sent_and_keeps_its_bytes() {
        let dir = tempfile::tempdir().expect("a folder");
        write(dir.path(), 0xa, 1, 2, 3);
        let path = stream_of(dir.path(), 0xa);
        mark_sent(&path).expect("marked");
        let bytes = fs::read(&path).expect("read");
        let (record, end) = record_of(&bytes).expect("a record");
        assert_eq!(&bytes[end..], b"queued");
        let unsent = AllSent::decode(record).expect("a record").unsent;
        assert_eq!(unsent, Some(0));
        assert_eq!(read_stream(&path).expect("read").written, Some(2));
        fs::write(&path, &bytes[..end - 1]).expect("written");
        assert!(mark_sent(&path).is_err());
    }

    #[test]
    fn a_socket_is_closed_by_fields_at_its_end() {
        let socket = InetSocket {
            inode: Some(9),
            state: Some(state::ESTABLISHED),
            own_port: Some(40_000),
            other_port: Some(80),
            ..InetSocket::default()
        };
        let entry = Entry {
            socket: Some(socket.clone()),
        };
        let closed = shut(&entry.encode_to_vec()).expect("closed");
        let found = Entry::decode(&closed[..]).expect("a record").socket;
        let expected = InetSocket {
            state: Some(state::CLOSED),
            own_port: Some(0),
            other_port: Some(0),
            ..socket
        };
        assert_eq!(found, Some(expected));
        assert!(shut(&[]).is_err());
    }
}
