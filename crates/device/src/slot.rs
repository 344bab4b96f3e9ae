//! Slots of addresses, one for each context after a worker's first.
//!
//! A driver keeps the code and variables of modules in ranges that it takes when it makes a context, from the top of the free
//! addresses. A worker's first context comes before everything else, so its range is the same in each process. A later one's
//! would depend on all that was mapped before it, and a program that knows a variable's address could not be restored. So
//! everything above the context's slot is taken while it is made:
//!
//! ```text
//!              slot 2      slot 1   0x7a00_0000_0000                     stack
//!  ──────────────┴───────────┴────────┴───▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓────┴──
//!                     range ◄┘         the gaps above the slot, without access, until the context is made
//! ```
//! (Measured with the driver 580 on two H100: docs/decisions/049-contexts-in-slots.md.)

use std::ffi::c_void;
use std::fs;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Below this the first slot begins; further ones follow downward.
const TOP: u64 = 0x7a00_0000_0000;
/// Bytes of a slot: far more than a driver takes for a context.
const BYTES: u64 = 1 << 40;
/// After so many they begin from the top again: below lies the program that the worker is.
const SLOTS: u64 = 32;

/// Runs `make` while the kernel gives addresses below the end of slot `number` (from 1) alone. Where the gaps above cannot be
/// taken, it runs all the same.
pub fn in_slot<T>(number: u32, make: impl FnOnce() -> T) -> T {
    let plugs = plugs_above(end_of(number));
    let made = make();
    drop(plugs);
    made
}

/// The first address above a slot.
fn end_of(number: u32) -> u64 {
    TOP - u64::from(number.saturating_sub(1)) % SLOTS * BYTES
}

/// A range that nobody else gets, as long as this is there.
struct Plug {
    start: u64,
    bytes: u64,
}

impl Plug {
    /// Takes a range that is free; none if it is not, or the process may have no more.
    fn take(start: u64, end: u64) -> Option<Self> {
        let bytes = end - start;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: without a replacement the mapping overlaps nothing, and nobody reads it.
        let mapped = unsafe {
            mmap_anonymous(
                start as *mut c_void,
                usize::try_from(bytes).ok()?,
                ProtFlags::empty(),
                flags,
            )
        };
        let plug = Self {
            start: mapped.ok()? as u64,
            bytes,
        };
        // A kernel that does not know the flag may have put it elsewhere.
        (plug.start == start).then_some(plug)
    }
}

impl Drop for Plug {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's own, and nobody refers to it.
        let _ = unsafe { munmap(self.start as *mut c_void, self.bytes as usize) };
    }
}

/// Plugs for all gaps between this address and the stack.
fn plugs_above(end: u64) -> Vec<Plug> {
    // Without it the context comes where the kernel puts it.
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    gaps(&maps, end)
        .into_iter()
        .filter_map(|(from, to)| Plug::take(from, to))
        .collect()
}

/// The gaps above `end` in a process's list of mappings, up to the last mapping below the stack: what is free above that the
/// kernel keeps for the stack to grow.
fn gaps(maps: &str, end: u64) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    let mut free = end;
    for line in maps.lines().take_while(|line| !line.ends_with("[stack]")) {
        let range = line
            .split_whitespace()
            .next()
            .and_then(|it| it.split_once('-'));
        let number = |text| u64::from_str_radix(text, 16).ok();
        let Some((Some(from), Some(to))) = range.map(|(from, to)| (number(from), number(to)))
        else {
            continue;
        };
        if from > free {
            gaps.push((free, from));
        }
        free = free.max(to);
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the kernel puts the next mapping.
    fn next_address() -> u64 {
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
        let mapped = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                64 << 20,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let start = mapped.expect("addresses");
        // SAFETY: the mapping has just been made, and nobody refers to it.
        unsafe { munmap(start, 64 << 20) }.expect("unmapped");
        start as u64
    }

    #[test]
    fn what_is_made_in_a_slot_lies_at_its_top_and_later_mappings_do_not() {
        for slot in [1, 3, 33] {
            let inside = in_slot(slot, next_address);
            let end = end_of(slot);
            assert!(inside < end && end - inside < BYTES, "{slot}: {inside:#x}");
        }
        assert_eq!(end_of(33), end_of(1));
        assert!(next_address() > TOP, "the plugs are gone");
    }

    #[test]
    fn gaps_lie_between_mappings_and_below_the_stack() {
        let maps = "1000-2000 r--p 0 0:0 0 /x\n\
                    3000-5000 rw-p 0 0:0 0\n\
                    7000-8000 rw-p 0 0:0 0\n\
                    8000-9000 rw-p 0 0:0 0\n\
                    f000-f800 rw-p 0 0:0 0 [stack]\n\
                    ff00-ff80 r-xp 0 0:0 0 [vsyscall]\n";
        assert_eq!(gaps(maps, 0x2800), [(0x2800, 0x3000), (0x5000, 0x7000)]);
        assert_eq!(gaps(maps, 0x3800), [(0x5000, 0x7000)]);
        assert_eq!(gaps(maps, 0x5800), [(0x5800, 0x7000)]);
        assert_eq!(gaps(maps, 0xa000), []);
    }
}
