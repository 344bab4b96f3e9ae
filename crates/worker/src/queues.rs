//! Which streams have work that is not known to be done.
//!
//! Each stream counts what was issued to it; an event that has completed says that all up to its count is
//! done. So a synchronisation with an idle stream costs no call of the driver.
//!
//! Streams share the driver's hardware queues, of which there are eight by default; each holds about a thousand
//! pieces of work (1020 on an H200), and who adds one more waits inside the driver. So that the decode loop never
//! does, a stream gets nothing more while it may hold [`DEPTH`], or, while all streams together may fill a queue,
//! [`SHARE`]; until one of the events recorded every [`STEP`] has completed:
//!
//! ```text
//!   done           pace      pace      pace      issued
//!    ├──────────────┼─────────┼─────────┼────────────┤   issued - done >= DEPTH: full
//! ```

use std::collections::VecDeque;

use fermata_abi::op::{Handle, StreamRef};
use fermata_device::EventHandle;
use fermata_engine::HandleMap;

/// Work that a stream may hold before it gets no more.
const DEPTH: u64 = 480;
/// Work of all streams from which on one may hold only [`SHARE`]: less than a hardware queue holds.
const TOGETHER: u64 = 900;
/// Work that a stream may hold then: ten streams of one hardware queue do not fill it.
const SHARE: u64 = 96;
/// Work between two events that tell how far a stream is.
const STEP: u64 = 64;

#[derive(Debug)]
struct Count<E> {
    issued: u64,
    done: u64,
    /// How much had been issued when the last pace was recorded.
    paced: u64,
    paces: VecDeque<(u64, E)>,
}

impl<E> Default for Count<E> {
    fn default() -> Self {
        Self {
            issued: 0,
            done: 0,
            paced: 0,
            paces: VecDeque::new(),
        }
    }
}

/// Counts of all streams, by context and stream; `E` is what a pace is known by.
#[derive(Debug)]
pub(crate) struct Queues<E = EventHandle> {
    counts: HandleMap<StreamRef, Count<E>>,
    /// Work that is not known to be done, of all streams.
    held: u64,
}

impl<E> Default for Queues<E> {
    fn default() -> Self {
        Self {
            counts: HandleMap::default(),
            held: 0,
        }
    }
}

impl<E: Copy> Queues<E> {
    /// Work was issued; whether it is time to record a pace behind it.
    pub fn issue(&mut self, stream: StreamRef, weight: u64) -> bool {
        let count = self.counts.entry(stream).or_default();
        count.issued += weight;
        self.held += weight;
        count.issued - count.paced >= STEP
    }

    /// An event was recorded behind all that has been issued; without one, the next is tried a step later.
    pub fn paced(&mut self, stream: StreamRef, event: Option<E>) {
        let count = self.counts.entry(stream).or_default();
        count.paced = count.issued;
        count.paces.extend(event.map(|event| (count.issued, event)));
    }

    /// Whether a stream holds as much as it may, as far as is known.
    #[inline]
    pub fn is_deep(&self, stream: StreamRef) -> bool {
        let most = if self.held >= TOGETHER { SHARE } else { DEPTH };
        self.counts
            .get(&stream)
            .is_some_and(|count| count.issued - count.done >= most)
    }

    /// The oldest pace of a stream.
    pub fn pace(&self, stream: StreamRef) -> Option<E> {
        let count = self.counts.get(&stream)?;
        count.paces.front().map(|(_, event)| *event)
    }

    /// The oldest pace has completed.
    pub fn pass(&mut self, stream: StreamRef) {
        if let Some(count) = self.counts.get_mut(&stream)
            && let Some((passed, _)) = count.paces.pop_front()
        {
            self.held -= passed.saturating_sub(count.done);
            count.done = count.done.max(passed);
        }
    }

    /// Whether all that was issued is known to be done.
    pub fn is_idle(&self) -> bool {
        self.held == 0
    }

    /// How much has been issued, if not all of it is known to be done.
    pub fn busy(&self, stream: StreamRef) -> Option<u64> {
        self.counts
            .get(&stream)
            .filter(|count| count.issued > count.done)
            .map(|count| count.issued)
    }

    /// All work up to `mark` is done.
    pub fn complete(&mut self, stream: StreamRef, mark: u64) {
        if let Some(count) = self.counts.get_mut(&stream) {
            let mark = mark.min(count.issued);
            self.held -= mark.saturating_sub(count.done);
            count.done = count.done.max(mark);
        }
    }

    /// Streams with work, of one context or of all.
    pub fn busy_streams(&self, context: Option<Handle>) -> Vec<StreamRef> {
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

    /// The stream is gone; its paces are free.
    pub fn forget(&mut self, stream: StreamRef) -> Vec<E> {
        let gone = self.counts.remove(&stream);
        self.held -= gone.as_ref().map_or(0, |count| count.issued - count.done);
        let paces = gone.into_iter().flat_map(|count| count.paces);
        paces.map(|(_, event)| event).collect()
    }

    /// The context is about to go with all its streams; their paces are free.
    pub fn forget_context(&mut self, context: Handle) -> Vec<E> {
        let streams: Vec<_> = self.counts.keys().copied().collect();
        let its = streams
            .into_iter()
            .filter(|stream| stream.context == context);
        its.flat_map(|stream| self.forget(stream)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_issued_after_the_mark_keeps_a_stream_busy() {
        let (mut queues, stream) = (
            Queues::<u64>::default(),
            StreamRef {
                context: 1,
                stream: 2,
            },
        );
        assert_eq!(queues.busy(stream), None);
        queues.issue(stream, 1);
        let mark = queues.busy(stream).unwrap();
        queues.issue(stream, 1);
        queues.complete(stream, mark);
        assert_eq!(queues.busy_streams(Some(1)), [stream]);
        assert!(queues.busy_streams(Some(9)).is_empty());
        assert!(!queues.is_idle());
        queues.complete(stream, mark + 1);
        assert!(queues.busy_streams(None).is_empty() && queues.is_idle());
    }

    fn stream(stream: u64) -> StreamRef {
        StreamRef { context: 1, stream }
    }

    /// Issues until the stream is deep, with a pace wherever one is due; how much that was.
    fn fill(queues: &mut Queues<u64>, stream: StreamRef) -> u64 {
        let mut number = 0;
        while !queues.is_deep(stream) {
            number += 1;
            if queues.issue(stream, 1) {
                queues.paced(stream, Some(number));
                assert_eq!(number % STEP, 0);
            }
        }
        number
    }

    #[test]
    fn a_stream_is_deep_until_a_pace_has_passed() {
        let mut queues = Queues::<u64>::default();
        assert_eq!(fill(&mut queues, stream(2)), DEPTH);
        queues.pass(stream(2));
        assert!(!queues.is_deep(stream(2)));
        assert_eq!(queues.held, DEPTH - STEP);
        assert_eq!(queues.forget(stream(2)).len() as u64, DEPTH / STEP - 1);
        assert!(!queues.is_deep(stream(2)));
        assert_eq!(queues.held, 0);
    }

    #[test]
    fn streams_that_are_held_together_leave_room_for_others() {
        let mut queues = Queues::<u64>::default();
        let held: Vec<u64> = (2..10).map(|it| fill(&mut queues, stream(it))).collect();
        assert_eq!(held[..2], [DEPTH, TOGETHER - DEPTH]);
        assert!(held[2..].iter().all(|it| *it == SHARE), "{held:?}");
        // What is known to be done counts no more.
        queues.complete(stream(2), u64::MAX);
        queues.complete(stream(3), u64::MAX);
        assert_eq!(queues.held, 6 * SHARE);
        assert!(!queues.is_deep(stream(4)));
        queues.forget_context(1);
        assert_eq!(queues.held, 0);
    }
}
