//! An image's files are bound together: one that comes from another image, or is not listed, or is no file, is found by
//! whatever reads it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use fermata_store::image::{self, Image, Manifest};
use fermata_store::{GcOptions, Result, Store, StoreError, gc};
use support::{files, write_image};

/// Two images of equal shape, whose files are of equal length.
struct Pair {
    dir: tempfile::TempDir,
    store: Store,
    one: PathBuf,
    two: PathBuf,
}

fn pair() -> Pair {
    let dir = tempfile::tempdir().unwrap();
    let images = dir.path().join("images");
    let store = Store::open(&images.join(".store"), true).unwrap();
    let one = write_image(&store, &images, "one", &[&[(1, 5000), (2, 5000)]]);
    let two = write_image(&store, &images, "two", &[&[(3, 5000), (4, 5000)]]);
    Pair {
        one: one.dir().to_owned(),
        two: two.dir().to_owned(),
        dir,
        store,
    }
}

impl Pair {
    fn verify(&self) -> Result<bool> {
        let image = Image::open(&self.one)?;
        Ok(image::verify(&image, &self.store, &|_| {})?.is_sound())
    }

    fn diff(&self) -> Result<image::Diff> {
        image::diff(&Image::open(&self.one)?, &Image::open(&self.two)?)
    }

    /// Demands that image `one` is found damaged by all that reads the file with this name.
    fn refuses(&self, what: &str, name: &str) {
        let damaged = |e: &StoreError| matches!(e, StoreError::Damaged { .. });
        match self.verify() {
            Ok(sound) => assert!(!sound, "verify: {what}"),
            Err(e) => assert!(damaged(&e), "verify: {what}: {e}"),
        }
        if name.starts_with("host") {
            return;
        }
        let diff = self.diff().expect_err(what);
        assert!(damaged(&diff), "diff: {what}: {diff}");
        if name != "state" {
            let images = self.dir.path().join("images");
            let refused = gc(&images, &self.store, &GcOptions::default()).expect_err(what);
            assert!(damaged(&refused), "gc: {what}: {refused}");
        }
    }
}

/// Changes a manifest, and makes its checksum anew.
fn craft(image: &Path, change: impl Fn(&mut Manifest)) {
    let path = image.join("manifest.json");
    let mut manifest = Manifest::decode(&fs::read(&path).unwrap(), &path).unwrap();
    change(&mut manifest);
    let bytes = manifest.encode();
    let hash = format!("{}\n", blake3::hash(&bytes).to_hex());
    fs::write(&path, &bytes).unwrap();
    fs::write(image.join("manifest.b3"), hash).unwrap();
}

#[test]
fn a_file_of_a_sibling_is_found() {
    let pair = pair();
    for name in ["state", "chunks", "manifest.json", "manifest.b3"] {
        let (own, other) = (pair.one.join(name), pair.two.join(name));
        let whole = fs::read(&own).unwrap();
        fs::copy(&other, &own).unwrap();
        pair.refuses(name, name);
        fs::write(&own, whole).unwrap();
    }
    assert!(pair.verify().unwrap());
}

#[test]
fn the_whole_manifest_of_a_sibling_is_found() {
    let pair = pair();
    for name in ["manifest.json", "manifest.b3"] {
        fs::copy(pair.two.join(name), pair.one.join(name)).unwrap();
    }
    pair.refuses("both", "chunks");
}

#[test]
fn a_manifest_that_lists_too_little_is_damaged() {
    for lost in ["", "state", "chunks", "host/pages-1.img"] {
        let pair = pair();
        craft(&pair.one, |manifest| {
            manifest
                .files
                .retain(|it| !lost.is_empty() && it.path != lost);
        });
        pair.refuses(lost, lost);
    }
    // Not even when the file is gone, too: the totals tell that there were chunks.
    let pair = pair();
    craft(&pair.one, |manifest| {
        manifest.files.retain(|it| it.path != "chunks");
        manifest.totals.chunks = 2;
    });
    fs::remove_file(pair.one.join("chunks")).unwrap();
    pair.refuses("chunks and their entry", "chunks");
}

#[test]
fn a_manifest_that_lists_a_file_twice_is_damaged() {
    let pair = pair();
    craft(&pair.one, |manifest| {
        let other = manifest.files[0].clone();
        manifest.files.push(other);
    });
    pair.refuses("twice", "chunks");
}

#[test]
fn files_that_the_manifest_does_not_list_are_found() {
    for name in ["more", "host/more.img", "host/deeper/more.img", ".profile"] {
        let pair = pair();
        let path = pair.one.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "more").unwrap();
        let image = Image::open(&pair.one).unwrap();
        assert!(image.check_listed().is_err(), "{name}");
        assert!(!pair.verify().unwrap(), "{name}");
    }
    // What restores have learnt is no part of what is checked.
    let pair = pair();
    for name in ["profile", ".profile-17", "host/profile", "host/.profile-17"] {
        fs::write(pair.one.join(name), "learnt").unwrap();
    }
    assert!(pair.verify().unwrap());
    Image::open(&pair.one).unwrap().check_listed().unwrap();
}

/// Puts something else in a file's place.
fn replace(path: &Path, by: &str) {
    let aside = path.with_extension("aside-of-the-test");
    fs::rename(path, &aside).unwrap();
    match by {
        // Not beside it, where it would be found for another reason.
        "link" => {
            let images = path.ancestors().filter(|it| it.ends_with("images"));
            let hidden = images.last().unwrap().with_file_name("hidden");
            fs::rename(&aside, &hidden).unwrap();
            return symlink(hidden, path).unwrap();
        }
        "fifo" => {
            let mode = rustix::fs::Mode::RUSR;
            rustix::fs::mkfifoat(rustix::fs::CWD, path, mode).unwrap();
        }
        _ => fs::create_dir(path).unwrap(),
    }
    fs::remove_file(aside).unwrap();
}

#[test]
fn links_fifos_and_folders_in_place_of_files_are_damage() {
    for by in ["link", "fifo", "folder"] {
        let count = files(&pair().one).len();
        for number in 0..count {
            let pair = pair();
            let path = files(&pair.one).swap_remove(number);
            replace(&path, by);
            let name = path.strip_prefix(&pair.one).unwrap().to_str().unwrap();
            pair.refuses(&format!("{by} for {name}"), name);
        }
        for folder in ["index", "packs"] {
            let pair = pair();
            let table = Image::open(&pair.one).unwrap().chunk_table().unwrap();
            let id = table.records()[0].id;
            let pack = pair.store.reader().unwrap().pack_of(&id).unwrap();
            let ending = if folder == "index" { "idx" } else { "pack" };
            let name = pack.with_extension(ending);
            let path = pair
                .store
                .dir()
                .join(folder)
                .join(name.file_name().unwrap());
            replace(&path, by);
            let store = Store::open(pair.store.dir(), false).unwrap();
            let image = Image::open(&pair.one).unwrap();
            let report = image::verify(&image, &store, &|_| {}).unwrap();
            assert!(!report.is_sound(), "{by} for {folder}");
            let mut into = vec![0; 5000];
            let read = store.reader().unwrap().read_verified(&id, &mut into);
            let read = read.expect_err("no chunk");
            assert!(read.is_loss(), "{by} for {folder}: {read}");
        }
    }
}

#[test]
fn a_folder_of_files_behind_a_link_is_damage() {
    let pair = pair();
    let host = pair.one.join("host");
    let aside = pair.dir.path().join("host");
    fs::rename(&host, &aside).unwrap();
    symlink(aside, &host).unwrap();
    pair.refuses("link for host", "host");
}

#[test]
fn a_lock_that_is_no_file_is_named_and_waited_for_by_nobody() {
    for by in ["link", "fifo", "folder"] {
        let pair = pair();
        replace(&pair.store.dir().join("lock"), by);
        let refused = Store::open(pair.store.dir(), false).expect_err(by);
        assert!(matches!(refused, StoreError::Damaged { .. }), "{refused}");
    }
}

#[test]
fn an_entry_of_the_registry_that_names_another_image_stops_the_collection() {
    let dir = tempfile::tempdir().unwrap();
    let images = dir.path().join("images");
    let store = Store::open(&dir.path().join("store"), true).unwrap();
    // Neither is in the folder that is collected for: the registry alone knows them.
    let far = ["one", "two"].map(|name| {
        let folder = dir.path().join(format!("far-{name}"));
        let seed = name.len() as u64 + u64::from(name.as_bytes()[0]);
        write_image(&store, &folder, name, &[&[(seed, 7000)]])
    });
    let entries = files(&store.dir().join("images"));
    assert_eq!(entries.len(), 2);
    fs::copy(&entries[0], &entries[1]).unwrap();
    for forget_missing in [false, true] {
        let options = GcOptions {
            forget_missing,
            ..GcOptions::default()
        };
        let refused = gc(&images, &store, &options).expect_err("unknown what is needed");
        assert!(matches!(refused, StoreError::Damaged { .. }), "{refused}");
    }
    for image in far {
        assert!(image::verify(&image, &store, &|_| {}).unwrap().is_sound());
    }
}
