//! Where the bytes of pages come from: files that CRIU has written, or whatever else has the same bytes.

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;

/// The bytes of a file with pages.
pub trait PageBytes: Debug + Send + Sync {
    /// Fills `bytes` from the byte `offset` on.
    ///
    /// # Errors
    /// They cannot be read, or are not what they were.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
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
}
