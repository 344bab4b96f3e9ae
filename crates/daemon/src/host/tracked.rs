//! One tracked process, and the copy of its memory.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Instant;

use fermata_control::worker::FailureKind;
use fermata_hostmem::{Exact, Passed, Tracker};
use parking_lot::Mutex;

use crate::criu::mappings::LeftOut;
use crate::failure::{Failure, OrFail, Result, fail};
use crate::proc::{self, ProcessId};

/// A process whose memory is tracked.
pub(super) struct Tracked {
    pub(super) process: ProcessId,
    /// Its number in CRIU's files.
    pub(super) inner: u32,
    /// The process before it in [`super::HostCopy`] in whose copy is what both have in common.
    pub(super) from: Option<ProcessId>,
    /// Under a lock, because two threads make last passes.
    pub(super) copy: Mutex<ProcessCopy>,
}

/// The copy of one process's memory.
pub(super) struct ProcessCopy {
    pub(super) tracker: Tracker,
    /// What the last pass has found, when it began, and bytes that are expected to be written until the program stands still.
    pub(super) passed: Passed,
    pub(super) passed_at: Option<Instant>,
    pub(super) expected: u64,
    /// The most that a pass has found in mappings that had just been made.
    pub(super) most_young: u64,
    /// What its library puts into memory of its own when it is stopped, at most.
    pub(super) staged: u64,
    /// The exact copy, once the program has been stopped.
    pub(super) exact: Option<Exact>,
    /// Whether its last pass has begun and not come to its end, and why not, if that is known.
    pub(super) begun: bool,
    pub(super) why: Option<Failure>,
}

impl Tracked {
    /// Begins to track process `pid`, which the tracked process `from` has forked if there is one, through its userfaultfd; the copy is kept, without a
    /// name, in `folder`. None if it has ended.
    ///
    /// # Errors
    /// It cannot be tracked, or the copy cannot be made.
    pub(super) fn begin(
        pid: u32,
        from: Option<ProcessId>,
        uffd: OwnedFd,
        folder: &Path,
    ) -> io::Result<Option<Self>> {
        let (Some(process), Some(inner)) = (ProcessId::of(pid), proc::inner_pid(pid)) else {
            return Ok(None);
        };
        let tracker = Tracker::new(pid, uffd, nameless(folder)?).map_err(io::Error::other)?;
        let copy = ProcessCopy {
            tracker,
            passed: Passed::default(),
            passed_at: None,
            expected: 0,
            most_young: 0,
            staged: 0,
            exact: None,
            begun: false,
            why: None,
        };
        Ok(Some(Self {
            process,
            inner,
            from,
            copy: Mutex::new(copy),
        }))
    }

    /// Makes its copy exact, unless it is. CRIU has dumped it, and this is what it has left out of it. `all` are the processes that are tracked.
    pub(super) fn finish(&self, left_out: Option<&LeftOut>, all: &[Self]) -> Result<()> {
        let mut copy = self.copy.lock();
        if copy.exact.is_some() {
            return Ok(());
        }
        let failed = || format!("cannot copy the memory of process {}", self.process.pid);
        // One that has failed, or panicked, leaves a copy that may lack pages.
        if std::mem::replace(&mut copy.begun, true) {
            let why = copy.why.take();
            return Err(why.unwrap_or_else(|| fail(FailureKind::Internal, failed())));
        }
        let pages = left_out.map_or(&[][..], |it| &it.pages);
        // CRIU takes parents first. A process waits for one before it in `all`.
        let parent = self.from.and_then(|from| find(all, from));
        let parent = parent.map(|it| it.copy.lock());
        let parent = parent.as_ref();
        let parent = parent.and_then(|it| Some((&it.tracker, &it.exact.as_ref()?.own[..])));
        let exact = copy.tracker.last_after(pages, parent);
        copy.exact = exact.or_fail(FailureKind::Internal, failed)?;
        copy.begun = false;
        Ok(())
    }
}

/// The one of these that is tracked of `process`.
pub(super) fn find(all: &[Tracked], process: ProcessId) -> Option<&Tracked> {
    all.iter().find(|it| it.process == process)
}

/// A file in `folder` that goes with its descriptor.
fn nameless(folder: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let flags = rustix::fs::OFlags::TMPFILE.bits() as i32;
    let named = || {
        let path = folder.join(".copy");
        let file = options.clone().create_new(true).open(&path)?;
        fs::remove_file(&path)?;
        Ok(file)
    };
    // Not every file system has files without names.
    options
        .clone()
        .custom_flags(flags)
        .open(folder)
        .or_else(|_| named())
}

/// What tests of copies begin with.
#[cfg(test)]
pub(super) mod tests {
    use std::process::Child;

    use super::*;

    /// A process that runs, and the copy of its memory in `folder`.
    pub fn tracked(pid: u32, folder: &Path) -> Tracked {
        let uffd = fermata_hostmem::acquire(pid).expect("a userfaultfd");
        let tracked = Tracked::begin(pid, None, uffd, folder).expect("tracked");
        tracked.expect("it runs")
    }

    pub fn end(mut child: Child) {
        child.kill().expect("killed");
        child.wait().expect("it ends");
    }
}
