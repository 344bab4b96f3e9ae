//! The instances of a function, and the requests that wait for one.
//!
//! ```text
//!            start                    release                 `keep` is over
//!  (none) ─────────► starting ─► busy ────────► idle ─────────────────────────► ending ─► (none)
//!                                 ▲ └─ broken, late ──────────────────────────────▲
//!                                 └───────────── take ──── idle
//! ```
//! A request takes an idle instance. If there is none it waits, in order, and an instance is started for it if fewer than
//! `most` are there, those that are being ended among them; whichever becomes free first is its own. A start that fails
//! fails the request that has waited longest. An instance answers one request at a time. Where `keep` is none, it answers one
//! request only: it is ended when it has answered, and whatever waits gets another.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::config::FrontConfig;
use crate::host::{Host, Instance, StartError};
use crate::metrics::{Counts, Metrics};

/// All instances of a function.
pub struct Pool {
    config: FrontConfig,
    host: Arc<dyn Host>,
    metrics: Arc<Metrics>,
    inner: Mutex<Inner>,
    /// Fewer instances are there than before.
    fewer: Notify,
}

#[derive(Default)]
struct Inner {
    /// The one used last is behind.
    idle: Vec<Idle>,
    starting: usize,
    busy: usize,
    ending: usize,
    waiting: VecDeque<oneshot::Sender<Result<Lease, Refusal>>>,
    /// Of the next idle instance.
    number: u64,
    closing: bool,
}

struct Idle {
    number: u64,
    instance: Arc<dyn Instance>,
}

/// Why a request gets no instance.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Too many wait.
    #[error("all {most} instances are busy and {queue} requests wait")]
    Full {
        /// The most instances.
        most: usize,
        /// Those that wait.
        queue: usize,
    },
    /// None was free in time.
    #[error("no instance was free within {} s", .0.as_secs_f64())]
    Late(Duration),
    /// None could be started.
    #[error("no instance could be started: {0}")]
    Start(StartError),
    /// The front ends.
    #[error("the function is not served any more")]
    Closing,
}

/// An instance that a request has to itself. Dropped, it is ended; see [`Lease::release`].
pub struct Lease {
    pool: Arc<Pool>,
    instance: Option<Arc<dyn Instance>>,
    /// Whether it was restored for this request.
    pub fresh: bool,
}

impl Lease {
    /// The instance.
    pub fn instance(&self) -> Option<&Arc<dyn Instance>> {
        self.instance.as_ref()
    }

    /// It has answered: it may answer the next request, if instances are kept.
    pub fn release(mut self) {
        if let Some(instance) = self.instance.take() {
            self.pool.free(instance, false);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(instance) = self.instance.take() {
            self.pool.metrics.lost();
            let mut inner = self.pool.inner.lock();
            inner.busy -= 1;
            self.pool.end(&mut inner, instance);
        }
    }
}

impl Pool {
    /// Without instances. Within a runtime of tokio's.
    pub fn new(config: FrontConfig, host: Arc<dyn Host>, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            config,
            host,
            metrics,
            inner: Mutex::default(),
            fewer: Notify::new(),
        })
    }

    /// What there is just now.
    pub fn counts(&self) -> Counts {
        let mut inner = self.inner.lock();
        inner.waiting.retain(|it| !it.is_closed());
        Counts {
            starting: inner.starting,
            busy: inner.busy,
            idle: inner.idle.len(),
            ending: inner.ending,
            waiting: inner.waiting.len(),
        }
    }

    /// An instance, at `until` at the latest.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn take(self: &Arc<Self>, until: Instant) -> Result<Lease, Refusal> {
        let given = {
            let mut inner = self.inner.lock();
            if inner.closing {
                return Err(Refusal::Closing);
            }
            if let Some(idle) = inner.idle.pop() {
                inner.busy += 1;
                return Ok(self.lease(idle.instance, false));
            }
            inner.waiting.retain(|it| !it.is_closed());
            let startable = self.config.most.saturating_sub(inner.there());
            let served = inner.starting + startable;
            if inner.waiting.len() >= self.config.queue + served {
                return Err(Refusal::Full {
                    most: self.config.most,
                    queue: inner.waiting.len(),
                });
            }
            let (give, given) = oneshot::channel();
            inner.waiting.push_back(give);
            self.start_for_waiting(&mut inner);
            given
        };
        match tokio::time::timeout_at(until.into(), given).await {
            Ok(Ok(given)) => given,
            Ok(Err(_)) => Err(Refusal::Closing),
            Err(_) => Err(Refusal::Late(self.config.wait)),
        }
    }

    /// Gives no instance to a request that comes from now on.
    pub fn close(self: &Arc<Self>) {
        let mut inner = self.inner.lock();
        inner.closing = true;
        inner.waiting.clear();
        for idle in std::mem::take(&mut inner.idle) {
            self.end(&mut inner, idle.instance);
        }
    }

    /// Waits until no instance is left.
    pub async fn empty(&self) {
        loop {
            let fewer = self.fewer.notified();
            if self.inner.lock().there() == 0 {
                return;
            }
            fewer.await;
        }
    }

    fn lease(self: &Arc<Self>, instance: Arc<dyn Instance>, fresh: bool) -> Lease {
        Lease {
            pool: Arc::clone(self),
            instance: Some(instance),
            fresh,
        }
    }

    /// Starts as many as there are requests that wait, as far as there is room.
    fn start_for_waiting(self: &Arc<Self>, inner: &mut Inner) {
        while inner.starting < inner.waiting.len() && inner.there() < self.config.most {
            inner.starting += 1;
            let pool = Arc::clone(self);
            drop(tokio::task::spawn_blocking(move || pool.start()));
        }
    }

    fn start(self: &Arc<Self>) {
        let begun = Instant::now();
        let started = self.host.start();
        match started {
            Ok(instance) => {
                self.metrics.restored(Some(begun.elapsed().as_secs_f64()));
                let mut inner = self.inner.lock();
                inner.starting -= 1;
                inner.busy += 1;
                drop(inner);
                self.free(instance.into(), true);
            }
            Err(error) => {
                self.metrics.restored(None);
                self.host.warn(&error.message);
                let mut inner = self.inner.lock();
                inner.starting -= 1;
                let mut refusal = Err(Refusal::Start(error));
                while let Some(first) = inner.waiting.pop_front() {
                    match first.send(refusal) {
                        Ok(()) => break,
                        Err(back) => refusal = back,
                    }
                }
                self.start_for_waiting(&mut inner);
                drop(inner);
                self.fewer.notify_waiters();
            }
        }
    }

    /// A busy instance has nothing to do: it is given to the request that has waited longest, or kept.
    fn free(self: &Arc<Self>, instance: Arc<dyn Instance>, fresh: bool) {
        let mut inner = self.inner.lock();
        let once = self.config.keep.is_zero();
        if inner.closing || (once && !fresh) {
            inner.busy -= 1;
            return self.end(&mut inner, instance);
        }
        while let Some(first) = inner.waiting.pop_front() {
            if first.is_closed() {
                continue;
            }
            // Unlocked: a lease that comes back is dropped here.
            drop(inner);
            match first.send(Ok(self.lease(Arc::clone(&instance), fresh))) {
                Ok(()) => return,
                Err(Ok(mut lease)) => drop(lease.instance.take()),
                Err(Err(_)) => {}
            }
            inner = self.inner.lock();
        }
        inner.busy -= 1;
        if once {
            return self.end(&mut inner, instance);
        }
        inner.number += 1;
        let number = inner.number;
        inner.idle.push(Idle { number, instance });
        let pool = Arc::clone(self);
        drop(inner);
        tokio::spawn(async move {
            // A clock is what is waited for.
            tokio::time::sleep(pool.config.keep).await;
            pool.expire(number);
        });
    }

    /// Ends an instance if it has been idle since it got this number.
    fn expire(self: &Arc<Self>, number: u64) {
        let mut inner = self.inner.lock();
        if let Some(at) = inner.idle.iter().position(|it| it.number == number) {
            let idle = inner.idle.remove(at);
            self.end(&mut inner, idle.instance);
        }
    }

    /// Ends an instance that is not counted any more.
    fn end(self: &Arc<Self>, inner: &mut Inner, instance: Arc<dyn Instance>) {
        inner.ending += 1;
        let pool = Arc::clone(self);
        let work = move || {
            instance.end();
            drop(instance);
            let mut inner = pool.inner.lock();
            inner.ending -= 1;
            pool.start_for_waiting(&mut inner);
            drop(inner);
            pool.fewer.notify_waiters();
        };
        drop(tokio::task::spawn_blocking(work));
    }
}

impl Inner {
    /// Instances that take room.
    fn there(&self) -> usize {
        self.idle.len() + self.starting + self.busy + self.ending
    }
}
