//! The state of the thread that serves one program, and how serving ends. The work is in other files: the decode loop in
//! `serve`, the operations in `dispatch`, answers that wait for the device in `completions`, parked operations in
//! `parked`.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use fermata_abi::op::{Address, ContextId, DeviceInfo, ExecId, FileId, HeldImageId};
use fermata_device::EventHandle;
use fermata_engine::restore::Guard;
use fermata_engine::{Gate, Site};
use fermata_wire::{Consumer, Presence, Replier, Rhythm, Side, Tally, WireError};
use parking_lot::Mutex;

use crate::callbacks::Callbacks;
use crate::errors::{Faults, OpError};
use crate::lot::Lot;
use crate::parked::{Hold, Parked};
use crate::printing;
use crate::queues::{Queues, Work};
use crate::scratch::{EventPool, Scratch, Staging};
use crate::trace::Recorder;
use crate::waiting::{Mark, Waiting};

/// Requests of the conversation to a running server.
#[derive(Default)]
pub(crate) struct Requests {
    pub stop: AtomicBool,
    /// Whether the server still checks common memory at the program's end.
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
    /// The program has left or ended while operations were still parked and cannot be kept: the session's state is not what
    /// the program has asked for.
    Unfinished,
    /// The program has broken the protocol.
    Broken(WireError),
}

/// The state that outlives an attachment.
pub(crate) struct Held {
    pub site: Site,
    pub faults: Faults,
    /// Stays registered for the next attachment.
    pub staging: Staging,
    /// Small pinned buffers, kept for the next attachment.
    pub scratch: Scratch,
    /// Guards the common memory of the session.
    pub guard: Option<Guard>,
}

/// The file of a region that the program has sent; without a descriptor if this process has reached its limit of files.
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
    /// Marks that were seen to have been passed, and are not accounted for yet.
    pub passed: Vec<Mark>,
    /// Marks among them that have no event.
    pub light: usize,
    pub queues: Queues,
    /// The parked operations.
    pub lot: Lot<Parked>,
    /// Which streams get no work for now.
    pub hold: Hold,
    /// Whether the last message since all streams were held was a Drain: the program stands still, or is about to.
    pub drained: bool,
    /// Whether the daemon has ended while the program stood still: the next message shows that the program runs.
    pub forsaken: bool,
    /// The work of the current operation.
    pub work: Work,
    /// How often all streams have been held. `settled` is the last of these for which the device has become idle.
    pub holds: u64,
    pub settled: u64,
    /// Whether a launched graph contains a collective, for the graphs that a stop has asked about.
    pub collectives: HashMap<ExecId, bool>,
    /// Whether the program has announced itself.
    pub come: bool,
    pub faults: Faults,
    pub callbacks: Arc<Callbacks>,
    pub devices: Vec<DeviceInfo>,
    /// Regions' files that have arrived before their operation.
    pub arrived: HashMap<Address, Arrived>,
    /// Files with module images that have arrived before their operation.
    pub files: HashMap<FileId, Option<OwnedFd>>,
    /// Libraries' images that could not be read from their files, and why.
    pub unread: HashMap<HeldImageId, OpError>,
    /// Regions that other processes may share, whose files the program has yet to send.
    pub absent: Vec<Address>,
    /// Contexts with a module that prints, or that has not been examined yet.
    pub printing: HashSet<ContextId>,
    /// Watches operations while a checkpoint or a restore is under way.
    pub gate: Option<Box<dyn Gate>>,
    /// Guards the session's common memory, while it has any.
    pub guard: Option<Guard>,
    /// Allocations that the program has freed, but that the gate still needs.
    pub limbo: Vec<Address>,
    /// Whether the session will be rolled back: the program gets no answer any more.
    pub condemned: bool,
    /// Whether the program was seen to be dead while an operation waited at the gate: no other may pass it.
    pub gone: bool,
    /// Records what operations touch, in a traced session.
    pub recorder: Option<Box<Recorder>>,
    /// Counts operations, where the environment asks for it.
    pub tally: Option<Tally>,
    pub many_cores: bool,
    /// How long waits for the device usually take.
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
            passed: Vec::new(),
            light: 0,
            queues: Queues::default(),
            lot: Lot::default(),
            hold: Hold::Off,
            drained: false,
            forsaken: false,
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
            unread: HashMap::new(),
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

    /// The current time if work is being counted.
    pub fn clock(&self) -> Option<Instant> {
        self.tally.as_ref().map(|_| Instant::now())
    }

    /// Counts the time since `begun` under the name `what`.
    pub fn count(&self, what: &str, begun: Option<Instant>) {
        if let (Some(tally), Some(begun)) = (&self.tally, begun) {
            tally.add(what, begun.elapsed());
        }
    }
}
