//! The state of the thread that serves one program, and how it ends. What it does is in the files above this one:
//! the decode loop (`serve`), the operations (`dispatch`), what waits for the device (`completions`), what is parked
//! (`parked`).

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use fermata_abi::op::{Address, ContextId, DeviceInfo, ExecId, FileId};
use fermata_device::EventHandle;
use fermata_engine::restore::Guard;
use fermata_engine::{Gate, Site};
use fermata_wire::{Consumer, Presence, Replier, Rhythm, Side, Tally, WireError};
use parking_lot::Mutex;

use crate::callbacks::Callbacks;
use crate::errors::Faults;
use crate::lot::Lot;
use crate::parked::{Hold, Parked};
use crate::printing;
use crate::queues::{Queues, Work};
use crate::scratch::{EventPool, Scratch, Staging};
use crate::trace::Recorder;
use crate::waiting::Waiting;

/// Requests of the conversation to a running server.
#[derive(Default)]
pub(crate) struct Requests {
    pub stop: AtomicBool,
    /// Whether the server has something to learn of the program's end.
    pub learns: AtomicBool,
    pub errands: Mutex<Vec<Errand>>,
}

/// Something to be done between two operations, by the thread that serves.
pub(crate) type Errand = Box<dyn FnOnce(&mut Server) + Send>;

/// Why serving ended.
pub(crate) enum Ended {
    /// As asked.
    Detached,
    /// The program has let go of the ring, as it does for a checkpoint.
    ProgramLeft,
    /// The program has ended.
    ProgramGone,
    /// As the first two, but operations were still waiting for their turn: what there is now is not what the
    /// program has asked for.
    Unfinished,
    /// What the program sent is no conversation.
    Broken(WireError),
}

/// What serving begins with and leaves behind.
pub(crate) struct Held {
    pub site: Site,
    pub faults: Faults,
    /// Once registered it stays so, for the next attachment.
    pub staging: Staging,
    /// Likewise.
    pub scratch: Scratch,
    /// What watches memory that other sessions have, too.
    pub guard: Option<Guard>,
}

/// The file of a region, as the program has sent it; without a descriptor where this process may open no more.
pub(crate) struct Arrived {
    pub fd: Option<OwnedFd>,
    pub size: u64,
    pub offset: u64,
}

/// The state of serving one program.
pub(crate) struct Server {
    pub site: Site,
    pub replier: Replier,
    pub side: Arc<Side>,
    pub presence: Presence,
    pub staging: Staging,
    pub scratch: Scratch,
    pub events: EventPool,
    /// Events that are gone for the program and still waited for.
    pub retired: Vec<EventHandle>,
    pub waiting: Vec<Waiting>,
    /// Marks among them that have no event.
    pub light: usize,
    pub queues: Queues,
    /// What waits for room in a stream's queue.
    pub lot: Lot<Parked>,
    /// Streams that get nothing for now.
    pub hold: Hold,
    /// Of the operation at hand, for its stream.
    pub work: Work,
    /// How often all streams were held, and for which of these times the device has come to its end.
    pub holds: u64,
    pub settled: u64,
    /// Whether graphs that were launched hold a collective, as far as a stop has asked.
    pub collectives: HashMap<ExecId, bool>,
    /// Whether the program has announced itself.
    pub come: bool,
    pub faults: Faults,
    pub callbacks: Arc<Callbacks>,
    pub devices: Vec<DeviceInfo>,
    /// Descriptors that came ahead of their operation, or were to come.
    pub arrived: HashMap<Address, Arrived>,
    /// Likewise of files with images.
    pub files: HashMap<FileId, Option<OwnedFd>>,
    /// Regions that other processes may share, whose files the program is to send.
    pub absent: Vec<Address>,
    /// Contexts with a module that prints, or of which that is not known yet.
    pub printing: HashSet<ContextId>,
    /// Watches operations while a checkpoint or a restore is under way.
    pub gate: Option<Box<dyn Gate>>,
    /// Watches operations as long as the session has device memory in common with others.
    pub guard: Option<Guard>,
    /// Allocations that the program has freed and the gate holds.
    pub limbo: Vec<Address>,
    /// Whether the session will be rolled back: the program gets no answer any more.
    pub condemned: bool,
    /// Whether the program was seen to be dead while an operation waited at the gate: no other may pass it.
    pub gone: bool,
    /// Notes what operations touch, in a session that is traced.
    pub recorder: Option<Box<Recorder>>,
    /// Counts operations, where the environment asks for it.
    pub tally: Option<Tally>,
    pub many_cores: bool,
    /// Of waits for the device.
    pub rhythm: Rhythm,
}

impl Server {
    /// A server for `consumer`'s program.
    pub fn new(
        held: Held,
        consumer: &Consumer,
        side: Arc<Side>,
        callbacks: Arc<Callbacks>,
        devices: Vec<DeviceInfo>,
        gate: Option<Box<dyn Gate>>,
    ) -> Self {
        let Held {
            site,
            faults,
            staging,
            scratch,
            guard,
        } = held;
        let printing = printing::contexts(&site);
        Self {
            site,
            replier: consumer.replier(),
            side,
            presence: consumer.presence(),
            staging,
            scratch,
            events: EventPool::default(),
            retired: Vec::new(),
            waiting: Vec::new(),
            light: 0,
            queues: Queues::default(),
            lot: Lot::default(),
            hold: Hold::Off,
            work: Work::default(),
            holds: 0,
            settled: 0,
            collectives: HashMap::new(),
            come: false,
            faults,
            callbacks,
            devices,
            arrived: HashMap::new(),
            absent: Vec::new(),
            files: HashMap::new(),
            printing,
            gate,
            guard,
            limbo: Vec::new(),
            condemned: false,
            gone: false,
            recorder: Recorder::of_session(),
            tally: Tally::of_environment("worker"),
            many_cores: std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 4),
            rhythm: Rhythm::default(),
        }
    }

    /// The time, if what is done from now on is to be counted.
    pub fn clock(&self) -> Option<Instant> {
        self.tally.as_ref().map(|_| Instant::now())
    }

    /// Counts what has been done since then.
    pub fn count(&self, what: &str, begun: Option<Instant>) {
        if let (Some(tally), Some(begun)) = (&self.tally, begun) {
            tally.add(what, begun.elapsed());
        }
    }
}
