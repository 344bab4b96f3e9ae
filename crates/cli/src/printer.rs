//! The one place that prints. Results go to standard output; notes, warnings, errors and progress
//! go to standard error. Everything is readable without colour.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::failure::{Failure, INTERNAL};

/// Version of the JSON documents.
pub const SCHEMA_VERSION: u32 = 1;

/// Prints.
#[derive(Debug, Clone)]
pub struct Printer {
    json: bool,
    quiet: bool,
    colour: bool,
}

impl Printer {
    /// Prints JSON instead of text with `json`, and nothing that is not asked for with `quiet`.
    pub fn new(json: bool, quiet: bool) -> Self {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
        Self {
            json,
            quiet,
            colour: !no_colour && !dumb && io::stderr().is_terminal(),
        }
    }

    /// Whether results are JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Whether progress may be shown.
    pub fn shows_progress(&self) -> bool {
        !self.quiet && !self.json && io::stderr().is_terminal()
    }

    /// Prints a result: text, lines as they are.
    pub fn data(&self, text: &str) -> Result<(), Failure> {
        self.bytes(text.as_bytes())
    }

    /// Prints a result: bytes as they are.
    pub fn bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)
            .and_then(|()| out.flush())
            .map_err(|e| Failure::io("write to standard output", &e))
    }

    /// Prints what the program printed: a result, unless standard output is for JSON.
    pub fn program_output(&self, bytes: &[u8]) -> Result<(), Failure> {
        if self.json {
            return io::stderr()
                .write_all(bytes)
                .map_err(|e| Failure::io("write to standard error", &e));
        }
        self.bytes(bytes)
    }

    /// Prints a result: a JSON document with the fields of `value` (an object).
    pub fn document(&self, value: &impl Serialize) -> Result<(), Failure> {
        let value = serde_json::to_value(value)
            .map_err(|e| Failure::new(INTERNAL, format!("cannot write JSON: {e}")))?;
        let mut fields = Map::new();
        fields.insert("schema_version".into(), SCHEMA_VERSION.into());
        match value {
            Value::Object(object) => fields.extend(object),
            other => {
                fields.insert("value".into(), other);
            }
        }
        self.data(&format!("{:#}\n", Value::Object(fields)))
    }

    /// Prints what a verb has done: a JSON document if that is asked for, else a note.
    pub fn outcome(&self, done: &impl Serialize, summary: &str) -> Result<(), Failure> {
        if self.json {
            return self.document(done);
        }
        self.note(summary);
        Ok(())
    }

    /// Says something the user may want to know.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            self.say(text);
        }
    }

    /// Says something that may go wrong.
    pub fn warn(&self, text: &str) {
        self.say(&format!("{} {text}", self.paint("33;1", "warning:")));
    }

    /// As [`Self::warn`], but nothing where only results are asked for.
    pub fn advise(&self, text: &str) {
        if !self.quiet {
            self.warn(text);
        }
    }

    /// Says why a verb failed.
    pub fn failure(&self, failure: &Failure) {
        let mut text = format!("{} {}", self.paint("31;1", "error:"), failure.message);
        if !failure.hint.is_empty() {
            text += &format!("\n\n{} {}", self.paint("36;1", "hint:"), failure.hint);
        }
        self.say(&text);
        if self.json {
            let error = json!({ "message": failure.message, "hint": failure.hint,
                "exit_status": failure.status });
            // The error has been said; a reader that has gone changes nothing.
            let _ = self.document(&json!({ "error": error }));
        }
    }

    fn say(&self, text: &str) {
        // With standard error closed there is no reader to tell.
        let _ = writeln!(io::stderr(), "{text}");
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.into()
        }
    }
}
