//! Takes module images from the program: out of the operation, out of a file, or by the hash of one that is held already.
//!
//! ```text
//!  mapped file ─ descriptor over the side socket ─► read here ─┐
//!  memory      ─ memory file, descriptor likewise ─► read here ─┼─► one copy: driver's loads, records, examination
//!  small       ─ with the operation ────────────────────────────┘
//! ```
//! The descriptor may refer to anything, and the file may change at any time. So it is read, never mapped, and only if it
//! is a regular file that is long enough. The bytes read are limited, for one image and for all of a session.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use fermata_abi::op::{Blob, HeldImageId, ImageRef};
use fermata_abi::sys::driver as cu;
use fermata_state::{IMAGE_PADDING, ImageBytes, ImageId, LONGEST_IMAGE};

use super::{DONE, Step};
use crate::errors::OpError;
use crate::server::Server;

/// The most bytes of all images of a session.
const LONGEST_IN_ALL: u64 = 16 << 30;
/// Bytes that each reading thread gets at least.
const SHARE: usize = 16 << 20;
/// The most threads that read one file.
const READERS: usize = 8;

impl Server {
    /// The bytes of a blob, private to this process.
    pub(super) fn blob<'b>(&self, blob: &Blob<'b>) -> Result<Cow<'b, [u8]>, OpError> {
        Ok(match blob {
            Blob::Inline(bytes) => Cow::Borrowed(*bytes),
            Blob::Staged { offset, len } => Cow::Owned(self.staging.copy_out(*offset, *len)?),
        })
    }

    /// An image, and its ID in the session.
    pub(super) fn image(&mut self, image: &ImageRef<'_>) -> Result<(ImageId, ImageBytes), OpError> {
        let bytes = match image {
            ImageRef::Held { image } => {
                let held = self.site.session.held_image(*image);
                let held = held.map(|(name, image)| (name, image.clone()));
                let missing = || OpError::invalid(format!("there is no image {image:#x}"));
                return held.ok_or_else(missing);
            }
            ImageRef::Blob(blob) => match self.blob(blob)? {
                Cow::Borrowed(bytes) => ImageBytes::from(bytes),
                Cow::Owned(bytes) => ImageBytes::from(bytes),
            },
            ImageRef::File { file, offset, len } => {
                self.receive_descriptor(|it| it.files.contains_key(file))?;
                let fd = self.files.remove(file).flatten();
                let room = LONGEST_IN_ALL.saturating_sub(self.site.session.image_total());
                if *len > room.min(LONGEST_IMAGE) {
                    let text = format!("a module image of {len} bytes is too long");
                    return Err(OpError::new(cu::CUDA_ERROR_OUT_OF_MEMORY, text));
                }
                let unreadable = |error: &dyn std::fmt::Display| {
                    let text = format!("a module image cannot be read from its file: {error}");
                    OpError::new(cu::CUDA_ERROR_FILE_NOT_FOUND, text)
                };
                let fd = fd.ok_or_else(|| unreadable(&"its descriptor is missing"))?;
                read(fd, *offset, *len).map_err(|error| unreadable(&error))?
            }
        };
        Ok((self.site.name_image(&bytes), bytes))
    }

    pub(super) fn image_hold(&mut self, image: HeldImageId, from: &ImageRef<'_>) -> Step {
        let (name, bytes) = self.image(from)?;
        self.site.session.hold_image(image, name, &bytes)?;
        self.site.examine_image(&name);
        DONE
    }

    pub(super) fn image_release(&mut self, image: HeldImageId) -> Step {
        self.site.session.release_image(image);
        DONE
    }
}

/// Reads a part of a file, with several threads if it is long.
///
/// # Errors
/// The file is not a regular one, is too short or cannot be read, or memory is short.
fn read(fd: OwnedFd, offset: u64, len: u64) -> io::Result<ImageBytes> {
    let file = File::from(fd);
    let about = file.metadata()?;
    let is_there = offset
        .checked_add(len)
        .is_some_and(|end| end <= about.len());
    if !about.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if !is_there {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
    }
    let len = len as usize;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len + IMAGE_PADDING)?;
    bytes.resize(len + IMAGE_PADDING, 0);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let readers = len.div_ceil(SHARE).clamp(1, READERS.min(cores));
    let part = len.div_ceil(readers).max(1);
    let parts = bytes[..len].chunks_mut(part).enumerate();
    let read = |(n, into): (usize, &mut [u8])| file.read_exact_at(into, offset + (n * part) as u64);
    if readers == 1 {
        parts.into_iter().try_for_each(read)?;
    } else {
        std::thread::scope(|scope| {
            let all: Vec<_> = parts.map(|it| scope.spawn(move || read(it))).collect();
            let lost = |_| Err(io::Error::other("a thread that reads has panicked"));
            all.into_iter()
                .try_for_each(|it| it.join().unwrap_or_else(lost))
        })?;
    }
    ImageBytes::from_padded(bytes).ok_or_else(|| io::Error::other("no room behind the image"))
}
