//! Images of every format version that was ever released must be read for ever.
//!
//! `tests/golden/vN` holds a store and an image of version N of the manifest, as the release that brought it wrote them. They are never written
//! again; a change that needs them changed is a change that loses users' images.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::path::Path;

use fermata_store::image::{self, BufferId, Draft, Image};
use fermata_store::{ChunkId, GcOptions, PackWriter, Store, gc};
use support::{content, copy_tree};

/// Buffers of the golden image as seeds and lengths.
const BUFFERS: [&[(u64, usize)]; 3] = [&[(1, 5000), (2, 4096)], &[(1, 5000)], &[(3, 1)]];

/// The version of each golden image, the parts of its further processes, and the processes whose device memory the driver has
/// moved into theirs.
const VERSIONS: [(u32, &[&str], &[u32]); 5] = [
    (1, &[], &[]),
    (2, &["process-2"], &[]),
    (3, &[], &[4711]),
    (IN_CHUNKS, &[], &[4711]),
    (IN_STORE, &["process-2"], &[]),
];
/// The version in which the chunk table has the memory of processes whose device memory is there, too: parts of `host/pages-1.img`,
/// buffer 1.
const IN_CHUNKS: u32 = 4;
/// The version in which the memory of all processes lies in the store, with a table of its own.
const IN_STORE: u32 = 5;
const PAGES: &[(u64, usize)] = &[(4, 8192), (5, 4096)];

#[test]
fn every_version_is_read() {
    for (version, parts, driver_processes) in VERSIONS {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/v{version}"));
        let dir = tempfile::tempdir().unwrap();
        copy_tree(&golden, dir.path());
        // Empty folders and locks are not kept under version control.
        for folder in ["images", "index", "packs", "tmp"] {
            std::fs::create_dir_all(dir.path().join("store").join(folder)).unwrap();
        }
        let store = Store::open(&dir.path().join("store"), false).unwrap();
        let image = Image::open(&dir.path().join("images/golden")).unwrap();
        let manifest = image.manifest();
        assert_eq!(manifest.schema_version, version);
        assert_eq!(manifest.program.argv, ["./heat2d", "--steps", "100"]);
        assert_eq!(manifest.extra["log_bytes"], 123);
        assert_eq!(manifest.parts, parts);
        assert_eq!(manifest.driver_processes, driver_processes);
        if version >= IN_CHUNKS {
            assert!(!image.host().join("pages-1.img").exists());
            let table = image.host_table().unwrap().unwrap();
            table_is_read(&store, &table, 1, &[PAGES]);
            let all = image.chunk_table().unwrap();
            let last = all.records().last().unwrap();
            assert_eq!(last.buffer, BufferId::of_host_file(1));
        } else {
            assert_eq!(image.host_table().unwrap(), None);
            let host = image.read_file("host/pages-1.img").unwrap();
            assert_eq!(host, content(9, 3000));
        }
        if driver_processes.is_empty() {
            content_is_read(&store, &image);
        }
        assert!(image::verify(&image, &store, &|_| {}).unwrap().is_sound());
        // The store remembers the place where the image was written.
        let options = GcOptions {
            forget_missing: true,
            ..Default::default()
        };
        let collected = gc(&dir.path().join("images"), &store, &options).unwrap();
        assert_eq!((collected.images, collected.removed_chunks), (1, 0));
    }
}

/// The objects and the chunks of each part, which are the same.
fn content_is_read(store: &Store, image: &Image) {
    for part in image.manifest().part_folders() {
        let folder = image.dir().join(part);
        assert_eq!(std::fs::read(folder.join(image::STATE)).unwrap(), b"golden");
        let table = image::ChunkTable::read(&folder.join(image::CHUNKS)).unwrap();
        table_is_read(store, &table, 0, &BUFFERS);
    }
}

/// A table of buffers that are numbered from `first` on.
fn table_is_read(
    store: &Store,
    table: &image::ChunkTable,
    first: u64,
    buffers: &[&[(u64, usize)]],
) {
    let reader = store.reader().unwrap();
    let mut records = table.records().iter();
    for (number, parts) in (first..).zip(buffers) {
        let mut offset = 0;
        for (seed, length) in *parts {
            let record = records.next().unwrap();
            let mut bytes = vec![0; *length];
            reader.read_verified(&record.id, &mut bytes).unwrap();
            assert_eq!(bytes, content(*seed, *length));
            assert_eq!((record.buffer, record.offset), (BufferId(number), offset));
            offset += *length as u64;
        }
    }
    assert!(records.next().is_none());
}

/// How they were made: `FERMATA_GOLDEN=/golden cargo test -p fermata-store --test golden -- --ignored`. It writes those that
/// are not there.
#[test]
#[ignore = "writes a new golden image; only for a new format version"]
fn write_golden() {
    let root = std::env::var_os("FERMATA_GOLDEN").unwrap();
    for (version, parts, driver_processes) in VERSIONS {
        let root = Path::new(&root).join(format!("v{version}"));
        if root.exists() {
            continue;
        }
        let store = Store::open(&root.join("store"), true).unwrap();
        let mut draft = Draft::create(&store, &root.join("images"), "golden").unwrap();
        let writer = store.begin().unwrap();
        if driver_processes.is_empty() {
            write_part(&writer, draft.path());
        }
        match version {
            IN_CHUNKS => write_table(&writer, &draft.path().join(image::CHUNKS), 1, &[PAGES]),
            IN_STORE => write_table(&writer, &draft.path().join(image::HOST_CHUNKS), 1, &[PAGES]),
            _ => {}
        }
        for _ in parts {
            write_part(&writer, &draft.add_part().unwrap());
        }
        writer.finish().unwrap();
        let pages = match version {
            IN_CHUNKS.. => "pagemap-1.img",
            _ => "pages-1.img",
        };
        std::fs::write(draft.host().join(pages), content(9, 3000)).unwrap();
        let mut manifest = image::Manifest {
            fermata_version: env!("CARGO_PKG_VERSION").into(),
            session: "golden".into(),
            mode: "stop".into(),
            driver_processes: driver_processes.into(),
            ..Default::default()
        };
        if version >= IN_CHUNKS {
            manifest.totals.chunks = PAGES.len() as u64;
        }
        manifest.program.argv = ["./heat2d", "--steps", "100"].map(String::from).into();
        manifest.program.cwd = "/work".into();
        manifest.extra.insert("log_bytes".into(), 123.into());
        draft.commit(manifest).unwrap();
    }
}

fn write_part(writer: &PackWriter, folder: &Path) {
    write_table(writer, &folder.join(image::CHUNKS), 0, &BUFFERS);
    std::fs::write(folder.join(image::STATE), "golden").unwrap();
}

fn write_table(writer: &PackWriter, path: &Path, first: u64, buffers: &[&[(u64, usize)]]) {
    let mut table = image::ChunkTableWriter::new();
    for (number, parts) in (first..).zip(buffers) {
        let mut offset = 0;
        for (seed, length) in *parts {
            let bytes = content(*seed, *length);
            let id = ChunkId::of(&bytes);
            writer.put(&id, &bytes).unwrap();
            table
                .push(BufferId(number), offset, *length as u32, id)
                .unwrap();
            offset += *length as u64;
        }
    }
    table.write(path).unwrap();
}
