//! What a preloaded worker has made of an image, so that the image's restore finds the driver's slowest work done.
//!
//! A restore may use it if the image's files still have the same digests. Then the records need not be decoded again, and
//! every object is the one that the restore would make.

use super::ImageFiles;
use super::loading::variables::Filled;
use crate::access::Predictor;
use crate::files::{self, Read};
use crate::{EngineError, Live};

/// An image of which everything has been made that takes no memory of the program.
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
    /// Variables that have their content.
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
                // Without the texts themselves, which would be kept for kernels that the program may never use.
                kernels: predictor.of_texts(),
                filled,
            },
        }
    }

    /// What is known of `image`. Checks its files once more, because an image that has been damaged meanwhile must not be
    /// restored.
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
