//! Captured data waits in device memory: its own GPU's as far as there is room, then peers', by the planner's
//! schedule, and what is left goes to the host at once (*Collaborative Multi-Level Checkpointing*, section II).
//!
//! ```text
//!  GPU 0  changed blocks ─┬─► own room ──────────┐
//!                         ├─► GPU 1's room ──────┼─► drained to the host, written; the room is given back
//!                         └─► host ─► writers    │
//!  GPU 1  changed blocks ───► own room ──────────┘
//!                                   captured ▲ the program goes on
//! ```
//! The program lets us have the room by `stage.device_bytes`; a part of each device's memory stays free in any
//! case, and where memory cannot be had after all the data goes to the host as it would without.

use std::sync::Arc;

use fermata_device::{ContextHandle, Driver, PhysicalHandle};
use fermata_planner::model::{Destination, Problem, Topology};
use fermata_planner::{optimum, topology};

use crate::capture::Run;
use crate::copies::{Copies, Stretch};
use crate::gpu::Gpu;
use crate::{AppError, Result};

/// Stretches begin at multiples of this.
const ALIGNED: u64 = 512;
/// The share of a device's memory that stays free.
const FREE_SHARE: u64 = 32;
/// Both read and written, `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: u32 = 3;
/// Does not wait for the program's default stream, `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// Rates in bytes per second where nothing has been measured: NVLink's port, and a PCIe 5 link to the host. Only
/// their ratio matters for who sends what.
const PEER_RATE: f64 = 397e9;
const HOST_RATE: f64 = 55.5e9;

/// A GPU and what must be kept of its memory.
pub(crate) struct OnDevice {
    pub(crate) context: ContextHandle,
    pub(crate) device: u32,
    pub(crate) stretches: Vec<Stretch>,
}

/// Device memory of ours; freed when dropped.
struct Room {
    driver: Arc<Driver>,
    memory: PhysicalHandle,
    address: u64,
    bytes: u64,
}

impl Room {
    /// `bytes` of a device's memory, which `devices` can reach.
    fn new(
        driver: &Arc<Driver>,
        device: u32,
        bytes: u64,
        devices: &[u32],
    ) -> Result<Self, fermata_device::DriverError> {
        let bytes = bytes.next_multiple_of(driver.granularity(device)?);
        let memory = driver.create_memory(device, bytes)?;
        let mapped = driver.reserve_addresses(bytes, 0, 0).and_then(|address| {
            driver
                .map(address, bytes, 0, memory)
                .inspect_err(|_| drop(driver.release_addresses(address, bytes)))?;
            Ok(address)
        });
        let address = mapped.inspect_err(|_| drop(driver.release_memory(memory)))?;
        let room = Self {
            driver: Arc::clone(driver),
            memory,
            address,
            bytes,
        };
        driver.set_access(address, bytes, READ_WRITE, devices)?;
        Ok(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // A dead device cannot give anything back; its memory went with it.
        let _ = self.driver.unmap(self.address, self.bytes);
        let _ = self.driver.release_addresses(self.address, self.bytes);
        let _ = self.driver.release_memory(self.memory);
    }
}

/// Data that waits in one GPU's memory.
struct Waiting {
    context: ContextHandle,
    stretches: Vec<Stretch>,
    room: Room,
}

/// All data that waits on devices.
#[derive(Default)]
pub(crate) struct Staged {
    waiting: Vec<Waiting>,
}

impl Staged {
    /// Copies all of it to the host, each GPU's on a thread of its own; the memory is free afterwards.
    pub(crate) fn drain(self, run: &Run<'_>, gpu: &Gpu) -> Result<()> {
        std::thread::scope(|scope| {
            for waiting in self.waiting {
                scope.spawn(move || {
                    let Waiting {
                        context,
                        stretches,
                        room,
                    } = waiting;
                    run.queue.watch(|| {
                        let mut copies = Copies::new(run, gpu, context)?;
                        for stretch in stretches {
                            copies.start(stretch)?;
                        }
                        copies.finish()
                    });
                    // Only now nothing is under way from there.
                    drop(room);
                });
            }
        });
        Ok(())
    }
}

/// Where one GPU's stretches go: to which GPU's room and the offset in it, or to the host.
type Way = Option<(usize, u64)>;

/// Copies what must be kept where the schedule says; it may change afterwards.
pub(crate) fn stage(run: &Run<'_>, gpu: &Gpu, mut gpus: Vec<OnDevice>) -> Result<Staged> {
    if gpus.is_empty() {
        return Ok(Staged::default());
    }
    add_idle(gpu, &mut gpus)?;
    let free = free(gpu, &gpus, run.plan.stage)?;
    let sizes: Vec<Vec<u64>> = gpus
        .iter()
        .map(|g| g.stretches.iter().map(room_of).collect())
        .collect();
    let need: Vec<u64> = sizes.iter().map(|s| s.iter().sum()).collect();
    let problem = Problem::from_sizes(links(gpu, &gpus)?, &need, &free);
    let (ways, used) = ways(&sizes, &problem, &free);
    let senders = |to: usize| {
        let goes = |i: &usize| ways[*i].iter().flatten().any(|(j, _)| *j == to) || *i == to;
        let mut devices: Vec<u32> = (0..gpus.len())
            .filter(goes)
            .map(|i| gpus[i].device)
            .collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    };
    let rooms: Vec<Option<Room>> = (0..gpus.len())
        .map(|j| {
            // Without room the data goes to the host, as it would without this.
            let made =
                (used[j] > 0).then(|| Room::new(&gpu.driver, gpus[j].device, used[j], &senders(j)));
            made.and_then(Result::ok)
        })
        .collect();
    let bases: Vec<Option<u64>> = rooms
        .iter()
        .map(|r| r.as_ref().map(|r| r.address))
        .collect();
    let contexts: Vec<_> = gpus.iter().map(|g| g.context).collect();
    let kept: Vec<Vec<(usize, Stretch)>> = std::thread::scope(|scope| {
        let bases = &bases;
        let threads: Vec<_> = gpus
            .into_iter()
            .zip(ways)
            .map(|(own, ways)| scope.spawn(move || send(run, gpu, own, &ways, bases)))
            .collect();
        let ended = threads.into_iter().map(|t| match t.join() {
            Ok(Ok(kept)) => kept,
            Ok(Err(e)) => {
                run.queue.fail(e);
                Vec::new()
            }
            Err(_) => {
                run.queue.fail(AppError::Fault("a thread that captures"));
                Vec::new()
            }
        });
        ended.collect()
    });
    let mut waiting: Vec<Vec<Stretch>> = contexts.iter().map(|_| Vec::new()).collect();
    for (to, stretch) in kept.into_iter().flatten() {
        waiting[to].push(stretch);
    }
    let all = contexts.into_iter().zip(waiting).zip(rooms);
    Ok(Staged {
        waiting: all
            .filter_map(|((context, stretches), room)| {
                Some(Waiting {
                    context,
                    stretches,
                    room: room?,
                })
            })
            .collect(),
    })
}

/// One GPU's part: everything on its way at once, then waited for. The stretches that wait on devices, where
/// they are now, with the GPU that has them.
fn send(
    run: &Run<'_>,
    gpu: &Gpu,
    own: OnDevice,
    ways: &[Way],
    bases: &[Option<u64>],
) -> Result<Vec<(usize, Stretch)>> {
    let op = AppError::device("copy on the device");
    if own.stretches.is_empty() {
        return Ok(Vec::new());
    }
    gpu.driver.set_current(own.context).map_err(&op)?;
    let stream = gpu.driver.create_stream(NON_BLOCKING, 0).map_err(&op)?;
    let (mut kept, mut left) = (Vec::new(), Vec::new());
    let mut result = Ok(());
    for (mut stretch, way) in own.stretches.into_iter().zip(ways) {
        let place = way.and_then(|(to, offset)| Some((to, bases[to]? + offset)));
        let Some((to, address)) = place.filter(|_| result.is_ok()) else {
            left.push(stretch);
            continue;
        };
        let bytes = stretch.bytes() as u64;
        match gpu.driver.copy(address, stretch.address, bytes, stream) {
            Ok(()) => {
                stretch.address = address;
                kept.push((to, stretch));
            }
            Err(e) => result = Err(op(e)),
        }
    }
    if result.is_ok() {
        result = Copies::new(run, gpu, own.context).and_then(|mut copies| {
            for stretch in left {
                copies.start(stretch)?;
            }
            copies.finish()
        });
    }
    // Nothing may be under way when the rooms go, whatever has happened.
    let ended = gpu.driver.synchronize_stream(stream).map_err(&op);
    let _ = gpu.driver.destroy_stream(stream);
    result.and(ended).map(|()| kept)
}

/// GPUs that the program uses and that have nothing to keep can have room for others.
fn add_idle(gpu: &Gpu, gpus: &mut Vec<OnDevice>) -> Result<()> {
    let op = AppError::device("look at the program's devices");
    for device in 0..gpu.driver.device_count() {
        let known = gpus.iter().any(|g| g.device == device);
        if !known && gpu.driver.primary_is_active(device).map_err(&op)? {
            gpus.push(OnDevice {
                context: gpu.primary(device)?,
                device,
                stretches: Vec::new(),
            });
        }
    }
    Ok(())
}

/// The room that each GPU has; a device that occurs twice has it once.
fn free(gpu: &Gpu, gpus: &[OnDevice], limit: u64) -> Result<Vec<u64>> {
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
fn links(gpu: &Gpu, gpus: &[OnDevice]) -> Result<Topology> {
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

fn room_of(stretch: &Stretch) -> u64 {
    (stretch.bytes() as u64).next_multiple_of(ALIGNED)
}

/// Each GPU's ways, and the room used on each: own room first, then the schedule's transfers, then the host.
/// `sizes` are those of each GPU's stretches.
fn ways(sizes: &[Vec<u64>], problem: &Problem, free: &[u64]) -> (Vec<Vec<Way>>, Vec<u64>) {
    let schedule = match sizes.len() {
        1 => Vec::new(),
        _ => optimum::optimum(problem).transfers,
    };
    let mut used = vec![0u64; sizes.len()];
    let mut all = Vec::with_capacity(sizes.len());
    for (i, sizes) in sizes.iter().enumerate() {
        let mut budgets = vec![(i, sizes.iter().sum::<u64>().min(free[i]))];
        let sent = schedule.iter().filter(|t| t.from == i);
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
        let (ways, used) = ways(&sizes, &problem, &free);
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
