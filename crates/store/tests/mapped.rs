//! Packs that a caller fills by itself: claims, what becomes of them, and what a lost writer leaves.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use fermata_store::{ChunkId, PackFile, PackWriter, Place, Store, WriteOptions};

fn open(folder: &Path) -> Store {
    Store::open(folder, true).expect("a store")
}

fn ready(store: &Store) -> Vec<PackFile> {
    let files = store.pack_files().expect("a list");
    files.into_iter().filter(|f| f.ready).collect()
}

fn writer(store: &Store) -> PackWriter {
    let wanted = ready(store).iter().map(|f| f.id).collect();
    store
        .begin_with(WriteOptions {
            wanted,
            ..WriteOptions::default()
        })
        .expect("a writer")
}

/// As a mapping would: through another descriptor of the same file.
fn fill(store: &Store, place: &Place, bytes: &[u8]) {
    let folder = std::fs::read_dir(store.dir().join("tmp")).expect("tmp");
    let path = folder
        .flatten()
        .map(|e| e.path())
        .find(|p| p.metadata().is_ok_and(|m| m.ino() == place.key.inode))
        .expect("the pack being written");
    let file = OpenOptions::new().write(true).open(path).expect("open");
    file.write_all_at(bytes, place.offset).expect("write");
}

fn claim(writer: &PackWriter, length: u64) -> Place {
    writer.claim(length).expect("claim").expect("room")
}

#[test]
fn what_the_caller_fills_is_read_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    store.prepare(1).expect("prepared");
    let one = vec![1u8; 5000];
    let two = vec![2u8; 8192];
    let writer = writer(&store);
    let id = ChunkId::of(&one);
    let place = claim(&writer, 5000);
    let unnamed = claim(&writer, 8192);
    let again = claim(&writer, 8192);
    fill(&store, &unnamed, &two);
    fill(&store, &place, &one);
    // Out of order on purpose: the index is by offset.
    assert!(
        writer
            .settle(&unnamed, &ChunkId::of(&two))
            .expect("settled")
            .new
    );
    assert!(
        !writer
            .settle(&again, &ChunkId::of(&two))
            .expect("settled")
            .new
    );
    assert!(writer.settle(&place, &id).expect("settled").new);
    // What was not needed is used for the next.
    let reused = claim(&writer, 8192);
    assert_eq!(reused.offset, again.offset);
    writer.waive(&reused);
    let totals = writer.finish().expect("finished");
    assert_eq!((totals.new_chunks, totals.new_bytes), (2, 5000 + 8192));
    assert_eq!(totals.chunks, 3);

    let reader = open(folder.path()).reader().expect("a reader");
    let mut scratch = Vec::new();
    for bytes in [&one, &two] {
        let id = ChunkId::of(bytes);
        let mut found = vec![0; bytes.len()];
        reader.read_verified(&id, &mut found).expect("read");
        assert_eq!(&found, bytes);
        reader.verify(&id, &mut scratch).expect("the fill is zero");
        assert_eq!(
            reader.locate(&id).expect("there").length as usize,
            bytes.len()
        );
    }
    assert!(reader.check_packs([&id]).is_empty());
}

#[test]
fn a_writer_given_up_gives_its_packs_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    store.prepare(1).expect("prepared");
    let before = ready(&store);
    let first = writer(&store);
    let place = claim(&first, 100);
    fill(&store, &place, &[0xff; 4096]);
    assert!(ready(&store).is_empty());
    drop(first);
    let after = ready(&store);
    assert_eq!((after.len(), after[0].key), (1, before[0].key));
    // What it held before is not behind the next chunk.
    let second = writer(&store);
    let place = claim(&second, 50);
    fill(&store, &place, &[7; 50]);
    let id = ChunkId::of(&[7; 50]);
    second.settle(&place, &id).expect("settled");
    second.finish().expect("finished");
    let reader = store.reader().expect("a reader");
    reader.verify(&id, &mut Vec::new()).expect("sound");
}

#[test]
fn nothing_is_claimed_beyond_what_is_wanted() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    store.prepare(1).expect("prepared");
    let whole = ready(&store)[0].bytes;
    let writer = writer(&store);
    let (mut claimed, mut count) = (0, 0u8);
    while let Some(place) = writer.claim(64 << 20).expect("claim") {
        claimed += u64::from(place.length);
        count += 1;
        assert!(
            writer
                .settle(&place, &ChunkId([count; 32]))
                .expect("settled")
                .new
        );
    }
    assert!(
        claimed > whole / 2 && claimed < whole,
        "{claimed} of {whole}"
    );
    // The ordinary way goes on.
    assert!(writer.put(&ChunkId::of(b"x"), b"x").expect("put").new);
    let other = store.begin().expect("a writer");
    assert!(other.claim(1).expect("claim").is_none());
}

#[test]
fn a_writer_that_was_killed_leaves_a_sound_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    store.prepare(1).expect("prepared");
    let first = writer(&store);
    first.put(&ChunkId::of(b"kept"), b"kept").expect("put");
    first.finish().expect("finished");
    store.prepare(1).expect("prepared");
    let lost = writer(&store);
    let place = claim(&lost, 100);
    fill(&store, &place, &[3; 100]);
    lost.settle(&place, &ChunkId::of(&[3; 100]))
        .expect("settled");
    // As after a kill: locks are gone with their process, files are not.
    let tmp = store.dir().join("tmp");
    let left: Vec<_> = std::fs::read_dir(&tmp).expect("tmp").flatten().collect();
    assert_eq!(left.len(), 1);
    let aside = folder.path().join("aside");
    std::fs::rename(left[0].path(), &aside).expect("aside");
    drop(lost);
    std::fs::rename(&aside, left[0].path()).expect("back");

    let store = open(folder.path());
    assert_eq!(std::fs::read_dir(&tmp).expect("tmp").count(), 0);
    let reader = store.reader().expect("a reader");
    let mut kept = [0; 4];
    reader
        .read_verified(&ChunkId::of(b"kept"), &mut kept)
        .expect("what was finished is there");
    assert!(reader.length(&ChunkId::of(&[3; 100])).is_err());
}
