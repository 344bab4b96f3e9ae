//! What the time of a checkpoint or restore went into, as PhoenixOS' figures 16 to 18 have it: a row for each kind of
//! work, in three groups.
//!
//! ```text
//!  checkpoint   the program stands still: quiesce, host state, hash, copies, resume
//!               the program waits:        for copies before its writes
//!               behind the program:       prepare, copies, finish, commit
//!  restore      before the program runs:  worker, objects, data that cannot be late, host process, resume
//!               the program waits:        for data that has not come yet
//!               behind the program:       data
//! ```
//! Rows of one group may overlap: host state is saved while the device part is.

use fermata_control::user::{self, Arrival};
use fermata_store::image::{Phase, StallRecord};
use serde::Serialize;

use crate::table::Table;
use crate::units;

/// When work was done, seen from the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// It stands still.
    Still,
    /// It does not run yet.
    Before,
    /// It runs, but for operations that wait.
    Waits,
    /// It runs.
    Behind,
}

impl When {
    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Still => "stands still",
            Self::Before => "not yet",
            Self::Waits => "waits",
            Self::Behind => "runs",
        }
    }
}

/// One kind of work.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// What.
    pub what: String,
    /// When.
    pub when: When,
    /// Seconds in all; 0 in a row that says where another's bytes came from.
    pub seconds: f64,
    /// Bytes moved, or 0.
    pub bytes: u64,
}

impl Row {
    /// Its time as people read it; empty where it has none of its own.
    pub fn time(&self) -> String {
        match self.seconds > 0.0 {
            true => units::seconds(self.seconds),
            false => String::new(),
        }
    }
}

/// The steps of an answer, as images have them.
pub fn recorded(phases: &[user::Phase]) -> Vec<Phase> {
    let convert = |p: &user::Phase| Phase {
        name: p.name.clone(),
        start: p.start,
        seconds: p.seconds,
        bytes: p.bytes,
    };
    phases.iter().map(convert).collect()
}

/// What a checkpoint's answer says of what the program has felt, as images have it.
pub fn felt(stall: &user::Stall, overtaken: u64) -> StallRecord {
    StallRecord {
        waits: stall.waits,
        waited_seconds: stall.waited_seconds,
        issuing_seconds: stall.issuing_seconds,
        isolated_bytes: stall.isolated_bytes,
        pool_bytes: stall.pool_bytes,
        incomplete: stall.incomplete,
        copying_seconds: stall.copying_seconds,
        overtaken,
        ..StallRecord::default()
    }
}

/// Seconds and bytes of all steps with one of these names.
fn sum(phases: &[Phase], names: &[&str]) -> (f64, u64) {
    let found = phases.iter().filter(|p| names.contains(&p.name.as_str()));
    found.fold((0.0, 0), |sum, p| (sum.0 + p.seconds, sum.1 + p.bytes))
}

/// Seconds that are worth a row.
const LEAST: f64 = 1e-6;

struct Rows<'p> {
    phases: &'p [Phase],
    rows: Vec<Row>,
}

impl Rows<'_> {
    fn add(&mut self, what: &str, when: When, (seconds, bytes): (f64, u64)) {
        if seconds >= LEAST {
            self.rows.push(Row {
                what: what.to_owned(),
                when,
                seconds,
                bytes,
            });
        }
    }

    fn steps(&mut self, what: &str, when: When, names: &[&str]) {
        self.add(what, when, sum(self.phases, names));
    }

    /// Where the data of the row before came from.
    fn sources(&mut self, when: When, steps: &[Phase], names: [&str; 2]) {
        let kinds = ["of it out of the cache", "of it off the disk"];
        for (what, name) in kinds.into_iter().zip(names) {
            let (_, bytes) = sum(steps, &[name]);
            if bytes > 0 {
                self.rows.push(Row {
                    what: what.to_owned(),
                    when,
                    seconds: 0.0,
                    bytes,
                });
            }
        }
    }
}

/// Of a checkpoint taken with this mode.
pub fn of_checkpoint(mode: &str, phases: &[Phase], stall: &StallRecord) -> Vec<Row> {
    let mut rows = Rows {
        phases,
        rows: Vec::new(),
    };
    let again = mode == "recopy" || stall.overtaken > 0;
    let copy = if again { "recopy" } else { "copy" };
    rows.steps("quiesce", When::Still, &["quiesce", "detach", "release"]);
    rows.steps("lock", When::Still, &["lock"]);
    rows.steps("device memory to the host", When::Still, &["driver"]);
    rows.steps("host state", When::Still, &["host"]);
    rows.steps("device memory back", When::Still, &["driver back"]);
    rows.steps("hash", When::Still, &["device.hash"]);
    rows.steps("copy on the device", When::Still, &["device.aside"]);
    rows.steps(copy, When::Still, &["device.copy", "device.shared"]);
    let parts = [
        "device.hash",
        "device.aside",
        "device.copy",
        "device.shared",
    ];
    let other = sum(phases, &["device"]).0 - sum(phases, &parts).0;
    rows.add("other work on the device", When::Still, (other, 0));
    rows.steps("resume", When::Still, &["reattach"]);
    let waits = format!("copy-on-write, {} times", stall.waits);
    let waited = (stall.waited_seconds, stall.isolated_bytes);
    rows.add(&waits, When::Waits, waited);
    let before = "copies put before operations";
    rows.add(before, When::Waits, (stall.issuing_seconds, 0));
    rows.steps("prepare", When::Behind, &["prepare"]);
    rows.steps("copied ahead", When::Behind, &["ahead"]);
    rows.steps("copied, checked and written", When::Behind, &["capture"]);
    rows.steps("hashed and written", When::Behind, &["finish"]);
    rows.steps("host state into the store", When::Behind, &["pages"]);
    rows.steps("commit", When::Behind, &["commit"]);
    rows.rows
}

/// Of a restore, with how its data came if that was behind the program.
pub fn of_restore(phases: &[Phase], arrival: Option<&Arrival>) -> Vec<Row> {
    let mut rows = Rows {
        phases,
        rows: Vec::new(),
    };
    let before = When::Before;
    rows.steps("worker", before, &["device.worker"]);
    rows.steps("records", before, &["device.records"]);
    rows.steps("objects", before, &["device.objects"]);
    rows.steps("data that cannot be late", before, &["device.now"]);
    rows.steps("data", before, &["device.data"]);
    rows.sources(before, phases, ["device.cache", "device.disk"]);
    rows.steps("host process", before, &["host"]);
    rows.steps("of that, memory out of the store", before, &["pages"]);
    rows.steps("of that, device memory", before, &["driver"]);
    rows.steps("check of the image's files", before, &["verify"]);
    rows.steps("resume", before, &["attach", "reattach"]);
    if let Some(arrival) = arrival {
        let steps = recorded(&arrival.steps);
        let waits = sum(&steps, &["waits"]);
        rows.add("for data that is coming", When::Waits, waits);
        rows.add("data", When::Behind, (arrival.seconds, arrival.done));
        rows.sources(When::Behind, &steps, ["cache", "disk"]);
    }
    rows.rows
}

/// Bytes that were moved in so long, and their rate, as people read them; empty where there is none.
pub fn moved(bytes: u64, seconds: f64) -> [String; 2] {
    if bytes == 0 {
        return [String::new(), String::new()];
    }
    let rate = match seconds > 0.0 {
        true => format!("{}/s", units::bytes((bytes as f64 / seconds) as u64)),
        false => String::new(),
    };
    [units::bytes(bytes), rate]
}

/// For people.
pub fn table(rows: &[Row]) -> String {
    let mut table = Table::new(&["WHAT", "THE PROGRAM", "TIME", "MOVED", "RATE"]);
    for row in rows {
        let [bytes, rate] = moved(row.bytes, row.seconds);
        let (what, when) = (row.what.clone(), row.when.name().to_owned());
        table.row([what, when, row.time(), bytes, rate]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, seconds: f64, bytes: u64) -> Phase {
        Phase {
            name: name.into(),
            start: 0.0,
            seconds,
            bytes,
        }
    }

    fn seconds_of(rows: &[Row], what: &str) -> f64 {
        let found: Vec<_> = rows.iter().filter(|row| row.what == what).collect();
        assert_eq!(found.len(), 1, "`{what}` in {rows:?}");
        found[0].seconds
    }

    #[test]
    fn a_stop_is_told_apart_into_what_the_figures_show() {
        let phases = [
            step("quiesce", 0.25, 0),
            step("release", 0.25, 0),
            step("host", 1.0, 10),
            step("device", 3.0, 0),
            step("device.hash", 1.0, 100),
            step("device.copy", 1.5, 50),
            step("ahead", 9.0, 0),
        ];
        let rows = of_checkpoint("recopy", &phases, &StallRecord::default());
        assert_eq!(seconds_of(&rows, "quiesce"), 0.5);
        assert_eq!(seconds_of(&rows, "recopy"), 1.5);
        assert_eq!(seconds_of(&rows, "other work on the device"), 0.5);
        assert_eq!(seconds_of(&rows, "copied ahead"), 9.0);
        assert!(table(&rows).contains("hash"));
        let overtaken = StallRecord {
            overtaken: 1,
            waits: 7,
            waited_seconds: 2.0,
            ..StallRecord::default()
        };
        let rows = of_checkpoint("cow", &phases, &overtaken);
        assert_eq!(seconds_of(&rows, "recopy"), 1.5);
        assert_eq!(seconds_of(&rows, "copy-on-write, 7 times"), 2.0);
    }

    #[test]
    fn a_restore_says_how_long_operations_waited_for_data() {
        let phases = [step("device.objects", 0.5, 0), step("host", 1.0, 0)];
        let wait = user::Phase {
            name: "waits".into(),
            start: 0.0,
            seconds: 0.25,
            bytes: 0,
        };
        let cached = user::Phase {
            name: "cache".into(),
            start: 0.0,
            seconds: 0.0,
            bytes: 3 << 28,
        };
        let arrival = Arrival {
            stand: user::ArrivalStand::Complete,
            done: 1 << 30,
            total: 1 << 30,
            start: 1.0,
            seconds: 2.0,
            steps: vec![wait, cached],
            misses: Vec::new(),
        };
        let rows = of_restore(&phases, Some(&arrival));
        assert_eq!(seconds_of(&rows, "for data that is coming"), 0.25);
        assert_eq!(seconds_of(&rows, "data"), 2.0);
        assert!(table(&rows).contains("512.0 MiB/s"));
        let sources = rows.iter().filter(|row| row.what.starts_with("of it"));
        let sources: Vec<_> = sources.map(|it| (it.what.as_str(), it.bytes)).collect();
        assert_eq!(sources, [("of it out of the cache", 3 << 28)]);
        assert_eq!(of_restore(&phases, None).len(), 2);
    }
}
