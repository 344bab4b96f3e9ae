//! The thread that sends descriptors to other workers of the session. It ends when its handle is dropped.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, sendmsg, shutdown,
};

use super::messages::{ANSWER_TIME, FETCH, LOOK_UP, NO, Offers, YES, question, short};

/// See the module.
#[derive(Debug)]
pub(super) struct Service {
    folder: PathBuf,
    name: String,
    listener: Arc<UnixListener>,
    /// Device and inode of the socket, because the process's next worker may have another socket by this name already.
    file: (u64, u64),
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Listens as `name` in `folder`.
    pub(super) fn start(folder: &Path, name: &str, offers: Offers) -> io::Result<Self> {
        let (_folder, path) = short(folder, name)?;
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            // The socket of this process's former worker.
            _ => {}
        }
        let listener = Arc::new(UnixListener::bind(&path)?);
        let file = identity(&path)?;
        let ends = Arc::new(AtomicBool::new(false));
        let own = (Arc::clone(&listener), Arc::clone(&ends));
        let thread = std::thread::Builder::new().name("share".to_owned());
        let thread = thread.spawn(move || {
            let (listener, ends) = own;
            for stream in listener.incoming() {
                if ends.load(Ordering::Acquire) {
                    return;
                }
                // A malformed request gets no answer.
                let _ = stream.and_then(|stream| answer(stream, &offers));
            }
        })?;
        Ok(Self {
            folder: folder.to_owned(),
            name: name.to_owned(),
            listener,
            file,
            ends,
            thread: Some(thread),
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        if let Ok((_folder, path)) = short(&self.folder, &self.name)
            && identity(&path).is_ok_and(|it| it == self.file)
        {
            // If this fails, a dead socket is left behind.
            let _ = std::fs::remove_file(&path);
        }
        // Wakes the thread so that it ends; if that fails, it stays until the process ends.
        let woken = shutdown(&*self.listener, Shutdown::Both);
        if let (Ok(()), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
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
