//! The daemon's log: events with a level and, where they are of one, a session (`tracing`).
//!
//! ```text
//!  2026-11-23T18:00:00Z INFO  session=heat checkpoint of `heat` begins
//! ```
//! A line each in a file of limited size in the runtime folder; and, where systemd runs the daemon, an entry each in the
//! journal, with the session as `FERMATA_SESSION`.

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use fermata_store::image::{rfc3339, unix_now};
use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;

/// A log beyond this is moved aside, replacing the one moved before.
const LIMIT_BYTES: u64 = 4 << 20;
/// systemd sets it for what it connects with the journal.
const JOURNAL: &str = "JOURNAL_STREAM";
/// As the journal names the daemon.
const IDENTIFIER: &str = "fermatad";
/// Before the names of fields in the journal.
const PREFIX: &str = "FERMATA";

/// From now on this process's events go to the file at `path`, and to the journal where there is one.
///
/// # Errors
/// The file cannot be created or written, or there is a log already.
pub fn begin(path: PathBuf) -> io::Result<()> {
    let file = LogFile::open(path)?;
    // One that cannot be reached is done without: the file has everything.
    let journal = std::env::var_os(JOURNAL).and_then(|_| tracing_journald::layer().ok());
    let journal = journal.map(|it| {
        it.with_syslog_identifier(IDENTIFIER.to_owned())
            .with_field_prefix(Some(PREFIX.to_owned()))
    });
    let all = Registry::default().with(LevelFilter::INFO).with(file);
    tracing::subscriber::set_global_default(all.with(journal)).map_err(io::Error::other)
}

/// Writes events to a file.
#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    file: Mutex<File>,
}

impl LogFile {
    fn open(path: PathBuf) -> io::Result<Self> {
        let file = Mutex::new(append(&path)?);
        Ok(Self { path, file })
    }

    /// Writes one line. A full disk loses it; the daemon goes on.
    fn line(&self, line: &str) {
        let mut file = self.file.lock();
        let _ = file.write_all(line.as_bytes());
        if file.metadata().is_ok_and(|m| m.len() > LIMIT_BYTES) {
            let _ = std::fs::rename(&self.path, self.path.with_extension("log.1"));
            if let Ok(new) = append(&self.path) {
                *file = new;
            }
        }
    }
}

impl<S: Subscriber> Layer<S> for LogFile {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut words = Words::default();
        event.record(&mut words);
        let (time, level) = (rfc3339(unix_now()), event.metadata().level());
        let text = format!("{}{}", words.fields, words.message).replace('\n', " ");
        self.line(&format!("{time} {level:<5} {text}\n"));
    }
}

/// What an event says.
#[derive(Default)]
struct Words {
    /// `NAME=VALUE `, each.
    fields: String,
    message: String,
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // A string takes whatever is written to it.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, "{name}={value:?} "),
        };
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line_with_its_level_and_its_session() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("fermatad.log");
        let file = LogFile::open(path.clone()).expect("opened");
        let log = Registry::default().with(LevelFilter::INFO).with(file);
        tracing::subscriber::with_default(log, || {
            let name = String::from("heat");
            tracing::warn!(session = %name, "its data is lost:\n{}", "damaged");
            tracing::info!("ends");
            tracing::debug!("is not told");
        });
        let text = std::fs::read_to_string(&path).expect("written");
        let lines: Vec<_> = text.lines().map(|line| line.split_once(' ')).collect();
        let said: Vec<_> = lines.iter().flatten().map(|(_, said)| *said).collect();
        assert_eq!(
            said,
            ["WARN  session=heat its data is lost: damaged", "INFO  ends"]
        );
        assert!(lines.iter().flatten().all(|(time, _)| time.ends_with('Z')));
    }

    #[test]
    fn a_log_that_has_grown_too_long_is_moved_aside() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("fermatad.log");
        let file = LogFile::open(path.clone()).expect("opened");
        file.line(&"x".repeat(LIMIT_BYTES as usize + 1));
        file.line("y\n");
        assert_eq!(std::fs::read(&path).expect("the new one"), b"y\n");
        let old = std::fs::metadata(folder.path().join("fermatad.log.1")).expect("the old one");
        assert_eq!(old.len(), LIMIT_BYTES + 1);
    }
}
