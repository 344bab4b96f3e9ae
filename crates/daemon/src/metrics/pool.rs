//! Metrics of spare workers.

use fermata_control::user::{SpareKind, SpareWorkers};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::gauges::{Gauges, number};

/// Adds them.
pub(super) fn register(registry: &mut Registry, spare: &SpareWorkers) {
    let all: Gauge = Gauge::default();
    let (by_state, host, device) = (Gauges::default(), Gauges::default(), Gauges::default());
    for kind in &spare.kinds {
        all.inc_by(number(kind.ready.len() as u64));
        let labels = vec![("device", name(kind))];
        let states = [
            ("ready", kind.ready.len() as u64),
            ("starting", kind.making.into()),
        ];
        for (state, count) in states {
            let mut labels = labels.clone();
            labels.push(("state", state.to_owned()));
            by_state.get_or_create(&labels).inc_by(number(count));
        }
        let bytes = kind.ready.iter().map(|it| it.host.pss).sum();
        host.get_or_create(&labels).inc_by(number(bytes));
        let bytes = kind.ready.iter().filter_map(|it| it.device_bytes).sum();
        device.get_or_create(&labels).inc_by(number(bytes));
    }
    let told = "Workers that wait for a session";
    registry.register("spare_workers", told, all);
    let told = "Workers that wait for a session, and those being started to, by device";
    registry.register("pool_workers", told, by_state);
    let told = "Host memory of workers that wait, shared pages by their share";
    registry.register_with_unit("pool_host_pss", told, Unit::Bytes, host);
    let told = "Device memory of workers that wait, as far as NVML says";
    registry.register_with_unit("pool_device", told, Unit::Bytes, device);
    let (idle, failed): (Counter, Counter) = (Counter::default(), Counter::default());
    idle.inc_by(spare.idle_ended);
    failed.inc_by(spare.failed);
    let told = "Workers that were ended because no session has used them within the limit";
    registry.register("pool_idle_ended", told, idle);
    let told = "Workers that could not be made, or have ended by themselves while they waited";
    registry.register("pool_failed", told, failed);
}

/// The device's UUID; before a worker has told it, what kind it is of.
fn name(kind: &SpareKind) -> String {
    match (&kind.device, kind.soft) {
        (Some(device), _) => device.uuid.clone(),
        (None, true) => "software".to_owned(),
        (None, false) => "unknown".to_owned(),
    }
}
