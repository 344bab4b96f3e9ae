//! The store's list of images: one small file each with the image's path, so that a collection
//! finds images wherever they were written.
//!
//! ```text
//!  commit:  HASH.pending ──► image folder gets its name ──► HASH.image
//!  removal: HASH.image ──► HASH.pending ──► image folder loses its name ──► no entry
//! ```
//! A pending entry whose image is not there is what a crash before the first renaming of the folder, or after the
//! second, left. One whose image is there counts like any other.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::manifest::is_image;
use crate::error::damaged;
use crate::format::PackId;
use crate::{Result, Store, StoreError, sync};

/// What the names of an image's entries are made of.
fn stem(image: &Path) -> String {
    let hash = blake3::hash(image.as_os_str().as_bytes()).to_hex();
    hash[..32].to_owned()
}

fn entry(store: &Store, image: &Path, extension: &str) -> PathBuf {
    let name = format!("{}.{extension}", stem(image));
    store.images_dir().join(name)
}

/// Announces an image that is about to get its name. The entry is there whole or not at all: one that is cut short, by the
/// death of its writer, would keep everybody from freeing anything.
pub(super) fn announce(store: &Store, image: &Path) -> Result<()> {
    let temporary = temporary(store)?;
    sync::write_new(&temporary, &[image.as_os_str().as_bytes(), b"\n"], true)?;
    sync::rename(&temporary, &entry(store, image, "pending"))?;
    sync::folder(&store.images_dir())
}

/// Where an entry is written, by nobody else: several may want to give the same name to their images at the same time. What a dead
/// writer leaves there is cleaned away.
fn temporary(store: &Store) -> Result<PathBuf> {
    let name = format!("{}.pending", PackId(sync::unique()?));
    Ok(store.tmp_dir().join(name))
}

/// Enters an announced image.
pub(super) fn enter(store: &Store, image: &Path) -> Result<()> {
    sync::rename(
        &entry(store, image, "pending"),
        &entry(store, image, "image"),
    )?;
    sync::folder(&store.images_dir())
}

/// Announces that an image is about to lose its name: its entry counts from here on only as long as the image is there.
pub(super) fn withdraw(store: &Store, image: &Path) -> Result<()> {
    match sync::rename(
        &entry(store, image, "image"),
        &entry(store, image, "pending"),
    ) {
        // The store does not know it, or has had this before.
        Err(e) if e.is_missing() => Ok(()),
        other => other.and_then(|()| sync::folder(&store.images_dir())),
    }
}

/// Removes an image's entries.
pub(crate) fn forget(store: &Store, image: &Path) -> Result<()> {
    sync::remove_file(&entry(store, image, "pending"))?;
    sync::remove_file(&entry(store, image, "image"))
}

/// The images the store knows of that are there, and those that are not.
pub(crate) struct KnownImages {
    /// Folders that hold one, sound or not.
    pub(crate) present: BTreeSet<PathBuf>,
    /// Folders that were committed and are not there any more.
    pub(crate) lost: Vec<PathBuf>,
}

/// Reads the list; drops entries of images that were never finished.
pub(crate) fn known_images(store: &Store) -> Result<KnownImages> {
    let dir = store.images_dir();
    let mut known = KnownImages {
        present: BTreeSet::new(),
        lost: Vec::new(),
    };
    for item in std::fs::read_dir(&dir).map_err(|e| StoreError::io("list", &dir, 0, e))? {
        let path = item.map_err(|e| StoreError::io("list", &dir, 0, e))?.path();
        let text = sync::read_limited(&path, 1 << 16)?;
        let image = PathBuf::from(OsStr::from_bytes(text.strip_suffix(b"\n").unwrap_or(&text)));
        if path.file_stem() != Some(OsStr::new(&stem(&image))) || !text.ends_with(b"\n") {
            // Which image needs the store is unknown: nothing may be taken for garbage.
            return damaged(&path, "it does not hold the path that its name is made of");
        }
        if is_image(&image) {
            known.present.insert(image);
        } else if path.extension().is_some_and(|e| e == "pending") {
            sync::remove_file(&path)?;
        } else {
            known.lost.push(image);
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_may_announce_the_same_image_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(&folder.path().join("store"), true).expect("a store");
        let image = folder.path().join("image");
        let announced = || (0..100).try_for_each(|_| announce(&store, &image));
        std::thread::scope(|scope| {
            let all = [0; 4].map(|_| scope.spawn(announced));
            for one in all {
                one.join().expect("no panic").expect("announced");
            }
        });
        let entries = std::fs::read_dir(store.images_dir()).expect("listed");
        assert_eq!(entries.count(), 1);
        let left = std::fs::read_dir(store.tmp_dir()).expect("listed");
        assert_eq!(left.count(), 0);
    }
}
