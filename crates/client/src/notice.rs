//! Writes one-line messages to a file for `fermata run`, which shows them: the library itself never prints.

use rustix::fs::{Mode, OFlags};

/// Environment variable: the file to which messages are appended.
const FILE: &str = "FERMATA_NOTICE_FILE";

/// Appends a line to the notice file, if there is one.
pub fn write(line: &str) {
    let Some(path) = std::env::var_os(FILE) else {
        return;
    };
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) else {
        return;
    };
    // A message that cannot be delivered is no reason to fail the program's call.
    let _ = rustix::io::write(&file, format!("{line}\n").as_bytes());
}
