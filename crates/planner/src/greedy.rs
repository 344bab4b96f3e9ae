//! Algorithm 1: the greedy schedule. The sender with the largest remainder goes first and fills the
//! receiver behind its fastest link, then the next; what is left goes to the host.

use crate::model::{Destination, Problem, Schedule, Transfer};

/// The greedy schedule. Of two receivers behind equally fast links the lower number is taken.
pub fn greedy(problem: &Problem) -> Schedule {
    let mut spare = problem.spare.clone();
    let mut senders: Vec<usize> = (0..problem.gpus())
        .filter(|&i| problem.remainder[i] > 0)
        .collect();
    senders.sort_by_key(|&i| (std::cmp::Reverse(problem.remainder[i]), i));
    let mut transfers = Vec::new();
    for from in senders {
        let links = &problem.topology.links[from];
        let mut left = problem.remainder[from];
        while left > 0 {
            let fastest = (0..spare.len())
                .filter(|&j| links[j] > 0.0 && spare[j] > 0)
                .max_by(|&a, &b| links[a].total_cmp(&links[b]).then(b.cmp(&a)));
            let Some(to) = fastest else { break };
            let bytes = left.min(spare[to]);
            left -= bytes;
            spare[to] -= bytes;
            transfers.push(Transfer {
                from,
                to: Destination::Gpu(to),
                bytes,
            });
        }
        transfers.push(Transfer {
            from,
            to: Destination::Host,
            bytes: left,
        });
    }
    problem.schedule(transfers)
}
