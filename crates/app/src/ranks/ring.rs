//! Orders the ranks in a ring, in which each keeps a copy of the one before it, and neighbours are on different hosts as far as
//! the hosts allow.
//!
//! ```text
//!  host a: 0 1   host b: 2 3        0 ─► 2 ─► 1 ─► 3 ─► 0      each keeps a copy of the one before it
//! ```

use crate::ranks::comm::Comm;
use crate::{AppError, Result};

/// Longest message between ranks; what is longer is not ours.
const LONGEST: u64 = 4 << 30;

/// A rank's place in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ring {
    /// The rank that keeps our copy.
    pub(crate) next: u32,
    /// The rank whose copy we keep.
    pub(crate) previous: u32,
    /// Whether it sends before it receives; in a ring of any size some rank does the opposite.
    first: bool,
}

impl Ring {
    /// The place of `rank`, from where all ranks say they are.
    pub(crate) fn new(hosts: &[Vec<u8>], rank: u32) -> Self {
        Self::of(&order(hosts), rank)
    }

    fn of(order: &[u32], rank: u32) -> Self {
        let count = order.len();
        let position = order.iter().position(|r| *r == rank).unwrap_or(0);
        Self {
            next: order[(position + 1) % count],
            previous: order[(position + count - 1) % count],
            first: position.is_multiple_of(2),
        }
    }

    /// Gives `bytes` to the next rank and takes what the previous one gives. All ranks do it at once.
    pub(crate) fn forward(&self, comm: &dyn Comm, bytes: &[u8]) -> Result<Vec<u8>> {
        self.swap(comm, Some((self.next, bytes)), Some(self.previous))
    }

    /// The same the other way round.
    pub(crate) fn backward(&self, comm: &dyn Comm, bytes: &[u8]) -> Result<Vec<u8>> {
        self.swap(comm, Some((self.previous, bytes)), Some(self.next))
    }

    /// Sends and receives, or only one of them, in an order in which no rank waits for ever.
    pub(crate) fn swap(
        &self,
        comm: &dyn Comm,
        out: Option<(u32, &[u8])>,
        from: Option<u32>,
    ) -> Result<Vec<u8>> {
        let send = || out.map_or(Ok(()), |(to, bytes)| send(comm, to, bytes));
        let receive = || from.map_or(Ok(Vec::new()), |from| receive(comm, from));
        if self.first {
            send()?;
            receive()
        } else {
            let bytes = receive()?;
            send()?;
            Ok(bytes)
        }
    }
}

/// Sends a message of any length to a rank that calls [`receive`].
pub(crate) fn send(comm: &dyn Comm, to: u32, bytes: &[u8]) -> Result<()> {
    comm.send(&(bytes.len() as u64).to_le_bytes(), to)?;
    match bytes.is_empty() {
        true => Ok(()),
        false => comm.send(bytes, to),
    }
}

/// Receives what a rank has sent.
pub(crate) fn receive(comm: &dyn Comm, from: u32) -> Result<Vec<u8>> {
    let mut length = [0; 8];
    comm.receive(&mut length, from)?;
    let length = u64::from_le_bytes(length);
    if length > LONGEST {
        return Err(AppError::Misuse {
            op: "talk to another rank",
            what: format!("rank {from} announces {length} bytes"),
        });
    }
    let mut bytes = vec![0; length as usize];
    if !bytes.is_empty() {
        comm.receive(&mut bytes, from)?;
    }
    Ok(bytes)
}

/// Ranks in the order of the ring: the first of each host, then the second of each, and so on.
fn order(hosts: &[Vec<u8>]) -> Vec<u32> {
    let mut order: Vec<(usize, usize)> = (0..hosts.len())
        .map(|rank| {
            let before = hosts[..rank].iter().filter(|h| **h == hosts[rank]).count();
            (before, rank)
        })
        .collect();
    order.sort_unstable();
    order.into_iter().map(|(_, rank)| rank as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(names: &str) -> Vec<Vec<u8>> {
        names.bytes().map(|b| vec![b]).collect()
    }

    #[test]
    fn neighbours_are_on_different_hosts() {
        assert_eq!(order(&hosts("aabb")), [0, 2, 1, 3]);
        assert_eq!(order(&hosts("aaaa")), [0, 1, 2, 3]);
        for names in ["aabb", "abab", "aaabbbccc", "aabbccdd"] {
            let (hosts, order) = (hosts(names), order(&hosts(names)));
            for rank in 0..hosts.len() as u32 {
                let ring = Ring::of(&order, rank);
                assert_ne!(
                    hosts[rank as usize], hosts[ring.next as usize],
                    "{names} {rank}"
                );
                assert_eq!(Ring::of(&order, ring.next).previous, rank);
            }
        }
    }
}
