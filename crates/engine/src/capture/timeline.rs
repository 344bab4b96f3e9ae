//! The timeline of a capture: when it copied, copied aside and let operations wait, as sums over equal spans of time. The
//! number of spans is bounded however long it takes.
//!
//! ```text
//!  begun   span   2 span                        one span too many: every two are joined
//!    ├──────┼──────┼─ ... ─┤   each: bytes copied, bytes copied aside, time waited
//! ```

use std::time::{Duration, Instant};

use fermata_terms::Timeline;

/// The most spans; beyond it every two are joined.
const SPANS: usize = 256;
/// How long a span is at first.
const FIRST: Duration = Duration::from_millis(1);

/// What a capture did in one span of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Span {
    /// Bytes that were copied to the host, or found to be in the store.
    pub copied: u64,
    /// Bytes that were copied aside on a device.
    pub aside: u64,
    /// How long an operation waited for a copy.
    pub waited: Duration,
}

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Spans {
    begun: Instant,
    span: Duration,
    spans: Vec<Span>,
}

impl Default for Spans {
    /// An empty timeline that begins now.
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            span: FIRST,
            spans: Vec::new(),
        }
    }
}

impl Spans {
    /// All spans up to the last in which anything was done.
    pub(super) fn timeline(&self) -> Timeline {
        Timeline {
            start: 0.0,
            span: self.span.as_secs_f64(),
            copied: self.spans.iter().map(|it| it.copied).collect(),
            aside: self.spans.iter().map(|it| it.aside).collect(),
            waited: self
                .spans
                .iter()
                .map(|it| it.waited.as_secs_f64())
                .collect(),
        }
    }

    /// Counts bytes that have been copied now.
    pub(super) fn copied(&mut self, bytes: u64) {
        self.at(self.begun.elapsed()).copied += bytes;
    }

    /// Counts bytes that are copied aside now.
    pub(super) fn put_aside(&mut self, bytes: u64) {
        self.at(self.begun.elapsed()).aside += bytes;
    }

    /// Counts a wait of an operation that began at `since` and ends now.
    pub(super) fn waited(&mut self, since: Instant) {
        let from = since.saturating_duration_since(self.begun);
        self.wait(from, self.begun.elapsed());
    }

    fn wait(&mut self, from: Duration, to: Duration) {
        // Makes room first, so that spans keep their length.
        self.at(to);
        let mut from = from;
        while from < to {
            let next = self.span * (index(from, self.span) as u32 + 1);
            let end = next.min(to);
            self.at(from).waited += end - from;
            from = end;
        }
    }

    fn at(&mut self, time: Duration) -> &mut Span {
        while index(time, self.span) >= SPANS {
            self.span *= 2;
            let join = |pair: &[Span]| {
                let sum = |of: fn(&Span) -> u64| pair.iter().map(of).sum();
                Span {
                    copied: sum(|it| it.copied),
                    aside: sum(|it| it.aside),
                    waited: pair.iter().map(|it| it.waited).sum(),
                }
            };
            self.spans = self.spans.chunks(2).map(join).collect();
        }
        let index = index(time, self.span);
        if self.spans.len() <= index {
            self.spans.resize(index + 1, Span::default());
        }
        &mut self.spans[index]
    }
}

fn index(time: Duration, span: Duration) -> usize {
    usize::try_from(time.as_nanos() / span.as_nanos()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_when_spans_are_joined() {
        let mut line = Spans::default();
        for millis in 0..5000 {
            line.at(Duration::from_millis(millis)).copied += 3;
        }
        assert!(line.spans.len() <= SPANS);
        let sum: u64 = line.spans.iter().map(|it| it.copied).sum();
        assert_eq!((sum, line.span), (15_000, Duration::from_millis(32)));
    }

    #[test]
    fn a_wait_is_in_every_span_that_it_lasted_through() {
        let mut line = Spans::default();
        let micros = Duration::from_micros;
        line.wait(micros(500), micros(3200));
        let waited: Vec<_> = line.spans.iter().map(|it| it.waited).collect();
        assert_eq!(waited, [500, 1000, 1000, 200].map(micros));
    }
}
