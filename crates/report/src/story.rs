//! What a report tells: the steps of a checkpoint or restore, who did them, when the program stood still, and when
//! data was copied.

use fermata_control::user::Session;
use fermata_store::image::{Manifest, Phase, TimelineRecord};

use crate::breakdown::{self, Row};

/// The rows of a drawing, each with its colour.
pub const LANES: [(&str, &str); 6] = [
    ("program", "#d55e00"),
    ("worker", "#0072b2"),
    ("device", "#56b4e9"),
    ("CRIU", "#009e73"),
    ("store", "#cc79a7"),
    ("copies", "#e69f00"),
];
/// The lane of what is copied while the program runs.
pub const COPIES: &str = "copies";
/// The lane of the program.
pub const PROGRAM: &str = "program";

/// A span of the program's time, in seconds from the begin.
#[derive(Debug, Clone, PartialEq)]
pub struct Stop {
    /// Seconds from the beginning.
    pub from: f64,
    /// The same, of its end.
    pub to: f64,
    /// What it does meanwhile.
    pub what: &'static str,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Story {
    /// What was done, for the trace's process.
    pub title: String,
    /// Steps.
    pub phases: Vec<Phase>,
    /// When the program did not run.
    pub stops: Vec<Stop>,
    /// What was copied behind it, and how long it waited for that.
    pub copies: TimelineRecord,
    /// What the time went into.
    pub rows: Vec<Row>,
}

/// Who does a step.
pub fn lane(phase: &str) -> &'static str {
    match phase {
        "quiesce" | "detach" | "reattach" | "attach" => PROGRAM,
        "host" => "CRIU",
        "commit" | "verify" | "pages" => "store",
        "data" => COPIES,
        part if part.starts_with("device.") => "device",
        _ => "worker",
    }
}

fn end(p: &Phase) -> f64 {
    p.start + p.seconds
}

/// The spans in which a program stood still: from each `quiesce` to the `reattach` after it.
fn stops(phases: &[Phase]) -> Vec<Stop> {
    let last = phases.iter().map(end).fold(0.0, f64::max);
    let begins = phases.iter().filter(|p| p.name == "quiesce");
    begins
        .map(|begin| {
            let after = phases
                .iter()
                .filter(|p| p.name == "reattach" && p.start >= begin.start);
            let back = after.map(end).fold(f64::INFINITY, f64::min);
            Stop {
                from: begin.start,
                // A program that was not brought back was ended.
                to: if back.is_finite() { back } else { last },
                what: "the program stands still",
            }
        })
        .collect()
}

impl Story {
    /// How an image was taken.
    pub fn of_image(manifest: &Manifest) -> Self {
        let phases = manifest.phases.clone();
        Self {
            title: format!("checkpoint `{}` of `{}`", manifest.name, manifest.session),
            stops: stops(&phases),
            rows: breakdown::of_checkpoint(&manifest.mode, &phases, &manifest.stall),
            phases,
            copies: manifest.stall.timeline.clone(),
        }
    }

    /// How a session was restored; `None` if that is not known.
    pub fn of_session(session: &Session) -> Option<Self> {
        let mut phases = breakdown::recorded(&session.phases);
        if phases.is_empty() {
            return None;
        }
        let arrival = session.arrival.as_ref();
        let rows = breakdown::of_restore(&phases, arrival);
        let back = phases.iter().filter(|p| p.name == "reattach").map(end);
        let runs = back.fold(0.0, f64::max);
        phases.extend(arrival.map(|it| Phase {
            name: "data".to_owned(),
            start: it.start,
            seconds: it.seconds,
            bytes: it.done,
        }));
        Some(Self {
            title: format!("restore of `{}`", session.name),
            stops: vec![Stop {
                from: 0.0,
                to: runs,
                what: "the program does not run yet",
            }],
            phases,
            copies: TimelineRecord::default(),
            rows,
        })
    }

    /// When the last of it was done, in seconds; above 0.
    pub fn end(&self) -> f64 {
        let line = &self.copies;
        let spans = line.copied.len().max(line.waited.len());
        let copied = line.start + line.span * spans as f64;
        self.phases.iter().map(end).fold(copied.max(1e-6), f64::max)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A checkpoint that copied for a second behind the program, which waited once.
    pub fn manifest() -> Manifest {
        let step = |name: &str, start: f64, seconds: f64| Phase {
            name: name.into(),
            start,
            seconds,
            bytes: 0,
        };
        let mut manifest = Manifest {
            name: "a<b".into(),
            phases: vec![
                step("prepare", 0.0, 0.2),
                step("quiesce", 0.2, 0.01),
                step("host", 0.21, 0.05),
                step("device", 0.21, 0.04),
                step("device.hash", 0.21, 0.03),
                step("reattach", 0.27, 0.01),
                step("capture", 0.28, 1.0),
            ],
            ..Manifest::default()
        };
        manifest.stall.timeline = TimelineRecord {
            start: 0.27,
            span: 0.25,
            copied: vec![1 << 20, 0, 1 << 21, 1 << 20],
            aside: vec![0, 1 << 20, 0, 0],
            waited: vec![0.0, 0.125, 0.0, 0.0],
        };
        manifest
    }

    #[test]
    fn a_stop_ends_when_the_program_is_brought_back() {
        let found = Story::of_image(&manifest()).stops;
        assert_eq!(found.len(), 1);
        assert!((found[0].from - 0.2).abs() < 1e-9 && (found[0].to - 0.28).abs() < 1e-9);
        let mut ended = manifest();
        ended.phases.retain(|p| p.name != "reattach");
        assert!((Story::of_image(&ended).stops[0].to - 1.28).abs() < 1e-9);
    }

    #[test]
    fn every_step_has_a_row_of_the_drawing() {
        for name in ["quiesce", "device", "device.hash", "host", "commit", "data"] {
            assert!(LANES.iter().any(|(it, _)| *it == lane(name)), "{name}");
        }
    }
}
