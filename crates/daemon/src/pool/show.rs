//! Describes the pool to users.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_control::agent::{FIRST_DEVICE, first_among};
use fermata_control::user::{SpareKind, SpareWorker, SpareWorkers, Text};

use super::shelf;
use crate::daemon::Daemon;
use crate::gpu;
use crate::gpu::driver::Driver;
use crate::memory;
use crate::worker::{Variables, Worker};

/// What is known of a kind before anything is asked that takes time.
struct Seen {
    driver: Driver,
    image: Option<PathBuf>,
    /// Number of the device that they begin with, among those that they see.
    first: u32,
    most: u64,
    ready: Vec<(Arc<Worker>, Instant)>,
    making: bool,
    awaited: u32,
    trouble: String,
    retry: Option<Duration>,
}

/// The workers that wait, and what memory they take.
pub fn spare_workers(daemon: &Daemon) -> SpareWorkers {
    let now = Instant::now();
    let (limits, tally, seen) = {
        let shelf = daemon.pool.shelf.lock();
        let kinds = shelf.kinds().iter().rev().map(|it| seen(it, now));
        (shelf.limits(), shelf.tally(), kinds.collect::<Vec<_>>())
    };
    let show = |kind: Seen| {
        let device = kind.ready.first().and_then(|it| {
            let devices = &it.0.devices;
            devices.get(first_among(kind.first, devices.len()) as usize)
        });
        let device = device.cloned();
        let by_process = device
            .as_ref()
            .and_then(|it| gpu::memory::by_process(daemon, &kind.driver, &it.uuid));
        let ready = kind.ready.iter().map(|(worker, since)| {
            let pid = worker.process.pid;
            let age = now.saturating_duration_since(*since);
            let told = by_process.as_ref().and_then(|it| it.get(&pid).copied());
            SpareWorker {
                pid,
                host: memory::of_processes([pid]),
                // A context of softgpu takes no device memory.
                device_bytes: told.or(kind.driver.soft.then_some(0)),
                age_seconds: age.as_secs(),
                ends_in_seconds: limits.idle.map(|it| it.saturating_sub(age).as_secs()),
            }
        });
        SpareKind {
            soft: kind.driver.soft,
            image: kind.image.map(|it| Text::from(it.as_os_str())),
            most: kind.most,
            ready: ready.collect(),
            device,
            making: u32::from(kind.making),
            awaited: kind.awaited,
            trouble: kind.trouble,
            retry_seconds: kind.retry.map(|it| it.as_secs()),
        }
    };
    SpareWorkers {
        most: limits.most as u64,
        idle_seconds: limits.idle.map(|it| it.as_secs()),
        idle_ended: tally.idle,
        failed: tally.failed,
        kinds: seen.into_iter().map(show).collect(),
    }
}

fn seen(kind: &shelf::Kind<super::Kind, Arc<Worker>>, now: Instant) -> Seen {
    let number = |it: &Variables| it.get(FIRST_DEVICE)?.to_str()?.parse().ok();
    let ready = kind.ready.iter();
    let retry = kind.not_before.filter(|it| *it > now);
    Seen {
        driver: kind.key.driver.clone(),
        image: kind.key.image.as_ref().map(|it| it.image.clone()),
        first: number(&kind.key.variables).unwrap_or(0),
        most: kind.most as u64,
        ready: ready.map(|it| (Arc::clone(&it.worker), it.since)).collect(),
        making: kind.making.is_some(),
        awaited: kind.awaited,
        trouble: retry.map(|_| kind.trouble.clone()).unwrap_or_default(),
        retry: retry.map(|it| it.saturating_duration_since(now)),
    }
}
