//! Bounds of what a configuration may ask for.

/// Smallest and largest block, in bytes.
pub const BLOCK_BYTES: std::ops::RangeInclusive<u32> = 16 << 10..=4 << 20;

/// Longest time that can be asked for, in seconds.
pub(super) const LONGEST: f64 = 1e9;

/// Most ranks of a group of level 3.
pub(super) const LARGEST_GROUP: u32 = 64;
