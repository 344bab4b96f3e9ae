//! The processes that CRIU has recorded in an image (`pstree.img`), for their numbers and their parents.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | two magic numbers |
//! | 8 | 4 + n | length and record, repeated to the end; field numbers as in CRIU's `pstree.proto` |

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use prost::Message as _;

use super::files::Records;

/// Name of the file in CRIU's folder.
const FILE: &str = "pstree.img";

#[derive(Clone, PartialEq, prost::Message)]
struct Process {
    #[prost(uint32, optional, tag = "1")]
    number: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    parent: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    group: Option<u32>,
    #[prost(uint32, optional, tag = "4")]
    session: Option<u32>,
    #[prost(uint32, repeated, packed = "false", tag = "5")]
    threads: Vec<u32>,
}

/// The numbers that the processes of the dump in `host` have, with those of their threads, process groups and sessions. CRIU
/// makes a process for a group or session whose leader has ended.
///
/// # Errors
/// CRIU's list cannot be read.
pub fn numbers(host: &Path) -> io::Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    for process in read(host)? {
        found.extend(
            [process.number, process.group, process.session]
                .iter()
                .flatten(),
        );
        found.extend(&process.threads);
    }
    Ok(found)
}

/// The processes of the dump in `host`, each with its parent, by their numbers.
///
/// # Errors
/// CRIU's list cannot be read.
pub fn parents(host: &Path) -> io::Result<Vec<(u32, u32)>> {
    let processes = read(host)?.into_iter();
    Ok(processes
        .filter_map(|it| it.number.zip(it.parent))
        .collect())
}

fn read(host: &Path) -> io::Result<Vec<Process>> {
    let records = Records::parse(&fs::read(host.join(FILE))?)?.list;
    let processes = records.iter().map(|it| Process::decode(&it[..]));
    let processes = processes.collect::<Result<_, _>>();
    processes.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_threads_groups_and_sessions_are_numbered() {
        let dir = tempfile::tempdir().expect("a folder");
        let process = |number, threads: &[u32]| Process {
            number: Some(number),
            parent: Some(number - 1),
            group: Some(40),
            session: Some(30),
            threads: threads.into(),
        };
        let mut bytes = vec![0x19, 0x43, 0x56, 0x54, 0x30, 0x30, 0x27, 0x50];
        for record in [process(50, &[50, 9000]), process(51, &[51])] {
            let record = record.encode_to_vec();
            bytes.extend((record.len() as u32).to_le_bytes());
            bytes.extend(record);
        }
        fs::write(dir.path().join(FILE), &bytes).expect("written");
        let found = numbers(dir.path()).expect("read");
        assert_eq!(found, [30, 40, 50, 51, 9000].into());
        let found = parents(dir.path()).expect("read");
        assert_eq!(found, [(50, 49), (51, 50)]);
        fs::write(dir.path().join(FILE), &bytes[..bytes.len() - 1]).expect("written");
        assert!(numbers(dir.path()).is_err());
    }
}
