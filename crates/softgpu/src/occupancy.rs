//! Occupancy: how many blocks a multiprocessor of compute capability 9.0 holds.
//!
//! Registers are allocated to warps in units of 256, shared memory to blocks in units of 128 bytes plus
//! what the system takes of each block.

use crate::attributes::{
    MAX_BLOCKS_PER_MULTIPROCESSOR, MAX_THREADS_PER_MULTIPROCESSOR, REGISTERS,
    SHARED_PER_BLOCK_OPTIN, SHARED_PER_MULTIPROCESSOR, SHARED_RESERVED, WARP,
};
use crate::exec::KernelInfo;
use crate::function::{allocated_registers, max_threads};

const REGISTER_UNIT: u32 = 256;
const SHARED_UNIT: u32 = 128;
/// Quarters of a multiprocessor, each with its share of registers.
const QUARTERS: u32 = 4;

/// What one block needs.
#[derive(Debug, Clone, Copy)]
pub struct Need {
    warps: u32,
    registers_per_warp: u32,
    shared: u32,
    /// Blocks of this size can be launched at all.
    possible: bool,
}

impl Need {
    /// Of a block of `threads` with `shared` bytes of shared memory altogether.
    pub fn new(info: &KernelInfo, threads: u32, shared: u32) -> Self {
        Self {
            warps: threads.div_ceil(WARP),
            registers_per_warp: (allocated_registers(info) * WARP).next_multiple_of(REGISTER_UNIT),
            shared: shared
                .saturating_add(SHARED_RESERVED)
                .checked_next_multiple_of(SHARED_UNIT)
                .unwrap_or(u32::MAX),
            possible: (1..=max_threads(info)).contains(&threads)
                && shared <= SHARED_PER_BLOCK_OPTIN,
        }
    }
}

/// Blocks that a multiprocessor holds at once.
pub fn active_blocks(need: &Need) -> u32 {
    if !need.possible {
        return 0;
    }
    let by_warps = MAX_THREADS_PER_MULTIPROCESSOR / WARP / need.warps;
    let warps_by_registers = REGISTERS / QUARTERS / need.registers_per_warp * QUARTERS;
    let by_registers = warps_by_registers / need.warps;
    let by_shared = SHARED_PER_MULTIPROCESSOR / need.shared;
    by_warps
        .min(by_registers)
        .min(by_shared)
        .min(MAX_BLOCKS_PER_MULTIPROCESSOR)
}

/// Shared memory each of `blocks` blocks can have.
pub fn available_shared(blocks: u32) -> u32 {
    let share = SHARED_PER_MULTIPROCESSOR / blocks / SHARED_UNIT * SHARED_UNIT;
    // What the system takes of each block is not subtracted: NVIDIA's driver answers so (seen on an H200).
    share.min(SHARED_PER_BLOCK_OPTIN)
}

/// Blocks of clusters that a multiprocessor holds at most.
const CLUSTERED_BLOCKS: u32 = 8;
/// Blocks of a cluster that every device runs.
pub const PORTABLE_CLUSTER: u32 = 8;
/// Blocks of a cluster that this device runs where the function allows it.
pub const LARGEST_CLUSTER: u32 = 16;

/// Clusters of `size` blocks that run at once. The device's multiprocessors are one group, within which a cluster may
/// lie anywhere.
pub fn active_clusters(need: &Need, multiprocessors: u32, size: u32) -> u32 {
    if size == 0 || size > LARGEST_CLUSTER {
        return 0;
    }
    active_blocks(need).min(CLUSTERED_BLOCKS) * multiprocessors / size
}

/// The block size up to `most` that keeps most threads busy (the largest of equals), and how many blocks
/// of it a multiprocessor holds.
pub fn best_block(most: u32, need: impl Fn(u32) -> Need) -> (u32, u32) {
    let first = if most < WARP {
        most
    } else {
        most / WARP * WARP
    };
    let mut sizes: Vec<u32> = (1..=first / WARP).rev().map(|warps| warps * WARP).collect();
    if sizes.is_empty() {
        sizes.push(first);
    }
    let rated = sizes
        .into_iter()
        .map(|block| (block, active_blocks(&need(block))));
    let best = rated.reduce(|best, next| {
        if next.0 * next.1 > best.0 * best.1 {
            next
        } else {
            best
        }
    });
    best.unwrap_or((0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(registers: u32, static_shared: u32) -> KernelInfo {
        KernelInfo {
            name: String::new(),
            params: Vec::new(),
            param_bytes: 0,
            static_shared,
            local_bytes: 0,
            const_bytes: 0,
            registers,
            max_threads: 1024,
            target: 90,
            ptx_version: 80,
            refused: None,
        }
    }

    #[test]
    fn threads_registers_and_shared_memory_each_limit() {
        let blocks = |registers, threads, shared| {
            active_blocks(&Need::new(&kernel(registers, 0), threads, shared))
        };
        assert_eq!(blocks(16, 256, 0), 8);
        assert_eq!(blocks(16, 32, 0), 32);
        assert_eq!(blocks(64, 256, 0), 4);
        assert_eq!(blocks(16, 256, 48 << 10), 4);
        assert_eq!(blocks(16, 256, 227 << 10), 1);
        assert_eq!(blocks(255, 1024, 0), 0);
        assert_eq!(blocks(16, 256, 228 << 10), 0);
    }

    #[test]
    fn clusters_take_at_most_eight_blocks_of_a_multiprocessor() {
        let clusters = |threads, shared, size| {
            active_clusters(&Need::new(&kernel(16, 0), threads, shared), 16, size)
        };
        assert_eq!(clusters(32, 0, 1), 128);
        assert_eq!(clusters(256, 48 << 10, 4), 16);
        assert_eq!(clusters(1024, 227 << 10, 16), 1);
        assert_eq!(clusters(256, 0, 3), 42);
        assert_eq!(clusters(256, 300 << 10, 2), 0);
        assert_eq!(clusters(256, 0, 17), 0);
    }

    /// As an H200 answered.
    #[test]
    fn shared_memory_is_split_among_blocks_as_the_driver_answers() {
        let shares = [1, 2, 3, 5, 7, 8, 16, 31, 32].map(available_shared);
        let seen = [
            232448, 116736, 77824, 46592, 33280, 29184, 14592, 7424, 7296,
        ];
        assert_eq!(shares, seen);
    }

    #[test]
    fn the_best_block_fills_the_multiprocessor() {
        let info = kernel(32, 0);
        assert_eq!(
            best_block(1024, |block| Need::new(&info, block, 0)),
            (1024, 2)
        );
        assert_eq!(
            best_block(768, |block| Need::new(&info, block, 0)),
            (512, 4)
        );
    }
}
