//! Standard input of programs that comes through a pipe from outside the session.
//!
//! ```text
//!  run         the pipe's number is noted down
//!  checkpoint  ended: CRIU keeps what is unread, then the end comes    open: its number goes into the record, too
//!  restore     a new pipe with what was unread ─► CRIU, in place of the old one; the user's tool writes behind it
//! ```
//! Without a new pipe the restored program reads what was unread, then the end.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use prost::Message as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;

use crate::proc;

/// Name of CRIU's file with what is in pipes: two magic numbers, then length, record and bytes of each.
const DATA: &str = "pipes-data.img";

#[derive(Clone, PartialEq, prost::Message)]
struct PipeData {
    #[prost(uint32, optional, tag = "1")]
    pipe: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    bytes: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    size: Option<u32>,
}

/// What a program may be given: `fd`, unless that is a terminal or something else that CRIU cannot restore.
pub fn usable(fd: OwnedFd) -> Option<OwnedFd> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd).ok()?.st_mode);
    let fine = match kind {
        FileType::RegularFile | FileType::Fifo => true,
        FileType::CharacterDevice => !io::IsTerminal::is_terminal(&fd),
        _ => false,
    };
    fine.then_some(fd)
}

/// The number of the pipe that `fd` leads to, if it is one without a name.
pub fn pipe_of(fd: &OwnedFd) -> Option<u64> {
    number(&fs::read_link(own_path(fd)).ok()?)
}

fn number(target: &Path) -> Option<u64> {
    let text = target.to_str()?.strip_prefix("pipe:[")?;
    text.strip_suffix(']')?.parse().ok()
}

/// Where descriptor `fd` of this process can be opened again.
fn own_path(fd: impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

/// Whether a process of `tree` can still read from pipe `pipe`, and somebody can write to it.
pub fn is_open(tree: &[u32], pipe: u64) -> bool {
    let path = tree.iter().find_map(|pid| {
        let mut descriptors = proc::descriptors(*pid).into_iter();
        let (found, _) = descriptors.find(|(_, target)| number(target) == Some(pipe))?;
        Some(format!("/proc/{pid}/fd/{found}"))
    });
    let Some(Ok(end)) = path.map(|path| without_waiting().read(true).open(path)) else {
        return false;
    };
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut set = [PollFd::new(&end, PollFlags::IN)];
    let ended = poll(&mut set, Some(&now)).is_ok() && set[0].revents().contains(PollFlags::HUP);
    !ended
}

fn without_waiting() -> fs::OpenOptions {
    let mut options = File::options();
    options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    options
}

/// Makes what is in the pipe behind `end` what was in pipe `pipe` at the dump in `host`.
///
/// # Errors
/// The dump cannot be read, or the pipe does not take so much.
pub fn fill(end: &OwnedFd, host: &Path, pipe: u32) -> io::Result<()> {
    // A program that is taken back to its image may have left something.
    let mut rest = Vec::new();
    match without_waiting()
        .read(true)
        .open(own_path(end))?
        .read_to_end(&mut rest)
    {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
        _ => {}
    }
    let Some((size, bytes)) = unread(host, pipe)? else {
        return Ok(());
    };
    let mut writer = without_waiting().write(true).open(own_path(end))?;
    if size > 0 {
        rustix::pipe::fcntl_setpipe_size(&writer, size)?;
    }
    writer.write_all(&bytes)
}

/// Size of pipe `pipe` at the dump in `host`, and what was in it.
fn unread(host: &Path, pipe: u32) -> io::Result<Option<(usize, Vec<u8>)>> {
    let all = match fs::read(host.join(DATA)) {
        Ok(all) => all,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "not CRIU's list of pipes");
    let mut rest = all.get(8..).ok_or_else(bad)?;
    while let Some((length, more)) = rest.split_first_chunk() {
        let length = u32::from_le_bytes(*length) as usize;
        let record = more.get(..length).ok_or_else(bad)?;
        let record = PipeData::decode(record).map_err(|_| bad())?;
        let count = record.bytes.unwrap_or(0) as usize;
        let end = length.checked_add(count).ok_or_else(bad)?;
        let bytes = more.get(length..end).ok_or_else(bad)?;
        if record.pipe == Some(pipe) {
            return Ok(Some((record.size.unwrap_or(0) as usize, bytes.to_vec())));
        }
        rest = &more[end..];
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_in_a_pipe_is_in_the_next_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut list = vec![1; 8];
        for (pipe, text) in [(7, "other"), (8, "unread")] {
            let record = PipeData {
                pipe: Some(pipe),
                bytes: u32::try_from(text.len()).ok(),
                size: Some(1 << 17),
            };
            let record = record.encode_to_vec();
            list.extend((record.len() as u32).to_le_bytes());
            list.extend(record);
            list.extend(text.as_bytes());
        }
        fs::write(dir.path().join(DATA), &list).expect("written");
        let (reader, mut writer) = io::pipe().expect("a pipe");
        writer.write_all(b"left over").expect("written");
        let mut reader = OwnedFd::from(reader);
        assert_eq!(
            pipe_of(&reader),
            pipe_of(&OwnedFd::from(writer.try_clone().expect("a pipe")))
        );
        let pipe = pipe_of(&reader).expect("a pipe");
        assert!(is_open(&[std::process::id()], pipe));
        fill(&reader, dir.path(), 8).expect("filled");
        writer.write_all(b", and more").expect("written");
        drop(writer);
        assert!(!is_open(&[std::process::id()], pipe));
        let mut text = String::new();
        let mut file = File::from(reader.try_clone().expect("a pipe"));
        file.read_to_string(&mut text).expect("read");
        assert_eq!(text, "unread, and more");
        // Of a pipe that was empty there is no record.
        fill(&reader, dir.path(), 9).expect("filled");
        fs::write(dir.path().join(DATA), &list[..list.len() - 1]).expect("written");
        assert!(fill(&reader, dir.path(), 8).is_err());
        reader = File::open("/dev/null").expect("opened").into();
        assert_eq!(pipe_of(&reader), None);
        assert!(usable(reader).is_some());
    }
}
