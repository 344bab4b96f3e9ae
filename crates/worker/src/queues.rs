//! Which streams have work that is not known to be done.
//!
//! Each stream counts what was issued to it; an event that has completed says that all up to its count is
//! done. So a synchronisation with an idle stream costs no call of the driver.

use fermata_abi::op::{Handle, StreamRef};
use fermata_engine::HandleMap;

#[derive(Debug, Default, Clone, Copy)]
struct Count {
    issued: u64,
    done: u64,
}

/// Counts of all streams, by context and stream.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    counts: HandleMap<StreamRef, Count>,
}

impl Queues {
    /// Work was issued.
    pub fn issue(&mut self, stream: StreamRef) {
        self.counts.entry(stream).or_default().issued += 1;
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

    /// The stream is gone.
    pub fn forget(&mut self, stream: StreamRef) {
        self.counts.remove(&stream);
    }

    /// The context is gone with all its streams.
    pub fn forget_context(&mut self, context: Handle) {
        self.counts.retain(|stream, _| stream.context != context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_issued_after_the_mark_keeps_a_stream_busy() {
        let (mut queues, stream) = (
            Queues::default(),
            StreamRef {
                context: 1,
                stream: 2,
            },
        );
        assert_eq!(queues.busy(stream), None);
        queues.issue(stream);
        let mark = queues.busy(stream).unwrap();
        queues.issue(stream);
        queues.complete(stream, mark);
        assert_eq!(queues.busy_streams(Some(1)), [stream]);
        assert!(queues.busy_streams(Some(9)).is_empty());
        queues.complete(stream, mark + 1);
        assert!(queues.busy_streams(None).is_empty());
    }
}
