//! The error log: the messages behind `cuLogsCurrent` and related functions.
//!
//! As with other drivers, `CUDA_LOG_FILE` may name a file (or `stdout`, `stderr`) that gets them, too. The use of an
//! unsupported feature is also reported once on standard error, because a result code names no reason;
//! `FERMATA_SOFTGPU_QUIET` turns that off. Under a worker, standard error is the program's.

use std::collections::{BTreeSet, VecDeque};
use std::io::Write;

use fermata_abi::sys::driver as cu;
use parking_lot::Mutex;

/// Messages kept.
const KEPT: usize = 100;

/// Messages so far and where a reader stands.
#[derive(Debug, Default)]
struct Log {
    messages: VecDeque<String>,
    /// Number of the first message kept.
    first: u32,
}

static LOG: Mutex<Log> = Mutex::new(Log {
    messages: VecDeque::new(),
    first: 0,
});

/// Adds a message.
pub fn note(message: String) {
    if let Ok(path) = std::env::var("CUDA_LOG_FILE") {
        let line = format!("[CUDA] {message}\n");
        // A log that cannot be written must not fail the program.
        let _ = match path.as_str() {
            "stdout" => std::io::stdout().write_all(line.as_bytes()),
            "stderr" => std::io::stderr().write_all(line.as_bytes()),
            path => std::fs::OpenOptions::new()
                .append(true)
                .create(true)
                .open(path)
                .and_then(|mut file| file.write_all(line.as_bytes())),
        };
    }
    let mut log = LOG.lock();
    log.messages.push_back(message);
    if log.messages.len() > KEPT {
        log.messages.pop_front();
        log.first += 1;
    }
}

/// Texts that have been reported; at most [`KEPT`], so that a program cannot make this grow.
static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Adds a message and writes it to standard error, unless it has been reported before or the user has turned that off.
pub fn tell(message: String) {
    // An empty variable counts as not set, as for every setting.
    let quiet = std::env::var_os("FERMATA_SOFTGPU_QUIET");
    if quiet.is_none_or(|value| value.is_empty() || value == "0") {
        let mut told = TOLD.lock();
        if told.len() < KEPT && told.insert(message.clone()) {
            // A program without standard error must not fail for it.
            let _ = writeln!(std::io::stderr(), "software GPU: {message}");
        }
    }
    note(message);
}

/// Whether a message with this text has been reported.
#[cfg(test)]
pub fn has_told(text: &str) -> bool {
    TOLD.lock().iter().any(|message| message.contains(text))
}

/// Reports that a function of the driver API is not supported.
pub fn refuse_call(name: &str) -> cu::CUresult {
    tell(format!(
        "the program called `{name}`, which is not supported"
    ));
    cu::CUDA_ERROR_NOT_SUPPORTED
}

/// Number that the next message will have.
pub fn position() -> u32 {
    let log = LOG.lock();
    log.first + log.messages.len() as u32
}

/// Messages from number `from` on, and the number after the last.
pub fn since(from: u32) -> (Vec<String>, u32) {
    let log = LOG.lock();
    let skip = from.saturating_sub(log.first) as usize;
    let messages = log.messages.iter().skip(skip).cloned().collect();
    (messages, log.first + log.messages.len() as u32)
}
