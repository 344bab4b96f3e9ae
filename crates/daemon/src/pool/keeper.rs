//! The thread that keeps the pool within its limits, and the threads in which workers are made and ended, because a driver is
//! slow at both.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use fermata_control::worker::{FromWorker, Tier, TierState, ToWorker};
use fermata_store::moments;
use tracing::{info, warn};

use super::ending::end_beside;
use super::{Kind, Pool, Preload};
use crate::failure::Result;
use crate::proc::ProcessId;
use crate::worker::{OPEN_TIME, STALL_TIME, STEP_TIME, Worker, unexpected};

/// How often a worker is asked how much it has registered.
const TIER_TURN: Duration = Duration::from_millis(50);

/// Keeps `pool` until it is closed. Without a thread there are no spare workers; each session starts its own.
pub fn look_after(pool: &Arc<Pool>) {
    let pool = Arc::clone(pool);
    let named = std::thread::Builder::new().name("pool".into());
    let _ = named.spawn(move || turns(&pool));
}

fn turns(pool: &Arc<Pool>) {
    while let Some((old, kind)) = next(pool) {
        for worker in &old {
            let pid = worker.process.pid;
            info!("worker {pid} is ended: no session has used it within the limit");
        }
        end_beside(old);
        if let Some(kind) = kind {
            begin(pool, kind);
        }
    }
}

/// Waits for work: the workers to end and the kind to make. `None` when the pool is closed.
fn next(pool: &Pool) -> Option<(Vec<Arc<Worker>>, Option<Kind>)> {
    let mut shelf = pool.shelf.lock();
    loop {
        if shelf.is_closed() {
            return None;
        }
        let now = Instant::now();
        let (old, kind) = (shelf.expired(now), shelf.begin(now));
        if !old.is_empty() || kind.is_some() {
            return Some((old, kind));
        }
        match shelf.next() {
            Some(until) => drop(pool.changed.wait_until(&mut shelf, until)),
            None => pool.changed.wait(&mut shelf),
        }
    }
}

fn begin(pool: &Arc<Pool>, kind: Kind) {
    let work = {
        let (pool, kind) = (Arc::clone(pool), kind.clone());
        move || make(&pool, &kind)
    };
    let named = std::thread::Builder::new().name("pool-make".into());
    if let Err(error) = named.spawn(work) {
        failed(pool, &kind, &error.to_string());
    }
}

fn make(pool: &Arc<Pool>, kind: &Kind) {
    match pool.start(kind, true) {
        Ok(worker) => {
            moments::pass("spare-made");
            // A session that waits for it does not wait for that.
            if !pool.shelf.lock().is_awaited(kind) {
                warm(pool, &worker);
                if let Some(image) = &kind.image
                    && let Err(failure) = preload(&worker, image)
                {
                    worker.end();
                    return unfit(pool, kind, &image.image, &failure.message);
                }
                if kind.image.is_some() {
                    await_tier(pool, kind, &worker);
                }
            }
            put(pool, kind, &worker);
        }
        Err(failure) => failed(pool, kind, &failure.message),
    }
}

fn failed(pool: &Pool, kind: &Kind, why: &str) {
    let pause = pool.shelf.lock().failed(kind, why, Instant::now());
    pool.changed.notify_all();
    warn!(
        "no spare worker: {why}; the next one is made in {} s",
        pause.as_secs()
    );
}

/// Notes that the image cannot be preloaded; its restore reports why. No worker is preloaded for it before that.
fn unfit(pool: &Pool, kind: &Kind, image: &Path, why: &str) {
    pool.shelf.lock().unfit(kind);
    pool.changed.notify_all();
    warn!("no worker waits for the image `{}`: {why}", image.display());
}

/// Puts a worker on the shelf, from which a session can take it.
fn put(pool: &Arc<Pool>, kind: &Kind, worker: &Arc<Worker>) {
    let (weak, process) = (Arc::downgrade(pool), worker.process);
    // Set before a session can take the worker, because the session sets its own watcher.
    worker.watch(move |reason| lost(&weak, process, &reason));
    let put = {
        let mut shelf = pool.shelf.lock();
        shelf.made(kind, Arc::clone(worker), Instant::now())
    };
    pool.changed.notify_all();
    if let Err(worker) = put {
        worker.end();
        return;
    }
    if let Some(reason) = worker.lost() {
        // It was lost before it was on the shelf.
        lost(&Arc::downgrade(pool), process, &reason);
    }
}

/// Notes that a worker has ended by itself.
fn lost(pool: &Weak<Pool>, process: ProcessId, reason: &str) {
    let Some(pool) = pool.upgrade() else { return };
    let died = {
        let mut shelf = pool.shelf.lock();
        shelf.died(|it| it.process == process, reason, Instant::now())
    };
    let Some((_dead, pause)) = died else { return };
    pool.changed.notify_all();
    warn!(
        "worker {}, which waited for a session, is lost: {reason}; another one is made in {} s",
        process.pid,
        pause.as_secs()
    );
}

/// Has a worker preload the part of an image, without the program's memory.
fn preload(worker: &Worker, image: &Preload) -> Result<()> {
    let request = ToWorker::Preload {
        store: image.store.clone(),
        image: image.part.clone(),
        digests: image.digests.clone(),
    };
    let ring = worker.ring().ok();
    let ring: Vec<_> = ring.iter().map(|ring| ring.as_fd()).collect();
    let answer = worker.request(&request, &ring, STALL_TIME, &mut |_, _| {})?;
    match answer {
        FromWorker::Preloaded => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// Waits until the worker has registered the packs of the memory tier, whose data comes at the link's rate, or cannot.
fn await_tier(pool: &Pool, kind: &Kind, worker: &Worker) {
    let Some(tier) = &pool.tier else { return };
    let until = Instant::now() + OPEN_TIME;
    let comes = |told: &Tier| matches!(told.state, TierState::Registering | TierState::Paused);
    while tier.keep(worker).is_ok_and(|told| comes(&told))
        && Instant::now() < until
        && !pool.shelf.lock().is_awaited(kind)
    {
        worker.pause(TIER_TURN);
    }
}

/// What its first checkpoint needs is made while it waits; the memory tier brings that along.
fn warm(pool: &Pool, worker: &Worker) {
    worker.make_ring();
    if pool.tier.as_ref().is_some_and(|tier| tier.brings_staging()) {
        return;
    }
    let warm = worker.request(&ToWorker::Warm, &[], STEP_TIME, &mut |_, _| {});
    if let Err(failure) = warm {
        warn!("a worker is not warm: {}", failure.message);
    }
}
