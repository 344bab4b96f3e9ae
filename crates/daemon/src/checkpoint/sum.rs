//! Combines the answers of the workers of one checkpoint: the totals of the image, and the progress.

use fermata_control::worker::{Step, Totals, Validate};
use parking_lot::Mutex;

use crate::progress::Report;

/// The totals of an image with these parts. Times are those of the part that took longest.
pub(super) fn sum(parts: Vec<Totals>) -> Totals {
    parts.into_iter().reduce(add).unwrap_or_default()
}

fn add(mut a: Totals, b: Totals) -> Totals {
    a.allocations += b.allocations;
    a.device_bytes += b.device_bytes;
    a.host_bytes += b.host_bytes;
    a.objects += b.objects;
    a.chunks += b.chunks;
    a.written_bytes += b.written_bytes;
    a.seconds = a.seconds.max(b.seconds);
    for (at, bytes) in b.memory.into_iter().enumerate() {
        match a.memory.get_mut(at) {
            Some(all) => *all += bytes,
            None => a.memory.push(bytes),
        }
    }
    merge(&mut a.devices, b.devices);
    merge(&mut a.warnings, b.warnings);
    let (stall, other) = (&mut a.stall, b.stall);
    stall.waits += other.waits;
    stall.waited_seconds += other.waited_seconds;
    stall.issuing_seconds += other.issuing_seconds;
    stall.isolated_bytes += other.isolated_bytes;
    stall.pool_bytes += other.pool_bytes;
    stall.incomplete += other.incomplete;
    if other.copying_seconds > stall.copying_seconds {
        stall.copying_seconds = other.copying_seconds;
        stall.timeline = other.timeline;
    }
    let (validation, other) = (&mut a.validation, b.validation);
    if other.by == Validate::Off {
        validation.by = Validate::Off;
    }
    let mut notes = vec![std::mem::take(&mut validation.note)];
    merge(&mut notes, vec![other.note]);
    notes.retain(|note| !note.is_empty());
    validation.note = notes.join("; ");
    validation.checked += other.checked;
    validation.unchecked += other.unchecked;
    validation.violations += other.violations;
    validation.misses.extend(other.misses);
    a.steps = longest(vec![a.steps, b.steps]);
    a
}

/// Adds the elements of `others` that are not yet in `all`.
fn merge(all: &mut Vec<String>, others: Vec<String>) {
    for other in others {
        if !all.contains(&other) {
            all.push(other);
        }
    }
}

/// The list of steps that ends last.
pub(super) fn longest(all: Vec<Vec<Step>>) -> Vec<Step> {
    let end = |steps: &[Step]| {
        let ends = steps.iter().map(|it| it.start + it.seconds);
        ends.fold(0.0, f64::max)
    };
    let last = all.into_iter().max_by(|a, b| end(a).total_cmp(&end(b)));
    last.unwrap_or_default()
}

/// The progress of several workers: bytes done and bytes in all, for each.
pub(super) struct Progress(Mutex<Vec<(u64, u64)>>);

impl Progress {
    /// Starts with no progress for this number of workers.
    pub(super) fn of(workers: usize) -> Self {
        Self(Mutex::new(vec![(0, 0); workers]))
    }

    /// Notes that worker `at` has done `now.0` of `now.1` bytes, and reports the sums over all workers.
    pub(super) fn report(
        &self,
        phase: &str,
        at: usize,
        now: (u64, u64),
        report: &Mutex<&mut Report<'_>>,
    ) {
        let (done, total) = {
            let mut all = self.0.lock();
            all[at] = now;
            all.iter().fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
        };
        report.lock()(phase, done, total);
    }
}

#[cfg(test)]
mod tests {
    use fermata_control::worker::Validation;

    use super::*;

    #[test]
    fn parts_add_up_and_the_longest_tells_the_time() {
        let part = |bytes, seconds: f64, note: &str| Totals {
            device_bytes: bytes,
            seconds,
            devices: vec!["a".to_owned()],
            validation: Validation {
                note: note.to_owned(),
                ..Validation::default()
            },
            ..Totals::default()
        };
        let all = sum(vec![part(1, 3.0, ""), part(2, 1.0, "x"), part(4, 2.0, "x")]);
        assert_eq!((all.device_bytes, all.seconds), (7, 3.0));
        assert_eq!((all.devices.len(), &*all.validation.note), (1, "x"));
        assert_eq!(sum(Vec::new()), Totals::default());
    }

    #[test]
    fn progress_is_that_of_all() {
        let mut said = Vec::new();
        {
            let mut report = |phase: &str, done, total| said.push((phase.to_owned(), done, total));
            let report: &mut Report<'_> = &mut report;
            let report = Mutex::new(report);
            let progress = Progress::of(2);
            progress.report("x", 0, (1, 10), &report);
            progress.report("x", 1, (5, 20), &report);
        }
        assert_eq!(said, [("x".to_owned(), 1, 10), ("x".to_owned(), 6, 30)]);
    }
}
