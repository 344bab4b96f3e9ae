//! A question of a program to its daemon: a datagram there, and the answer through a pipe whose other end went with it. Both live
//! as long as the question.
//!
//! A program that is dumped in the middle of it holds nothing that is connected to a process outside, only the reading
//! end of a pipe: restored it has no writer, so the end is read at once, and the program asks the daemon that there is now.
//! It is the same when the daemon dies. Where that daemon is tells [`Home`].

use std::ffi::OsString;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sendmsg_addr, socket_with,
};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::agent::{ENV_SOCKET, ENV_TOKEN, INIT_ARGUMENT};
use crate::trust::check_socket;

/// Where to ask, and as whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// The session's token, which is another session's in a restored program: the daemon then goes by the process.
    pub token: String,
}

impl Home {
    /// The daemon's socket of that `name`; none outside of any session.
    ///
    /// A restored program has the environment of its first start, and lives in a PID namespace whose process 1 was started by
    /// the daemon that restored it, with the path of its socket as an argument. That everybody may read.
    pub fn find(name: &str) -> Option<Self> {
        let line = std::fs::read("/proc/1/cmdline").ok();
        let agents = match line.as_deref().and_then(restored_by) {
            Some(agents) => agents,
            None => PathBuf::from(std::env::var_os(ENV_SOCKET)?),
        };
        Some(Self {
            socket: agents.parent()?.join(name),
            token: std::env::var(ENV_TOKEN).unwrap_or_default(),
        })
    }

    /// Asks, and waits for the answer until it has come, at most `limit`; a longer one than `most` bytes is cut. Without an
    /// answer, which is empty then, it may be asked again.
    ///
    /// # Errors
    /// `NOENT` and `CONNREFUSED` where no daemon is, `PERM` where the socket is not to be trusted, `AGAIN` when its queue is full.
    pub fn ask(&self, question: &[u8], most: usize, limit: Duration) -> Result<Vec<u8>, Errno> {
        match check_socket(&self.socket) {
            Ok(()) => {}
            Err(absent) if absent.is_absent() => return Err(Errno::NOENT),
            Err(_) => return Err(Errno::PERM),
        }
        let (answers, theirs) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        self.send(question, theirs)?;
        let until = Instant::now() + limit;
        let mut bytes = Vec::new();
        let mut piece = [0; 4096];
        while bytes.len() <= most && comes(&answers, until)? {
            match rustix::io::read(&answers, &mut piece) {
                Ok(0) => break,
                Ok(read) => bytes.extend_from_slice(piece.get(..read).unwrap_or_default()),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }

    /// Sends the question with the end of the pipe that the answer is to be written to.
    fn send(&self, question: &[u8], answers: OwnedFd) -> Result<(), Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        let daemon = SocketAddrUnix::new(&self.socket)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let ends = [answers.as_fd()];
        if !control.push(SendAncillaryMessage::ScmRights(&ends)) {
            return Err(Errno::INVAL);
        }
        let piece = [IoSlice::new(question)];
        sendmsg_addr(&socket, &daemon, &piece, &mut control, SendFlags::NOSIGNAL).map(drop)
    }
}

/// Whether there is something to read, or the end, before `until`.
fn comes(answers: &OwnedFd, until: Instant) -> Result<bool, Errno> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let limit = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(0),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(answers, PollFlags::IN)], Some(&limit)) {
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error),
        }
    }
}

/// The socket for agents that process 1 was given, if a daemon has started it for a restore.
fn restored_by(line: &[u8]) -> Option<PathBuf> {
    let mut words = line.split(|byte| *byte == 0).skip(1);
    (words.next()? == INIT_ARGUMENT.as_bytes()).then_some(())?;
    // What it is to do, and then the path.
    let path = words.nth(1).filter(|path| path.starts_with(b"/"))?;
    Some(OsString::from_vec(path.to_vec()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restored_program_asks_the_daemon_that_has_restored_it() {
        let line = b"/x/bin/fermatad\0__init\0{\"criu\":[]}\0/run/y/agent.sock\0";
        let agents = restored_by(line).expect("a path");
        assert_eq!(agents, PathBuf::from("/run/y/agent.sock"));
        // Of a release that gave no path, and other programs.
        assert_eq!(restored_by(b"/x/bin/fermatad\0__init\0{}\0"), None);
        assert_eq!(restored_by(b"/sbin/init\0splash\0"), None);
        assert_eq!(restored_by(b""), None);
    }

    #[test]
    fn without_a_daemon_there_is_no_answer() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = Home {
            socket: folder.path().join("x.sock"),
            token: String::new(),
        };
        let asked = home.ask(b"?", 10, Duration::from_secs(60));
        assert_eq!(asked, Err(Errno::NOENT));
    }
}
