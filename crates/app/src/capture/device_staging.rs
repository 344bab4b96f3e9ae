//! Captured data waits in device memory: its own GPU's as far as it is free, then peers', by the planner's
//! schedule, and what is left goes to the host at once (*Collaborative Multi-Level Checkpointing*, section II).
//!
//! ```text
//!  GPU 0  changed blocks ─┬─► own memory ────────┐
//!                         ├─► GPU 1's memory ────┼─► drained to the host, written; the memory is freed
//!                         └─► host ─► writers    │
//!  GPU 1  changed blocks ───► own memory ────────┘
//!                                   captured ▲ the program goes on
//! ```
//! The program allows that by `stage.device_bytes`; a part of each device's memory stays free in any
//! case, and where memory cannot be had after all the data goes to the host as it would without. A peer is another GPU
//! of this process, or one that another rank of the node has offered (`offers.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use fermata_device::{ContextHandle, DeviceFacts, Driver, PhysicalHandle};
use fermata_planner::Problem;

use super::copies::Copies;
use super::copy_streams::Streams;
use super::offers::{Node, offers};
use super::piece::{OnDevice, Stretch};
use super::placement::{Way, schedule, staged_bytes, ways};
use super::run::Run;
use crate::gpu::Gpu;
use crate::{AppError, Result};

/// Both read and written, `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: u32 = 3;

/// Device memory of ours; freed when dropped.
struct StagingArea {
    driver: Arc<Driver>,
    memory: PhysicalHandle,
    address: u64,
    bytes: u64,
}

impl StagingArea {
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
        let area = Self {
            driver: Arc::clone(driver),
            memory,
            address,
            bytes,
        };
        driver.set_access(address, bytes, READ_WRITE, devices)?;
        Ok(area)
    }
}

impl Drop for StagingArea {
    fn drop(&mut self) {
        // A dead device cannot give anything back; its memory went with it.
        let _ = self.driver.unmap(self.address, self.bytes);
        let _ = self.driver.release_addresses(self.address, self.bytes);
        let _ = self.driver.release_memory(self.memory);
    }
}

/// Data that waits in one GPU's memory, and the context that copies it from there.
struct Waiting {
    context: ContextHandle,
    stretches: Vec<Stretch>,
    area: Arc<StagingArea>,
}

/// How long data took to get where the schedule wanted it, in seconds, and how long it was to take.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moved {
    pub(crate) seconds: f64,
    pub(crate) predicted: f64,
}

/// All data that waits on devices.
#[derive(Default)]
pub(crate) struct Staged {
    waiting: Vec<Waiting>,
    pub(crate) moved: Moved,
}

impl Staged {
    /// Copies all of it to the host, on a thread for each GPU and who reaches it; the memory is free afterwards.
    pub(crate) fn drain(self, run: &Run<'_>, gpu: &Gpu) -> Result<()> {
        std::thread::scope(|scope| {
            for waiting in self.waiting {
                scope.spawn(move || {
                    let Waiting {
                        context,
                        stretches,
                        area,
                    } = waiting;
                    run.queue.watch(|| {
                        let mut copies = Copies::new(run, gpu, context)?;
                        for stretch in stretches {
                            copies.start(stretch)?;
                        }
                        copies.finish()
                    });
                    // Only now nothing is under way from there.
                    drop(area);
                });
            }
        });
        Ok(())
    }
}

/// Copies what must be kept where the schedule says; it may change afterwards.
pub(crate) fn stage(run: &Run<'_>, gpu: &Gpu, mut gpus: Vec<OnDevice>) -> Result<Staged> {
    if gpus.is_empty() && run.plan.tell.is_none() {
        return Ok(Staged::default());
    }
    add_idle(gpu, &mut gpus)?;
    let sizes: Vec<Vec<u64>> = gpus
        .iter()
        .map(|g| g.stretches.iter().map(staged_bytes).collect())
        .collect();
    let need: Vec<u64> = sizes.iter().map(|s| s.iter().sum()).collect();
    let mine = offers(gpu, &gpus, &need, run.plan.stage)?;
    let node = match run.plan.tell {
        Some(tell) => tell(mine)?,
        None => Node::alone(mine),
    };
    let free = node.free();
    let problem = Problem::from_sizes(node.links(), &node.need(), &free);
    let schedule = schedule(&problem, run.plan.schedule);
    let first = node.own.start;
    let (ways, used) = ways(&sizes, first, &schedule, &free);
    // The devices that this process has to copy to a GPU, and the GPU itself where it is the process's own.
    let senders = |to: usize| {
        let goes = |i: &usize| ways[*i].iter().flatten().any(|(j, _)| *j == to) || first + *i == to;
        let mut devices: Vec<u32> = (0..gpus.len())
            .filter(goes)
            .map(|i| gpus[i].device)
            .collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    };
    let facts = gpu.facts()?;
    let area = |j: usize| {
        let there = |it: &DeviceFacts| it.uuid_text() == node.offers[j].gpu;
        let device = facts.iter().position(there)?;
        let made = StagingArea::new(&gpu.driver, device as u32, used[j], &senders(j));
        // Without an area the data goes to the host, as it would without this.
        made.ok().map(Arc::new)
    };
    let areas: Vec<Option<Arc<StagingArea>>> = (0..used.len())
        .map(|j| (used[j] > 0).then(|| area(j)).flatten())
        .collect();
    let bases: Vec<Option<u64>> = areas
        .iter()
        .map(|r| r.as_ref().map(|r| r.address))
        .collect();
    let contexts: Vec<_> = gpus.iter().map(|g| g.context).collect();
    let begun = Instant::now();
    let kept: Vec<Vec<(usize, Stretch)>> = std::thread::scope(|scope| {
        let bases = &bases;
        let threads: Vec<_> = gpus
            .into_iter()
            .zip(ways)
            .enumerate()
            .map(|(i, (own, ways))| {
                scope.spawn(move || send(run, gpu, (first + i, own), &ways, bases))
            })
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
    let moved = Moved {
        seconds: begun.elapsed().as_secs_f64(),
        predicted: schedule.seconds,
    };
    // Its own GPU drains data if this process has one of its contexts; else the GPU that has sent it.
    let mut waiting: BTreeMap<(usize, usize), Vec<Stretch>> = BTreeMap::new();
    for (from, kept) in kept.into_iter().enumerate() {
        for (to, stretch) in kept {
            let by = if node.own.contains(&to) {
                to - first
            } else {
                from
            };
            waiting.entry((to, by)).or_default().push(stretch);
        }
    }
    let waiting = waiting.into_iter().filter_map(|((to, by), stretches)| {
        Some(Waiting {
            context: contexts[by],
            stretches,
            area: Arc::clone(areas[to].as_ref()?),
        })
    });
    Ok(Staged {
        waiting: waiting.collect(),
        moved,
    })
}

/// One GPU's part: everything on its way at once, then waited for. The stretches that wait on devices, where
/// they are now, with the GPU that has them. `index` is its place among the node's.
fn send(
    run: &Run<'_>,
    gpu: &Gpu,
    (index, own): (usize, OnDevice),
    ways: &[Way],
    bases: &[Option<u64>],
) -> Result<Vec<(usize, Stretch)>> {
    if own.stretches.is_empty() {
        return Ok(Vec::new());
    }
    let op = AppError::device("copy on the device");
    gpu.driver.set_current(own.context).map_err(&op)?;
    // What stays here does not wait behind what goes over a link.
    let mut streams = Streams::new(&gpu.driver, index)?;
    let (mut kept, mut left) = (Vec::new(), Vec::new());
    let mut result = Ok(());
    for (mut stretch, way) in own.stretches.into_iter().zip(ways) {
        let place = way.and_then(|(to, offset)| Some((to, bases[to]? + offset)));
        let Some((to, address)) = place.filter(|_| result.is_ok()) else {
            left.push(stretch);
            continue;
        };
        result = streams.copy(to, stretch.address, address, stretch.bytes() as u64);
        stretch.address = address;
        kept.push((to, stretch));
    }
    if result.is_ok() {
        result = streams.flush();
    }
    if result.is_ok() {
        result = Copies::new(run, gpu, own.context).and_then(|mut copies| {
            for stretch in left {
                copies.start(stretch)?;
            }
            copies.finish()
        });
    }
    // Nothing may be under way when the areas are freed, whatever has happened.
    let ended = streams.end();
    result.and(ended).map(|()| kept)
}

/// GPUs that the program uses and that have nothing to keep can take data of others.
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
