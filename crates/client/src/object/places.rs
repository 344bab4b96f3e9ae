//! Chooses addresses for pinned and managed memory.
//!
//! ```text
//!   HOST_BASE ── the driver's own shared memory ── FIRST ── regions ──► HOST_END
//!                                                    ▲                     │
//!                                                    └─────── again ◄──────┘
//! ```
//! Addresses are used again as late as possible, and only where no known memory lies.

use fermata_abi::op::{Address, HOST_BASE, HOST_END};
use parking_lot::Mutex;

use crate::object::mirror::Mirror;

/// Regions begin at multiples of this.
const STEP: u64 = 64 << 10;
/// Address of the first region; drivers put their own shared memory at the beginning of the range.
const FIRST: Address = Address::from_raw(HOST_BASE.raw().midpoint(HOST_END.raw()));

/// Where the next search begins.
static NEXT: Mutex<Address> = Mutex::new(FIRST);

/// The next addresses for a region of `size` bytes, where no known memory lies.
pub fn next(memory: &Mirror, size: u64) -> Option<Address> {
    let step = size.next_multiple_of(STEP);
    let mut next = NEXT.lock();
    let place = find(*next, step, |at| memory.end_of_overlap(at, step))?;
    *next = place + step;
    Some(place)
}

/// Leaves out the next addresses for so many regions of `size` bytes.
pub fn skip(size: u64, regions: u64) {
    let bytes = size.next_multiple_of(STEP).saturating_mul(regions);
    let mut next = NEXT.lock();
    *next = next.saturating_add(bytes);
}

/// The first place for `step` bytes from `from` on, or else from the beginning on. `taken` says where the memory ends that lies
/// in a place.
fn find(from: Address, step: u64, taken: impl Fn(Address) -> Option<Address>) -> Option<Address> {
    let (mut at, mut again) = (from, false);
    loop {
        let fits = at.checked_add(step).is_some_and(|end| end <= HOST_END);
        match (fits, again) {
            (_, true) if !fits || at >= from => return None,
            (false, _) => (at, again) = (FIRST, true),
            (true, _) => match taken(at) {
                Some(end) => at = end.next_multiple_of(STEP),
                None => return Some(at),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: u64 = (HOST_END.raw() - FIRST.raw()) / STEP;

    fn at(step: u64) -> Address {
        FIRST + step * STEP
    }

    #[test]
    fn the_search_begins_again_behind_the_drivers_own_memory() {
        let free = |_| None;
        assert_eq!(find(FIRST, STEP, free), Some(FIRST));
        assert_eq!(find(at(STEPS - 2), 2 * STEP, free), Some(at(STEPS - 2)));
        assert_eq!(find(at(STEPS - 2), 3 * STEP, free), Some(FIRST));
        assert_eq!(find(HOST_END, STEP, free), Some(FIRST));
        assert_eq!(find(HOST_END + 5 * STEP, STEP, free), Some(FIRST));
        assert_eq!(find(FIRST, (STEPS + 1) * STEP, free), None);
    }

    /// One large block in the way takes one step, not one for each place in it.
    #[test]
    fn known_memory_is_passed_at_once() {
        let looks = std::cell::Cell::new(0);
        let large = (at(1), at(STEPS / 2) + 1);
        let taken = |place: Address| {
            looks.set(looks.get() + 1);
            (place < large.1 && place + 2 * STEP > large.0).then_some(large.1)
        };
        assert_eq!(find(FIRST, 2 * STEP, taken), Some(at(STEPS / 2 + 1)));
        assert_eq!(looks.get(), 2);
    }

    #[test]
    fn a_full_range_ends_the_search() {
        let all = |_| Some(HOST_END);
        assert_eq!(find(FIRST, STEP, all), None);
        assert_eq!(find(at(7), STEP, all), None);
        // Only what was freed at the beginning is left.
        let rest = |place: Address| (place != FIRST).then_some(HOST_END);
        assert_eq!(find(at(7), STEP, rest), Some(FIRST));
    }
}
