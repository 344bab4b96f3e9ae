//! Holds the streams before a stop: the device finishes the work that it has, while the program runs on.
//!
//! ```text
//!            All                  what the device has is done        Closing            Drain
//!   Off ───────────► all held ───────────────────────────────► ring taken whole ───────────► detached
//!    ▲  ▲              │  ▲                                      │
//!    │  ├──────────────┼──┼── a message, if the daemon has ended ┘
//!    │  └── Off ───────┘  │ that work is done
//!    └─────── Off ── Some: streams with long work stay held until it is done, the others go on
//!                    Step: the same, but each other stream only up to work that may wait for other ranks
//! ```
//! A collective ends when every rank has entered it. With `Some`, ranks that are not held may have entered the next
//! collective by then, where they wait for the rank that is held. With `Step`, all ranks stop behind the same collective.
//!
//! A daemon that ends may have told a drained program to detach. The program then takes what is parked along, so nothing of
//! it is issued until the program has sent a message, as it does when it runs on.

use fermata_abi::op::{ExecId, FunctionId, Op, StreamRef};
use fermata_control::worker::{Holding, Meeting, StreamWork};

use crate::parked::Hold;
use crate::queues::{Busy, What};
use crate::server::Server;
use crate::waiting::{Orphans, Then, Waiting};

impl Server {
    /// Holds streams as asked; returns whether the device is idle, and what each busy stream is executing.
    pub(crate) fn hold(&mut self, asked: fermata_control::worker::Hold) -> Holding {
        use fermata_control::worker::Hold as Asked;
        self.forsaken = false;
        match asked {
            Asked::Off => self.hold = Hold::Off,
            Asked::All if self.hold != Hold::All => {
                self.hold = Hold::All;
                self.drained = false;
                self.holds += 1;
                // The program may have changed its graphs.
                self.collectives.clear();
                self.watch_device();
            }
            Asked::Busy if !matches!(self.hold, Hold::Some(_)) => {
                let busy = self.queues.busy_streams(None);
                self.hold = Hold::Some(busy.into_iter().collect());
            }
            Asked::Same => self.pace_all(),
            Asked::Step(to) => {
                self.pace_all();
                self.look_at_paces();
                let busy = self.queues.busy_streams(None);
                self.hold = Hold::Step(busy.into_iter().collect(), to);
            }
            Asked::Closing => self.hold = Hold::Closing,
            Asked::All | Asked::Busy => {}
        }
        let idle = self.hold.is_whole() && self.settled == self.holds;
        let busy = if idle { Vec::new() } else { self.busy() };
        Holding { idle, busy }
    }

    /// Ends the hold of a daemon that has ended: at once, or, if the program stands still, with its next message.
    pub(crate) fn forsake(&mut self) {
        self.forsaken = self.hold == Hold::Closing && self.drained;
        if !self.forsaken {
            self.hold = Hold::Off;
        }
    }

    /// Notes a message that comes while streams are held.
    pub(crate) fn note_message(&mut self, op: &Op<'_>) {
        self.drained = matches!(op, Op::Drain);
        if self.forsaken && !self.drained {
            self.forsaken = false;
            self.hold = Hold::Off;
        }
    }

    /// Marks the end of the work that the device has now.
    fn watch_device(&mut self) {
        // A dead context has no work to wait for.
        let marks = self.mark_all().unwrap_or_default();
        self.waiting.push(Waiting {
            ticket: None,
            context: None,
            orphans: Orphans::All,
            reports: false,
            marks,
            event: None,
            then: Then::Settled(self.holds),
            failed: None,
            looks: 0,
        });
    }

    /// Holds a stream that has been given work which may wait for other ranks.
    pub(crate) fn note_meeting(&mut self, stream: StreamRef) {
        let Hold::Step(_, to) = &self.hold else {
            return;
        };
        let meets = match (*to, self.work.what) {
            (Meeting::Kernels, What::Kernel(_) | What::Graph(_)) => true,
            (Meeting::Collectives, what) => self.meets_others(what),
            _ => false,
        };
        if let (Hold::Step(held, _), true) = (&mut self.hold, meets) {
            held.insert(stream);
        }
    }

    /// Whether work ends only when other ranks have issued theirs, as far as names tell.
    fn meets_others(&mut self, what: What) -> bool {
        match what {
            What::Kernel(handle) => self.is_collective(handle),
            What::Graph(handle) => match self.collectives.get(&handle) {
                Some(known) => *known,
                None => {
                    let holds = self.holds_collective(handle);
                    self.collectives.insert(handle, holds);
                    holds
                }
            },
            _ => false,
        }
    }

    /// Whether a kernel belongs to a collective: one of NCCL's, by its C or C++ name.
    fn is_collective(&self, handle: FunctionId) -> bool {
        let known = self.site.session.functions.get(handle);
        known.is_ok_and(|it| it.name.contains("nccl"))
    }

    /// Whether an executable graph contains such a kernel. An unknown graph counts as one that does.
    fn holds_collective(&self, handle: ExecId) -> bool {
        let Ok(known) = self.site.session.executables.get(handle) else {
            return true;
        };
        let mut holds = false;
        let mut visit = |function| holds = holds || self.is_collective(function);
        known.graph.kernels(&mut |kernel| visit(kernel.function));
        holds
    }

    /// Records an event in each stream, so that the end of its last few pieces of work is seen.
    fn pace_all(&mut self) {
        for stream in self.queues.busy_streams(None) {
            if self.queues.is_open(stream) {
                let event = self.record_mark(stream).ok();
                self.queues.paced(stream, event);
            }
        }
    }

    fn look_at_paces(&mut self) {
        for stream in self.queues.busy_streams(None) {
            while self.pass_pace(stream) {}
        }
    }

    /// What each stream is executing, as the driver reports it now.
    fn busy(&mut self) -> Vec<StreamWork> {
        self.look_at_paces();
        let streams = self.queues.busy_streams(None);
        let at: Vec<_> = streams
            .into_iter()
            .filter_map(|it| self.queues.at(it))
            .collect();
        let named = at.into_iter().map(|it| {
            let collective = it.all.iter().any(|what| self.meets_others(*what));
            self.name(&it, collective)
        });
        named.collect()
    }

    fn name(&self, busy: &Busy, collective: bool) -> StreamWork {
        let session = &self.site.session;
        let kernel = |handle: FunctionId| {
            let known = session.functions.get(handle);
            known.map_or("a kernel".to_owned(), |it| format!("kernel `{}`", it.name))
        };
        let what = match busy.what {
            What::Kernel(handle) => kernel(handle),
            What::Graph(handle) => format!("graph {handle:#x}"),
            What::Copy => "a copy".to_owned(),
            What::Fill => "a fill".to_owned(),
            What::Callback => "a host function".to_owned(),
            What::Wait => "a wait for an event or a value".to_owned(),
            What::Other => "work".to_owned(),
        };
        StreamWork {
            what,
            stream: busy.stream.stream.raw(),
            count: busy.upto,
            waits: busy.what == What::Wait,
            collective,
        }
    }
}
