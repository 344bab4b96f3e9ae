//! Images: whole or not at all, every bit covered, nothing lost to collections.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use fermata_store::image::{self, BufferChange, Draft, Image, Manifest};
use fermata_store::{ChunkId, GcOptions, Store, StoreError, gc};
use support::{content, files, write_image};

struct Place {
    _dir: tempfile::TempDir,
    images: std::path::PathBuf,
    store: Store,
}

fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store"), true).unwrap();
    Place {
        images: dir.path().join("images"),
        _dir: dir,
        store,
    }
}

#[test]
fn an_image_verifies_and_lists() {
    let p = place();
    let image = write_image(
        &p.store,
        &p.images,
        "one",
        &[&[(1, 10_000), (2, 4096)], &[(1, 10_000)]],
    );
    assert_eq!(image.manifest().name, "one");
    assert_eq!(image.chunk_table().unwrap().records().len(), 3);
    let last = Mutex::new(None);
    let report = image::verify(&image, &p.store, &|p| *last.lock().unwrap() = Some(p)).unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!((report.files, report.chunks), (3, 2));
    let last = last.into_inner().unwrap().unwrap();
    assert_eq!(last.total, report.bytes);
    let listed = image::ls(&p.images).unwrap();
    assert_eq!(listed.len(), 1);
    assert!(listed[0].manifest.is_ok());
}

#[test]
fn a_dropped_draft_leaves_nothing() {
    let p = place();
    let draft = Draft::create(&p.store, &p.images, "x").unwrap();
    std::fs::write(draft.host().join("a"), "b").unwrap();
    drop(draft);
    assert_eq!(files(&p.images).len(), 0);
    assert_eq!(std::fs::read_dir(&p.images).unwrap().count(), 0);
}

#[test]
fn a_name_is_given_once() {
    let p = place();
    let late = Draft::create(&p.store, &p.images, "x").unwrap();
    write_image(&p.store, &p.images, "x", &[]);
    assert!(matches!(
        Draft::create(&p.store, &p.images, "x"),
        Err(StoreError::Exists { .. })
    ));
    assert!(matches!(
        late.commit(Manifest::default()),
        Err(StoreError::Exists { .. })
    ));
    assert_eq!(image::ls(&p.images).unwrap().len(), 1);
}

#[test]
fn every_flipped_bit_and_every_cut_is_found() {
    let p = place();
    let image = write_image(
        &p.store,
        &p.images,
        "x",
        &[&[(1, 5000)], &[(2, 100), (1, 5000)]],
    );
    let packs = p.store.dir().join("packs");
    let index = p.store.dir().join("index");
    let damaged = |what: &str| {
        let store = Store::open(p.store.dir(), false).unwrap();
        let found = match Image::open(image.dir()) {
            Err(StoreError::Damaged { .. } | StoreError::NotFound { .. }) => return,
            Err(e) => panic!("{what}: {e}"),
            Ok(image) => image::verify(&image, &store, &|_| {}).unwrap(),
        };
        assert!(!found.is_sound(), "{what} was not noticed");
    };
    for file in files(image.dir())
        .into_iter()
        .chain(files(&packs))
        .chain(files(&index))
    {
        let whole = std::fs::read(&file).unwrap();
        for step in 0..16 {
            let at = whole.len() * step / 16;
            let mut bad = whole.clone();
            bad[at] ^= 1 << (step % 8);
            std::fs::write(&file, &bad).unwrap();
            damaged(&format!(
                "bit {} of byte {at} of {}",
                step % 8,
                file.display()
            ));
            std::fs::write(&file, &whole[..at]).unwrap();
            damaged(&format!("cut of {} at {at}", file.display()));
        }
        std::fs::write(&file, &whole).unwrap();
    }
    let store = Store::open(p.store.dir(), false).unwrap();
    assert!(image::verify(&image, &store, &|_| {}).unwrap().is_sound());
}

#[test]
fn damage_names_chunk_and_buffers() {
    let p = place();
    let image = write_image(
        &p.store,
        &p.images,
        "x",
        &[&[(1, 5000)], &[(2, 100), (1, 5000)]],
    );
    let pack = &files(&p.store.dir().join("packs"))[0];
    let mut bytes = std::fs::read(pack).unwrap();
    bytes[4096 + 77] ^= 1;
    std::fs::write(pack, bytes).unwrap();
    let report = image::verify(&image, &p.store, &|_| {}).unwrap();
    assert_eq!(report.damage.len(), 1, "{report:?}");
    let damage = &report.damage[0];
    assert_eq!(damage.chunk, Some(ChunkId::of(&content(1, 5000))));
    let buffers: Vec<_> = damage
        .buffers
        .iter()
        .map(|b| (b.buffer.0, b.offset, b.length))
        .collect();
    assert_eq!(buffers, [(0, 0, 5000), (1, 100, 5000)]);
    assert_eq!(&damage.file, pack);
}

#[test]
fn differences_are_by_content() {
    let p = place();
    let a = write_image(
        &p.store,
        &p.images,
        "a",
        &[&[(1, 4096), (2, 4096)], &[(3, 100)]],
    );
    let b = write_image(
        &p.store,
        &p.images,
        "b",
        &[&[(1, 4096), (9, 4096)], &[(3, 100)], &[(4, 5)]],
    );
    let d = image::diff(&a, &b).unwrap();
    assert_eq!(
        (d.buffers_total, d.chunks_total, d.chunks_differing),
        (3, 4, 2)
    );
    assert_eq!(d.bytes_differing, 4101);
    let changes: Vec<_> = d
        .buffers
        .iter()
        .map(|b| (b.buffer.0, b.change, b.bytes))
        .collect();
    assert_eq!(
        changes,
        [
            (0, BufferChange::Changed, 4096),
            (2, BufferChange::Added, 5)
        ]
    );
    assert_eq!(d.files.len(), 1, "only `state` differs: {:?}", d.files);
    assert!(image::diff(&a, &a).unwrap().is_empty());
}

#[test]
fn a_collection_keeps_what_images_use() {
    let p = place();
    let keep = write_image(&p.store, &p.images, "keep", &[&[(1, 5000)]]);
    write_image(
        &p.store,
        &p.images,
        "drop",
        &[&[(1, 5000), (2, 9000), (3, 9000)]],
    );
    let before = gc(&p.images, &p.store, &GcOptions::default()).unwrap();
    assert_eq!((before.images, before.removed_chunks), (2, 0));
    image::rm(&p.images.join("drop"), Some(&p.store)).unwrap();
    let dry = GcOptions {
        dry_run: true,
        ..Default::default()
    };
    let planned = gc(&p.images, &p.store, &dry).unwrap();
    let done = gc(&p.images, &p.store, &GcOptions::default()).unwrap();
    assert_eq!(planned, done);
    assert_eq!((done.removed_chunks, done.live_chunks), (2, 1));
    assert!(image::verify(&keep, &p.store, &|_| {}).unwrap().is_sound());
    assert!(
        p.store
            .reader()
            .unwrap()
            .length(&ChunkId::of(&content(2, 9000)))
            .is_err()
    );
}

#[test]
fn a_collection_copies_out_of_mostly_dead_packs() {
    let p = place();
    write_image(&p.store, &p.images, "drop", &[&[(1, 5000), (2, 90_000)]]);
    let keep = write_image(&p.store, &p.images, "keep", &[&[(1, 5000)]]);
    image::rm(&p.images.join("drop"), Some(&p.store)).unwrap();
    let done = gc(&p.images, &p.store, &GcOptions::default()).unwrap();
    assert_eq!(
        (done.removed_packs, done.removed_chunks, done.copied_bytes),
        (1, 1, 8192)
    );
    assert!(image::verify(&keep, &p.store, &|_| {}).unwrap().is_sound());
    let fresh = Store::open(p.store.dir(), false).unwrap();
    assert!(image::verify(&keep, &fresh, &|_| {}).unwrap().is_sound());
    assert_eq!(
        gc(&p.images, &p.store, &GcOptions::default())
            .unwrap()
            .removed_packs,
        0
    );
}

#[test]
fn images_are_removed_beside_collections() {
    let p = place();
    let names: Vec<String> = (0..200).map(|n| format!("image-{n}")).collect();
    for (seed, name) in (0..).zip(&names) {
        write_image(&p.store, &p.images, name, &[&[(seed, 5000)]]);
    }
    std::thread::scope(|scope| {
        let remover = scope.spawn(|| {
            for name in &names {
                image::rm(&p.images.join(name), Some(&p.store)).unwrap();
            }
        });
        while !remover.is_finished() {
            let begun = Instant::now();
            match gc(&p.images, &p.store, &GcOptions::default()) {
                Ok(_) | Err(StoreError::Locked { .. }) => {}
                Err(e) => panic!("{e}"),
            }
            // Or nobody else would find the lock free, on a busy machine either.
            std::thread::sleep(begun.elapsed() + Duration::from_millis(2));
        }
    });
    assert_eq!(
        gc(&p.images, &p.store, &GcOptions::default())
            .unwrap()
            .images,
        0
    );
}

#[test]
fn a_collection_stays_away_from_drafts_and_readers() {
    let p = place();
    let locked = |what: &str| {
        let e = gc(&p.images, &p.store, &GcOptions::default()).unwrap_err();
        assert!(matches!(e, StoreError::Locked { .. }), "{what}: {e}");
    };
    let draft = Draft::create(&p.store, &p.images, "x").unwrap();
    locked("draft");
    drop(draft);
    let reader = p.store.reader().unwrap();
    locked("reader");
    drop(reader);
    gc(&p.images, &p.store, &GcOptions::default()).unwrap();
}

#[test]
fn a_collection_knows_images_elsewhere_and_refuses_to_guess() {
    let p = place();
    let elsewhere = tempfile::tempdir().unwrap();
    let image = write_image(&p.store, elsewhere.path(), "far", &[&[(5, 7000)]]);
    gc(&p.images, &p.store, &GcOptions::default()).unwrap();
    assert!(image::verify(&image, &p.store, &|_| {}).unwrap().is_sound());
    std::fs::remove_dir_all(image.dir()).unwrap();
    let e = gc(&p.images, &p.store, &GcOptions::default()).unwrap_err();
    assert!(matches!(e, StoreError::LostImage { .. }), "{e}");
    let forget = GcOptions {
        forget_missing: true,
        ..Default::default()
    };
    assert_eq!(gc(&p.images, &p.store, &forget).unwrap().removed_chunks, 1);
}

#[test]
fn a_damaged_image_stops_the_collection() {
    let p = place();
    let image = write_image(&p.store, &p.images, "x", &[&[(5, 7000)]]);
    std::fs::write(image.dir().join("manifest.json"), "{}").unwrap();
    assert!(gc(&p.images, &p.store, &GcOptions::default()).is_err());
    assert_eq!(files(&p.store.dir().join("packs")).len(), 1);
}

#[test]
fn space_made_ready_is_used_and_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store"), true).unwrap();
    let ready = match store.prepare(fermata_store::READY_BYTES) {
        // A disk with less than a GiB free has shown that the refusal names the reason.
        Err(e) => return assert!(matches!(e, fermata_store::StoreError::Full { .. }), "{e}"),
        Ok(ready) => ready,
    };
    assert_eq!(ready, fermata_store::READY_BYTES);
    let writer = store.begin().unwrap();
    let bytes = content(7, 100_000);
    let id = ChunkId::of(&bytes);
    writer.put(&id, &bytes).unwrap();
    assert_eq!(store.prepare(0).unwrap(), 0, "the writer has taken it");
    writer.finish().unwrap();
    let pack = files(&dir.path().join("store/packs"))
        .into_iter()
        .next()
        .unwrap();
    assert!(
        std::fs::metadata(&pack).unwrap().len() < 1 << 20,
        "the rest was given back"
    );
    let mut back = vec![0; bytes.len()];
    store
        .reader()
        .unwrap()
        .read_verified(&id, &mut back)
        .unwrap();
    assert_eq!(back, bytes);
}

#[test]
fn an_image_that_somebody_holds_is_not_removed() {
    let p = place();
    let image = write_image(&p.store, &p.images, "one", &[&[(1, 5000)]]);
    let first = image.hold().unwrap();
    let second = Image::open(image.dir()).unwrap().hold().unwrap();
    drop(first);
    let refused = image::rm(image.dir(), Some(&p.store)).unwrap_err();
    assert!(matches!(refused, StoreError::Locked { .. }), "{refused}");
    assert!(image::verify(&image, &p.store, &|_| ()).unwrap().is_sound());
    drop(second);
    image::rm(image.dir(), Some(&p.store)).unwrap();
    assert!(!image.dir().exists());
}

#[test]
fn an_image_that_was_moved_finds_the_store_with_its_chunks() {
    let p = place();
    let image = write_image(&p.store, &p.images, "one", &[&[(1, 5000), (2, 5000)]]);
    let moved = tempfile::tempdir().unwrap();
    support::copy_tree(image.dir(), &moved.path().join("one"));
    support::copy_tree(p.store.dir(), &moved.path().join(".store"));
    // Where it was written, the store is another's now.
    image::rm(image.dir(), Some(&p.store)).unwrap();
    gc(&p.images, &p.store, &GcOptions::default()).unwrap();
    write_image(&p.store, &p.images, "other", &[&[(1, 5000)]]);
    let image = Image::open(&moved.path().join("one")).unwrap();
    let store = image.find_store(&[]).unwrap();
    assert_eq!(
        store.dir(),
        moved.path().join(".store").canonicalize().unwrap()
    );
    assert!(image::verify(&image, &store, &|_| ()).unwrap().is_sound());
    // Nowhere else: the one it was written to says what is missing.
    std::fs::remove_dir_all(moved.path().join(".store")).unwrap();
    let store = image.find_store(&[]).unwrap();
    let report = image::verify(&image, &store, &|_| ()).unwrap();
    assert_eq!(report.damage.len(), 1, "{report:?}");
}

#[test]
fn a_new_image_does_not_refer_to_a_pack_that_is_lost() {
    for cut in [false, true] {
        let p = place();
        let first = write_image(&p.store, &p.images, "one", &[&[(1, 5000), (2, 5000)]]);
        let id = first.chunk_table().unwrap().records()[0].id;
        let pack = p.store.reader().unwrap().pack_of(&id).unwrap();
        match cut {
            false => std::fs::remove_file(&pack).unwrap(),
            true => std::fs::write(&pack, b"short").unwrap(),
        }
        // As the next checkpoint does.
        let store = Store::open(p.store.dir(), false).unwrap();
        let second = write_image(&store, &p.images, "two", &[&[(1, 5000), (3, 5000)]]);
        let store = Store::open(p.store.dir(), false).unwrap();
        let report = image::verify(&second, &store, &|_| ()).unwrap();
        assert!(report.is_sound(), "{report:?}");
        assert!(!image::verify(&first, &store, &|_| ()).unwrap().is_sound());
    }
}

#[test]
fn a_pack_that_cannot_be_published_leaves_nothing() {
    let p = place();
    let bytes = content(1, 5000);
    let put = || {
        let writer = p.store.begin().unwrap();
        assert!(writer.put(&ChunkId::of(&bytes), &bytes).unwrap().new);
        writer
    };
    let writer = put();
    // The pack gets its name, and its index does not.
    let (index, aside) = (p.store.dir().join("index"), p.store.dir().join("aside"));
    std::fs::rename(&index, &aside).unwrap();
    assert!(writer.finish().is_err());
    std::fs::rename(&aside, &index).unwrap();
    for folder in ["packs", "tmp"] {
        assert_eq!(files(&p.store.dir().join(folder)).len(), 0, "{folder}");
    }
    assert_eq!(put().finish().unwrap().new_chunks, 1);
}
