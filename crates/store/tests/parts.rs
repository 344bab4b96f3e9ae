//! Images of several processes: the chunk table of each lies in a part of its own, and together they keep apart what has
//! the same number in two processes, memory and module images.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::path::Path;

use fermata_store::image::{self, BufferId, ChunkTableWriter, Draft, HOST_CHUNKS, Image, Manifest};
use fermata_store::{ChunkId, GcOptions, PackWriter, Store, StoreError, gc};
use support::{content, files, quick_folder, write_image};

/// Numbers from this one on are of module images.
const IMAGES: u64 = 1 << 63;
/// Bytes of every buffer.
const LEN: usize = 5000;
/// A module image that both processes have, under the same number, as the hash of its content gives it.
const SHARED: (u64, u64) = (IMAGES + 0xffff_ffff_ffff, 10);

/// Writes a process's part, whose buffers are given by their numbers and seeds.
fn part(writer: &PackWriter, folder: &Path, buffers: &[(u64, u64)]) {
    let mut table = ChunkTableWriter::new();
    for (number, seed) in buffers {
        let bytes = content(*seed, LEN);
        let id = ChunkId::of(&bytes);
        writer.put(&id, &bytes).unwrap();
        table.push(BufferId(*number), 0, LEN as u32, id).unwrap();
    }
    table.write(&folder.join("chunks")).unwrap();
    std::fs::write(folder.join("state"), "objects").unwrap();
}

fn write_parts(store: &Store, images: &Path, name: &str, parts: [&[(u64, u64)]; 2]) -> Image {
    let mut draft = Draft::create(store, images, name).unwrap();
    let writer = store.begin().unwrap();
    part(&writer, draft.path(), parts[0]);
    part(&writer, &draft.add_part().unwrap(), parts[1]);
    writer.finish().unwrap();
    std::fs::write(draft.host().join("pages-1.img"), content(99, LEN)).unwrap();
    draft.commit(Manifest::default()).unwrap()
}

/// The memory of processes has numbers of its own beside those of both parts, is verified, and kept by a collection.
#[test]
fn the_memory_of_processes_is_beside_the_parts() {
    let folder = quick_folder();
    let store = Store::open(&folder.path().join("store"), true).unwrap();
    let images = folder.path().join("images");
    let mut draft = Draft::create(&store, &images, "one").unwrap();
    let writer = store.begin().unwrap();
    part(&writer, draft.path(), &[(1, 20)]);
    part(&writer, &draft.add_part().unwrap(), &[(1, 21)]);
    let mut table = ChunkTableWriter::new();
    let bytes = content(22, LEN);
    let id = ChunkId::of(&bytes);
    writer.put(&id, &bytes).unwrap();
    table.push(BufferId(1), 8192, LEN as u32, id).unwrap();
    table.write(&draft.path().join(HOST_CHUNKS)).unwrap();
    writer.finish().unwrap();
    let image = draft.commit(Manifest::default()).unwrap();
    assert_eq!(image.manifest().schema_version, 5);

    let all = image.chunk_table().unwrap();
    let names: Vec<_> = all.buffers().map(|it| it.buffer.to_string()).collect();
    assert_eq!(names, ["1", "1 of process 2", "`pages-1.img`"]);
    let host = image.host_table().unwrap().unwrap();
    assert_eq!(host.records()[0].buffer, BufferId(1));
    assert_eq!(
        gc(&images, &store, &GcOptions::default())
            .unwrap()
            .live_chunks,
        3
    );
    assert!(image::verify(&image, &store, &|_| ()).unwrap().is_sound());

    // A table that is not there any more, and one that is another image's.
    let path = image.dir().join(HOST_CHUNKS);
    std::fs::write(&path, "").unwrap();
    assert!(matches!(
        image.chunk_table(),
        Err(StoreError::Damaged { .. })
    ));
    assert!(!image::verify(&image, &store, &|_| ()).unwrap().is_sound());
    std::fs::remove_file(&path).unwrap();
    assert!(Image::open(image.dir()).is_err());
}

#[test]
fn module_images_of_two_processes_are_kept_apart_and_their_bytes_once() {
    let folder = quick_folder();
    let store = Store::open(&folder.path().join("store"), true).unwrap();
    let images = folder.path().join("images");
    let first = [(1, 20), SHARED, (IMAGES + 6, 11)];
    let second = [(1, 21), SHARED, (IMAGES + 6, 12)];
    let image = write_parts(&store, &images, "one", [&first, &second]);
    assert_eq!(image.manifest().schema_version, 2);
    let table = image.chunk_table().unwrap();
    let (of_images, others) = table.clone().split_images();
    assert_eq!(
        (of_images.buffers().count(), others.buffers().count()),
        (4, 2)
    );
    assert_eq!(table.buffers().count(), 6);
    let sound = || {
        let store = Store::open(store.dir(), false).unwrap();
        let report = image::verify(&image, &store, &|_| ()).unwrap();
        assert!(report.is_sound(), "{report:?}");
        report.chunks
    };
    // Six buffers, one of which two processes have.
    assert_eq!(sound(), 5);

    // A collection leaves them, and takes what only another image had.
    write_image(&store, &images, "two", &[&[(30, LEN)]]);
    image::rm(&images.join("two"), Some(&store)).unwrap();
    let done = gc(&images, &store, &GcOptions::default()).unwrap();
    assert_eq!((done.removed_chunks, done.live_chunks), (1, 5));
    assert_eq!(sound(), 5);

    let changed = [(1, 21), SHARED, (IMAGES + 6, 13)];
    let other = write_parts(&store, &images, "three", [&first, &changed]);
    let diff = image::diff(&image, &other).unwrap();
    let named: Vec<_> = diff
        .buffers
        .iter()
        .map(|it| it.buffer.to_string())
        .collect();
    assert_eq!(named, ["0x8000000000000006 (a module image) of process 2"]);
}

#[test]
fn damage_in_a_module_image_names_the_process() {
    let folder = quick_folder();
    let store = Store::open(&folder.path().join("store"), true).unwrap();
    let images = folder.path().join("images");
    let image = write_parts(&store, &images, "one", [&[SHARED], &[SHARED, (2, 21)]]);
    let pack = &files(&store.dir().join("packs"))[0];
    let mut bytes = std::fs::read(pack).unwrap();
    bytes[4096 + 77] ^= 1;
    std::fs::write(pack, bytes).unwrap();
    let report = image::verify(&image, &store, &|_| ()).unwrap();
    assert_eq!(report.damage.len(), 1, "{report:?}");
    let named = report.damage[0]
        .buffers
        .iter()
        .map(|it| it.buffer.to_string());
    assert_eq!(
        named.collect::<Vec<_>>(),
        [
            "0x8000ffffffffffff (a module image)",
            "0x8000ffffffffffff (a module image) of process 2"
        ]
    );
}

#[test]
fn a_table_whose_numbers_could_be_another_processs_is_damage() {
    let folder = quick_folder();
    let store = Store::open(&folder.path().join("store"), true).unwrap();
    let images = folder.path().join("images");
    let wrong = [(IMAGES | 1 << 48, 10)];
    let image = write_parts(&store, &images, "one", [&[SHARED], &wrong]);
    match image.chunk_table() {
        Err(StoreError::Damaged { path, what }) => {
            assert!(path.ends_with("process-2/chunks"), "{}", path.display());
            assert!(what.contains("another process"), "{what}");
        }
        other => panic!("{other:?}"),
    }
    assert!(!image::verify(&image, &store, &|_| ()).unwrap().is_sound());
}
