//! The parts of other processes beside one process's part of an image, or of a paused session's entry: what several processes have in
//! common is read from a disk by each of them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::manifest::{CHUNKS, part_name};
use super::table::ChunkTable;
use crate::{ChunkId, Result, sync};

/// In the entry of a paused session, the folder of its parts.
pub(crate) const PARTS: &str = "parts";
/// The longest table that is read.
const MAX_TABLE: u64 = 4 << 30;

/// The chunks that the parts beside the one in `part` name. This is advice: a table that cannot be read names none, and nothing is held
/// against the manifest.
pub fn chunks_beside(part: &Path) -> HashSet<ChunkId> {
    let mut chunks = HashSet::new();
    for other in beside(part) {
        let table = table_of(&other);
        chunks.extend(table.iter().flat_map(|it| it.records()).map(|it| it.id));
    }
    chunks
}

/// The table of the part in a folder, held against nothing but its own checksum.
///
/// # Errors
/// `Damaged`, `Newer`, `Io`.
pub(crate) fn table_of(part: &Path) -> Result<ChunkTable> {
    let path = part.join(CHUNKS);
    ChunkTable::decode(&sync::read_limited(&path, MAX_TABLE)?, &path)
}

/// The folders of the other parts.
fn beside(part: &Path) -> Vec<PathBuf> {
    let parent = part.parent().unwrap_or(part);
    let of_entry = parent.file_name().is_some_and(|it| it == PARTS);
    // What lies in a folder that has a table itself is a further part of that.
    let is_further = !of_entry && parent.join(CHUNKS).is_file();
    let image = if is_further { parent } else { part };
    let number = |at: usize| match of_entry {
        true => parent.join((at + 1).to_string()),
        false => image.join(part_name(at)),
    };
    let all = (0..).map(number).take_while(|it| it.is_dir());
    all.filter(|it| it != part).collect()
}

#[cfg(test)]
mod tests {
    use super::super::BufferId;
    use super::super::table::ChunkTableWriter;
    use super::*;

    fn write(part: &Path, names: &[&[u8]]) {
        std::fs::create_dir_all(part).unwrap();
        let mut table = ChunkTableWriter::new();
        for (at, bytes) in (0..).zip(names) {
            let id = ChunkId::of(bytes);
            table
                .push(BufferId(1), at * 16384, bytes.len() as u32, id)
                .unwrap();
        }
        std::fs::write(part.join(CHUNKS), table.encode()).unwrap();
    }

    fn named(part: &Path, name: &[u8]) -> bool {
        chunks_beside(part).contains(&ChunkId::of(name))
    }

    #[test]
    fn parts_of_images_and_entries_are_found_beside_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let entry = dir.path().join("x").join(PARTS);
        let of_image = [0, 1, 2].map(|at| image.join(part_name(at)));
        let of_entry = [1, 2, 3].map(|at: i32| entry.join(at.to_string()));
        for parts in [of_image, of_entry] {
            write(&parts[0], &[b"all", b"first"]);
            write(&parts[1], &[b"all", b"second"]);
            write(&parts[2], &[b"third"]);
            for part in &parts {
                assert!(named(part, b"all"));
                assert_eq!(named(part, b"first"), *part != parts[0], "{part:?}");
                assert_eq!(named(part, b"second"), *part != parts[1], "{part:?}");
                assert_eq!(named(part, b"third"), *part != parts[2], "{part:?}");
            }
            std::fs::write(parts[1].join(CHUNKS), "damaged").unwrap();
            assert!(!named(&parts[2], b"second") && named(&parts[2], b"first"));
        }
        let alone = dir.path().join("alone");
        write(&alone, &[b"all"]);
        assert!(chunks_beside(&alone).is_empty());
    }
}
