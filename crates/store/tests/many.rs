//! Stores with more packs than a process may have files open: one checkpoint every ten minutes makes a thousand a week.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use fermata_store::{ChunkId, GcOptions, Store, WriteOptions, gc, image};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{content, files, quick_folder, write_image};

const PACKS: u64 = 400;
const FILES: u64 = 340;

#[test]
fn an_image_whose_chunks_are_in_many_packs_can_be_read_and_collected() {
    let dir = quick_folder();
    let store = Store::open(&dir.path().join("store"), true).unwrap();
    let images = dir.path().join("images");
    let options = WriteOptions {
        sync: false,
        ..WriteOptions::default()
    };
    let live = |n: u64| (n, 5000);
    for n in 0..PACKS {
        let writer = store.begin_with(options.clone()).unwrap();
        for (seed, length) in [live(n), (n + PACKS, 20_000)] {
            let bytes = content(seed, length);
            writer.put(&ChunkId::of(&bytes), &bytes).unwrap();
        }
        writer.finish().unwrap();
    }
    let parts: Vec<_> = (0..PACKS).map(live).collect();
    let image = write_image(&store, &images, "one", &[&parts]);

    let limit = getrlimit(Resource::Nofile);
    let current = Some(FILES);
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
    let sound = |store: &Store| {
        let report = image::verify(&image, store, &|_| ()).unwrap();
        assert!(report.is_sound(), "{:?}", report.damage.first());
    };
    sound(&store);
    let reader = store.reader().unwrap();
    for (seed, length) in (0..PACKS).map(live) {
        let bytes = content(seed, length);
        let mut into = vec![0; length];
        reader
            .read_verified(&ChunkId::of(&bytes), &mut into)
            .unwrap();
        assert_eq!(into, bytes);
        reader.locate(&ChunkId::of(&bytes)).unwrap();
    }
    drop(reader);
    // Each pack is mostly dead: what lives in it is copied out.
    let report = gc(&images, &store, &GcOptions::default()).unwrap();
    assert_eq!((report.removed_packs, report.live_chunks), (PACKS, PACKS));
    sound(&store);
    assert!(files(&dir.path().join("store/packs")).len() < 10);
}
