//! Where images can be, and what links to them are good for.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use fermata_store::image::{self, Draft, Image, Removed};
use fermata_store::{GcOptions, Store, StoreError, gc};
use support::write_image;

struct Place {
    dir: tempfile::TempDir,
    images: PathBuf,
    store: Store,
}

fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let images = dir.path().join("images");
    let store = Store::open(&images.join(".store"), true).unwrap();
    Place { dir, images, store }
}

fn sound(place: &Place, path: &Path) -> bool {
    let image = Image::open(path).unwrap();
    let report = image::verify(&image, &place.store, &|_| {}).unwrap();
    report.is_sound()
}

#[test]
fn removing_a_link_leaves_the_image_that_it_points_at() {
    let p = place();
    let far = write_image(&p.store, &p.dir.path().join("far"), "heat", &[&[(1, 5000)]]);
    let link = p.images.join("heat");
    for path in [link.clone(), link.join("")] {
        symlink(far.dir(), &link).unwrap();
        assert_eq!(image::ls(&p.images).unwrap().len(), 1);
        assert!(sound(&p, &link));
        let removed = image::rm(&path, Some(&p.store)).unwrap();
        assert_eq!(removed, Removed::Link(far.dir().to_owned()));
        assert!(link.symlink_metadata().is_err());
        assert!(sound(&p, far.dir()));
    }
    gc(&p.images, &p.store, &GcOptions::default()).unwrap();
    assert!(sound(&p, far.dir()));
}

#[test]
fn a_link_to_nothing_can_be_removed_and_one_to_another_thing_cannot() {
    let p = place();
    let link = p.images.join("gone");
    symlink("/nowhere", &link).unwrap();
    assert!(image::ls(&p.images).unwrap().is_empty());
    gc(&p.images, &p.store, &GcOptions::default()).unwrap();
    let taken = Draft::create(&p.store, &p.images, "gone").err().unwrap();
    assert!(matches!(taken, StoreError::Exists { .. }), "{taken}");
    image::rm(&link, Some(&p.store)).unwrap();
    assert!(link.symlink_metadata().is_err());

    let folder = p.dir.path().join("folder");
    fs::create_dir(&folder).unwrap();
    symlink(&folder, &link).unwrap();
    let refused = image::rm(&link, Some(&p.store)).unwrap_err();
    assert!(matches!(refused, StoreError::NotFound { .. }), "{refused}");
    assert!(folder.is_dir() && link.is_symlink());
}

#[test]
fn an_image_behind_a_link_keeps_its_chunks() {
    let p = place();
    // Its store does not know it: it has been moved there.
    let made = write_image(&p.store, &p.images, "heat", &[&[(1, 5000)]]);
    let far = p.dir.path().join("far");
    fs::rename(made.dir(), &far).unwrap();
    fs::remove_dir_all(p.store.dir().join("images")).unwrap();
    fs::create_dir(p.store.dir().join("images")).unwrap();
    symlink(&far, p.images.join("heat")).unwrap();
    let done = gc(&p.images, &p.store, &GcOptions::default()).unwrap();
    assert_eq!((done.images, done.removed_chunks), (1, 0));
    assert!(sound(&p, &far));
}

#[test]
fn what_leads_up_is_no_image() {
    let p = place();
    let image = write_image(&p.store, &p.images, "heat", &[&[(1, 5000)]]);
    for path in [image.dir().join("host/.."), PathBuf::from("/"), "..".into()] {
        let refused = image::rm(&path, Some(&p.store)).unwrap_err();
        assert!(matches!(refused, StoreError::NotFound { .. }), "{refused}");
    }
    assert!(sound(&p, image.dir()));
}

#[test]
fn no_image_is_made_inside_a_store_or_an_image() {
    let p = place();
    let image = write_image(&p.store, &p.images, "heat", &[&[(1, 5000)]]);
    let elsewhere = p.dir.path().join("elsewhere");
    Store::open(&elsewhere, true).unwrap();
    symlink(p.store.dir(), p.images.join("link")).unwrap();
    for folder in [
        p.store.dir().to_owned(),
        p.store.dir().join("images"),
        p.store.dir().join("new/deeper"),
        p.images.join("link"),
        p.images.join("new/.store"),
        p.images.join(".draft-x-1"),
        p.images.join(".removed-1/x"),
        elsewhere.join("packs"),
        image.dir().to_owned(),
        image.dir().join("host"),
    ] {
        let refused = Draft::create(&p.store, &folder, "x").err();
        let refused = refused.unwrap_or_else(|| panic!("`{}`", folder.display()));
        assert!(matches!(refused, StoreError::BadPlace { .. }), "{refused}");
    }
    assert!(sound(&p, image.dir()));
    assert!(!p.store.dir().join("new").exists() && !p.images.join("new").exists());
    for name in [".x", ".store", "-x"] {
        let refused = Draft::create(&p.store, &p.images, name).err().unwrap();
        assert!(matches!(refused, StoreError::BadName { .. }), "{refused}");
    }
    // A project of another kind has a file of that name, too.
    let project = p.dir.path().join("project");
    fs::create_dir(&project).unwrap();
    fs::write(project.join("manifest.json"), "{}").unwrap();
    write_image(&p.store, &project.join("images"), "heat", &[]);
}
