//! Numbers with labels.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

pub(super) type Labels = Vec<(&'static str, String)>;
pub(super) type Gauges = Family<Labels, Gauge>;

/// A number as a gauge holds it.
pub(super) fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
