//! Where the processes of a session listen: TCP and Unix sockets, from `/proc/PID/net` and their descriptors.
//!
//! | column of `/proc/PID/net/unix` | content |
//! | --- | --- |
//! | 4 | flags; `__SO_ACCEPTCON` of a socket that listens |
//! | 5 | type; 1 for a stream |
//! | 7 | inode |
//! | 8 | path, or name behind `@`; absent without either |

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;

use fermata_control::user::Endpoint;

use crate::open_files::sockets::{Holder, holders};
use crate::open_files::tcp::live;
use crate::proc;
use crate::session::Session;

/// `__SO_ACCEPTCON`.
const LISTENS: u32 = 1 << 16;
/// `SOCK_STREAM`.
const STREAM: u32 = 1;

/// Where the session's processes listen; nowhere if it has ended.
pub fn listening(session: &Session) -> Vec<Endpoint> {
    let Some(root) = session.processes().root else {
        return Vec::new();
    };
    let tree = proc::tree(root.pid);
    let tcp = live::listening(&tree).into_iter().map(Endpoint::Tcp);
    let table = fs::read(format!("/proc/{}/net/unix", root.pid)).unwrap_or_default();
    tcp.chain(unix(&table, &holders(&tree))).collect()
}

fn unix(table: &[u8], held: &HashMap<u64, Holder>) -> Vec<Endpoint> {
    let lines = table.split(|it| *it == b'\n').skip(1);
    let mut found: Vec<_> = lines.filter_map(|line| name(line, held)).collect();
    found.sort_unstable();
    found.dedup();
    let named = found.into_iter().map(OsString::from_vec);
    named.map(|it| Endpoint::Unix(it.into())).collect()
}

/// The name of the socket in a line of the table, if it listens and is one of `held`.
fn name(line: &[u8], held: &HashMap<u64, Holder>) -> Option<Vec<u8>> {
    let mut rest = line;
    let mut field = || {
        let begin = rest.iter().position(|it| *it != b' ')?;
        let (_, from) = rest.split_at(begin);
        let length = from.iter().position(|it| *it == b' ').unwrap_or(from.len());
        let (field, behind) = from.split_at(length);
        rest = behind;
        std::str::from_utf8(field).ok()
    };
    let (_number, _users, _protocol) = (field()?, field()?, field()?);
    let flags = u32::from_str_radix(field()?, 16).ok()?;
    let kind = u32::from_str_radix(field()?, 16).ok()?;
    let (_state, inode) = (field()?, field()?.parse().ok()?);
    let listens = flags & LISTENS != 0 && kind == STREAM && held.contains_key(&inode);
    // The name may contain spaces.
    let name = rest.strip_prefix(b" ").filter(|it| !it.is_empty())?;
    listens.then(|| name.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_sockets_that_listen_are_found_by_their_holders() {
        let table = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            ffff88: 00000002 00000000 00010000 0001 01 11 /run/a b.sock\n\
            ffff88: 00000002 00000000 00010000 0001 01   12 @name\n\
            ffff88: 00000002 00000000 00010000 0001 01 13 /run/other\n\
            ffff88: 00000002 00000000 00010000 0005 01 14 /run/packets\n\
            ffff88: 00000003 00000000 00000000 0001 03 15 /run/connected\n\
            ffff88: 00000002 00000000 00010000 0001 01 16\n";
        let holder = Holder {
            pid: 1,
            descriptor: 3,
        };
        let held = [11, 12, 14, 15, 16].map(|it| (it, holder)).into();
        let expected = ["/run/a b.sock", "@name"].map(|it| Endpoint::Unix(it.into()));
        assert_eq!(unix(table, &held), expected);
        assert_eq!(unix(b"", &held), []);
    }
}
