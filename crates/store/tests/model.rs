//! The store against a model: a map from names to bytes; and against crashes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;

use fermata_store::image::{self, Image};
use fermata_store::{ChunkId, GcOptions, Store, StoreError, WriteOptions, gc};
use proptest::prelude::*;
use support::{aligned, content, copy_tree, files, quick_folder, write_image};

#[derive(Debug, Clone)]
enum Step {
    /// Put these in one writer, small packs or large, then finish or drop it.
    Put {
        seeds: Vec<u64>,
        align: bool,
        small: bool,
        finish: bool,
    },
    /// An image of these.
    Image(Vec<u64>),
    /// Remove the n-th image.
    Remove(usize),
    Collect,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let seeds = || prop::collection::vec(0..24u64, 1..6);
    let step = prop_oneof![
        3 => (seeds(), any::<bool>(), any::<bool>(), prop::bool::weighted(0.8))
            .prop_map(|(seeds, align, small, finish)| Step::Put { seeds, align, small, finish }),
        3 => seeds().prop_map(Step::Image),
        2 => (0..4usize).prop_map(Step::Remove),
        2 => Just(Step::Collect),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..14)
}

/// Lengths around block and piece boundaries.
fn chunk(seed: u64) -> Vec<u8> {
    const LENGTHS: [usize; 8] = [1, 100, 4095, 4096, 4097, 8192, 30_001, (1 << 20) + 5];
    content(seed, LENGTHS[seed as usize % LENGTHS.len()])
}

fn sound(image: &Image, store: &Store) -> bool {
    image::verify(image, store, &|_| {}).unwrap().is_sound()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]

    #[test]
    fn store_agrees_with_model(steps in steps()) {
        let dir = quick_folder();
        let images = dir.path().join("images");
        let path = dir.path().join("store");
        let mut store = Store::open(&path, true).unwrap();
        let mut model: BTreeMap<ChunkId, Vec<u8>> = BTreeMap::new();
        let mut live: BTreeMap<String, BTreeSet<ChunkId>> = BTreeMap::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Put { seeds, align, small, finish } => {
                    let pack_bytes = if small { 16 << 10 } else { 1 << 30 };
                    let writer =
                        store.begin_with(WriteOptions { sync: false, pack_bytes, ..WriteOptions::default() }).unwrap();
                    let mut put = BTreeMap::new();
                    for seed in seeds {
                        let bytes = chunk(seed);
                        let id = ChunkId::of(&bytes);
                        let done = if align {
                            writer.put(&id, &aligned(&bytes))
                        } else {
                            writer.put(&id, &bytes)
                        };
                        let new = !model.contains_key(&id) && !put.contains_key(&id);
                        prop_assert_eq!(done.unwrap().new, new);
                        put.insert(id, bytes);
                    }
                    if finish {
                        writer.finish().unwrap();
                        model.append(&mut put);
                    }
                }
                Step::Image(seeds) => {
                    let name = format!("i{number}");
                    let parts: Vec<_> = seeds.iter().map(|s| (*s, chunk(*s).len())).collect();
                    write_image(&store, &images, &name, &[&parts]);
                    let chunks: BTreeMap<_, _> =
                        seeds.iter().map(|s| (ChunkId::of(&chunk(*s)), chunk(*s))).collect();
                    live.insert(name, chunks.keys().copied().collect());
                    model.extend(chunks);
                }
                Step::Remove(n) => {
                    if let Some(name) = live.keys().nth(n).cloned() {
                        image::rm(&images.join(&name), Some(&store)).unwrap();
                        live.remove(&name);
                    }
                }
                Step::Collect => {
                    gc(&images, &store, &GcOptions::default()).unwrap();
                    let used: BTreeSet<_> = live.values().flatten().collect();
                    let reader = store.reader().unwrap();
                    // Unused chunks may stay in packs that are mostly used.
                    model.retain(|id, _| used.contains(id) || reader.length(id).is_ok());
                }
                Step::Reopen => store = Store::open(&path, false).unwrap(),
            }
            let reader = store.reader().unwrap();
            for seed in 0..24 {
                let bytes = chunk(seed);
                let id = ChunkId::of(&bytes);
                let mut plain = vec![0; bytes.len()];
                let mut direct = aligned(&plain);
                if model.contains_key(&id) {
                    reader.read_verified(&id, &mut plain).unwrap();
                    reader.read(&id, &mut direct).unwrap();
                    prop_assert!(plain == bytes && direct[..] == bytes[..]);
                } else {
                    let missing = matches!(reader.length(&id), Err(StoreError::MissingChunk { .. }));
                    prop_assert!(missing, "chunk of seed {} should be gone", seed);
                }
            }
        }
        prop_assert_eq!(files(&path.join("tmp")).len(), 0);
        for name in live.keys() {
            let image = Image::open(&images.join(name)).unwrap();
            prop_assert!(sound(&image, &store));
        }
    }

    /// A crash leaves files of the second checkpoint in any of the states that the order of syncs
    /// and renames allows, cut anywhere where they were not synced.
    #[test]
    fn a_crash_leaves_older_images_intact(stage in 0..4usize, cut in 0.0..1.0f64) {
        let dir = quick_folder();
        let (images, path) = (dir.path().join("images"), dir.path().join("store"));
        let store = Store::open(&path, true).unwrap();
        write_image(&store, &images, "old", &[&[(1, 5000), (2, 70_000)]]);
        let (old_images, old_store) = (dir.path().join("images-old"), dir.path().join("store-old"));
        copy_tree(&images, &old_images);
        copy_tree(&path, &old_store);
        write_image(&store, &images, "new", &[&[(1, 5000), (3, 90_000)]]);
        let news = |new: &std::path::Path, old: &std::path::Path| -> Vec<_> {
            files(new)
                .into_iter()
                .filter(|f| !old.join(f.strip_prefix(new).unwrap()).exists())
                .collect()
        };
        let shorten = |file: &std::path::Path| {
            let length = std::fs::metadata(file).unwrap().len();
            let file = OpenOptions::new().write(true).open(file).unwrap();
            file.set_len((length as f64 * cut) as u64).unwrap();
        };
        let draft = images.join(".draft-new-0");
        std::fs::rename(images.join("new"), &draft).unwrap();
        for file in files(&draft) {
            shorten(&file);
        }
        for file in news(&path, &old_store) {
            let text = file.to_string_lossy().into_owned();
            let aside = path.join("tmp").join(file.file_name().unwrap());
            match (stage, file.extension().and_then(|e| e.to_str())) {
                // While the pack is written.
                (0, Some("pack")) => { std::fs::rename(&file, &aside).unwrap(); shorten(&aside) }
                (0, _) => std::fs::remove_file(&file).unwrap(),
                // While the index is written.
                (1, Some("pack")) => std::fs::rename(&file, &aside).unwrap(),
                (1, Some("idx")) => { std::fs::rename(&file, &aside).unwrap(); shorten(&aside) }
                // Between the two renames.
                (2, Some("idx")) => std::fs::rename(&file, &aside).unwrap(),
                (1 | 2, Some("image")) => std::fs::remove_file(&file).unwrap(),
                // Before the image gets its name.
                (3, Some("image")) => {
                    std::fs::rename(&file, text.replace(".image", ".pending")).unwrap();
                }
                _ => {}
            }
        }
        drop(store);
        let store = Store::open(&path, false).unwrap();
        let old = Image::open(&images.join("old")).unwrap();
        prop_assert!(sound(&old, &store));
        prop_assert_eq!(image::ls(&images).unwrap().len(), 1);
        gc(&images, &store, &GcOptions::default()).unwrap();
        prop_assert!(sound(&old, &store));
        prop_assert_eq!(news(&path, &old_store), Vec::<std::path::PathBuf>::new());
        prop_assert!(!draft.exists());
        let again = write_image(&store, &images, "new", &[&[(1, 5000), (3, 90_000)]]);
        prop_assert!(sound(&again, &store));
    }
}

#[test]
fn threads_put_and_read_together() {
    let dir = quick_folder();
    let store = Store::open(dir.path(), true).unwrap();
    let writer = store
        .begin_with(WriteOptions {
            sync: false,
            pack_bytes: 1 << 20,
            ..WriteOptions::default()
        })
        .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let writer = &writer;
            scope.spawn(move || {
                for n in 0..40 {
                    let bytes = content(thread % 2 * 100 + n, 20_000);
                    writer.put(&ChunkId::of(&bytes), &bytes).unwrap();
                }
            });
        }
    });
    let totals = writer.finish().unwrap();
    assert_eq!((totals.chunks, totals.new_chunks), (160, 80));
    assert_eq!(totals.new_bytes, 80 * 20_000);
    let reader = store.reader().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let reader = &reader;
            scope.spawn(move || {
                for n in 0..40 {
                    let bytes = content(thread * 100 + n, 20_000);
                    let mut read = aligned(&vec![0; 20_000]);
                    reader
                        .read_verified(&ChunkId::of(&bytes), &mut read)
                        .unwrap();
                    assert_eq!(read[..], bytes[..]);
                }
            });
        }
    });
}

#[test]
fn a_reader_sees_what_is_published_later() {
    let dir = quick_folder();
    let store = Store::open(dir.path(), true).unwrap();
    let other = Store::open(dir.path(), false).unwrap();
    let reader = other.reader().unwrap();
    let bytes = content(1, 50);
    let writer = store.begin().unwrap();
    writer.put(&ChunkId::of(&bytes), &bytes).unwrap();
    assert!(reader.length(&ChunkId::of(&bytes)).is_err());
    writer.finish().unwrap();
    assert_eq!(reader.length(&ChunkId::of(&bytes)).unwrap(), 50);
}

#[test]
fn parts_of_chunks_come_from_packs_that_are_trusted_and_have_not_changed() {
    let dir = quick_folder();
    let store = Store::open(dir.path(), true).unwrap();
    let all = [content(1, 5000), content(2, 70)];
    let ids = all.each_ref().map(|it| ChunkId::of(it));
    for (id, bytes) in ids.iter().zip(&all) {
        // In a pack of its own each.
        let writer = store.begin().unwrap();
        writer.put(id, bytes).unwrap();
        writer.finish().unwrap();
    }
    let mut part = vec![0; 60];
    let reader = store.reader().unwrap();
    assert!(!reader.read_part(&ids[0], 7, &mut part).unwrap());
    assert_eq!(reader.pack_versions(&ids).unwrap().len(), 2);
    let first = reader.pack_versions(&ids[..1]).unwrap();
    let reader = reader.trusting(first.clone());
    assert!(reader.read_part(&ids[0], 7, &mut part).unwrap());
    assert_eq!(part, all[0][7..67]);
    assert!(reader.read_part(&ids[0], 4940, &mut part).unwrap());
    assert_eq!(part, all[0][4940..]);
    assert!(reader.read_part(&ids[0], 4941, &mut part).is_err());
    assert!(reader.read_part(&ids[0], u64::MAX, &mut part).is_err());
    assert!(!reader.read_part(&ids[1], 0, &mut part).unwrap());
    let pack = reader.pack_of(&ids[0]).unwrap();
    // Its content stays the same, its times do not, which count in ticks of the clock.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let byte = std::fs::read(&pack).unwrap()[5000];
    let file = std::fs::File::options().write(true).open(&pack).unwrap();
    file.write_all_at(&[byte], 5000).unwrap();
    assert!(!reader.read_part(&ids[0], 7, &mut part).unwrap());
    assert_ne!(reader.pack_versions(&ids[..1]).unwrap(), first);
}
