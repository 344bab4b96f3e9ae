//! Folders of images: names, listing, removal, what dead writers left.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::manifest::is_image;
use super::open::BESIDE;
use super::{Image, MANIFEST_HASH, Manifest, registry};
use crate::lock::{self, Kind};
use crate::{Result, Store, StoreError, format, sync};

/// How names of drafts begin.
pub(super) const DRAFT_PREFIX: &str = ".draft-";
/// How names of images that are being removed begin.
const REMOVED_PREFIX: &str = ".removed-";

/// Checks that `name` can name an image.
///
/// # Errors
/// `BadName` with the rule that it breaks.
pub fn check_name(name: &str) -> Result<()> {
    let why = if name.is_empty() {
        "it is empty"
    } else if name.len() > 200 {
        "it is longer than 200 bytes"
    } else if name.starts_with(['.', '-']) {
        "it starts with a dot or a dash"
    } else if name.contains('/') || name.contains(char::is_control) {
        "it contains a slash or a control character"
    } else {
        return Ok(());
    };
    Err(StoreError::BadName {
        name: name.into(),
        why,
    })
}

/// Checks that images can be kept in `folder`, which need not be there yet: neither a store, nor an image, nor anything
/// inside of one can hold them.
///
/// # Errors
/// `BadPlace`, naming the store or image.
pub fn check_place(folder: &Path) -> Result<()> {
    let mut there = folder.ancestors();
    let there = there.find_map(|it| std::fs::canonicalize(it).ok());
    let bad = |why: String| {
        Err(StoreError::BadPlace {
            path: folder.into(),
            why,
        })
    };
    // What is yet to be made can have any name but those of the store's and of unfinished images.
    let names = folder.components().map(|it| it.as_os_str());
    let hidden = |name: &&OsStr| {
        let bytes = name.as_encoded_bytes();
        let prefixes = [DRAFT_PREFIX, REMOVED_PREFIX];
        *name == BESIDE || prefixes.iter().any(|it| bytes.starts_with(it.as_bytes()))
    };
    if let Some(name) = names.rev().find(hidden) {
        let name = name.to_string_lossy();
        return bad(format!(
            "`{name}` is a name that only Fermata's own folders have"
        ));
    }
    for ancestor in there.iter().flat_map(|it| it.ancestors()) {
        let what = match () {
            // Other programs have files called `manifest.json`, too.
            () if ancestor.join(MANIFEST_HASH).exists() && is_image(ancestor) => "an image",
            () if is_store(ancestor) => "a store",
            () => continue,
        };
        return bad(format!("`{}` is {what}", ancestor.display()));
    }
    Ok(())
}

/// Whether a folder is a store, sound or not.
fn is_store(folder: &Path) -> bool {
    let mut parts = ["packs", "index", "images"].into_iter();
    parts.all(|name| folder.join(name).is_dir())
}

/// The first free name of BASE-1, BASE-2, ... in a folder of images.
///
/// # Errors
/// `BadName`, or `Io` when the folder cannot be read.
pub fn next_name(images_dir: &Path, base: &str) -> Result<String> {
    check_name(base)?;
    let numbers = names(images_dir)?
        .into_iter()
        .filter_map(|n| n.strip_prefix(base)?.strip_prefix('-')?.parse::<u64>().ok());
    Ok(format!("{base}-{}", numbers.max().unwrap_or(0) + 1))
}

/// An image in a listing.
#[derive(Debug)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub path: PathBuf,
    /// Its manifest, or why it cannot be read.
    pub manifest: Result<Manifest>,
}

/// The images in a folder, by name; none when there is no such folder.
///
/// # Errors
/// `Io` when the folder cannot be read.
pub fn ls(images_dir: &Path) -> Result<Vec<Listed>> {
    let mut listed: Vec<_> = names(images_dir)?
        .into_iter()
        .filter(|name| !name.starts_with('.') && is_image(&images_dir.join(name)))
        .map(|name| {
            let path = images_dir.join(&name);
            let manifest = Image::open(&path).map(Image::into_manifest);
            Listed {
                name,
                path,
                manifest,
            }
        })
        .collect();
    listed.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(listed)
}

/// What [`rm`] has removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removed {
    /// The image.
    Image,
    /// A symbolic link to an image, or to nothing; what it points at is as it was.
    Link(PathBuf),
}

/// Removes an image; its chunks stay until the next collection. A damaged image can be removed too.
/// `store` is the one the image refers to, if it is still there. Of a symbolic link only the link is removed.
///
/// A collection that another process has begun is waited for: it reads every image that it has seen.
///
/// # Errors
/// `NotFound`; `Locked` when somebody holds the image, or a collection goes on for longer than the store's patience; `Io`.
pub fn rm(image: &Path, store: Option<&Store>) -> Result<Removed> {
    let none = || StoreError::NotFound {
        what: "image",
        path: image.into(),
    };
    // A slash behind the name would lead through a link.
    let name = image.file_name().ok_or_else(none)?;
    let named = image.parent().unwrap_or(Path::new("")).join(name);
    if let Ok(target) = std::fs::read_link(&named) {
        if !is_image(&named) && named.exists() {
            return Err(none());
        }
        sync::remove_file(&named)?;
        return Ok(Removed::Link(target));
    }
    let _shared = store.map(Store::share).transpose()?;
    if !is_image(image) {
        return Err(none());
    }
    let image = std::fs::canonicalize(image).map_err(|e| StoreError::io("resolve", image, 0, e))?;
    let _alone = match lock::folder(&image, Kind::Exclusive, Duration::ZERO) {
        Ok(None) => {
            return Err(StoreError::Locked {
                path: image,
                by: "a program is being restored from it",
            });
        }
        // Some file systems lock no folders: no process holds it there either.
        other => other.ok(),
    };
    let aside = set_aside(&image, store)?;
    if let Some(store) = store {
        registry::forget(store, &image)?;
    }
    match std::fs::remove_dir_all(&aside) {
        // A draft that is begun meanwhile sweeps what it finds.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Removed::Image),
        Err(e) => Err(StoreError::io("remove", &aside, 0, e)),
        Ok(()) => Ok(Removed::Image),
    }
}

/// Takes its name from an image; where it is then. The store knows before that it is about to go: a crash behind this
/// must not leave an entry of an image that is lost.
fn set_aside(image: &Path, store: Option<&Store>) -> Result<PathBuf> {
    let parent = image.parent().unwrap_or(Path::new("/"));
    let unique = format::PackId(sync::unique()?);
    let aside = parent.join(format!("{REMOVED_PREFIX}{unique}"));
    store.map_or(Ok(()), |store| registry::withdraw(store, image))?;
    if let Err(e) = sync::rename(image, &aside) {
        if let Some(store) = store.filter(|_| image.exists()) {
            // It is as it was; if this fails, too, its entry counts as long as it is there.
            let _ = registry::enter(store, image);
        }
        return Err(e);
    }
    sync::folder(parent)?;
    Ok(aside)
}

/// Removes drafts whose writers are dead, and what is left of removed images.
///
/// # Errors
/// `Io`.
pub fn sweep_drafts(images_dir: &Path) -> Result<()> {
    for name in names(images_dir)? {
        let path = images_dir.join(&name);
        // Held until the folder is gone: between, the writer of a new draft could lock it and take it for its own.
        let _dead = match name.starts_with(DRAFT_PREFIX) {
            true => match lock::folder(&path, Kind::Exclusive, Duration::ZERO) {
                Ok(Some(own)) => Some(own),
                _ => continue,
            },
            false if name.starts_with(REMOVED_PREFIX) => None,
            false => continue,
        };
        match std::fs::remove_dir_all(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::io("remove", &path, 0, e));
            }
            _ => {}
        }
    }
    Ok(())
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let io = |e| StoreError::io("list", folder, 0, e);
    let entries = match std::fs::read_dir(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(io)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(io)?.file_name().into_string().ok());
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_count_up() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(next_name(dir.path(), "heat").unwrap(), "heat-1");
        for n in ["heat-1", "heat-9", "heat-x", "heater-50"] {
            std::fs::create_dir(dir.path().join(n)).unwrap();
        }
        assert_eq!(next_name(dir.path(), "heat").unwrap(), "heat-10");
    }

    #[test]
    fn bad_names_say_why() {
        for name in ["", ".x", "a/b", "-o", "a\nb", &"x".repeat(201)] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        assert!(check_name("heat 2-1").is_ok());
    }

    #[test]
    fn a_removal_that_was_cut_off_does_not_keep_a_collection_from_working() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store"), true).unwrap();
        let images = dir.path().join("images");
        let make = |name| {
            let draft = crate::image::Draft::create(&store, &images, name).unwrap();
            draft.commit(Manifest::default()).unwrap().dir().to_owned()
        };
        let collect = || crate::gc(&images, &store, &crate::GcOptions::default());
        let (kept, removed) = (make("kept"), make("removed"));
        // Before it loses its name the image counts, and can be removed as ever.
        registry::withdraw(&store, &kept).unwrap();
        assert_eq!(collect().unwrap().images, 2);
        let aside = set_aside(&removed, Some(&store)).unwrap();
        assert_eq!(collect().unwrap().images, 1);
        assert!(!aside.exists());
        assert_eq!(rm(&kept, Some(&store)).unwrap(), Removed::Image);
        assert_eq!(collect().unwrap().images, 0);
        let entries = std::fs::read_dir(store.dir().join("images")).unwrap();
        assert_eq!(entries.count(), 0);
    }
}
