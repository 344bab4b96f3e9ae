//! A process of a session that uses CUDA: its agent, its worker, and where they stand.
//!
//! A session has none until a process of it makes its first CUDA call, and one for each process that has. A member is
//! named by its process; its worker may be there before its agent (a restore), and its agent may be gone while its
//! worker is still there (a program that is parked).

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use fermata_control::agent::Visible;
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
    /// Its agent, while it is connected.
    pub agent: Option<Arc<Agent>>,
    /// Its worker.
    pub worker: Option<Arc<Worker>>,
    /// Where it waits, if it is parked without any connection.
    pub detached: Option<Detached>,
    /// Where its agent is to go that is waited for.
    pub expected: Option<SyncSender<Arrival>>,
    /// What of it has come back after another daemon's end.
    pub returned: Returned,
    /// Which GPUs it is to see, if it has said that.
    pub visible: Option<Visible>,
    worker_seen: Option<ProcessId>,
}

/// What of a member has come back to this daemon after the end of the last one.
#[derive(Default)]
pub struct Returned {
    /// The agent.
    pub agent: Option<Arrival>,
    /// The worker.
    pub worker: Option<Arc<Worker>>,
}

/// What of a member outlives its daemon.
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
    pub visible: Option<Visible>,
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
        }
    }

    /// As another daemon has noted it down; none if its process has ended.
    pub(super) fn found(meta: MemberMeta) -> Option<Self> {
        let member = Self {
            detached: meta.detached.filter(|it| it.process.alive()),
            worker_seen: meta.worker.filter(ProcessId::alive),
            visible: meta.visible,
            ..Self::new(meta.process)
        };
        meta.process.alive().then_some(member)
    }

    /// For the next daemon.
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

    /// It has neither agent nor worker any more: its process is parked, and its data elsewhere.
    pub fn part(&mut self) {
        (self.agent, self.worker, self.worker_seen) = (None, None, None);
    }

    pub(super) fn served(&self) -> Option<Served> {
        Some(Served {
            agent: self.agent.clone()?,
            worker: self.worker.clone()?,
        })
    }
}

/// A restore behind a running program.
pub struct Behind {
    /// How it stands as a whole.
    pub stand: ArrivalStand,
    /// Whether the program was resumed: it cannot start again from an image.
    pub resumed: bool,
    /// What each worker brings.
    pub parts: Vec<Part>,
}

/// What one worker brings.
pub struct Part {
    /// The worker.
    pub worker: Arc<Worker>,
    /// How far it is.
    pub arrival: user::Arrival,
}

impl Behind {
    /// How far it is, over all workers; the steps are those of the worker that takes longest.
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
