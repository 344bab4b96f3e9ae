//! Where the bytes of pages come from: files that CRIU has written, or whatever else has the same bytes.

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::Advice;

/// The bytes of a file with pages.
pub trait PageBytes: Debug + Send + Sync {
    /// Fills `bytes` from the byte `offset` on.
    ///
    /// # Errors
    /// They cannot be read, or are not what they were.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;

    /// Says that so many bytes from `offset` on will be read soon: what of them is on a disk can begin to come. Does not wait for
    /// that, and tells no error: it is advice.
    fn will_need(&self, _offset: u64, _bytes: u64) {}
}

/// The files with pages of an image, by the NUMBER of `pages-NUMBER.img`.
pub trait PageFiles: Debug + Send + Sync {
    /// Does ahead what [`Self::open`] would do first otherwise, while there is nothing else to do.
    fn prepare(&self) {}

    /// One of them.
    ///
    /// # Errors
    /// It is not there, or cannot be read.
    fn open(&self, number: u32) -> io::Result<Arc<dyn PageBytes>>;
}

/// Files in a folder, as CRIU writes them.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl PageFiles for Folder {
    fn open(&self, number: u32) -> io::Result<Arc<dyn PageBytes>> {
        let file = File::open(self.0.join(format!("pages-{number}.img")))?;
        Ok(Arc::new(file))
    }
}

impl PageBytes for File {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }

    fn will_need(&self, offset: u64, bytes: u64) {
        if let Some(bytes) = NonZeroU64::new(bytes) {
            let _ = rustix::fs::fadvise(self, offset, Some(bytes), Advice::WillNeed);
        }
    }
}
