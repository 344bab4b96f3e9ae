//! Who sends how much where: what a checkpoint of several GPUs needs and what is free, given to the planner.

use fermata_planner::model::{Destination, Problem};
use fermata_planner::{Schedule, baseline, greedy, optimum};

use super::piece::Stretch;
use crate::config::StageSchedule;

/// Stretches begin at multiples of this.
const ALIGNED: u64 = 512;
/// Where one GPU's stretches go: to which GPU's staging area and the offset in it, or to the host.
pub(crate) type Way = Option<(usize, u64)>;

/// What does not fit its own GPU's memory, sent as asked for.
pub(crate) fn schedule(problem: &Problem, how: StageSchedule) -> Schedule {
    match how {
        _ if problem.gpus() == 1 => baseline::local_only(problem),
        StageSchedule::LocalOnly => baseline::local_only(problem),
        StageSchedule::Greedy => greedy::greedy(problem),
        StageSchedule::Optimum => optimum::optimum(problem),
    }
}

/// Bytes of device memory that a stretch takes while it is staged.
pub(crate) fn staged_bytes(stretch: &Stretch) -> u64 {
    (stretch.bytes() as u64).next_multiple_of(ALIGNED)
}

/// The ways of a rank's GPUs, and the memory used on each of the node's: its own first, then the schedule's transfers,
/// then the host. `sizes` are those of each GPU's stretches; the first one is the node's GPU number `first`.
pub(crate) fn ways(
    sizes: &[Vec<u64>],
    first: usize,
    schedule: &Schedule,
    free: &[u64],
) -> (Vec<Vec<Way>>, Vec<u64>) {
    let mut used = vec![0u64; free.len()];
    let mut all = Vec::with_capacity(sizes.len());
    for (i, sizes) in (first..).zip(sizes) {
        let mut budgets = vec![(i, sizes.iter().sum::<u64>().min(free[i]))];
        let sent = schedule.transfers.iter().filter(|t| t.from == i);
        budgets.extend(sent.filter_map(|t| match t.to {
            Destination::Gpu(to) => Some((to, t.bytes)),
            Destination::Host => None,
        }));
        let ways = sizes.iter().map(|bytes| {
            let (to, budget) = budgets.iter_mut().find(|(_, budget)| budget >= bytes)?;
            *budget -= bytes;
            let offset = used[*to];
            used[*to] += bytes;
            Some((*to, offset))
        });
        all.push(ways.collect());
    }
    (all, used)
}

#[cfg(test)]
mod tests {
    use fermata_planner::topology;

    use super::*;
    use crate::capture::offers::{HOST_RATE, PEER_RATE};

    #[test]
    fn no_gpu_gets_more_than_is_free_and_the_rest_goes_to_the_host() {
        const MIB: u64 = 1 << 20;
        let sizes = [vec![MIB; 40], vec![MIB; 5], vec![MIB; 5]];
        let free = [16 * MIB; 3];
        let need: Vec<u64> = sizes.iter().map(|s| s.iter().sum()).collect();
        let topology = topology::switched(3, PEER_RATE, HOST_RATE, 3.0 * HOST_RATE);
        let problem = Problem::from_sizes(topology, &need, &free);
        let (ways, used) = ways(
            &sizes,
            0,
            &schedule(&problem, StageSchedule::Optimum),
            &free,
        );
        assert!(
            used.iter().zip(&free).all(|(used, free)| used <= free),
            "{used:?}"
        );
        let count = |from: usize, to: Option<usize>| {
            let ways = ways[from].iter();
            ways.filter(|w| w.map(|(j, _)| j) == to).count()
        };
        let own = [count(0, Some(0)), count(1, Some(1)), count(2, Some(2))];
        assert_eq!(own, [16, 5, 5]);
        // By their rates most of the rest goes to the peers, and some to the host at the same time.
        let peers = count(0, Some(1)) + count(0, Some(2));
        assert!((18..=22).contains(&peers), "{peers}");
        assert_eq!(count(0, None), 24 - peers);
        // A rank's part of it is what it would be if all were one rank's.
        let chosen = schedule(&problem, StageSchedule::Optimum);
        let (alone, _) = super::ways(&sizes[..1], 0, &chosen, &free);
        let (last, used) = super::ways(&sizes[2..], 2, &chosen, &free);
        assert_eq!(alone[0].len(), 40);
        assert_eq!((last[0].len(), used), (5, vec![0, 0, 5 * MIB]));
        // No two stretches overlap.
        for to in 0..3 {
            let ways = ways.iter().flatten().flatten();
            let mut offsets: Vec<u64> = ways.filter(|(j, _)| *j == to).map(|(_, o)| *o).collect();
            offsets.sort_unstable();
            assert!(offsets.windows(2).all(|w| w[1] - w[0] >= MIB));
        }
    }
}
