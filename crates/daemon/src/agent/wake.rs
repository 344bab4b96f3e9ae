//! Wakes a detached agent by a write to its program's memory, at its wake block (see [`wake_block`]).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use fermata_control::agent::{WAKE_IDLE, WAKE_REATTACH, WAKE_SAYS, WAKE_WAITING, wake_block};
use fermata_control::wait;
use fermata_control::worker::FailureKind;

use crate::failure::{OrFail, Result};

/// How long the page with the wake block may take to come from the image.
const PAGE_TIME: Duration = Duration::from_secs(60);
/// The time between two attempts to write to it.
const LOOK: Duration = Duration::from_millis(1);

/// Tells the agent of process `pid`, whose block lies at `address`, to connect to `socket` and to
/// present `token`.
///
/// # Errors
/// `Internal` when the memory cannot be written, or there is no block.
pub fn wake(pid: u32, address: u64, socket: &Path, token: &str) -> Result<()> {
    let (socket, token) = (socket.as_os_str().as_bytes(), token.as_bytes());
    let write = || write(pid, address, socket, token);
    let is_final = |written: &io::Result<()>| !written.as_ref().is_err_and(is_missing);
    // Polled: the page may not have come from the image yet. The agent, which waits on it, is about to fetch it, and another
    // process cannot be told when it is present.
    let written = wait::until(PAGE_TIME, LOOK, || Some(write()).filter(is_final));
    let written = written.unwrap_or_else(write);
    written.or_fail(FailureKind::Internal, || {
        format!("cannot wake the program, process {pid}")
    })
}

/// Resets the wake block of an agent that had already come when it was woken, and so has not answered the wake-up.
///
/// # Errors
/// `Internal` when the memory cannot be written.
pub fn calm(pid: u32, address: u64) -> Result<()> {
    let calm = || open(pid)?.write_all_at(&WAKE_IDLE.to_le_bytes(), address + wake_block::STATE);
    calm().or_fail(FailureKind::Internal, || {
        format!("cannot write to the program, process {pid}")
    })
}

/// Whether the agent has detached and waits to be woken; `None` if its library does not report that.
pub fn waits(pid: u32, address: u64) -> Option<bool> {
    let memory = open(pid).ok()?;
    let word = |at: u64| {
        let mut bytes = [0; 4];
        let read = memory.read_exact_at(&mut bytes, address + at);
        read.ok().map(|()| u32::from_le_bytes(bytes))
    };
    let mut magic = [0; wake_block::MAGIC.len()];
    memory.read_exact_at(&mut magic, address).ok()?;
    let says = magic == *wake_block::MAGIC && word(wake_block::SAYS)? == WAKE_SAYS;
    says.then_some(word(wake_block::STATE)? == WAKE_WAITING)
}

fn open(pid: u32) -> io::Result<File> {
    let path = format!("/proc/{pid}/mem");
    OpenOptions::new().read(true).write(true).open(path)
}

/// Whether the error means that a page of the program is absent: an access from another process does not fetch it.
fn is_missing(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

fn write(pid: u32, address: u64, socket: &[u8], token: &[u8]) -> io::Result<()> {
    let memory = open(pid)?;
    let mut magic = [0; wake_block::MAGIC.len()];
    memory.read_exact_at(&mut magic, address)?;
    if magic != *wake_block::MAGIC {
        return Err(io::Error::other("its wake block is not where it said"));
    }
    let text = |at: u64, room: usize, bytes: &[u8]| -> io::Result<()> {
        if bytes.len() >= room {
            return Err(io::Error::other(
                "the socket's path or the token is too long",
            ));
        }
        let mut field = vec![0; room];
        field[..bytes.len()].copy_from_slice(bytes);
        memory.write_all_at(&field, address + at)
    };
    text(wake_block::SOCKET, wake_block::SOCKET_BYTES, socket)?;
    text(wake_block::TOKEN, wake_block::TOKEN_BYTES, token)?;
    memory.write_all_at(&WAKE_REATTACH.to_le_bytes(), address + wake_block::STATE)
}
