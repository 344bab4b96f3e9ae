//! All ranks make the same collective calls in the same order, or all are told that they do not.
//!
//! ```text
//!  every rank: the call it makes ─► rank 0: are they the same? ─► every rank: yes, or who makes which
//! ```
//! Each collective call begins with this, so that a program that goes wrong gets an error on every rank instead of
//! ranks that wait for each other in different places.

use std::fmt;

use crate::ranks::comm::Comm;
use crate::{AppError, Level, Result};

/// A collective call of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Checkpoint { id: i64, level: Level },
    Snapshot,
    Recover,
    RecoverVariable { id: u32 },
    Finalize { remove: bool },
}

/// A call as it is sent.
type Words = [u64; 2];

impl Call {
    fn words(self) -> Words {
        match self {
            Self::Checkpoint { id, level } => [u64::from(level.number()) << 8, id.cast_unsigned()],
            Self::Snapshot => [1, 0],
            Self::Recover => [2, 0],
            Self::RecoverVariable { id } => [3, u64::from(id)],
            Self::Finalize { remove } => [4, u64::from(remove)],
        }
    }
}

/// What a rank does, in words.
struct Does(Words);

impl fmt::Display for Does {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [kind, value] = self.0;
        match (kind, value) {
            (1, _) => write!(f, "makes a snapshot"),
            (2, _) => write!(f, "recovers"),
            (3, id) => write!(f, "recovers variable {id}"),
            (4, 0) => write!(f, "ends the session and keeps its checkpoints"),
            (4, _) => write!(f, "ends the session and removes its checkpoints"),
            (level, id) => {
                let id = id.cast_signed();
                write!(f, "makes checkpoint {id} at level {}", level >> 8)
            }
        }
    }
}

/// Meets all ranks at a call; returns rank 0's `value`. Collective.
///
/// # Errors
/// `Misuse` on every rank when they make different calls.
pub(crate) fn roll(comm: &dyn Comm, call: Call, value: u64) -> Result<u64> {
    if comm.size() == 1 {
        return Ok(value);
    }
    let mine = call.words();
    let mut all = match comm.rank() {
        0 => vec![0; size_of::<Words>() * comm.size() as usize],
        _ => Vec::new(),
    };
    comm.gather(mine.map(u64::to_le_bytes).as_flattened(), &mut all, 0)?;
    let calls = all.as_chunks::<8>().0.as_chunks::<2>().0.iter();
    let mut calls = calls.map(|words| words.map(u64::from_le_bytes));
    let (other, theirs) = match calls.clone().position(|words| words != mine) {
        Some(rank) => (rank as u64, calls.nth(rank).unwrap_or(mine)),
        None => (0, mine),
    };
    // The first rank that makes another call than rank 0, 0 if there is none; both calls; the value.
    let mut said = [other, theirs[0], theirs[1], mine[0], mine[1], value].map(u64::to_le_bytes);
    comm.broadcast(said.as_flattened_mut(), 0)?;
    let [other, kind, argument, first_kind, first, value] = said.map(u64::from_le_bytes);
    if other == 0 {
        return Ok(value);
    }
    Err(AppError::Misuse {
        op: "go on together",
        what: format!(
            "rank {other} {}, rank 0 {}; all ranks must make the same calls in the same order",
            Does([kind, argument]),
            Does([first_kind, first])
        ),
    })
}
