//! What a worker that waits has of an image already, so that a restore of it finds the driver's slowest work done.
//!
//! The image is the same one if its files have the same digests: then its records need not be decoded again, and every object is
//! the one that the restore would make.

use super::ImageFiles;
use super::loading::variables::Filled;
use crate::access::Predictor;
use crate::files::{self, Read};
use crate::{EngineError, Live};

/// An image of which everything has been made that takes no memory of its program.
pub struct Preloaded {
    state: String,
    chunks: String,
    known: Known,
}

/// What is known of an image, or done for it, before its restore begins.
pub(super) struct Known {
    pub read: Read,
    /// What is known of its kernels.
    pub kernels: Predictor,
    /// What has its content.
    pub filled: Filled,
}

impl Preloaded {
    /// Of `image`.
    pub(super) fn new(image: ImageFiles<'_>, read: Read, filled: Filled, live: &Live) -> Self {
        let mut predictor = Predictor::default();
        predictor.prepare_kernels(&read.session, live);
        Self {
            state: image.state.to_owned(),
            chunks: image.chunks.to_owned(),
            known: Known {
                read,
                // The texts would be kept for kernels that the program may never use.
                kernels: predictor.of_texts(),
                filled,
            },
        }
    }

    /// What is known of `image`, whose files are looked at once more: one that was damaged meanwhile is not restored, whatever is known.
    ///
    /// # Errors
    /// It is another image, or is damaged now.
    pub(super) fn of(self, image: ImageFiles<'_>) -> Result<Known, EngineError> {
        if (self.state.as_str(), self.chunks.as_str()) != (image.state, image.chunks) {
            let why = "the worker has the modules of another image".to_owned();
            return Err(EngineError::Internal(why));
        }
        files::check(image)?;
        Ok(self.known)
    }
}
