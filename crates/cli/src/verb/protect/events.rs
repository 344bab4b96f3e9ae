//! What happens, told to the user: lines of JSON or of text, and each to a command.

use std::cell::Cell;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fermata_control::wait;
use serde_json::{Value, json};

use crate::failure::{Failure, INTERNAL};
use crate::printer::Printer;

/// How long the user's command may take for one event.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// Tells.
pub struct Events {
    session: String,
    printer: Printer,
    command: Option<Teller>,
    /// Whether the user knows that standard output takes no more events.
    warned: Cell<bool>,
}

/// Gives events to the user's command, one after the other, beside everything else.
struct Teller {
    lines: Option<Sender<String>>,
    thread: Option<JoinHandle<()>>,
}

impl Events {
    /// Events of `session`; `command` is for the shell.
    pub fn new(session: &str, command: Option<String>, printer: &Printer) -> Result<Self, Failure> {
        Ok(Self {
            session: session.to_owned(),
            printer: printer.clone(),
            command: command
                .map(|it| Teller::start(it, printer.clone()))
                .transpose()?,
            warned: Cell::new(false),
        })
    }

    /// Tells that `event` has happened: `text` says it to a reader, the fields of `detail` (an object) to a program.
    ///
    /// An event that cannot be written, because its reader has gone or the disk is full, is lost: the protection of
    /// the program must not end with it.
    pub fn tell(&self, event: &str, text: &str, detail: Value) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let time = since.map_or(0.0, |it| it.as_secs_f64());
        let mut value = json!({ "time": time, "event": event, "session": self.session });
        if let (Value::Object(fields), Value::Object(more)) = (&mut value, detail) {
            fields.extend(more);
        }
        let line = format!("{value}\n");
        if let Some(command) = &self.command {
            command.give(&line);
        }
        if !self.printer.is_json() {
            return self.printer.note(text);
        }
        if let Err(why) = self.printer.data(&line)
            && !self.warned.replace(true)
        {
            let text = format!(
                "events are lost, and the protection goes on: {}",
                why.message
            );
            self.printer.warn(&text);
        }
    }
}

impl Teller {
    fn start(command: String, printer: Printer) -> Result<Self, Failure> {
        let (lines, given) = channel();
        let thread = std::thread::Builder::new()
            .name("events".into())
            .spawn(move || serve(&command, &given, &printer))
            .map_err(|e| Failure::new(INTERNAL, format!("cannot start a thread: {e}")))?;
        Ok(Self {
            lines: Some(lines),
            thread: Some(thread),
        })
    }

    fn give(&self, line: &str) {
        if let Some(lines) = &self.lines {
            // The thread is there as long as this is.
            let _ = lines.send(line.to_owned());
        }
    }
}

impl Drop for Teller {
    /// The last events are still told.
    fn drop(&mut self) {
        self.lines = None;
        if let Some(thread) = self.thread.take() {
            // It has said what went wrong.
            let _ = thread.join();
        }
    }
}

fn serve(command: &str, lines: &Receiver<String>, printer: &Printer) {
    for line in lines {
        if let Err(why) = call(command, &line) {
            printer.warn(&format!("the command for events: {why}"));
        }
    }
}

fn call(command: &str, line: &str) -> Result<(), String> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]);
    // Its output would stand among the events.
    shell.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = shell
        .spawn()
        .map_err(|e| format!("cannot execute /bin/sh: {e}"))?;
    if let Some(mut input) = child.stdin.take() {
        // A command that reads nothing has ended, perhaps.
        let _ = input.write_all(line.as_bytes());
    }
    let in_time = wait::child_ends(&child, COMMAND_LIMIT);
    if !in_time {
        // Fails only when it has just ended.
        let _ = child.kill();
    }
    match child.wait() {
        _ if !in_time => Err(format!(
            "it took longer than {COMMAND_LIMIT:?} and was killed"
        )),
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("it ended with {status}")),
        Err(e) => Err(e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_gets_each_event_in_order_and_the_last_ones_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("events");
        let command = format!("cat >> {}", file.display());
        let events = Events::new("x", Some(command), &Printer::new(false, true)).expect("begun");
        for n in 0..3 {
            events.tell("checkpoint", "", json!({ "n": n }));
        }
        drop(events);
        let text = std::fs::read_to_string(&file).expect("told");
        let lines: Vec<Value> = text
            .lines()
            .map(|it| serde_json::from_str(it).expect("JSON"))
            .collect();
        let numbers: Vec<_> = lines.iter().map(|it| it["n"].as_u64()).collect();
        assert_eq!(numbers, [Some(0), Some(1), Some(2)]);
        assert!(
            lines
                .iter()
                .all(|it| it["event"] == "checkpoint" && it["session"] == "x")
        );
        assert_eq!(
            call("exit 3", ""),
            Err("it ended with exit status: 3".to_owned())
        );
    }
}
