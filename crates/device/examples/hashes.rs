//! Checks the hash kernels against the CPU and times them: `hashes DRIVER [GIB]`, one JSON object.
//!
//! The limit of both is reading device memory once; the rates are to be held against that.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use fermata_abi::sys::driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
use fermata_device::Driver;
use fermata_device::hash::{CHANGE_BLOCK, CHANGE_KEY_BYTES, Hasher, change_hash};

fn random(bytes: usize) -> Vec<u8> {
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    }
    out.truncate(bytes);
    out
}

fn best(rounds: usize, mut run: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    (0..rounds).map(time).fold(f64::INFINITY, f64::min)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let path = args.get(1).ok_or("usage: hashes DRIVER [GIB]")?;
    let gib: f64 = args.get(2).map_or(Ok(1.0), |g| g.parse())?;
    let driver = Arc::new(Driver::load(Path::new(path))?);
    let context = driver.primary_context(0, 0)?;
    driver.set_current(context)?;
    let size = ((gib * (1u64 << 30) as f64) as u64).next_multiple_of(2 << 20);
    let memory = driver.create_memory(0, size)?;
    let base = driver.reserve_addresses(size, 0, 0)?;
    driver.map(base, size, 0, memory)?;
    driver.set_access(base, size, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, &[0])?;
    let stream = driver.create_stream(0, 0)?;
    let data = random((8 << 20) + 12_345);
    let known = data.len().min(size as usize);
    driver.copy_from_slice(base, &data[..known], stream)?;
    let mut filled = known as u64;
    while filled < size {
        let part = filled.min(size - filled);
        driver.copy(base + filled, base, part, stream)?;
        filled += part;
    }
    driver.synchronize_stream(stream)?;

    let mut hasher = Hasher::new(&driver, 0)?;
    let key: [u8; CHANGE_KEY_BYTES] = random(CHANGE_KEY_BYTES)
        .try_into()
        .map_err(|_| "key size")?;
    let lengths = [
        0,
        1,
        15,
        16,
        63,
        64,
        65,
        1023,
        1024,
        1025,
        2048,
        3000,
        8191,
        8192,
        8193,
        9 << 10,
        40_000,
        131_071,
        131_072,
        131_073,
        200_000,
        4 << 20,
        known as u64,
    ];
    let mut pieces: Vec<(u64, u64)> = lengths
        .iter()
        .enumerate()
        .map(|(i, &len)| (base + 16 * (i as u64 % 5), len))
        .collect();
    pieces
        .iter_mut()
        .for_each(|(at, len)| *len = (*len).min(base + known as u64 - *at));
    let bytes = |&(at, len): &(u64, u64)| &data[(at - base) as usize..(at - base + len) as usize];
    let digests = hasher.blake3(&pieces)?;
    for (piece, digest) in pieces.iter().zip(&digests) {
        let expected = blake3_reference(bytes(piece));
        if *digest != expected {
            return Err(format!("BLAKE3 of {} bytes differs from the CPU's", piece.1).into());
        }
    }
    let hashes = hasher.changes(&pieces, &key)?.to_vec();
    let blocks = pieces
        .iter()
        .flat_map(|piece| bytes(piece).chunks(CHANGE_BLOCK as usize));
    let expected: Vec<[u8; 16]> = blocks.map(|block| change_hash(block, &key)).collect();
    if hashes != expected {
        return Err("the change hash differs from the CPU's".into());
    }

    let whole: Vec<(u64, u64)> = (0..size.div_ceil(4 << 20))
        .map(|i| (base + (i << 22), (size - (i << 22)).min(4 << 20)))
        .collect();
    let rounds = if size > 1 << 28 { 5 } else { 1 };
    let blake3 = best(rounds, || drop(hasher.blake3(&whole)));
    let change = best(rounds, || {
        let _ = hasher.changes(&[(base, size)], &key).map(<[_]>::len);
    });
    let rate = |seconds: f64| size as f64 / seconds / 1e9;
    println!(
        "{{\"bytes\":{size},\"pieces_checked\":{},\"blake3_s\":{blake3:.6},\"blake3_gbs\":{:.1},\"change_s\":{change:.6},\"change_gbs\":{:.1}}}",
        pieces.len(),
        rate(blake3),
        rate(change)
    );
    Ok(())
}

fn blake3_reference(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}
