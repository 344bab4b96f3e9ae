//! Where images and stores are, from what the user wrote.

use std::path::{Path, PathBuf};

use fermata_control::Paths;
use fermata_object::{Address, Shelf};
use fermata_store::Store;
use fermata_store::image::{Image, check_name};

use crate::failure::{Failure, USER};

/// The image folder the user means: a path if it contains a slash, else a name in the folder of
/// images. What is being written there, or removed, has names that no image has.
pub fn image(text: &Path) -> Result<PathBuf, Failure> {
    refuse_bucket(text)?;
    let path = match text.as_os_str().as_encoded_bytes().contains(&b'/') {
        true => text.into(),
        false => Paths::find().images.join(text),
    };
    if let Some(name) = path.file_name() {
        check_name(&name.to_string_lossy())?;
    }
    Ok(path)
}

/// The folder of images.
pub fn images() -> PathBuf {
    Paths::find().images
}

/// Opens the image the user means.
pub fn open(text: &Path) -> Result<Image, Failure> {
    Ok(Image::open(&image(text)?)?)
}

/// The store with the chunks of an image.
pub fn store_of(image: &Image) -> Result<Store, Failure> {
    Ok(image.find_store(&[Paths::find().store()])?)
}

/// The text of an address in a bucket, if it is one.
pub fn in_bucket(text: &Path) -> Option<&str> {
    text.to_str().filter(|it| Address::is_one(it))
}

/// The folder of a bucket that the user means.
pub fn shelf(text: &str) -> Result<Shelf, Failure> {
    let address = Address::folder(text).map_err(|what| Failure::new(USER, what))?;
    Ok(Shelf::open(address)?)
}

/// The image in a bucket that the user means: its folder, and its name.
pub fn on_shelf(text: &str) -> Result<(Shelf, String), Failure> {
    let (address, name) = Address::image(text).map_err(|what| Failure::new(USER, what))?;
    Ok((Shelf::open(address)?, name))
}

/// Refuses an address such as `s3://bucket/images` where data is to be written: as a path it would be a folder named `s3:`.
pub fn refuse_address(text: Option<&Path>) -> Result<(), Failure> {
    let text = text.map(Path::to_string_lossy).unwrap_or_default();
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    let is_scheme = |it: &str| !it.is_empty() && it.chars().all(|c| c.is_ascii_alphanumeric());
    if !scheme.is_some_and(is_scheme) {
        return Ok(());
    }
    let message = format!("`{text}` is an address, and images are kept in folders");
    Err(Failure::new(USER, message).hint(
        "name a folder; `fermata images push` takes an image to a bucket, and `fermata protect --to s3://...` does so by itself",
    ))
}

/// The folder of images that the user means; else the usual one.
pub fn folder(text: Option<&Path>) -> Result<PathBuf, Failure> {
    refuse_address(text)?;
    let Some(folder) = text else {
        return Ok(images());
    };
    std::path::absolute(folder)
        .map_err(|e| Failure::new(USER, format!("cannot use `{}`: {e}", folder.display())))
}

/// Refuses an address in a bucket where an image must be on this machine.
fn refuse_bucket(text: &Path) -> Result<(), Failure> {
    let Some(address) = in_bucket(text) else {
        return Ok(());
    };
    let message = format!("`{address}` is in a bucket");
    let hint = format!("bring it here first: `fermata images pull {address}`");
    Err(Failure::new(USER, message).hint(hint))
}

/// An image's path as the daemon can resolve it, from another working folder.
pub fn absolute(text: &Path) -> Result<PathBuf, Failure> {
    refuse_bucket(text)?;
    if text.as_os_str().as_encoded_bytes().contains(&b'/') {
        return Ok(std::path::absolute(text).unwrap_or_else(|_| text.into()));
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_being_written_is_no_image() {
        for text in [".draft-x", "/data/.removed-1", "a/.draft-heat-2"] {
            let failure = image(Path::new(text)).expect_err(text);
            assert!(failure.message.contains("dot"), "{}", failure.message);
        }
        assert_eq!(image(Path::new("/a/heat-1")).ok(), Some("/a/heat-1".into()));
        assert!(image(Path::new("heat-1")).is_ok_and(|it| it.ends_with("heat-1")));
    }

    #[test]
    fn images_in_buckets_are_to_be_brought_here_first() {
        let failure = image(Path::new("s3://bucket/jobs/heat-1")).expect_err("an address");
        assert!(
            failure.hint.contains("images pull s3://bucket/jobs/heat-1"),
            "{}",
            failure.hint
        );
    }

    #[test]
    fn addresses_are_no_folders() {
        for text in ["s3://bucket/images", "https://host/x"] {
            let failure = refuse_address(Some(Path::new(text))).expect_err(text);
            assert!(failure.message.contains(text), "{}", failure.message);
        }
        for text in ["images", "./s3:", "/data/a://b", "://x"] {
            refuse_address(Some(Path::new(text))).expect(text);
        }
    }
}
