//! Hashing device memory where it is, by our own kernels (folder `kernels/`).
//!
//! Two hashes for two questions. [`Hasher::blake3`] names content: the digest the CPU gives for the
//! same bytes. [`Hasher::changes`] tells, within one checkpoint or pause, whether a 64 KiB block is still what
//! it was, or has come as it was: keyed, at memory speed, never stored.

mod scratch;
mod sums;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fermata_abi::sys::driver::CU_STREAM_NON_BLOCKING;

use crate::driver::Result;
use crate::{
    Driver, DriverError, FunctionHandle, Grid, HIGHEST_PRIORITY, KernelLaunch, PinnedBuffer,
    PinnedPool, StreamHandle,
};
use scratch::Scratch;

pub use sums::{CHANGE_BLOCK, CHANGE_KEY_BYTES};

/// Longest piece that [`Hasher::blake3`] takes, bytes.
pub const LONGEST_PIECE: u64 = 1 << 31;

const BLAKE3: &[u8] = include_bytes!("../../../../kernels/blake3.ptx");
const CHANGE: &[u8] = include_bytes!("../../../../kernels/change.ptx");
/// Bytes of a tile of the BLAKE3 kernel, and of what it leaves to be joined: 16 values of 32 bytes.
const TILE: u64 = 128 * 1024;
const TILE_RESULT: usize = 512;
/// Tiles that are hashed with one launch, 8 GiB: 32 MiB of scratch memory, whatever the pieces are.
const BATCH: u64 = if cfg!(test) { 4 } else { 1 << 16 };
const THREADS: u32 = 128;
const CHANGE_THREADS: u32 = 256;
/// A job as the kernels read it: BLAKE3's is 16 bytes, the change hash's 24.
const BLAKE3_JOB: usize = 16;
const CHANGE_JOB: usize = 24;
/// The least memory for results.
const RESULTS: usize = 1 << 20;
const SHARED_MEMORY_ATTRIBUTE: i32 =
    fermata_abi::sys::driver::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as i32;

/// A piece of device memory: its address, a multiple of 16, and its bytes.
pub type Piece = (u64, u64);

/// The kernels, loaded into one context, with their scratch memory. Every call needs that context to be
/// current.
pub struct Hasher {
    driver: Arc<Driver>,
    stream: StreamHandle,
    tiles: FunctionHandle,
    roots: FunctionHandle,
    change: FunctionHandle,
    multiprocessors: u32,
    scratch: Scratch,
    /// Host data while it is hashed.
    passing: Scratch,
    results: Results,
}

/// Pinned memory to which the kernels write their results, 10 MB for the change hashes of 40 GiB. A copy of them to the host would
/// wait behind all copies that are under way: a device does those of one direction one after the other.
struct Results {
    pool: PinnedPool,
    buffer: PinnedBuffer,
}

impl Results {
    /// Memory for at least so many bytes. It is never given back: what grows leaves at most as much behind.
    fn of(driver: &Driver, bytes: usize) -> Result<Self> {
        let pool = PinnedPool::new(driver, 1, bytes.next_power_of_two().max(RESULTS))?;
        let buffer = pool.take(Duration::ZERO);
        let buffer = buffer.ok_or_else(|| invalid("no pinned memory"))?;
        Ok(Self { pool, buffer })
    }
}

impl Hasher {
    /// Loads the kernels into the current context, which belongs to device `index`.
    ///
    /// # Errors
    /// What the driver says; a compiler's log is in the error's name.
    pub fn new(driver: &Arc<Driver>, index: u32) -> Result<Self> {
        let load = |image| {
            driver.load_module(image).map_err(|refused| DriverError {
                name: format!("{}: {}", refused.error.name, refused.log).into(),
                ..refused.error
            })
        };
        let (blake3, change) = (load(BLAKE3)?, load(CHANGE)?);
        let change = driver.function(change, "fermata_change_hash")?;
        driver.set_function_attribute(change, SHARED_MEMORY_ATTRIBUTE, CHANGE_KEY_BYTES as i32)?;
        Ok(Hasher {
            driver: Arc::clone(driver),
            // Copies wait for what is hashed beside a running program.
            stream: driver.create_stream(CU_STREAM_NON_BLOCKING, HIGHEST_PRIORITY)?,
            tiles: driver.function(blake3, "fermata_blake3_tiles")?,
            roots: driver.function(blake3, "fermata_blake3_roots")?,
            change,
            multiprocessors: driver.multiprocessors(index)?.max(1),
            scratch: Scratch::new(driver, index),
            passing: Scratch::new(driver, index),
            results: Results::of(driver, RESULTS)?,
        })
    }

    /// Whether the context in which it was made is still there ([`PinnedPool::lives`]). If not, nothing of it may be used,
    /// nor given back: its addresses may be somebody else's. A context must be current.
    pub fn lives(&self) -> bool {
        self.results.pool.lives(&self.driver)
    }

    /// The BLAKE3 digest of every piece.
    ///
    /// # Errors
    /// What the driver says; pieces longer than [`LONGEST_PIECE`] are `CUDA_ERROR_INVALID_VALUE`.
    pub fn blake3(&mut self, pieces: &[Piece]) -> Result<Vec<[u8; 32]>> {
        if pieces.is_empty() {
            return Ok(Vec::new());
        }
        let batches = batches(pieces)?;
        let mut jobs = Vec::with_capacity(pieces.len() * BLAKE3_JOB);
        for batch in &batches {
            let mut tile = 0u32;
            for (address, bytes) in &pieces[batch.pieces.clone()] {
                jobs.extend_from_slice(&address.to_le_bytes());
                jobs.extend_from_slice(&(*bytes as u32).to_le_bytes());
                jobs.extend_from_slice(&tile.to_le_bytes());
                tile += tiles(*bytes) as u32;
            }
        }
        let most = batches.iter().map(|it| it.tiles as usize).max();
        let groups = most.unwrap_or(0) * TILE_RESULT;
        let digest_bytes = pieces.len() * 32;
        let digests_at = self.room_for_results(digest_bytes)?;
        let [jobs_at, groups_at] = self.scratch.place([jobs.len(), groups])?;
        self.driver.copy_from_slice(jobs_at, &jobs, self.stream)?;
        for batch in &batches {
            let (first, count) = (batch.pieces.start as u64, batch.pieces.len() as u32);
            let job_at = jobs_at + first * BLAKE3_JOB as u64;
            let params = Params::new()
                .address(job_at)
                .word(count)
                .address(groups_at)
                .word(1);
            self.launch(self.tiles, batch.tiles, THREADS, 0, &params)?;
            let params = Params::new()
                .address(job_at)
                .word(count)
                .address(groups_at)
                .address(digests_at + first * 32)
                .word(1);
            self.launch(self.roots, count, THREADS, 0, &params)?;
        }
        self.driver.synchronize_stream(self.stream)?;
        Ok(self.results.buffer[..digest_bytes].as_chunks().0.to_vec())
    }

    /// The BLAKE3 digest of every `block` bytes of host memory, which is streamed over the device; the last block may be
    /// shorter. `block` is a multiple of 16.
    ///
    /// # Errors
    /// As [`Hasher::blake3`].
    pub fn blake3_of_host(&mut self, bytes: &[u8], block: usize) -> Result<Vec<[u8; 32]>> {
        if bytes.is_empty() || block == 0 || !block.is_multiple_of(16) {
            return match bytes.is_empty() {
                true => Ok(Vec::new()),
                false => Err(invalid("a block that is no multiple of 16")),
            };
        }
        let [at] = self.passing.place([bytes.len()])?;
        self.driver.copy_from_slice(at, bytes, self.stream)?;
        let starts = (0..bytes.len()).step_by(block);
        let pieces: Vec<Piece> = starts
            .map(|start| (at + start as u64, block.min(bytes.len() - start) as u64))
            .collect();
        // Its result is waited for, so nothing reads `bytes` or what is placed when it returns.
        self.blake3(&pieces)
    }

    /// The keyed hash of every [`CHANGE_BLOCK`] of every piece, in order, 16 bytes each. They lie in pinned memory, to
    /// which the kernel writes them while it reads, until the next call.
    ///
    /// # Errors
    /// What the driver says.
    pub fn changes(
        &mut self,
        pieces: &[Piece],
        key: &[u8; CHANGE_KEY_BYTES],
    ) -> Result<&[[u8; 16]]> {
        let mut jobs = Vec::with_capacity(pieces.len() * CHANGE_JOB);
        let mut blocks = 0u64;
        for &(address, bytes) in pieces.iter().filter(|(_, bytes)| *bytes > 0) {
            for word in [address, bytes, blocks] {
                jobs.extend_from_slice(&word.to_le_bytes());
            }
            blocks += bytes.div_ceil(CHANGE_BLOCK);
        }
        if blocks == 0 {
            return Ok(&[]);
        }
        let count = (jobs.len() / CHANGE_JOB) as u32;
        let hash_bytes = blocks as usize * 16;
        let hashes_at = self.room_for_results(hash_bytes)?;
        let [job_at, key_at] = self.scratch.place([jobs.len(), CHANGE_KEY_BYTES])?;
        self.driver.copy_from_slice(job_at, &jobs, self.stream)?;
        self.driver.copy_from_slice(key_at, key, self.stream)?;
        let params = Params::new()
            .address(job_at)
            .word(count)
            .address(blocks)
            .address(key_at)
            .address(hashes_at);
        let grid = blocks.min(u64::from(self.multiprocessors) * 2) as u32;
        self.launch(
            self.change,
            grid,
            CHANGE_THREADS,
            CHANGE_KEY_BYTES as u32,
            &params,
        )?;
        self.driver.synchronize_stream(self.stream)?;
        Ok(self.results.buffer[..hash_bytes].as_chunks().0)
    }

    /// The address of memory for so many bytes of results.
    fn room_for_results(&mut self, bytes: usize) -> Result<u64> {
        if self.results.buffer.len() < bytes {
            self.results = Results::of(&self.driver, bytes)?;
        }
        Ok(self.results.buffer.address())
    }

    fn launch(
        &self,
        function: FunctionHandle,
        grid: u32,
        block: u32,
        shared: u32,
        params: &Params,
    ) -> Result<()> {
        let size = Grid {
            grid: [grid, 1, 1],
            block: [block, 1, 1],
            shared,
        };
        self.driver.launch(
            &KernelLaunch {
                function,
                size,
                params: &params.0,
                attributes: &[],
            },
            self.stream,
        )
    }
}

/// Neighbouring pieces that one launch hashes.
#[derive(Debug, PartialEq, Eq)]
struct Batch {
    pieces: Range<usize>,
    tiles: u32,
}

fn tiles(bytes: u64) -> u64 {
    bytes.div_ceil(TILE).max(1)
}

/// All pieces, in batches of [`BATCH`] tiles, or of one piece that has more.
fn batches(pieces: &[Piece]) -> Result<Vec<Batch>> {
    let mut all: Vec<Batch> = Vec::new();
    for (index, (_, bytes)) in pieces.iter().enumerate() {
        if *bytes > LONGEST_PIECE {
            return Err(invalid("a piece is longer than 2 GiB"));
        }
        let more = tiles(*bytes);
        match all.last_mut() {
            Some(last) if u64::from(last.tiles) + more <= BATCH => {
                last.pieces.end = index + 1;
                last.tiles += more as u32;
            }
            _ => all.push(Batch {
                pieces: index..index + 1,
                tiles: more as u32,
            }),
        }
    }
    Ok(all)
}

fn invalid(what: &str) -> DriverError {
    let code = fermata_abi::sys::driver::CUDA_ERROR_INVALID_VALUE;
    DriverError {
        call: "hashing device memory",
        code,
        name: what.to_owned().into(),
    }
}

/// A parameter block: values at their natural alignment.
struct Params(Vec<u8>);

impl Params {
    fn new() -> Self {
        Params(Vec::new())
    }

    fn address(mut self, value: u64) -> Self {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn word(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
}

/// The change hash as the kernel computes it, on the processor.
///
/// `block` is at most [`CHANGE_BLOCK`] bytes; what is missing counts as zeros.
pub fn change_hash(block: &[u8], key: &[u8; CHANGE_KEY_BYTES]) -> [u8; 16] {
    let sums = match block.try_into() {
        Ok(block) => sums::sums(block, key),
        Err(_) => {
            let mut whole = Box::new([0; CHANGE_BLOCK as usize]);
            whole
                .iter_mut()
                .zip(block)
                .for_each(|(to, from)| *to = *from);
            sums::sums(&whole, key)
        }
    };
    let mut out = [0; 16];
    let halves = out.as_chunks_mut::<8>().0.iter_mut();
    halves
        .zip(sums)
        .for_each(|(to, sum)| *to = sum.to_le_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_hashed_in_batches_of_bounded_size() {
        let of = |lengths: &[u64]| {
            let pieces: Vec<Piece> = lengths.iter().map(|bytes| (0, *bytes)).collect();
            batches(&pieces).map(|all| {
                let all = all.into_iter();
                all.map(|it| (it.pieces, it.tiles)).collect::<Vec<_>>()
            })
        };
        assert_eq!(of(&[]), Ok(vec![]));
        let lengths = [0, TILE, 2 * TILE, 1, 9 * TILE, TILE + 1];
        let found = [(0..3, 4), (3..4, 1), (4..5, 9), (5..6, 2)];
        assert_eq!(of(&lengths), Ok(found.to_vec()));
        assert!(of(&[1, LONGEST_PIECE + 1]).is_err());
    }

    #[test]
    fn one_changed_bit_anywhere_changes_the_hash() {
        let mut key = [0; CHANGE_KEY_BYTES];
        let mut state = 1u32;
        for byte in &mut key {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (state >> 24) as u8;
        }
        let block = vec![7; CHANGE_BLOCK as usize];
        let hash = change_hash(&block, &key);
        for at in [0, 1, 15, 16, 4095, 32_768, 65_535] {
            let mut other = block.clone();
            other[at] ^= 0x10;
            assert_ne!(change_hash(&other, &key), hash, "byte {at}");
        }
        assert_eq!(change_hash(&block[..0], &key), change_hash(&[0; 100], &key));
    }
}
