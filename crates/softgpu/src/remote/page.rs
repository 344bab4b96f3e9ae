//! The page in which a process with this driver shows its state to callers in other processes, at the same address in
//! each.
//!
//! | offset | bytes | field | written by |
//! | --- | --- | --- | --- |
//! | 0 | 8 | magic, last of all | helper |
//! | 8 | 4 | version | helper |
//! | 12 | 4 | state, `CU_PROCESS_STATE_*` | process |
//! | 16 | 128 | 16 answers: bits 32 to 55 the number of the command, 0 to 31 its `CUresult` and one | helper |
//! | 144 | 2048 | 64 pairs of UUIDs, for the command that restores | caller |
//!
//! A child made by `fork` has zeros here: it has no helper thread, and cannot use CUDA.

use std::mem::offset_of;
use std::ptr::with_exposed_provenance_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use fermata_abi::sys::driver as cu;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::exec::WINDOW_BASE;

/// Where it is: just below what kernels reach, and far from everything that the kernel places by itself.
pub const PLACE: u64 = WINDOW_BASE - (1 << 16);
/// What it begins with.
pub const MAGIC: u64 = u64::from_le_bytes(*b"FERMCKPT");
/// Its layout.
pub const VERSION: u32 = 1;
/// Commands whose answers are kept.
pub const ANSWERS: usize = 16;
/// The most pairs.
pub const PAIRS: usize = 64;
/// Bytes of it.
const BYTES: usize = 4096;

/// Where fields are.
pub const STATE_AT: u64 = offset_of!(Page, state) as u64;
/// See the table.
pub const ANSWERS_AT: u64 = offset_of!(Page, answers) as u64;
/// See the table.
pub const PAIRS_AT: u64 = offset_of!(Page, pairs) as u64;

/// See the module.
#[repr(C)]
pub struct Page {
    magic: AtomicU64,
    version: AtomicU32,
    state: AtomicU32,
    answers: [AtomicU64; ANSWERS],
    pairs: [[AtomicU64; 4]; PAIRS],
}

static PAGE: OnceLock<Option<&'static Page>> = OnceLock::new();

/// The page of this process, made when it is asked for first; none where its address is taken.
pub fn own() -> Option<&'static Page> {
    *PAGE.get_or_init(map)
}

/// Shows how the process stands, if it has a page.
pub fn show(state: cu::CUprocessState) {
    if let Some(page) = PAGE.get().copied().flatten() {
        page.state.store(state, Ordering::SeqCst);
    }
}

fn map() -> Option<&'static Page> {
    const { assert!(size_of::<Page>() <= BYTES) };
    let place = with_exposed_provenance_mut(usize::try_from(PLACE).ok()?);
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: NOREPLACE leaves mappings alone that are there.
    let got = unsafe { mmap_anonymous(place, BYTES, access, flags) }.ok()?;
    if got != place {
        // SAFETY: it was mapped just above by a kernel that took the address for a hint, and nothing knows of it.
        let _ = unsafe { munmap(got, BYTES) };
        return None;
    }
    // SAFETY: the page was mapped just above; the advice is for children.
    unsafe { madvise(got, BYTES, Advice::LinuxWipeOnFork) }.ok()?;
    // SAFETY: zeros are a page of atomics, the mapping is as large, aligned to a page, and stays for ever.
    Some(unsafe { &*got.cast::<Page>() })
}

impl Page {
    /// Lets callers in other processes find it.
    pub fn publish(&self) {
        self.version.store(VERSION, Ordering::SeqCst);
        self.magic.store(MAGIC, Ordering::SeqCst);
    }

    /// Leaves the answer to a command.
    pub fn answer(&self, number: u32, code: cu::CUresult) {
        let slot = &self.answers[number as usize % ANSWERS];
        slot.store(answered(number, code), Ordering::SeqCst);
    }

    /// The first `count` pairs that a caller has left: UUIDs, old and new.
    pub fn pairs(&self, count: usize) -> Vec<([u8; 16], [u8; 16])> {
        let uuid = |words: &[AtomicU64]| {
            let mut bytes = [0; 16];
            for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
                to.copy_from_slice(&word.load(Ordering::SeqCst).to_le_bytes());
            }
            bytes
        };
        let pairs = self.pairs.iter().take(count);
        pairs.map(|it| (uuid(&it[..2]), uuid(&it[2..]))).collect()
    }
}

/// An answer as the page holds it: never 0.
pub fn answered(number: u32, code: cu::CUresult) -> u64 {
    u64::from(number) << 32 | u64::from(code.wrapping_add(1))
}
