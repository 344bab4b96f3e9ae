//! Passes shared memory and events of a session's processes from worker to worker.
//!
//! ```text
//!  worker of the process that shares                    worker of the process that fetches
//!   offer: descriptor of the physical memory ─┐   (an event: of a file with the driver's handle)
//!   socket FOLDER/s-SHARER  ◄─────────────────┼────────── number of the content, or of the event
//!   thread `share`          ──────────────────┴─────────► descriptor ─► import, open
//! ```
//! The folder belongs to one session, so other sessions' memory is not found. All peers run as one user. In a restore
//! all workers load at the same time: each offers what it shares before it fetches anything, and waits for the
//! others' sockets.

pub mod event_handle;
mod messages;
mod service;

use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_abi::op::Sharer;
use fermata_state::{Fetched, Sharing as Records};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use self::messages::{ANSWER_TIME, FETCH, LOOK_UP, NO, Offers, YES, short};
use self::service::Service;

/// How long to wait in a restore until another worker shares.
const RESTORE_TIME: Duration = Duration::from_secs(120);
/// Between two looks for its socket.
const LOOK: Duration = Duration::from_millis(2);

/// Why memory or an event of another process cannot be fetched or offered.
#[derive(Debug, thiserror::Error)]
pub enum ShareError {
    /// The worker does not know its session.
    #[error("the worker has no folder for what its session shares")]
    NoFolder,
    /// There is no such process in the session.
    #[error(
        "it belongs to a process outside this session: start both by one `fermata run`, of which they are children"
    )]
    Outside,
    /// The process that has shared it has ended.
    #[error("the process that has shared it has ended")]
    Ended,
    /// It is shared no more.
    #[error("the process that has shared it has freed or destroyed it")]
    Freed,
    /// The other worker cannot be asked.
    #[error("cannot ask the worker of the process that has shared it")]
    Ask(#[source] io::Error),
    /// Nothing can be offered.
    #[error("cannot offer it to other processes of the session")]
    Offer(#[source] io::Error),
}

type Result<T> = std::result::Result<T, ShareError>;

/// Offers what this worker's process shares, and fetches what others share.
#[derive(Debug, Default)]
pub struct Sharing {
    folder: Option<PathBuf>,
    /// A file that exists when the restore of another process has failed.
    failed: Option<PathBuf>,
    offers: Offers,
    service: Option<Service>,
}

impl Sharing {
    /// Sets the folder, which belongs to this session alone, in which its workers find each other. In a restore they
    /// wait for each other until a file `failed` appears there.
    pub fn set_folder(&mut self, folder: &Path, failed: &str) {
        self.failed = Some(folder.join(failed));
        self.folder = Some(folder.to_owned());
    }

    fn folder(&self) -> Result<&Path> {
        self.folder.as_deref().ok_or(ShareError::NoFolder)
    }

    /// Whether content is offered already.
    pub fn offers(&self, buffer: u64) -> bool {
        self.offers.lock().contains_key(&buffer)
    }

    /// Offers the descriptors in `all`, by the number of their content, to other workers. This process is `sharer`.
    ///
    /// # Errors
    /// There is no folder, or no socket or thread can be made.
    pub fn offer(&mut self, sharer: &Sharer, all: Vec<(u64, OwnedFd)>) -> Result<()> {
        let folder = self.folder()?;
        self.offers.lock().extend(all);
        if self.service.is_none() {
            let offers = Arc::clone(&self.offers);
            let service = Service::start(folder, &name(sharer), offers);
            self.service = Some(service.map_err(ShareError::Offer)?);
        }
        Ok(())
    }

    /// Withdraws offers that `records` do not name.
    pub fn keep(&self, records: &Records) {
        let mut offers = self.offers.lock();
        if offers.len() != records.shared.len() {
            offers.retain(|buffer, _| records.shared.contains_key(buffer));
        }
    }

    /// A descriptor of another process's memory, or of the file with its event's handle.
    ///
    /// # Errors
    /// Why there is none.
    pub fn fetch(&self, from: &Fetched) -> Result<OwnedFd> {
        self.ask(from, FETCH)?.ok_or(ShareError::Freed)
    }

    /// As [`Sharing::fetch`], in a restore: waits until the other worker offers it.
    ///
    /// # Errors
    /// As there.
    pub fn await_and_fetch(&self, from: &Fetched) -> Result<OwnedFd> {
        let until = Instant::now() + RESTORE_TIME;
        let waits = || {
            let failed = self.failed.as_ref().is_some_and(|it| it.exists());
            Instant::now() < until && !failed
        };
        loop {
            match self.fetch(from) {
                Err(ShareError::Outside | ShareError::Ended) if waits() => {
                    // Polled: watching the folder would show the socket, but not that its owner listens.
                    std::thread::sleep(LOOK);
                }
                other => return other,
            }
        }
    }

    /// Checks that a restore would find all fetched memory (not events): its owner runs and shares it.
    ///
    /// # Errors
    /// Why a restore would not find it.
    pub fn check(&self, records: &Records) -> Result<()> {
        for from in records.fetched.values() {
            self.ask(from, LOOK_UP)?;
        }
        Ok(())
    }

    /// Whether an event's owner runs and shares it.
    ///
    /// # Errors
    /// The owner's worker cannot be asked.
    pub fn is_shared(&self, from: &Fetched) -> Result<bool> {
        match self.ask(from, LOOK_UP) {
            Ok(_) => Ok(true),
            Err(ShareError::Outside | ShareError::Ended | ShareError::Freed) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn ask(&self, from: &Fetched, question: u8) -> Result<Option<OwnedFd>> {
        let folder = self.folder()?;
        let mut stream = connect(folder, &name(&from.sharer))?;
        let ask = |stream: &mut UnixStream| {
            stream.set_read_timeout(Some(ANSWER_TIME))?;
            stream.set_write_timeout(Some(ANSWER_TIME))?;
            stream.write_all(&[question])?;
            stream.write_all(&from.buffer.to_le_bytes())?;
            receive(stream)
        };
        // It may end with the question in its socket.
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => ShareError::Ended,
            _ => ShareError::Ask(error),
        };
        match ask(&mut stream).map_err(failed)? {
            (YES, descriptor) => Ok(descriptor),
            _ => Err(ShareError::Freed),
        }
    }
}

/// The name of a process's socket.
fn name(sharer: &Sharer) -> String {
    let digits = sharer.iter().map(|byte| format!("{byte:02x}"));
    format!("s-{}", digits.collect::<String>())
}

fn connect(folder: &Path, name: &str) -> Result<UnixStream> {
    let (_folder, path) = short(folder, name).map_err(ShareError::Ask)?;
    UnixStream::connect(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => ShareError::Outside,
        io::ErrorKind::ConnectionRefused => ShareError::Ended,
        _ => ShareError::Ask(error),
    })
}

/// An answer, and the descriptor that comes with it.
fn receive(stream: &mut UnixStream) -> io::Result<(u8, Option<OwnedFd>)> {
    let mut answer = [NO];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(
        stream.as_fd(),
        &mut [IoSliceMut::new(&mut answer)],
        &mut control,
        flags,
    )?;
    if got.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let descriptor = descriptors.next().and_then(|mut rights| rights.next());
    Ok((answer[0], descriptor))
}

#[cfg(test)]
mod tests {
    use fermata_abi::op::MemoryId;
    use std::fs::File;
    use std::io::Read;
    use std::os::unix::net::UnixListener;

    use super::*;

    const OWN: Sharer = [7; 16];
    const FAILED: &str = "failed";

    fn from(sharer: Sharer, buffer: u64) -> Fetched {
        Fetched { sharer, buffer }
    }

    #[test]
    fn what_is_offered_is_found_in_its_session_and_nowhere_else() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (mut owner, mut other, mut stranger) =
            (Sharing::default(), Sharing::default(), Sharing::default());
        assert!(matches!(
            owner.fetch(&from(OWN, 1)),
            Err(ShareError::NoFolder)
        ));
        owner.set_folder(here.path(), FAILED);
        other.set_folder(here.path(), FAILED);
        stranger.set_folder(there.path(), FAILED);
        let file = here.path().join("data");
        std::fs::write(&file, "data").unwrap();
        let descriptor = OwnedFd::from(File::open(&file).unwrap());
        owner.offer(&OWN, vec![(1, descriptor)]).unwrap();
        let mut text = String::new();
        let got = other.fetch(&from(OWN, 1)).unwrap();
        File::from(got).read_to_string(&mut text).unwrap();
        assert_eq!(text, "data");
        assert!(matches!(other.fetch(&from(OWN, 2)), Err(ShareError::Freed)));
        assert!(matches!(
            other.fetch(&from([8; 16], 1)),
            Err(ShareError::Outside)
        ));
        assert!(matches!(
            stranger.fetch(&from(OWN, 1)),
            Err(ShareError::Outside)
        ));
        // What is freed is checked for before an image is made that nobody could restore.
        let records = Records {
            fetched: [(MemoryId::from_raw(0x100), from(OWN, 1))].into(),
            ..Records::default()
        };
        other.check(&records).unwrap();
        assert!(other.is_shared(&from(OWN, 1)).unwrap());
        owner.keep(&Records::default());
        assert!(matches!(other.check(&records), Err(ShareError::Freed)));
        assert!(!other.is_shared(&from(OWN, 1)).unwrap());
        drop(owner);
        assert!(matches!(
            other.check(&records),
            Err(ShareError::Ended | ShareError::Outside)
        ));
    }

    #[test]
    fn a_worker_that_ends_late_leaves_the_socket_of_the_next() {
        let here = tempfile::tempdir().unwrap();
        let nothing = || OwnedFd::from(File::open("/dev/null").unwrap());
        let (mut former, mut next, mut other) =
            (Sharing::default(), Sharing::default(), Sharing::default());
        for worker in [&mut former, &mut next, &mut other] {
            worker.set_folder(here.path(), FAILED);
        }
        former.offer(&OWN, vec![(1, nothing())]).unwrap();
        next.offer(&OWN, vec![(2, nothing())]).unwrap();
        drop(former);
        other.fetch(&from(OWN, 2)).unwrap();
        assert!(matches!(other.fetch(&from(OWN, 1)), Err(ShareError::Freed)));
        drop(next);
        assert!(matches!(
            other.fetch(&from(OWN, 2)),
            Err(ShareError::Outside)
        ));
    }

    #[test]
    fn a_worker_that_ends_while_it_is_asked_is_waited_for_as_one_that_has_ended() {
        let here = tempfile::tempdir().unwrap();
        let mut other = Sharing::default();
        other.set_folder(here.path(), FAILED);
        for takes in [false, true] {
            let (_folder, path) = short(here.path(), &name(&OWN)).unwrap();
            let listener = UnixListener::bind(&path).unwrap();
            std::thread::scope(|scope| {
                let asked = scope.spawn(|| other.fetch(&from(OWN, 1)).map(drop));
                let (mut stream, _) = listener.accept().unwrap();
                if takes {
                    stream.read_exact(&mut [0; 9]).unwrap();
                }
                drop(stream);
                let ended = asked.join().unwrap();
                assert!(matches!(ended, Err(ShareError::Ended)), "{ended:?}");
            });
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn in_a_restore_a_worker_waits_for_the_one_that_shares() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().to_owned();
        let late = std::thread::spawn(move || {
            let mut other = Sharing::default();
            other.set_folder(&path, FAILED);
            other.await_and_fetch(&from(OWN, 1)).map(drop)
        });
        std::thread::sleep(Duration::from_millis(20));
        let mut owner = Sharing::default();
        owner.set_folder(here.path(), FAILED);
        let descriptor = OwnedFd::from(File::open("/dev/null").unwrap());
        owner.offer(&OWN, vec![(1, descriptor)]).unwrap();
        late.join().unwrap().unwrap();
        // Another one will not come.
        std::fs::write(here.path().join(FAILED), "").unwrap();
        let lost = owner.await_and_fetch(&from([8; 16], 1));
        assert!(matches!(lost, Err(ShareError::Outside)));
    }
}
