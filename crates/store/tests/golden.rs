//! Images of every format version that was ever released must be read for ever.
//!
//! `tests/golden/vN` holds a store and an image as release N wrote them. They are never written
//! again; a change that needs them changed is a change that loses users' images.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::path::Path;

use fermata_store::image::{self, BufferId, Draft, Image};
use fermata_store::{ChunkId, GcOptions, Store, gc};
use support::{content, copy_tree};

/// Buffers of the golden image as seeds and lengths.
const BUFFERS: [&[(u64, usize)]; 3] = [&[(1, 5000), (2, 4096)], &[(1, 5000)], &[(3, 1)]];

#[test]
fn version_1_is_read() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1");
    let dir = tempfile::tempdir().unwrap();
    copy_tree(&golden, dir.path());
    // Empty folders and locks are not kept under version control.
    for folder in ["images", "tmp"] {
        std::fs::create_dir_all(dir.path().join("store").join(folder)).unwrap();
    }
    let store = Store::open(&dir.path().join("store"), false).unwrap();
    let image = Image::open(&dir.path().join("images/golden")).unwrap();
    assert_eq!(
        image.manifest().program.argv,
        ["./heat2d", "--steps", "100"]
    );
    assert_eq!(image.manifest().extra["log_bytes"], 123);
    assert_eq!(image.read_file("state").unwrap(), b"golden");
    let reader = store.reader().unwrap();
    let table = image.chunk_table().unwrap();
    let mut records = table.records().iter();
    for (number, parts) in BUFFERS.iter().enumerate() {
        let mut offset = 0;
        for (seed, length) in *parts {
            let record = records.next().unwrap();
            let mut bytes = vec![0; *length];
            reader.read_verified(&record.id, &mut bytes).unwrap();
            assert_eq!(bytes, content(*seed, *length));
            assert_eq!(
                (record.buffer, record.offset),
                (BufferId(number as u64), offset)
            );
            offset += *length as u64;
        }
    }
    assert!(records.next().is_none());
    drop(reader);
    assert!(image::verify(&image, &store, &|_| {}).unwrap().is_sound());
    // The store remembers the place where the image was written.
    let options = GcOptions {
        forget_missing: true,
        ..Default::default()
    };
    let collected = gc(&dir.path().join("images"), &store, &options).unwrap();
    assert_eq!((collected.images, collected.removed_chunks), (1, 0));
}

/// How version 1 was made: `FERMATA_GOLDEN=/golden cargo test -p fermata-store -- --ignored golden`.
#[test]
#[ignore = "writes a new golden image; only for a new format version"]
fn write_golden() {
    let root = std::env::var_os("FERMATA_GOLDEN").unwrap();
    let root = Path::new(&root);
    let store = Store::open(&root.join("store"), true).unwrap();
    let draft = Draft::create(&store, &root.join("images"), "golden").unwrap();
    let (writer, mut table) = (store.begin().unwrap(), image::ChunkTableWriter::new());
    for (number, parts) in BUFFERS.iter().enumerate() {
        let mut offset = 0;
        for (seed, length) in *parts {
            let bytes = content(*seed, *length);
            let id = ChunkId::of(&bytes);
            writer.put(&id, &bytes).unwrap();
            table
                .push(BufferId(number as u64), offset, *length as u32, id)
                .unwrap();
            offset += *length as u64;
        }
    }
    writer.finish().unwrap();
    table.write(&draft.path().join(image::CHUNKS)).unwrap();
    std::fs::write(draft.path().join(image::STATE), "golden").unwrap();
    std::fs::write(draft.host().join("pages-1.img"), content(9, 3000)).unwrap();
    let mut manifest = image::Manifest {
        fermata_version: "0.1.0".into(),
        session: "golden".into(),
        mode: "stop".into(),
        ..Default::default()
    };
    manifest.program.argv = ["./heat2d", "--steps", "100"].map(String::from).into();
    manifest.program.cwd = "/work".into();
    manifest.extra.insert("log_bytes".into(), 123.into());
    draft.commit(manifest).unwrap();
}
