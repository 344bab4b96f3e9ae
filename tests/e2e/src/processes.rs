//! Finds the processes of a case by a mark in their environment.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// Environment variable that marks everything a case starts.
pub const MARK: &str = "FERMATA_E2E_CASE";

/// A live process, told apart from a later one with the same number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process number.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub started: u64,
    /// Command name.
    pub name: String,
}

/// The process `pid`, unless it is gone or a zombie. One whose first thread alone has ended looks like a zombie, and is none: the
/// others hold its sockets open.
pub fn look_up(pid: i32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let open = stat.find('(')?;
    let close = stat.rfind(')')?;
    let fields: Vec<&str> = stat[close + 2..].split(' ').collect();
    let threads: u32 = fields.get(17)?.parse().ok()?;
    if matches!(fields.first(), Some(&"Z" | &"X")) && threads <= 1 {
        return None;
    }
    Some(Process {
        pid,
        started: fields.get(19)?.parse().ok()?,
        name: stat[open + 1..close].to_owned(),
    })
}

/// All live processes whose environment carries `mark`, this one left out.
pub fn marked(mark: &str) -> Vec<Process> {
    let wanted = format!("{MARK}={mark}");
    let me = std::process::id() as i32;
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != me && has_variable(*pid, &wanted))
        .filter_map(look_up)
        .collect()
}

fn has_variable(pid: i32, wanted: &str) -> bool {
    fs::read(format!("/proc/{pid}/environ")).is_ok_and(|env| {
        env.split(|byte| *byte == 0)
            .any(|var| var == wanted.as_bytes())
    })
}

/// Whether process `pid` was started without arguments.
pub fn has_no_arguments(pid: i32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.iter().filter(|byte| **byte == 0).count() == 1
}

/// Ends `process` if it still is the one that was seen.
pub fn end(process: &Process) {
    if look_up(process.pid).as_ref() == Some(process)
        && let Some(pid) = Pid::from_raw(process.pid)
    {
        kill_process(pid, Signal::KILL).ok();
    }
}
