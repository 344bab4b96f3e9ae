//! What restores of an image have learnt: the memory for which the program waited, window by window, so that the next restore brings it
//! before the program asks. It finds what the working set cannot know, pages that are only read.
//!
//! | bytes | what |
//! | --- | --- |
//! | 8 | `FERMLRNT` |
//! | each process: 8, 8 | its number in the image, and how many windows follow |
//! | each window: 8 | its address, a multiple of 64 KiB; the first to be brought comes first |
//!
//! All numbers are little-endian. It is advice: what is not understood, and what is no page of the image, is passed over.

use std::collections::{BTreeMap, HashSet};

use crate::working_set::WINDOW;

const MAGIC: &[u8; 8] = b"FERMLRNT";
/// Windows of a process at most: bringing them takes about 10 ms.
const MOST: usize = 512;
/// No process has memory from here on.
const END: u64 = 1 << 57;

/// Windows by the process's number in the image, the first to be brought first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Learnt(BTreeMap<u32, Vec<u64>>);

impl Learnt {
    /// What these bytes say; nothing if they cannot be understood.
    pub fn decode(bytes: &[u8]) -> Self {
        let body = bytes.strip_prefix(MAGIC);
        body.and_then(Self::of_body).unwrap_or_default()
    }

    fn of_body(body: &[u8]) -> Option<Self> {
        let (words, rest) = body.as_chunks::<8>();
        let mut words = words.iter().map(|it| u64::from_le_bytes(*it));
        let mut all = BTreeMap::new();
        while let Some(pid) = words.next() {
            let count = usize::try_from(words.next()?).ok()?;
            let windows: Vec<u64> = words.by_ref().take(count).collect();
            let right = |it: &u64| it.is_multiple_of(WINDOW) && *it < END;
            if count > MOST || windows.len() != count || !windows.iter().all(right) {
                return None;
            }
            all.insert(u32::try_from(pid).ok()?, windows);
        }
        rest.is_empty().then_some(Self(all))
    }

    /// The bytes that say it.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for (pid, windows) in &self.0 {
            bytes.extend(u64::from(*pid).to_le_bytes());
            bytes.extend((windows.len() as u64).to_le_bytes());
            bytes.extend(windows.iter().flat_map(|it| it.to_le_bytes()));
        }
        bytes
    }

    /// The windows of a process.
    pub fn of(&self, pid: u32) -> &[u64] {
        self.0.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// The processes of which something is known.
    pub fn processes(&self) -> impl Iterator<Item = u32> {
        self.0.keys().copied()
    }

    /// A process has waited for these windows, in this order: they come first from now on, and what is too much is forgotten from the
    /// end.
    pub fn add(&mut self, pid: u32, waited: &[u64]) {
        if waited.is_empty() {
            return;
        }
        let all = self.0.entry(pid).or_default();
        let mut seen = HashSet::new();
        let old = std::mem::take(all);
        let new = waited.iter().map(|it| it & !(WINDOW - 1));
        all.extend(new.chain(old).filter(|it| seen.insert(*it)).take(MOST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_waited_for_last_comes_first_and_too_much_is_forgotten() {
        let mut learnt = Learnt::default();
        learnt.add(7, &[2 * WINDOW, WINDOW + 4096, WINDOW]);
        learnt.add(7, &[3 * WINDOW + 1, 2 * WINDOW + 9]);
        learnt.add(8, &[]);
        assert_eq!(learnt.of(7), [3, 2, 1].map(|it| it * WINDOW));
        assert_eq!(learnt.processes().collect::<Vec<_>>(), [7]);
        let many: Vec<u64> = (100..100 + MOST as u64).map(|it| it * WINDOW).collect();
        learnt.add(7, &many);
        assert_eq!(learnt.of(7), many);
    }

    #[test]
    fn what_is_said_is_understood_and_anything_else_is_passed_over() {
        assert_eq!(Learnt::decode(&[]), Learnt::default());
        let mut learnt = Learnt::default();
        learnt.add(7, &[WINDOW, 9 * WINDOW]);
        learnt.add(9, &[0]);
        let whole = learnt.encode();
        assert_eq!(Learnt::decode(&whole), learnt);
        assert_eq!(Learnt::decode(&whole[..whole.len() - 1]), Learnt::default());
        for (at, byte) in [(0, 0), (15, 1), (16, 0xff), (23, 1), (24, 1), (31, 0xff)] {
            let mut odd = whole.clone();
            odd[at] = byte;
            assert_eq!(Learnt::decode(&odd), Learnt::default(), "byte {at}");
        }
    }
}
