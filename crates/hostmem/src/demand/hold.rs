//! The second holder of the userfaultfds: without one, the kernel shows zeros in place of pages that are missing when the
//! server dies.

use std::os::fd::OwnedFd;

use super::bytes::{DONE, HELD, receive_byte};

/// Holds what [`super::Server`] sends through `socket` until nothing is missing; then lets go of all. If the server dies
/// before, `end` is called, which must end the processes: their descriptors are held until it returns.
pub fn hold(socket: OwnedFd, end: impl FnOnce()) {
    let mut held = Vec::new();
    loop {
        match receive_byte(&socket) {
            Ok(Some((HELD, Some(uffd)))) => held.push(uffd),
            Ok(Some((DONE, _))) => break,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            _ => return end(),
        }
    }
    // The server takes the end of the socket for the answer.
    drop(held);
}
