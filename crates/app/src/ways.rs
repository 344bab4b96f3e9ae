//! Who sends how much where: what a checkpoint of several GPUs needs and has room for, given to the planner.

use fermata_planner::model::{Destination, Problem, Topology};
use fermata_planner::{Schedule, baseline, greedy, optimum, topology};

use crate::config::StageSchedule;
use crate::copies::Stretch;
use crate::gpu::Gpu;
use crate::stage::OnDevice;
use crate::{AppError, Result};

/// Stretches begin at multiples of this.
const ALIGNED: u64 = 512;
/// The share of a device's memory that stays free.
const FREE_SHARE: u64 = 32;
/// Rates in bytes per second where nothing has been measured: NVLink's port, and a PCIe 5 link to the host. Only
/// their ratio matters for who sends what.
const PEER_RATE: f64 = 397e9;
const HOST_RATE: f64 = 55.5e9;

/// Where one GPU's stretches go: to which GPU's room and the offset in it, or to the host.
pub(crate) type Way = Option<(usize, u64)>;

/// What does not fit its own GPU's room, sent as asked for.
pub(crate) fn schedule(problem: &Problem, how: StageSchedule) -> Schedule {
    match how {
        _ if problem.gpus() == 1 => baseline::local_only(problem),
        StageSchedule::LocalOnly => baseline::local_only(problem),
        StageSchedule::Greedy => greedy::greedy(problem),
        StageSchedule::Optimum => optimum::optimum(problem),
    }
}

/// The room that each GPU has; a device that occurs twice has it once.
pub(crate) fn free(gpu: &Gpu, gpus: &[OnDevice], limit: u64) -> Result<Vec<u64>> {
    let op = AppError::device("ask for free device memory");
    let mut seen: Vec<u32> = Vec::new();
    gpus.iter()
        .map(|g| {
            if seen.contains(&g.device) {
                return Ok(0);
            }
            seen.push(g.device);
            gpu.driver.set_current(g.context).map_err(&op)?;
            let (free, total) = gpu.driver.memory_info().map_err(&op)?;
            let granularity = gpu.driver.granularity(g.device).map_err(&op)?.max(1);
            let room = limit.min(free.saturating_sub(total / FREE_SHARE));
            Ok(room / granularity * granularity)
        })
        .collect()
}

/// The links between the GPUs: NVLink's where one can reach the other.
pub(crate) fn links(gpu: &Gpu, gpus: &[OnDevice]) -> Result<Topology> {
    let op = AppError::device("look at the program's devices");
    let mut all = topology::switched(
        gpus.len(),
        PEER_RATE,
        HOST_RATE,
        HOST_RATE * gpus.len() as f64,
    );
    for (i, from) in gpus.iter().enumerate() {
        let peers = gpu.driver.device_facts(from.device).map_err(&op)?.peers;
        for (j, to) in gpus.iter().enumerate() {
            let reaches = peers.get(to.device as usize).copied().unwrap_or(false);
            if i != j && !reaches && from.device != to.device {
                all.links[i][j] = 0.0;
            }
        }
    }
    Ok(all)
}

pub(crate) fn room_of(stretch: &Stretch) -> u64 {
    (stretch.bytes() as u64).next_multiple_of(ALIGNED)
}

/// Each GPU's ways, and the room used on each: own room first, then the schedule's transfers, then the host.
/// `sizes` are those of each GPU's stretches.
pub(crate) fn ways(
    sizes: &[Vec<u64>],
    schedule: &Schedule,
    free: &[u64],
) -> (Vec<Vec<Way>>, Vec<u64>) {
    let mut used = vec![0u64; sizes.len()];
    let mut all = Vec::with_capacity(sizes.len());
    for (i, sizes) in sizes.iter().enumerate() {
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
    use super::*;

    #[test]
    fn nobody_gets_more_than_its_room_and_the_rest_goes_to_the_host() {
        const MIB: u64 = 1 << 20;
        let sizes = [vec![MIB; 40], vec![MIB; 5], vec![MIB; 5]];
        let free = [16 * MIB; 3];
        let need: Vec<u64> = sizes.iter().map(|s| s.iter().sum()).collect();
        let topology = topology::switched(3, PEER_RATE, HOST_RATE, 3.0 * HOST_RATE);
        let problem = Problem::from_sizes(topology, &need, &free);
        let (ways, used) = ways(&sizes, &schedule(&problem, StageSchedule::Optimum), &free);
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
        // No two stretches overlap.
        for to in 0..3 {
            let ways = ways.iter().flatten().flatten();
            let mut offsets: Vec<u64> = ways.filter(|(j, _)| *j == to).map(|(_, o)| *o).collect();
            offsets.sort_unstable();
            assert!(offsets.windows(2).all(|w| w[1] - w[0] >= MIB));
        }
    }
}
