//! Encodes a session's objects as the bytes of its `state` file.

use std::path::Path;

use fermata_state::{ImageBytes, Session, records};

use crate::EngineError;

/// Name of the file with a session's objects.
pub(crate) const STATE: &str = "state";

/// A session as the bytes of its `state` file, made while it stands still, and its long module images, which go to the
/// store.
pub(crate) struct Records {
    bytes: Vec<u8>,
    images: Vec<(u64, ImageBytes)>,
}

impl Records {
    /// Encodes for the image folder `image`, which is only named in errors.
    pub(crate) fn encode(image: &Path, session: &Session) -> Result<Self, EngineError> {
        let encoded = records::encode(session).map_err(|source| EngineError::Record {
            path: image.join(STATE),
            source,
        })?;
        let records::Encoded { bytes, images } = encoded;
        Ok(Self { bytes, images })
    }

    /// What the file holds.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The long module images, by buffer number.
    pub(crate) fn images(&self) -> &[(u64, ImageBytes)] {
        &self.images
    }
}
