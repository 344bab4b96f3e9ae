//! How the ranks of a job talk to each other: by the program's own message passing, through a few calls.
//!
//! All of it happens on the thread that calls the library, and every rank must make the same calls in the
//! same order, as with MPI's collective functions.

use crate::{AppError, Result};

/// Message passing between ranks.
pub trait Comm: Send {
    /// This process's number, from 0.
    fn rank(&self) -> u32;
    /// How many there are.
    fn size(&self) -> u32;
    /// Waits until every rank is here.
    ///
    /// # Errors
    /// `Ranks`, here and below.
    fn barrier(&self) -> Result<()>;
    /// Gives `bytes` of rank `root` to all.
    ///
    /// # Errors
    /// `Ranks`.
    fn broadcast(&self, bytes: &mut [u8], root: u32) -> Result<()>;
    /// Collects `mine`, of the same length everywhere, at rank `root`: into `all` there, by rank. Other
    /// ranks pass an empty `all`.
    ///
    /// # Errors
    /// `Ranks`.
    fn gather(&self, mine: &[u8], all: &mut [u8], root: u32) -> Result<()>;
    /// Sends to a rank, which receives as many bytes.
    ///
    /// # Errors
    /// `Ranks`.
    fn send(&self, bytes: &[u8], to: u32) -> Result<()>;
    /// Receives from a rank.
    ///
    /// # Errors
    /// `Ranks`.
    fn receive(&self, bytes: &mut [u8], from: u32) -> Result<()>;
    /// A second channel between the same ranks, which another thread may use while this one is in use; `None`
    /// if the message passing does not allow that. Asked for once, by all ranks.
    ///
    /// # Errors
    /// `Ranks`.
    fn behind(&self) -> Result<Option<Box<dyn Comm>>> {
        Ok(None)
    }
}

/// A job of one process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Solo;

impl Comm for Solo {
    fn rank(&self) -> u32 {
        0
    }
    fn size(&self) -> u32 {
        1
    }
    fn barrier(&self) -> Result<()> {
        Ok(())
    }
    fn broadcast(&self, _: &mut [u8], _: u32) -> Result<()> {
        Ok(())
    }
    fn gather(&self, mine: &[u8], all: &mut [u8], _: u32) -> Result<()> {
        all.copy_from_slice(mine);
        Ok(())
    }
    fn send(&self, _: &[u8], _: u32) -> Result<()> {
        nobody()
    }
    fn receive(&self, _: &mut [u8], _: u32) -> Result<()> {
        nobody()
    }
}

fn nobody() -> Result<()> {
    Err(AppError::Misuse {
        op: "send to another rank",
        what: "this job has one rank".into(),
    })
}

/// What every rank says, by rank.
pub(crate) fn exchange(comm: &dyn Comm, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
    let (rank, size) = (comm.rank(), comm.size() as usize);
    let lengths = equal(comm, &(mine.len() as u64).to_le_bytes())?;
    let lengths: Vec<usize> = lengths
        .as_chunks::<8>()
        .0
        .iter()
        .map(|b| u64::from_le_bytes(*b) as usize)
        .collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    if longest == 0 {
        return Ok(vec![Vec::new(); size]);
    }
    debug_assert_eq!(lengths[rank as usize], mine.len());
    let mut padded = mine.to_vec();
    padded.resize(longest, 0);
    let all = equal(comm, &padded)?;
    Ok(all
        .chunks(longest)
        .zip(&lengths)
        .map(|(bytes, len)| bytes[..*len].to_vec())
        .collect())
}

/// What every rank says, one after the other; all say the same number of bytes.
fn equal(comm: &dyn Comm, mine: &[u8]) -> Result<Vec<u8>> {
    let mut all = vec![0; mine.len() * comm.size() as usize];
    let into = if comm.rank() == 0 {
        &mut all[..]
    } else {
        &mut []
    };
    comm.gather(mine, into, 0)?;
    comm.broadcast(&mut all, 0)?;
    Ok(all)
}

/// Every rank's number, by rank.
pub(crate) fn numbers(comm: &dyn Comm, mine: u64) -> Result<Vec<u64>> {
    let all = equal(comm, &mine.to_le_bytes())?;
    Ok(all
        .as_chunks::<8>()
        .0
        .iter()
        .map(|b| u64::from_le_bytes(*b))
        .collect())
}

/// So many numbers of every rank, by rank.
pub(crate) fn words<const N: usize>(comm: &dyn Comm, mine: [u64; N]) -> Result<Vec<[u64; N]>> {
    let all = equal(comm, mine.map(u64::to_le_bytes).as_flattened())?;
    let ranks = all.as_chunks::<8>().0.as_chunks::<N>().0.iter();
    Ok(ranks.map(|words| words.map(u64::from_le_bytes)).collect())
}

/// What a rank keeps of another one's checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CheckpointPart {
    /// Whose checkpoint it is.
    pub(crate) owner: u32,
    /// The checkpoint's number.
    pub(crate) sequence: u64,
    /// The run that made it.
    pub(crate) run: u64,
}

/// What every rank keeps, by rank.
pub(crate) fn parts(comm: &dyn Comm, mine: &[CheckpointPart]) -> Result<Vec<Vec<CheckpointPart>>> {
    let words = mine.iter().map(|p| [u64::from(p.owner), p.sequence, p.run]);
    let said = lists(comm, &words.flatten().collect::<Vec<_>>())?;
    let part = |words: &[u64; 3]| CheckpointPart {
        owner: words[0] as u32,
        sequence: words[1],
        run: words[2],
    };
    let of = |words: &Vec<u64>| words.as_chunks().0.iter().map(part).collect();
    Ok(said.iter().map(of).collect())
}

/// Every rank's numbers, by rank.
pub(crate) fn lists(comm: &dyn Comm, mine: &[u64]) -> Result<Vec<Vec<u64>>> {
    let bytes: Vec<u8> = mine.iter().flat_map(|n| n.to_le_bytes()).collect();
    let said = exchange(comm, &bytes)?;
    let of = |bytes: &Vec<u8>| -> Vec<u64> {
        let words = bytes.as_chunks::<8>().0.iter();
        words.map(|b| u64::from_le_bytes(*b)).collect()
    };
    Ok(said.iter().map(of).collect())
}

/// What stands in all of the lists, in the order of the first.
pub(crate) fn in_all(lists: &[Vec<u64>]) -> Vec<u64> {
    let Some((first, others)) = lists.split_first() else {
        return Vec::new();
    };
    let everywhere = |n: &&u64| others.iter().all(|list| list.contains(n));
    first.iter().filter(everywhere).copied().collect()
}

/// Ends a step for all ranks alike: if it failed anywhere, it fails everywhere.
pub(crate) fn together<T>(comm: &dyn Comm, mine: Result<T>) -> Result<T> {
    if comm.size() == 1 {
        return mine;
    }
    let text = mine.as_ref().err().map_or(String::new(), AppError::text);
    let said = exchange(comm, text.as_bytes())?;
    let value = mine?;
    match said.iter().position(|text| !text.is_empty()) {
        None => Ok(value),
        Some(rank) => Err(AppError::OtherRank {
            rank: rank as u32,
            what: String::from_utf8_lossy(&said[rank]).into_owned(),
        }),
    }
}
