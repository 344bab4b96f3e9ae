//! Images in a bucket of a real server: they come back whole and byte for byte, series share what is alike, damage and what is
//! missing is named, and nothing that another image needs is ever removed.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/server.rs"]
#[allow(dead_code, reason = "the tests of other crates use the rest")]
mod server;
#[path = "../../store/tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use fermata_object::{Address, Cause, ObjectError, Shelf};
use fermata_store::image::{self, Image};
use fermata_store::{Store, StoreError};
use server::{BUCKET, Server};
use support::{content, files, write_image};

/// A machine: a folder of images and its store.
struct Machine {
    dir: tempfile::TempDir,
    store: Store,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("images/.store"), true).unwrap();
        Self { dir, store }
    }

    fn images(&self) -> PathBuf {
        self.dir.path().join("images")
    }

    /// An image whose buffers are given by seeds and lengths.
    fn image(&self, name: &str, parts: &[(u64, usize)]) -> Image {
        write_image(&self.store, &self.images(), name, &[parts])
    }
}

struct Place {
    _dir: tempfile::TempDir,
    server: Server,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(&dir.path().join("s3"));
        Self { _dir: dir, server }
    }

    fn shelf(&self) -> Shelf {
        let address = Address::folder(&format!("s3://{BUCKET}/team/jobs")).unwrap();
        Shelf::with(&self.server.config(), address).unwrap()
    }

    /// Objects whose path contains `part`.
    fn objects(&self, part: &str) -> Vec<PathBuf> {
        let all = self.server.objects().into_iter().map(|it| it.0);
        all.filter(|it| it.to_string_lossy().contains(part))
            .collect()
    }
}

fn push(shelf: &Shelf, from: &Machine, image: &Image) -> u64 {
    let pushed = shelf.push(image, &from.store, &|_, _| {}).unwrap();
    pushed.written_bytes
}

fn pull(shelf: &Shelf, name: &str, to: &Machine) -> fermata_object::Result<Image> {
    shelf.pull(name, &to.images(), &to.store, &|_, _| {})
}

fn names(shelf: &Shelf) -> Vec<String> {
    shelf
        .list()
        .unwrap()
        .into_iter()
        .map(|it| it.name)
        .collect()
}

/// All files of an image but those that say where and when it was committed.
fn bytes_of(image: &Image) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all: Vec<_> = files(image.dir())
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(image.dir()).unwrap().to_owned();
            (name, fs::read(path).unwrap())
        })
        .filter(|(name, _)| !name.starts_with("manifest.json") && !name.starts_with("manifest.b3"))
        .collect();
    all.sort();
    all
}

fn check_same(one: &Image, other: &Image, on: &Machine) {
    assert_eq!(bytes_of(one), bytes_of(other));
    assert_eq!(one.manifest().uncommitted(), other.manifest().uncommitted());
    let report = image::verify(other, &on.store, &|_| {}).unwrap();
    assert!(report.is_sound(), "{report:?}");
}

fn cause(error: &ObjectError) -> Option<Cause> {
    match error {
        ObjectError::Service { cause, .. } => Some(*cause),
        _ => None,
    }
}

#[test]
fn an_image_comes_back_on_a_machine_that_has_nothing() {
    let (place, here, there) = (Place::new(), Machine::new(), Machine::new());
    let shelf = place.shelf();
    // More than two parts of a pack, a piece that repeats, a large file and an empty one, advice.
    let image = here.image(
        "train-1",
        &[(1, 20 << 20), (2, 5000), (2, 5000), (3, 1 << 20)],
    );
    fs::write(image.dir().join("profile"), "advice").unwrap();
    let told = AtomicU64::new(0);
    let pushed = shelf
        .push(&image, &here.store, &|done, total| {
            assert!(done <= total);
            told.fetch_max(done, Ordering::Relaxed);
        })
        .unwrap();
    assert_eq!(pushed.bytes, pushed.written_bytes);
    assert_eq!(told.into_inner(), pushed.bytes);
    assert!(
        pushed.bytes > 21 << 20 && pushed.bytes < 22 << 20,
        "{pushed:?}"
    );
    assert_eq!(names(&shelf), ["train-1"]);

    let back = pull(&shelf, "train-1", &there).unwrap();
    check_same(&image, &back, &there);
    assert_eq!(fs::read(back.dir().join("profile")).unwrap(), b"advice");
    // Here it is already.
    let error = pull(&shelf, "train-1", &there).unwrap_err();
    assert!(
        matches!(error, ObjectError::Store(StoreError::Exists { .. })),
        "{error}"
    );
    // There it is already; another one of its name is refused.
    let again = shelf.push(&image, &here.store, &|_, _| {}).unwrap();
    assert_eq!((again.bytes, again.written_bytes), (pushed.bytes, 0));
    let elsewhere = Machine::new();
    let other = elsewhere.image("train-1", &[(5, 1000)]);
    let error = shelf
        .push(&other, &elsewhere.store, &|_, _| {})
        .unwrap_err();
    assert_eq!(cause(&error), Some(Cause::Exists), "{error}");
}

#[test]
fn a_series_shares_what_is_alike_and_keeps_it_as_long_as_one_needs_it() {
    let (place, here, there) = (Place::new(), Machine::new(), Machine::new());
    let shelf = place.shelf();
    let first = here.image("heat-9", &[(1, 4 << 20), (2, 4 << 20)]);
    let second = here.image("heat-10", &[(1, 4 << 20), (2, 4 << 20), (3, 100_000)]);
    let other = here.image("other-1", &[(1, 4 << 20)]);
    assert!(push(&shelf, &here, &first) > 8 << 20);
    let written = push(&shelf, &here, &second);
    assert!((100_000..150_000).contains(&written), "{written}");
    // Another series shares nothing.
    assert!(push(&shelf, &here, &other) > 4 << 20);
    assert_eq!(names(&shelf), ["heat-9", "heat-10", "other-1"]);

    shelf.remove("heat-9").unwrap();
    assert_eq!(names(&shelf), ["heat-10", "other-1"]);
    assert_eq!(place.objects("heat/packs").len(), 2);
    let back = pull(&shelf, "heat-10", &there).unwrap();
    check_same(&second, &back, &there);
    shelf.remove("heat-10").unwrap();
    assert_eq!(place.objects("heat/").len(), 0);
    assert_eq!(names(&shelf), ["other-1"]);
    let error = shelf.remove("heat-10").unwrap_err();
    assert_eq!(cause(&error), Some(Cause::Gone), "{error}");
    let error = pull(&shelf, "heat-10", &there).unwrap_err();
    assert_eq!(cause(&error), Some(Cause::Gone), "{error}");
}

#[test]
fn packs_of_which_little_is_needed_are_not_kept_alive() {
    let (place, here) = (Place::new(), Machine::new());
    let shelf = place.shelf();
    let first = here.image("heat-1", &[(1, 4 << 20), (2, 4 << 20), (3, 4 << 20)]);
    let second = here.image("heat-2", &[(1, 4 << 20), (5, 1000)]);
    push(&shelf, &here, &first);
    assert!(push(&shelf, &here, &second) > 4 << 20);
    shelf.remove("heat-1").unwrap();
    assert_eq!(place.objects("heat/packs").len(), 1);
    let there = Machine::new();
    check_same(&second, &pull(&shelf, "heat-2", &there).unwrap(), &there);
}

#[test]
fn an_image_that_is_removed_while_another_takes_over_its_data_takes_nothing_along() {
    let (place, here) = (Place::new(), Machine::new());
    let shelf = place.shelf();
    let first = here.image("heat-1", &[(1, 4 << 20)]);
    let second = here.image("heat-2", &[(1, 4 << 20), (2, 1000)]);
    push(&shelf, &here, &first);
    let removed = AtomicU64::new(0);
    // By now the plan relies on the first one's pack.
    let meanwhile = |_: u64, total: u64| {
        if removed.fetch_add(1, Ordering::Relaxed) == 0 {
            assert!(total < 1 << 20, "{total}");
            place.shelf().remove("heat-1").unwrap();
        }
    };
    let pushed = shelf.push(&second, &here.store, &meanwhile).unwrap();
    assert!(pushed.written_bytes > 4 << 20, "{pushed:?}");
    assert_eq!(place.objects("heat/packs").len(), 1);
    let there = Machine::new();
    check_same(&second, &pull(&shelf, "heat-2", &there).unwrap(), &there);
}

#[test]
fn an_image_that_is_replaced_under_its_name_is_not_taken_for_what_it_was() {
    let (place, here) = (Place::new(), Machine::new());
    let shelf = place.shelf();
    let first = here.image("heat-1", &[(1, 4 << 20)]);
    let second = here.image("heat-2", &[(1, 4 << 20), (2, 1000)]);
    push(&shelf, &here, &first);
    let replaced = AtomicU64::new(0);
    let meanwhile = |_: u64, _: u64| {
        if replaced.fetch_add(1, Ordering::Relaxed) == 0 {
            place.shelf().remove("heat-1").unwrap();
            let other = Machine::new();
            let image = other.image("heat-1", &[(7, 1000)]);
            push(&place.shelf(), &other, &image);
        }
    };
    shelf.push(&second, &here.store, &meanwhile).unwrap();
    let there = Machine::new();
    check_same(&second, &pull(&shelf, "heat-2", &there).unwrap(), &there);
}

#[test]
fn data_that_somebody_has_removed_is_not_relied_on() {
    let (place, here) = (Place::new(), Machine::new());
    let shelf = place.shelf();
    let first = here.image("heat-1", &[(1, 4 << 20)]);
    push(&shelf, &here, &first);
    for pack in place.objects("heat/packs") {
        fs::remove_file(pack).unwrap();
    }
    let second = here.image("heat-2", &[(1, 4 << 20), (2, 1000)]);
    assert!(push(&shelf, &here, &second) > 4 << 20);
    let there = Machine::new();
    check_same(&second, &pull(&shelf, "heat-2", &there).unwrap(), &there);
    let error = pull(&shelf, "heat-1", &there).unwrap_err();
    assert_eq!(cause(&error), Some(Cause::Gone), "{error}");
}

#[test]
fn damage_is_named_and_leaves_nothing() {
    let (place, here) = (Place::new(), Machine::new());
    let shelf = place.shelf();
    let image = here.image("heat-1", &[(1, 3 << 20)]);
    push(&shelf, &here, &image);
    let refused = |path: &Path, at: usize| {
        let whole = fs::read(path).unwrap();
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        fs::write(path, &bytes).unwrap();
        let there = Machine::new();
        let error = pull(&shelf, "heat-1", &there).unwrap_err();
        assert_eq!(cause(&error), Some(Cause::Damaged), "{error}");
        assert!(image::ls(&there.images()).unwrap().is_empty());
        let left: Vec<_> = fs::read_dir(there.images()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        fs::write(path, whole).unwrap();
        error.to_string()
    };
    let pack = place.objects("heat/packs").remove(0);
    let text = refused(&pack, 5000);
    assert!(text.contains("heat/packs/"), "{text}");
    let catalogue = place.objects("heat/images").remove(0);
    let text = refused(&catalogue, 300);
    assert!(text.contains("no catalogue"), "{text}");
    // As it was, it comes back.
    let there = Machine::new();
    check_same(&image, &pull(&shelf, "heat-1", &there).unwrap(), &there);
}

#[test]
fn a_damaged_image_is_not_taken_there() {
    let (place, here) = (Place::new(), Machine::new());
    let shelf = place.shelf();
    let image = here.image("heat-1", &[(1, 100_000)]);
    let path = image.dir().join("host/pages-1.img");
    let mut bytes = fs::read(&path).unwrap();
    bytes[4999] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let error = shelf.push(&image, &here.store, &|_, _| {}).unwrap_err();
    assert!(
        matches!(error, ObjectError::Store(StoreError::Damaged { .. })),
        "{error}"
    );
    assert_eq!(place.server.objects(), []);

    fs::write(&path, content(99, 5000)).unwrap();
    let pack = files(&here.images().join(".store/packs")).remove(0);
    let mut bytes = fs::read(&pack).unwrap();
    bytes[8000] ^= 1;
    fs::write(&pack, &bytes).unwrap();
    let error = shelf.push(&image, &here.store, &|_, _| {}).unwrap_err();
    assert!(
        matches!(error, ObjectError::Store(StoreError::DamagedChunk { .. })),
        "{error}"
    );
    assert_eq!(place.server.objects(), []);
}

#[test]
fn chunks_that_are_damaged_here_are_mended() {
    let (place, here) = (Place::new(), Machine::new());
    let shelf = place.shelf();
    let image = here.image("heat-1", &[(1, 100_000)]);
    push(&shelf, &here, &image);
    let there = Machine::new();
    let other = there.image("other-1", &[(1, 100_000)]);
    let pack = files(&there.images().join(".store/packs")).remove(0);
    let mut bytes = fs::read(&pack).unwrap();
    bytes[8000] ^= 1;
    fs::write(&pack, &bytes).unwrap();
    let back = pull(&shelf, "heat-1", &there).unwrap();
    check_same(&image, &back, &there);
    assert!(
        image::verify(&other, &there.store, &|_| {})
            .unwrap()
            .is_sound()
    );
}

#[test]
fn what_a_dead_writer_has_left_is_removed_a_day_later() {
    let (place, here) = (Place::new(), Machine::new());
    let shelf = place.shelf();
    let image = here.image("heat-1", &[(1, 100_000)]);
    push(&shelf, &here, &image);
    let pack = place.objects("heat/packs").remove(0);
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    for (age, name) in [(60, "young"), (25 * 3600, "old")] {
        let left = format!("{:x}-{name}-0", now - age);
        fs::write(pack.with_file_name(left), "x").unwrap();
    }
    shelf.remove("heat-1").unwrap();
    let left = place.objects("heat/packs");
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(left[0].to_string_lossy().contains("young"), "{left:?}");
    // Also where there is no image any more.
    fs::write(
        pack.with_file_name(format!("{:x}-old-1", now - 25 * 3600)),
        "x",
    )
    .unwrap();
    let error = shelf.remove("heat-1").unwrap_err();
    assert_eq!(cause(&error), Some(Cause::Gone), "{error}");
    assert_eq!(place.objects("heat/packs"), left);
}

#[test]
fn a_bucket_that_is_not_there_and_wrong_keys_are_told_apart() {
    let place = Place::new();
    let address = Address::folder("s3://elsewhere").unwrap();
    let config = fermata_object::ObjectConfig {
        bucket: "elsewhere".into(),
        ..place.server.config()
    };
    let error = Shelf::with(&config, address.clone())
        .unwrap()
        .list()
        .unwrap_err();
    assert_eq!(cause(&error), Some(Cause::NoBucket), "{error}");
    let config = fermata_object::ObjectConfig {
        keys: Some(("fermata".into(), fermata_object::Secret("not it".into()))),
        ..place.server.config()
    };
    let error = Shelf::with(&config, address).unwrap().list().unwrap_err();
    assert_eq!(cause(&error), Some(Cause::Denied), "{error}");
    assert!(!error.to_string().contains("not it"), "{error}");
}
