//! One question to the daemon: a datagram there, and the answer through a pipe whose other end went with it. Both live as
//! long as the call.
//!
//! A program that is dumped in the middle of a call holds nothing that is connected to a process outside, only the reading
//! end of a pipe: restored it has no writer, so the library reads the end at once, and asks the daemon that there is now.
//! It is the same when the daemon dies.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fermata_control::{check_socket, wait};
use fermata_nvml::ask::{Answer, Ask, Call, MOST_BYTES, Outcome, VERSION, decode, encode};
use fermata_nvml::code::Code;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sendmsg_addr, socket_with,
};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::home::{self, Home};

/// How long an answer may take: the driver of a GPU that nobody uses takes seconds to start.
const ANSWER_TIME: Duration = Duration::from_secs(60);
/// After this time it is asked again: a child that was forked in the middle of a call holds the pipe open.
const AGAIN: Duration = Duration::from_secs(15);
/// How long there may be no daemon.
const AWAY_TIME: Duration = Duration::from_secs(5);
/// Between two attempts.
const LOOK: Duration = Duration::from_millis(20);

static NEXT: AtomicU64 = AtomicU64::new(0);

/// Asks.
///
/// # Errors
/// `DRIVER_NOT_LOADED` outside of a session and without a daemon, `TIMEOUT` when no answer comes.
pub fn ask(call: Call) -> Result<Outcome, Code> {
    let mut away = None;
    let mut ask = Ask {
        version: VERSION,
        id: (u64::from(std::process::id()) << 32)
            | (NEXT.fetch_add(1, Ordering::Relaxed) & 0xffff_ffff),
        token: String::new(),
        call,
    };
    let attempt = || {
        let Some(home) = home::find() else {
            return Some(Err(Code::DRIVER_NOT_LOADED));
        };
        ask.token.clone_from(&home.token);
        match once(&home, &ask) {
            Ok(Some(outcome)) => return Some(Ok(outcome)),
            // It could not answer now, or has ended.
            Ok(None) => away = None,
            Err(Errno::NOENT | Errno::CONNREFUSED) => {
                let since = *away.get_or_insert_with(Instant::now);
                if since.elapsed() > AWAY_TIME {
                    return Some(Err(Code::DRIVER_NOT_LOADED));
                }
            }
            // Its queue is full.
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => {}
            Err(Errno::ACCESS | Errno::PERM) => return Some(Err(Code::NO_PERMISSION)),
            Err(_) => return Some(Err(Code::UNKNOWN)),
        }
        None
    };
    // Polled: nothing of a call may be open in the program but for an answer, so that nothing tells of the next daemon.
    wait::until(ANSWER_TIME, LOOK, attempt).unwrap_or(Err(Code::TIMEOUT))
}

/// The answer, or `None` if none comes.
fn once(home: &Home, ask: &Ask) -> Result<Option<Outcome>, Errno> {
    match check_socket(&home.socket) {
        Ok(()) => {}
        Err(absent) if absent.is_absent() => return Err(Errno::NOENT),
        Err(_) => return Err(Errno::PERM),
    }
    let (answers, theirs) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    send(home, &encode(ask), theirs)?;
    let until = Instant::now() + AGAIN;
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    while bytes.len() <= MOST_BYTES && comes(&answers, until)? {
        match rustix::io::read(&answers, &mut piece) {
            Ok(0) => break,
            Ok(read) => bytes.extend_from_slice(piece.get(..read).unwrap_or_default()),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    let answer = decode::<Answer>(&bytes);
    let answer = answer.filter(|it| it.version == VERSION && it.id == ask.id);
    Ok(answer.map(|it| it.outcome))
}

/// Sends the question with the end of the pipe that the answer is to be written to.
fn send(home: &Home, question: &[u8], answers: OwnedFd) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    let daemon = SocketAddrUnix::new(&home.socket)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let ends = [answers.as_fd()];
    if !control.push(SendAncillaryMessage::ScmRights(&ends)) {
        return Err(Errno::INVAL);
    }
    let piece = [IoSlice::new(question)];
    sendmsg_addr(&socket, &daemon, &piece, &mut control, SendFlags::NOSIGNAL).map(drop)
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
