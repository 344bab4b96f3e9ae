//! What is counted of a function that is served, as Prometheus text.

use std::fmt;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// Whether the instance that answered had answered before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Start {
    /// It was restored for the request.
    #[allow(non_camel_case_types)]
    cold,
    /// It was there.
    #[allow(non_camel_case_types)]
    warm,
}

impl Start {
    /// As in the metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::cold => "cold",
            Self::warm => "warm",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByStart {
    start: Start,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByCode {
    code: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByState {
    state: &'static str,
}

/// How many instances and requests there are just now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instances that are being restored.
    pub starting: usize,
    /// Instances that answer a request.
    pub busy: usize,
    /// Instances that wait for one.
    pub idle: usize,
    /// Instances that are being ended.
    pub ending: usize,
    /// Requests that wait for an instance.
    pub waiting: usize,
}

/// The metrics of one function.
pub struct Metrics {
    registry: Registry,
    requests: Family<ByCode, Counter>,
    latency: Family<ByStart, Histogram>,
    restores: Histogram,
    failed: Counter,
    repeated: Counter,
    lost: Counter,
    instances: Family<ByState, Gauge>,
    waiting: Gauge,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// 1 ms to 131 s.
fn histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 18))
}

impl Metrics {
    /// All at zero, labelled with the function's name.
    pub fn new(function: &str) -> Self {
        let labels = [("function".into(), function.to_owned().into())];
        let labels = labels.into_iter();
        let mut registry = Registry::with_prefix_and_labels("fermata_function", labels);
        let new = Self {
            requests: Family::default(),
            latency: Family::new_with_constructor(histogram as fn() -> Histogram),
            restores: histogram(),
            failed: Counter::default(),
            repeated: Counter::default(),
            lost: Counter::default(),
            instances: Family::default(),
            waiting: Gauge::default(),
            registry: Registry::default(),
        };
        registry.register(
            "requests",
            "Requests answered, by status",
            new.requests.clone(),
        );
        registry.register_with_unit(
            "request",
            "From the request's last byte to the first of its answer, by whether its instance was restored for it",
            Unit::Seconds,
            new.latency.clone(),
        );
        registry.register_with_unit(
            "restore",
            "Restoring an instance",
            Unit::Seconds,
            new.restores.clone(),
        );
        registry.register(
            "failed_starts",
            "Instances that could not be restored",
            new.failed.clone(),
        );
        registry.register(
            "repeated_requests",
            "Requests repeated because their instance was taken back to its image",
            new.repeated.clone(),
        );
        registry.register(
            "lost_instances",
            "Instances thrown away because they ended, broke a connection or took too long",
            new.lost.clone(),
        );
        registry.register(
            "instances",
            "Instances just now, by state",
            new.instances.clone(),
        );
        registry.register(
            "queue_length",
            "Requests that wait for an instance",
            new.waiting.clone(),
        );
        Self { registry, ..new }
    }

    /// A request was answered with a status.
    pub fn answered(&self, code: u16) {
        let by = ByCode { code: code.into() };
        self.requests.get_or_create(&by).inc();
    }

    /// An instance has begun to answer so many seconds after its request had come.
    pub fn began(&self, start: Start, seconds: f64) {
        self.latency
            .get_or_create(&ByStart { start })
            .observe(seconds);
    }

    /// An instance was restored in so many seconds, or could not be.
    pub fn restored(&self, seconds: Option<f64>) {
        match seconds {
            Some(seconds) => self.restores.observe(seconds),
            None => drop(self.failed.inc()),
        }
    }

    /// A request was repeated.
    pub fn repeated(&self) {
        self.repeated.inc();
    }

    /// An instance was thrown away.
    pub fn lost(&self) {
        self.lost.inc();
    }

    /// All of it.
    pub fn text(&self, now: Counts) -> String {
        let states = [
            ("starting", now.starting),
            ("busy", now.busy),
            ("idle", now.idle),
            ("ending", now.ending),
        ];
        let number = |it: usize| i64::try_from(it).unwrap_or(i64::MAX);
        for (state, count) in states {
            self.instances
                .get_or_create(&ByState { state })
                .set(number(count));
        }
        self.waiting.set(number(now.waiting));
        let mut text = String::new();
        // A string takes all that is written to it.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_text_that_prometheus_reads() {
        let metrics = Metrics::new("llama");
        metrics.answered(200);
        metrics.answered(200);
        metrics.answered(503);
        metrics.began(Start::cold, 0.3);
        metrics.restored(Some(0.2));
        let text = metrics.text(Counts {
            idle: 2,
            waiting: 1,
            ..Counts::default()
        });
        for line in [
            "fermata_function_requests_total{code=\"200\",function=\"llama\"} 2",
            "fermata_function_request_seconds_count{start=\"cold\",function=\"llama\"} 1",
            "fermata_function_instances{state=\"idle\",function=\"llama\"} 2",
            "fermata_function_queue_length{function=\"llama\"} 1",
            "fermata_function_failed_starts_total{function=\"llama\"} 0",
        ] {
            // The order of labels is the library's.
            let (name, rest) = line.split_once('{').expect("labels");
            let (labels, value) = rest.split_once("} ").expect("value");
            let found = text.lines().any(|it| {
                it.starts_with(&format!("{name}{{"))
                    && it.ends_with(&format!("}} {value}"))
                    && labels.split(',').all(|label| it.contains(label))
            });
            assert!(found, "{line} is not in\n{text}");
        }
    }
}
