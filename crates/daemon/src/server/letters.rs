//! Questions of programs that come as datagrams: each brings the end of a pipe for its answer, so that nothing connects a
//! program with its daemon when it is dumped.

use std::fs::{self, Permissions};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use rustix::fs::{FileType, OFlags, Stat, fcntl_setfl, fstat};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg, sockopt,
};

use crate::parallel::breathe;

/// A question that has come.
pub struct Letter {
    /// What it says.
    pub bytes: Vec<u8>,
    /// The process that has sent it, as this one numbers it.
    pub process: u32,
    /// Where the answer is written to; closed without one, the program asks again.
    answers: OwnedFd,
}

impl Letter {
    /// Answers, with less than a pipe holds.
    pub fn answer(&self, bytes: &[u8]) {
        // The pipe is empty; its reader may have ended.
        let _ = rustix::io::write(&self.answers, bytes);
    }
}

/// Answers questions of at most `most` bytes that come to the socket at `path` from now on, each in a thread `name`. Only
/// under the daemon's lock: the socket that an ended daemon has left there is replaced.
///
/// # Errors
/// The socket cannot be made, or no thread be started.
pub fn serve(
    path: &Path,
    name: &'static str,
    most: usize,
    answer: impl Fn(&Letter) + Send + Sync + 'static,
) -> anyhow::Result<()> {
    let socket = bind(path).with_context(|| format!("cannot listen at `{}`", path.display()))?;
    let answer = Arc::new(answer);
    let work = move || {
        loop {
            let Some(letter) = receive(&socket, most) else {
                continue;
            };
            let answer = answer.clone();
            // Without a thread it is asked again.
            let _ = std::thread::Builder::new()
                .name(name.into())
                .spawn(move || answer(&letter));
        }
    };
    std::thread::Builder::new()
        .name(format!("{name}-questions"))
        .spawn(work)
        .map(drop)
        .context("cannot start a thread")
}

fn bind(path: &Path) -> std::io::Result<UnixDatagram> {
    let temporary = path.with_extension("new");
    for old in [path, &temporary] {
        match fs::remove_file(old) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let socket = UnixDatagram::bind(&temporary)?;
    fs::set_permissions(&temporary, Permissions::from_mode(0o600))?;
    sockopt::set_socket_passcred(&socket, true)?;
    fs::rename(&temporary, path)?;
    Ok(socket)
}

fn receive(socket: &UnixDatagram, most: usize) -> Option<Letter> {
    let mut bytes = vec![0; most];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut piece = [IoSliceMut::new(&mut bytes)];
    let Ok(got) = recvmsg(socket, &mut piece, &mut control, RecvFlags::CMSG_CLOEXEC) else {
        breathe();
        return None;
    };
    let (mut sender, mut answers) = (None, None);
    for message in control.drain() {
        match message {
            RecvAncillaryMessage::ScmCredentials(it) => sender = Some(it),
            RecvAncillaryMessage::ScmRights(mut ends) => answers = ends.next(),
            _ => {}
        }
    }
    let sender = sender?;
    let own = rustix::process::getuid();
    if got.flags.contains(ReturnFlags::TRUNC) || (sender.uid != own && !sender.uid.is_root()) {
        return None;
    }
    bytes.truncate(got.bytes);
    Some(Letter {
        bytes,
        answers: answers.filter(is_pipe)?,
        process: u32::try_from(sender.pid.as_raw_nonzero().get()).ok()?,
    })
}

/// Whether it is a pipe, which is then written to without waiting for its reader.
fn is_pipe(end: &OwnedFd) -> bool {
    let is = |stat: Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo;
    fstat(end).is_ok_and(is) && fcntl_setfl(end, OFlags::NONBLOCK).is_ok()
}
