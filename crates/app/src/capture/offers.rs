//! What ranks tell each other before data is staged on devices: which GPUs they use, what must be kept there, and how
//! much memory is free.
//!
//! ```text
//!  rank 0  hashed ─► offers ─┐                     ┌─► the node's schedule ─► its own transfers
//!                            ├─► everyone's offers ┤
//!  rank 1  hashed ─► offers ─┘                     └─► the same schedule   ─► its own transfers
//! ```
//! Memory that a rank takes of a peer's GPU is the rank's own: the peer only says how much there is, and may end at any
//! moment. A GPU is known by its id, whatever number a process has for it; a rank reaches those that it sees.

use std::collections::BTreeSet;
use std::ops::Range;

use fermata_planner::model::Topology;
use fermata_planner::topology;
use serde::{Deserialize, Serialize};

use super::piece::OnDevice;
use crate::gpu::Gpu;
use crate::ranks::comm::{self, Comm};
use crate::{AppError, Result};

/// The share of a device's memory that stays free.
const FREE_SHARE: u64 = 32;
/// Rates in bytes per second where nothing has been measured: NVLink's port, and a PCIe 5 link to the host. Only
/// their ratio matters for who sends what.
pub(crate) const PEER_RATE: f64 = 397e9;
pub(crate) const HOST_RATE: f64 = 55.5e9;

/// One GPU as one rank uses it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// The GPU's id.
    pub(crate) gpu: String,
    /// Bytes that must be kept of what the rank has there.
    pub(crate) need: u64,
    /// Bytes that may be used there.
    pub(crate) free: u64,
    /// The ids of other GPUs to whose memory the rank can copy from there.
    pub(crate) reaches: Vec<String>,
}

/// This rank's offers, one for each of its GPUs; `need` and `limit` in bytes.
pub(crate) fn offers(gpu: &Gpu, gpus: &[OnDevice], need: &[u64], limit: u64) -> Result<Vec<Offer>> {
    let facts = gpu.facts()?;
    let of = |(own, need): (&OnDevice, &u64)| {
        let seen = facts
            .get(own.device as usize)
            .ok_or(AppError::Fault("a device's number"))?;
        gpu.driver.set_current(own.context).map_err(looking)?;
        let (free, total) = gpu.driver.memory_info().map_err(looking)?;
        let granularity = gpu.driver.granularity(own.device).map_err(looking)?.max(1);
        let room = limit.min(free.saturating_sub(total / FREE_SHARE));
        let reached = facts
            .iter()
            .zip(&seen.peers)
            .filter(|(_, reached)| **reached);
        Ok(Offer {
            gpu: seen.uuid_text(),
            need: *need,
            free: room / granularity * granularity,
            reaches: reached.map(|(peer, _)| peer.uuid_text()).collect(),
        })
    };
    gpus.iter().zip(need).map(of).collect()
}

fn looking(source: fermata_device::DriverError) -> AppError {
    AppError::device("look at the program's devices")(source)
}

/// Every rank's offers, by rank. Collective.
pub(crate) fn exchange(comm: &dyn Comm, mine: &[Offer]) -> Result<Vec<Vec<Offer>>> {
    let fault = |_| AppError::Fault("what ranks offer each other");
    let said = comm::exchange(comm, &serde_json::to_vec(mine).map_err(fault)?)?;
    said.iter()
        .map(|text| serde_json::from_slice(text).map_err(fault))
        .collect()
}

/// The GPUs among which a schedule is made, in the order in which all their ranks have them.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) offers: Vec<Offer>,
    /// Which of them are this rank's.
    pub(crate) own: Range<usize>,
}

impl Node {
    /// Of a rank that works alone.
    pub(crate) fn alone(offers: Vec<Offer>) -> Self {
        let own = 0..offers.len();
        Self { offers, own }
    }

    /// Of those ranks whose GPUs `rank` can reach or that can reach its own, directly or by others.
    pub(crate) fn of(all: Vec<Vec<Offer>>, rank: usize) -> Self {
        let sees = |from: &[Offer], to: &[Offer]| {
            from.iter().any(|f| {
                let known = |t: &Offer| t.gpu == f.gpu || f.reaches.contains(&t.gpu);
                to.iter().any(known)
            })
        };
        let mut near = BTreeSet::from([rank]);
        let mut new = vec![rank];
        while let Some(from) = new.pop() {
            for to in 0..all.len() {
                let linked = sees(&all[from], &all[to]) || sees(&all[to], &all[from]);
                if linked && near.insert(to) {
                    new.push(to);
                }
            }
        }
        let first = near.range(..rank).map(|r| all[*r].len()).sum();
        let own = first..first + all.get(rank).map_or(0, Vec::len);
        let offers = all.into_iter().enumerate();
        let offers = offers.filter(|(r, _)| near.contains(r));
        Self {
            offers: offers.flat_map(|(_, offers)| offers).collect(),
            own,
        }
    }

    /// Bytes to be kept of each.
    pub(crate) fn need(&self) -> Vec<u64> {
        self.offers.iter().map(|o| o.need).collect()
    }

    /// The room that each has. What there is of a GPU that occurs more than once goes to its occurrences as they need
    /// it, in turn, and the first one has what is left.
    pub(crate) fn free(&self) -> Vec<u64> {
        let mut free = vec![0; self.offers.len()];
        for (first, offer) in self.offers.iter().enumerate() {
            let same = |i: &usize| self.offers[*i].gpu == offer.gpu;
            if (0..first).any(|i| same(&i)) {
                continue;
            }
            let all: Vec<usize> = (first..free.len()).filter(same).collect();
            // Everyone has looked at the same memory.
            let mut left = all.iter().map(|i| self.offers[*i].free).min().unwrap_or(0);
            for i in all {
                free[i] = self.offers[i].need.min(left);
                left -= free[i];
            }
            free[first] += left;
        }
        free
    }

    /// The links between them: NVLink's where one can reach the other.
    pub(crate) fn links(&self) -> Topology {
        let count = self.offers.len();
        let mut all = topology::switched(count, PEER_RATE, HOST_RATE, HOST_RATE * count as f64);
        for (i, from) in self.offers.iter().enumerate() {
            for (j, to) in self.offers.iter().enumerate() {
                if i != j && from.gpu != to.gpu && !from.reaches.contains(&to.gpu) {
                    all.links[i][j] = 0.0;
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(gpu: &str, need: u64, free: u64, reaches: &[&str]) -> Offer {
        Offer {
            gpu: gpu.into(),
            need,
            free,
            reaches: reaches.iter().map(|id| (*id).to_owned()).collect(),
        }
    }

    /// Two nodes of two ranks each; the last rank of the first one sees its own GPU only.
    fn nodes() -> Vec<Vec<Offer>> {
        vec![
            vec![offer("a", 9, 4, &["b"])],
            vec![offer("c", 1, 4, &["d"])],
            vec![offer("b", 1, 4, &[]), offer("a", 0, 4, &[])],
            vec![offer("d", 1, 4, &["c"])],
            Vec::new(),
        ]
    }

    #[test]
    fn ranks_of_a_node_see_the_same_gpus_in_the_same_order() {
        let of = |rank| {
            let node = Node::of(nodes(), rank);
            let ids: String = node.offers.iter().map(|o| o.gpu.as_str()).collect();
            (ids, node.own)
        };
        assert_eq!(of(0), ("aba".into(), 0..1));
        assert_eq!(of(2), ("aba".into(), 1..3));
        assert_eq!(of(1), ("cd".into(), 0..1));
        assert_eq!(of(3), ("cd".into(), 1..2));
        assert_eq!(of(4), (String::new(), 0..0));
    }

    #[test]
    fn links_are_where_the_sender_sees_the_peer() {
        let links = Node::of(nodes(), 0).links().links;
        let linked = |i: usize, j: usize| links[i][j] > 0.0;
        assert!(linked(0, 1) && !linked(1, 0));
        // The same GPU.
        assert!(linked(0, 2) && linked(2, 0));
    }

    #[test]
    fn the_memory_of_a_gpu_is_offered_once() {
        let node = |needs: [u64; 3]| {
            let free = [10, 8, 10];
            Node::alone((0..3).map(|i| offer("a", needs[i], free[i], &[])).collect())
        };
        assert_eq!(node([3, 2, 1]).free(), [5, 2, 1]);
        assert_eq!(node([5, 5, 5]).free(), [5, 3, 0]);
        assert_eq!(node([0, 0, 7]).free(), [1, 0, 7]);
    }
}
