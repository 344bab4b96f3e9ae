//! Where a checkpoint is kept, by what it survives.

use crate::{AppError, Result};

/// A level. Each holds the checkpoint at the first level too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// On the node's own devices: survives the process.
    Local,
    /// A copy on a partner's node: survives a node.
    Partner,
    /// Reed-Solomon across a group of nodes: survives several nodes.
    Erasure,
    /// In a folder that all ranks reach: survives the machine.
    Shared,
    /// In an object store: survives the site.
    Object,
}

impl Level {
    /// All levels, lowest first.
    pub const ALL: [Self; 5] = [
        Self::Local,
        Self::Partner,
        Self::Erasure,
        Self::Shared,
        Self::Object,
    ];

    /// 1 to 5.
    pub fn number(self) -> u8 {
        self as u8 + 1
    }

    /// The level of this number.
    ///
    /// # Errors
    /// `Misuse` for a number that is none.
    pub fn from_number(number: i64) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|level| i64::from(level.number()) == number)
            .ok_or_else(|| AppError::Misuse {
                op: "make a checkpoint",
                what: format!("there is no level {number}; levels are 1 to 5"),
            })
    }

    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Partner => "partner copy",
            Self::Erasure => "erasure code",
            Self::Shared => "shared folder",
            Self::Object => "object store",
        }
    }
}

/// A checkpoint's number for each level; 0 for none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Newest([u64; Level::ALL.len()]);

impl Newest {
    /// The number at a level.
    pub(crate) fn at(&self, level: Level) -> u64 {
        self.0[level as usize]
    }

    /// Sets the number at a level.
    pub(crate) fn set(&mut self, level: Level, sequence: u64) {
        self.0[level as usize] = sequence;
    }

    /// Takes over, level by level, what is the same on all ranks: the newest that all of them have.
    pub(crate) fn learn(&mut self, ranks: &[Self]) {
        for level in Level::ALL {
            let mut numbers = ranks.iter().map(|newest| newest.at(level));
            if let Some(first) = numbers.next()
                && numbers.all(|n| n == first)
            {
                self.set(level, first);
            }
        }
    }

    /// As numbers that are sent.
    pub(crate) fn words(self) -> [u64; Level::ALL.len()] {
        self.0
    }

    /// From numbers that came.
    pub(crate) fn from_words(words: [u64; Level::ALL.len()]) -> Self {
        Self(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_all_ranks_have_counts_as_there() {
        let mut complete = Newest::default();
        complete.learn(&[Newest([2, 1, 0, 0, 0]), Newest([2, 1, 0, 0, 0])]);
        assert_eq!(complete, Newest([2, 1, 0, 0, 0]));
        // One has failed at 3, the other at 4: neither is everywhere, and 2 is.
        complete.learn(&[Newest([4, 1, 0, 0, 0]), Newest([3, 3, 0, 0, 0])]);
        assert_eq!(complete, Newest([2, 1, 0, 0, 0]));
    }
}
