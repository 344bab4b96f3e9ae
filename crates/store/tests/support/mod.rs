//! What several tests of the store need: content from a seed, and images of it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::Path;

use fermata_store::image::{BufferId, ChunkTableWriter, Draft, Image, Manifest};
use fermata_store::{AlignedBuf, ChunkId, Store};

/// `len` bytes that depend on nothing but `seed`.
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut out);
    out
}

/// The same at an aligned address.
pub fn aligned(bytes: &[u8]) -> AlignedBuf {
    let mut buffer = AlignedBuf::new(bytes.len());
    buffer.copy_from_slice(bytes);
    buffer
}

/// A folder in memory where there is one: syncing costs nothing there.
pub fn quick_folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

/// Writes an image whose buffers are given by the seeds and lengths of their parts.
pub fn write_image(store: &Store, images: &Path, name: &str, buffers: &[&[(u64, usize)]]) -> Image {
    let draft = Draft::create(store, images, name).unwrap();
    let writer = store.begin().unwrap();
    let mut table = ChunkTableWriter::new();
    for (number, parts) in buffers.iter().enumerate() {
        let mut offset = 0;
        for (seed, len) in *parts {
            let bytes = content(*seed, *len);
            let id = ChunkId::of(&bytes);
            writer.put(&id, &bytes).unwrap();
            table
                .push(BufferId(number as u64), offset, *len as u32, id)
                .unwrap();
            offset += *len as u64;
        }
    }
    writer.finish().unwrap();
    table.write(&draft.path().join("chunks")).unwrap();
    std::fs::write(draft.path().join("state"), name).unwrap();
    std::fs::write(draft.host().join("pages-1.img"), content(99, 5000)).unwrap();
    draft.commit(Manifest::default()).unwrap()
}

/// Copies a folder with everything in it.
pub fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// All files below a folder.
pub fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path))
        } else {
            found.push(path)
        }
    }
    found.sort();
    found
}
