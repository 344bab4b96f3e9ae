//! Records pointers that copies bring into device memory, because kernels reach buffers through them that no parameter
//! names.

use fermata_abi::op::{Address, Blob, Place};
use fermata_state::{LONGEST_TABLE, Pointers, TABLE_HEAD};

use crate::server::Server;

impl Server {
    /// Records the pointers in bytes that have been copied to `to`.
    pub(super) fn note_bytes(&mut self, to: Address, bytes: &[u8]) {
        if !to.is_on_device() {
            return;
        }
        let pointers = &mut self.site.session.pointers;
        match bytes.len() as u64 <= LONGEST_TABLE {
            true => pointers.write(to, bytes),
            false => pointers.forget(to, bytes.len() as u64),
        }
    }

    /// Records the pointers in memory that has been copied from one address to another.
    pub(super) fn note_copy(&mut self, to: Address, from: Address, len: u64) {
        if !to.is_on_device() {
            return;
        }
        let session = &mut self.site.session;
        if from.is_on_device() {
            session.pointers.copy(to, from, len);
            return;
        }
        let mapping = self.site.live.hosts.range(..=from).next_back();
        let inside = mapping.filter(|(start, mapping)| {
            let left = mapping.size().checked_sub(from - **start);
            left.is_some_and(|left| len <= left)
        });
        let read = |len: u64| {
            let (start, mapping) = inside?;
            let mut bytes = vec![0; len as usize];
            mapping.read(from - *start, &mut bytes);
            Some(bytes)
        };
        match table(len, read) {
            Some(bytes) => session.pointers.write(to, &bytes),
            None => session.pointers.forget(to, len),
        }
    }

    /// What a copy of staged bytes will write; to be called while the staging area still has them.
    pub(super) fn noted_bytes(&self, to: &Place<'_>, from: &Place<'_>, len: u64) -> Option<Noted> {
        let (Place::Address(to), Place::Blob(Blob::Staged { offset, .. })) = (to, from) else {
            return None;
        };
        let read = |len: u64| self.staging.copy_out(*offset, len).ok();
        let bytes = to.is_on_device().then(|| table(len, read)).flatten();
        Some(match bytes {
            Some(bytes) => Noted::Bytes(*to, bytes),
            None => Noted::Other(*to, len),
        })
    }

    /// Records the pointers of a copy that the driver has accepted.
    pub(super) fn take_note(&mut self, noted: Noted) {
        match noted {
            Noted::Bytes(to, bytes) => self.note_bytes(to, &bytes),
            Noted::Other(to, len) => self.site.session.pointers.forget(to, len),
        }
    }
}

/// What a copy writes.
pub(super) enum Noted {
    /// These bytes.
    Bytes(Address, Vec<u8>),
    /// This many bytes, without pointers to record.
    Other(Address, u64),
}

/// The bytes of a copy if they may be a table of pointers. `len` is the copy's length in bytes; `read(n)` returns its
/// first `n` bytes.
fn table(len: u64, read: impl Fn(u64) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    if len > LONGEST_TABLE {
        return None;
    }
    let head = read(len.min(TABLE_HEAD))?;
    if !Pointers::may_be_in(len, &head) {
        return None;
    }
    match len <= TABLE_HEAD {
        true => Some(head),
        false => read(len),
    }
}
