//! Barriers that are words of shared memory (`mbarrier`).
//!
//! The form of the word is internal; programs only pass it on:
//!
//! ```text
//! bit 63      62 .. 40           39 .. 20              19 .. 0
//!     phase   bytes outstanding  arrivals of a phase   arrivals still to come
//! ```
//!
//! Compiled code reads and writes the word, so that a bad address is a fault of the kernel; the functions here only
//! compute. All threads of a block run on one host thread and change places only inside calls that wait, which these
//! are not, so that no other thread comes between reading and writing. Copies are done when they are issued, so that the bytes
//! outstanding may be negative for a while: they are reported before they are expected.

/// An operation on a barrier; its number is part of the generated code.
pub mod action {
    /// A new barrier for so many arrivals.
    pub const INIT: u32 = 0;
    /// So many arrivals.
    pub const ARRIVE: u32 = 1;
    /// So many arrivals, which no later phase expects.
    pub const DROP: u32 = 2;
    /// So many bytes are to come before the phase is over.
    pub const EXPECT: u32 = 3;
    /// So many bytes have come.
    pub const COMPLETE: u32 = 4;
    /// So many bytes are to come; then one arrival.
    pub const ARRIVE_EXPECT: u32 = 5;
    /// So many bytes are to come; then one arrival, which no later phase expects.
    pub const DROP_EXPECT: u32 = 6;
}

/// Arrivals and their number per phase have 20 bits each.
const COUNT: u64 = (1 << 20) - 1;
const PHASE: u64 = 1 << 63;
const BYTES: u32 = 40;

fn pending(word: u64) -> u64 {
    word & COUNT
}

fn expected(word: u64) -> u64 {
    word >> 20 & COUNT
}

/// 23 bits with a sign.
fn bytes(word: u64) -> i64 {
    ((word << 1) as i64) >> (BYTES + 1)
}

fn word(phase: u64, bytes: i64, expected: u64, pending: u64) -> u64 {
    phase | (bytes as u64) << (BYTES + 1) >> 1 | (expected & COUNT) << 20 | pending & COUNT
}

/// What an action makes of a barrier. Its phase can be waited for by its state before, `old`.
pub extern "C" fn act(old: u64, action: u32, number: u32) -> u64 {
    let number = u64::from(number);
    let (phase, mut tx, mut all, mut left) = (old & PHASE, bytes(old), expected(old), pending(old));
    match action {
        action::INIT => return word(0, 0, number, number),
        action::ARRIVE => left = left.wrapping_sub(number),
        action::DROP => {
            left = left.wrapping_sub(number);
            all = all.wrapping_sub(number);
        }
        action::EXPECT => tx += number as i64,
        action::COMPLETE => tx -= number as i64,
        _ => {
            tx += number as i64;
            left = left.wrapping_sub(1);
            all = all.wrapping_sub(u64::from(action == action::DROP_EXPECT));
        }
    }
    let over = left & COUNT == 0 && tx == 0;
    if over {
        word(phase ^ PHASE, 0, all, all)
    } else {
        word(phase, tx, all, left)
    }
}

/// Whether the phase of `state` is over in a barrier that is `now`.
pub extern "C" fn is_over(now: u64, state: u64) -> u32 {
    u32::from((now ^ state) & PHASE != 0)
}

/// Whether the phase of this parity is over: the current one is of the other.
pub extern "C" fn is_parity_over(now: u64, parity: u32) -> u32 {
    is_over(now, u64::from(parity & 1) << 63)
}

/// Arrivals that `state` still expects.
pub extern "C" fn pending_count(state: u64) -> u32 {
    pending(state) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(at: &mut u64, action: u32, number: u32) -> u64 {
        let old = *at;
        *at = act(old, action, number);
        old
    }

    fn over(at: &u64, state: u64) -> bool {
        is_over(*at, state) != 0
    }

    #[test]
    fn a_phase_is_over_when_all_have_arrived() {
        let mut at = 77;
        apply(&mut at, action::INIT, 3);
        let first = apply(&mut at, action::ARRIVE, 1);
        assert_eq!(pending_count(first), 3);
        apply(&mut at, action::ARRIVE, 1);
        assert!(!over(&at, first));
        apply(&mut at, action::DROP, 1);
        assert!(over(&at, first));
        let second = apply(&mut at, action::ARRIVE, 2);
        assert_eq!(pending_count(second), 2, "one left for good");
        assert!(over(&at, second) && !over(&at, first));
    }

    #[test]
    fn a_phase_waits_for_bytes_too() {
        let mut at = 0;
        apply(&mut at, action::INIT, 1);
        apply(&mut at, action::COMPLETE, 4096);
        let state = apply(&mut at, action::ARRIVE_EXPECT, 8192);
        assert!(!over(&at, state));
        apply(&mut at, action::COMPLETE, 4096);
        assert!(over(&at, state));
        assert_eq!(is_parity_over(at, 0), 1);
        assert_eq!(is_parity_over(at, 1), 0);
    }
}
