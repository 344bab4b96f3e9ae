//! Progress of long steps: one bar each on a terminal, nothing elsewhere.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fermata_control::user::WAITING;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;

use crate::printer::Printer;

const BYTES: &str = "{prefix:>12} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
const STEP: &str = "{prefix:>12} {spinner} {elapsed}";

/// Shows how far the steps of an operation are.
pub struct Progress {
    printer: Printer,
    shown: bool,
    waited: AtomicBool,
    current: Mutex<Option<Bar>>,
}

struct Bar {
    phase: String,
    counted: bool,
    bar: ProgressBar,
}

impl Progress {
    /// Shows nothing unless the printer may.
    pub fn new(printer: &Printer) -> Self {
        Self {
            printer: printer.clone(),
            shown: printer.shows_progress(),
            waited: AtomicBool::new(false),
            current: Mutex::new(None),
        }
    }

    /// A step is this far; `total` is 0 when it is not counted in bytes.
    pub fn update(&self, phase: &str, done: u64, total: u64) {
        if let Some(what) = phase.strip_prefix(WAITING) {
            // Also where no progress is shown: it may be taken for a command that hangs.
            if !self.waited.swap(true, Ordering::Relaxed) {
                self.printer.note(&match what {
                    "" => format!(
                        "the checkpoint waits, up to {total} s, for the program's threads to stop"
                    ),
                    what => format!(
                        "the checkpoint waits, up to {total} s,{what} to end; the program goes on"
                    ),
                });
            }
            return;
        }
        if !self.shown {
            return;
        }
        let mut current = self.current.lock();
        let counted = total > 0;
        if current
            .as_ref()
            .is_none_or(|b| b.phase != phase || b.counted != counted)
        {
            if let Some(old) = current.take() {
                old.bar.finish_and_clear();
            }
            *current = Some(Bar {
                phase: phase.into(),
                counted,
                bar: make(phase, total),
            });
        }
        if let Some(b) = current.as_ref().filter(|_| counted) {
            b.bar.set_length(total);
            b.bar.set_position(done.min(total));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(b) = self.current.get_mut() {
            b.bar.finish_and_clear();
        }
    }
}

fn make(phase: &str, total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let template = if total > 0 { BYTES } else { STEP };
    let style = ProgressStyle::with_template(template).expect("the templates above are valid");
    bar.set_style(style.progress_chars("=> "));
    bar.set_prefix(phase.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
