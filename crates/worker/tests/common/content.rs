//! Device memory with content that can be told apart, and what an image says of it.

use std::path::Path;

use fermata_store::ChunkId;
use fermata_store::image::ChunkTable;

use super::Program;

/// Device memory with content of every kind: whole chunks, an odd tail, zeros, the same twice.
pub fn fill(program: &Program) -> Vec<(u64, Vec<u8>)> {
    let pattern = |len: usize, seed: u32| -> Vec<u8> {
        let mut state = seed;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..len).map(next).collect()
    };
    let mut buffers = vec![
        pattern((9 << 20) + 1000, 1),
        vec![0; 5 << 20],
        pattern(70_000, 2),
    ];
    buffers.push(buffers[0][..4 << 20].to_vec());
    let place = |bytes: Vec<u8>| {
        let address = program.alloc(bytes.len() as u64);
        for (index, part) in bytes.chunks(32 << 10).enumerate() {
            program.write(address + (index << 15) as u64, part);
        }
        (address, bytes)
    };
    buffers.into_iter().map(place).collect()
}

pub fn check(program: &Program, buffers: &[(u64, Vec<u8>)]) {
    for (address, bytes) in buffers {
        for (index, part) in bytes.chunks(32 << 10).enumerate() {
            let found = program.read(address + (index << 15) as u64, part.len());
            assert!(found == part, "{address:#x}, part {index}");
        }
    }
}

pub fn table(image: &str) -> Vec<(u64, u64, u32, ChunkId)> {
    let table = ChunkTable::read(&Path::new(image).join("chunks")).unwrap();
    let records = table.records().iter();
    records
        .map(|it| (it.buffer.0, it.offset, it.length, it.id))
        .collect()
}
