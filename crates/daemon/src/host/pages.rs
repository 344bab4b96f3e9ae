//! The memory of restored programs that comes on demand: `__outer` brings it, `__init` holds what that takes, the daemon
//! waits for its end. What the bytes do is said in [`fermata_hostmem::demand`].
//!
//! ```text
//!  daemon ◄── Report ── __outer: Server ◄── userfaultfds ── criu restore
//!                          └─────── copies of them ──► __init: hold
//! ```
//! The socket's name is in the session's folder as long as pages are missing, so that the next daemon knows, too.

use std::io::{self, PipeWriter};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fermata_control::wait;
use fermata_hostmem::demand::{self, Folder, Learnt, PageFiles, Server, Turn};
use fermata_store::image::{HOST, Image, read_profile, write_profile};
use parking_lot::{Condvar, Mutex};

use super::chunks::Chunks;
use crate::failure::chain;
use crate::helpers::modes::Memory;
use crate::proc::ProcessId;
use crate::sys;

/// Where CRIU looks, in the folder that it works in.
const SOCKET: &str = "lazy-pages.socket";
/// Bytes of what restores have learnt, at most.
const LONGEST_PROFILE: u64 = 1 << 20;
/// Between two looks at that of another daemon.
const LOOK: Duration = Duration::from_millis(20);

/// Listens for the CRIU that will work in `dir`, where its files are, for pages that are in `memory` or, without one, in these files;
/// `holder` leads to [`hold`], and `share` is how much of a disk's time they may take. This process must be able to change its working
/// folder: the name of a socket must be short.
pub fn listen(
    dir: &Path,
    memory: Option<&Memory>,
    share: f64,
    holder: OwnedFd,
) -> io::Result<Server> {
    let host = memory.map(|it| it.image.join(HOST));
    let files: Box<dyn PageFiles> = match memory {
        Some(memory) => Box::new(Chunks::of(memory)),
        None => Box::new(Folder(dir.to_owned())),
    };
    std::env::set_current_dir(dir)?;
    // In its own folder CRIU may have other page maps (`super::in_common`).
    let dump = host.as_deref().unwrap_or(dir);
    let server = Server::listen(dump, dir, files, Path::new(SOCKET), holder);
    std::env::set_current_dir("/")?;
    let learnt = host.map(|it| learnt_in(&it));
    Ok(server?.knowing(learnt.unwrap_or_default()).sharing(share))
}

/// [`Server::turn`]; after a failure the program must be ended before the server is dropped.
pub fn turn(server: &mut Server, others: &[BorrowedFd<'_>]) -> Result<Turn, String> {
    // A panic must not drop the server while the program runs.
    match catch_unwind(AssertUnwindSafe(|| server.turn(others))) {
        Ok(turn) => turn.map_err(|error| chain(&error)),
        Err(_) => Err("what brings pages has failed".to_owned()),
    }
}

/// Says that no page is missing any more in the program that was restored in `dir`.
pub fn finished(dir: &Path) {
    // The folder may be gone with the session.
    let _ = std::fs::remove_file(dir.join(SOCKET));
}

/// What restores have left in a folder.
fn learnt_in(folder: &Path) -> Learnt {
    let bytes = read_profile(folder, LONGEST_PROFILE);
    bytes.map_or_else(Learnt::default, |bytes| Learnt::decode(&bytes))
}

/// Keeps what a restore in `dir` from `memory` has learnt: for the next one of that image, and for images of the restored program.
pub fn keep(learnt: &Learnt, dir: &Path, memory: &Memory) {
    // It is advice, and either folder may be gone, or not be ours to write.
    let _ = write_profile(dir, &learnt.encode());
    // Of many instances of an image most learn nothing new.
    if learnt_in(&memory.image.join(HOST)) != *learnt
        && let Ok(image) = Image::open(&memory.image)
        && let Ok(_held) = image.hold()
    {
        let _ = write_profile(&image.host(), &learnt.encode());
    }
}

/// Hands what the restore in `dir` has learnt, if there was one, to the image whose processes are in `host`: its program goes on from
/// there, with its memory where it was.
pub fn hand_on(dir: &Path, host: &Path) {
    let learnt = learnt_in(dir);
    if learnt != Learnt::default() {
        // It is advice.
        let _ = write_profile(host, &learnt.encode());
    }
}

/// Holds in process 1 what [`turn`] needs, in a thread. When the process at the other end of `socket` dies too early, it
/// ends the namespace, and this process with `status`.
pub fn hold(socket: OwnedFd, status: i32) -> io::Result<()> {
    let end = move || {
        sys::kill_namespace();
        std::process::exit(status)
    };
    std::thread::Builder::new()
        .name("hold-pages".into())
        .spawn(move || demand::hold(socket, end))
        .map(drop)
}

/// Whether pages of a program are missing, as the daemon knows it that has restored it.
#[derive(Debug, Clone)]
pub struct Pages(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    stand: Mutex<Stand>,
    changed: Condvar,
    /// As long as this is open, the pages that nobody waits for take a part of a disk's time only.
    lifeline: Mutex<Option<PipeWriter>>,
}

#[derive(Debug)]
enum Stand {
    Missing,
    Over,
    Failed(String),
}

impl Pages {
    /// Pages of a program that is about to be restored.
    pub fn new(missing: bool) -> Self {
        let stand = match missing {
            true => Stand::Missing,
            false => Stand::Over,
        };
        Self(Arc::new(Shared {
            stand: Mutex::new(stand),
            changed: Condvar::new(),
            lifeline: Mutex::new(None),
        }))
    }

    /// The lifeline of what brings them: others need the disk until [`Self::hurry`].
    pub fn share_disk(&self, lifeline: PipeWriter) {
        *self.0.lifeline.lock() = Some(lifeline);
    }

    /// Has all pages brought as fast as they can be: nobody else needs the disk, or somebody waits for all of them.
    pub fn hurry(&self) {
        *self.0.lifeline.lock() = None;
    }

    /// None is missing any more, or the program has ended.
    pub fn over(&self) {
        self.set(Stand::Over);
    }

    /// They cannot be brought.
    pub fn failed(&self, reason: String) {
        self.set(Stand::Failed(reason));
    }

    fn set(&self, stand: Stand) {
        let mut current = self.0.stand.lock();
        if matches!(*current, Stand::Missing) {
            *current = stand;
            self.0.changed.notify_all();
        }
    }

    /// Waits until no page is missing in the program's memory; false at the deadline.
    pub fn wait(&self, limit: Duration) -> bool {
        let mut stand = self.0.stand.lock();
        let missing = |stand: &mut Stand| matches!(stand, Stand::Missing);
        !self
            .0
            .changed
            .wait_while_for(&mut stand, missing, limit)
            .timed_out()
    }

    /// Why they could not be brought, if that is known within `limit`.
    pub fn failure(&self, limit: Duration) -> Option<String> {
        self.wait(limit);
        match &*self.0.stand.lock() {
            Stand::Failed(reason) => Some(reason.clone()),
            _ => None,
        }
    }
}

/// As [`Pages::wait`], for a program that another daemon has restored in `dir`, below `init`.
pub fn are_there(dir: &Path, init: ProcessId, limit: Duration) -> bool {
    let missing = || init.alive() && dir.join(SOCKET).exists();
    // Polled: the process that brings them is the other daemon's, and tells its end by the socket alone.
    wait::until(limit, LOOK, || (!missing()).then_some(())).is_some()
}
