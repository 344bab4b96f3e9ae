//! Module images: their bytes, read once and shared by the session, the driver's loads and the examination, and what
//! the examination has found.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_bytes::ByteBuf;

use crate::ImageId;

/// Zero bytes behind an image: text must end with one, and a driver reads headers before it knows how long an image is.
pub const IMAGE_PADDING: usize = 64;

/// An image of at least this many bytes is kept in chunks of the store, where checkpoints share it. A shorter one is part
/// of the `state` file.
pub const STORED_FROM: usize = 64 << 10;

/// Buffer numbers from this one on belong to module images.
pub const IMAGE_BUFFERS: u64 = 1 << 63;

/// How many such numbers there are: an image of several processes has that of the process in bits 48 to 62.
pub(crate) const IMAGE_NUMBERS: u64 = 1 << 48;

/// The longest image, in bytes.
pub const LONGEST_IMAGE: u64 = 4 << 30;

/// An image whose bytes are chunks of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredImage {
    /// Hash of its content.
    pub id: ImageId,
    /// Its number in its process's chunk table: one of the first 2^48 from [`IMAGE_BUFFERS`] on. It comes from the hash, so
    /// that it is the same in every checkpoint.
    pub buffer: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// What an examination of a module image has found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFacts {
    /// The architecture of the devices that it was examined for, 10 * major + minor; none if they differ.
    pub sm: Option<u32>,
    /// Whether its kernels may print.
    pub prints: bool,
    /// Names that may be those of device variables. All names of variables are among them.
    pub names: BTreeSet<String>,
}

/// An image; copies share the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct ImageBytes {
    /// With [`IMAGE_PADDING`] at its end.
    padded: Arc<Vec<u8>>,
}

impl ImageBytes {
    /// Takes bytes whose last [`IMAGE_PADDING`] are zeros that are no part of the image; `None` if they are not.
    pub fn from_padded(padded: Vec<u8>) -> Option<Self> {
        let end = padded.len().checked_sub(IMAGE_PADDING)?;
        let zeros = padded[end..].iter().all(|byte| *byte == 0);
        let padded = Arc::new(padded);
        zeros.then_some(Self { padded })
    }

    /// The image and the hash it goes by.
    pub fn named(self) -> (ImageId, Self) {
        (ImageId::of(self.bytes()), self)
    }

    /// The image.
    pub fn bytes(&self) -> &[u8] {
        &self.padded[..self.padded.len() - IMAGE_PADDING]
    }

    /// Whether it is kept in chunks of the store.
    pub(crate) fn is_stored(&self) -> bool {
        self.bytes().len() >= STORED_FROM
    }

    /// The image and [`IMAGE_PADDING`] zeros.
    pub fn padded(&self) -> &[u8] {
        &self.padded
    }
}

impl From<Vec<u8>> for ImageBytes {
    fn from(mut bytes: Vec<u8>) -> Self {
        bytes.resize(bytes.len() + IMAGE_PADDING, 0);
        Self {
            padded: Arc::new(bytes),
        }
    }
}

impl From<&[u8]> for ImageBytes {
    fn from(bytes: &[u8]) -> Self {
        let mut padded = Vec::with_capacity(bytes.len() + IMAGE_PADDING);
        padded.extend_from_slice(bytes);
        Self::from(padded)
    }
}

impl std::fmt::Debug for ImageBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ImageBytes({} bytes)", self.bytes().len())
    }
}

impl Serialize for ImageBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.bytes())
    }
}

impl<'de> Deserialize<'de> for ImageBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        ByteBuf::deserialize(deserializer).map(|bytes| Self::from(bytes.into_vec()))
    }
}

/// Serializes the images that are part of the `state` file.
pub(crate) fn serialize_short<S: Serializer>(
    images: &BTreeMap<ImageId, ImageBytes>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let short = images.iter().filter(|(_, it)| !it.is_stored());
    serializer.collect_map(short.collect::<Vec<_>>())
}
