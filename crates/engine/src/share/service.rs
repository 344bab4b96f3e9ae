//! The thread that gives descriptors to other workers of the session. It ends when it is dropped.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::messages::{ANSWER_TIME, FETCH, LOOK_UP, NO, Offers, YES, question, short};

/// See the module.
#[derive(Debug)]
pub(super) struct Service {
    folder: PathBuf,
    name: String,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Listens as `name` in `folder`.
    pub(super) fn start(folder: &Path, name: &str, offers: Offers) -> io::Result<Self> {
        let (_folder, path) = short(folder, name)?;
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            // One of this process's former worker.
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        let ends = Arc::new(AtomicBool::new(false));
        let own = Arc::clone(&ends);
        let thread = std::thread::Builder::new().name("share".to_owned());
        let thread = thread.spawn(move || {
            for stream in listener.incoming() {
                if own.load(Ordering::Acquire) {
                    return;
                }
                // A peer that asks for nothing sensible gets no answer.
                let _ = stream.and_then(|stream| answer(stream, &offers));
            }
        })?;
        Ok(Self {
            folder: folder.to_owned(),
            name: name.to_owned(),
            ends,
            thread: Some(thread),
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        // Wakes the thread; where that fails the socket is gone, and the thread stays until the process ends.
        let woken = short(&self.folder, &self.name).and_then(|(_folder, path)| {
            UnixStream::connect(&path)?;
            std::fs::remove_file(&path)
        });
        if let (Ok(()), Some(thread)) = (woken, self.thread.take()) {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

fn answer(mut stream: UnixStream, offers: &Offers) -> io::Result<()> {
    stream.set_read_timeout(Some(ANSWER_TIME))?;
    stream.set_write_timeout(Some(ANSWER_TIME))?;
    let (question, number) = question(&mut stream)?;
    // A copy: the memory may be freed meanwhile.
    let offered = offers.lock().get(&number).map(|it| it.try_clone());
    let offered = offered.transpose()?;
    let descriptor = offered.as_ref().filter(|_| question == FETCH);
    let known = offered.is_some() && (question == FETCH || question == LOOK_UP);
    send(
        &stream,
        if known { YES } else { NO },
        descriptor.map(|it| it.as_fd()),
    )
}

fn send(stream: &UnixStream, answer: u8, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let bytes = [answer];
    sendmsg(
        stream,
        &[IoSlice::new(&bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}
