//! Counts of calls and of the time they take, for finding out why a program is slow: only with [`FOLDER`] set.
//!
//! ```text
//!   FOLDER/program-PID   calls of the driver API in the program       name, count, nanoseconds, longest
//!   FOLDER/worker-PID    operations in the worker                     one line each
//! ```
//! A line is written anew every so many calls of its name, so the file can be read while the program runs; what comes
//! after the last such moment is missing in it.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use fermata_abi::op::Op;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};

/// Environment variable: the folder of the files.
pub const FOLDER: &str = "FERMATA_TALLY";

/// Bytes of a line.
const LINE: usize = 96;
/// A line is written for each of the first calls, then once for so many.
const EVERY: u64 = 64;

#[derive(Debug, Default)]
struct Row {
    at: u64,
    count: u64,
    nanos: u128,
    longest: u128,
}

/// Counts by name, in a file.
#[derive(Debug)]
pub struct Tally {
    file: OwnedFd,
    rows: Mutex<HashMap<String, Row>>,
}

impl Tally {
    /// The file `who-PID` in the folder that the environment names, if it does and the file can be made.
    pub fn of_environment(who: &str) -> Option<Self> {
        let folder = std::env::var_os(FOLDER).filter(|it| !it.is_empty())?;
        let path = std::path::Path::new(&folder).join(format!("{who}-{}", std::process::id()));
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).ok()?;
        Some(Self {
            file,
            rows: Mutex::default(),
        })
    }

    /// Counts one call.
    pub fn add(&self, name: &str, took: Duration) {
        let mut rows = self.rows.lock();
        if !rows.contains_key(name) {
            let at = rows.len() as u64;
            let row = Row {
                at,
                ..Row::default()
            };
            rows.insert(name.to_owned(), row);
        }
        let Some(row) = rows.get_mut(name) else {
            return;
        };
        let took = took.as_nanos();
        row.count += 1;
        row.nanos += took;
        row.longest = row.longest.max(took);
        if row.count < EVERY || row.count.is_multiple_of(EVERY) {
            let line = format!(
                "{name:<44} {:>14} {:>18} {:>16}",
                row.count, row.nanos, row.longest
            );
            let line = format!("{line:<width$.width$}\n", width = LINE - 1);
            // Nobody can be told that the file takes nothing.
            let _ = rustix::io::pwrite(&self.file, line.as_bytes(), row.at * LINE as u64);
        }
    }

    /// Counts one operation.
    pub fn add_op(&self, op: &Op<'_>, took: Duration) {
        let mut name = Name::default();
        let _ = write!(name, "{op:?}");
        self.add(name.as_str(), took);
    }

    /// Does `act` and counts it.
    pub fn measured<T>(&self, name: &str, act: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = act();
        self.add(name, begun.elapsed());
        done
    }
}

/// The first word that is written: the variant's name of what is shown for debugging.
#[derive(Default)]
struct Name {
    text: String,
}

impl Name {
    fn as_str(&self) -> &str {
        &self.text
    }
}

impl Write for Name {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if !self.text.is_empty() {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermata_abi::op::EventId;

    #[test]
    fn an_operation_is_counted_by_its_name() {
        let folder = std::env::temp_dir().join(format!("fermata-tally-{}", std::process::id()));
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::TRUNC;
        let tally = Tally {
            file: rustix::fs::open(&folder, flags, Mode::RUSR | Mode::WUSR).unwrap(),
            rows: Mutex::default(),
        };
        for _ in 0..3 {
            tally.add_op(
                &Op::EventQuery {
                    event: EventId::from_raw(0x110),
                },
                Duration::from_nanos(5),
            );
        }
        tally.add_op(&Op::Drain, Duration::from_nanos(7));
        let text = std::fs::read_to_string(&folder).unwrap();
        let _ = std::fs::remove_file(&folder);
        let words: Vec<Vec<&str>> = text
            .lines()
            .map(|it| it.split_whitespace().collect())
            .collect();
        assert_eq!(
            words,
            [["EventQuery", "3", "15", "5"], ["Drain", "1", "7", "7"]]
        );
    }
}
