//! The order of parked operations: a queue for each stream, and a list (`aside`) for operations without a stream.
//!
//! ```text
//!   stream A   first ─ next ─ next ...      only the first of a queue is looked at; it is ready when
//!   stream B   first ─ next ...             every operation that it depends on has left
//!   aside      each by itself
//! ```
//! The dependencies of an operation are found once, when it is parked: of each stream, event, function and graph that
//! it touches, the last operation that touches it too, which depends on those before it. So parking an operation costs
//! the same however many are parked.

use std::collections::VecDeque;

use fermata_abi::op::{EventId, STREAM_LEGACY, StreamRef};
use fermata_engine::HandleMap;

use crate::graph_events::GraphEvents;
use crate::touches::{Launched, Scope, Touches};

/// Counts what is parked, from 0.
type Number = u64;

struct Entry<T> {
    number: Number,
    touches: Touches,
    behind: Vec<Number>,
    bytes: usize,
    what: T,
}

/// The last operations that have used or changed a function or an executable graph.
#[derive(Default)]
struct Users {
    changed: Option<Number>,
    /// The last use by each stream since the change.
    used: HandleMap<StreamRef, Number>,
}

/// The parked operations; `T` is what is stored of each.
pub(crate) struct Lot<T> {
    lines: HandleMap<StreamRef, VecDeque<Entry<T>>>,
    aside: VecDeque<Entry<T>>,
    /// Whether each number from `first` on is still parked.
    parked: VecDeque<bool>,
    first: Number,
    /// The last operation that touched each event.
    events: HandleMap<EventId, Number>,
    users: HandleMap<Launched, Users>,
    /// The events that launches of executable graphs touch; to be kept up to date by who parks.
    pub graphs: GraphEvents,
    /// How many of the parked operations free memory.
    frees: u64,
    bytes: usize,
}

impl<T> Default for Lot<T> {
    fn default() -> Self {
        Self {
            lines: HandleMap::default(),
            aside: VecDeque::new(),
            parked: VecDeque::new(),
            first: 0,
            events: HandleMap::default(),
            users: HandleMap::default(),
            graphs: GraphEvents::default(),
            frees: 0,
            bytes: 0,
        }
    }
}

impl<T> Lot<T> {
    /// Whether nothing is parked.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.parked.is_empty()
    }

    /// Bytes of all that is parked.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a parked operation frees memory.
    pub fn frees(&self) -> bool {
        self.frees > 0
    }

    /// Whether an operation depends on a parked one.
    pub fn holds(&self, touches: &Touches) -> bool {
        if self.is_empty() {
            return false;
        }
        let own = touches.stream.and_then(|stream| self.lines.get(&stream));
        own.is_some_and(|line| !line.is_empty()) || !self.behind(touches).is_empty()
    }

    /// Parks an operation of so many bytes.
    pub fn keep(&mut self, touches: Touches, bytes: usize, what: T) {
        let behind = self.behind(&touches);
        let number = self.first + self.parked.len() as Number;
        self.parked.push_back(true);
        self.note(&touches, number);
        self.bytes += bytes;
        self.frees += u64::from(touches.frees);
        let entry = Entry {
            number,
            touches,
            behind,
            bytes,
            what,
        };
        match touches.stream {
            Some(stream) => self.lines.entry(stream).or_default().push_back(entry),
            None => self.aside.push_back(entry),
        }
    }

    /// How many operations without a stream are parked.
    pub fn aside(&self) -> usize {
        self.aside.len()
    }

    /// Streams that something is parked in, the one that has waited longest first.
    pub fn streams(&self) -> Vec<StreamRef> {
        let first = |(stream, line): (&StreamRef, &VecDeque<Entry<T>>)| {
            line.front().map(|entry| (entry.number, *stream))
        };
        let mut streams: Vec<_> = self.lines.iter().filter_map(first).collect();
        streams.sort_unstable_by_key(|(number, _)| *number);
        streams.into_iter().map(|(_, stream)| stream).collect()
    }

    /// What the first operation of a stream touches; `None` if there is none, or it depends on a parked one.
    pub fn first_ready(&self, stream: StreamRef) -> Option<Touches> {
        let entry = self.lines.get(&stream)?.front()?;
        self.is_ready(entry).then_some(entry.touches)
    }

    /// Removes the first operation of a stream.
    pub fn take_first(&mut self, stream: StreamRef) -> Option<T> {
        let entry = self.lines.get_mut(&stream)?.pop_front()?;
        Some(self.taken(entry))
    }

    /// Removes an operation without a stream that depends on no parked one.
    pub fn take_aside(&mut self) -> Option<T> {
        let at = self.aside.iter().position(|entry| self.is_ready(entry))?;
        let entry = self.aside.remove(at)?;
        Some(self.taken(entry))
    }

    /// Removes all operations, in order.
    pub fn take_all(&mut self) -> Vec<T> {
        let lot = std::mem::take(self);
        let mut all: Vec<_> = lot.aside.into();
        all.extend(lot.lines.into_values().flatten());
        all.sort_unstable_by_key(|entry| entry.number);
        all.into_iter().map(|entry| entry.what).collect()
    }

    fn is_ready(&self, entry: &Entry<T>) -> bool {
        !entry.behind.iter().any(|number| self.is_parked(*number))
    }

    fn is_parked(&self, number: Number) -> bool {
        let at = number.checked_sub(self.first);
        let known = at.and_then(|at| self.parked.get(usize::try_from(at).ok()?));
        known.copied().unwrap_or(false)
    }

    fn taken(&mut self, entry: Entry<T>) -> T {
        self.bytes -= entry.bytes;
        self.frees -= u64::from(entry.touches.frees);
        if let Some(parked) = self.parked.get_mut((entry.number - self.first) as usize) {
            *parked = false;
        }
        while self.parked.front() == Some(&false) {
            self.parked.pop_front();
            self.first += 1;
        }
        if self.is_empty() {
            // `first` is not reset, so that an old number never names a later operation.
            self.events.clear();
            self.users.clear();
            self.lines.clear();
            self.graphs.nothing_is_parked();
        }
        entry.what
    }

    /// The parked operations of other streams that an operation depends on.
    fn behind(&self, touches: &Touches) -> Vec<Number> {
        let mut behind = Vec::new();
        if self.is_empty() {
            return behind;
        }
        let last = |line: &VecDeque<Entry<T>>| line.back().map(|entry| entry.number);
        let every_line = |behind: &mut Vec<Number>, of: &dyn Fn(&StreamRef) -> bool| {
            let lines = self.lines.iter().filter(|(stream, _)| of(stream));
            behind.extend(lines.filter_map(|(_, line)| last(line)));
        };
        match touches.stream {
            Some(stream) if stream.stream == STREAM_LEGACY => {
                let joined = self.lines.iter().filter(|(it, line)| {
                    let apart = line.back().is_some_and(|entry| entry.touches.apart);
                    it.context == stream.context && **it != stream && !apart
                });
                behind.extend(joined.filter_map(|(_, line)| last(line)));
            }
            Some(stream) if !touches.apart => {
                let legacy = StreamRef {
                    stream: STREAM_LEGACY,
                    ..stream
                };
                behind.extend(self.lines.get(&legacy).and_then(last));
            }
            _ => {}
        }
        let inside = inside(&self.graphs, touches);
        let events = touches.events.into_iter().flatten().chain(inside);
        behind.extend(events.filter_map(|event| self.events.get(&event)));
        if let Some(used) = touches.uses
            && let Some(users) = self.users.get(&used)
        {
            behind.extend(users.changed);
            // The driver runs launches of one executable graph in order, whatever their streams.
            if matches!(used, Launched::Graph(_)) {
                behind.extend(users.used.values());
            }
        }
        if let Some(users) = touches.changes.and_then(|it| self.users.get(&it)) {
            behind.extend(users.changed);
            behind.extend(users.used.values());
        }
        match touches.scope {
            Scope::Own => {}
            Scope::Context(context) => every_line(&mut behind, &|it| it.context == context),
            Scope::All => {
                every_line(&mut behind, &|_| true);
                behind.extend(self.aside.iter().map(|entry| entry.number));
            }
            Scope::Frees => {
                let all = self.lines.values().flatten().chain(&self.aside);
                behind.extend(all.filter(|it| it.touches.frees).map(|it| it.number));
            }
        }
        behind.retain(|number| self.is_parked(*number));
        behind
    }

    /// Remembers what an operation touches, for those that come after it.
    fn note(&mut self, touches: &Touches, number: Number) {
        let inside = inside(&self.graphs, touches);
        for event in touches.events.into_iter().flatten().chain(inside) {
            self.events.insert(event, number);
        }
        if let Some(used) = touches.uses {
            let users = self.users.entry(used).or_default();
            match touches.stream {
                Some(stream) => drop(users.used.insert(stream, number)),
                None => users.changed = Some(number),
            }
        }
        if let Some(changed) = touches.changes {
            let users = Users {
                changed: Some(number),
                ..Users::default()
            };
            self.users.insert(changed, users);
        }
        // If the lot never becomes empty, numbers that have left are removed from time to time.
        if self.events.len() + self.users.len() > 4096 + 2 * self.parked.len() {
            let (first, parked) = (self.first, &self.parked);
            let still = |number: Number| {
                let at = number.checked_sub(first);
                at.is_some_and(|at| parked.get(at as usize).copied().unwrap_or(false))
            };
            self.events.retain(|_, number| still(*number));
            self.users.retain(|_, users| {
                users.changed.is_some_and(still) || users.used.values().any(|it| still(*it))
            });
        }
    }
}

/// The events of the graph that an operation launches.
fn inside(graphs: &GraphEvents, touches: &Touches) -> impl Iterator<Item = EventId> {
    let exec = match touches.uses {
        Some(Launched::Graph(exec)) => Some(exec),
        _ => None,
    };
    exec.into_iter().flat_map(|exec| graphs.of(exec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queues::Work;
    use fermata_abi::op::{ContextId, ExecId, StreamId};
    use fermata_graph::{Graph, NodeKind};

    const NOTHING: Touches = Touches {
        stream: None,
        apart: false,
        events: [None; 2],
        adds: true,
        uses: None,
        changes: None,
        frees: false,
        scope: Scope::Own,
        work: Work::light(),
    };

    /// Whether the later of two has to stay behind the earlier, as CUDA orders them.
    fn conflict(earlier: &Touches, later: &Touches) -> bool {
        let streams = match (earlier.stream, later.stream) {
            (Some(a), Some(b)) if a == b => true,
            (Some(a), Some(b)) => {
                let one_legacy = (a.stream == STREAM_LEGACY) != (b.stream == STREAM_LEGACY);
                a.context == b.context && one_legacy && !earlier.apart && !later.apart
            }
            _ => false,
        };
        let mut events = later.events.iter().flatten();
        let both = |a: Option<Launched>, b: Option<Launched>| a.is_some() && a == b;
        streams
            || events.any(|event| earlier.events.contains(&Some(*event)))
            || both(earlier.changes, later.uses)
            || both(earlier.uses, later.uses)
            || both(earlier.uses, later.changes)
            || both(earlier.changes, later.changes)
            || match later.scope {
                Scope::Own => false,
                Scope::Context(context) => earlier.stream.is_some_and(|it| it.context == context),
                Scope::All => true,
                Scope::Frees => earlier.frees,
            }
    }

    /// Numbers without pattern, the same each time.
    struct Draw(u64);

    impl Draw {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (self.0 >> 33) % limit
        }

        fn some(&mut self, one_in: u64, of: u64) -> Option<u64> {
            (self.below(one_in) == 0).then(|| 0x1000 + self.below(of))
        }

        fn launched(&mut self) -> Option<Launched> {
            self.some(3, 3)
                .map(|it| Launched::Graph(ExecId::from_raw(it)))
        }

        fn touches(&mut self) -> Touches {
            let context = 0x100 + self.below(2);
            // The default stream, one that it waits for, and two that it does not.
            let stream = [
                STREAM_LEGACY,
                StreamId::from_raw(0x200),
                StreamId::from_raw(0x210),
                StreamId::from_raw(0x220),
            ][self.below(4) as usize];
            let stream = (self.below(5) > 0).then_some(StreamRef {
                context: ContextId::from_raw(context),
                stream,
            });
            let apart = stream.is_some_and(|it| it.stream > StreamId::from_raw(0x200));
            let scope = match (stream, self.below(6)) {
                (None, 0) => Scope::All,
                (None, 1) => Scope::Context(ContextId::from_raw(context)),
                (None, 2) => Scope::Frees,
                _ => Scope::Own,
            };
            let uses = stream.and_then(|_| self.launched());
            let changes = if stream.is_none() {
                self.launched()
            } else {
                None
            };
            Touches {
                stream,
                apart,
                events: [self.some(4, 4).map(EventId::from_raw), None],
                adds: stream.is_some() && self.below(8) > 0,
                uses,
                changes,
                frees: self.below(9) == 0,
                scope,
                work: Work::light(),
            }
        }
    }

    /// As a worker does it: streams have room for so many and are emptied now and then.
    #[test]
    fn what_is_parked_comes_in_order_and_all_of_it() {
        for seed in 0..300 {
            let mut draw = Draw(seed);
            let (mut lot, mut all, mut issued) = (Lot::default(), Vec::new(), Vec::new());
            for number in 0..60usize {
                let touches = draw.touches();
                let behind = (0..number)
                    .filter(|it| !issued.contains(it))
                    .any(|it| conflict(&all[it], &touches));
                assert_eq!(lot.holds(&touches), behind, "seed {seed}, {number}");
                all.push(touches);
                if behind || draw.below(3) == 0 {
                    lot.keep(touches, 10, number);
                } else {
                    issued.push(number);
                }
                if draw.below(6) == 0 {
                    // One stream has room.
                    issued.extend(lot.take_aside());
                    let streams = lot.streams();
                    if let Some(stream) = streams.first()
                        && lot.first_ready(*stream).is_some()
                    {
                        issued.extend(lot.take_first(*stream));
                    }
                }
            }
            while !lot.is_empty() {
                let before = issued.len();
                issued.extend(lot.take_aside());
                for stream in lot.streams() {
                    while lot.first_ready(stream).is_some() {
                        issued.extend(lot.take_first(stream));
                    }
                }
                assert!(
                    issued.len() > before,
                    "seed {seed}: what is left waits for ever"
                );
            }
            assert_eq!(lot.bytes(), 0);
            assert!(!lot.frees());
            assert_eq!(issued.len(), all.len());
            let mut place = vec![0; all.len()];
            issued
                .iter()
                .enumerate()
                .for_each(|(at, number)| place[*number] = at);
            for later in 0..all.len() {
                for earlier in 0..later {
                    let ordered =
                        !conflict(&all[earlier], &all[later]) || place[earlier] < place[later];
                    assert!(ordered, "seed {seed}: {later} before {earlier}");
                }
            }
        }
    }

    #[test]
    fn what_is_taken_out_whole_is_in_order() {
        let mut draw = Draw(7);
        let mut lot = Lot::default();
        for number in 0..100 {
            lot.keep(draw.touches(), 1, number);
        }
        assert_eq!(lot.take_all(), Vec::from_iter(0..100));
        assert!(lot.is_empty() && lot.bytes() == 0 && !lot.frees());
    }

    #[test]
    fn an_event_of_a_graph_is_touched_by_its_launches() {
        let (exec, other) = (ExecId::from_raw(0x400), ExecId::from_raw(0x410));
        let event = EventId::from_raw(0x300);
        let on = |stream| Touches {
            stream: Some(StreamRef {
                context: ContextId::from_raw(0x100),
                stream: StreamId::from_raw(stream),
            }),
            apart: true,
            ..NOTHING
        };
        let launch = |stream, exec| Touches {
            uses: Some(Launched::Graph(exec)),
            ..on(stream)
        };
        let asked = |stream| Touches {
            events: [Some(event), None],
            ..on(stream)
        };
        let mut inner = Graph::new();
        inner.add(NodeKind::EventRecord(event), &[]).unwrap();
        let mut graph = Graph::new();
        let inner = NodeKind::ChildGraph(Box::new(inner));
        graph.add(inner, &[]).unwrap();
        let mut lot = Lot::default();
        lot.graphs.add(exec, &graph);
        lot.graphs.add(other, &Graph::new());
        lot.keep(launch(0x200, exec), 1, "launch");
        assert!(lot.holds(&asked(0x210)));
        assert!(!lot.holds(&launch(0x210, other)));
        lot.take_all();
        lot.graphs.add(exec, &graph);
        lot.keep(asked(0x200), 1, "asked");
        assert!(lot.holds(&launch(0x210, exec)));
        // Destroyed while something is parked.
        lot.graphs.forget_later(exec);
        assert!(lot.holds(&launch(0x210, exec)) && lot.graphs.records(exec));
        let stream = on(0x200).stream.unwrap();
        assert_eq!(lot.take_first(stream), Some("asked"));
        assert!(!lot.graphs.knows(exec));
    }

    #[test]
    fn an_event_that_waits_for_nothing_that_is_parked_is_not_held() {
        let stream = |stream| StreamRef {
            context: ContextId::from_raw(0x100),
            stream,
        };
        let launch = Touches {
            stream: Some(stream(StreamId::from_raw(0x200))),
            apart: true,
            ..NOTHING
        };
        let record = Touches {
            events: [Some(EventId::from_raw(0x300)), None],
            ..launch
        };
        let asked = Touches {
            events: [Some(EventId::from_raw(0x300)), None],
            adds: true,
            ..NOTHING
        };
        let mut lot = Lot::default();
        lot.keep(launch, 1, "launch");
        assert!(!lot.holds(&asked));
        lot.keep(record, 1, "record");
        lot.keep(asked, 1, "asked");
        lot.keep(launch, 1, "behind");
        assert!(lot.holds(&asked) && lot.take_aside().is_none());
        assert_eq!(
            lot.take_first(stream(StreamId::from_raw(0x200))),
            Some("launch")
        );
        assert!(lot.take_aside().is_none());
        assert_eq!(
            lot.take_first(stream(StreamId::from_raw(0x200))),
            Some("record")
        );
        // The stream is full again, and yet it is answered.
        assert_eq!(lot.take_aside(), Some("asked"));
        assert!(!lot.holds(&asked) && lot.holds(&launch));
    }
}
