//! Where images and stores are, from what the user wrote.

use std::path::{Path, PathBuf};

use fermata_control::Paths;
use fermata_store::image::Image;
use fermata_store::{Store, StoreError};

use crate::failure::Failure;

/// The image folder the user means: a path if it contains a slash, else a name in the folder of
/// images.
pub fn image(text: &Path) -> PathBuf {
    if text.as_os_str().as_encoded_bytes().contains(&b'/') {
        return text.into();
    }
    Paths::find().images.join(text)
}

/// Opens the image the user means.
pub fn open(text: &Path) -> Result<Image, Failure> {
    Ok(Image::open(&image(text))?)
}

/// The store of an image: the one it was written to, or, when the image has moved, the one of this
/// user.
pub fn store_of(image: &Image) -> Result<Store, Failure> {
    match Store::open(image.store(), false) {
        Err(StoreError::NotFound { .. }) => Ok(Store::open(&Paths::find().store(), false)?),
        other => Ok(other?),
    }
}

/// A path as the daemon can resolve it, from another working folder.
pub fn absolute(text: &Path) -> PathBuf {
    if text.as_os_str().as_encoded_bytes().contains(&b'/') {
        return std::path::absolute(text).unwrap_or_else(|_| text.into());
    }
    text.into()
}
