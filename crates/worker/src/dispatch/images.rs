//! Takes module images from the program: out of the operation, out of a file, or by the hash of one that is held already.
//!
//! ```text
//!  mapped file ─ descriptor over the side socket ─► read here ─┐
//!  memory      ─ memory file, descriptor likewise ─► read here ─┼─► one copy: driver's loads, records, examination
//!  small       ─ with the operation ────────────────────────────┘
//! ```
//! The descriptor may refer to anything ([`crate::reading`]). The bytes read are limited, for one image and for all of a session.

use std::borrow::Cow;
use std::fmt::Display;

use fermata_abi::op::{Blob, FileId, HeldImageId, ImageRef};
use fermata_abi::sys::driver as cu;
use fermata_state::{ImageBytes, ImageId, LONGEST_IMAGE};

use super::{DONE, Step};
use crate::errors::OpError;
use crate::reading::{Part, Reading};
use crate::server::Server;
use crate::waiting::Then;

/// The most bytes of all images of a session.
const LONGEST_IN_ALL: u64 = 16 << 30;
/// A library's image of so many bytes is read beside the program.
const BESIDE: u64 = if cfg!(debug_assertions) {
    1 << 20
} else {
    8 << 20
};

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
                self.end_reading(*image);
                if let Some(error) = self.unread.get(image) {
                    return Err(error.clone());
                }
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
                let part = self.part(*file, *offset, *len)?;
                part.read().map_err(unreadable)?
            }
        };
        Ok((self.site.name_image(&bytes), bytes))
    }

    /// A part of a file that the program has sent.
    fn part(&mut self, file: FileId, offset: u64, len: u64) -> Result<Part, OpError> {
        self.receive_descriptor(|it| it.files.contains_key(&file))?;
        let fd = self.files.remove(&file).flatten();
        let coming: u64 = self.readings().map(|it| it.len).sum();
        let room = LONGEST_IN_ALL.saturating_sub(self.site.session.image_total() + coming);
        if len > room.min(LONGEST_IMAGE) {
            let text = format!("a module image of {len} bytes is too long");
            return Err(OpError::new(cu::CUDA_ERROR_OUT_OF_MEMORY, text));
        }
        let fd = fd.ok_or_else(|| unreadable("its descriptor is missing"))?;
        Part::of(fd, offset, len).map_err(unreadable)
    }

    pub(super) fn image_hold(&mut self, image: HeldImageId, from: &ImageRef<'_>) -> Step {
        let bytes = match from {
            ImageRef::File { file, offset, len } if *len >= BESIDE => {
                if self.site.session.held_image(image).is_some()
                    || self.readings().any(|it| it.image == image)
                {
                    let text = format!("there is an image {image:#x} already");
                    return Err(OpError::invalid(text));
                }
                let part = self.part(*file, *offset, *len)?;
                // Without a thread the program fails as where memory is short.
                let reading = Reading::begin(image, part).map_err(|error| {
                    let text = format!("cannot start a thread that reads: {error}");
                    OpError::new(cu::CUDA_ERROR_OUT_OF_MEMORY, text)
                })?;
                self.after(&[], None, false, Then::ImageHold(reading), None)?;
                return DONE;
            }
            _ => self.image(from)?,
        };
        self.keep_image(image, bytes)?;
        DONE
    }

    fn keep_image(
        &mut self,
        image: HeldImageId,
        (name, bytes): (ImageId, ImageBytes),
    ) -> Result<(), OpError> {
        self.site.session.hold_image(image, name, &bytes)?;
        self.site.examine_image(&name);
        Ok(())
    }

    /// Records an image that has been read, or why it could not be, for the operations that use it. Waits for it.
    pub(crate) fn held(&mut self, reading: Reading) {
        let image = reading.image;
        let read = reading.end().map_err(unreadable);
        let kept = read.and_then(|bytes| {
            let named = (self.site.name_image(&bytes), bytes);
            self.keep_image(image, named)
        });
        if let Err(error) = kept {
            self.unread.insert(image, error);
        }
    }

    /// Images that are being read.
    fn readings(&self) -> impl Iterator<Item = &Reading> {
        self.waiting.iter().filter_map(|it| match &it.then {
            Then::ImageHold(reading) => Some(reading),
            _ => None,
        })
    }

    /// Waits for an image, if it is being read.
    fn end_reading(&mut self, image: HeldImageId) {
        let its = |then: &Then| matches!(then, Then::ImageHold(it) if it.image == image);
        if let Some(index) = self.waiting.iter().position(|it| its(&it.then))
            && let Then::ImageHold(reading) = self.waiting.remove(index).then
        {
            self.held(reading);
        }
    }

    /// Waits for all images that are being read.
    pub(crate) fn end_readings(&mut self) {
        let images: Vec<HeldImageId> = self.readings().map(|it| it.image).collect();
        for image in images {
            self.end_reading(image);
        }
    }

    pub(super) fn image_release(&mut self, image: HeldImageId) -> Step {
        self.end_reading(image);
        self.unread.remove(&image);
        self.site.session.release_image(image);
        DONE
    }
}

fn unreadable(error: impl Display) -> OpError {
    let text = format!("a module image cannot be read from its file: {error}");
    OpError::new(cu::CUDA_ERROR_FILE_NOT_FOUND, text)
}
