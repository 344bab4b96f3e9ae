//! Files of images and of the store. Random bytes never have the right checksum, so it is put right
//! for a part of the tries.

use std::path::Path;

use fermata_store::image::{BufferId, ChunkTable, ChunkTableWriter, FileRecord, Manifest};
use fermata_store::{ChunkId, IndexFile, PackId};

fn nowhere() -> &'static Path {
    Path::new("input")
}

/// `manifest.json`.
pub fn manifest(data: &[u8]) {
    let Ok(manifest) = Manifest::decode(data, nowhere()) else {
        return;
    };
    let again = Manifest::decode(&manifest.encode(), nowhere()).expect("what was read can be read");
    assert_eq!(format!("{manifest:?}"), format!("{again:?}"));
    for file in &manifest.files {
        assert!(!file.path.starts_with('/') && !file.path.split('/').any(|part| part == ".."));
    }
}

/// A manifest with everything in it.
pub fn manifest_seeds() -> Vec<Vec<u8>> {
    let mut m = Manifest {
        schema_version: 1,
        ..Default::default()
    };
    m.devices.push(Default::default());
    m.phases.push(Default::default());
    let path = "host/core-1.img".into();
    m.files.push(FileRecord {
        path,
        length: 7,
        blake3: ChunkId::of(b"x").to_string(),
    });
    m.extra.insert("log".into(), 1.into());
    vec![m.encode()]
}

/// The `chunks` file, and the index of a pack.
pub fn chunks(data: &[u8]) {
    for bytes in [data.to_vec(), with_checksum(data, 32, 64)] {
        if let Ok(table) = ChunkTable::decode(&bytes, nowhere()) {
            let mut writer = ChunkTableWriter::new();
            for r in table.records() {
                writer
                    .push(r.buffer, r.offset, r.length, r.id)
                    .expect("the order is kept");
            }
            assert_eq!(writer.encode(), bytes, "a table has one form");
        }
    }
    for bytes in [data.to_vec(), with_checksum(data, 48, 80)] {
        if let Ok(index) = IndexFile::decode(&bytes, nowhere()) {
            assert_eq!(index.encode(), bytes, "an index has one form");
        }
    }
}

/// Replaces the checksum in `covered..header` by that of the bytes around it.
fn with_checksum(data: &[u8], covered: usize, header: usize) -> Vec<u8> {
    let mut bytes = data.to_vec();
    if bytes.len() >= header {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&bytes[..covered]).update(&bytes[header..]);
        bytes[covered..header].copy_from_slice(hasher.finalize().as_bytes());
    }
    bytes
}

/// A table and an index.
pub fn chunks_seeds() -> Vec<Vec<u8>> {
    let mut table = ChunkTableWriter::new();
    for (buffer, offset) in [(1, 0), (1, 4096), (2, 0)] {
        table
            .push(BufferId(buffer), offset, 4096, ChunkId([7; 32]))
            .expect("in order");
    }
    let record = |offset: u64| fermata_store::IndexRecord {
        id: ChunkId([9; 32]),
        offset: offset.into(),
        length: 100.into(),
        flags: 0.into(),
    };
    let records = vec![record(4096), record(8192)];
    let index = IndexFile {
        pack: PackId([3; 16]),
        pack_bytes: 12288,
        records,
    };
    vec![table.encode(), index.encode()]
}

/// The `state` file.
pub fn state(data: &[u8]) {
    let mut repaired = data.to_vec();
    if let Some(body) = data.len().checked_sub(56) {
        repaired[16..24].copy_from_slice(&(body as u64).to_le_bytes());
        let mut hasher = blake3::Hasher::new();
        hasher.update(&repaired[..24]).update(&repaired[56..]);
        repaired[24..56].copy_from_slice(hasher.finalize().as_bytes());
    }
    for bytes in [data, &repaired] {
        let Ok(decoded) = fermata_state::records::decode(bytes) else {
            continue;
        };
        // Without its stored images a session is incomplete.
        let Ok(session) = decoded.complete(Vec::new()) else {
            continue;
        };
        let encoded =
            fermata_state::records::encode(&session).expect("what was read can be written");
        fermata_state::records::decode(&encoded.bytes).expect("and read again");
    }
}

/// An empty session.
pub fn state_seeds() -> Vec<Vec<u8>> {
    let session = fermata_state::Session::default();
    vec![
        fermata_state::records::encode(&session)
            .expect("encoded")
            .bytes,
    ]
}
