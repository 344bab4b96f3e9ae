//! A member: a process of a session that uses CUDA, with its agent and its worker.
//!
//! A session has a member for each process that has made a CUDA call. A member is identified by its process. Its worker may
//! exist before its agent (in a restore), and its agent may be disconnected while its worker still exists (of a parked program).

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use fermata_control::agent::Sight;
use fermata_control::user::{self, ArrivalStand};
use serde::{Deserialize, Serialize};

use super::detached::Detached;
use crate::agent::{Agent, Arrival};
use crate::proc::ProcessId;
use crate::worker::Worker;

/// A process that uses CUDA.
pub struct Member {
    /// The process, as the daemon sees it.
    pub process: ProcessId,
    /// Its agent, while it is connected; `None` as soon as another connection is expected.
    pub agent: Option<Arc<Agent>>,
    /// Its worker.
    pub worker: Option<Arc<Worker>>,
    /// Where it waits, if it is parked without any connection.
    pub detached: Option<Detached>,
    /// Receives its agent's next connection, while a thread waits for that.
    pub expected: Option<SyncSender<Arrival>>,
    /// The parts of it that have come back after the end of an earlier daemon.
    pub returned: Returned,
    /// Which GPUs it is to see, if it has said that.
    pub visible: Option<Sight>,
    worker_seen: Option<ProcessId>,
    /// Whether it lives and cannot be served any more, though its worker may not be lost.
    pub(super) unserved: bool,
}

/// The parts of a member that have come back to this daemon after the end of the last one.
#[derive(Default)]
pub struct Returned {
    /// The agent.
    pub agent: Option<Arrival>,
    /// The worker.
    pub worker: Option<Arc<Worker>>,
}

/// The record of a member, which outlives the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberMeta {
    /// The process.
    pub process: ProcessId,
    /// Its worker.
    pub worker: Option<ProcessId>,
    /// Where it waits, if it is parked without any connection.
    pub detached: Option<Detached>,
    /// Which GPUs it is to see.
    #[serde(default)]
    pub visible: Option<Sight>,
}

/// A member that is served: its agent and its worker are connected with the daemon and with each other.
#[derive(Clone)]
pub struct Served {
    /// The agent.
    pub agent: Arc<Agent>,
    /// The worker.
    pub worker: Arc<Worker>,
}

impl Member {
    pub(super) fn new(process: ProcessId) -> Self {
        Self {
            process,
            agent: None,
            worker: None,
            detached: None,
            expected: None,
            returned: Returned::default(),
            visible: None,
            worker_seen: None,
            unserved: false,
        }
    }

    /// The member from an earlier daemon's record; `None` if its process has ended.
    pub(super) fn found(meta: MemberMeta) -> Option<Self> {
        let member = Self {
            detached: meta.detached.filter(|it| !it.process.is_ending()),
            worker_seen: meta.worker.filter(ProcessId::alive),
            visible: meta.visible,
            ..Self::new(meta.process)
        };
        (!meta.process.is_ending()).then_some(member)
    }

    /// The record for the next daemon.
    pub(super) fn meta(&self) -> MemberMeta {
        MemberMeta {
            process: self.process,
            worker: self.worker_process(),
            detached: self.detached,
            visible: self.visible.clone(),
        }
    }

    /// The worker's process, as far as it is known.
    pub fn worker_process(&self) -> Option<ProcessId> {
        let connected = self.worker.as_ref().map(|it| it.process);
        connected.or(self.worker_seen)
    }

    /// The worker's process, as far as it is known and runs.
    pub fn living_worker(&self) -> Option<ProcessId> {
        self.worker_seen.filter(ProcessId::alive)
    }

    /// Notes the worker that the process is about to get, or has got.
    pub fn sees(&mut self, worker: ProcessId) {
        self.worker_seen = Some(worker);
    }

    /// Removes agent and worker: the process is parked, and its data is elsewhere.
    pub fn part(&mut self) {
        (self.agent, self.worker, self.worker_seen) = (None, None, None);
    }

    /// Whether the session is lost because of it.
    pub(super) fn is_lost(&self) -> bool {
        let worker = self.worker.as_ref();
        self.unserved || worker.is_some_and(|it| it.lost().is_some())
    }

    pub(super) fn served(&self) -> Option<Served> {
        Some(Served {
            agent: self.agent.clone()?,
            worker: self.worker.clone()?,
        })
    }
}

/// An on-demand restore or resumption, while the program runs.
pub struct Behind {
    /// Its state as a whole.
    pub stand: ArrivalStand,
    /// Whether the program was resumed: it cannot start again from an image.
    pub resumed: bool,
    /// The part of each worker.
    pub parts: Vec<Part>,
}

/// The data that one worker restores.
pub struct Part {
    /// The worker.
    pub worker: Arc<Worker>,
    /// Its progress.
    pub arrival: user::Arrival,
}

impl Behind {
    /// The progress over all workers; the steps are those of the worker that takes longest.
    pub fn arrival(&self) -> user::Arrival {
        let arrivals = || self.parts.iter().map(|it| &it.arrival);
        let slowest = arrivals().max_by(|a, b| a.seconds.total_cmp(&b.seconds));
        user::Arrival {
            stand: self.stand,
            done: arrivals().map(|it| it.done).sum(),
            total: arrivals().map(|it| it.total).sum(),
            start: arrivals().map(|it| it.start).fold(f64::INFINITY, f64::min),
            seconds: slowest.map_or(0.0, |it| it.seconds),
            steps: slowest.map(|it| it.steps.clone()).unwrap_or_default(),
            misses: arrivals().flat_map(|it| it.misses.clone()).collect(),
        }
    }
}
