//! Counts the work in each stream that is not known to be done, and says when a stream is full.
//!
//! Each stream counts what was issued to it. An event that has completed shows that all work up to its count is done. So
//! a synchronisation with an idle stream needs no driver call.
//!
//! Streams share the driver's hardware queues, of which there are eight by default. A queue holds about a thousand pieces
//! of work (1020 on an H200), and a call that adds one more blocks inside the driver. To keep the decode loop from
//! blocking, a stream gets no more work while it may hold [`DEPTH`] pieces, or [`SHARE`] while all streams together may
//! fill a queue, until one of the events that are recorded at least every [`STEP`] pieces (a pace) has completed:
//!
//! ```text
//!   done           pace      pace      pace      issued
//!    ├──────────────┼─────────┼─────────┼────────────┤   issued - done >= DEPTH: full
//! ```
//! Nor does a stream get more than about [`WINDOW`] of estimated work, because a checkpoint waits for all work that the
//! device has been given, and for nothing else
//! ([decision 031](../../../../docs/decisions/031-the-queue-is-part-of-the-image.md)). The device does not run out of
//! work: a stream gets its next piece at least [`AHEAD`] before the end of the work it has.

mod cost;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fermata_abi::op::{ContextId, StreamRef};
use fermata_device::EventHandle;
use fermata_engine::HandleMap;

use self::cost::Costs;
pub(crate) use self::cost::{What, Work};

/// Pieces of work that a stream may hold.
const DEPTH: u64 = 480;
/// Pieces of work of all streams from which on a stream may hold only [`SHARE`]: less than a hardware queue holds.
const TOGETHER: u64 = 900;
/// Pieces of work that a stream may hold then: ten streams of one hardware queue do not fill it.
const SHARE: u64 = 96;
/// The most pieces of work between two paces.
const STEP: u64 = 64;
/// Estimated nanoseconds of work that a stream may hold.
const WINDOW: u64 = 10_000_000;
/// Estimated nanoseconds of work between two paces, unless a single piece takes longer.
const STRETCH: u64 = WINDOW / 8;
/// A stream that holds less than this (estimated nanoseconds) gets its next piece, however long that piece takes.
const AHEAD: u64 = 2_000_000;
/// The same while other streams have work.
const AHEAD_OF_OTHERS: u64 = 500_000;

/// Work between two events.
#[derive(Debug)]
struct Stretch<E> {
    /// The stream's count at its end.
    upto: u64,
    event: E,
    work: Open,
    /// When it was last seen not to have completed.
    seen: Option<Instant>,
}

/// Work since the last event.
#[derive(Debug, Default)]
struct Open {
    /// When its first piece was issued.
    began: Option<Instant>,
    /// Estimated nanoseconds.
    cost: u64,
    pieces: Vec<(Work, u32)>,
    /// Whether it may have waited for other streams, or for the host.
    waits: bool,
}

impl Open {
    /// Adds work that was issued after it.
    fn join(&mut self, later: Self) {
        if self.pieces.is_empty() {
            *self = later;
            return;
        }
        self.cost += later.cost;
        self.pieces.extend(later.pieces);
        self.waits |= later.waits;
    }
}

#[derive(Debug)]
struct Count<E> {
    issued: u64,
    done: u64,
    /// How much had been issued when the last pace was recorded.
    paced: u64,
    paces: VecDeque<Stretch<E>>,
    open: Open,
    /// Estimated nanoseconds that are not known to be done.
    cost: u64,
    /// When the last stretch was seen to have completed.
    passed: Option<Instant>,
}

impl<E> Default for Count<E> {
    fn default() -> Self {
        Self {
            issued: 0,
            done: 0,
            paced: 0,
            paces: VecDeque::new(),
            open: Open::default(),
            cost: 0,
            passed: None,
        }
    }
}

impl<E> Count<E> {
    /// When the oldest work that is not known to be done began at the earliest.
    fn begun(&self, work: &Open) -> Option<Instant> {
        work.began
            .map(|began| self.passed.map_or(began, |passed| passed.max(began)))
    }

    /// Nanoseconds since the oldest work that is not known to be done began.
    fn run(&self, now: Instant) -> u64 {
        let begun = self.begun(self.first());
        let run = begun.map_or(Duration::ZERO, |it| now.saturating_duration_since(it));
        u64::try_from(run.as_nanos()).unwrap_or(u64::MAX)
    }

    fn first(&self) -> &Open {
        self.paces.front().map_or(&self.open, |it| &it.work)
    }

    /// Estimated nanoseconds that are left of what it holds.
    fn left(&self, now: Instant) -> u64 {
        self.cost
            .saturating_sub(self.run(now).min(self.first().cost))
    }

    /// The same if its events have not been looked at.
    fn left_unseen(&self, now: Instant) -> u64 {
        self.cost.saturating_sub(self.run(now))
    }
}

/// What a stream is executing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Busy {
    pub stream: StreamRef,
    /// The longest piece of the oldest stretch; a wait only if the stretch has nothing else.
    pub what: What,
    /// All pieces of that stretch.
    pub all: Vec<What>,
    /// The count at the end of that stretch.
    pub upto: u64,
}

/// Counts of all streams, by context and stream; `E` is the type of a pace's event.
#[derive(Debug)]
pub(crate) struct Queues<E = EventHandle> {
    counts: HandleMap<StreamRef, Count<E>>,
    /// Work that is not known to be done, of all streams.
    held: u64,
    /// Estimated nanoseconds of it.
    cost: u64,
    costs: Costs,
    /// Paces of work that is known to be done, by context.
    spent: Vec<(ContextId, E)>,
    clock: fn() -> Instant,
}

impl<E> Default for Queues<E> {
    fn default() -> Self {
        Self {
            counts: HandleMap::default(),
            held: 0,
            cost: 0,
            costs: Costs::default(),
            spent: Vec::new(),
            clock: Instant::now,
        }
    }
}

impl<E: Copy> Queues<E> {
    /// Counts issued work as `weight` pieces; true if a pace is to be recorded behind it.
    pub fn issue(&mut self, stream: StreamRef, weight: u64, work: Work) -> bool {
        let cost = self.costs.of(work);
        let count = self.counts.entry(stream).or_default();
        count.issued += weight;
        count.cost += cost;
        self.held += weight;
        self.cost += cost;
        let open = &mut count.open;
        open.began.get_or_insert_with(self.clock);
        open.cost += cost;
        open.waits |= work.waits();
        match open.pieces.last_mut() {
            Some((last, times)) if *last == work => *times += 1,
            _ => open.pieces.push((work, 1)),
        }
        count.issued - count.paced >= STEP || open.cost >= STRETCH
    }

    /// Takes the event that was recorded behind all issued work; without one, the next is due a step later.
    pub fn paced(&mut self, stream: StreamRef, event: Option<E>) {
        let count = self.counts.entry(stream).or_default();
        count.paced = count.issued;
        let work = std::mem::take(&mut count.open);
        match event {
            Some(event) => count.paces.push_back(Stretch {
                upto: count.issued,
                event,
                work,
                seen: None,
            }),
            None => {
                count.cost -= work.cost;
                self.cost -= work.cost;
            }
        }
    }

    /// Whether work has been issued since the last pace of a stream.
    pub fn is_open(&self, stream: StreamRef) -> bool {
        let count = self.counts.get(&stream);
        count.is_some_and(|it| !it.open.pieces.is_empty())
    }

    /// Whether a stream may get this piece now, as far as is known.
    #[inline]
    pub fn fits(&self, stream: StreamRef, work: Work) -> bool {
        let Some(count) = self.counts.get(&stream) else {
            return true;
        };
        let most = if self.held >= TOGETHER { SHARE } else { DEPTH };
        let pieces = count.issued - count.done;
        if pieces >= most {
            return false;
        }
        let cost = self.costs.of(work);
        if pieces == 0 || self.cost + cost <= WINDOW {
            return true;
        }
        let now = (self.clock)();
        // The work of other streams may be done without having been looked at.
        let others = self.counts.iter().filter(|(it, _)| **it != stream);
        let others: u64 = others.map(|(_, count)| count.left_unseen(now)).sum();
        let own = count.left(now);
        let ahead = if others > 0 { AHEAD_OF_OTHERS } else { AHEAD };
        own < ahead || own + others + cost <= WINDOW
    }

    /// The oldest pace of a stream.
    pub fn pace(&self, stream: StreamRef) -> Option<E> {
        let count = self.counts.get(&stream)?;
        count.paces.front().map(|it| it.event)
    }

    /// Notes that the oldest pace has not completed.
    pub fn waits(&mut self, stream: StreamRef) {
        let count = self.counts.get_mut(&stream);
        if let Some(first) = count.and_then(|it| it.paces.front_mut()) {
            first.seen = Some((self.clock)());
        }
    }

    /// Notes that the oldest pace has completed.
    pub fn pass(&mut self, stream: StreamRef) {
        let Some(count) = self.counts.get_mut(&stream) else {
            return;
        };
        let Some(passed) = count.paces.pop_front() else {
            return;
        };
        let now = (self.clock)();
        if let Some(begun) = count.begun(&passed.work) {
            let least = passed.seen.filter(|_| !passed.work.waits);
            let least = least.map_or(Duration::ZERO, |seen| seen.saturating_duration_since(begun));
            let most = now.saturating_duration_since(begun);
            self.costs.learn(&passed.work.pieces, least, most);
        }
        count.passed = Some(now);
        count.cost -= passed.work.cost;
        self.cost -= passed.work.cost;
        self.held -= passed.upto.saturating_sub(count.done);
        count.done = count.done.max(passed.upto);
    }

    /// Whether all that was issued is known to be done.
    pub fn is_idle(&self) -> bool {
        self.held == 0
    }

    /// The count of issued work, if not all of it is known to be done.
    pub fn busy(&self, stream: StreamRef) -> Option<u64> {
        self.counts
            .get(&stream)
            .filter(|count| count.issued > count.done)
            .map(|count| count.issued)
    }

    /// What a stream is executing, if anything.
    pub fn at(&self, stream: StreamRef) -> Option<Busy> {
        self.busy(stream)?;
        let count = self.counts.get(&stream)?;
        let (work, upto) = match count.paces.front() {
            Some(first) => (&first.work, first.upto),
            None => (&count.open, count.issued),
        };
        let longest = work
            .pieces
            .iter()
            .max_by_key(|(work, _)| (work.what.works(), self.costs.of(*work)));
        let what = longest.map_or(What::Other, |(work, _)| work.what);
        let all = work.pieces.iter().map(|(work, _)| work.what).collect();
        Some(Busy {
            stream,
            what,
            all,
            upto,
        })
    }

    /// Notes that all work up to `mark` is done. Work that was given less time than it was estimated to take corrects its
    /// estimate: a program that synchronises after a few launches has no other event.
    pub fn complete(&mut self, stream: StreamRef, mark: u64) {
        let Some(count) = self.counts.get_mut(&stream) else {
            return;
        };
        let mark = mark.min(count.issued);
        self.held -= mark.saturating_sub(count.done);
        count.done = count.done.max(mark);
        let mut gone = Open::default();
        while let Some(first) = count.paces.pop_front_if(|it| it.upto <= mark) {
            gone.join(first.work);
            self.spent.push((stream.context, first.event));
        }
        if mark == count.issued {
            gone.join(std::mem::take(&mut count.open));
            count.paced = count.issued;
        }
        if gone.cost > 0 {
            let now = (self.clock)();
            count.passed = Some(now);
            count.cost -= gone.cost;
            self.cost -= gone.cost;
            // From when it was issued, because what came before may have ended long before that was seen.
            let most = gone.began.map(|began| now.saturating_duration_since(began));
            if let Some(most) = most.filter(|most| most.as_nanos() < u128::from(gone.cost)) {
                self.costs.learn(&gone.pieces, Duration::ZERO, most);
            }
        }
    }

    /// Paces that nothing waits for any more, by context.
    pub fn take_spent(&mut self) -> Vec<(ContextId, E)> {
        std::mem::take(&mut self.spent)
    }

    /// Streams with work, of one context or of all.
    pub fn busy_streams(&self, context: Option<ContextId>) -> Vec<StreamRef> {
        let mut busy: Vec<StreamRef> = self
            .counts
            .iter()
            .filter(|(stream, count)| {
                count.issued > count.done && context.is_none_or(|it| it == stream.context)
            })
            .map(|(stream, _)| *stream)
            .collect();
        busy.sort_by_key(|stream| (stream.context, stream.stream));
        busy
    }

    /// Forgets a stream that is gone; returns its paces for reuse.
    pub fn forget(&mut self, stream: StreamRef) -> Vec<E> {
        let Some(gone) = self.counts.remove(&stream) else {
            return Vec::new();
        };
        self.held -= gone.issued - gone.done;
        self.cost -= gone.cost;
        gone.paces.into_iter().map(|it| it.event).collect()
    }

    /// Forgets all streams of a context that is about to be destroyed; returns their paces for reuse.
    pub fn forget_context(&mut self, context: ContextId) -> Vec<E> {
        let streams: Vec<_> = self.counts.keys().copied().collect();
        let its = streams
            .into_iter()
            .filter(|stream| stream.context == context);
        let mut free: Vec<E> = its.flat_map(|stream| self.forget(stream)).collect();
        let spent = self.spent.extract_if(.., |(of, _)| *of == context);
        free.extend(spent.map(|(_, event)| event));
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermata_abi::op::{FunctionId, StreamId};

    const CONTEXT: ContextId = ContextId::from_raw(1);

    fn stream(stream: u64) -> StreamRef {
        StreamRef {
            context: CONTEXT,
            stream: StreamId::from_raw(stream),
        }
    }

    /// Work that takes next to nothing.
    const LIGHT: Work = Work::light();

    const KERNEL: Work = Work::kernel(FunctionId::from_raw(0x100));

    std::thread_local! {
        static NOW: std::cell::Cell<Instant> = std::cell::Cell::new(Instant::now());
    }

    fn queues() -> Queues<u64> {
        let clock = || NOW.get();
        Queues {
            clock,
            ..Queues::default()
        }
    }

    fn later(microseconds: u64) {
        NOW.set(NOW.get() + Duration::from_micros(microseconds));
    }

    #[test]
    fn work_issued_after_the_mark_keeps_a_stream_busy() {
        let (mut queues, stream) = (queues(), stream(2));
        assert_eq!(queues.busy(stream), None);
        queues.issue(stream, 1, LIGHT);
        let mark = queues.busy(stream).unwrap();
        queues.issue(stream, 1, LIGHT);
        queues.complete(stream, mark);
        assert_eq!(queues.busy_streams(Some(ContextId::from_raw(1))), [stream]);
        assert!(queues.busy_streams(Some(ContextId::from_raw(9))).is_empty());
        assert!(!queues.is_idle());
        queues.complete(stream, mark + 1);
        assert!(queues.busy_streams(None).is_empty() && queues.is_idle());
    }

    /// Issues until the stream takes no more, with a pace wherever one is due; how much that was.
    fn fill(queues: &mut Queues<u64>, stream: StreamRef, work: Work) -> u64 {
        let mut number = 0;
        while queues.fits(stream, work) {
            number += 1;
            if queues.issue(stream, 1, work) {
                queues.paced(stream, Some(number));
            }
        }
        number
    }

    #[test]
    fn a_synchronisation_teaches_what_work_takes_at_most() {
        let (mut queues, stream) = (queues(), stream(2));
        // Unknown, so an event is due at once.
        assert!(queues.issue(stream, 1, KERNEL));
        queues.paced(stream, Some(1));
        later(30);
        queues.complete(stream, u64::MAX);
        assert_eq!(queues.costs.of(KERNEL), 30_000);
        for _ in 0..4 {
            assert!(!queues.issue(stream, 1, KERNEL), "no event is needed");
        }
        later(20);
        queues.complete(stream, u64::MAX);
        assert_eq!(queues.costs.of(KERNEL), 5_000);
        // More time than it was given to take teaches nothing.
        assert!(!queues.issue(stream, 1, KERNEL));
        later(70_000);
        queues.complete(stream, u64::MAX);
        assert_eq!(queues.costs.of(KERNEL), 5_000);
        assert_eq!((queues.held, queues.cost), (0, 0));
    }

    #[test]
    fn a_stream_is_deep_until_a_pace_has_passed() {
        let mut queues = queues();
        assert_eq!(fill(&mut queues, stream(2), LIGHT), DEPTH);
        queues.pass(stream(2));
        assert!(queues.fits(stream(2), LIGHT));
        assert_eq!(queues.held, DEPTH - STEP);
        assert_eq!(queues.forget(stream(2)).len() as u64, DEPTH / STEP - 1);
        assert!(queues.fits(stream(2), LIGHT));
        assert_eq!((queues.held, queues.cost), (0, 0));
    }

    #[test]
    fn streams_that_are_held_together_leave_room_for_others() {
        let mut queues = queues();
        let held: Vec<u64> = (2..10)
            .map(|it| fill(&mut queues, stream(it), LIGHT))
            .collect();
        assert_eq!(held[..2], [DEPTH, TOGETHER - DEPTH]);
        assert!(held[2..].iter().all(|it| *it == SHARE), "{held:?}");
        // What is known to be done counts no more.
        queues.complete(stream(2), u64::MAX);
        queues.complete(stream(3), u64::MAX);
        assert_eq!(queues.held, 6 * SHARE);
        assert!(queues.fits(stream(4), LIGHT));
        queues.forget_context(ContextId::from_raw(1));
        assert_eq!((queues.held, queues.cost), (0, 0));
    }

    #[test]
    fn a_stream_holds_little_of_what_is_not_known() {
        let mut queues = queues();
        assert_eq!(fill(&mut queues, stream(2), KERNEL), 4);
        assert_eq!(
            queues.at(stream(2)).unwrap().what,
            What::Kernel(FunctionId::from_raw(0x100))
        );
        later(12);
        queues.pass(stream(2));
        // It takes 12 us: what is held is still counted as it was estimated, what comes is not.
        assert!(queues.fits(stream(2), KERNEL));
        (0..3).for_each(|_| queues.pass(stream(2)));
        assert_eq!((queues.held, queues.cost), (0, 0));
        assert_eq!(fill(&mut queues, stream(2), KERNEL), DEPTH);
    }

    #[test]
    fn a_stream_holds_as_much_as_ten_milliseconds_take() {
        let mut queues = queues();
        fill(&mut queues, stream(2), KERNEL);
        for _ in 0..4 {
            later(2_990);
            queues.waits(stream(2));
            later(10);
            queues.pass(stream(2));
        }
        // Three of 3 ms; the next once the device would soon have nothing.
        assert_eq!(fill(&mut queues, stream(2), KERNEL), 3);
        later(3_000);
        queues.pass(stream(2));
        assert_eq!(fill(&mut queues, stream(2), KERNEL), 1);
    }

    #[test]
    fn the_next_long_piece_comes_shortly_before_the_end_of_the_first() {
        let mut queues = queues();
        fill(&mut queues, stream(2), KERNEL);
        for _ in 0..4 {
            later(50_000);
            queues.waits(stream(2));
            queues.pass(stream(2));
        }
        assert_eq!(fill(&mut queues, stream(2), KERNEL), 1);
        later(47_000);
        assert!(!queues.fits(stream(2), KERNEL));
        later(2_000);
        assert!(queues.fits(stream(2), KERNEL));
        // Another stream is not kept from its first.
        assert_eq!(fill(&mut queues, stream(3), KERNEL), 1);
    }

    #[test]
    fn streams_that_nobody_looks_at_do_not_keep_others_back_for_long() {
        let mut queues = queues();
        fill(&mut queues, stream(2), KERNEL);
        assert_eq!(fill(&mut queues, stream(3), KERNEL), 1);
        later(20_000);
        assert_eq!(fill(&mut queues, stream(4), KERNEL), 4);
    }

    #[test]
    fn events_of_work_that_is_done_are_used_again() {
        let mut queues = queues();
        for round in 0..100 {
            for _ in 0..STEP {
                if queues.issue(stream(2), 1, LIGHT) {
                    queues.paced(stream(2), Some(round));
                }
            }
            queues.complete(stream(2), u64::MAX);
            assert_eq!(queues.take_spent(), [(CONTEXT, round)]);
        }
        queues.issue(stream(2), 1, LIGHT);
        queues.paced(stream(2), Some(7));
        queues.complete(stream(2), u64::MAX);
        assert_eq!(queues.forget_context(ContextId::from_raw(1)), [7]);
    }
}
