//! Multiprocessors of a device, named by how a program came by them.
//!
//! A driver hands out multiprocessors as opaque bytes, which mean nothing to another driver. So operations and stored state
//! name them by the splits that lead to them, which the worker repeats:
//!
//! ```text
//!   all of a device ─ split ─ parts 0, 1 ─ (a green context of these) ─ split ─ part 0 ...
//!                     └──── SmCut ────┘                               └─── SmCut ───┘
//! ```
//! A driver splits only what a device or a green context has (CUDA driver API, `cuDevSmResourceSplitByCount`), so each cut
//! but the first is one of a green context with the parts of the cut before.

use serde::{Deserialize, Serialize};

/// In [`SmCut::parts`]: what a split leaves over.
pub const SM_REST: u32 = u32::MAX;

/// The most cuts that lead to multiprocessors.
const MOST_CUTS: usize = 64;

/// The most groups that a split makes: more than any device has multiprocessors.
pub const SM_GROUPS: u32 = 1024;

/// How a driver is asked to split multiprocessors, as `cuDevSmResourceSplitByCount`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SmSplit {
    /// Groups that are wanted.
    pub groups: u32,
    /// `CU_DEV_SM_RESOURCE_SPLIT_*`.
    pub flags: u32,
    /// Multiprocessors that each group needs.
    pub minimum: u32,
}

/// A split and what is taken of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SmCut {
    /// The split.
    pub split: SmSplit,
    /// Groups by index, ascending; [`SM_REST`] is the rest.
    pub parts: Vec<u32>,
}

/// Multiprocessors of a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SmResource {
    /// Index of the device.
    pub device: u32,
    /// From the whole device to these; none for all of it.
    pub cuts: Vec<SmCut>,
}

impl SmResource {
    /// All multiprocessors of a device.
    pub fn whole(device: u32) -> Self {
        Self {
            device,
            cuts: Vec::new(),
        }
    }

    /// One part of a split of these; `None` if there are too many cuts.
    pub fn part(&self, split: SmSplit, part: u32) -> Option<Self> {
        let mut cuts = self.cuts.clone();
        let parts = vec![part];
        cuts.push(SmCut { split, parts });
        (cuts.len() <= MOST_CUTS).then_some(Self { cuts, ..*self })
    }

    /// Several resources as one; `None` if they are not parts of one split, or one is given twice.
    pub fn together(all: &[Self]) -> Option<Self> {
        let (first, others) = all.split_first()?;
        let mut sum = first.clone();
        for other in others {
            let (last, path) = other.cuts.split_last()?;
            let (into, own_path) = sum.cuts.split_last_mut()?;
            if sum.device != other.device || *own_path != *path || into.split != last.split {
                return None;
            }
            into.parts.extend(&last.parts);
        }
        if let Some(last) = sum.cuts.last_mut() {
            last.parts.sort_unstable();
        }
        sum.is_sound().then_some(sum)
    }

    /// What the last split was made of, and the split; `None` for a whole device.
    pub fn origin(&self) -> Option<(Self, &SmCut)> {
        let (last, path) = self.cuts.split_last()?;
        let cuts = path.to_vec();
        Some((Self { cuts, ..*self }, last))
    }

    /// Whether its lists are such as a program can have made.
    pub fn is_sound(&self) -> bool {
        let is_sound = |cut: &SmCut| {
            let known = |part: &u32| *part < cut.split.groups || *part == SM_REST;
            cut.split.groups <= SM_GROUPS
                && !cut.parts.is_empty()
                && cut.parts.is_sorted_by(|a, b| a < b)
                && cut.parts.iter().all(known)
        };
        self.cuts.len() <= MOST_CUTS && self.cuts.iter().all(is_sound)
    }
}

/// What a driver is asked of multiprocessors. Each answer is a list of 64-bit numbers. A resource is three of them: its
/// multiprocessors, the fewest that a group of a split of it has, and the number that such groups are multiples of; a rest of
/// which nothing is left is three zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SmQuestion {
    /// The resource.
    Counts,
    /// How many groups a split makes if it may make any number.
    Groups {
        /// `CU_DEV_SM_RESOURCE_SPLIT_*`.
        flags: u32,
        /// Multiprocessors that each group needs.
        minimum: u32,
    },
    /// What a split makes: the rest, and then each group.
    Split(SmSplit),
}

impl SmQuestion {
    /// Whether it is one that a program can have asked.
    pub fn is_sound(&self) -> bool {
        !matches!(self, Self::Split(split) if split.groups > SM_GROUPS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPLIT: SmSplit = SmSplit {
        groups: 2,
        flags: 0,
        minimum: 8,
    };

    #[test]
    fn parts_of_one_split_are_one_resource_and_others_are_not() {
        let whole = SmResource::whole(0);
        let part = |part| whole.part(SPLIT, part).expect("few cuts");
        let both = SmResource::together(&[part(SM_REST), part(0)]).expect("of one split");
        assert_eq!(both.cuts[0].parts, [0, SM_REST]);
        assert_eq!(SmResource::together(&[part(1)]), Some(part(1)));
        assert_eq!(SmResource::together(&[]), None);
        assert_eq!(SmResource::together(&[part(0), part(0)]), None);
        assert_eq!(SmResource::together(&[whole.clone(), part(0)]), None);
        assert_eq!(SmResource::together(&[whole.clone(), whole.clone()]), None);
        let other = SmSplit {
            minimum: 16,
            ..SPLIT
        };
        let other = whole.part(other, 1).expect("few cuts");
        assert_eq!(SmResource::together(&[part(0), other]), None);
        let inner = both.part(SPLIT, 0).expect("few cuts");
        assert_eq!(SmResource::together(&[part(1), inner.clone()]), None);
        let (of, cut) = inner.origin().expect("it has cuts");
        assert_eq!((of, &cut.parts[..]), (both, &[0][..]));
    }

    #[test]
    fn lists_that_no_program_makes_are_noticed() {
        let with = |parts: &[u32]| SmResource {
            device: 0,
            cuts: vec![SmCut {
                split: SPLIT,
                parts: parts.to_vec(),
            }],
        };
        assert!(with(&[0, 1, SM_REST]).is_sound());
        for parts in [&[][..], &[2], &[1, 0], &[0, 0]] {
            assert!(!with(parts).is_sound(), "{parts:?}");
        }
        let mut deep = SmResource::whole(0);
        while let Some(deeper) = deep.part(SPLIT, 0) {
            deep = deeper;
        }
        assert!(deep.is_sound() && deep.cuts.len() == MOST_CUTS);
    }
}
