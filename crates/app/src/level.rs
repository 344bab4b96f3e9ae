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
