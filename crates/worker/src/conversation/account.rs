//! What an image has cost, what vouches for it and what took how long, as the daemon hears it.

use fermata_control::worker as control;
use fermata_engine::capture::{self, Validate, Vouched};

/// What an image has cost and what vouches for it, as the daemon hears it.
#[derive(Debug, Clone, Default)]
pub(super) struct Account {
    pub stall: control::Stall,
    pub validation: control::Validation,
}

impl Account {
    pub fn of(stall: &capture::Stall, vouched: &Vouched) -> Self {
        let miss = |it: &capture::Miss| control::Miss {
            kernel: it.kernel.clone(),
            address: it.address,
            bytes: it.bytes,
            buffer: it.buffer,
        };
        Self {
            stall: control::Stall {
                waits: stall.waits,
                waited_seconds: stall.waited.as_secs_f64(),
                issuing_seconds: stall.issuing.as_secs_f64(),
                isolated_bytes: stall.isolated_bytes,
                pool_bytes: stall.pool_bytes,
                incomplete: stall.incomplete,
                copying_seconds: stall.copying.as_secs_f64(),
                timeline: timeline(&stall.timeline),
            },
            validation: control::Validation {
                by: match vouched.by {
                    Validate::Content => control::Validate::Content,
                    Validate::Ptx => control::Validate::Ptx,
                    Validate::Both => control::Validate::Both,
                    Validate::Off => control::Validate::Off,
                },
                note: vouched.note.clone(),
                checked: vouched.checked,
                unchecked: vouched.unchecked,
                violations: vouched.violations,
                misses: vouched.misses.iter().map(miss).collect(),
            },
        }
    }
}

fn timeline(line: &capture::Timeline) -> control::Timeline {
    let spans = line.spans();
    control::Timeline {
        start: 0.0,
        span: line.span().as_secs_f64(),
        copied: spans.iter().map(|it| it.copied).collect(),
        aside: spans.iter().map(|it| it.aside).collect(),
        waited: spans.iter().map(|it| it.waited.as_secs_f64()).collect(),
    }
}

/// Steps of a checkpoint or restore.
pub(super) fn steps(steps: &[fermata_engine::Step]) -> Vec<control::Step> {
    let step = |it: &fermata_engine::Step| control::Step {
        name: it.name.to_owned(),
        start: it.start,
        seconds: it.seconds,
        bytes: it.bytes,
    };
    steps.iter().map(step).collect()
}
